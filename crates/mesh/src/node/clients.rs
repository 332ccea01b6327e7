//! What a broker and its neighbours tell each other about clients: who has connected where,
//! and what is left behind if a broker is lost ([`crate::wills`]).
//!
//! That a client has connected goes to every broker, over the tree: whoever had it before
//! gives it up.

use std::collections::BTreeSet;

use punctual_model::Nanos;

use super::{Event, Node, Output, Settings, WillTurn};
use crate::id::LinkId;
use crate::table::parts;
use crate::wills::{GUARDS, Told, Whose, Wills};
use crate::wire::{Arrival, Left, MAX_MESSAGE, Message, Testament};

/// What is known of clients, here and elsewhere, and is to be told.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) wills: Wills,
    /// Clients of which neighbours are to be told, and which neighbour has told of them.
    arrivals: Vec<(Option<LinkId>, Arrival)>,
}

impl Clients {
    pub(super) fn new(settings: &Settings) -> Self {
        let Settings {
            will_wait,
            linger,
            max_will_bytes,
            ..
        } = *settings;
        Self {
            wills: Wills::new(will_wait, linger, max_will_bytes),
            arrivals: Vec::new(),
        }
    }
}

impl Node {
    /// A client has connected to this broker; with what it leaves behind, see
    /// [`Self::set_will`].
    pub fn arrived(&mut self, arrival: Arrival, now: Nanos) {
        self.clients.wills.arrived(&arrival);
        self.clients.arrivals.push((None, arrival));
        self.settle(now);
    }

    /// A client of this broker leaves this behind, or with `None` nothing any more: what
    /// others publish if this broker is lost.
    pub fn set_will(&mut self, client: &str, will: Option<Testament>, now: Nanos) {
        let fits = |will: &Testament| will.size() < MAX_MESSAGE / 2;
        self.clients.wills.set(client, will.filter(fits));
        self.settle(now);
    }

    /// A neighbour tells of clients that have connected elsewhere.
    pub(super) fn heard_arrivals(&mut self, from: LinkId, arrivals: Vec<Arrival>) {
        for arrival in &arrivals {
            self.clients.wills.arrived(arrival);
        }
        let to_tell = arrivals.iter().cloned();
        self.clients
            .arrivals
            .extend(to_tell.map(|arrival| (Some(from), arrival)));
        self.outputs.push(Output::Arrived(arrivals));
    }

    /// A neighbour tells what its clients leave behind.
    pub(super) fn heard_wills(&mut self, from: LinkId, told: Told, now: Nanos) {
        let Some(link) = self.links.get(from) else {
            return;
        };
        let (peer, instance) = (link.peer.clone(), link.instance);
        if self
            .clients
            .wills
            .heard((peer.clone(), instance), told, now)
        {
            let event = Event::WillsFull(peer);
            self.outputs.log(event);
        }
    }

    /// What a broker had left with another goes to it, or is this broker's.
    pub(super) fn heard_left(&mut self, from: LinkId, left: Left, now: Nanos) {
        if left.to != self.settings.id {
            let to = BTreeSet::from([left.to.clone()]);
            let (links, _) = self.reach.where_are(&to);
            match links.into_iter().find(|link| *link != from) {
                Some(link) => self.send_left(link, left),
                // It is not there any more; where it is will be known.
                None => self.clients.wills.inherit(left, now),
            }
            return;
        }
        let same = left.instance == self.settings.instance;
        if !left.published.is_empty() {
            let wills = left.published.clone();
            self.outputs.push(Output::Published { wills, same });
        }
        if !left.moved.is_empty() {
            let moved = left.moved.clone();
            self.outputs.push(Output::Arrived(moved));
        }
        if !same {
            let published = Vec::new();
            self.clients.wills.inherit(Left { published, ..left }, now);
        }
    }

    /// In messages of bounded size; also to a neighbour to which the link does not carry yet.
    fn send_left(&mut self, to: LinkId, left: Left) {
        if !self.links.is_up(to) {
            return;
        }
        let Left {
            to: whose,
            instance,
            lost,
            wills,
            published,
            moved,
        } = left;
        let part = |wills, published, moved| {
            Message::Left(Left {
                to: whose.clone(),
                instance,
                lost,
                wills,
                published,
                moved,
            })
        };
        // Who has moved is known before what is left is looked at.
        for moved in in_batches(moved, arrival_size) {
            self.outputs.send(to, &part(Vec::new(), Vec::new(), moved));
        }
        for published in in_batches(published, Testament::size) {
            self.outputs
                .send(to, &part(Vec::new(), published, Vec::new()));
        }
        for wills in in_batches(wills, Testament::size) {
            self.outputs.send(to, &part(wills, Vec::new(), Vec::new()));
        }
    }

    /// Who is to keep the wills of this broker's clients: the parent first.
    fn guards(&self) -> Vec<LinkId> {
        let parent = self.tree.parent().map(|(link, _)| link);
        let others = self.links.carrying();
        let others = others.filter(|link| Some(*link) != parent);
        let parent = parent.filter(|link| self.links.carries(*link));
        parent.into_iter().chain(others).take(GUARDS).collect()
    }

    pub(super) fn has_news_of_clients(&self) -> bool {
        !self.clients.arrivals.is_empty() || self.clients.wills.has_changes(&self.guards())
    }

    /// Tells neighbours what there is to be told of clients.
    pub(super) fn tell_of_clients(&mut self) {
        let arrivals = std::mem::take(&mut self.clients.arrivals);
        for link in self.links.carrying() {
            let others = arrivals.iter().filter(|(from, _)| *from != Some(link));
            let others: Vec<Arrival> = others.map(|(_, arrival)| arrival.clone()).collect();
            for batch in in_batches(others, arrival_size) {
                self.outputs.send(link, &Message::Arrived(batch));
            }
        }
        let guards = self.guards();
        for told in self.clients.wills.changes(guards) {
            if self.links.carries(told.link) {
                self.send_wills(told);
            }
        }
    }

    /// In messages of bounded size.
    fn send_wills(&mut self, told: Told) {
        let Told {
            link,
            mut all,
            turn,
            add,
            remove,
        } = told;
        for (add, remove) in parts(all, add, remove, Testament::size, |client| client.len() + 4) {
            let message = Message::Wills {
                all: std::mem::take(&mut all),
                turn,
                add,
                remove,
            };
            self.outputs.send(link, &message);
        }
    }

    /// Sees which brokers that have left something here are lost, and which are back.
    pub(super) fn look_after_wards(&mut self, now: Nanos) {
        let others = self.clients.wills.wards();
        let others = others.filter(|(id, _)| *id != self.settings.id);
        for ward in others.cloned().collect::<Vec<Whose>>() {
            let near = self.links.to(&ward.0);
            let near = near.filter(|(_, link)| link.edge.carries());
            if let Some((link, up)) = near {
                let left = match ward.1 == up.instance {
                    true => self.clients.wills.found(&ward, now),
                    false => self.clients.wills.give_back(&ward, now),
                };
                if let Some(left) = left {
                    self.send_left(link, left);
                }
                continue;
            }
            let (links, _) = self.reach.where_are(&BTreeSet::from([ward.0.clone()]));
            match links.first() {
                Some(link) => {
                    if let Some(left) = self.clients.wills.give_back(&ward, now) {
                        self.send_left(*link, left);
                    }
                }
                None => self.clients.wills.lose(&ward, now),
            }
        }
    }

    /// Publishes what lost brokers have left.
    pub(super) fn publish_wills(&mut self, now: Nanos) {
        let reached = self.reach.expected();
        for (whose, will) in self.clients.wills.due(&reached, now) {
            let turn = match whose == self.settings.id {
                true => WillTurn::Own,
                false => WillTurn::Guarded,
            };
            self.outputs.push(Output::Will { will, turn });
        }
        for will in self.clients.wills.again(&reached, now) {
            let turn = WillTurn::Again;
            self.outputs.push(Output::Will { will, turn });
        }
    }
}

fn arrival_size(arrival: &Arrival) -> usize {
    let user = arrival.user.as_ref().map_or(0, |user| user.len());
    arrival.client.len() + user + 15
}

/// The same in parts for one message each.
fn in_batches<T>(all: Vec<T>, size: impl Fn(&T) -> usize) -> impl Iterator<Item = Vec<T>> {
    let parts = parts(false, all, Vec::<()>::new(), size, |()| 0);
    parts.into_iter().map(|(batch, _)| batch)
}
