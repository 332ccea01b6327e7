//! A naive second opinion on what MQTT means: lists of sessions and
//! subscriptions, filters compared level by level, every message with a list
//! of those who are to have it. Nothing is shared with the broker but the
//! codec. The model is told what the broker consumed, in the broker's order,
//! and what clients received; it answers with what is wrong.
//!
//! Where the specification leaves a choice the model follows the broker's:
//! overlapping subscriptions give one copy with the highest QoS and all
//! identifiers; retain-as-published of any of them counts.

mod delivery;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use punctual_broker::{Config, Nanos};
use punctual_codec::packet::RetainHandling;
use punctual_codec::{
    Connect, Properties, PropertyId, PropertySet, Publish, QoS, ReasonCode, SubscribeOptions,
    Version,
};

use crate::wire::{Blob, forwarded};
use crate::world::LinkId;
use delivery::Arrival;

pub use delivery::MissingMessages;

/// Publisher, topic, stated urgency, and QoS of publication and delivery: messages for which all of
/// these are equal arrive in the order of their publication.
type OrderKey = (Option<usize>, String, String, QoS, QoS);

/// Topic and payload.
type Content = (String, Blob);

/// Says which rule the broker has broken.
pub type Violation = String;

/// An application message as it was published, once.
#[derive(Debug)]
pub struct Publication {
    topic: String,
    payload: Blob,
    qos: QoS,
    properties: Blob,
    at: Nanos,
    expires: Nanos,
    /// Message Expiry Interval of the publication, seconds.
    interval: Option<u32>,
    /// Number of the session that published it; `None` for wills.
    publisher: Option<usize>,
    /// Whether the broker refused it, so that no client may receive it.
    refused: bool,
    /// Whether any subscription matched it.
    matched: bool,
}

/// Why a session may get a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// It had subscribed when the message was published.
    Live,
    /// The message was retained when the session subscribed.
    Replay,
    /// It is a member of a shared subscription, of which one member gets the message: index of the group.
    Group(usize),
    /// The message was on its way to another member of a shared subscription, whose session has ended. It may
    /// come after newer messages.
    Left,
}

/// A copy of a message that a session is to get.
#[derive(Debug, Clone)]
struct Copy {
    publication: usize,
    source: Source,
    qos: QoS,
    retain: bool,
    ids: Vec<u32>,
    numbered: bool,
    /// Index of the received message that is taken for this copy, among those with its topic and
    /// payload.
    arrival: Option<usize>,
    /// Whether the copy must arrive; otherwise it may.
    required: bool,
    /// For QoS 0: the link of the session when the message was published.
    link: Option<LinkId>,
    /// For retained messages: the filter of the subscription that they were sent for.
    filter: String,
}

#[derive(Debug, Clone)]
struct Subscription {
    filter: String,
    share: Option<String>,
    options: SubscribeOptions,
    id: u32,
    /// Whether the subscription asks for numbers (`rt-delivery`).
    numbered: bool,
}

#[derive(Debug, Clone)]
struct Will {
    topic: String,
    payload: Blob,
    qos: QoS,
    retain: bool,
    properties: Blob,
    interval: Option<u32>,
    delay: u32,
}

#[derive(Debug)]
struct Connection {
    link: LinkId,
    since: Nanos,
    patience: Nanos,
    resumed: bool,
}

#[derive(Debug)]
struct Session {
    client: String,
    v5: bool,
    ended: bool,
    connection: Option<Connection>,
    expiry: u32,
    will: Option<Will>,
    subscriptions: Vec<Subscription>,
    /// Subscriptions whose retained messages may still be being sent.
    replays: Vec<Subscription>,
    /// Packet identifiers of QoS 2 messages of the client for which no PUBREL has come.
    incoming: HashSet<u16>,
    /// Copies of messages for this session, by topic and payload.
    copies: HashMap<Content, Vec<Copy>>,
    /// What the client last received with a packet identifier.
    received: HashMap<u16, Content>,
    /// The number of the last publication that the client received, for each order.
    order: HashMap<OrderKey, usize>,
    /// Topics, sources and numbers (`rt-delivery`) that the client has received; and the last number of
    /// each order.
    numbers: HashSet<(String, u32, u32)>,
    last_numbers: HashMap<OrderKey, (u32, u32)>,
    smallest_max_packet: u32,
}

/// A member of a shared subscription: number of its session; then QoS, retain flag, and subscription
/// identifier (0 for none) of the copy that it would get, and whether that copy is numbered.
type Member = (usize, QoS, bool, u32, bool);

/// A message for one member of a shared subscription.
#[derive(Debug)]
struct GroupCopy {
    publication: usize,
    /// Share name and filter of the subscription.
    of: (String, String),
    /// Whether the publication had the retain flag.
    retain: bool,
    members: Vec<Member>,
    /// Index of the received message that is taken for it.
    arrival: Option<usize>,
    required: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Will(usize),
    Expiry(usize),
}

/// The sessions, subscriptions and messages that follow from everything that happened, by the rules of MQTT.
#[derive(Debug)]
pub struct Model {
    config: Config,
    publications: Vec<Publication>,
    sessions: Vec<Session>,
    by_client: BTreeMap<String, usize>,
    by_link: HashMap<LinkId, usize>,
    /// The messages that may be the retained one of each topic, the latest last. There are several because the
    /// broker may have dropped a retained will for lack of room, which no client can see.
    retained: BTreeMap<String, Vec<usize>>,
    groups: Vec<GroupCopy>,
    arrivals: HashMap<Content, Vec<Arrival>>,
    due: BTreeSet<(Nanos, u64, Due)>,
    next_due: u64,
    due_of: HashMap<usize, Vec<(Nanos, u64, Due)>>,
    subscriptions: usize,
}

/// Whether a filter matches a topic, level by level as in section 4.7 of the MQTT specification.
pub fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let filter: Vec<&str> = filter.split('/').collect();
    let topic: Vec<&str> = topic.split('/').collect();
    for (at, level) in filter.iter().enumerate() {
        match (*level, topic.get(at)) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (name, Some(other)) if name == *other => {}
            _ => return false,
        }
    }
    filter.len() == topic.len()
}

/// Makes the copy of a message that a member of a shared subscription gets.
fn member_copy(publication: usize, source: Source, member: Member) -> Copy {
    let (_, qos, retain, id, numbered) = member;
    Copy {
        publication,
        source,
        qos,
        retain,
        ids: (id != 0).then_some(id).into_iter().collect(),
        numbered,
        arrival: None,
        required: false,
        link: None,
        filter: String::new(),
    }
}

/// Describes session number `at` as a member of a shared subscription at this time.
fn member_now(
    (at, session): (usize, &Session),
    group: &GroupCopy,
    publication: &Publication,
) -> Option<Member> {
    let (share, filter) = (Some(&group.of.0), &group.of.1);
    let mut own = session.subscriptions.iter();
    let own = own.find(|it| it.share.as_ref() == share && it.filter == *filter);
    let own = own.filter(|_| !session.ended)?;
    let retain = group.retain && own.options.retain_as_published;
    let qos = publication.qos.min(own.options.qos);
    Some((at, qos, retain, own.id, own.numbered))
}

/// Whether a message may have been on its way to that member of a group when its session ended.
fn was_on_its_way(
    group: &GroupCopy,
    publication: &Publication,
    arrivals: &HashMap<Content, Vec<Arrival>>,
    member: usize,
) -> bool {
    let content = (publication.topic.clone(), publication.payload.clone());
    let arrival = group.arrival.zip(arrivals.get(&content));
    let arrival = arrival.map(|(at, all)| &all[at]);
    !publication.refused && !arrival.is_some_and(|it| it.is_over_for(member))
}

impl Model {
    /// Whether a copy may be one that a member of its group has left, which may come behind others.
    fn may_be_left(&self, copy: &Copy) -> bool {
        let Source::Group(group) = copy.source else {
            return copy.source == Source::Left;
        };
        let mut members = self.groups[group].members.iter();
        members.any(|(member, ..)| self.sessions[*member].ended)
    }

    /// Creates the model of a broker with these settings, at time 0.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            publications: Vec::new(),
            sessions: Vec::new(),
            by_client: BTreeMap::new(),
            by_link: HashMap::new(),
            retained: BTreeMap::new(),
            groups: Vec::new(),
            arrivals: HashMap::new(),
            due: BTreeSet::new(),
            next_due: 0,
            due_of: HashMap::new(),
            subscriptions: 0,
        }
    }

    /// Lets time pass: publishes wills that are due, and ends sessions that expire.
    pub fn advance(&mut self, now: Nanos) {
        while let Some((at, order, due)) = self.due.first().copied()
            && at <= now
        {
            self.due.remove(&(at, order, due));
            match due {
                Due::Will(session) => self.publish_will(session, at),
                Due::Expiry(session) => self.end_session(session, at),
            }
        }
    }

    /// Notes that the broker accepted a CONNECT. Returns the number of the session and the value that
    /// Session Present must have.
    pub fn connected(&mut self, link: LinkId, connect: &Connect<'_>, now: Nanos) -> (usize, bool) {
        let client = connect.client_id.to_owned();
        if let Some(session) = self.by_client.get(&client).copied() {
            if let Some(connection) = &self.sessions[session].connection {
                let old = connection.link;
                self.connection_ended(old, true, now);
            }
            if connect.clean_start && !self.sessions[session].ended {
                self.end_session(session, now);
            }
        }
        let number = |id| connect.properties.number(id);
        let present = self.by_client.contains_key(&client);
        let v5 = connect.version.is_v5();
        let at = match self.by_client.get(&client) {
            Some(at) => *at,
            None => {
                self.by_client.insert(client.clone(), self.sessions.len());
                self.sessions.push(Session {
                    client,
                    v5,
                    ended: false,
                    connection: None,
                    expiry: 0,
                    will: None,
                    subscriptions: Vec::new(),
                    replays: Vec::new(),
                    incoming: HashSet::new(),
                    copies: HashMap::new(),
                    received: HashMap::new(),
                    order: HashMap::new(),
                    numbers: HashSet::new(),
                    last_numbers: HashMap::new(),
                    smallest_max_packet: u32::MAX,
                });
                self.sessions.len() - 1
            }
        };
        self.forget_due(at);
        let wanted = if v5 {
            number(PropertyId::SessionExpiryInterval).unwrap_or(0)
        } else if connect.clean_start {
            0
        } else {
            u32::MAX
        };
        let session = &mut self.sessions[at];
        session.v5 = v5;
        session.expiry = wanted.min(self.config.limits.max_session_expiry);
        session.smallest_max_packet = session
            .smallest_max_packet
            .min(number(PropertyId::MaximumPacketSize).unwrap_or(u32::MAX));
        session.connection = Some(Connection {
            link,
            since: now,
            patience: Nanos(u64::from(connect.keep_alive) * 1_500_000_000),
            resumed: present,
        });
        session.will = connect.will.map(|will| Will {
            topic: will.topic.to_owned(),
            payload: Blob(will.payload.to_vec()),
            qos: will.qos,
            retain: will.retain,
            properties: Blob(forwarded(will.properties)),
            interval: will.properties.number(PropertyId::MessageExpiryInterval),
            delay: will
                .properties
                .number(PropertyId::WillDelayInterval)
                .unwrap_or(0),
        });
        self.by_link.insert(link, at);
        (at, present)
    }

    /// Whether the broker has attached a session to the link.
    pub fn is_connected(&self, link: LinkId) -> bool {
        self.session_of(link).is_some_and(|s| {
            self.sessions[s]
                .connection
                .as_ref()
                .is_some_and(|c| c.link == link)
        })
    }

    fn session_of(&self, link: LinkId) -> Option<usize> {
        self.by_link.get(&link).copied()
    }

    /// Time without packets from the client after which the broker closes the link; 0 for never.
    pub fn patience(&self, link: LinkId) -> Nanos {
        self.session_of(link)
            .and_then(|s| self.sessions[s].connection.as_ref())
            .map_or(Nanos(0), |connection| connection.patience)
    }

    /// Notes that a link is closed; `with_will` says whether the will is to be published.
    pub fn connection_ended(&mut self, link: LinkId, with_will: bool, now: Nanos) {
        let Some(at) = self.session_of(link) else {
            return;
        };
        let session = &mut self.sessions[at];
        if session.connection.as_ref().is_none_or(|c| c.link != link) {
            return;
        }
        session.connection = None;
        // What was being replayed may or may not go on.
        for copy in session.copies.values_mut().flatten() {
            copy.required &= copy.source != Source::Replay && copy.qos != QoS::AtMostOnce;
        }
        if !with_will {
            session.will = None;
        }
        if session.expiry == 0 {
            self.end_session(at, now);
            return;
        }
        let expiry = session.expiry;
        let delay = session.will.as_ref().map(|will| will.delay.min(expiry));
        match delay {
            Some(0) => self.publish_will(at, now),
            Some(delay) => self.schedule(now, delay, Due::Will(at), at),
            None => {}
        }
        if expiry != u32::MAX {
            self.schedule(now, expiry, Due::Expiry(at), at);
        }
    }

    fn schedule(&mut self, now: Nanos, secs: u32, due: Due, session: usize) {
        self.next_due += 1;
        let entry = (now + Nanos::from_secs(u64::from(secs)), self.next_due, due);
        self.due.insert(entry);
        self.due_of.entry(session).or_default().push(entry);
    }

    fn forget_due(&mut self, session: usize) {
        for entry in self.due_of.remove(&session).unwrap_or_default() {
            self.due.remove(&entry);
        }
    }

    fn publish_will(&mut self, session: usize, now: Nanos) {
        let Some(will) = self.sessions[session].will.take() else {
            return;
        };
        self.publish(
            Publication {
                topic: will.topic,
                payload: will.payload,
                qos: will.qos,
                properties: will.properties,
                at: now,
                expires: expires(will.interval, now),
                interval: will.interval,
                publisher: None,
                refused: false,
                matched: false,
            },
            will.retain,
            now,
        );
    }

    /// Ends the sessions of these clients, because their queues overflowed at the broker. The order
    /// is not known, so each may get the wills of the others.
    pub fn sessions_overflowed(&mut self, clients: &[String], now: Nanos) {
        let sessions = clients.iter().map(|client| self.by_client.get(client));
        let sessions: Vec<usize> = sessions.flatten().copied().collect();
        for session in &sessions {
            self.publish_will(*session, now);
        }
        for session in sessions {
            self.end_session(session, now);
        }
    }

    /// The client at the other end of a link.
    pub fn client(&self, link: LinkId) -> Option<&str> {
        let session = &self.sessions[self.session_of(link)?];
        Some(&session.client)
    }

    /// Clients that have a session.
    pub fn clients(&self) -> impl Iterator<Item = &str> {
        self.by_client.keys().map(String::as_str)
    }

    fn end_session(&mut self, at: usize, now: Nanos) {
        self.publish_will(at, now);
        self.forget_due(at);
        let session = &mut self.sessions[at];
        session.ended = true;
        session.connection = None;
        self.subscriptions -= session.subscriptions.len();
        session.subscriptions.clear();
        self.by_client.remove(&session.client);
        for group in &mut self.groups {
            // It may have been chosen.
            group.required &= !group.members.iter().any(|(member, ..)| *member == at);
        }
        self.leave_to_others(at);
    }

    /// Lets other members of shared subscriptions get the messages that were on their way to a session that
    /// has ended, whether they arrived there or not. Members that subscribed later may get them, too.
    fn leave_to_others(&mut self, ended: usize) {
        for group in &mut self.groups {
            if !group.members.iter().any(|(member, ..)| *member == ended) {
                continue;
            }
            let publication = &self.publications[group.publication];
            if !was_on_its_way(group, publication, &self.arrivals, ended) {
                continue;
            }
            for (at, session) in self.sessions.iter_mut().enumerate() {
                let Some(member) = member_now((at, session), group, publication) else {
                    continue;
                };
                let copy = member_copy(group.publication, Source::Left, member);
                session.add(publication, copy);
                // From there it may go on.
                if !group.members.iter().any(|(member, ..)| *member == at) {
                    group.members.push(member);
                }
            }
        }
    }

    /// Notes a DISCONNECT; returns whether it is valid.
    pub fn disconnect(
        &mut self,
        link: LinkId,
        reason: ReasonCode,
        expiry: Option<u32>,
        now: Nanos,
    ) {
        let Some(at) = self.session_of(link) else {
            return;
        };
        let session = &mut self.sessions[at];
        let mut with_will = reason != ReasonCode::Success;
        match expiry {
            // A protocol error, as if the connection was lost.
            Some(expiry) if expiry != 0 && session.expiry == 0 => with_will = true,
            Some(expiry) => session.expiry = expiry.min(self.config.limits.max_session_expiry),
            None => {}
        }
        self.connection_ended(link, with_will, now);
    }

    /// Notes a PUBLISH of a client, with the topic instead of an alias; `refused` says whether the broker
    /// refused it. Returns the number of the publication, or `None` if the packet repeats a QoS 2 one.
    pub fn published(
        &mut self,
        link: LinkId,
        publish: &Publish<'_>,
        refused: bool,
        now: Nanos,
    ) -> Option<usize> {
        let at = self.session_of(link)?;
        let session = &mut self.sessions[at];
        if publish.qos == QoS::ExactlyOnce {
            if session.incoming.contains(&publish.packet_id) {
                return None;
            }
            if !refused {
                session.incoming.insert(publish.packet_id);
            }
        }
        let interval = publish.properties.number(PropertyId::MessageExpiryInterval);
        let publication = Publication {
            topic: publish.topic.to_owned(),
            payload: Blob(publish.payload.to_vec()),
            qos: publish.qos,
            properties: Blob(forwarded(publish.properties)),
            at: now,
            expires: expires(interval, now),
            interval,
            publisher: Some(at),
            refused,
            matched: false,
        };
        Some(self.publish(publication, publish.retain, now))
    }

    /// Notes a PUBREL of a client.
    pub fn released(&mut self, link: LinkId, packet_id: u16) {
        if let Some(at) = self.session_of(link) {
            self.sessions[at].incoming.remove(&packet_id);
        }
    }

    fn publish(&mut self, mut publication: Publication, retain: bool, now: Nanos) -> usize {
        let number = self.publications.len();
        let strict = publication.publisher.is_some() && self.config.queue_full.refuses();
        let mut groups: BTreeMap<(String, String), GroupCopy> = BTreeMap::new();
        for (at, session) in self.sessions.iter_mut().enumerate() {
            let matching: Vec<&Subscription> = session
                .subscriptions
                .iter()
                .filter(|s| matches(&s.filter, &publication.topic))
                .collect();
            publication.matched |= !matching.is_empty();
            for subscription in &matching {
                if let Some(share) = &subscription.share {
                    let key = (share.clone(), subscription.filter.clone());
                    let group = groups.entry(key.clone()).or_insert_with(|| GroupCopy {
                        publication: number,
                        of: key,
                        retain,
                        members: Vec::new(),
                        arrival: None,
                        required: strict && !publication.refused,
                    });
                    let options = subscription.options;
                    let qos = publication.qos.min(options.qos);
                    let retain = retain && options.retain_as_published;
                    let numbered = subscription.numbered;
                    group
                        .members
                        .push((at, qos, retain, subscription.id, numbered));
                }
            }
            let plain: Vec<&&Subscription> =
                matching.iter().filter(|s| s.share.is_none()).collect();
            let own = publication.publisher == Some(at);
            if plain.is_empty() || (own && plain.iter().all(|s| s.options.no_local)) {
                continue;
            }
            let qos = plain
                .iter()
                .map(|s| s.options.qos)
                .max()
                .unwrap_or_default();
            let mut ids: Vec<u32> = plain.iter().map(|s| s.id).filter(|id| *id != 0).collect();
            ids.sort_unstable();
            let qos = publication.qos.min(qos);
            let link = session.connection.as_ref().map(|c| c.link);
            let copy = Copy {
                publication: number,
                source: Source::Live,
                qos,
                retain: retain && plain.iter().any(|s| s.options.retain_as_published),
                ids,
                numbered: plain.iter().any(|s| s.numbered),
                arrival: None,
                required: !publication.refused && (qos != QoS::AtMostOnce || link.is_some()),
                link,
                filter: String::new(),
            };
            session.add(&publication, copy);
        }
        for (_, mut group) in groups {
            // With QoS 0 anything may happen to a member.
            let mut members = group.members.iter();
            group.required &= members.all(|(_, qos, ..)| *qos != QoS::AtMostOnce);
            let source = Source::Group(self.groups.len());
            for member in &group.members {
                let copy = member_copy(number, source, *member);
                self.sessions[member.0].add(&publication, copy);
            }
            self.groups.push(group);
        }
        if retain && !publication.refused {
            self.retain(number, &publication, now);
        }
        self.publications.push(publication);
        number
    }

    /// Stores a retained message. Subscriptions whose retained messages are being sent may get it, and need
    /// not get the one that it replaces.
    fn retain(&mut self, number: usize, publication: &Publication, now: Nanos) {
        let topic = &publication.topic;
        if publication.publisher.is_some() {
            self.retained.remove(topic);
        }
        if !publication.payload.0.is_empty() {
            let candidates = self.retained.entry(topic.clone()).or_default();
            candidates.push(number);
        }
        for session in &mut self.sessions {
            for copy in session.copies.values_mut().flatten() {
                copy.required &= copy.source != Source::Replay
                    || self.publications[copy.publication].topic != *topic;
            }
            if publication.payload.0.is_empty() || publication.expires <= now {
                continue;
            }
            for replay in session.replays.clone() {
                if !matches(&replay.filter, topic) {
                    continue;
                }
                let copy = Copy {
                    publication: number,
                    source: Source::Replay,
                    qos: publication.qos.min(replay.options.qos),
                    retain: true,
                    ids: (replay.id != 0).then_some(replay.id).into_iter().collect(),
                    numbered: replay.numbered,
                    arrival: None,
                    required: false,
                    link: None,
                    filter: replay.filter,
                };
                session.add(publication, copy);
            }
        }
    }

    /// Clients to which retained messages for a subscription may still be on their way.
    pub fn replaying(&self) -> Vec<String> {
        let sessions = self.by_client.values().map(|at| &self.sessions[*at]);
        sessions
            .filter(|session| !session.replays.is_empty())
            .map(|session| session.client.clone())
            .collect()
    }

    /// Notes that all retained messages for the subscriptions of a client have been sent.
    pub fn replayed(&mut self, client: &str) {
        if let Some(at) = self.by_client.get(client) {
            self.sessions[*at].replays.clear();
        }
    }

    /// Notes one filter of a SUBSCRIBE; returns the reason code that SUBACK must have for it.
    pub fn subscribed(
        &mut self,
        link: LinkId,
        filter: &str,
        options: SubscribeOptions,
        id: u32,
        numbered: bool,
        now: Nanos,
    ) -> u8 {
        let Some(at) = self.session_of(link) else {
            return 0x80;
        };
        let limits = &self.config.limits;
        let (share, plain) = punctual_codec::topic::split_share(filter);
        let session = &mut self.sessions[at];
        let known = session
            .subscriptions
            .iter_mut()
            .find(|s| s.filter == plain && s.share.as_deref() == share);
        let new = known.is_none();
        let quota = if session.v5 { 0x97 } else { 0x80 };
        match known {
            Some(known) => (known.options, known.id, known.numbered) = (options, id, numbered),
            None => {
                if session.subscriptions.len() >= limits.max_subscriptions_per_session
                    || self.subscriptions >= limits.max_subscriptions
                {
                    return quota;
                }
                self.subscriptions += 1;
                session.subscriptions.push(Subscription {
                    filter: plain.to_owned(),
                    share: share.map(str::to_owned),
                    options,
                    id,
                    numbered,
                });
            }
        }
        let replay = match options.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => new,
            RetainHandling::DoNotSend => false,
        };
        if share.is_none() && replay {
            session.end_replays(plain);
            session.replays.push(Subscription {
                filter: plain.to_owned(),
                share: None,
                options,
                id,
                numbered,
            });
            for (topic, number, sure) in self
                .retained
                .iter()
                .flat_map(|(topic, all)| all.iter().map(move |n| (topic, n, all.len() == 1)))
            {
                let publication = &self.publications[*number];
                let sure = sure && publication.publisher.is_some();
                let own = publication.publisher == Some(at) && options.no_local;
                if !matches(plain, topic) || publication.expires <= now || own {
                    continue;
                }
                let session = &mut self.sessions[at];
                let copy = Copy {
                    publication: *number,
                    source: Source::Replay,
                    qos: publication.qos.min(options.qos),
                    retain: true,
                    ids: (id != 0).then_some(id).into_iter().collect(),
                    numbered,
                    arrival: None,
                    required: sure,
                    link: session.connection.as_ref().map(|c| c.link),
                    filter: plain.to_owned(),
                };
                session.add(publication, copy);
            }
        }
        options.qos as u8
    }

    /// Notes one filter of an UNSUBSCRIBE; returns the reason code that UNSUBACK must have for it.
    pub fn unsubscribed(&mut self, link: LinkId, filter: &str) -> u8 {
        let Some(at) = self.session_of(link) else {
            return 0x80;
        };
        let (share, plain) = punctual_codec::topic::split_share(filter);
        let session = &mut self.sessions[at];
        let found = session
            .subscriptions
            .iter()
            .position(|s| s.filter == plain && s.share.as_deref() == share);
        let Some(found) = found else {
            return ReasonCode::NoSubscriptionExisted.byte();
        };
        session.subscriptions.remove(found);
        self.subscriptions -= 1;
        if share.is_none() {
            session.end_replays(plain);
        }
        ReasonCode::Success.byte()
    }

    /// Checks the reason code with which the broker acknowledged a publication.
    ///
    /// # Errors
    /// If the broker must not answer with that code.
    pub fn acknowledged(
        &self,
        number: usize,
        reason: ReasonCode,
        version: Version,
    ) -> Result<(), Violation> {
        let publication = &self.publications[number];
        let right = match reason {
            ReasonCode::Success => {
                !publication.refused && (publication.matched || !version.is_v5())
            }
            ReasonCode::NoMatchingSubscribers => !publication.refused && !publication.matched,
            ReasonCode::QuotaExceeded => publication.refused,
            _ => false,
        };
        if right {
            Ok(())
        } else {
            Err(format!("{reason} for {publication:?}"))
        }
    }
}

impl Session {
    /// Whether a message fits into each Maximum Packet Size that the client has announced.
    fn takes(&self, publication: &Publication) -> bool {
        let size =
            publication.topic.len() + publication.payload.0.len() + publication.properties.0.len();
        // Room for the header, and for a few identifiers.
        size + 60 <= self.smallest_max_packet as usize
    }

    fn add(&mut self, publication: &Publication, copy: Copy) {
        let key = (publication.topic.clone(), publication.payload.clone());
        self.copies.entry(key).or_default().push(copy);
    }

    /// Forgets that retained messages for a filter are being sent: the client has subscribed again or unsubscribed.
    fn end_replays(&mut self, filter: &str) {
        self.replays.retain(|replay| replay.filter != filter);
        for copy in self.copies.values_mut().flatten() {
            copy.required &= copy.source != Source::Replay || copy.filter != filter;
        }
    }
}

fn order_key(publication: &Publication, qos: QoS) -> OrderKey {
    let Publication {
        publisher, topic, ..
    } = publication;
    let properties = Properties::check(&publication.properties.0, PropertySet::PUBLISH);
    let user = properties.unwrap_or_default();
    let stated = user
        .user()
        .filter(|(key, _)| *key == "priority" || key.starts_with("rt-"))
        .map(|(key, value)| format!("{key}={value},"))
        .collect();
    (*publisher, topic.clone(), stated, publication.qos, qos)
}

fn expires(interval: Option<u32>, now: Nanos) -> Nanos {
    interval.map_or(Nanos::MAX, |secs| now + Nanos::from_secs(u64::from(secs)))
}
