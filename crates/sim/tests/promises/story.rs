//! One run: clients, their actions, and the checks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use punctual_broker::{Admission, Config, ConnMeta, FilterVerdict, Nanos, Policing};
use punctual_codec::packet::RetainHandling;
use punctual_codec::{
    Connect, Disconnect, Packet, Properties, PropertyBuf, PropertyId, Publish, QoS, ReasonCode,
    Split, Subscribe, SubscribeOptions, Unsubscribe, Version, split,
};
use punctual_manager::{Client, FlowView, Publication, Quota, Settings, Star, State};
use punctual_model::wire::Transport;
use punctual_model::{Answer, Rng, Status};
use punctual_sim::{LinkId, LinkProfile, World};

use crate::desk::{Office, Shared, as_carried, call_of, decide};

const MS: u64 = 1_000_000;
/// Number of clients that act at random, and of clients that send as declared.
const WILD: usize = 5;
const STEADY: usize = 2;
const STEPS: usize = 60;
const TOPICS: [&str; 4] = ["a", "b", "b/c", "d"];
const FILTERS: [&str; 6] = ["a", "b/#", "+", "#", "$share/g/a", "d"];
const DEADLINES: [&str; 6] = ["900us", "1500us", "2ms", "4ms", "20ms", "100ms"];
/// Most flows of one session.
const PER_SESSION: usize = 3;
const TICK: Nanos = Nanos(500 * MS);

/// Numbers of events, so that a test in which nothing happened fails.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) decisions: u64,
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
    /// Acknowledgements that contained an answer of the manager.
    pub(crate) answers: u64,
    /// Flows that were restored after a restart.
    pub(crate) restored: u64,
    /// Messages of clients that send as declared.
    pub(crate) conforming: u64,
}

impl Summary {
    pub(crate) fn add(&mut self, other: &Self) {
        self.decisions += other.decisions;
        self.admitted += other.admitted;
        self.rejected += other.rejected;
        self.answers += other.answers;
        self.restored += other.restored;
        self.conforming += other.conforming;
    }
}

/// Runs a seed; panics if a check fails.
pub(crate) fn run(seed: u64, tell: bool) -> Summary {
    let mut story = Story::new(seed, tell);
    for _ in 0..STEPS {
        story.step();
    }
    story.end();
    story.summary
}

/// A client.
struct Peer {
    id: String,
    link: Option<LinkId>,
    host: u8,
    buffer: Vec<u8>,
    next_id: u16,
    /// Topics and filters whose PUBLISH or SUBSCRIBE is not answered yet, by packet identifier.
    waiting: BTreeMap<u16, String>,
    /// For each topic, the last decision that the client has received.
    heard: BTreeMap<String, usize>,
    /// Whether the client's listener refuses rejected messages.
    refuse: Option<bool>,
    steady: Option<Steady>,
}

/// Timing of a client that sends as declared.
#[derive(Clone, Copy)]
struct Steady {
    period: u64,
    jitter: u64,
    /// The nominal release of the next message, and the time at which it is sent.
    nominal: Nanos,
    at: Nanos,
}

struct Story {
    rng: Rng,
    tell: bool,
    settings: Settings,
    refuse: bool,
    shards: u16,
    office: Shared,
    world: World,
    peers: Vec<Peer>,
    next_tick: Nanos,
    /// When flows of clients that have not returned since the restart are removed.
    give_up: Option<Nanos>,
    summary: Summary,
}

impl Story {
    fn new(seed: u64, tell: bool) -> Self {
        let mut rng = Rng::new(seed);
        let settings = settings(&mut rng);
        let shards = rng.within(1..=2) as u16;
        let refuse = rng.chance(30);
        let office = Office::open(settings.clone(), shards);
        let world = world(&office, &mut rng, refuse, shards);
        let peers = (0..WILD + STEADY).map(|n| Peer {
            id: match n < WILD {
                true => format!("w{n}"),
                false => format!("s{n}"),
            },
            link: None,
            host: 0,
            buffer: Vec::new(),
            next_id: 0,
            waiting: BTreeMap::new(),
            heard: BTreeMap::new(),
            refuse: None,
            steady: None,
        });
        Self {
            tell,
            settings,
            refuse,
            shards,
            office,
            world,
            peers: peers.collect(),
            next_tick: TICK,
            give_up: None,
            summary: Summary::default(),
            rng,
        }
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        if self.tell {
            eprintln!("{:>12} us  {what}", self.world.now().0 / 1000);
        }
    }

    fn step(&mut self) {
        let peer = self.rng.below(WILD as u64) as usize;
        match self.rng.below(100) {
            0..30 => self.publish(peer),
            30..50 => self.subscribe(peer),
            50..57 => self.unsubscribe(peer),
            57..65 => self.disconnect(peer, None),
            65..70 => self.cut(peer),
            70..76 => self.connect(peer),
            76..84 => self.steady(),
            84..89 => self.reserve(),
            89..93 => self.remove(),
            93..96 => self.restart(),
            _ => {
                let pause = self.rng.within(1..=2_000) * MS;
                self.pass(Nanos(pause));
            }
        }
        let pause = self.rng.within(1..=30) * MS;
        self.pass(Nanos(pause));
        self.agree();
    }

    /// Advances time: steady clients send, and the desk re-examines rejected flows.
    fn pass(&mut self, time: Nanos) {
        let until = self.world.now() + time;
        loop {
            let due = self.peers.iter().enumerate().filter_map(|(n, peer)| {
                peer.link?;
                Some((peer.steady?.at, n))
            });
            let due = due.min();
            let tick = self.next_tick;
            match due {
                Some((at, peer)) if at <= tick && at <= until => {
                    self.run_until(at);
                    self.beat(peer);
                }
                _ if tick <= until => {
                    self.run_until(tick);
                    self.tick();
                }
                _ => break,
            }
        }
        self.run_until(until);
    }

    fn run_until(&mut self, until: Nanos) {
        self.world.run_until(until);
        for peer in 0..self.peers.len() {
            self.hear(peer);
        }
    }

    fn tick(&mut self) {
        self.next_tick = self.world.now() + TICK;
        let now = self.world.now();
        {
            let mut office = self.office.borrow_mut();
            office.manager.reconsider(3);
            if self.give_up.is_some_and(|at| at <= now) {
                self.give_up = None;
                office.manager.give_up_restored();
            }
            office.check();
        }
        self.conclude();
    }

    /// Passes the manager's changes to the shards.
    fn conclude(&mut self) {
        let changes = self.office.borrow_mut().manager.take_changes();
        for change in changes {
            for shard in 0..self.shards {
                let call = call_of(&self.office, change.clone());
                self.world.call(shard, call);
            }
        }
    }

    fn connect(&mut self, n: usize) {
        if self.peers[n].link.is_some() {
            self.cut(n);
        }
        let resume = self.rng.chance(50);
        let mut properties = PropertyBuf::new();
        let expiry = *self.rng.pick(&[0, 1, 3]);
        properties.push_number(PropertyId::SessionExpiryInterval, expiry);
        let peer = &self.peers[n];
        if peer.steady.is_none() && self.rng.chance(20) {
            properties.push_user("rt-deadline", "20ms").unwrap();
            properties.push_user("rt-period", "20ms").unwrap();
        }
        // The client sometimes connects from another host, so that its flows use other paths.
        let host = match peer.host > 0 && self.rng.chance(60) {
            true => peer.host,
            false => self.rng.within(1..=6) as u8,
        };
        let peer = &mut self.peers[n];
        peer.refuse = *self.rng.pick(&[None, None, Some(true), Some(false)]);
        let meta = ConnMeta {
            peer: Some(SocketAddr::new(address(host), 1000 + n as u16)),
            allow_anonymous: true,
            nonce: u128::from(self.rng.any()).to_be_bytes(),
            refuse: peer.refuse,
            ..ConnMeta::default()
        };
        let profile = LinkProfile {
            jitter: Nanos(20_000),
            ..LinkProfile::default()
        };
        let shard = self.rng.below(self.shards.into()) as u16;
        let link = self.world.connect_with(shard, profile, meta);
        let connect = Connect {
            version: Version::V5,
            clean_start: !resume,
            keep_alive: 0,
            client_id: &peer.id,
            will: None,
            username: None,
            password: None,
            properties: properties.as_properties(),
        };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).unwrap();
        self.world.write(link, &bytes);
        peer.link = Some(link);
        peer.host = host;
        peer.buffer.clear();
        peer.waiting.clear();
        if !resume {
            peer.heard.clear();
        }
        self.say(format_args!(
            "{} connects from host {host}, resume {resume}, expiry {expiry}",
            self.peers[n].id
        ));
    }

    fn cut(&mut self, n: usize) {
        if let Some(link) = self.peers[n].link.take() {
            self.say(format_args!("{} is cut off", self.peers[n].id));
            self.world.cut(link, Some(Nanos(MS)));
        }
    }

    fn disconnect(&mut self, n: usize, expiry: Option<u32>) {
        let Some(link) = self.peers[n].link.take() else {
            return;
        };
        self.say(format_args!("{} disconnects", self.peers[n].id));
        let mut properties = PropertyBuf::new();
        if let Some(expiry) = expiry {
            properties.push_number(PropertyId::SessionExpiryInterval, expiry);
        }
        let packet = Packet::Disconnect(Disconnect {
            reason: ReasonCode::Success,
            properties: properties.as_properties(),
        });
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        self.world.write(link, &bytes);
    }

    /// The connection of a client, which is opened if there is none.
    fn linked(&mut self, n: usize) -> LinkId {
        loop {
            if let Some(link) = self.peers[n].link {
                return link;
            }
            self.connect(n);
        }
    }

    fn publish(&mut self, n: usize) {
        self.linked(n);
        let topic = *self.rng.pick(&TOPICS);
        let mut stated = Vec::new();
        if self.rng.chance(85) {
            stated.push(("rt-deadline", *self.rng.pick(&DEADLINES)));
            if self.rng.chance(90) {
                stated.push(("rt-period", *self.rng.pick(&["2ms", "5ms", "20ms"])));
            }
            if self.rng.chance(20) {
                stated.push(("rt-priority", *self.rng.pick(&["0", "3", "7"])));
            }
            if self.rng.chance(30) {
                stated.push(("rt-size", *self.rng.pick(&["60", "2000"])));
            }
            if self.rng.chance(20) {
                stated.push(("rt-jitter", "500us"));
            }
        }
        let qos = *self
            .rng
            .pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        let size = self.rng.within(1..=80) as usize;
        self.send(n, topic, qos, &stated, size);
    }

    fn send(&mut self, n: usize, topic: &str, qos: QoS, stated: &[(&str, &str)], size: usize) {
        let link = self.linked(n);
        let mut properties = PropertyBuf::new();
        for (key, value) in stated {
            properties.push_user(key, value).unwrap();
        }
        self.say(format_args!(
            "{} publishes {topic} {qos:?} {stated:?} {size}",
            self.peers[n].id
        ));
        let peer = &mut self.peers[n];
        let packet_id = match qos {
            QoS::AtMostOnce => 0,
            _ => peer.id(),
        };
        if qos != QoS::AtMostOnce {
            peer.waiting.insert(packet_id, topic.to_owned());
        }
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id,
            properties: properties.as_properties(),
            payload: &vec![0; size],
        };
        let mut bytes = Vec::new();
        publish.encode(Version::V5, &mut bytes).unwrap();
        self.world.write(link, &bytes);
    }

    fn subscribe(&mut self, n: usize) {
        let link = self.linked(n);
        let filter = *self.rng.pick(&FILTERS);
        let mut properties = PropertyBuf::new();
        if self.rng.chance(30) {
            let deadline = *self.rng.pick(&DEADLINES);
            properties.push_user("rt-deadline", deadline).unwrap();
        }
        self.say(format_args!("{} subscribes to {filter}", self.peers[n].id));
        let peer = &mut self.peers[n];
        let id = peer.id();
        peer.waiting.insert(id, filter.to_owned());
        let options = SubscribeOptions {
            qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        let mut bytes = Vec::new();
        let filters = &[(filter, options)];
        Subscribe::put(
            id,
            properties.as_properties(),
            filters,
            Version::V5,
            &mut bytes,
        )
        .unwrap();
        self.world.write(link, &bytes);
    }

    fn unsubscribe(&mut self, n: usize) {
        let link = self.linked(n);
        let filter = *self.rng.pick(&FILTERS);
        let id = self.peers[n].id();
        let mut bytes = Vec::new();
        Unsubscribe::put(id, Properties::EMPTY, &[filter], Version::V5, &mut bytes).unwrap();
        self.world.write(link, &bytes);
    }

    /// A steady client starts or stops sending.
    fn steady(&mut self) {
        let n = WILD + self.rng.below(STEADY as u64) as usize;
        if self.peers[n].steady.take().is_some() {
            self.disconnect(n, Some(0));
            return;
        }
        let period = *self.rng.pick(&[4, 10, 25]) * MS;
        let jitter = self.rng.below(2) * MS;
        let nominal = self.world.now() + Nanos(5 * MS);
        self.peers[n].steady = Some(Steady {
            period,
            jitter,
            nominal,
            at: nominal,
        });
        self.connect(n);
    }

    /// A steady client sends: one period after the nominal release of its last message, delayed by
    /// at most its jitter.
    fn beat(&mut self, n: usize) {
        let Some(steady) = self.peers[n].steady else {
            return;
        };
        let topic = format!("steady/{n}");
        let ms = |nanos: u64| format!("{}ms", nanos / MS);
        let stated = [
            ("rt-period", &*ms(steady.period)),
            ("rt-deadline", &*ms(2 * steady.period)),
            ("rt-jitter", &*format!("{}ns", steady.jitter)),
            ("rt-size", "40"),
        ];
        let qos = *self.rng.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce]);
        self.send(n, &topic, qos, &stated, 40);
        let nominal = steady.nominal + Nanos(steady.period);
        // Messages stay in order, whatever the jitter.
        let at = nominal + Nanos(self.rng.below(steady.jitter + 1));
        self.peers[n].steady = Some(Steady {
            nominal,
            at: at.max(steady.at),
            ..steady
        });
        self.summary.conforming += 1;
    }

    /// Creates a flow over the API.
    fn reserve(&mut self) {
        let client = Client {
            id: self.peers[self.rng.below(WILD as u64) as usize]
                .id
                .as_str()
                .into(),
            session: 0,
            user: None,
            is_proven: false,
            address: Some(address(self.rng.within(1..=6) as u8)),
            transport: Transport::Tcp,
        };
        let text = format!(
            "deadline={}, period=20ms, size=60",
            self.rng.pick(&DEADLINES)
        );
        let topic = *self.rng.pick(&TOPICS);
        let publication = Publication {
            topic,
            requirements: text.parse().unwrap(),
            payload: 0,
            properties: 0,
            quota: Quota::default(),
        };
        let mut office = self.office.borrow_mut();
        let decision = office.manager.reserve(&client, publication);
        office.check();
        drop(office);
        self.say(format_args!(
            "reserved for {}: {:?}",
            client.id, decision.answer
        ));
        self.conclude();
    }

    fn remove(&mut self) {
        let views = self.views();
        if views.is_empty() {
            return;
        }
        let id = self.rng.pick(&views).id.clone();
        self.say(format_args!("{id} is removed"));
        assert!(self.office.borrow_mut().manager.remove(&id));
        self.office.borrow_mut().check();
        self.conclude();
    }

    /// Restarts the broker with its stored state, sometimes in another network.
    fn restart(&mut self) {
        let changed = self.rng.chance(30);
        self.say(format_args!(
            "the broker restarts, in another network {changed}"
        ));
        if changed {
            self.settings = settings(&mut self.rng);
        }
        let before = self.views();
        let text = self.office.borrow().manager.state().to_json();
        self.shards = self.rng.within(1..=2) as u16;
        self.world = world(&self.office, &mut self.rng, self.refuse, self.shards);
        let state = State::from_json(&text).unwrap();
        let lost = self
            .office
            .borrow_mut()
            .reopen(self.settings.clone(), &state, self.shards);
        let after = self.views();
        if changed {
            assert_eq!(after.len() + lost.len(), before.len(), "{lost:?}");
        } else {
            assert_eq!(lost, [""; 0]);
            let kept = |views: &[FlowView]| -> Vec<_> {
                let what = |view: &FlowView| {
                    let receivers = view.receivers.iter().map(|to| to.client.clone());
                    let receivers: BTreeSet<_> = receivers.collect();
                    (
                        view.id.clone(),
                        view.priority,
                        view.deadline_ns,
                        view.fixed,
                        receivers,
                    )
                };
                views.iter().map(what).collect()
            };
            assert_eq!(kept(&after), kept(&before));
        }
        self.summary.restored += after.len() as u64;
        self.next_tick = TICK;
        self.give_up = Some(Nanos(2_000 * MS));
        for peer in &mut self.peers {
            peer.link = None;
            peer.steady = None;
            peer.heard.clear();
        }
    }

    /// Reads packets of a client, and compares answers with decisions.
    fn hear(&mut self, n: usize) {
        let Some(link) = self.peers[n].link else {
            return;
        };
        let mut buffer = std::mem::take(&mut self.peers[n].buffer);
        self.world.take_received(link, &mut buffer);
        let mut at = 0;
        while let Ok(Split::Frame(frame)) = split(&buffer[at..], u32::MAX) {
            at += frame.bytes.len();
            match Packet::decode(frame, Version::V5).unwrap() {
                Packet::PubAck(ack) => self.acknowledged(n, ack.packet_id, ack.properties),
                Packet::PubRec(ack) => self.acknowledged(n, ack.packet_id, ack.properties),
                Packet::SubAck(ack) => {
                    self.subscribed(n, ack.packet_id, ack.reasons, ack.properties);
                }
                Packet::Disconnect(gone) => {
                    assert_eq!(gone.reason, ReasonCode::SessionTakenOver);
                }
                _ => {}
            }
        }
        buffer.drain(..at);
        self.peers[n].buffer = buffer;
    }

    fn acknowledged(&mut self, n: usize, id: u16, properties: Properties<'_>) {
        let peer = &mut self.peers[n];
        let topic = peer
            .waiting
            .remove(&id)
            .expect("an acknowledgement of what was sent");
        let Some(answer) = Answer::read(properties.user()) else {
            return;
        };
        self.summary.answers += 1;
        let office = self.office.borrow();
        let from = peer.heard.get(&topic).copied().unwrap_or(0);
        let told = office.told.iter().enumerate().skip(from).find(|(_, told)| {
            *told.client == *peer.id
                && *told.topic == *topic
                && as_carried(&told.answer, peer.refuse.unwrap_or(self.refuse)) == answer
        });
        if let Some((index, _)) = told {
            peer.heard.insert(topic, index);
            return;
        }
        // Reasons that a shard gives on its own, which refer to a message and not to the flow.
        let own = ["max_flows_per_session", "than the flow's"];
        let reason = answer.reason.as_deref().unwrap_or_default();
        assert!(
            own.iter().any(|own| reason.contains(own)),
            "{} was told about {topic} what nobody decided: {answer:?}",
            peer.id
        );
        drop(office);
        let strayed = self.strayed(n);
        assert_eq!(strayed, 0, "{} was told {answer:?}", self.peers[n].id);
    }

    /// Number of violations of a steady client that the broker has counted since the client's
    /// requirements were admitted; 0 if they are not admitted. In that case the requirements
    /// admitted before apply, possibly those of an earlier session that were restored.
    fn strayed(&mut self, n: usize) -> u64 {
        let peer = &self.peers[n];
        let Some(steady) = peer.steady else {
            return 0;
        };
        let topic = format!("steady/{n}");
        let office = self.office.borrow();
        let views = office.manager.views(None, usize::MAX).into_iter();
        let mut views = views.filter(|view| view.client == peer.id && view.topic == topic);
        let as_sent =
            |view: FlowView| (view.period_ns, view.jitter_ns) == (steady.period, steady.jitter);
        if !views.next().is_some_and(as_sent) {
            return 0;
        }
        let mut shards = self.world.shards().iter();
        let flow = shards.find_map(|shard| shard.flow(&peer.id, &topic));
        flow.map_or(0, |flow| office.violations(&peer.id, &topic, &flow))
    }

    fn subscribed(&mut self, n: usize, id: u16, reasons: &[u8], properties: Properties<'_>) {
        let peer = &mut self.peers[n];
        let waiting = peer.waiting.remove(&id);
        let filter = waiting.expect("an acknowledgement of what was sent");
        let office = self.office.borrow();
        let mut verdicts = office.verdicts.iter().rev();
        let last = verdicts.find(|v| *v.client == *peer.id && *v.filter == *filter);
        let last = last.expect("every subscription is asked about");
        let refused = last.verdict == FilterVerdict::Refused;
        assert_eq!(
            reasons,
            [if refused { 0x97 } else { 0 }],
            "{} {filter}",
            peer.id
        );
        assert_eq!(
            Answer::read(properties.user()),
            last.answer,
            "{} {filter}",
            peer.id
        );
    }

    fn views(&self) -> Vec<FlowView> {
        self.office.borrow().manager.views(None, usize::MAX)
    }

    /// Manager and broker agree on all flows, and no client that sends as declared was policed.
    fn agree(&mut self) {
        // Wait for messages and answers in flight. Other clients continue to send, and their
        // requests are never all answered at a fixed time.
        self.pass(Nanos(3 * MS));
        let latest = self.world.now() + Nanos(100 * MS);
        while !self.world.is_quiet() {
            assert!(self.world.now() < latest, "something is always under way");
            self.pass(Nanos(MS / 20));
        }
        let views = self.views();
        let office = Rc::clone(&self.office);
        let office = office.borrow();
        let restored = self.give_up.is_some();
        for view in &views {
            let shards = self.world.shards().iter();
            let flow = shards
                .filter_map(|shard| shard.flow(&view.client, &view.topic))
                .next();
            let session = self
                .world
                .shards()
                .iter()
                .any(|shard| shard.client(&view.client).is_some());
            let status = flow.as_ref().and_then(|flow| flow.answer.as_ref()?.status);
            let known = status.is_some();
            assert!(
                known || view.fixed || restored,
                "{} outlives its session ({session}): {flow:?}",
                view.id
            );
        }
        for n in 0..self.peers.len() {
            assert_eq!(
                self.strayed(n),
                0,
                "{} sends what it declared",
                self.peers[n].id
            );
        }
        let clients: BTreeSet<_> = office
            .manager
            .state()
            .clients
            .into_iter()
            .map(|c| c.id.clone())
            .collect();
        for peer in &self.peers {
            let shards = self.world.shards().iter();
            let session = shards
                .filter(|shard| shard.client(&peer.id).is_some())
                .count();
            let fixed = views
                .iter()
                .any(|view| view.fixed && view.client == peer.id);
            assert!(
                session > 0 || fixed || restored || !clients.contains(&peer.id),
                "{} is gone and not forgotten",
                peer.id
            );
            let steady = (0..self.peers.len()).map(|n| format!("steady/{n}"));
            let topics = TOPICS.iter().map(|topic| (*topic).to_owned()).chain(steady);
            let mut flows = 0;
            for topic in topics {
                let shards = self.world.shards().iter();
                let Some(flow) = shards
                    .filter_map(|shard| shard.flow(&peer.id, &topic))
                    .next()
                else {
                    continue;
                };
                flows += 1;
                let status = flow.answer.as_ref().and_then(|answer| answer.status);
                let id = format!("{topic}@{}", peer.id);
                assert!(status.is_some(), "{id} is never answered: {flow:?}");
                if status == Some(Status::Admitted) {
                    assert!(
                        office.manager.view(&id).is_some(),
                        "{id} is carried and not admitted"
                    );
                }
                self.summary.admitted += u64::from(status == Some(Status::Admitted));
                self.summary.rejected += u64::from(status == Some(Status::Rejected));
            }
            // Flows that were created over the API.
            let made = views
                .iter()
                .filter(|view| view.client == peer.id && view.fixed)
                .count();
            assert!(
                flows <= PER_SESSION + made + TOPICS.len(),
                "{} has {flows} flows",
                peer.id
            );
        }
        let most = self.settings.max_flows;
        assert!(office.manager.len() <= most && office.manager.wishes() <= most);
        self.summary.decisions = office.decisions;
    }

    /// All clients leave, and no state remains.
    fn end(&mut self) {
        for n in 0..self.peers.len() {
            self.peers[n].steady = None;
        }
        // By this time the broker has forwarded all messages that it held to enforce a period.
        self.pass(Nanos(3_000 * MS));
        for n in 0..self.peers.len() {
            let peer = &self.peers[n];
            let waiting = peer.link.is_some() && !peer.waiting.is_empty();
            assert!(!waiting, "{} waits for {:?}", peer.id, peer.waiting);
            self.disconnect(n, Some(0));
        }
        self.pass(Nanos(6_000 * MS));
        let fixed: Vec<_> = self.views();
        assert!(fixed.iter().all(|view| view.fixed), "{fixed:?}");
        for view in fixed {
            self.office.borrow_mut().manager.remove(&view.id);
        }
        self.conclude();
        self.pass(Nanos(MS));
        let office = self.office.borrow();
        assert_eq!((office.manager.len(), office.manager.wishes()), (0, 0));
        assert_eq!(office.manager.state().clients, []);
        assert_eq!(office.manager.network().flows, []);
        for shard in self.world.shards() {
            assert_eq!(shard.stats().connections, 0);
            let left = shard.scan_clients(Default::default(), u32::MAX, |client| {
                panic!("{client:?} is still there")
            });
            assert_eq!(left, None);
        }
    }
}

impl Peer {
    fn id(&mut self) -> u16 {
        self.next_id = self.next_id % 60_000 + 1;
        self.next_id
    }
}

fn address(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, host).into()
}

/// A star of hosts with fast or slow links; some hosts are not in the network.
fn settings(rng: &mut Rng) -> Settings {
    let mbit = |n: u64| n * 1_000_000;
    let defaults = Settings::default();
    Settings {
        star: Star {
            access_rate: mbit(*rng.pick(&[5, 20, 100])),
            broker_rate: mbit(*rng.pick(&[100, 1000])),
            ..defaults.star
        },
        max_flows: *rng.pick(&[6, 100]),
        max_user_load: *rng.pick(&[20, 100]),
        max_hosts: *rng.pick(&[4, 100]),
        ..defaults
    }
}

fn world(office: &Shared, rng: &mut Rng, refuse: bool, shards: u16) -> World {
    let policing = [
        Policing::Demote,
        Policing::Shape,
        Policing::Drop,
        Policing::Off,
    ];
    let config = Config {
        admission: Some(Admission {
            refuse,
            policing: *rng.pick(&policing),
            max_flows_per_session: PER_SESSION,
            absent_after: Nanos::from_secs(3600),
            conditions: Default::default(),
        }),
        ..Config::default()
    };
    let mut world = World::new(config, shards, rng.any());
    let desk = office.clone();
    world.set_desk(move |shard, request| decide(&desk, shard, request));
    world
}
