//! What clients received, held against what they were to get.
//!
//! A session may be due several copies of a message that look alike: by itself,
//! as a member of groups, as a retained message. Which of them an arrival was
//! cannot always be told at once, so arrivals are assigned to copies by
//! augmenting paths: it is enough that all of them fit together.

use std::collections::HashSet;

use punctual_broker::Nanos;
use punctual_codec::{QoS, Version};

use super::{
    Content, Copy, Model, Publication, Source, Violation, member_copy, member_now, order_key,
    was_on_its_way,
};
use crate::wire::Delivered;
use crate::world::LinkId;

/// A message that a client received.
#[derive(Debug)]
pub(super) struct Arrival {
    session: usize,
    message: Delivered,
    v5: bool,
    at: Nanos,
    /// When the link on which it came was accepted, if the session still uses that link.
    since: Option<Nanos>,
    /// Index of the copy of the session that the message is taken for.
    copy: Option<usize>,
}

/// A copy that a received message can be taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    Group(usize),
    Copy(usize, usize),
}

/// Numbers of messages that have not arrived although they were expected, by what excuses it.
#[derive(Debug, Default)]
pub struct MissingMessages {
    /// With QoS 1 or 2, where the policy for full queues may have dropped them.
    pub droppable: usize,
    /// With QoS 0, which may be lost.
    pub unacknowledged: usize,
    example: Option<String>,
}

impl Arrival {
    /// Whether it says that what has arrived was not on its way to that session any more when that
    /// ended: another one has it, or it was begun with QoS 2, or nobody acknowledges it.
    pub(super) fn is_over_for(&self, session: usize) -> bool {
        self.session != session || self.message.qos != QoS::AtLeastOnce
    }

    /// Whether the received message can be that copy of that publication.
    fn is(&self, copy: &Copy, publication: &Publication) -> bool {
        let message = &self.message;
        if copy.qos != message.qos || copy.retain != message.retain {
            return false;
        }
        // What has expired is not sent for the first time.
        let late = |since: Nanos| publication.at < since && publication.expires <= since;
        if !message.dup && self.since.is_some_and(late) {
            return false;
        }
        if !self.v5 {
            return true;
        }
        let left = (publication.expires - self.at).as_secs_ceil();
        let expiry = match (publication.interval, message.expiry) {
            (None, None) => true,
            (Some(interval), Some(got)) => {
                u64::from(got) >= left
                    && got <= interval
                    && (got > 0 || interval == 0 || message.dup)
            }
            _ => false,
        };
        let alike = copy.ids == message.ids && copy.numbered == message.number.is_some();
        expiry && alike && message.properties == publication.properties
    }
}

impl Model {
    /// Notes a PUBLISH that a client received.
    ///
    /// # Errors
    /// If the message is not for the client, or not as it was published.
    pub fn delivered(
        &mut self,
        link: LinkId,
        message: &Delivered,
        version: Version,
        now: Nanos,
    ) -> Result<(), Violation> {
        let Some(at) = self.session_of(link) else {
            return Err("a message without a session".into());
        };
        let connection = self.connection_facts(link);
        let key = (message.topic.clone(), message.payload.clone());
        let session = &mut self.sessions[at];
        if message.dup {
            if !connection.is_none_or(|(_, resumed)| resumed) {
                return Err(format!(
                    "DUP on the first connection of a session: {message:?}"
                ));
            }
            if session.received.get(&message.packet_id) == Some(&key) {
                return Ok(());
            }
        }
        if let Some((source, number)) = message.number
            && !session
                .numbers
                .insert((message.topic.clone(), source, number))
        {
            return Err(format!(
                "{} received a number twice: {message:?}",
                session.client
            ));
        }
        let arrival = Arrival {
            session: at,
            message: message.clone(),
            v5: version.is_v5(),
            at: now,
            since: connection.map(|(since, _)| since),
            copy: None,
        };
        if message.qos != QoS::AtMostOnce {
            session.received.insert(message.packet_id, key.clone());
        }
        let arrivals = self.arrivals.entry(key.clone()).or_default();
        let number = arrivals.len();
        arrivals.push(arrival);
        let is_known = self.assign(&key, number, &mut HashSet::new())
            || self.leave_to_newcomer(at, &key) && self.assign(&key, number, &mut HashSet::new());
        if !is_known {
            let session = &self.sessions[at];
            let copies = session.copies.get(&key).map_or(&[][..], |copies| copies);
            let known: Vec<_> = copies
                .iter()
                .map(|copy| (copy, &self.publications[copy.publication]))
                .collect();
            return Err(format!(
                "{} received {message:?}; known {known:?}; subscriptions {:?}; arrivals {:?}",
                session.client, session.subscriptions, self.arrivals[&key],
            ));
        }
        let taken_for = self.arrivals[&key][number].copy.unwrap_or(0);
        let session = &self.sessions[at];
        let copy = session.copies[&key][taken_for].clone();
        let publication = &self.publications[copy.publication];
        // Replays have no order; empty messages, and those that were published
        // again, cannot be told apart.
        let mut alike = self.sessions[at].copies[&key].iter();
        let ordered = !publication.payload.0.is_empty()
            && alike.all(|other| {
                other.source != Source::Replay
                    && !self.may_be_left(other)
                    && other.publication == copy.publication
            });
        let session = &mut self.sessions[at];
        if ordered {
            let order = order_key(publication, copy.qos);
            let last = session.order.entry(order).or_insert(copy.publication);
            let before = &self.publications[*last];
            if *last > copy.publication {
                return Err(format!(
                    "{} received {publication:?} after {before:?}; copies {:?}",
                    session.client, session.copies[&key],
                ));
            }
            let later = *last < copy.publication;
            *last = copy.publication.max(*last);
            // And so are the numbers of one source.
            if let Some((source, number)) = message.number {
                let order = order_key(publication, copy.qos);
                let before = session.last_numbers.insert(order, (source, number));
                if later && before.is_some_and(|(other, last)| other == source && last >= number) {
                    return Err(format!(
                        "{} received number {number} after {before:?}: {message:?}",
                        session.client
                    ));
                }
            }
        }
        Ok(())
    }

    /// Gives a session a copy of a message that a member of its shared subscription may have left when its own
    /// session ended: the broker passes such messages on in slices, also to members that subscribed since.
    /// Returns whether there is a copy.
    fn leave_to_newcomer(&mut self, at: usize, key: &Content) -> bool {
        for number in 0..self.groups.len() {
            let group = &self.groups[number];
            let publication = &self.publications[group.publication];
            let is_of_it = publication.topic == key.0 && publication.payload == key.1;
            let members = group.members.iter().map(|(member, ..)| *member);
            let ended: Vec<usize> = members.filter(|it| self.sessions[*it].ended).collect();
            // Its subscription may have ended since.
            let member = member_now((at, &self.sessions[at]), group, publication)
                .or_else(|| group.members.iter().copied().find(|(it, ..)| *it == at));
            let Some(member) = member.filter(|_| is_of_it && !ended.is_empty()) else {
                continue;
            };
            let copy = member_copy(group.publication, Source::Left, member);
            let is_left = |it: &usize| was_on_its_way(group, publication, &self.arrivals, *it);
            // What has come to another member may have been another copy of the message.
            let mut tried = HashSet::from([Slot::Group(number)]);
            if ended.iter().any(is_left)
                || group
                    .arrival
                    .is_some_and(|it| self.assign(key, it, &mut tried))
            {
                let publication = &self.publications[copy.publication];
                self.sessions[at].add(publication, copy);
                return true;
            }
        }
        false
    }

    /// Finds a copy that a received message can be taken for, if need be by taking other received messages for
    /// other copies.
    fn assign(&mut self, key: &Content, number: usize, tried: &mut HashSet<Slot>) -> bool {
        let mut candidates = self.candidates(key, number);
        candidates.retain(|(slot, _)| tried.insert(*slot));
        let free = candidates
            .iter()
            .find(|(slot, copy)| self.holder(key, number, *slot, *copy).is_none());
        let found = match free {
            Some(free) => Some(*free),
            None => candidates.into_iter().find(|(slot, copy)| {
                self.holder(key, number, *slot, *copy)
                    .is_some_and(|other| self.assign(key, other, tried))
            }),
        };
        let Some((slot, copy)) = found else {
            return false;
        };
        self.hold(key, number, slot, copy);
        true
    }

    /// Takes a received message for a copy, instead of the copy that it was taken for before.
    fn hold(&mut self, key: &Content, number: usize, slot: Slot, copy: usize) {
        let at = self.arrivals[key][number].session;
        if let Some(before) = self.arrivals[key][number].copy {
            self.set_holder(key, at, before, None);
        }
        if let Slot::Group(group) = slot {
            self.groups[group].arrival = Some(number);
        }
        self.set_holder(key, at, copy, Some(number));
        if let Some(arrivals) = self.arrivals.get_mut(key) {
            arrivals[number].copy = Some(copy);
        }
    }

    fn set_holder(&mut self, key: &Content, session: usize, copy: usize, holder: Option<usize>) {
        if let Some(copies) = self.sessions[session].copies.get_mut(key) {
            let copy = &mut copies[copy];
            copy.arrival = holder;
            if let (Source::Group(group), None) = (copy.source, holder) {
                self.groups[group].arrival = None;
            }
        }
    }

    fn holder(&self, key: &Content, number: usize, slot: Slot, copy: usize) -> Option<usize> {
        match slot {
            Slot::Group(group) => self.groups[group].arrival,
            Slot::Copy(..) => {
                let session = self.arrivals[key][number].session;
                self.sessions[session].copies[key][copy].arrival
            }
        }
    }

    /// The copies that a received message can be taken for, the likeliest first.
    fn candidates(&self, key: &Content, number: usize) -> Vec<(Slot, usize)> {
        let arrival = &self.arrivals[key][number];
        let session = &self.sessions[arrival.session];
        let mut found: Vec<(usize, &Copy)> = session
            .copies
            .get(key)
            .into_iter()
            .flatten()
            .enumerate()
            .filter(|(_, copy)| {
                let publication = &self.publications[copy.publication];
                !publication.refused && arrival.is(copy, publication)
            })
            .collect();
        found.sort_by_key(|(_, copy)| {
            let publication = &self.publications[copy.publication];
            let last = session.order.get(&order_key(publication, copy.qos));
            let late = last.is_some_and(|last| *last > copy.publication);
            // What has to arrive comes first; a full queue may have dropped the
            // live copy, but not the replay.
            let required = match copy.source {
                Source::Group(group) => self.groups[group].required,
                _ => copy.required,
            };
            (
                late,
                !required,
                copy.source != Source::Replay,
                copy.publication,
            )
        });
        found
            .into_iter()
            .map(|(at, copy)| {
                let slot = match copy.source {
                    Source::Group(group) => Slot::Group(group),
                    _ => Slot::Copy(arrival.session, at),
                };
                (slot, at)
            })
            .collect()
    }

    fn connection_facts(&self, link: LinkId) -> Option<(Nanos, bool)> {
        let session = &self.sessions[self.session_of(link)?];
        let connection = session.connection.as_ref().filter(|c| c.link == link)?;
        Some((connection.since, connection.resumed))
    }

    /// Counts the messages that have not arrived although they were expected, where there is an excuse.
    ///
    /// # Errors
    /// Names a message that is missing without an excuse.
    pub fn missing(&mut self, now: Nanos) -> Result<MissingMessages, Violation> {
        let refuses = self.config.queue_full.refuses();
        let mut missing = MissingMessages::default();
        for (key, slot) in self.unmet(now) {
            if self.claim(&key, slot, now, &mut HashSet::new()) {
                continue;
            }
            let (session, at) = match slot {
                Slot::Copy(session, at) => (&self.sessions[session], at),
                Slot::Group(group) => {
                    let group = &self.groups[group];
                    let publication = &self.publications[group.publication];
                    return Err(format!("nobody received {publication:?}: {group:?}"));
                }
            };
            let copy = &session.copies[&key][at];
            let publication = &self.publications[copy.publication];
            let example = || format!("{} {publication:?} {copy:?}", session.client);
            if copy.qos == QoS::AtMostOnce {
                let link = session.connection.as_ref().map(|c| c.link);
                if copy.link == link {
                    missing.unacknowledged += 1;
                    missing.example.get_or_insert_with(example);
                }
            } else if copy.source == Source::Live && (!refuses || publication.publisher.is_none()) {
                missing.droppable += 1;
                missing.example.get_or_insert_with(example);
            } else {
                return Err(format!("never received: {}", example()));
            }
        }
        Ok(missing)
    }

    /// The copies that had to arrive and that no received message is taken for.
    fn unmet(&self, now: Nanos) -> Vec<(Content, Slot)> {
        let mut unmet = Vec::new();
        for (number, session) in self.sessions.iter().enumerate() {
            for (key, copies) in &session.copies {
                for (at, copy) in copies.iter().enumerate() {
                    let slot = Slot::Copy(number, at);
                    if copy.arrival.is_none() && self.is_due(key, slot, now) {
                        unmet.push((key.clone(), slot));
                    }
                }
            }
        }
        for (number, group) in self.groups.iter().enumerate() {
            let publication = &self.publications[group.publication];
            let key = (publication.topic.clone(), publication.payload.clone());
            if group.arrival.is_none() && self.is_due(&key, Slot::Group(number), now) {
                unmet.push((key, Slot::Group(number)));
            }
        }
        unmet
    }

    /// Whether a copy has to arrive, and nothing excuses that it does not.
    fn is_due(&self, key: &Content, slot: Slot, now: Nanos) -> bool {
        let (required, publication, takes) = match slot {
            Slot::Copy(session, at) => {
                let session = &self.sessions[session];
                let copy = &session.copies[key][at];
                let publication = &self.publications[copy.publication];
                let takes = session.takes(publication);
                (copy.required && !session.ended, publication, takes)
            }
            Slot::Group(group) => {
                let group = &self.groups[group];
                let publication = &self.publications[group.publication];
                let mut members = group.members.iter().map(|(at, ..)| &self.sessions[*at]);
                let takes = members.all(|session| session.takes(publication));
                (group.required, publication, takes)
            }
        };
        required && takes && publication.expires > now
    }

    /// Takes a received message for a copy that had to arrive, if one was taken for a copy that need not have
    /// arrived. When a message is received it is not always known which copies have to arrive.
    fn claim(&mut self, key: &Content, slot: Slot, now: Nanos, tried: &mut HashSet<usize>) -> bool {
        for number in 0..self.arrivals.get(key).map_or(0, Vec::len) {
            let mut candidates = self.candidates(key, number).into_iter();
            let Some((_, copy)) = candidates.find(|(other, _)| *other == slot) else {
                continue;
            };
            let arrival = &self.arrivals[key][number];
            let (session, Some(before)) = (arrival.session, arrival.copy) else {
                continue;
            };
            let left = match self.sessions[session].copies[key][before].source {
                Source::Group(group) => Slot::Group(group),
                _ => Slot::Copy(session, before),
            };
            if left == slot || !tried.insert(number) {
                continue;
            }
            self.hold(key, number, slot, copy);
            if !self.is_due(key, left, now) || self.claim(key, left, now, tried) {
                return true;
            }
            self.hold(key, number, left, before);
        }
        false
    }
}
