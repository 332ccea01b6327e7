//! What brokers exchange about clients: where they connect, and their wills, which neighbours publish if
//! a broker is lost ([`crate::wills`]).
//!
//! The arrival of a client is sent to every broker over the tree: a broker with an older connection of
//! the same client closes it.

use std::collections::BTreeSet;

use punctual_model::Nanos;

use super::{Event, Node, Output, Settings, WillTurn};
use crate::id::LinkId;
use crate::table::parts;
use crate::wills::{BrokerStart, GUARDS, Wills, WillsUpdate};
use crate::wire::{Arrival, ClientWill, GuardReport, MAX_MESSAGE, Message};

/// Wills and arrivals, own and of other brokers.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) wills: Wills,
    /// Arrivals to be sent to neighbours, and the link on which each came.
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
    /// A client has connected to this broker. Its will is set with [`Self::set_will`].
    pub fn arrived(&mut self, arrival: Arrival, now: Nanos) {
        self.clients.wills.arrived(&arrival);
        self.clients.arrivals.push((None, arrival));
        self.settle(now);
    }

    /// A client has connected to another broker, which has notified this one of that directly: its
    /// older wills that are guarded here are not published.
    pub fn has_arrived_elsewhere(&mut self, arrival: &Arrival) {
        self.clients.wills.arrived(arrival);
    }

    /// Sets the will of a client of this broker, which others publish if this broker is lost; `None`
    /// removes it.
    pub fn set_will(&mut self, client: &str, will: Option<ClientWill>, now: Nanos) {
        let fits = |will: &ClientWill| will.size() < MAX_MESSAGE / 2;
        self.clients.wills.set(client, will.filter(fits));
        self.settle(now);
    }

    /// Handles arrivals of clients at other brokers.
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

    /// Handles wills of a neighbour's clients.
    pub(super) fn heard_wills(&mut self, from: LinkId, told: WillsUpdate, now: Nanos) {
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

    /// Handles a guard's report: forwards it to its broker, or applies it if it is for this one.
    pub(super) fn heard_guard_report(&mut self, from: LinkId, left: GuardReport, now: Nanos) {
        if left.to != self.settings.id {
            let to = BTreeSet::from([left.to.clone()]);
            let (links, _) = self.reach.where_are(&to);
            match links.into_iter().find(|link| *link != from) {
                Some(link) => self.send_guard_report(link, left),
                // The broker is not reached any more; the report is stored until it is.
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
            self.clients
                .wills
                .inherit(GuardReport { published, ..left }, now);
        }
    }

    /// Sends a report in messages of bounded size, even over a link that does not carry yet.
    fn send_guard_report(&mut self, to: LinkId, left: GuardReport) {
        if !self.links.is_up(to) {
            return;
        }
        let GuardReport {
            to: whose,
            instance,
            lost,
            wills,
            published,
            moved,
        } = left;
        let part = |wills, published, moved| {
            Message::GuardReport(GuardReport {
                to: whose.clone(),
                instance,
                lost,
                wills,
                published,
                moved,
            })
        };
        // Clients that have moved are sent first, so that their wills are not published.
        for moved in in_batches(moved, arrival_size) {
            self.outputs.send(to, &part(Vec::new(), Vec::new(), moved));
        }
        for published in in_batches(published, ClientWill::size) {
            self.outputs
                .send(to, &part(Vec::new(), published, Vec::new()));
        }
        for wills in in_batches(wills, ClientWill::size) {
            self.outputs.send(to, &part(wills, Vec::new(), Vec::new()));
        }
    }

    /// The neighbours that are to guard the wills of this broker's clients, the parent first.
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

    /// Sends arrivals and wills to neighbours.
    pub(super) fn send_client_news(&mut self) {
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
    fn send_wills(&mut self, told: WillsUpdate) {
        let WillsUpdate {
            link,
            mut all,
            turn,
            add,
            remove,
        } = told;
        for (add, remove) in parts(all, add, remove, ClientWill::size, |client| {
            client.len() + 4
        }) {
            let message = Message::Wills {
                all: std::mem::take(&mut all),
                turn,
                add,
                remove,
            };
            self.outputs.send(link, &message);
        }
    }

    /// Updates for which guarded brokers the loss begins or ends.
    pub(super) fn look_after_wards(&mut self, now: Nanos) {
        let others = self.clients.wills.wards();
        let others = others.filter(|(id, _)| *id != self.settings.id);
        for ward in others.cloned().collect::<Vec<BrokerStart>>() {
            let near = self.links.to(&ward.0);
            let near = near.filter(|(_, link)| link.edge.carries());
            if let Some((link, up)) = near {
                let left = match ward.1 == up.instance {
                    true => self.clients.wills.found(&ward, now),
                    false => self.clients.wills.give_back(&ward, now),
                };
                if let Some(left) = left {
                    self.send_guard_report(link, left);
                }
                continue;
            }
            let (links, _) = self.reach.where_are(&BTreeSet::from([ward.0.clone()]));
            match links.first() {
                Some(link) => {
                    if let Some(left) = self.clients.wills.give_back(&ward, now) {
                        self.send_guard_report(*link, left);
                    }
                }
                None => self.clients.wills.lose(&ward, now),
            }
        }
    }

    /// Publishes the wills that are due of lost brokers.
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

/// Splits a list into batches for one message each.
fn in_batches<T>(all: Vec<T>, size: impl Fn(&T) -> usize) -> impl Iterator<Item = Vec<T>> {
    let parts = parts(false, all, Vec::<()>::new(), size, |()| 0);
    parts.into_iter().map(|(batch, _)| batch)
}
