//! One broker of the mesh: what happens between its tree, its table and its neighbours.
//!
//! Each part keeps its own state: [`links`] (connections and numbers), [`filters`] (who wants
//! what), [`members`] (shared subscriptions), [`lasting`] (what is awaited by who is away), [`lost`]
//! (what waits for links that do not carry), [`holds`] (what waits for that to pass), [`fences`]
//! (whether all has come that was on its way), [`keeping`] (what a restart must not lose), [`join`] (whether clients may be let in),
//! [`questions`] (what all others know of a client), [`presence`], [`look_ups`] and [`clients`]. A [`Node`] hands each
//! event to the part that it is for; then it settles: does what the tree asks and tells neighbours
//! what there is to tell, in an order in which nobody sends what another cannot know yet.

mod clients;
mod clocks;
mod fences;
mod filters;
mod holds;
mod join;
mod keeping;
mod lasting;
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
use self::fences::Fences;
use self::filters::Filters;
use self::holds::Holds;
pub use self::join::Dialling;
use self::join::Join;
use self::keeping::Keeping;
use self::lasting::Lasting;
pub use self::links::Refusal;
use self::links::{Link, Links};
use self::look_ups::LookUps;
use self::lost::LostLinks;
pub use self::lost::NotForgotten;
use self::members::Members;
use self::news::Pace;
use self::output::Outputs;
pub use self::output::{Event, Membership, Output, WillTurn};
use self::presence::Presence;
use self::questions::Questions;
pub use self::settings::Settings;
pub use self::status::{LinkStatus, Status};
use crate::id::{BrokerId, LinkId, Rank};
use crate::reach::Reach;
use crate::strategy::Strategy;
use crate::table::{Applied, Table, within_levels};
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
    lasting: Lasting,
    /// Links that carried and do not any more.
    lost: LostLinks,
    keeping: Keeping,
    join: Join,
    clients: Clients,
    clocks: Clocks,
    questions: Questions,
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
            lasting: Lasting::new(settings.id.clone(), settings.max_filters, settings.heal),
            lost: LostLinks::new(settings.heal, settings.keep, settings.tree.hello),
            keeping: Keeping::default(),
            join: Join::new(settings.join_wait, now),
            clients: Clients::new(&settings),
            clocks: Clocks::default(),
            questions: Questions::default(),
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
        let (link, version) = self.links.admit(peer, &self.settings)?;
        if self.links.is_up(link) {
            self.link_down(link, "replaced by a newer connection", now);
        }
        let new = Link::new(peer, version, weight);
        let cost = new.cost(self.settings.hop);
        self.links.insert(link, new);
        self.outputs.log(Event::LinkUp(peer.id.clone()));
        self.tree.link_up(link, peer.id.clone(), cost, now);
        // It is not known before it says so.
        self.tree.set_hears(link, false);
        self.settle(now);
        Ok(link)
    }

    /// Scales the round-trip time to a neighbour otherwise from now on, if there is a link to it.
    pub fn weigh(&mut self, peer: &BrokerId, weight: f64, now: Nanos) {
        if let Some((id, link)) = self.links.weigh(peer, weight) {
            let cost = link.cost(self.settings.hop);
            self.tree.set_cost(id, cost, now);
            self.settle(now);
        }
    }

    /// After a start: what is kept for a neighbour from before, with the filters it
    /// wanted then, members of shared subscriptions that were behind it and what persistent sessions
    /// awaited there, and the brokers that its link led to; none if that is not known.
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
            let (shared, lasting) = members.into_iter().partition(is_shared);
            self.members.recall(link, shared);
            for (of, filter) in lasting {
                self.lasting.recall(link, of, &filter);
            }
            let behind: Option<BTreeSet<BrokerId>> =
                (!behind.is_empty()).then(|| behind.into_iter().collect());
            if let Some(behind) = &behind {
                self.keeping.recall(link, behind.clone());
            }
            let others = |mut behind: BTreeSet<BrokerId>| {
                behind.remove(&self.settings.id);
                behind
            };
            let behind = behind.map(others);
            self.lost.insert(link, behind, now);
            self.members.tell_shell(&mut self.outputs);
        }
    }

    /// The connection of a link is gone.
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

    /// Publications of a neighbour wait at this broker from now on, because a receiver has no room
    /// for them or the store cannot write; or none does any more. As long as any does, what they
    /// may still have to be sent on to is not given up because everybody has been elsewhere for
    /// [`Settings::linger`].
    pub fn waits(&mut self, link: LinkId, waits: bool, now: Nanos) {
        self.links.set_waits(link, waits, now);
    }

    /// A message came from a neighbour.
    ///
    /// # Errors
    /// What it is not; the link is down then, and its connection is to be closed.
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
                let applied = self.filters.table.apply(link, add, remove);
                self.wanted(link, applied, now);
            }
            Message::Digest(theirs) => {
                self.may_have_filters()?;
                if self.filters.compare(link, &theirs, &mut self.outputs) {
                    self.complete(link);
                }
            }
            Message::Want(bits) => self.filters.say_again(link, bits),
            Message::Bucket { index, filters } => {
                self.may_have_filters()?;
                let applied = self.filters.table.replace(link, index, filters);
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
                self.keeping.show_later(link);
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
            Message::LookUp(look_up) => self.heard_look_up(link, look_up, now),
            Message::LookedUp(looked_up) => self.heard_looked_up(link, looked_up, now),
            Message::Letter(letter) => self.pass_letter(Some(link), letter, now),
            Message::Sums(sums) => self.heard_sums(link, sums),
            Message::Ask(about) => self.asked(link, about),
            Message::Lasting(told) => self.heard_lasting(link, told),
            Message::Fence(fence) => self.heard_fence(link, fence, now),
            Message::Fenced(fenced) => self.heard_fenced(link, fenced, now),
            Message::Trace(trace) => self.follow(Some(link), trace),
            Message::Traced(traced) => self.traced(traced),
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
            // It is to know at once that it is heard.
            self.tree.repeat(from);
        }
        // Later it ends the connection itself if it hears nothing any more.
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

    /// A neighbour's wishes changed: what waits for lost ones goes first.
    fn wanted(&mut self, link: LinkId, applied: Applied, now: Nanos) {
        let Applied {
            added: add,
            removed: remove,
        } = applied;
        if !add.is_empty() {
            if let Some(up) = self.links.get(link)
                && !up.edge.carries()
                && !self.lost.contains(link)
            {
                // The link carries at the other end. Should it not do so here, what is
                // kept for it from now on is not kept for ever.
                let behind = BTreeSet::from([up.peer.clone()]);
                self.lost.insert(link, Some(behind), now);
            }
            self.copy_overlapping(link, &add);
        }
        if self.filters.table.is_overflown(link)
            && let Some(peer) = self.peer(link).cloned()
        {
            self.outputs.log(Event::TableFull(peer));
            self.tell_interest(link, vec!["#".into()], Vec::new());
        }
        if !add.is_empty() || !remove.is_empty() {
            self.tell_interest(link, add, remove);
        }
    }

    fn tell_interest(&mut self, link: LinkId, add: Vec<Box<str>>, remove: Vec<Box<str>>) {
        if !add.is_empty() {
            self.keeping.wish();
        }
        self.outputs.push(Output::Interest { link, add, remove });
    }

    /// Tells the shell whom a link leads to, so that it is known after a restart.
    fn note_leads(&mut self, link: LinkId) {
        let Some(up) = self.links.get(link) else {
            return;
        };
        let mut brokers = self.reach.behind(link);
        brokers.insert(up.peer.clone());
        if self.keeping.leads(link, &brokers) {
            let brokers = brokers.into_iter().collect();
            self.outputs.push(Output::Leads { link, brokers });
        }
    }

    /// All that the neighbour on a link wants is known.
    fn complete(&mut self, link: LinkId) {
        self.members.ready(link);
        let came = self.reach.ready(link);
        self.keeping.show_later(link);
        self.came(link, &came);
        self.holds.leads(link);
    }

    /// A client of this broker subscribed to a filter, which may be shared; `lasting` if its session
    /// is to be sent that also when it connects again.
    pub fn subscribe(&mut self, filter: &str, lasting: bool, now: Nanos) {
        let (share, plain) = topic::split_share(filter);
        let plain = &*within_levels(plain);
        self.filters.table.subscribe(plain);
        if lasting && !plain.starts_with('$') {
            self.lasting.subscribe(plain);
        }
        if share.is_some() && !plain.starts_with('$') {
            self.members.subscribe(filter);
        }
        self.settle(now);
    }

    /// A client of this broker does not want a filter any more, which it wanted so.
    pub fn unsubscribe(&mut self, filter: &str, lasting: bool, now: Nanos) {
        let (share, plain) = topic::split_share(filter);
        let plain = &*within_levels(plain);
        if lasting && !plain.starts_with('$') {
            self.lasting.unsubscribe(plain);
        }
        if share.is_none() {
            self.filters.table.unsubscribe(plain);
        } else if let Some(gone) = self.members.unsubscribe(filter, plain, now) {
            self.filters.table.unsubscribe(&gone);
        }
        self.settle(now);
    }

    /// Another capacity.
    pub fn set_capacity(&mut self, capacity: u64, now: Nanos) {
        self.settings.capacity = capacity;
        self.tree.set_capacity(capacity, now);
        self.settle(now);
    }

    /// All changes of [`Output::Interest`] before [`Output::Keep`] with that number are kept over a
    /// restart.
    pub fn kept(&mut self, number: u64, now: Nanos) {
        self.keeping.confirm(number);
        self.settle(now);
    }

    /// Time passes.
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
            self.tell_reach();
        }
        self.tick_fences(now);
        self.end_late_holds(now);
        self.settle(now);
    }

    /// When [`Self::tick`] is due.
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

    /// What is to be done, in this order.
    pub fn take_outputs(&mut self) -> VecDeque<Output> {
        self.tell_first_reach();
        self.outputs.take()
    }

    /// The neighbour on a link.
    pub fn peer(&self, link: LinkId) -> Option<&BrokerId> {
        self.links.peer(link)
    }

    /// The table of subscriptions.
    pub fn table(&self) -> &Table {
        &self.filters.table
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// After any change: does what the tree asks, and tells what gathered.
    fn settle(&mut self, now: Nanos) {
        for silent in self.follow_tree(now) {
            self.remove(silent, now);
        }
        self.show_kept(now);
        self.pace.reset();
        let changed = self.reach.has_changes();
        if changed {
            self.note_presence(now);
            self.forget_lost_fences();
            self.note_kept();
            self.tell(now);
            self.pass_on(now);
        }
        self.tell_completed();
        if self.lasting.take_keeps_changed() || changed {
            self.note_missed(now);
            self.tell_reach();
        }
        self.look_after_wards(now);
        self.tell(now);
        if self.filters.say_next_part(&mut self.outputs) {
            self.pace.set_due(now);
        }
        self.ask_for_holds(now);
        self.ask_put_off(now);
        self.members.tell_shell(&mut self.outputs);
        self.look_at_membership(now);
    }

    /// Does what the tree asks; returns links over which nothing is heard any more.
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

    /// A link carries messages from now on, or does not any more.
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
                // What came before this end carried may not be true any more.
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

    /// Lets be known elsewhere what may be.
    fn show_kept(&mut self, now: Nanos) {
        for link in self.keeping.shown() {
            self.reach.show(link);
        }
        self.pass_letters(now);
        if let Some(number) = self.keeping.ask(self.presence.has_letters()) {
            self.outputs.push(Output::Keep(number));
        }
    }
}
