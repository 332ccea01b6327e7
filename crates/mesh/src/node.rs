//! One broker of the mesh: links, tree, table, and what happens to messages that
//! were on their way when the tree changed.
//!
//! Nothing that was to go over a link is lost with it. While a link does not carry
//! any more, what its neighbour wanted stays wanted, and the shell keeps what is
//! meant for it, as for any session without connection. Every broker knows whom each
//! of its links leads to ([`crate::reach`]). When one that was behind a lost link is
//! behind another, and the tables on the way there are complete, the shell is told
//! to copy what it keeps to that link ([`Output::Copy`]); when filters that overlap
//! are new there, before newer messages go, so that the order is kept. A copy goes
//! on to neighbours from brokers that had it already, too: somebody behind them may
//! have come from elsewhere, and who has it recognises it ([`crate::seen`]).
//!
//! Once all that were behind the lost link are back, what still comes for it is passed on
//! for [`Settings::linger`], since messages may be under way from brokers that did not
//! know yet; then it is forgotten. Who does not come back in [`Settings::heal`] is given
//! up, unless no link carries at all: then there is nowhere to go yet.

mod clients;
mod sessions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use punctual_model::Nanos;

use self::sessions::Seeks;
use crate::id::{BrokerId, LinkId, Rank};
use crate::reach::{Reach, Told};
use crate::rtt::{self, Rtt};
use crate::strategy::Strategy;
use crate::table::{Applied, Table, parts};
use crate::tree::{Advert, Edge, Tree, TreeOutput, TreeSettings, Why};
use crate::wills::{self, Wills};
use crate::wire::{
    Arrival, BUCKETS, Hello, Holder, MAX_TRACE, Member, Message, NOTES, Open, SeekSession,
    Testament, Trace, Traced, VERSIONS, WireError,
};

/// Shared filters whose messages still come after the last member left.
const MAX_LEAVING: usize = 1 << 16;
/// What a link is taken to cost before it was measured.
const UNMEASURED: Nanos = Nanos::from_millis(10);

/// Settings of a broker in the mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Its name.
    pub id: BrokerId,
    /// Different after every start.
    pub instance: u64,
    /// Its capacity, see [`crate::Weights`].
    pub capacity: u64,
    /// How it forwards.
    pub strategy: Strategy,
    /// Times and tolerances of the tree.
    pub tree: TreeSettings,
    /// Added to the round-trip time of each link, for the broker at its end.
    pub hop: Nanos,
    /// How long messages for a link that was lost wait for another way.
    pub heal: Nanos,
    /// How long messages may still come for a link that was lost once everybody behind
    /// it is back elsewhere: how long one may be under way in the mesh.
    pub linger: Nanos,
    /// Time in which changes of subscriptions gather after some were told.
    pub batch: Nanos,
    /// Filters in the table.
    pub max_filters: usize,
    /// How long a broker is lost before others publish the wills of its clients.
    pub will_wait: Nanos,
    /// Bytes of wills that are kept for other brokers.
    pub max_will_bytes: usize,
    /// How long others are waited for that are asked for a session.
    pub session_wait: Nanos,
}

impl Settings {
    /// Ordinary settings for a broker of that name and capacity.
    pub fn new(id: BrokerId, instance: u64, capacity: u64) -> Self {
        Self {
            id,
            instance,
            capacity,
            strategy: Strategy::default(),
            tree: TreeSettings::default(),
            hop: Nanos(100_000),
            heal: Nanos::from_secs(10),
            linger: Nanos::from_secs(2),
            batch: Nanos::from_millis(10),
            max_filters: 1_000_000,
            will_wait: Nanos::from_secs(10),
            max_will_bytes: 64 << 20,
            session_wait: Nanos::from_millis(500),
        }
    }
}

/// Why a connection does not become a link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No common version.
    #[error("speaks versions {} to {} of the mesh, this broker {} to {}", .0.0, .0.1, VERSIONS.start(), VERSIONS.end())]
    Version((u8, u8)),
    /// It has this broker's name, or is this broker.
    #[error("has the same name as this broker: give each its own (mesh.id)")]
    Name,
    /// It forwards otherwise.
    #[error(
        "forwards by {theirs}, this broker by {ours}: all of a mesh need the same (mesh.strategy)"
    )]
    Strategy {
        /// The neighbour's.
        theirs: Strategy,
        /// This broker's.
        ours: Strategy,
    },
    /// There is another connection between the two.
    #[error("is connected already")]
    Parallel,
    /// All link numbers are in use.
    #[error("would be one neighbour too many: {} are allowed", LinkId::MAX)]
    Full,
}

/// What a node asks its shell to do, or tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send the bytes to the neighbour, on [`crate::wire::TOPIC`].
    Send(LinkId, Vec<u8>),
    /// Close the connection of a link; it is down already.
    Close(LinkId, String),
    /// From now on messages go over the link, or are kept for it.
    Carry {
        /// Which.
        link: LinkId,
        /// Whether they go.
        carries: bool,
        /// What its ends speak, see [`VERSIONS`].
        version: u8,
    },
    /// The neighbour wants these as well, and those not any more.
    Interest {
        /// Which.
        link: LinkId,
        /// Topic filters.
        add: Vec<Box<str>>,
        /// Topic filters.
        remove: Vec<Box<str>>,
    },
    /// Brokers that a link leads to, its neighbour among them, instead of those before; for
    /// [`Node::remember`].
    Leads {
        /// Which.
        link: LinkId,
        /// Those.
        brokers: Vec<BrokerId>,
    },
    /// When all of [`Output::Interest`] and [`Output::Leads`] so far is kept over a restart, if
    /// anything is, [`Node::kept`] is to be called with that number.
    Keep(u64),
    /// Brokers are behind a link that were not before.
    Reached,
    /// Put what is kept for one neighbour into the queue of another.
    Copy {
        /// What is kept for this one,
        from: BrokerId,
        /// goes to this one,
        to: BrokerId,
        /// and is not kept any more.
        moves: bool,
    },
    /// Nothing is kept any more for a neighbour whose link does not carry, and it
    /// wants nothing.
    Forget(BrokerId),
    /// Other brokers where a shared subscription has members, instead of those before.
    Members {
        /// Its filter.
        filter: Box<str>,
        /// Those that are reached, if any is.
        brokers: Vec<BrokerId>,
    },
    /// Other brokers behind a link where a shared subscription has members, instead of those
    /// before; for [`Node::remember`].
    Behind {
        /// Which.
        link: LinkId,
        /// Its filter.
        filter: Box<str>,
        /// Those, if there are any.
        brokers: Vec<BrokerId>,
    },
    /// These clients have connected to other brokers: whoever has connected here before with
    /// the same identifier has been taken over.
    Arrived(Vec<Arrival>),
    /// Publish a will, unless its client is connected here.
    Will {
        /// What to publish.
        will: Testament,
        /// Whether it is of this broker's clients before it started again, and not of
        /// another one that is lost.
        own: bool,
    },
    /// Others have published wills of clients of this broker.
    Published {
        /// Those.
        wills: Vec<Testament>,
        /// Whether this broker ran meanwhile: what these clients leave behind next is
        /// another message.
        same: bool,
    },
    /// See whether the session of a client is here, and say so with [`Node::sought`].
    Sought(SeekSession),
    /// The answer to [`Node::seek`].
    Found {
        /// Which question.
        number: u64,
        /// Client identifier.
        client: Box<str>,
        /// Who has something of the session.
        holders: Vec<Holder>,
    },
    /// What another broker's core has written about a session, see [`Node::letter`].
    Letter {
        /// Whose.
        from: BrokerId,
        /// Client identifier.
        client: Box<str>,
        /// As it was written.
        body: Arc<[u8]>,
    },
    /// A broker is reached that was not.
    Came {
        /// Which.
        broker: BrokerId,
        /// Since when it may not have been, unnoticed for a while; 0 if it never was.
        away: Nanos,
    },
    /// An answer to [`Node::trace`].
    Traced(Traced),
    /// Something for the log.
    Event(Event),
}

/// Something worth a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A link to a neighbour is up.
    LinkUp(BrokerId),
    /// A link is down.
    LinkDown(BrokerId, String),
    /// Another root.
    Root {
        /// Before.
        old: Rank,
        /// Now.
        new: Rank,
        /// Cause.
        why: Why,
    },
    /// Another parent.
    Parent {
        /// `None` for the root.
        parent: Option<BrokerId>,
        /// Cost of the way to the root in microseconds.
        cost: u64,
        /// Cause.
        why: Why,
    },
    /// Messages over this link begin or end.
    Edge(BrokerId, Edge),
    /// A neighbour's subscriptions do not fit; it is sent everything.
    TableFull(BrokerId),
    /// The wills of a neighbour's clients do not fit; some are not kept.
    WillsFull(BrokerId),
}

#[derive(Debug)]
struct Link {
    peer: BrokerId,
    instance: u64,
    dialled: bool,
    /// The highest that both ends speak.
    version: u8,
    weight: f64,
    rtt: Rtt,
    /// The neighbour's clock in its last hello, and when that came.
    echo: Option<(u64, Nanos)>,
    edge: Edge,
    /// Publications that came over it wait at this broker.
    waits: bool,
}

/// What [`Node::status`] says of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkStatus {
    /// Its number.
    pub link: LinkId,
    /// The neighbour.
    pub peer: BrokerId,
    /// Whether this broker opened the connection.
    pub dialled: bool,
    /// What it is used for.
    pub edge: Edge,
    /// Smoothed round-trip time.
    pub rtt: Option<Nanos>,
    /// Cost in microseconds.
    pub cost: u64,
    /// Root that the neighbour offers, and its cost there.
    pub offer: Option<(BrokerId, u64)>,
    /// Filters it wants.
    pub filters: usize,
}

/// State of a broker in the mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Its name.
    pub id: BrokerId,
    /// Its capacity.
    pub capacity: u64,
    /// How it forwards.
    pub strategy: Strategy,
    /// The root.
    pub root: Rank,
    /// The root's epoch.
    pub epoch: u64,
    /// Cost of the way to the root in microseconds.
    pub cost: u64,
    /// Links of it.
    pub hops: u16,
    /// The parent, if there is one.
    pub parent: Option<BrokerId>,
    /// Whether it is root or its parent has accepted it.
    pub attached: bool,
    /// Links that are up.
    pub links: Vec<LinkStatus>,
    /// Filters in the table.
    pub filters: usize,
    /// Changes told to neighbours so far.
    pub advertised: u64,
    /// Other brokers with members of shared subscriptions, by their filters.
    pub shared: BTreeMap<Box<str>, Vec<BrokerId>>,
    /// Neighbours that messages are kept for.
    pub healing: Vec<BrokerId>,
    /// Clients here whose wills others publish if this broker is lost.
    pub wills: usize,
    /// Wills that are kept here for other brokers.
    pub wills_kept: usize,
}

/// A link that carried and does not any more.
#[derive(Debug)]
struct Lost {
    since: Nanos,
    /// Who was behind it; `None` if that is not known any more.
    behind: Option<BTreeSet<BrokerId>>,
    /// Since when all of them are back elsewhere.
    back: Option<Nanos>,
    /// When what came meanwhile is passed on next.
    pass_on: Nanos,
}

/// A broker of the mesh.
#[derive(Debug)]
pub struct Node {
    settings: Settings,
    tree: Tree,
    table: Table,
    links: BTreeMap<LinkId, Link>,
    /// Numbers given to neighbours; kept while something is kept for them.
    numbers: BTreeMap<BrokerId, LinkId>,
    reach: Reach<BrokerId>,
    /// Where shared subscriptions have members.
    members: Reach<Member>,
    /// Own members by filter.
    own_members: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    /// Filters without own members whose messages may still be on their way here, and since
    /// when.
    leaving: VecDeque<(Nanos, Box<str>)>,
    /// When the last publication from a neighbour that had to wait here went on.
    went_on: Nanos,
    /// What the shell was told of members elsewhere, of all and by links.
    elsewhere: BTreeMap<Box<str>, Vec<BrokerId>>,
    behind: BTreeMap<(LinkId, Box<str>), Vec<BrokerId>>,
    /// It is to be told again.
    members_changed: bool,
    /// Parts of the filters that are awaited from neighbours whose table differs.
    awaited: BTreeMap<LinkId, u64>,
    /// Links that carried and do not any more.
    lost: BTreeMap<LinkId, Lost>,
    /// What the shell was told of whom links lead to.
    leads: BTreeMap<LinkId, BTreeSet<BrokerId>>,
    /// How often neighbours wanted more, or led to more, up to which of these changes the shell
    /// was asked whether they are kept, and up to which they are.
    wished: u64,
    asked: u64,
    kept: u64,
    /// Links of which others are to be told whom they lead to once so many changes are kept.
    to_show: BTreeMap<LinkId, u64>,
    wills: Wills,
    seeks: Seeks,
    /// Clients of which neighbours are to be told, and which neighbour has told of them.
    arrivals: Vec<(Option<LinkId>, Arrival)>,
    told_at: Nanos,
    tell_at: Option<Nanos>,
    traces: u64,
    outputs: VecDeque<Output>,
}

impl Node {
    /// A broker without neighbours.
    pub fn new(settings: Settings, now: Nanos) -> Self {
        let own = Rank {
            capacity: settings.capacity,
            id: settings.id.clone(),
        };
        Self {
            tree: Tree::new(own, settings.tree, now),
            table: Table::new(settings.max_filters),
            reach: Reach::new(settings.id.clone()),
            members: Reach::lasting(),
            own_members: HashMap::default(),
            leaving: VecDeque::new(),
            went_on: now,
            elsewhere: BTreeMap::new(),
            behind: BTreeMap::new(),
            members_changed: false,
            awaited: BTreeMap::new(),
            wills: Wills::new(settings.will_wait, settings.linger, settings.max_will_bytes),
            seeks: Seeks::default(),
            arrivals: Vec::new(),
            settings,
            links: BTreeMap::new(),
            numbers: BTreeMap::new(),
            lost: BTreeMap::new(),
            leads: BTreeMap::new(),
            wished: 0,
            asked: 0,
            kept: 0,
            to_show: BTreeMap::new(),
            told_at: Nanos(0),
            tell_at: None,
            traces: 0,
            outputs: VecDeque::new(),
        }
    }

    /// What this broker says first on a connection.
    pub fn open(&self, dialled: bool) -> Open {
        Open {
            versions: (*VERSIONS.start(), *VERSIONS.end()),
            id: self.settings.id.clone(),
            instance: self.settings.instance,
            strategy: self.settings.strategy,
            dialled,
        }
    }

    /// A connection to another broker is open, and it has said who it is. `weight`
    /// scales its round-trip time (1 leaves it). An older connection to the same
    /// broker is to be closed if this one gets its number.
    ///
    /// # Errors
    /// The [`Refusal`], with which the connection is to be closed.
    pub fn link_up(&mut self, peer: &Open, weight: f64, now: Nanos) -> Result<LinkId, Refusal> {
        if peer.versions.0 > *VERSIONS.end() || peer.versions.1 < *VERSIONS.start() {
            return Err(Refusal::Version(peer.versions));
        }
        if peer.id == self.settings.id {
            return Err(Refusal::Name);
        }
        if peer.strategy != self.settings.strategy {
            return Err(Refusal::Strategy {
                theirs: peer.strategy,
                ours: self.settings.strategy,
            });
        }
        let dialled = !peer.dialled;
        let link = self.number(&peer.id).ok_or(Refusal::Full)?;
        if let Some(old) = self.links.get(&link) {
            // If both opened one, that of the lower name stays. A second one from
            // the same side, or after a restart, says that the first is dead.
            let lower_dialled = (self.settings.id < peer.id) == dialled;
            let same = old.instance == peer.instance && old.dialled != dialled;
            if same && !lower_dialled {
                return Err(Refusal::Parallel);
            }
            self.link_down(link, "replaced by a newer connection", now);
        }
        self.numbers.insert(peer.id.clone(), link);
        self.links.insert(
            link,
            Link {
                peer: peer.id.clone(),
                instance: peer.instance,
                dialled,
                version: peer.versions.1.min(*VERSIONS.end()),
                weight,
                rtt: Rtt::default(),
                echo: None,
                edge: Edge::Spare,
                waits: false,
            },
        );
        self.outputs
            .push_back(Output::Event(Event::LinkUp(peer.id.clone())));
        let cost = rtt::cost(UNMEASURED, weight, self.settings.hop);
        self.tree.link_up(link, peer.id.clone(), cost, now);
        self.settle(now);
        Ok(link)
    }

    /// Scales the round-trip time to a neighbour otherwise from now on, if there is a link to it.
    pub fn weigh(&mut self, peer: &BrokerId, weight: f64, now: Nanos) {
        let Some(id) = self.numbers.get(peer).copied() else {
            return;
        };
        if let Some(link) = self.links.get_mut(&id)
            && link.weight != weight
        {
            link.weight = weight;
            let rtt = link.rtt.used().unwrap_or(UNMEASURED);
            let cost = rtt::cost(rtt, weight, self.settings.hop);
            self.tree.set_cost(id, cost, now);
            self.settle(now);
        }
    }

    /// After a start: what is kept for a neighbour from before, with the filters it
    /// wanted then, members of shared subscriptions that were behind it, and the brokers that its
    /// link led to; none if that is not known.
    pub fn remember(
        &mut self,
        peer: &BrokerId,
        filters: Vec<Box<str>>,
        members: Vec<Member>,
        behind: Vec<BrokerId>,
        now: Nanos,
    ) {
        if let Some(link) = self
            .number(peer)
            .filter(|link| !self.links.contains_key(link))
        {
            self.numbers.insert(peer.clone(), link);
            self.table.apply(link, filters, Vec::new());
            for (broker, filter) in &members {
                let brokers = self.behind.entry((link, filter.clone())).or_default();
                brokers.push(broker.clone());
            }
            self.members.recall(link, members.into_iter().collect());
            let behind = (!behind.is_empty()).then(|| behind.into_iter().collect());
            self.leads
                .extend(behind.clone().map(|behind| (link, behind)));
            self.lose(link, behind, now);
            self.members_changed = true;
            self.note_members();
        }
    }

    /// What is meant for a link waits from now on.
    fn lose(&mut self, link: LinkId, behind: Option<BTreeSet<BrokerId>>, now: Nanos) {
        let lost = Lost {
            since: now,
            behind,
            back: None,
            pass_on: now,
        };
        self.lost.insert(link, lost);
    }

    /// The number of a neighbour, or a free one.
    fn number(&self, peer: &BrokerId) -> Option<LinkId> {
        if let Some(link) = self.numbers.get(peer) {
            return Some(*link);
        }
        let used = |link: &LinkId| self.numbers.values().any(|other| other == link);
        (0..LinkId::MAX).map(LinkId).find(|link| !used(link))
    }

    /// The connection of a link is gone.
    pub fn link_down(&mut self, link: LinkId, why: &str, now: Nanos) {
        let Some(gone) = self.links.get(&link) else {
            return;
        };
        let event = Event::LinkDown(gone.peer.clone(), why.into());
        if gone.waits {
            self.went_on = now;
        }
        self.outputs.push_back(Output::Event(event));
        self.tree.link_down(link, now);
        self.settle(now);
        self.links.remove(&link);
        self.reach.forget(link);
        self.release(link);
    }

    /// Publications of a neighbour wait at this broker from now on, because a receiver has no room
    /// for them or the store cannot write; or none does any more. As long as any does, what they
    /// may still have to be sent on to is not given up because everybody has been elsewhere for
    /// [`Settings::linger`].
    pub fn waits(&mut self, link: LinkId, waits: bool, now: Nanos) {
        if let Some(link) = self.links.get_mut(&link) {
            if link.waits && !waits {
                self.went_on = now;
            }
            link.waits = waits;
        }
    }

    /// Whether publications of neighbours wait at this broker.
    fn has_waiting(&self) -> bool {
        self.links.values().any(|link| link.waits)
    }

    /// When something that lingers since then need not any more, unless publications wait.
    fn linger_ends(&self, since: Nanos) -> Option<Nanos> {
        let end = since.max(self.went_on) + self.settings.linger;
        (!self.has_waiting()).then_some(end)
    }

    /// A message came from a neighbour.
    ///
    /// # Errors
    /// What it is not; the link is down then, and its connection is to be closed.
    pub fn receive(&mut self, link: LinkId, bytes: &[u8], now: Nanos) -> Result<(), WireError> {
        if !self.links.contains_key(&link) {
            return Ok(());
        }
        let handled = Message::decode(bytes).and_then(|message| self.handle(link, message, now));
        if let Err(error) = &handled {
            self.link_down(link, &error.to_string(), now);
        }
        handled
    }

    fn handle(&mut self, link: LinkId, message: Message, now: Nanos) -> Result<(), WireError> {
        match message {
            Message::Open(_) => return Err(WireError::Field("second open")),
            Message::Hello(hello) => self.hello(link, hello, now),
            Message::Filters { add, remove } => {
                self.may_have_filters()?;
                let applied = self.table.apply(link, add, remove);
                self.wanted(link, applied, now);
            }
            Message::Digest(theirs) => {
                self.may_have_filters()?;
                let ours = self.table.digests_wanted_by(link);
                let differ = (0..BUCKETS).filter(|i| theirs[*i] != ours[*i]);
                let bits = differ.fold(0, |bits, i| bits | 1 << i);
                match bits {
                    0 => self.complete(link),
                    _ => {
                        self.awaited.insert(link, bits);
                        self.send(link, &Message::Want(bits));
                    }
                }
            }
            Message::Want(bits) => {
                for index in (0..BUCKETS as u8).filter(|i| bits & 1 << i != 0) {
                    let filters = self.table.told(link, index);
                    self.send(link, &Message::Bucket { index, filters });
                }
            }
            Message::Bucket { index, filters } => {
                self.may_have_filters()?;
                let applied = self.table.replace(link, index, filters);
                self.wanted(link, applied, now);
                if let Some(awaited) = self.awaited.get_mut(&link) {
                    *awaited &= !(1 << index);
                    if *awaited == 0 {
                        self.complete(link);
                    }
                }
            }
            Message::Here { all, add, remove } => {
                let came = self.reach.heard(link, all, add, &remove);
                self.note_leads(link);
                self.to_show.insert(link, self.wished);
                self.came(link, &came);
            }
            Message::Members {
                all,
                mut add,
                remove,
            } => {
                // One that is not known is not chosen.
                let known = if all { 0 } else { self.members.count(link) };
                add.truncate(self.settings.max_filters.saturating_sub(known));
                self.members.heard(link, all, add, &remove);
                self.members.show(link);
            }
            Message::Wills {
                all,
                turn,
                add,
                remove,
            } => {
                let told = wills::Told {
                    link,
                    all,
                    turn,
                    add,
                    remove,
                };
                self.heard_wills(link, told, now);
            }
            Message::Arrived(arrivals) => self.heard_arrivals(link, arrivals),
            Message::Left(left) => self.heard_left(link, left, now),
            Message::Seek(seek) => self.heard_seek(link, seek, now),
            Message::Found(found) => self.heard_found(link, found),
            Message::Letter(letter) => self.pass_letter(Some(link), letter, now),
            Message::Trace(trace) => self.follow(Some(link), trace),
            Message::Traced(traced) => self.traced(traced),
        }
        self.settle(now);
        Ok(())
    }

    /// Tells the shell whom a link leads to, so that it is known after a restart.
    fn note_leads(&mut self, link: LinkId) {
        let Some(up) = self.links.get(&link) else {
            return;
        };
        let mut now = self.reach.behind(link);
        now.insert(up.peer.clone());
        let before = self.leads.insert(link, now.clone()).unwrap_or_default();
        if now != before {
            self.wished += u64::from(!now.is_subset(&before));
            let brokers = now.into_iter().collect();
            self.outputs.push_back(Output::Leads { link, brokers });
        }
    }

    /// All that the neighbour on a link wants is known.
    fn complete(&mut self, link: LinkId) {
        self.awaited.remove(&link);
        self.members.ready(link);
        self.members.show(link);
        let came = self.reach.ready(link);
        self.to_show.insert(link, self.wished);
        self.came(link, &came);
    }

    /// Brokers are behind a link now: what is kept for them goes there.
    fn came(&mut self, link: LinkId, who: &BTreeSet<BrokerId>) {
        if who.is_empty() {
            return;
        }
        self.outputs.push_back(Output::Reached);
        let theirs = |lost: &Lost| {
            let behind = lost.behind.as_ref();
            behind.is_none_or(|behind| !behind.is_disjoint(who))
        };
        let lost = self.lost.iter().filter(|(_, lost)| theirs(lost));
        let lost: Vec<LinkId> = lost.map(|(from, _)| *from).collect();
        for from in lost {
            self.copy(from, link, false);
        }
    }

    /// What is kept for one link goes to another.
    fn copy(&mut self, from: LinkId, to: LinkId, moves: bool) {
        if let (Some(from), Some(to)) = (self.peer(from).cloned(), self.peer(to).cloned())
            && from != to
        {
            self.outputs.push_back(Output::Copy { from, to, moves });
        }
    }

    /// Passes on what came for lost links whose brokers are all back elsewhere, and
    /// gives up what has waited for long enough.
    fn pass_on(&mut self, now: Nanos) {
        let may_give_up = self.may_give_up();
        let Settings { heal, linger, .. } = self.settings;
        let (waits, went_on) = (self.has_waiting(), self.went_on);
        let (mut over, mut copies) = (Vec::new(), Vec::new());
        for (from, lost) in &mut self.lost {
            let (to, all) = match &lost.behind {
                Some(behind) => self.reach.where_are(behind),
                None => (Vec::new(), false),
            };
            if !all {
                lost.back = None;
            } else if lost.back.is_none() {
                (lost.back, lost.pass_on) = (Some(now), now);
            }
            let since = lost.back.filter(|_| !waits);
            let lingered = since.is_some_and(|since| since.max(went_on) + linger <= now);
            let ends = lingered || may_give_up && lost.since + heal <= now;
            if ends || all && lost.pass_on <= now {
                lost.pass_on = now + self.settings.tree.hello;
                for (i, link) in to.iter().enumerate() {
                    copies.push((*from, *link, i + 1 == to.len()));
                }
            }
            if ends {
                over.push(*from);
            }
        }
        for (from, to, moves) in copies {
            self.copy(from, to, moves);
        }
        over.into_iter().for_each(|link| self.give_up(link));
    }

    /// When [`Self::pass_on`] is due.
    fn next_pass(&self) -> Option<Nanos> {
        let may_give_up = self.may_give_up();
        let due = self.lost.values().filter_map(|lost| {
            let end = may_give_up.then_some(lost.since + self.settings.heal);
            let lingered = lost.back.and_then(|back| self.linger_ends(back));
            let next = lost.back.map(|_| lost.pass_on);
            end.into_iter().chain(lingered).chain(next).min()
        });
        due.min()
    }

    fn may_have_filters(&self) -> Result<(), WireError> {
        match self.settings.strategy {
            Strategy::SubscriptionTable => Ok(()),
            _ => Err(WireError::Field("filters without a table")),
        }
    }

    /// A client of this broker subscribed to a filter, which may be shared.
    pub fn subscribe(&mut self, filter: &str, now: Nanos) {
        let (share, plain) = punctual_codec::topic::split_share(filter);
        self.table.subscribe(plain);
        if share.is_some() && !plain.starts_with('$') {
            let count = self.own_members.entry(filter.into()).or_default();
            *count += 1;
            if *count == 1 {
                self.members.add((self.settings.id.clone(), filter.into()));
            }
        }
        self.settle(now);
    }

    /// A client of this broker does not want a filter any more.
    pub fn unsubscribe(&mut self, filter: &str, now: Nanos) {
        let (share, plain) = punctual_codec::topic::split_share(filter);
        if share.is_some() {
            if let Some(count) = self.own_members.get_mut(filter) {
                *count -= 1;
                if *count == 0 {
                    self.own_members.remove(filter);
                    self.members
                        .remove(&(self.settings.id.clone(), filter.into()));
                }
            }
            // What was given to it has to come, to be given to others.
            self.leaving.push_back((now, plain.into()));
            if self.leaving.len() > MAX_LEAVING {
                self.leave();
            }
        } else {
            self.table.unsubscribe(plain);
        }
        self.settle(now);
    }

    /// Gives up the filter whose last member left longest ago.
    fn leave(&mut self) {
        if let Some((_, plain)) = self.leaving.pop_front() {
            self.table.unsubscribe(&plain);
        }
    }

    /// When that is due.
    fn next_leave(&self) -> Option<Nanos> {
        let (since, _) = self.leaving.front()?;
        self.linger_ends(*since)
    }

    /// Another capacity.
    pub fn set_capacity(&mut self, capacity: u64, now: Nanos) {
        self.settings.capacity = capacity;
        self.tree.set_capacity(capacity, now);
        self.settle(now);
    }

    /// Follows a topic to everybody who would receive it; answers come as
    /// [`Output::Traced`] with the number returned.
    pub fn trace(&mut self, topic: &str, now: Nanos) -> u64 {
        self.traces += 1;
        let trace = Trace {
            origin: self.settings.id.clone(),
            number: self.traces,
            topic: topic.into(),
            path: Vec::new(),
        };
        self.follow(None, trace);
        self.settle(now);
        self.traces
    }

    /// Time passes.
    pub fn tick(&mut self, now: Nanos) {
        self.tree.tick(now);
        while self.next_leave().is_some_and(|at| at <= now) {
            self.leave();
        }
        self.pass_on(now);
        self.publish_wills(now);
        self.answer_late_seeks(now);
        self.settle(now);
    }

    /// When [`Self::tick`] is due.
    pub fn next_timeout(&self) -> Nanos {
        self.next_pass()
            .into_iter()
            .chain(self.tell_at)
            .chain(self.next_leave())
            .chain(self.wills.next())
            .chain(self.seeks.next())
            .fold(self.tree.next_timeout(), Ord::min)
    }

    /// Whether messages that wait have had somewhere else to go.
    fn may_give_up(&self) -> bool {
        let carries = self.links.values().any(|link| link.edge.carries());
        carries && self.tree.is_attached()
    }

    /// What is to be done, in this order.
    pub fn take_outputs(&mut self) -> VecDeque<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// The neighbour on a link.
    pub fn peer(&self, link: LinkId) -> Option<&BrokerId> {
        let up = self.links.get(&link).map(|link| &link.peer);
        up.or_else(|| {
            self.numbers
                .iter()
                .find(|(_, other)| **other == link)
                .map(|(id, _)| id)
        })
    }

    /// The table of subscriptions.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// How things stand.
    pub fn status(&self) -> Status {
        let (cost, hops) = self.tree.way();
        let parent = self
            .tree
            .parent()
            .and_then(|(link, _)| self.peer(link).cloned());
        let links = self.links.iter().map(|(id, link)| {
            let (cost, offer) = self.tree.offer(*id).unwrap_or_default();
            LinkStatus {
                link: *id,
                peer: link.peer.clone(),
                dialled: link.dialled,
                edge: link.edge,
                rtt: link.rtt.smoothed(),
                cost,
                offer: offer.map(|(root, cost)| (root.id.clone(), cost)),
                filters: self.table.count_wanted_by(*id),
            }
        });
        let (wills, wills_kept) = self.wills.counts();
        Status {
            wills,
            wills_kept,
            id: self.settings.id.clone(),
            capacity: self.settings.capacity,
            strategy: self.settings.strategy,
            root: self.tree.root().clone(),
            epoch: self.tree.epoch(),
            cost,
            hops,
            parent,
            attached: self.tree.is_attached(),
            links: links.collect(),
            filters: self.table.len(),
            advertised: self.table.advertised(),
            shared: self.elsewhere.clone(),
            healing: self
                .lost
                .keys()
                .filter_map(|link| self.peer(*link).cloned())
                .collect(),
        }
    }

    fn send(&mut self, link: LinkId, message: &Message) {
        self.outputs.push_back(Output::Send(link, message.encode()));
    }

    fn hello(&mut self, from: LinkId, hello: Hello, now: Nanos) {
        let Some(link) = self.links.get_mut(&from) else {
            return;
        };
        link.echo = Some((hello.sent, now));
        if let Some((sent, ago)) = hello.echo
            && let Some(rtt) = (now.0 / 1000).checked_sub(sent.saturating_add(ago))
            && link
                .rtt
                .sample(Nanos(rtt * 1000), self.settings.tree.hysteresis)
            && let Some(used) = link.rtt.used()
        {
            let cost = rtt::cost(used, link.weight, self.settings.hop);
            self.tree.set_cost(from, cost, now);
        }
        self.tree.receive(from, hello.advert, now);
    }

    fn say_hello(&mut self, to: LinkId, advert: Advert, now: Nanos) {
        let Some(link) = self.links.get(&to) else {
            return;
        };
        let echo = link.echo.map(|(sent, at)| (sent, (now - at).0 / 1000));
        let sent = now.0 / 1000;
        self.send(to, &Message::Hello(Hello { advert, sent, echo }));
    }

    /// After any change: does what the tree asks, and tells what gathered.
    fn settle(&mut self, now: Nanos) {
        let mut silent = Vec::new();
        loop {
            let outputs = self.tree.take_outputs();
            if outputs.is_empty() {
                break;
            }
            for output in outputs {
                match output {
                    TreeOutput::Send(link, advert) => self.say_hello(link, advert, now),
                    TreeOutput::Edge(link, edge) => self.edge(link, edge, now),
                    TreeOutput::Silent(link) => {
                        let why = "nothing was heard for two and a half hello intervals";
                        self.outputs.push_back(Output::Close(link, why.into()));
                        if let Some(peer) = self.peer(link).cloned() {
                            let event = Event::LinkDown(peer, why.into());
                            self.outputs.push_back(Output::Event(event));
                        }
                        silent.push(link);
                    }
                    TreeOutput::Root { old, new, why } => {
                        self.outputs
                            .push_back(Output::Event(Event::Root { old, new, why }));
                    }
                    TreeOutput::Parent { link, cost, why } => {
                        let parent = link.and_then(|link| self.peer(link).cloned());
                        let event = Event::Parent { parent, cost, why };
                        self.outputs.push_back(Output::Event(event));
                    }
                }
            }
        }
        for link in silent {
            self.links.remove(&link);
            self.reach.forget(link);
            self.release(link);
        }
        self.show_kept(now);
        if self.reach.has_changes() {
            self.note_presence(now);
            self.tell_reach(now);
        }
        self.members_changed |= self.members.has_changes();
        self.look_after_wards(now);
        self.tell(now);
        self.note_members();
    }

    /// All changes of [`Output::Interest`] before [`Output::Keep`] with that number are kept over a
    /// restart.
    pub fn kept(&mut self, number: u64, now: Nanos) {
        self.kept = self.kept.max(number.min(self.asked));
        self.settle(now);
    }

    /// Lets be known elsewhere what may be. Who hears where others are forgets what it keeps for
    /// them, so that is told when what those want is kept here: a broker that is killed before
    /// would not know it any more, and take for nobody what was sent for them.
    fn show_kept(&mut self, now: Nanos) {
        let kept = self.kept;
        let shown = self.to_show.extract_if(.., |_, number| *number <= kept);
        for (link, _) in shown {
            self.reach.show(link);
        }
        self.pass_letters(now);
        let waits = self.seeks.has_letters() || !self.to_show.is_empty();
        if waits && self.asked == kept {
            self.asked = self.wished;
            self.outputs.push_back(Output::Keep(self.asked));
        }
    }

    /// Tells the shell where shared subscriptions have members elsewhere, if that is not
    /// what it knows. Those whose link is lost count if there are no others: what is meant
    /// for them waits.
    fn note_members(&mut self) {
        if !std::mem::take(&mut self.members_changed) {
            return;
        }
        let mut now: BTreeMap<Box<str>, Vec<BrokerId>> = BTreeMap::new();
        for reached in [true, false] {
            let mut found: BTreeMap<&str, BTreeSet<&BrokerId>> = BTreeMap::new();
            for ((id, filter), ready) in self.members.all() {
                if ready == reached && *id != self.settings.id {
                    found.entry(filter).or_default().insert(id);
                }
            }
            for (filter, brokers) in found {
                if !now.contains_key(filter) {
                    now.insert(filter.into(), brokers.into_iter().cloned().collect());
                }
            }
        }
        let before = std::mem::take(&mut self.elsewhere);
        for filter in before.keys().filter(|filter| !now.contains_key(*filter)) {
            self.outputs.push_back(Output::Members {
                filter: filter.clone(),
                brokers: Vec::new(),
            });
        }
        for (filter, brokers) in &now {
            if before.get(filter) != Some(brokers) {
                self.outputs.push_back(Output::Members {
                    filter: filter.clone(),
                    brokers: brokers.clone(),
                });
            }
        }
        self.elsewhere = now;
        self.note_behind();
    }

    /// Tells the shell the same by links, so that it is known after a restart.
    fn note_behind(&mut self) {
        let mut now: BTreeMap<(LinkId, Box<str>), Vec<BrokerId>> = BTreeMap::new();
        for (link, (id, filter)) in self.members.by_links() {
            if *id != self.settings.id {
                let brokers = now.entry((link, filter.clone())).or_default();
                brokers.push(id.clone());
            }
        }
        let before = std::mem::take(&mut self.behind);
        let gone = before.keys().filter(|key| !now.contains_key(*key));
        let gone = gone.map(|key| (key, Vec::new()));
        let new = now.iter().filter(|(key, it)| before.get(*key) != Some(it));
        let new = new.map(|(key, brokers)| (key, brokers.clone()));
        for ((link, filter), brokers) in gone.chain(new) {
            self.outputs.push_back(Output::Behind {
                link: *link,
                filter: filter.clone(),
                brokers,
            });
        }
        self.behind = now;
    }

    /// Tells neighbours who is where, after all that those want, and sees who is back.
    fn tell_reach(&mut self, now: Nanos) {
        self.tell_filters(now);
        for told in self.reach.changes() {
            let Told {
                link,
                all,
                add,
                remove,
            } = told;
            self.send(link, &Message::Here { all, add, remove });
        }
        self.pass_on(now);
    }

    /// A link carries messages from now on, or does not any more.
    fn edge(&mut self, id: LinkId, edge: Edge, now: Nanos) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let (peer, version) = (link.peer.clone(), link.version);
        let event = Event::Edge(peer.clone(), edge);
        self.outputs.push_back(Output::Event(event));
        let before = std::mem::replace(&mut link.edge, edge);
        match (before.carries(), edge.carries()) {
            (false, true) => {
                self.lost.remove(&id);
                self.outputs.push_back(Output::Carry {
                    link: id,
                    carries: true,
                    version,
                });
                self.reach.activate(id);
                if version >= NOTES {
                    self.members.activate(id);
                }
                match self.settings.strategy {
                    Strategy::SubscriptionTable => {
                        self.tell_filters(now);
                        self.table.activate(id);
                        let digests = self.table.digests_told(id);
                        self.send(id, &Message::Digest(digests));
                    }
                    Strategy::Flooding | Strategy::RootRelay => {
                        let applied = self.table.apply(id, vec!["#".into()], Vec::new());
                        self.wanted(id, applied, now);
                        self.complete(id);
                    }
                }
            }
            (true, false) if !self.lost.contains_key(&id) => {
                self.table.deactivate(id);
                self.awaited.remove(&id);
                self.outputs.push_back(Output::Carry {
                    link: id,
                    carries: false,
                    version,
                });
                self.members.deactivate(id);
                let mut behind = self.reach.deactivate(id);
                behind.insert(peer);
                // Some may have come by another link before this one was known to be lost.
                let (came, _) = self.reach.where_are(&behind);
                self.lose(id, Some(behind), now);
                for to in came {
                    self.copy(id, to, false);
                }
            }
            _ => {}
        }
    }

    /// A neighbour's wishes changed: what waits for lost ones goes first.
    fn wanted(&mut self, link: LinkId, applied: Applied, now: Nanos) {
        if !applied.added.is_empty() {
            if let Some(up) = self.links.get(&link)
                && !up.edge.carries()
                && !self.lost.contains_key(&link)
            {
                // The link carries at the other end. Should it not do so here, what is
                // kept for it from now on is not kept for ever.
                let behind = BTreeSet::from([up.peer.clone()]);
                self.lose(link, Some(behind), now);
            }
            let lost: Vec<LinkId> = self
                .lost
                .keys()
                .copied()
                .filter(|lost| *lost != link)
                .collect();
            for lost in lost {
                let kept = self.table.wanted_by(lost);
                let overlap = |new: &str| kept.iter().any(|old| overlaps(old, new));
                if applied.added.iter().any(|new| overlap(new)) {
                    self.copy(lost, link, false);
                }
            }
        }
        if self.table.is_overflown(link)
            && let Some(peer) = self.peer(link).cloned()
        {
            self.outputs
                .push_back(Output::Event(Event::TableFull(peer)));
            let add = vec!["#".into()];
            let remove = Vec::new();
            self.outputs
                .push_back(Output::Interest { link, add, remove });
            self.wished += 1;
        }
        let Applied {
            added: add,
            removed: remove,
        } = applied;
        if !add.is_empty() || !remove.is_empty() {
            // What nobody wants any more may come back.
            self.wished += u64::from(!add.is_empty());
            self.outputs
                .push_back(Output::Interest { link, add, remove });
        }
    }

    /// Nothing is kept for a link any more.
    fn give_up(&mut self, link: LinkId) {
        self.lost.remove(&link);
        self.leads.remove(&link);
        self.table.forget(link);
        self.members.forget(link);
        match self.links.get(&link) {
            Some(up) => self.outputs.push_back(Output::Forget(up.peer.clone())),
            None => self.release(link),
        }
    }

    /// Lets a link's number be used again if nothing depends on it.
    fn release(&mut self, link: LinkId) {
        if self.links.contains_key(&link) || self.lost.contains_key(&link) {
            return;
        }
        self.table.forget(link);
        self.members.forget(link);
        self.leads.remove(&link);
        if let Some(peer) = self.peer(link).cloned() {
            self.numbers.remove(&peer);
            self.outputs.push_back(Output::Forget(peer));
        }
    }

    /// Tells neighbours what changed in the table, now or after a while.
    fn tell(&mut self, now: Nanos) {
        if !self.has_news() {
            return;
        }
        let due = self.told_at + self.settings.batch;
        if now < due && self.told_at.0 > 0 {
            self.tell_at = Some(due);
            return;
        }
        self.tell_filters(now);
    }

    fn has_news(&self) -> bool {
        let by_table = self.settings.strategy == Strategy::SubscriptionTable;
        by_table && self.table.has_changes()
            || self.members.has_changes()
            || self.has_news_of_clients()
    }

    fn tell_filters(&mut self, now: Nanos) {
        self.tell_at = None;
        if !self.has_news() {
            return;
        }
        self.told_at = now;
        if self.settings.strategy == Strategy::SubscriptionTable {
            for change in self.table.changes() {
                let (add, remove) = (change.add, change.remove);
                self.send(change.link, &Message::Filters { add, remove });
            }
        }
        // Who hears of a member can send to it.
        self.members_changed |= self.members.has_changes();
        for told in self.members.changes() {
            let Told {
                link,
                all,
                add,
                remove,
            } = told;
            self.send_members(link, all, add, remove);
        }
        self.tell_of_clients();
    }

    /// In messages of bounded size.
    fn send_members(&mut self, link: LinkId, mut all: bool, add: Vec<Member>, remove: Vec<Member>) {
        let size = |member: &Member| member.0.as_str().len() + member.1.len() + 4;
        for (add, remove) in parts(all, add, remove, size, size) {
            let all = std::mem::take(&mut all);
            self.send(link, &Message::Members { all, add, remove });
        }
    }

    /// Reports to who traces, and passes the trace on.
    fn follow(&mut self, from: Option<LinkId>, mut trace: Trace) {
        let id = self.settings.id.clone();
        if trace.path.len() >= MAX_TRACE - 1 || trace.path.iter().any(|(passed, _)| *passed == id) {
            return;
        }
        let (subscribed, links) = self.table.receivers(&trace.topic);
        let mut path = trace.path.clone();
        path.push((id.clone(), 0));
        let traced = Traced {
            number: trace.number,
            left: path.len() as u8 - 1,
            path,
            subscribed,
        };
        self.traced(traced);
        trace.path.push((id.clone(), 0));
        for link in links {
            let Some(next) = self.links.get(&link).filter(|link| link.edge.carries()) else {
                continue;
            };
            if Some(link) == from {
                continue;
            }
            if let Some((_, micros)) = trace.path.last_mut() {
                *micros = next.rtt.smoothed().map_or(0, |rtt| rtt.0 / 1000);
            }
            self.send(link, &Message::Trace(trace.clone()));
        }
    }

    /// Passes an answer back to who asked.
    fn traced(&mut self, mut traced: Traced) {
        let at = usize::from(traced.left);
        if traced
            .path
            .get(at)
            .is_none_or(|(id, _)| *id != self.settings.id)
        {
            return;
        }
        let Some(before) = at.checked_sub(1) else {
            self.outputs.push_back(Output::Traced(traced));
            return;
        };
        traced.left -= 1;
        let next = traced
            .path
            .get(before)
            .and_then(|(id, _)| self.numbers.get(id))
            .copied();
        if let Some(next) = next.filter(|link| self.links.contains_key(link)) {
            self.send(next, &Message::Traced(traced));
        }
    }
}

/// Whether there are topics that both filters match.
fn overlaps(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (Some(x), Some(y)) if x == y || x == "+" || y == "+" => {}
            _ => return false,
        }
    }
}
