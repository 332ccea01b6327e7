//! One broker of the mesh: connects its spanning tree, its subscription table and its neighbours.
//!
//! Each part owns its state: [`links`] (connections and link numbers), [`filters`] (the subscription
//! table and its synchronisation), [`members`] (members of shared subscriptions), [`interest`] (filters
//! of persistent sessions, by broker), [`lost`] (messages queued for links that ceased to carry),
//! [`holds`] (newer messages that wait until older ones have passed a new link), [`fences`] (barriers
//! behind messages in flight), [`commit`] (interest that must be durable before others act on it),
//! [`join`] (whether clients may connect yet), [`questions`] (look-ups of a client at all brokers),
//! [`presence`] (which brokers are reached), [`look_ups`] and [`clients`]. A [`Node`] passes each event
//! to its part. Then it settles: it applies the outputs of the tree and sends updates to neighbours, in
//! an order in which no broker uses information that its neighbour has not received yet.

mod clients;
mod clocks;
mod commit;
mod fences;
mod filters;
mod holds;
mod interest;
mod join;
mod links;
mod look_ups;
mod lost;
mod members;
mod news;
mod output;
mod presence;
mod questions;
mod settings;
mod status;
mod trace;

use std::collections::{BTreeSet, VecDeque};

use punctual_codec::topic;
use punctual_model::Nanos;

use self::clients::Clients;
use self::clocks::Clocks;
use self::commit::InterestCommit;
use self::fences::Fences;
use self::filters::Filters;
use self::holds::Holds;
use self::interest::PersistentInterest;
pub use self::join::Dialling;
use self::join::Join;
pub use self::links::Refusal;
use self::links::{Link, Links};
use self::look_ups::LookUps;
pub use self::lost::ForgetError;
use self::lost::LostLinks;
use self::members::Members;
use self::news::Pace;
use self::output::Outputs;
pub use self::output::{Event, Membership, Output, WillTurn};
use self::presence::Presence;
use self::questions::OpenLookUps;
pub use self::settings::Settings;
pub use self::status::{LinkStatus, Status};
use crate::id::{BrokerId, LinkId, Rank};
use crate::reach::Reach;
use crate::strategy::Strategy;
use crate::table::{AppliedChanges, Table, within_levels};
use crate::tree::{Advert, Edge, Tree, TreeOutput};
use crate::wills;
use crate::wire::{Hello, Member, Message, Open, VERSIONS, WireError};

/// A broker of the mesh.
#[derive(Debug)]
pub struct Node {
    settings: Settings,
    tree: Tree,
    filters: Filters,
    links: Links,
    reach: Reach<BrokerId>,
    /// Where shared subscriptions have members.
    members: Members,
    interest: PersistentInterest,
    /// Links that ceased to carry, with messages queued for them.
    lost: LostLinks,
    commit: InterestCommit,
    join: Join,
    clients: Clients,
    clocks: Clocks,
    questions: OpenLookUps,
    presence: Presence,
    look_ups: LookUps,
    fences: Fences,
    holds: Holds,
    pace: Pace,
    traces: u64,
    outputs: Outputs,
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
            filters: Filters::new(settings.max_filters),
            links: Links::new(settings.linger, now),
            reach: Reach::new(settings.id.clone()),
            members: Members::new(settings.id.clone(), settings.max_filters),
            interest: PersistentInterest::new(
                settings.id.clone(),
                settings.max_filters,
                settings.heal,
            ),
            lost: LostLinks::new(settings.heal, settings.keep, settings.tree.hello),
            commit: InterestCommit::default(),
            join: Join::new(settings.join_wait, now),
            clients: Clients::new(&settings),
            clocks: Clocks::default(),
            questions: OpenLookUps::default(),
            presence: Presence::default(),
            look_ups: LookUps::default(),
            fences: Fences::default(),
            holds: Holds::default(),
            pace: Pace::new(settings.batch),
            traces: 0,
            outputs: Outputs::default(),
            settings,
        }
    }

    /// The first message that this broker sends on a connection.
    pub fn open(&self, dialled: bool) -> Open {
        Open {
            versions: (*VERSIONS.start(), *VERSIONS.end()),
            id: self.settings.id.clone(),
            instance: self.settings.instance,
            strategy: self.settings.strategy,
            dialled,
        }
    }

    /// A connection to another broker is open, and its [`Open`] has been received. `weight` scales the
    /// round-trip time in the cost of the link (1 leaves it unchanged). If the returned number belongs to
    /// an older connection to the same broker, the caller closes that one.
    ///
    /// # Errors
    /// The [`Refusal`]; the caller closes the connection with it.
    pub fn link_up(&mut self, peer: &Open, weight: f64, now: Nanos) -> Result<LinkId, Refusal> {
        let (link, version) = self.links.admit(peer, &self.settings)?;
        if self.links.is_up(link) {
            self.link_down(link, "replaced by a newer connection", now);
        }
        let new = Link::new(peer, version, weight);
        let cost = new.cost(self.settings.hop);
        self.links.insert(link, new);
        self.outputs.log(Event::LinkUp(peer.id.clone()));
        self.tree.link_up(link, peer.id.clone(), cost, now);
        // Whether the neighbour receives what this broker sends is unknown until its first echo.
        self.tree.set_hears(link, false);
        self.settle(now);
        Ok(link)
    }

    /// Changes the weight of the link to a neighbour (see [`Self::link_up`]), if there is one.
    pub fn weigh(&mut self, peer: &BrokerId, weight: f64, now: Nanos) {
        if let Some((id, link)) = self.links.weigh(peer, weight) {
            let cost = link.cost(self.settings.hop);
            self.tree.set_cost(id, cost, now);
            self.settle(now);
        }
    }

    /// Restores after a restart what the shell stored of a neighbour, also of one without filters: this
    /// broker does not know all sessions while the neighbour is away. The shell stored its `filters`;
    /// its `members`, that is members of shared subscriptions reached through it, and filters of
    /// persistent sessions ([`Output::PersistentInterest`]); and `behind`, the brokers reached through
    /// it, empty if unknown.
    pub fn remember(
        &mut self,
        peer: &BrokerId,
        filters: Vec<Box<str>>,
        members: Vec<Member>,
        behind: Vec<BrokerId>,
        now: Nanos,
    ) {
        if let Some(link) = self.links.recall(peer) {
            let filters = filters.iter().map(|filter| within_levels(filter));
            let filters = filters.map(Box::from).collect();
            self.filters.table.apply(link, filters, Vec::new());
            let is_shared = |member: &Member| topic::split_share(&member.1).0.is_some();
            let (shared, persistent) = members.into_iter().partition(is_shared);
            self.members.recall(link, shared);
            for (of, filter) in persistent {
                self.interest.recall(link, of, &filter);
            }
            let behind: Option<BTreeSet<BrokerId>> =
                (!behind.is_empty()).then(|| behind.into_iter().collect());
            if let Some(behind) = &behind {
                self.commit.recall(link, behind.clone());
            }
            let others = |mut behind: BTreeSet<BrokerId>| {
                behind.remove(&self.settings.id);
                behind
            };
            let behind = behind.map(others);
            self.lost.insert(link, behind, now);
            self.members.report_members(&mut self.outputs);
        }
    }

    /// The connection of a link is closed.
    pub fn link_down(&mut self, link: LinkId, why: &str, now: Nanos) {
        let Some(gone) = self.links.get(link) else {
            return;
        };
        self.outputs
            .log(Event::LinkDown(gone.peer.clone(), why.into()));
        self.tree.link_down(link, now);
        self.settle(now);
        self.remove(link, now);
    }

    fn remove(&mut self, link: LinkId, now: Nanos) {
        self.links.remove(link, now);
        self.reach.forget(link);
        self.release(link, None);
    }

    /// Whether publications from a neighbour wait at this broker, because the queue of a receiver is full
    /// or the store cannot write. While any wait, [`Settings::linger`] does not expire: they may still
    /// have to be forwarded over a link that is lost.
    pub fn waits(&mut self, link: LinkId, waits: bool, now: Nanos) {
        self.links.set_waits(link, waits, now);
    }

    /// Handles a message from a neighbour.
    ///
    /// # Errors
    /// The message is malformed. The link is down then, and the caller closes its connection.
    pub fn receive(&mut self, link: LinkId, bytes: &[u8], now: Nanos) -> Result<(), WireError> {
        if !self.links.is_up(link) {
            return Ok(());
        }
        let handled = Message::decode(bytes).and_then(|message| self.handle(link, message, now));
        if let Err(error) = &handled {
            self.link_down(link, &error.to_string(), now);
        }
        handled
    }

    fn handle(&mut self, link: LinkId, mut message: Message, now: Nanos) -> Result<(), WireError> {
        self.leave_out_future(&mut message);
        match message {
            Message::Open(_) => return Err(WireError::Field("second open")),
            Message::Hello(hello) => self.hello(link, hello, now),
            Message::Filters { add, remove } => {
                self.may_have_filters()?;
                let applied = self.filters.apply(link, add, remove);
                self.wanted(link, applied, now);
            }
            Message::Digest(theirs) => {
                self.may_have_filters()?;
                if self.filters.compare(link, &theirs, &mut self.outputs) {
                    self.complete(link);
                }
            }
            Message::Want(bits) if self.links.carries(link) => self.filters.say_again(link, bits),
            // The link has ceased to carry; checksums are sent again when it carries again.
            Message::Want(_) => {}
            Message::Bucket { index, filters } => {
                self.may_have_filters()?;
                let applied = self.filters.replace(link, index, filters);
                self.wanted(link, applied, now);
                if self.filters.part_came(link, index) {
                    self.complete(link);
                }
            }
            Message::Here { all, add, remove } => {
                let came = self.reach.heard(link, all, add, &remove);
                self.lost.heard(link);
                let behind = self.reach.behind(link);
                self.silent(link, |id| !behind.contains(id));
                self.note_leads(link);
                self.commit.show_later(link);
                self.came(link, &came);
                if !came.is_empty() {
                    self.holds.leads_to_more(link);
                }
            }
            Message::Members { all, add, remove } => self.members.heard(link, all, add, &remove),
            Message::Wills {
                all,
                turn,
                add,
                remove,
            } => {
                let told = wills::WillsUpdate {
                    link,
                    all,
                    turn,
                    add,
                    remove,
                };
                self.heard_wills(link, told, now);
            }
            Message::Arrived(arrivals) => self.heard_arrivals(link, arrivals),
            Message::GuardReport(left) => self.heard_guard_report(link, left, now),
            Message::LookUp(look_up) => self.heard_look_up(link, look_up, now),
            Message::LookUpReply(look_up_reply) => {
                self.heard_look_up_reply(link, look_up_reply, now);
            }
            Message::Envelope(envelope) => self.pass_envelope(Some(link), envelope, now),
            Message::Sums(sums) => self.heard_sums(link, sums),
            Message::Ask(about) => self.asked(link, about),
            Message::PersistentInterest(told) => self.heard_interest(link, told),
            Message::Fence(fence) => self.heard_fence(link, fence, now),
            Message::FenceReply(fenced) => self.heard_fenced(link, fenced, now),
            Message::Trace(trace) => self.follow(Some(link), trace),
            Message::TraceReply(traced) => self.traced(traced),
        }
        self.settle(now);
        Ok(())
    }

    fn may_have_filters(&self) -> Result<(), WireError> {
        match self.settings.strategy {
            Strategy::SubscriptionTable => Ok(()),
            _ => Err(WireError::Field("filters without a table")),
        }
    }

    fn hello(&mut self, from: LinkId, hello: Hello, now: Nanos) {
        let Some(link) = self.links.get_mut(from) else {
            return;
        };
        link.compare_clocks(hello.clock, self.clocks.now);
        if link.is_unheard() {
            // The neighbour is to learn at once that its messages arrive.
            self.tree.repeat(from);
        }
        // Later, a neighbour that receives nothing any more closes the connection itself.
        if hello.echo.is_some() {
            self.tree.set_hears(from, true);
        }
        let hysteresis = self.settings.tree.hysteresis;
        let cost = link.heard(&hello, hysteresis, now);
        let cost = cost.then(|| link.cost(self.settings.hop));
        self.tree.receive(from, hello.advert, cost, now);
        self.look_at_clocks();
    }

    fn say_hello(&mut self, to: LinkId, advert: Advert, now: Nanos) {
        if let Some(link) = self.links.get(to) {
            let hello = link.hello(advert, self.clocks.now, now);
            self.outputs.send(to, &Message::Hello(hello));
        }
    }

    /// Applies a change of a neighbour's filters. Messages queued for lost links are copied to it before
    /// newer messages are sent.
    fn wanted(&mut self, link: LinkId, applied: AppliedChanges, now: Nanos) {
        let AppliedChanges {
            added: add,
            removed: mut remove,
            overflows,
        } = applied;
        if self.filters.table.is_overflown(link) {
            // It receives everything, whether it asks for that or not.
            remove.retain(|filter| &**filter != "#");
        }
        if !add.is_empty() {
            if let Some(up) = self.links.get(link)
                && !up.edge.carries()
                && !self.lost.contains(link)
            {
                // The link carries at the other end but not yet here. If it never does, the queue for it
                // is given up like that of any lost link.
                let behind = BTreeSet::from([up.peer.clone()]);
                self.report_leads(link, behind.clone());
                self.lost.insert(link, Some(behind), now);
            }
            self.copy_overlapping(link, &add);
        }
        if overflows && let Some(peer) = self.peer(link).cloned() {
            self.outputs.log(Event::TableFull(peer));
            self.report_interest(link, vec!["#".into()], Vec::new());
        }
        if !add.is_empty() || !remove.is_empty() {
            self.report_interest(link, add, remove);
        }
    }

    fn report_interest(&mut self, link: LinkId, add: Vec<Box<str>>, remove: Vec<Box<str>>) {
        if !add.is_empty() {
            self.commit.note_change();
        }
        self.outputs.push(Output::Interest { link, add, remove });
    }

    /// Reports which brokers a link leads to, so that the shell stores it for a restart. A message that is
    /// forwarded to one of them may be kept for the link. The link therefore carries, or is lost: what is
    /// kept for a lost link goes where its brokers are. Nothing would move what is kept for a link that
    /// carries only at the other end.
    fn note_leads(&mut self, link: LinkId) {
        let Some(up) = self.links.get(link).filter(|up| up.edge.carries()) else {
            return;
        };
        let mut brokers = self.reach.behind(link);
        brokers.insert(up.peer.clone());
        self.report_leads(link, brokers);
    }

    fn report_leads(&mut self, link: LinkId, brokers: BTreeSet<BrokerId>) {
        if self.commit.leads(link, &brokers) {
            let brokers = brokers.into_iter().collect();
            self.outputs.push(Output::Leads { link, brokers });
        }
    }

    /// The filters of the neighbour on a link are completely known.
    fn complete(&mut self, link: LinkId) {
        self.members.ready(link);
        let came = self.reach.ready(link);
        self.commit.show_later(link);
        self.came(link, &came);
        self.holds.leads(link);
    }

    /// A client of this broker subscribed to a filter, which may be a shared one. With `persistent` its
    /// session outlives the connection, so that messages are queued for it while the client is away.
    pub fn subscribe(&mut self, filter: &str, persistent: bool, now: Nanos) {
        let (share, plain) = topic::split_share(filter);
        let plain = &*within_levels(plain);
        self.filters.table.subscribe(plain);
        if persistent && !plain.starts_with('$') {
            self.interest.subscribe(plain);
        }
        if share.is_some() && !plain.starts_with('$') {
            self.members.subscribe(filter);
        }
        self.settle(now);
    }

    /// A client of this broker unsubscribed from a filter; `persistent` as in [`Self::subscribe`].
    pub fn unsubscribe(&mut self, filter: &str, persistent: bool, now: Nanos) {
        let (share, plain) = topic::split_share(filter);
        let plain = &*within_levels(plain);
        if persistent && !plain.starts_with('$') {
            self.interest.unsubscribe(plain);
        }
        if share.is_none() {
            self.filters.table.unsubscribe(plain);
        } else if let Some(gone) = self.members.unsubscribe(filter, plain, now) {
            self.filters.table.unsubscribe(&gone);
        }
        self.settle(now);
    }

    /// Changes the capacity of this broker.
    pub fn set_capacity(&mut self, capacity: u64, now: Nanos) {
        self.settings.capacity = capacity;
        self.tree.set_capacity(capacity, now);
        self.settle(now);
    }

    /// All changes of [`Output::Interest`] and [`Output::Leads`] before [`Output::CommitInterest`] with
    /// this number are durable.
    pub fn interest_committed(&mut self, number: u64, now: Nanos) {
        self.commit.confirm(number);
        self.settle(now);
    }

    /// Does what is due at this time.
    pub fn tick(&mut self, now: Nanos) {
        self.tree.tick(now);
        while let Some(gone) = self.members.left(&self.links, now) {
            let by_table = self.settings.strategy == Strategy::SubscriptionTable;
            match by_table && self.filters.table.is_last(&gone) {
                true => self.fence_filter(gone, now),
                false => self.filters.table.unsubscribe(&gone),
            }
        }
        self.pass_on(now);
        self.publish_wills(now);
        self.answer_late_questions(now);
        if self.presence.release(now) {
            self.report_reach();
        }
        self.tick_fences(now);
        self.end_late_holds(now);
        self.settle(now);
    }

    /// When [`Self::tick`] is to be called next.
    pub fn next_timeout(&self) -> Nanos {
        self.next_pass()
            .into_iter()
            .chain(self.pace.next())
            .chain(self.members.next_leave(&self.links))
            .chain(self.clients.wills.next())
            .chain(self.questions.next())
            .chain(self.presence.next())
            .chain(self.fences.next())
            .chain(self.holds.next())
            .chain(self.join.next())
            .fold(self.tree.next_timeout(), Ord::min)
    }

    /// Takes the outputs, to be carried out in this order.
    pub fn take_outputs(&mut self) -> VecDeque<Output> {
        self.report_first_reach();
        self.outputs.take()
    }

    /// The neighbour on a link, connected or not.
    pub fn peer(&self, link: LinkId) -> Option<&BrokerId> {
        self.links.peer(link)
    }

    /// The subscription table.
    pub fn table(&self) -> &Table {
        &self.filters.table
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// After any change: applies the outputs of the tree, and sends the updates that are due to
    /// neighbours.
    fn settle(&mut self, now: Nanos) {
        for silent in self.follow_tree(now) {
            self.remove(silent, now);
        }
        self.advertise_committed(now);
        self.pace.reset();
        let changed = self.reach.has_changes();
        if changed {
            self.note_presence(now);
            self.forget_lost_fences();
            self.note_kept();
            self.tell(now);
            self.pass_on(now);
        }
        self.send_completed_checksums();
        if self.interest.take_keeps_changed() || changed {
            self.note_missed(now);
            self.report_reach();
        }
        self.look_after_wards(now);
        let outdated = self.filters.remove_outdated();
        let removes = outdated.is_some();
        if let Some((link, applied)) = outdated {
            self.wanted(link, applied, now);
        }
        self.tell(now);
        if self.filters.say_next_part(&mut self.outputs) || removes {
            self.pace.set_due(now);
        }
        self.ask_for_holds(now);
        self.ask_put_off(now);
        self.members.report_members(&mut self.outputs);
        self.look_at_membership(now);
    }

    /// Applies the outputs of the tree; returns the links whose neighbours have fallen silent.
    fn follow_tree(&mut self, now: Nanos) -> Vec<LinkId> {
        let mut silent = Vec::new();
        loop {
            let outputs = self.tree.take_outputs();
            if outputs.is_empty() {
                return silent;
            }
            for output in outputs {
                match output {
                    TreeOutput::Send(link, advert) => self.say_hello(link, advert, now),
                    TreeOutput::Edge(link, edge) => self.edge(link, edge, now),
                    TreeOutput::Silent(link) => {
                        let why = "nothing was heard for two and a half hello intervals";
                        self.outputs.push(Output::Close(link, why.into()));
                        if let Some(peer) = self.peer(link).cloned() {
                            self.outputs.log(Event::LinkDown(peer, why.into()));
                        }
                        silent.push(link);
                    }
                    TreeOutput::Root { old, new, why } => {
                        self.outputs.log(Event::Root { old, new, why });
                    }
                    TreeOutput::Parent { link, cost, why } => {
                        let parent = link.and_then(|link| self.peer(link).cloned());
                        self.outputs.log(Event::Parent { parent, cost, why });
                    }
                }
            }
        }
    }

    /// The role of a link in the tree changed; it may begin or cease to carry messages.
    fn edge(&mut self, id: LinkId, edge: Edge, now: Nanos) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let peer = link.peer.clone();
        let before = std::mem::replace(&mut link.edge, edge);
        self.outputs.log(Event::Edge(peer.clone(), edge));
        let carry = |carries| Output::Carry { link: id, carries };
        match (before.carries(), edge.carries()) {
            (false, true) => {
                self.lost.carries_again(id);
                self.outputs.push(carry(true));
                self.hold(id, now);
                self.reach.activate(id);
                self.fences.forget_settled();
                if self.reach.count(id) > 0 {
                    // The neighbour said so before this end carried.
                    self.note_leads(id);
                }
                // Sums received before this end carried may be out of date.
                self.outputs.send(id, &Message::Ask(Vec::new()));
                self.members.activate(id);
                match self.settings.strategy {
                    Strategy::SubscriptionTable => {
                        self.filters.activate(id, &mut self.outputs);
                    }
                    Strategy::Flooding | Strategy::RootRelay => {
                        let all = vec!["#".into()];
                        let applied = self.filters.table.apply(id, all, Vec::new());
                        self.wanted(id, applied, now);
                        self.complete(id);
                    }
                }
            }
            (true, false) if !self.lost.contains(id) => {
                self.holds.remove(id);
                self.fences.forget_hold(id);
                self.filters.deactivate(id);
                self.pace.drop_held(id);
                self.outputs.push(carry(false));
                self.members.deactivate(id);
                self.silent(id, |_| true);
                let mut behind = self.reach.deactivate(id);
                behind.insert(peer);
                self.lose(id, behind, now);
            }
            _ => {}
        }
    }

    /// Advertises changes of interest that are durable now on the other links, and forwards the envelopes that
    /// waited for them.
    fn advertise_committed(&mut self, now: Nanos) {
        for link in self.commit.shown() {
            self.reach.show(link);
        }
        self.pass_envelopes(now);
        if let Some(number) = self.commit.ask(self.presence.has_envelopes()) {
            self.outputs.push(Output::CommitInterest(number));
        }
    }
}
