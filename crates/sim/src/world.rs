//! The shell of a broker in virtual time: shards, network links, and the mail
//! between shards. Everything that may vary in a real network varies here by
//! the seed: latency, how a byte stream is cut into pieces, how much a
//! receiver takes, when a connection breaks and when its ends find out.
//!
//! Invariant: with equal seeds and equal calls, everything happens equally.
//! Bytes of one direction of one link, and messages from one shard to
//! another, never overtake each other.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;

use punctual_broker::{
    AdmissionRequest, AuthAnswer, AuthRequest, Budget, Config, ConnId, ConnMeta, Directory, Event,
    Flow, Nanos, Output, RemoteMessage, RestoredSession, Restorer, Scope, Shard, Stats,
    StoreTrouble,
};

use punctual_codec::{Split, split};
use punctual_store::Store as _;

use crate::connection::Connection;
use crate::keeper::{End, Keeper, News};
use crate::queue::Queue;
use punctual_model::Rng;

/// Most units of work that a shard is given at a time: some work is done at once, other is not.
const MOST_UNITS: u64 = 100;

/// A network connection between a client and the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub usize);

/// How a link behaves.
#[derive(Debug, Clone, Copy)]
pub struct LinkProfile {
    /// Least latency of one direction.
    pub latency: Nanos,
    /// What may be added to it, at random.
    pub jitter: Nanos,
    /// Longest piece the byte stream is cut into; 0 for no cuts.
    pub piece: usize,
    /// Bytes the client's receive buffer holds, those under way included.
    pub window: usize,
}

impl Default for LinkProfile {
    fn default() -> Self {
        Self {
            latency: Nanos(10_000),
            jitter: Nanos(0),
            piece: 0,
            window: usize::MAX,
        }
    }
}

/// What the broker did or noticed, in the order it happened.
#[derive(Debug)]
pub enum Trace {
    /// The broker consumed these bytes of a link: whole packets.
    Consumed {
        /// Which link.
        link: LinkId,
        /// The packets.
        packets: Vec<u8>,
        /// Whether the last of them ended the connection.
        closed: bool,
        /// How many of them were publications that were refused for lack of
        /// room.
        refused: u64,
    },
    /// The broker was told that the connection is gone.
    Lost(LinkId),
    /// The broker let go of the connection; nothing follows these last bytes.
    Closed(LinkId),
    /// The broker asked whether a client may come in.
    Asked(LinkId, Box<AuthRequest>),
    /// The broker was given the answer.
    Answered(LinkId, AuthAnswer),
    /// A line for the log.
    Event(Event),
}

/// Answers authentication requests; the World delivers the answer later.
pub type Authenticator = Box<dyn FnMut(&AuthRequest) -> AuthAnswer>;

/// Time between two attempts to commit the same.
const RETRY: Nanos = Nanos(2_000_000);

/// Time that a decision about a flow takes.
const DECISION: Nanos = Nanos(300_000);

/// What [`ShardCall`] holds.
type Call = Box<dyn FnOnce(&mut Shard, Nanos)>;

/// Something that is done to a shard.
pub struct ShardCall(Call);

impl ShardCall {
    /// That is to be done when the shard has its turn.
    pub fn new(call: impl FnOnce(&mut Shard, Nanos) + 'static) -> Self {
        Self(Box::new(call))
    }
}

impl std::fmt::Debug for ShardCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShardCall")
    }
}

type AdmissionHandler = dyn FnMut(u16, AdmissionRequest) -> Vec<(u16, ShardCall)>;

struct Desk(Box<AdmissionHandler>);

#[derive(Debug)]
enum WorldEvent {
    Accept(LinkId, Box<ConnMeta>),
    ToBroker(LinkId, Vec<u8>),
    EndToBroker(LinkId),
    ToClient(LinkId, Vec<u8>),
    EndToClient(LinkId),
    BrokerNotices(LinkId),
    Post(u16, u16),
    Mail(u16, Vec<RemoteMessage>),
    Answer(LinkId, AuthAnswer),
    Call(u16, ShardCall),
    /// The commit that is under way ends.
    Commit,
    /// A shard hears of a commit.
    News(u16, News),
}

#[derive(Debug)]
struct Link {
    profile: LinkProfile,
    shard: u16,
    /// While the broker knows the connection.
    conn: Option<ConnId>,
    /// From the client to the broker.
    connection: Connection,
    /// Arrived at the broker's side and not consumed.
    inbox: Vec<u8>,
    paused: bool,
    ended_up: bool,
    /// Written by the broker and not yet read by the client.
    outstanding: usize,
    /// Arrived at a client that does not read.
    unread: VecDeque<Vec<u8>>,
    reading: bool,
    ended_down: bool,
    /// For the client to take.
    received: Vec<u8>,
    /// When the broker last took a packet, or was not to be read from.
    last_heard: Nanos,
    paused_since: Nanos,
    longest_pause: Nanos,
}

/// Shards, links and the time.
pub struct World {
    now: Nanos,
    rng: Rng,
    /// How much work is done at a time.
    slices: Rng,
    directory: Arc<Directory>,
    shards: Vec<Shard>,
    links: Vec<Link>,
    conns: HashMap<(u16, ConnId), LinkId>,
    queue: Queue<WorldEvent>,
    /// When the last mail between two shards arrives, by sender and receiver.
    last_mail: Vec<Nanos>,
    posting: Vec<bool>,
    mail_delay: Nanos,
    one_at_a_time: bool,
    trace: Vec<Trace>,
    dirty: Vec<ConnId>,
    outputs: Vec<Output>,
    authenticator: Option<Authenticator>,
    desk: Option<Desk>,
    nonce: u128,
    config: Arc<Config>,
    keeper: Option<Keeper>,
    crashes: u32,
}

/// How long a piece of work waits at most because other things happen.
const LONGEST_WAIT: Nanos = Nanos::from_millis(1);

impl World {
    /// A broker of `shards` shards at time zero.
    pub fn new(config: Config, shards: u16, seed: u64) -> Self {
        let directory = Directory::new(shards);
        let config = Arc::new(config);
        let now = Nanos(0);
        let count = directory.shards();
        Self {
            now,
            rng: Rng::new(seed),
            slices: Rng::new(!seed),
            shards: (0..count)
                .map(|index| Shard::new(directory.clone(), index, config.clone(), now))
                .collect(),
            config,
            keeper: None,
            crashes: 0,
            directory,
            links: Vec::new(),
            conns: HashMap::new(),
            queue: Queue::new(),
            last_mail: vec![now; usize::from(count) * usize::from(count)],
            posting: vec![false; usize::from(count) * usize::from(count)],
            mail_delay: Nanos(20_000),
            one_at_a_time: false,
            trace: Vec::new(),
            dirty: Vec::new(),
            outputs: Vec::new(),
            authenticator: None,
            desk: None,
            nonce: 0,
        }
    }

    /// A broker with a store whose commits take up to `delay`.
    pub fn with_store(config: Config, shards: u16, seed: u64, delay: Nanos) -> Self {
        let mut world = Self::new(config, shards, seed);
        let keeper = Keeper::new(world.directory.shards(), delay);
        for shard in &mut world.shards {
            shard.attach_store(keeper.wall);
        }
        world.keeper = Some(keeper);
        world
    }

    /// The broker's process ends without warning or its power fails, and another
    /// one starts after `down` with what the disk has. All connections break.
    ///
    /// # Panics
    /// Without a store; if what was confirmed of it cannot be read.
    pub fn crash(&mut self, down: Nanos) {
        let Some(keeper) = &mut self.keeper else {
            panic!("a broker without store crashes only once");
        };
        self.crashes += 1;
        keeper.crash(&mut self.rng);
        self.now = self.now + down;
        self.queue.clear();
        self.posting.fill(false);
        self.conns.clear();
        self.outputs.clear();
        self.dirty.clear();
        for link in &mut self.links {
            link.connection.silence();
            link.conn = None;
            link.unread.clear();
        }
        let count = self.directory.shards();
        self.directory = Directory::new(count);
        let (config, now) = (&self.config, self.now);
        self.shards = (0..count)
            .map(|index| Shard::new(self.directory.clone(), index, config.clone(), now))
            .collect();
        let mut restorer = Restorer::new(self.directory.clone(), keeper.wall);
        for shard in &mut self.shards {
            shard.attach_store(keeper.wall);
        }
        let shards = &mut self.shards;
        let mut restore = |session: RestoredSession| {
            let home = session.home(count);
            assert!(
                shards[usize::from(home)].restore(session, now),
                "two sessions of one client in the store"
            );
        };
        let recovered = keeper.store().recover(&mut |op| {
            restorer.take(&op).into_iter().for_each(&mut restore);
        });
        assert!(recovered.is_ok(), "what was open can be read");
        restorer.finish().into_iter().for_each(&mut restore);
        for shard in 0..count {
            self.settle(shard);
        }
    }

    /// How often the broker has crashed.
    pub fn crashes(&self) -> u32 {
        self.crashes
    }

    /// Whether the disk fails, and how. Commits are tried again; as long as a full
    /// one has something in reserve they succeed.
    pub fn set_store_trouble(&mut self, trouble: Option<StoreTrouble>) {
        if let Some(keeper) = &mut self.keeper {
            keeper.set_trouble(trouble);
            let news = keeper.look();
            self.tell(news);
        }
    }

    /// The power fails, and comes back, with the call of the disk that follows so
    /// many others.
    pub fn set_power_failure(&mut self, calls: u64) {
        if let Some(keeper) = &mut self.keeper {
            keeper.set_power(calls);
        }
    }

    /// Whether that is still to come.
    pub fn expects_power_failure(&self) -> bool {
        let keeper = self.keeper.as_ref();
        keeper.is_some_and(Keeper::has_power_left)
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// What the shards share.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// The shards, for questions.
    pub fn shards(&mut self) -> &mut [Shard] {
        &mut self.shards
    }

    /// Longest time between the posting of a message to another shard and its
    /// arrival there.
    pub fn set_mail_delay(&mut self, delay: Nanos) {
        self.mail_delay = delay;
    }

    /// Whether the broker is handed single packets, so that the trace tells
    /// which of them were refused.
    pub fn set_one_at_a_time(&mut self, on: bool) {
        self.one_at_a_time = on;
    }

    /// Who admits flows; for brokers with [`Config::admission`].
    pub fn set_desk(
        &mut self,
        desk: impl FnMut(u16, AdmissionRequest) -> Vec<(u16, ShardCall)> + 'static,
    ) {
        self.desk = Some(Desk(Box::new(desk)));
    }

    /// Who answers authentication requests; without, everyone is let in.
    pub fn set_authenticator(&mut self, authenticator: Authenticator) {
        self.authenticator = Some(authenticator);
    }

    /// Does something to a shard that the desk was not asked for: after what it has
    /// answered so far.
    pub fn call(&mut self, shard: u16, call: ShardCall) {
        self.queue
            .schedule(self.now + DECISION, WorldEvent::Call(shard, call));
    }

    /// Opens a connection to a random shard.
    pub fn connect(&mut self, profile: LinkProfile) -> LinkId {
        let shard = self.rng.below(self.shards.len() as u64) as u16;
        self.connect_to(shard, profile)
    }

    /// Opens a connection that `shard` accepts.
    pub fn connect_to(&mut self, shard: u16, profile: LinkProfile) -> LinkId {
        self.nonce += 1;
        let meta = ConnMeta {
            allow_anonymous: true,
            nonce: self.nonce.to_be_bytes(),
            ..ConnMeta::default()
        };
        self.connect_with(shard, profile, meta)
    }

    /// Opens a connection with what the shell would know of it.
    pub fn connect_with(&mut self, shard: u16, profile: LinkProfile, meta: ConnMeta) -> LinkId {
        let id = LinkId(self.links.len());
        let now = self.now;
        self.links.push(Link {
            profile,
            shard,
            conn: None,
            connection: Connection::new(now),
            inbox: Vec::new(),
            paused: false,
            ended_up: false,
            outstanding: 0,
            unread: VecDeque::new(),
            reading: true,
            ended_down: false,
            received: Vec::new(),
            last_heard: now,
            paused_since: now,
            longest_pause: Nanos(0),
        });
        let at = self.arrival(id, true);
        self.queue
            .schedule(at, WorldEvent::Accept(id, Box::new(meta)));
        id
    }

    /// The client writes bytes.
    pub fn write(&mut self, id: LinkId, bytes: &[u8]) {
        let link = &self.links[id.0];
        if bytes.is_empty() || link.connection.is_silent() {
            return;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = self.piece(id, rest.len());
            let at = self.arrival(id, true);
            self.queue
                .schedule(at, WorldEvent::ToBroker(id, rest[..n].to_vec()));
            rest = &rest[n..];
        }
    }

    /// The client closes the connection after what it wrote.
    pub fn finish(&mut self, id: LinkId) {
        if !self.links[id.0].connection.is_silent() {
            let at = self.arrival(id, true);
            self.queue.schedule(at, WorldEvent::EndToBroker(id));
        }
    }

    /// The network breaks: nothing that is under way arrives, in neither
    /// direction. The broker notices after a while, or never.
    pub fn cut(&mut self, id: LinkId, noticed_after: Option<Nanos>) {
        let link = &mut self.links[id.0];
        if link.connection.is_silent() {
            return;
        }
        link.connection.silence();
        link.unread.clear();
        link.outstanding = link.outstanding.min(link.profile.window);
        if let Some(after) = noticed_after {
            let at = self.now + after;
            self.queue.schedule(at, WorldEvent::BrokerNotices(id));
        }
    }

    /// Whether the client reads what arrives.
    pub fn set_reading(&mut self, id: LinkId, reading: bool) {
        let link = &mut self.links[id.0];
        link.reading = reading;
        if reading {
            let mut freed = 0;
            while let Some(piece) = link.unread.pop_front() {
                freed += piece.len();
                link.received.extend_from_slice(&piece);
            }
            if freed > 0 {
                link.outstanding -= freed;
                let shard = link.shard;
                self.flush(id);
                self.settle(shard);
            }
        }
    }

    /// Moves the bytes that arrived at the client to the end of `bytes`.
    pub fn take_received(&mut self, id: LinkId, bytes: &mut Vec<u8>) {
        bytes.append(&mut self.links[id.0].received);
    }

    /// Whether the client has read everything the broker wrote before it
    /// closed the connection, or the network broke.
    pub fn is_ended(&self, id: LinkId) -> bool {
        let link = &self.links[id.0];
        link.connection.is_silent() || (link.ended_down && link.unread.is_empty())
    }

    /// Shard and identity of a link while the broker knows it.
    pub fn conn(&self, id: LinkId) -> Option<(u16, ConnId)> {
        let link = &self.links[id.0];
        link.conn.map(|conn| (link.shard, conn))
    }

    /// Whether the broker holds the link's client back.
    pub fn is_paused(&self, id: LinkId) -> bool {
        self.links[id.0].paused
    }

    /// When the broker last heard from the link's client.
    pub fn last_heard(&self, id: LinkId) -> Nanos {
        self.links[id.0].last_heard
    }

    /// Whether something arrived that the client has not taken.
    pub fn has_received(&self, id: LinkId) -> bool {
        !self.links[id.0].received.is_empty()
    }

    /// The longest time the broker has held the link's client back at once.
    pub fn longest_pause(&self, id: LinkId) -> Nanos {
        let link = &self.links[id.0];
        let current = if link.paused {
            self.now - link.paused_since
        } else {
            Nanos(0)
        };
        current.max(link.longest_pause)
    }

    /// Moves what happened since the last call to the end of `trace`.
    pub fn take_trace(&mut self, trace: &mut Vec<Trace>) {
        trace.append(&mut self.trace);
    }

    /// Lets the next thing happen, unless it lies after `until`; then the time
    /// is `until`, and the answer false.
    pub fn step(&mut self, until: Nanos) -> bool {
        let timer = self
            .shards
            .iter()
            .filter_map(Shard::next_timeout)
            .min()
            .unwrap_or(Nanos::MAX);
        let event = self.queue.next_time().unwrap_or(Nanos::MAX);
        // Work that waits takes time: other things happen between its pieces. But no machine lets it wait
        // for seconds, in which timers would be late, too.
        let soon = until.min(self.now + LONGEST_WAIT);
        let timer = match timer {
            Nanos(0) if event <= soon && self.slices.below(2) == 0 => Nanos::MAX,
            timer => timer,
        };
        let at = timer.min(event);
        if at > until {
            self.now = self.now.max(until);
            return false;
        }
        self.now = self.now.max(at);
        if timer <= event {
            for shard in 0..self.shards.len() {
                let due = self.shards[shard].next_timeout();
                if due.is_some_and(|due| due <= self.now) {
                    let mut budget = Budget::new(1 + self.slices.below(MOST_UNITS));
                    self.shards[shard].work(self.now, &mut budget);
                    self.settle(shard as u16);
                }
            }
        } else if let Some((_, next)) = self.queue.pop(at) {
            self.happen(next);
        }
        true
    }

    /// Whether nothing is under way: no bytes, no mail and no answer.
    pub fn is_quiet(&self) -> bool {
        self.queue.is_empty()
    }

    /// Lets everything happen until a time.
    pub fn run_until(&mut self, until: Nanos) {
        while self.step(until) {}
    }

    fn happen(&mut self, what: WorldEvent) {
        match what {
            WorldEvent::Accept(id, meta) => self.accept(id, *meta),
            WorldEvent::ToBroker(id, bytes) => {
                let link = &mut self.links[id.0];
                if !link.connection.is_silent() {
                    link.inbox.extend_from_slice(&bytes);
                    self.read(id);
                }
            }
            WorldEvent::EndToBroker(id) => {
                self.links[id.0].ended_up = true;
                self.read(id);
            }
            WorldEvent::ToClient(id, bytes) => {
                let link = &mut self.links[id.0];
                if link.connection.is_silent() {
                    return;
                }
                if link.reading {
                    link.outstanding -= bytes.len();
                    link.received.extend_from_slice(&bytes);
                    let shard = link.shard;
                    self.flush(id);
                    self.settle(shard);
                } else {
                    link.unread.push_back(bytes);
                }
            }
            WorldEvent::EndToClient(id) => self.links[id.0].ended_down = true,
            WorldEvent::BrokerNotices(id) => self.lose(id),
            WorldEvent::Post(from, to) => self.post(from, to),
            WorldEvent::Mail(to, messages) => {
                self.shards[usize::from(to)].remote(messages.into_iter(), self.now);
                self.settle(to);
            }
            WorldEvent::Commit => self.commit(),
            WorldEvent::News(to, news) => {
                let (shard, now) = (&mut self.shards[usize::from(to)], self.now);
                match news {
                    News::Committed(ticket) => shard.committed(ticket, now),
                    News::Failed(trouble) => shard.store_failed(trouble, now),
                    News::Full(why) => shard.store_full(why, now),
                }
                self.settle(to);
            }
            WorldEvent::Call(shard, call) => {
                (call.0)(&mut self.shards[usize::from(shard)], self.now);
                self.settle(shard);
            }
            WorldEvent::Answer(id, answer) => {
                if let Some((shard, conn)) = self.conn(id) {
                    self.trace.push(Trace::Answered(id, answer.clone()));
                    self.shards[usize::from(shard)].authenticated(conn, answer, self.now);
                    self.settle(shard);
                }
            }
        }
    }

    fn accept(&mut self, id: LinkId, meta: ConnMeta) {
        let link = &mut self.links[id.0];
        let conn = self.shards[usize::from(link.shard)].open(meta, self.now);
        link.conn = Some(conn);
        link.paused = false;
        self.conns.insert((link.shard, conn), id);
        self.read(id);
    }

    /// Hands what arrived to the broker, as far as it reads.
    fn read(&mut self, id: LinkId) {
        let link = &self.links[id.0];
        let Some(conn) = link.conn else {
            return;
        };
        while self.links[id.0].conn == Some(conn) && self.read_once(id, conn) {}
        let link = &self.links[id.0];
        if link.ended_up && !link.paused && link.conn == Some(conn) {
            self.lose(id);
        }
    }

    /// Whether there may be more to read.
    fn read_once(&mut self, id: LinkId, conn: ConnId) -> bool {
        let link = &mut self.links[id.0];
        if link.paused || link.inbox.is_empty() {
            return false;
        }
        let offered = match split(&link.inbox, u32::MAX) {
            Ok(Split::Frame(frame)) if self.one_at_a_time => frame.bytes.len(),
            _ => link.inbox.len(),
        };
        let shard = &mut self.shards[usize::from(link.shard)];
        let before = refusals(shard.stats());
        let received = shard.receive(conn, &link.inbox[..offered], self.now);
        assert!(received.consumed <= offered, "consumed more than offered");
        if received.flow == Flow::Read {
            assert!(
                received.needed == 0 || received.needed > offered - received.consumed,
                "a whole packet was left unread"
            );
        }
        let packets: Vec<u8> = link.inbox.drain(..received.consumed).collect();
        // A part of a packet is no sign of life.
        if received.consumed > 0 || received.flow != Flow::Read {
            link.last_heard = self.now;
        }
        link.paused = received.flow == Flow::Pause;
        link.paused_since = self.now;
        let more = received.consumed == offered && received.flow == Flow::Read;
        if !packets.is_empty() {
            self.trace.push(Trace::Consumed {
                link: id,
                packets,
                closed: received.flow == Flow::Closed,
                refused: refusals(shard.stats()) - before,
            });
        }
        let shard = link.shard;
        self.settle(shard);
        more
    }

    fn lose(&mut self, id: LinkId) {
        let link = &self.links[id.0];
        if let Some(conn) = link.conn {
            let shard = link.shard;
            self.trace.push(Trace::Lost(id));
            self.shards[usize::from(shard)].closed(conn, "connection closed by peer", self.now);
            self.settle(shard);
        }
    }

    /// Does what a shard asks for, and writes what it has to say.
    fn settle(&mut self, shard: u16) {
        let at = usize::from(shard);
        loop {
            self.hear(shard);
            if let Some(keeper) = &mut self.keeper
                && let Some(operations) = self.shards[at].take_operations(self.now)
                && keeper.post(shard, operations)
            {
                self.schedule_commit();
            }
            // What need not be handed over may let answers go.
            if !self.shards[at].has_dirty() && !self.shards[at].has_outputs() {
                break;
            }
        }
        for other in 0..self.shards.len() as u16 {
            let pair = self.pair(shard, other);
            if other != shard && self.shards[at].has_outbox(other) && !self.posting[pair] {
                self.posting[pair] = true;
                let when = self.now + Nanos(self.rng.below(self.mail_delay.0 + 1));
                self.queue.schedule(when, WorldEvent::Post(shard, other));
            }
        }
    }

    /// The same without what is to survive.
    fn hear(&mut self, shard: u16) {
        let at = usize::from(shard);
        loop {
            let mut outputs = std::mem::take(&mut self.outputs);
            self.shards[at].take_outputs(&mut outputs);
            let mut dirty = std::mem::take(&mut self.dirty);
            self.shards[at].take_dirty(&mut dirty);
            let idle = outputs.is_empty() && dirty.is_empty();
            for output in outputs.drain(..) {
                self.act(shard, output);
            }
            for conn in dirty.drain(..) {
                if let Some(id) = self.conns.get(&(shard, conn)).copied() {
                    self.flush(id);
                }
            }
            self.outputs = outputs;
            self.dirty = dirty;
            if idle {
                break;
            }
        }
    }

    fn schedule_commit(&mut self) {
        let Some(keeper) = &self.keeper else {
            return;
        };
        let pause = if keeper.is_failing() { RETRY } else { Nanos(0) };
        let at = self.now + pause + Nanos(self.rng.below(keeper.delay.0 + 1));
        self.queue.schedule(at, WorldEvent::Commit);
    }

    fn commit(&mut self) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        let news = match keeper.end(&mut self.rng) {
            End::Told(news) => news,
            End::Power => return self.crash(Nanos(0)),
        };
        let again = keeper.begin();
        self.tell(news);
        if again {
            self.schedule_commit();
        }
    }

    /// Tells shards of their store, in order.
    fn tell(&mut self, news: Vec<(u16, News)>) {
        for (shard, news) in news {
            let delay = Nanos(self.rng.below(self.mail_delay.0 + 1));
            let Some(keeper) = &mut self.keeper else {
                return;
            };
            let last = &mut keeper.last[usize::from(shard)];
            *last = (self.now + delay).max(*last);
            let at = *last;
            self.queue.schedule(at, WorldEvent::News(shard, news));
        }
    }

    fn act(&mut self, shard: u16, output: Output) {
        match output {
            Output::Close { conn, tail } => {
                let Some(id) = self.conns.remove(&(shard, conn)) else {
                    return;
                };
                let link = &mut self.links[id.0];
                link.conn = None;
                self.trace.push(Trace::Closed(id));
                self.transmit(id, &tail);
                let at = self.arrival(id, false);
                self.queue.schedule(at, WorldEvent::EndToClient(id));
            }
            Output::Resume(conn) => {
                if let Some(id) = self.conns.get(&(shard, conn)).copied() {
                    let now = self.now;
                    let link = &mut self.links[id.0];
                    if link.paused {
                        let pause = now - link.paused_since;
                        link.longest_pause = link.longest_pause.max(pause);
                    }
                    link.paused = false;
                    self.queue
                        .schedule(now, WorldEvent::ToBroker(id, Vec::new()));
                }
            }
            Output::Handover {
                conn,
                shard: to,
                meta,
            } => {
                let Some(id) = self.conns.remove(&(shard, conn)) else {
                    return;
                };
                let link = &mut self.links[id.0];
                link.conn = None;
                link.shard = to;
                let at = self.now + Nanos(self.rng.below(self.mail_delay.0 + 1));
                self.queue.schedule(at, WorldEvent::Accept(id, meta));
            }
            Output::Authenticate(request) => {
                let Some(id) = self.conns.get(&(shard, request.conn)).copied() else {
                    return;
                };
                let answer = match &mut self.authenticator {
                    Some(authenticator) => authenticator(&request),
                    None => AuthAnswer::Accept {
                        username: None,
                        data: None,
                        credential: None,
                    },
                };
                self.trace.push(Trace::Asked(id, request));
                let at = self.now + Nanos(self.rng.within(1..=1_000_000));
                self.queue.schedule(at, WorldEvent::Answer(id, answer));
            }
            Output::Admission(request) => {
                let Some(desk) = &mut self.desk else {
                    return;
                };
                let calls = (desk.0)(shard, *request);
                // The same for all, for answers keep their order.
                let at = self.now + DECISION;
                for (shard, call) in calls {
                    self.queue.schedule(at, WorldEvent::Call(shard, call));
                }
            }
            Output::Event(event) => self.trace.push(Trace::Event(event)),
        }
    }

    /// Writes what waits for a link, as far as its window allows.
    fn flush(&mut self, id: LinkId) {
        loop {
            let link = &self.links[id.0];
            let Some(conn) = link.conn else {
                return;
            };
            let shard = usize::from(link.shard);
            let room = link.profile.window.saturating_sub(link.outstanding);
            if room == 0 {
                return;
            }
            let mut bytes = Vec::new();
            {
                let mut slices = [IoSlice::new(&[]); 4];
                let filled = self.shards[shard].pending(conn, Scope::All, self.now, &mut slices);
                for slice in &slices[..filled] {
                    let n = slice.len().min(room - bytes.len());
                    bytes.extend_from_slice(&slice[..n]);
                }
            }
            if bytes.is_empty() {
                return;
            }
            if link.profile.piece > 0 && self.rng.chance(20) {
                // A partial write.
                let n = self.rng.within(1..=bytes.len() as u64) as usize;
                bytes.truncate(n);
            }
            self.shards[shard].sent(conn, bytes.len(), self.now);
            self.transmit(id, &bytes);
        }
    }

    /// Sends bytes to the client.
    fn transmit(&mut self, id: LinkId, bytes: &[u8]) {
        self.links[id.0].outstanding += bytes.len();
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = self.piece(id, rest.len());
            let at = self.arrival(id, false);
            self.queue
                .schedule(at, WorldEvent::ToClient(id, rest[..n].to_vec()));
            rest = &rest[n..];
        }
    }

    fn post(&mut self, from: u16, to: u16) {
        let pair = self.pair(from, to);
        if self.rng.chance(10) {
            // The other shard's mailbox is full for now.
            let when = self.now + Nanos(self.rng.within(1..=self.mail_delay.0.max(1)));
            self.queue.schedule(when, WorldEvent::Post(from, to));
            return;
        }
        self.posting[pair] = false;
        let mut messages = Vec::new();
        self.shards[usize::from(from)].take_outbox(to, &mut messages);
        let delay = Nanos(self.rng.below(self.mail_delay.0 + 1));
        let at = (self.now + delay).max(self.last_mail[pair]);
        self.last_mail[pair] = at;
        self.queue.schedule(at, WorldEvent::Mail(to, messages));
        self.settle(from);
    }

    fn pair(&self, from: u16, to: u16) -> usize {
        usize::from(from) * self.shards.len() + usize::from(to)
    }

    fn piece(&mut self, id: LinkId, len: usize) -> usize {
        match self.links[id.0].profile.piece {
            0 => len,
            // Mostly large pieces, now and then single bytes.
            _ if self.rng.chance(80) => len,
            longest => (self.rng.within(1..=longest as u64) as usize).min(len),
        }
    }

    /// When what is sent now arrives, at the broker or at the client. After a cut it is ignored there.
    fn arrival(&mut self, id: LinkId, up: bool) -> Nanos {
        let profile = self.links[id.0].profile;
        let at = self.now + profile.latency + Nanos(self.rng.below(profile.jitter.0 + 1));
        let connection = &mut self.links[id.0].connection;
        connection.send(usize::from(!up), at).unwrap_or(at)
    }
}

/// Publications refused for lack of room.
fn refusals(stats: &Stats) -> u64 {
    stats.refused_queue_full + stats.refused_retained_full
}
