//! Fences: whether all has come here that was on its way.
//!
//! A broker that goes to another place is sent what comes from there on as soon as those
//! between its old and its new place know where it is. What they passed on before is on its way to
//! the old place, or waits for that, perhaps for long, and only who goes on to want it there sends it
//! on. The same goes for the last member of a shared subscription that leaves a broker. So before the old
//! place ends that, it puts a *fence* behind what is on its way: a
//! question goes to every broker of the tree, and each answers when all behind it have, and when the
//! neighbour that asks has acknowledged what was queued for it then. A message is
//! acknowledged when it is in the queues in which it goes on: so the answer overtakes nothing although
//! it is not queued itself, and messages cost nothing more where nobody asks.
//!
//! For a member, or a stub, each broker answers only once it keeps nothing any more for links that were lost
//! and whose brokers are back ([`super::lost`]), or may soon be: that may turn round. What turned round
//! just before may have passed those that had answered, so it is asked twice.
//!
//! For stubs that sessions leave behind ([`crate::transfer`]), each broker also asks its own core, and
//! tells who asks which of them are to stay, because something there leads to them or may do so.
//!
//! A question is said again until it is answered, for [`super::Settings::heal`] at most. Who has
//! lost a link over which it came or went forgets it, and is asked anew by the way that there is then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use punctual_model::Nanos;

use super::members::MAX_LEAVING;
use super::{Node, Output};
use crate::id::{BrokerId, LinkId};
use crate::transfer::{HomeId, Stub};
use crate::wire::{After, ClientStub, Fence, Fenced, MAX_MESSAGE, MAX_STUBS, Message};

/// Questions of others that are open at a time; those beyond are not heard.
const MAX_ASKED: usize = 1 << 12;
/// Those that leave within that time share a question.
const GATHER: Nanos = Nanos::from_millis(100);
/// Questions of this broker for stubs that are open at a time; stubs beyond wait for one of these.
const MAX_FOR_STUBS: usize = 64;
/// Bytes of stubs in a question, and what one takes beside the identifier of its client at most.
const STUBS_BYTES: usize = MAX_MESSAGE / 4;
const STUB_BYTES: usize = 256;

/// Who asks, and the number of the question there.
type Question = (BrokerId, u64);

/// What waits for an answer.
#[derive(Debug, Clone)]
enum For {
    /// To forget what is kept for a link that is lost.
    Link(LinkId),
    /// To let go what is held at a link that has begun to carry.
    Hold(LinkId),
    /// All filters that leave.
    Leaving {
        /// For the second time.
        again: bool,
    },
    /// These stubs here.
    Stubs {
        /// For the second time.
        again: bool,
        stubs: Arc<[ClientStub]>,
    },
}

/// A question of this broker.
#[derive(Debug)]
struct Own {
    what: For,
    /// When it is said next.
    due: Nanos,
    /// When it is not waited for any more.
    until: Nanos,
}

/// A question that is open here, of this broker or another.
#[derive(Debug)]
struct Asked {
    /// Who is to be answered; `None` for this broker itself.
    from: Option<LinkId>,
    /// Who has not answered.
    open: BTreeSet<LinkId>,
    after: After,
    stubs: Arc<[ClientStub]>,
    /// Whether this broker's own core has not answered.
    own: bool,
    /// Which of the stubs are to stay, as was answered.
    blocked: BTreeSet<u32>,
    /// By which number the shell says that what was queued for who asks is acknowledged.
    flush: Option<u64>,
    /// When it is forgotten.
    until: Nanos,
}

impl Asked {
    fn block(&mut self, places: Vec<u32>) {
        let stubs = self.stubs.len();
        let known = places.into_iter().filter(|it| (*it as usize) < stubs);
        self.blocked.extend(known);
    }
}

/// All questions that are open.
#[derive(Debug, Default)]
pub(super) struct Fences {
    own: BTreeMap<u64, Own>,
    asked: BTreeMap<Question, Asked>,
    /// Questions that came over these links and go on when others have been told who is behind them.
    put_off: Vec<(LinkId, Fence)>,
    /// Filters of shared subscriptions without a member here for which it is asked,
    leaving: Vec<Box<str>>,
    /// those for which it is next,
    gathered: Vec<Box<str>>,
    /// and when that may be.
    next: Nanos,
    /// Stubs for which it is asked next,
    stubs: VecDeque<ClientStub>,
    /// and when that may be.
    next_stubs: Nanos,
    /// The last number of a question or flush.
    last: u64,
}

impl Fences {
    /// When one is to be said, or ends.
    pub(super) fn next(&self) -> Option<Nanos> {
        let own = self.own.values().map(|own| own.due.min(own.until));
        let all = self.asked.values().map(|asked| asked.until);
        let stubs = self.may_ask_for_stubs().then_some(self.next_stubs);
        own.chain(all).chain(stubs).min()
    }

    /// Whether there are stubs that wait for nothing but their time.
    fn may_ask_for_stubs(&self) -> bool {
        let are_for_stubs = |own: &&Own| matches!(own.what, For::Stubs { .. });
        let open = || self.own.values().filter(are_for_stubs).count();
        !self.stubs.is_empty() && open() < MAX_FOR_STUBS
    }

    /// The first of the stubs, as many as fit into a question.
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

    /// For the stubs that are next, if it is their time.
    fn begin_for_stubs(&mut self, now: Nanos, heal: Nanos) {
        if self.next_stubs > now {
            return;
        }
        while self.may_ask_for_stubs() {
            self.next_stubs = now + GATHER;
            let stubs = self.next_stubs();
            let again = false;
            self.begin(For::Stubs { again, stubs }, now, now + heal);
        }
    }

    /// A question of this broker; it is asked in [`Node::tick_fences`].
    fn begin(&mut self, what: For, due: Nanos, until: Nanos) -> u64 {
        self.last += 1;
        self.own.insert(self.last, Own { what, due, until });
        self.last
    }

    /// For what is to be forgotten of a lost link.
    pub(super) fn begin_for(&mut self, link: LinkId, now: Nanos, until: Nanos) -> u64 {
        self.begin(For::Link(link), now, until)
    }

    /// For what is held at a link. It is asked with [`Node::ask_own`].
    pub(super) fn begin_for_hold(&mut self, link: LinkId, now: Nanos, until: Nanos) -> u64 {
        self.forget_hold(link);
        self.begin(For::Hold(link), now, until)
    }

    /// Nothing is held at a link any more.
    pub(super) fn forget_hold(&mut self, link: LinkId) {
        self.own
            .retain(|_, own| !matches!(own.what, For::Hold(other) if other == link));
    }

    /// For those that are next, unless others still wait.
    fn begin_for_next(&mut self, now: Nanos, heal: Nanos) {
        if self.leaving.is_empty() && !self.gathered.is_empty() {
            self.leaving = std::mem::take(&mut self.gathered);
            let due = now.max(self.next);
            self.next = due + GATHER;
            self.begin(For::Leaving { again: false }, due, due + heal);
        }
    }

    /// Forgets questions for links that do not wait for them any more.
    pub(super) fn retain(&mut self, awaits: impl Fn(LinkId, u64) -> bool) {
        self.own.retain(|number, own| match own.what {
            For::Link(link) => awaits(link, *number),
            For::Hold(_) | For::Leaving { .. } | For::Stubs { .. } => true,
        });
    }
}

impl Node {
    /// [`Output::FencePassed`] tells when all has come that was on its way to a stub here, if no other
    /// broker blocks its end. If one does, or not all have answered in [`super::Settings::heal`], nothing is
    /// told.
    pub fn fence_stub(&mut self, client: &str, stub: &Stub, now: Nanos) {
        if self.fences.stubs.len() < MAX_LEAVING {
            self.fences.stubs.push_back((client.into(), stub.clone()));
        }
        self.tick_fences(now);
        self.settle(now);
    }

    /// Which of the stubs of [`Output::FenceAsked`] are to stay, by their places there.
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

    /// What the last member of a shared subscription wanted is wanted until all has come that was on its
    /// way.
    pub(super) fn fence_filter(&mut self, filter: Box<str>, now: Nanos) {
        let fences = &mut self.fences;
        if fences.leaving.len() + fences.gathered.len() >= MAX_LEAVING {
            return self.filters.table.unsubscribe(&filter);
        }
        fences.gathered.push(filter);
        fences.begin_for_next(now, self.settings.heal);
    }

    /// What was queued for a neighbour when [`Output::Flush`] asked for that with this number is
    /// acknowledged.
    pub fn flushed(&mut self, number: u64) {
        let is_it = |_: &Question, asked: &mut Asked| asked.flush == Some(number);
        let asked = self.fences.asked.extract_if(.., is_it).next();
        if let Some(((by, number), asked)) = asked
            && let Some(to) = asked.from
        {
            let fenced = Fenced {
                by,
                number,
                blocked: asked.blocked.into_iter().collect(),
            };
            self.outputs.send(to, &Message::Fenced(fenced));
        }
    }

    /// Asks what is due, and ends what has waited for long enough.
    pub(super) fn tick_fences(&mut self, now: Nanos) {
        self.fences.asked.retain(|_, asked| asked.until > now);
        let over = |_: &u64, own: &mut Own| own.until <= now;
        let over: Vec<(u64, Own)> = self.fences.own.extract_if(.., over).collect();
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

    /// Says a question of this broker, and later again if it is not answered.
    pub(super) fn ask_own(&mut self, number: u64, now: Nanos) {
        let Some(own) = self.fences.own.get_mut(&number) else {
            return;
        };
        own.due = now + self.settings.tree.hello;
        let fence = Fence {
            by: self.settings.id.clone(),
            number,
            after: match own.what {
                For::Link(_) => After::Nothing,
                For::Hold(_) => After::PassedOn,
                For::Leaving { .. } | For::Stubs { .. } => After::Settled,
            },
            stubs: match &own.what {
                For::Stubs { stubs, .. } => stubs.clone(),
                _ => Arc::default(),
            },
        };
        let until = own.until;
        self.ask_fence(None, fence, until, now);
    }

    /// Hands on questions when all have been told who is behind the links that they came over.
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
            match is_there && !self.keeping.is_to_show(from) {
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
        if fence.after == After::PassedOn {
            let is_it = |(link, known): &(LinkId, Fence)| *link == from && *known == fence;
            if !fences.put_off.iter().any(is_it) {
                fences.put_off.push((from, fence));
            }
        } else if self.leads_to(from, &fence.by) {
            // Before it is reached there, what is kept for it is not in the queue of that link.
            self.ask_fence(Some(from), fence, now + self.settings.heal, now);
        }
    }

    pub(super) fn heard_fenced(&mut self, from: LinkId, fenced: Fenced, now: Nanos) {
        let key = (fenced.by, fenced.number);
        if let Some(asked) = self.fences.asked.get_mut(&key)
            && asked.open.remove(&from)
        {
            asked.block(fenced.blocked);
            self.go_on_fencing(key, now);
        }
    }

    /// Asks all others, or those again that have not answered.
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
                    Some(For::Hold(link)) => Some(*link),
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
                let asked = Asked {
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

    /// Once those behind this broker have answered, and its own core, what is queued here for who asks is waited for.
    fn go_on_fencing(&mut self, key: Question, now: Nanos) {
        let Some(asked) = self.fences.asked.get_mut(&key) else {
            return;
        };
        if !asked.open.is_empty() || asked.own || asked.flush.is_some() {
            return;
        }
        if asked.after == After::Settled && self.lost.may_turn(now) {
            // It is asked again, over the links that there are then.
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
            Some(Own {
                what: For::Leaving { again: false },
                until,
                ..
            }) => {
                self.fences.begin(For::Leaving { again: true }, now, until);
            }
            Some(Own {
                what: For::Stubs { again, stubs },
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

    /// No broker blocks the end of these stubs: it is asked for them again, or they may end.
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
            self.fences.begin(For::Stubs { again, stubs }, now, until);
        }
    }

    /// A question of this broker is answered, or is not waited for any more.
    fn end_fence(&mut self, number: u64, what: For, now: Nanos) {
        match what {
            For::Link(link) => {
                self.lost.fenced(link, number);
                self.pass_on(now);
            }
            For::Hold(link) => self.end_hold(link, number),
            For::Leaving { .. } => {
                for filter in std::mem::take(&mut self.fences.leaving) {
                    self.filters.table.unsubscribe(&filter);
                }
                self.fences.begin_for_next(now, self.settings.heal);
            }
            // Who has asked for them asks again.
            For::Stubs { .. } => {}
        }
    }

    /// Links do not carry any more: what was asked over them is asked anew.
    pub(super) fn forget_lost_fences(&mut self) {
        let links = &self.links;
        let carries = |link: &LinkId| links.get(*link).is_some_and(|link| link.edge.carries());
        self.fences.asked.retain(|_, asked| {
            let mut all = asked.from.iter().chain(&asked.open);
            all.all(carries)
        });
    }
}
