//! Links, queues and frames in virtual time.
//!
//! Every link sends one frame at a time and is not preempted; the highest
//! priority goes first, and inside a priority the first that came. What the
//! model leaves open (releases, delays, undeclared traffic, the order of what
//! comes at one instant) is asked of a [`Behaviour`], so that every run is
//! something that the network may do.
//!
//! At one instant all ends of transmissions and releases come first, then all
//! arrivals, then every idle link chooses: a frame that arrives when a link
//! becomes free takes part in the choice.

use std::cmp::Reverse;

use super::heap::{Event, Heap};
use super::layout::{Layout, NONE};

/// When a message of a flow is released, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The nominal release, from which the response is counted.
    pub nominal: u64,
    /// When the message is queued at its source: at `nominal`, or later by up to the release jitter.
    pub queued: u64,
}

/// Makes all choices that the model of a network leaves open. If it returns what the model forbids, the run is
/// meaningless.
pub trait Behaviour {
    /// The next message of a flow, in order of time; `None` if there are no more.
    fn release(&mut self, flow: usize) -> Option<Release>;
    /// The delay of a message at the node before a hop, within `range`, ns.
    fn delay(&mut self, hop: usize, message: u32, range: (u64, u64)) -> u64;
    /// The remaining transmission time of an undeclared frame that began one nanosecond before a
    /// frame came to an idle link, ns; below `best_effort`.
    fn residual(&mut self, link: usize, best_effort: u64) -> u64;
    /// The rank of a flow: of frames that arrive at the same time, those of lower rank are queued first.
    fn rank(&self, flow: usize) -> u32;
    /// Which copy of a frame is made first where the path of the flow branches.
    fn rotation(&self, flow: usize) -> u32;
}

/// Is told of the events of a run. By default all methods do nothing.
pub trait Observer {
    /// Is called when a frame has joined the queue of a hop.
    #[inline]
    fn arrived(&mut self, hop: usize, message: u32, now: u64) {
        let _ = (hop, message, now);
    }

    /// Is called when the transmission of a frame begins at a hop.
    #[inline]
    fn started(&mut self, hop: usize, message: u32, now: u64) {
        let _ = (hop, message, now);
    }

    /// Is called when the last bit of a message has arrived at a destination.
    #[inline]
    fn responded(&mut self, hop: usize, message: u32, response: u64) {
        let _ = (hop, message, response);
    }
}

/// An [`Observer`] that ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

impl Observer for Nobody {}

/// The largest response time of a flow at a destination in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Worst {
    /// From the nominal release to the last bit, ns.
    pub response: u64,
    /// The message that had it, numbered from 0.
    pub message: u32,
    /// How many messages arrived.
    pub count: u64,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    nominal: u64,
    message: u32,
    hop: u32,
    /// The next frame in the same queue, or in the list of unused frames.
    next: u32,
    /// Whether it is the last frame of its message.
    last: bool,
    /// At links that serve by deadline: the time by which they order it, ns.
    due: u64,
}

#[derive(Debug, Clone, Copy)]
struct LinkState {
    /// When the link last became idle, ns; `u64::MAX` if it never has.
    free_since: u64,
    /// The frame that the link sends; `NONE` for undeclared traffic.
    current: u32,
    busy: bool,
}

#[derive(Debug, Clone, Copy)]
struct PairState {
    /// When the last frame of the pair so far joins its queue, ns.
    last: u64,
    /// The time to which `rank` belongs, which is the highest rank of arrivals at that time so far.
    at: u64,
    rank: u32,
}

#[derive(Debug, Clone, Copy)]
struct Arrival {
    frame: u32,
    link: u32,
    pair: u32,
    rank: u32,
    order: u32,
}

const END: u32 = 0;
const ARRIVE: u32 = 1 << 31;

/// Simulates a network for one behaviour after the other.
#[derive(Debug)]
pub struct Engine<'a> {
    layout: &'a Layout,
    /// Ends of transmissions, at most one for each link, and arrivals of frames.
    heap: Heap,
    /// The next release of each flow; a heap of its own keeps the other one small.
    releases: Heap,
    frames: Vec<Frame>,
    /// The first frame in the list of unused frames.
    unused: u32,
    links: Vec<LinkState>,
    words: Vec<u64>,
    queues: Vec<(u32, u32)>,
    pairs: Vec<PairState>,
    /// For each flow: the number of messages released so far, and the nominal release of the next one, ns.
    released: Vec<(u32, u64)>,
    worst: Vec<Worst>,
    arrivals: Vec<Arrival>,
    touched: Vec<u32>,
    order: u32,
    transmissions: u64,
}

impl<'a> Engine<'a> {
    /// Creates an engine for a network.
    pub fn new(layout: &'a Layout) -> Self {
        Self {
            layout,
            heap: Heap::default(),
            releases: Heap::default(),
            frames: Vec::new(),
            unused: NONE,
            links: Vec::new(),
            words: Vec::new(),
            queues: Vec::new(),
            pairs: Vec::new(),
            released: Vec::new(),
            worst: Vec::new(),
            arrivals: Vec::new(),
            touched: Vec::new(),
            order: 0,
            transmissions: 0,
        }
    }

    /// Simulates a behaviour from its first release until all frames have arrived.
    pub fn run<B: Behaviour, O: Observer>(&mut self, behaviour: &mut B, observer: &mut O) {
        self.reset();
        for flow in 0..self.layout.flows.len() {
            self.schedule(flow, behaviour);
        }
        loop {
            let now = self.heap.next_time().min(self.releases.next_time());
            if now == u64::MAX {
                return;
            }
            while self.heap.next_time() == now {
                let Some(event) = self.heap.pop() else { break };
                let index = event.what & !ARRIVE;
                match event.what & ARRIVE {
                    END => self.end(index, now, behaviour, observer),
                    _ => self.arrive(index, event.order, behaviour),
                }
            }
            while self.releases.next_time() == now {
                let Some(event) = self.releases.pop() else {
                    break;
                };
                self.release(event.what as usize, behaviour);
            }
            if self.arrivals.len() > 1 {
                self.arrange(now);
            }
            for at in 0..self.arrivals.len() {
                let frame = self.arrivals[at].frame;
                self.enqueue(frame, now, observer);
            }
            self.arrivals.clear();
            for at in 0..self.touched.len() {
                self.choose(self.touched[at], now, behaviour, observer);
            }
            self.touched.clear();
        }
    }

    /// The largest response time of a flow at the end of one of its paths in the last run.
    pub fn worst(&self, flow: usize, path: usize) -> Worst {
        self.worst[self.layout.flows[flow].leaves[path] as usize]
    }

    /// The number of transmissions of frames over all links in the last run.
    pub fn transmissions(&self) -> u64 {
        self.transmissions
    }

    fn reset(&mut self) {
        let layout = self.layout;
        self.heap.clear();
        self.releases.clear();
        self.frames.clear();
        self.unused = NONE;
        let link = LinkState {
            free_since: u64::MAX,
            current: NONE,
            busy: false,
        };
        refill(&mut self.links, layout.links.len(), link);
        refill(&mut self.words, layout.words, 0);
        refill(&mut self.queues, layout.queues, (NONE, NONE));
        let pair = PairState {
            last: 0,
            at: u64::MAX,
            rank: 0,
        };
        refill(&mut self.pairs, layout.pairs, pair);
        refill(&mut self.released, layout.flows.len(), (0, 0));
        refill(&mut self.worst, layout.hops.len(), Worst::default());
        self.order = 0;
        self.transmissions = 0;
    }

    #[inline]
    fn push(&mut self, time: u64, what: u32) {
        self.order = self.order.wrapping_add(1);
        self.heap.push(Event {
            time,
            order: self.order,
            what,
        });
    }

    fn schedule<B: Behaviour>(&mut self, flow: usize, behaviour: &mut B) {
        if let Some(release) = behaviour.release(flow) {
            self.released[flow].1 = release.nominal;
            self.releases.push(Event {
                time: release.queued,
                order: 0,
                what: flow as u32,
            });
        }
    }

    fn release<B: Behaviour>(&mut self, flow: usize, behaviour: &mut B) {
        let layout = self.layout;
        let row = &layout.flows[flow];
        let (message, nominal) = self.released[flow];
        for number in 1..=row.frames {
            for root in &row.roots {
                let frame = self.allocate(Frame {
                    nominal,
                    message,
                    hop: *root,
                    next: NONE,
                    last: number == row.frames,
                    due: 0,
                });
                self.order = self.order.wrapping_add(1);
                self.arrive(frame, self.order, behaviour);
            }
        }
        self.released[flow].0 = message + 1;
        self.schedule(flow, behaviour);
    }

    #[inline]
    fn allocate(&mut self, frame: Frame) -> u32 {
        if self.unused == NONE {
            self.frames.push(frame);
            return (self.frames.len() - 1) as u32;
        }
        let index = self.unused;
        self.unused = self.frames[index as usize].next;
        self.frames[index as usize] = frame;
        index
    }

    fn free(&mut self, index: u32) {
        self.frames[index as usize].next = self.unused;
        self.unused = index;
    }

    /// Ends a transmission: its frame goes on, and the link takes the next one.
    #[inline]
    fn end<B: Behaviour, O: Observer>(
        &mut self,
        link: u32,
        now: u64,
        behaviour: &mut B,
        observer: &mut O,
    ) {
        let state = &mut self.links[link as usize];
        let index = state.current;
        state.busy = false;
        state.current = NONE;
        state.free_since = now;
        self.touched.push(link);
        if index == NONE {
            return;
        }
        let layout = self.layout;
        self.transmissions += 1;
        let frame = self.frames[index as usize];
        let hop = &layout.hops[frame.hop as usize];
        let received = now + layout.links[link as usize].prop;
        if hop.leaf && frame.last {
            let response = received - frame.nominal;
            let worst = &mut self.worst[frame.hop as usize];
            worst.count += 1;
            if response > worst.response {
                worst.response = response;
                worst.message = frame.message;
            }
            observer.responded(frame.hop as usize, frame.message, response);
        }
        let (start, end) = hop.children;
        let children = &layout.children[start as usize..end as usize];
        match *children {
            [] => self.free(index),
            // All frames of a message that was served whole go on at once.
            _ if hop.whole => {
                let flow = hop.flow as usize;
                let rotation = behaviour.rotation(flow) as usize % children.len();
                let (later, sooner) = children.split_at(rotation);
                for child in sooner.iter().chain(later) {
                    for number in 1..=layout.flows[flow].frames {
                        let last = number == layout.flows[flow].frames;
                        let copy = self.allocate(Frame { last, ..frame });
                        self.forward(copy, *child, received, now, behaviour);
                    }
                }
                self.free(index);
            }
            [child] => self.forward(index, child, received, now, behaviour),
            _ => {
                let flow = hop.flow as usize;
                let rotation = behaviour.rotation(flow) as usize % children.len();
                let (later, sooner) = children.split_at(rotation);
                for (number, child) in sooner.iter().chain(later).enumerate() {
                    let copy = match number {
                        0 => index,
                        _ => self.allocate(frame),
                    };
                    self.forward(copy, *child, received, now, behaviour);
                }
            }
        }
    }

    /// Sends a frame through a node to the next queue.
    #[inline]
    fn forward<B: Behaviour>(
        &mut self,
        index: u32,
        child: u32,
        received: u64,
        now: u64,
        behaviour: &mut B,
    ) {
        let hop = &self.layout.hops[child as usize];
        let frame = &mut self.frames[index as usize];
        frame.hop = child;
        let delay = behaviour.delay(child as usize, frame.message, hop.delay);
        let pair = &mut self.pairs[hop.pair as usize];
        // Not before the frame before it.
        let time = (received + delay).max(pair.last);
        pair.last = time;
        if time == now {
            self.order = self.order.wrapping_add(1);
            self.arrive(index, self.order, behaviour);
        } else {
            self.push(time, ARRIVE | index);
        }
    }

    #[inline]
    fn arrive<B: Behaviour>(&mut self, index: u32, order: u32, behaviour: &B) {
        let frame = &self.frames[index as usize];
        let hop = &self.layout.hops[frame.hop as usize];
        self.arrivals.push(Arrival {
            frame: index,
            link: hop.link,
            pair: hop.pair,
            rank: behaviour.rank(hop.flow as usize),
            order,
        });
    }

    /// Sorts the arrivals of one time by rank. Frames of the same pair keep their order: a later one
    /// takes the higher of its own rank and that of the earlier one.
    fn arrange(&mut self, now: u64) {
        // The numbers wrap; how old they are does not.
        let newest = self.order;
        let age = |order: u32| newest.wrapping_sub(order);
        self.arrivals
            .sort_unstable_by_key(|a| Reverse(age(a.order)));
        for arrival in &mut self.arrivals {
            let pair = &mut self.pairs[arrival.pair as usize];
            if pair.at == now {
                arrival.rank = arrival.rank.max(pair.rank);
            }
            (pair.at, pair.rank) = (now, arrival.rank);
        }
        self.arrivals
            .sort_unstable_by_key(|a| (a.link, a.rank, Reverse(age(a.order))));
    }

    #[inline]
    fn enqueue<O: Observer>(&mut self, index: u32, now: u64, observer: &mut O) {
        let (number, message) = {
            let frame = &mut self.frames[index as usize];
            frame.next = NONE;
            (frame.hop as usize, frame.message)
        };
        let hop = &self.layout.hops[number];
        if hop.whole && !self.frames[index as usize].last {
            // The message is there with its last frame.
            self.free(index);
            return;
        }
        if let Some(deadline) = hop.deadline {
            self.enqueue_by_deadline(index, now.saturating_add(deadline), observer, now);
            return;
        }
        observer.arrived(number, message, now);
        let queue = &mut self.queues[hop.queue as usize];
        let tail = queue.1;
        queue.1 = index;
        if tail == NONE {
            queue.0 = index;
            let first = self.layout.links[hop.link as usize].first_word;
            self.words[(first + hop.level / 64) as usize] |= 1 << (hop.level % 64);
        } else {
            self.frames[tail as usize].next = index;
        }
        if !self.links[hop.link as usize].busy {
            self.touched.push(hop.link);
        }
    }

    /// Queues a frame after those that are due at the same time or earlier.
    fn enqueue_by_deadline<O: Observer>(
        &mut self,
        index: u32,
        due: u64,
        observer: &mut O,
        now: u64,
    ) {
        let frame = &mut self.frames[index as usize];
        frame.due = due;
        let (number, message) = (frame.hop as usize, frame.message);
        observer.arrived(number, message, now);
        let hop = &self.layout.hops[number];
        let (mut before, mut after) = (NONE, self.queues[hop.queue as usize].0);
        while after != NONE && self.frames[after as usize].due <= due {
            (before, after) = (after, self.frames[after as usize].next);
        }
        self.frames[index as usize].next = after;
        let queue = &mut self.queues[hop.queue as usize];
        if after == NONE {
            queue.1 = index;
        }
        match before {
            NONE => queue.0 = index,
            before => self.frames[before as usize].next = index,
        }
        let first = self.layout.links[hop.link as usize].first_word;
        self.words[(first + hop.level / 64) as usize] |= 1 << (hop.level % 64);
        if !self.links[hop.link as usize].busy {
            self.touched.push(hop.link);
        }
    }

    /// Lets an idle link begin to send the first frame of its highest priority.
    #[inline]
    fn choose<B: Behaviour, O: Observer>(
        &mut self,
        link: u32,
        now: u64,
        behaviour: &mut B,
        observer: &mut O,
    ) {
        let row = &self.layout.links[link as usize];
        let state = &mut self.links[link as usize];
        if state.busy {
            return;
        }
        let first = row.first_word as usize;
        let words = &mut self.words[first..first + row.words as usize];
        let Some(word) = words.iter().rposition(|word| *word != 0) else {
            return;
        };
        if row.best_effort > 0 && state.free_since != now {
            let residual = behaviour.residual(link as usize, row.best_effort);
            if residual > 0 {
                state.busy = true;
                self.push(now + residual, END | link);
                return;
            }
        }
        let level = 63 - words[word].leading_zeros();
        let queue = &mut self.queues[row.first_queue as usize + 64 * word + level as usize];
        let index = queue.0;
        let frame = self.frames[index as usize];
        queue.0 = frame.next;
        if frame.next == NONE {
            queue.1 = NONE;
            words[word] &= !(1 << level);
        }
        state.busy = true;
        state.current = index;
        observer.started(frame.hop as usize, frame.message, now);
        let cost = self.layout.hops[frame.hop as usize].cost;
        self.push(now + cost, END | link);
    }
}

fn refill<T: Clone>(list: &mut Vec<T>, length: usize, value: T) {
    list.clear();
    list.resize(length, value);
}
