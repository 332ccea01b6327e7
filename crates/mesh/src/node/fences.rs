//! Fences: barriers that show when every message that was in flight to a broker has arrived.
//!
//! When a broker changes its place in the tree, publications take the new path as soon as the brokers
//! between the two places know of it. Publications that were forwarded before are in flight to the old
//! place, or queued there, perhaps for long, and arrive only if the old place keeps their filters and
//! forwards them. The same holds when the last member of a shared subscription leaves a broker. So before
//! the old place drops the filters, it sends a *fence*: a request to every broker of the tree, which each
//! broker answers once all brokers behind it have answered, and the neighbour that asks has acknowledged
//! what was queued for it at that time. A message is acknowledged when it is in the queues of all next
//! receivers, so the answer overtakes no message although it is not queued itself. Publications cost
//! nothing more while no fence is open.
//!
//! For a member, or a stub, each broker answers only once no lost link has a queue whose brokers are
//! reached again ([`super::lost`]) or may soon be: such messages may travel back. A message that turned
//! back just before may have passed brokers that had already answered, so these fences are sent twice. A link that
//! begins to carry is lost no more, but the brokers behind it have not been asked: these fences are then sent
//! again, over that link too.
//!
//! For forwarding stubs of sessions ([`crate::transfer`]), each broker also asks its own core, and
//! answers which of the stubs have to stay, because something there leads to them or may do so.
//!
//! A fence is repeated until it is answered, for [`super::Settings::heal`] at most. A broker that loses a
//! link on which it received or sent a fence forgets it, and receives it again over the new path.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use punctual_model::Nanos;

use super::members::MAX_LEAVING;
use super::{Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::transfer::{HomeId, Stub};
use crate::wire::{ClientStub, Fence, FenceCondition, FenceReply, MAX_MESSAGE, MAX_STUBS, Message};

/// Bound on open fences; requests of other brokers beyond it are ignored, and repeated.
const MAX_ASKED: usize = 1 << 12;
/// Filters that leave within this time share a fence; the same for stubs.
const GATHER: Nanos = Nanos::from_millis(100);
/// Bound on open fences of this broker for stubs; further stubs wait.
const MAX_FOR_STUBS: usize = 64;
/// Bound on the bytes of stubs in a fence.
const STUBS_BYTES: usize = MAX_MESSAGE / 4;
const STUB_BYTES: usize = 256;

/// The broker that sent a fence, and its number there.
type FenceId = (BrokerId, u64);

/// Purpose of a fence of this broker.
#[derive(Debug, Clone)]
enum FencePurpose {
    /// To forget a lost link, or to reduce its filters.
    Link(LinkId),
    /// To end the hold at a link that has begun to carry.
    Hold(LinkId),
    /// To unsubscribe from [`Fences::leaving`].
    Leaving {
        /// Whether this is the second fence.
        again: bool,
    },
    /// To end these stubs of this broker.
    Stubs {
        /// Whether this is the second fence.
        again: bool,
        stubs: Arc<[ClientStub]>,
    },
}

/// A fence of this broker.
#[derive(Debug)]
struct OwnFence {
    what: FencePurpose,
    /// When it is sent next.
    due: Nanos,
    /// When it expires.
    until: Nanos,
}

/// A fence of this broker or another that is not answered yet.
#[derive(Debug)]
struct OpenFence {
    /// The link on which to answer; `None` for a fence of this broker.
    from: Option<LinkId>,
    /// Links without an answer.
    open: BTreeSet<LinkId>,
    after: FenceCondition,
    stubs: Arc<[ClientStub]>,
    /// Whether the answer of this broker's core is outstanding.
    own: bool,
    /// Stubs that have to stay, by their index in `stubs`.
    blocked: BTreeSet<u32>,
    /// Number of the [`Output::Flush`] that precedes the answer.
    flush: Option<u64>,
    /// When it expires.
    until: Nanos,
}

impl OpenFence {
    fn block(&mut self, places: Vec<u32>) {
        let stubs = self.stubs.len();
        let known = places.into_iter().filter(|it| (*it as usize) < stubs);
        self.blocked.extend(known);
    }
}

/// All open fences.
#[derive(Debug, Default)]
pub(super) struct Fences {
    own: BTreeMap<u64, OwnFence>,
    asked: BTreeMap<FenceId, OpenFence>,
    /// Fences that are forwarded once the brokers behind their links have been advertised.
    put_off: Vec<(LinkId, Fence)>,
    /// Filters of shared subscriptions without a member here, for which a fence is open.
    leaving: Vec<Box<str>>,
    /// Such filters for the next fence.
    gathered: Vec<Box<str>>,
    /// When the next fence for filters may begin.
    next: Nanos,
    /// Stubs for the next fences.
    stubs: VecDeque<ClientStub>,
    /// When the next fence for filters may begin.
    next_stubs: Nanos,
    /// The last number used for a fence or flush.
    last: u64,
}

impl Fences {
    /// When a fence is to be sent, or expires.
    pub(super) fn next(&self) -> Option<Nanos> {
        let own = self.own.values().map(|own| own.due.min(own.until));
        let all = self.asked.values().map(|asked| asked.until);
        let stubs = self.may_ask_for_stubs().then_some(self.next_stubs);
        own.chain(all).chain(stubs).min()
    }

    /// Whether there are stubs that wait only for the time of the next fence.
    fn may_ask_for_stubs(&self) -> bool {
        let are_for_stubs = |own: &&OwnFence| matches!(own.what, FencePurpose::Stubs { .. });
        let open = || self.own.values().filter(are_for_stubs).count();
        !self.stubs.is_empty() && open() < MAX_FOR_STUBS
    }

    /// Takes the first stubs, as many as fit into a fence.
    fn next_stubs(&mut self) -> Arc<[ClientStub]> {
        let (mut bytes, mut stubs) = (0, Vec::new());
        while stubs.len() < MAX_STUBS && bytes < STUBS_BYTES {
            let Some(stub) = self.stubs.pop_front() else {
                break;
            };
            bytes += stub.0.len() + STUB_BYTES;
            stubs.push(stub);
        }
        stubs.into()
    }

    /// Begins fences for stubs, if it is time.
    fn begin_for_stubs(&mut self, now: Nanos, heal: Nanos) {
        if self.next_stubs > now {
            return;
        }
        while self.may_ask_for_stubs() {
            self.next_stubs = now + GATHER;
            let stubs = self.next_stubs();
            let again = false;
            self.begin(FencePurpose::Stubs { again, stubs }, now, now + heal);
        }
    }

    /// Begins a fence of this broker; [`Node::tick_fences`] sends it.
    fn begin(&mut self, what: FencePurpose, due: Nanos, until: Nanos) -> u64 {
        self.last += 1;
        self.own.insert(self.last, OwnFence { what, due, until });
        self.last
    }

    /// Begins a fence for a lost link.
    pub(super) fn begin_for(&mut self, link: LinkId, now: Nanos, until: Nanos) -> u64 {
        self.begin(FencePurpose::Link(link), now, until)
    }

    /// Begins a fence for a hold. [`Node::ask_own`] sends it.
    pub(super) fn begin_for_hold(&mut self, link: LinkId, now: Nanos, until: Nanos) -> u64 {
        self.forget_hold(link);
        self.begin(FencePurpose::Hold(link), now, until)
    }

    /// Forgets the fence of a hold.
    pub(super) fn forget_hold(&mut self, link: LinkId) {
        self.own
            .retain(|_, own| !matches!(own.what, FencePurpose::Hold(other) if other == link));
    }

    /// Begins a fence for the gathered filters, unless one for filters is open.
    fn begin_for_next(&mut self, now: Nanos, heal: Nanos) {
        if self.leaving.is_empty() && !self.gathered.is_empty() {
            self.leaving = std::mem::take(&mut self.gathered);
            let due = now.max(self.next);
            self.next = due + GATHER;
            self.begin(FencePurpose::Leaving { again: false }, due, due + heal);
        }
    }

    /// A link begins to carry: fences for members and stubs are sent again, over that link too.
    pub(super) fn forget_settled(&mut self) {
        self.asked
            .retain(|_, asked| asked.after != FenceCondition::Settled);
    }

    /// Forgets fences of lost links that do not wait for them any more.
    pub(super) fn retain(&mut self, awaits: impl Fn(LinkId, u64) -> bool) {
        self.own.retain(|number, own| match own.what {
            FencePurpose::Link(link) => awaits(link, *number),
            FencePurpose::Hold(_) | FencePurpose::Leaving { .. } | FencePurpose::Stubs { .. } => {
                true
            }
        });
    }
}

impl Node {
    /// Sends a fence for a stub of this broker. [`Output::FencePassed`] follows when everything that was
    /// in flight to the stub has arrived, and no other broker blocks its end. If one does, or not all
    /// brokers answer within [`super::Settings::heal`], there is no output.
    pub fn fence_stub(&mut self, client: &str, stub: &Stub, now: Nanos) {
        if self.fences.stubs.len() < MAX_LEAVING {
            self.fences.stubs.push_back((client.into(), stub.clone()));
        }
        self.tick_fences(now);
        self.settle(now);
    }

    /// Answers [`Output::FenceAsked`]: the stubs that have to stay, by their index there.
    pub fn fence_answered(&mut self, by: &HomeId, number: u64, blocked: Vec<u32>, now: Nanos) {
        let Some(by) = BrokerId::new(by.as_str()) else {
            return;
        };
        let key = (by, number);
        if let Some(asked) = self.fences.asked.get_mut(&key)
            && asked.own
        {
            asked.own = false;
            asked.block(blocked);
            self.go_on_fencing(key, now);
        }
    }

    /// Keeps the filter of the last member of a shared subscription in the table until a fence has
    /// passed.
    pub(super) fn fence_filter(&mut self, filter: Box<str>, now: Nanos) {
        let fences = &mut self.fences;
        if fences.leaving.len() + fences.gathered.len() >= MAX_LEAVING {
            return self.filters.table.unsubscribe(&filter);
        }
        fences.gathered.push(filter);
        fences.begin_for_next(now, self.settings.heal);
    }

    /// Answers [`Output::Flush`]: everything that was queued for the neighbour is acknowledged.
    pub fn flushed(&mut self, number: u64) {
        let is_it = |_: &FenceId, asked: &mut OpenFence| asked.flush == Some(number);
        let asked = self.fences.asked.extract_if(.., is_it).next();
        if let Some(((by, number), asked)) = asked
            && let Some(to) = asked.from
        {
            let fenced = FenceReply {
                by,
                number,
                blocked: asked.blocked.into_iter().collect(),
            };
            self.outputs.send(to, &Message::FenceReply(fenced));
        }
    }

    /// Sends the fences that are due, and ends expired ones.
    pub(super) fn tick_fences(&mut self, now: Nanos) {
        self.fences.asked.retain(|_, asked| asked.until > now);
        let over = |_: &u64, own: &mut OwnFence| own.until <= now;
        let over: Vec<(u64, OwnFence)> = self.fences.own.extract_if(.., over).collect();
        for (number, own) in over {
            self.end_fence(number, own.what, now);
        }
        self.fences.begin_for_stubs(now, self.settings.heal);
        let due = self.fences.own.iter();
        let due = due.filter(|(_, own)| own.due <= now);
        let due: Vec<u64> = due.map(|(number, _)| *number).collect();
        for number in due {
            self.ask_own(number, now);
        }
    }

    /// Sends a fence of this broker, and schedules its repetition.
    pub(super) fn ask_own(&mut self, number: u64, now: Nanos) {
        let Some(own) = self.fences.own.get_mut(&number) else {
            return;
        };
        own.due = now + self.settings.tree.hello;
        let fence = Fence {
            by: self.settings.id.clone(),
            number,
            after: match own.what {
                FencePurpose::Link(_) => FenceCondition::Nothing,
                FencePurpose::Hold(_) => FenceCondition::PassedOn,
                FencePurpose::Leaving { .. } | FencePurpose::Stubs { .. } => {
                    FenceCondition::Settled
                }
            },
            stubs: match &own.what {
                FencePurpose::Stubs { stubs, .. } => stubs.clone(),
                _ => Arc::default(),
            },
        };
        let until = own.until;
        self.ask_fence(None, fence, until, now);
    }

    /// Forwards fences once the brokers behind their links have been advertised.
    pub(super) fn ask_put_off(&mut self, now: Nanos) {
        if self.fences.put_off.is_empty() || self.is_changing(now) {
            return;
        }
        let until = now + self.settings.heal;
        for (from, fence) in std::mem::take(&mut self.fences.put_off) {
            if !self.links.carries(from) {
                continue;
            }
            let is_there = self.leads_to(from, &fence.by);
            match is_there && !self.commit.is_to_show(from) {
                true => self.ask_fence(Some(from), fence, until, now),
                false => self.fences.put_off.push((from, fence)),
            }
        }
    }

    fn leads_to(&self, link: LinkId, broker: &BrokerId) -> bool {
        let broker = BTreeSet::from([broker.clone()]);
        self.reach.where_are(&broker).0.contains(&link)
    }

    pub(super) fn heard_fence(&mut self, from: LinkId, fence: Fence, now: Nanos) {
        let fences = &mut self.fences;
        if fences.asked.len() + fences.put_off.len() >= MAX_ASKED {
            return;
        }
        if fence.after == FenceCondition::PassedOn {
            let is_it = |(link, known): &(LinkId, Fence)| *link == from && *known == fence;
            if !fences.put_off.iter().any(is_it) {
                fences.put_off.push((from, fence));
            }
        } else if self.leads_to(from, &fence.by) {
            // Until the asking broker is reached over this link, messages queued for it are not in its
            // queue.
            self.ask_fence(Some(from), fence, now + self.settings.heal, now);
        }
    }

    pub(super) fn heard_fenced(&mut self, from: LinkId, fenced: FenceReply, now: Nanos) {
        let key = (fenced.by, fenced.number);
        if let Some(asked) = self.fences.asked.get_mut(&key)
            && asked.open.remove(&from)
        {
            asked.block(fenced.blocked);
            self.go_on_fencing(key, now);
        }
    }

    /// Sends a fence to all other links, or again to those that have not answered.
    fn ask_fence(&mut self, from: Option<LinkId>, fence: Fence, until: Nanos, now: Nanos) {
        let key = (fence.by.clone(), fence.number);
        let known = self.fences.asked.get(&key);
        let open = match known.filter(|asked| asked.from == from) {
            Some(asked) => asked.open.clone(),
            None => {
                let is_for_stubs = !fence.stubs.is_empty();
                let own = self
                    .fences
                    .own
                    .get(&fence.number)
                    .filter(|_| from.is_none());
                let without = match own.map(|own| &own.what) {
                    Some(FencePurpose::Hold(link)) => Some(*link),
                    _ => from,
                };
                let links = self.links.carrying();
                let open: BTreeSet<LinkId> = links.filter(|link| Some(*link) != without).collect();
                let own = from.is_some() && is_for_stubs;
                if own {
                    self.outputs.push(Output::FenceAsked {
                        by: fence.by.clone().into(),
                        number: fence.number,
                        stubs: fence.stubs.clone(),
                    });
                }
                let asked = OpenFence {
                    from,
                    open: open.clone(),
                    after: fence.after,
                    stubs: fence.stubs.clone(),
                    own,
                    blocked: BTreeSet::new(),
                    flush: None,
                    until,
                };
                self.fences.asked.insert(key.clone(), asked);
                open
            }
        };
        let message = Message::Fence(fence);
        for link in open {
            self.outputs.send(link, &message);
        }
        self.go_on_fencing(key, now);
    }

    /// Once all other links and this broker's core have answered, flushes the queue of the link that
    /// asks; for a fence of this broker, completes it.
    fn go_on_fencing(&mut self, key: FenceId, now: Nanos) {
        let Some(asked) = self.fences.asked.get_mut(&key) else {
            return;
        };
        if !asked.open.is_empty() || asked.own || asked.flush.is_some() {
            return;
        }
        if asked.after == FenceCondition::Settled && self.lost.may_turn(now) {
            // It is answered when it is repeated, over the links that carry then.
            self.fences.asked.remove(&key);
            return;
        }
        if let Some(link) = asked.from {
            self.fences.last += 1;
            let number = self.fences.last;
            asked.flush = Some(number);
            self.outputs.push(Output::Flush { link, number });
            return;
        }
        let number = key.1;
        let blocked = std::mem::take(&mut asked.blocked);
        self.fences.asked.remove(&key);
        match self.fences.own.remove(&number) {
            Some(OwnFence {
                what: FencePurpose::Leaving { again: false },
                until,
                ..
            }) => {
                self.fences
                    .begin(FencePurpose::Leaving { again: true }, now, until);
            }
            Some(OwnFence {
                what: FencePurpose::Stubs { again, stubs },
                until,
                ..
            }) => {
                let stubs = (0..).zip(&*stubs);
                let clear = stubs.filter(|(place, _)| !blocked.contains(place));
                let clear = clear.map(|(_, stub)| stub.clone());
                self.stubs_are_clear(again, clear.collect(), until, now);
            }
            Some(own) => self.end_fence(number, own.what, now),
            None => {}
        }
    }

    /// No broker blocks the end of these stubs: sends the second fence, or reports that they may end.
    fn stubs_are_clear(&mut self, again: bool, stubs: Arc<[ClientStub]>, until: Nanos, now: Nanos) {
        if again {
            for (client, stub) in &*stubs {
                self.outputs.push(Output::FencePassed {
                    client: client.clone(),
                    epoch: stub.target_epoch.clone(),
                });
            }
        } else if !stubs.is_empty() {
            let again = true;
            self.fences
                .begin(FencePurpose::Stubs { again, stubs }, now, until);
        }
    }

    /// A fence of this broker has passed, or expired.
    fn end_fence(&mut self, number: u64, what: FencePurpose, now: Nanos) {
        match what {
            FencePurpose::Link(link) => {
                self.lost.fenced(link, number);
                self.pass_on(now);
            }
            FencePurpose::Hold(link) => self.end_hold(link, number),
            FencePurpose::Leaving { .. } => {
                for filter in std::mem::take(&mut self.fences.leaving) {
                    self.filters.table.unsubscribe(&filter);
                }
                self.fences.begin_for_next(now, self.settings.heal);
            }
            // The core requests the fence again.
            FencePurpose::Stubs { .. } => {}
        }
    }

    /// Forgets fences that depend on links which do not carry any more; they are sent again.
    pub(super) fn forget_lost_fences(&mut self) {
        let links = &self.links;
        let carries = |link: &LinkId| links.get(*link).is_some_and(|link| link.edge.carries());
        self.fences.asked.retain(|_, asked| {
            let mut all = asked.from.iter().chain(&asked.open);
            all.all(carries)
        });
    }
}
