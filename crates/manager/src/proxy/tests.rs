//! The proxy between a client and a broker that are both bytes.

use std::sync::Arc;

use proptest::prelude::*;
use punctual_broker::{
    AccessControl, Ask, ConnId, FilterVerdict, FlowDecision, Nanos, Permissions, Policing,
    SubscriptionDecision, UrgencyRule,
};
use punctual_codec::{
    Ack, ConnAck, Connect, Disconnect, Packet, Properties, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Split, SubAck, Subscribe, SubscribeOptions, UnsubAck, Unsubscribe, Version, split,
};
use punctual_model::{Answer, Grant, Requirements, Status};

use super::{Config, Proxy};

const NOW: Nanos = Nanos::from_secs(1);

struct Bench {
    proxy: Proxy,
    conn: ConnId,
    version: Version,
}

fn user(pairs: &[(&str, &str)]) -> PropertyBuf {
    let mut all = PropertyBuf::new();
    for (key, value) in pairs {
        all.push_user(key, value).unwrap();
    }
    all
}

fn connect(version: Version, properties: Properties<'_>) -> Vec<u8> {
    let connect = Connect {
        version,
        clean_start: true,
        keep_alive: 60,
        client_id: "press",
        will: None,
        username: Some("line1"),
        password: None,
        properties,
    };
    bytes(&Packet::Connect(connect), version)
}

fn bytes(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut out = Vec::new();
    packet.encode(version, &mut out).unwrap();
    out
}

fn publish<'a>(qos: QoS, properties: &'a PropertyBuf, payload: &'a [u8]) -> Publish<'a> {
    Publish {
        dup: false,
        qos,
        retain: false,
        topic: "axis/1",
        packet_id: if qos == QoS::AtMostOnce { 0 } else { 7 },
        properties: properties.as_properties(),
        payload,
    }
}

fn granted(period_ns: u64) -> FlowDecision {
    FlowDecision {
        answer: Answer {
            status: Some(Status::Admitted),
            flow: Some("axis/1@press".into()),
            ..Answer::default()
        },
        grant: Some(Grant {
            priority: 6,
            period_ns,
            tolerance_ns: 0,
            bandwidth: None,
            max_payload: None,
            max_packet: 1000,
        }),
    }
}

fn rejected() -> FlowDecision {
    FlowDecision {
        answer: Answer {
            status: Some(Status::Rejected),
            reason: Some("link s1-b would be loaded 104 %".into()),
            ..Answer::default()
        },
        grant: None,
    }
}

impl Bench {
    fn new(config: Config, version: Version) -> Self {
        Self::with(config, version, &[])
    }

    /// Connected.
    fn with(config: Config, version: Version, stated: &[(&str, &str)]) -> Self {
        let mut proxy = Proxy::new(config);
        let conn = proxy.open(None, None, 0);
        let mut bench = Self {
            proxy,
            conn,
            version,
        };
        let hello = connect(version, user(stated).as_properties());
        assert_eq!(bench.client(&hello), hello);
        let connack = ConnAck {
            session_present: false,
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        };
        bench.broker(&bytes(&Packet::ConnAck(connack), version));
        let asks = bench.asks();
        assert!(matches!(asks[..], [Ask::Connected { .. }]), "{asks:?}");
        bench
    }

    fn asks(&mut self) -> Vec<Ask> {
        let asks = self.proxy.take_asks().into_iter();
        asks.map(|request| request.ask).collect()
    }

    /// What the broker gets for these bytes of the client.
    fn client(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.proxy.client_sent(self.conn, bytes, NOW);
        self.at_broker()
    }

    fn broker(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.proxy.broker_sent(self.conn, bytes, NOW);
        self.at_client()
    }

    fn at_broker(&mut self) -> Vec<u8> {
        std::mem::take(self.proxy.to_broker(self.conn).unwrap())
    }

    fn at_client(&mut self) -> Vec<u8> {
        std::mem::take(self.proxy.to_client(self.conn).unwrap())
    }

    fn send(&mut self, packet: &Packet<'_>) -> Vec<u8> {
        self.client(&bytes(packet, self.version))
    }

    fn receive(&mut self, packet: &Packet<'_>) -> Vec<u8> {
        self.broker(&bytes(packet, self.version))
    }

    fn puback(&mut self) -> Vec<u8> {
        self.receive(&Packet::PubAck(Ack::new(7, ReasonCode::Success)))
    }

    fn decide(&mut self, requirements: Requirements, decision: FlowDecision) {
        let decision = Some(decision);
        self.proxy
            .decide_flow("press", 0, "axis/1", requirements, decision, false, NOW);
    }
}

/// The answer in the acknowledgement that these bytes are.
fn answer_in(bytes: &[u8]) -> (ReasonCode, Option<Answer>) {
    let Ok(Split::Frame(frame)) = split(bytes, u32::MAX) else {
        panic!("{bytes:?}");
    };
    assert_eq!(frame.bytes.len(), bytes.len(), "one packet");
    match Packet::decode(frame, Version::V5).unwrap() {
        Packet::PubAck(ack) | Packet::PubRec(ack) => {
            (ack.reason, Answer::read(ack.properties.user()))
        }
        Packet::SubAck(ack) => (
            ReasonCode::from_byte(ack.reasons[0]).unwrap(),
            Answer::read(ack.properties.user()),
        ),
        Packet::ConnAck(ack) => (ack.reason, Answer::read(ack.properties.user())),
        Packet::Publish(publish) => (ReasonCode::Success, Answer::read(publish.properties.user())),
        other => panic!("{other:?}"),
    }
}

fn requirements_in(asks: &[Ask]) -> Requirements {
    match asks {
        [Ask::Publish { requirements, .. }] => *requirements,
        other => panic!("{other:?}"),
    }
}

const STATED: &[(&str, &str)] = &[("rt-deadline", "5ms"), ("rt-period", "10ms")];

#[test]
fn an_acknowledgement_waits_for_the_decision_and_carries_it() {
    let mut bench = Bench::new(Config::default(), Version::V5);
    let stated = user(STATED);
    let packet = Packet::Publish(publish(QoS::AtLeastOnce, &stated, b"17"));
    let passed = bench.send(&packet);
    assert_eq!(
        passed,
        bytes(&packet, Version::V5),
        "it does not wait itself"
    );
    let requirements = requirements_in(&bench.asks());
    assert_eq!(bench.puback(), b"", "held");
    bench.decide(requirements, granted(10_000_000));
    let (reason, answer) = answer_in(&bench.at_client());
    assert_eq!(reason, ReasonCode::Success);
    assert_eq!(answer, Some(granted(1).answer));
    // Told once; a flow that is known is not asked about.
    bench.send(&packet);
    assert!(bench.asks().is_empty());
    assert_eq!(answer_in(&bench.puback()).1, None);
}

#[test]
fn acknowledgements_keep_their_order() {
    let mut bench = Bench::new(Config::default(), Version::V5);
    let (stated, plain) = (user(STATED), PropertyBuf::new());
    bench.send(&Packet::Publish(publish(QoS::AtLeastOnce, &stated, b"1")));
    let second = Publish {
        packet_id: 8,
        topic: "other",
        ..publish(QoS::AtLeastOnce, &plain, b"2")
    };
    bench.send(&Packet::Publish(second));
    let requirements = requirements_in(&bench.asks());
    assert_eq!(bench.puback(), b"");
    let ack = Packet::PubAck(Ack::new(8, ReasonCode::Success));
    assert_eq!(bench.receive(&ack), b"", "behind the first");
    // What is no acknowledgement passes.
    assert_eq!(bench.receive(&Packet::PingResp), [0xD0, 0]);
    bench.decide(requirements, granted(1));
    let both = bench.at_client();
    assert!(both.ends_with(&bytes(&ack, Version::V5)));
    assert!(both.len() > 8);
}

#[test]
fn without_a_decision_in_time_it_is_best_effort() {
    let mut bench = Bench::new(Config::default(), Version::V5);
    let stated = user(STATED);
    bench.send(&Packet::Publish(publish(QoS::ExactlyOnce, &stated, b"1")));
    let requirements = requirements_in(&bench.asks());
    let ack = Packet::PubRec(Ack::new(7, ReasonCode::Success));
    assert_eq!(bench.receive(&ack), b"");
    let due = bench.proxy.next_tick().unwrap();
    assert_eq!(due, NOW + Config::default().decision_timeout);
    bench.proxy.tick(Nanos(due.0 - 1));
    assert_eq!(bench.at_client(), b"");
    bench.proxy.tick(due);
    let (_, answer) = answer_in(&bench.at_client());
    let answer = answer.unwrap();
    assert_eq!(answer.status, Some(Status::BestEffort));
    assert!(answer.reason.unwrap().contains("1000 ms"));
    assert_eq!(bench.proxy.stats().undecided, 1);
    // Late, and told with the next message.
    bench.decide(requirements, granted(1));
    bench.send(&Packet::Publish(publish(QoS::AtLeastOnce, &stated, b"2")));
    assert_eq!(answer_in(&bench.puback()).1, Some(granted(1).answer));
}

#[test]
fn rejected_is_carried_or_refused() {
    for refuse in [false, true] {
        let config = Config {
            refuse,
            ..Config::default()
        };
        let mut bench = Bench::new(config, Version::V5);
        let stated = user(STATED);
        let packet = Packet::Publish(publish(QoS::AtLeastOnce, &stated, b"17"));
        let passed = bench.send(&packet);
        assert_eq!(passed.is_empty(), refuse, "refused ones wait");
        assert_eq!(bench.proxy.reads_client(bench.conn), !refuse);
        let requirements = requirements_in(&bench.asks());
        bench.decide(requirements, rejected());
        if !refuse {
            let (reason, answer) = answer_in(&bench.puback());
            assert_eq!(reason, ReasonCode::Success);
            assert_eq!(answer.unwrap().status, Some(Status::BestEffort));
            continue;
        }
        assert_eq!(bench.at_broker(), b"");
        assert!(bench.proxy.reads_client(bench.conn));
        let (reason, answer) = answer_in(&bench.at_client());
        assert_eq!(reason, ReasonCode::QuotaExceeded);
        assert_eq!(answer, Some(rejected().answer));
        // QoS 0 goes nowhere in silence; 3.1.1 cannot be told and is carried.
        let silent = Packet::Publish(publish(QoS::AtMostOnce, &stated, b"18"));
        assert_eq!(bench.send(&silent), b"");
        assert_eq!(bench.proxy.stats().refused, 2);
    }
}

#[test]
fn rules_speak_for_clients_that_cannot() {
    let requirements = Requirements {
        deadline: Some(std::time::Duration::from_millis(5)),
        period: Some(std::time::Duration::from_millis(10)),
        ..Requirements::NONE
    };
    let config = Config {
        rules: vec![UrgencyRule {
            filter: "axis/#".into(),
            urgency: punctual_broker::Urgency {
                deadline: Some(Nanos::from_millis(5)),
                ..Default::default()
            },
            requirements,
        }],
        ..Config::default()
    };
    let mut bench = Bench::new(config, Version::V311);
    let plain = PropertyBuf::new();
    let packet = Packet::Publish(publish(QoS::AtLeastOnce, &plain, b"17"));
    assert_eq!(bench.send(&packet), bytes(&packet, Version::V311));
    assert_eq!(requirements_in(&bench.asks()), requirements);
    // Nothing could be told with the acknowledgement, so it does not wait.
    assert_eq!(bench.puback(), [0x40, 2, 0, 7]);
    // But it can be told who listens.
    let filters = [("$SYS/rt/clients/#", SubscribeOptions::default())];
    let mut subscribe = Vec::new();
    let none = Properties::EMPTY;
    Subscribe::put(9, none, &filters, Version::V311, &mut subscribe).unwrap();
    assert_eq!(bench.client(&subscribe), subscribe);
    let suback = SubAck {
        packet_id: 9,
        properties: none,
        reasons: &[0],
    };
    let suback = Packet::SubAck(suback);
    assert_eq!(bench.receive(&suback), bytes(&suback, Version::V311));
    bench.decide(requirements, granted(10_000_000));
    let news = String::from_utf8_lossy(&bench.at_client()).into_owned();
    assert!(news.contains("axis/1 rt-status=admitted"), "{news}");
}

#[test]
fn connect_states_for_all_and_is_told_what_is_wrong() {
    let mut bench = Bench::with(Config::default(), Version::V5, STATED);
    let plain = PropertyBuf::new();
    bench.send(&Packet::Publish(publish(QoS::AtMostOnce, &plain, b"17")));
    assert!(requirements_in(&bench.asks()).is_real_time());

    let mut proxy = Proxy::new(Config::default());
    let conn = proxy.open(None, None, 0);
    let bad = user(&[("rt-deadline", "soon")]);
    proxy.client_sent(conn, &connect(Version::V5, bad.as_properties()), NOW);
    let connack = Packet::ConnAck(ConnAck {
        session_present: false,
        reason: ReasonCode::Success,
        properties: Properties::EMPTY,
    });
    proxy.broker_sent(conn, &bytes(&connack, Version::V5), NOW);
    let (_, answer) = answer_in(proxy.to_client(conn).unwrap());
    let why = answer.unwrap().reason.unwrap();
    assert!(why.contains("rt-deadline") && why.contains("soon"), "{why}");
}

#[test]
fn topic_aliases_are_followed() {
    let mut bench = Bench::new(Config::default(), Version::V5);
    // A broker that allows two.
    let mut connack = PropertyBuf::new();
    connack.push_number(PropertyId::TopicAliasMaximum, 2);
    let mut proxy = Proxy::new(Config::default());
    bench.conn = proxy.open(None, None, 0);
    bench.proxy = proxy;
    bench.client(&connect(Version::V5, Properties::EMPTY));
    bench.receive(&Packet::ConnAck(ConnAck {
        session_present: false,
        reason: ReasonCode::Success,
        properties: connack.as_properties(),
    }));
    bench.asks();
    let mut named = PropertyBuf::new();
    named.push_number(PropertyId::TopicAlias, 2);
    bench.send(&Packet::Publish(publish(QoS::AtMostOnce, &named, b"1")));
    for (key, value) in STATED {
        named.push_user(key, value).unwrap();
    }
    let by_alias = Publish {
        topic: "",
        ..publish(QoS::AtMostOnce, &named, b"2")
    };
    bench.send(&Packet::Publish(by_alias));
    let asks = bench.asks();
    assert!(
        matches!(&asks[..], [Ask::Publish { topic, .. }] if **topic == *"axis/1"),
        "{asks:?}"
    );
}

#[test]
fn flows_are_held_to_what_they_declared() {
    for (policing, through) in [
        (Policing::Off, 2),
        (Policing::Demote, 2),
        (Policing::Drop, 1),
        (Policing::Shape, 1),
    ] {
        let config = Config {
            policing,
            ..Config::default()
        };
        let mut bench = Bench::new(config, Version::V5);
        let stated = user(STATED);
        let packet = Packet::Publish(publish(QoS::AtMostOnce, &stated, b"17"));
        bench.send(&packet);
        let requirements = requirements_in(&bench.asks());
        bench.decide(requirements, granted(10_000_000));
        let size = bytes(&packet, Version::V5).len();
        let sent = bench.send(&packet).len() + bench.send(&packet).len();
        assert_eq!(sent, through * size, "{policing:?}");
        if policing == Policing::Shape {
            assert!(!bench.proxy.reads_client(bench.conn));
            let at = bench.proxy.next_tick().unwrap();
            assert_eq!(at, NOW + Nanos::from_millis(10));
            bench.proxy.tick(at);
            assert_eq!(bench.at_broker().len(), size);
            assert!(bench.proxy.reads_client(bench.conn));
        }
        assert_eq!(bench.proxy.stats().violations, 1, "{policing:?}");
    }
}

#[derive(Debug)]
struct Rights(Option<bool>);

impl AccessControl for Rights {
    fn permissions(&self, _: Option<&str>, _: &str) -> Option<Arc<dyn Permissions>> {
        Some(Arc::new(Self(self.0)))
    }
}

impl Permissions for Rights {
    fn may_publish(&self, _: &str) -> bool {
        true
    }
    fn may_receive(&self, _: &str) -> bool {
        true
    }
    fn may_subscribe(&self, _: &str) -> bool {
        true
    }
    fn refuses(&self, topic: &str) -> Option<bool> {
        self.0.filter(|_| topic == "axis/1")
    }
}

/// Rights come before the listener, which comes before the configuration.
#[test]
fn who_is_refused_depends_on_rights_and_listener() {
    for (rights, listener, all, refused) in [
        (None, None, false, false),
        (None, None, true, true),
        (None, Some(false), true, false),
        (None, Some(true), false, true),
        (Some(false), Some(true), true, false),
        (Some(true), Some(false), false, true),
    ] {
        let config = Config {
            access: Some(Arc::new(Rights(rights))),
            refuse: all,
            refuse_at: vec![listener],
            ..Config::default()
        };
        let mut bench = Bench::new(config, Version::V5);
        let stated = user(STATED);
        let packet = Packet::Publish(publish(QoS::AtLeastOnce, &stated, b"17"));
        let mut passed = bench.send(&packet);
        assert_eq!(passed.is_empty(), refused, "only what may be refused waits");
        let requirements = requirements_in(&bench.asks());
        bench.decide(requirements, rejected());
        passed.extend(bench.at_broker());
        assert_eq!(passed.is_empty(), refused);
        let told = match refused {
            true => bench.at_client(),
            false => bench.puback(),
        };
        let (reason, answer) = answer_in(&told);
        let status = answer.and_then(|answer| answer.status);
        let expected = match refused {
            true => (ReasonCode::QuotaExceeded, Some(Status::Rejected)),
            false => (ReasonCode::Success, Some(Status::BestEffort)),
        };
        assert_eq!((reason, status), expected, "{rights:?} {listener:?} {all}");
    }
}

#[test]
fn a_shorter_period_counts_from_the_last_message() {
    let config = Config {
        policing: Policing::Drop,
        ..Config::default()
    };
    let mut bench = Bench::new(config, Version::V5);
    let stated = user(STATED);
    let packet = Packet::Publish(publish(QoS::AtMostOnce, &stated, b"17"));
    bench.send(&packet);
    let requirements = requirements_in(&bench.asks());
    bench.decide(requirements, granted(10_000_000));
    assert_ne!(bench.send(&packet), b"");
    // The flow may send more often now: the message before counts as one of it.
    bench.decide(requirements, granted(1_000_000));
    assert_eq!(bench.send(&packet), b"");
    let bytes = bytes(&packet, Version::V5);
    let later = NOW + Nanos::from_millis(1);
    bench.proxy.client_sent(bench.conn, &bytes, later);
    assert_eq!(bench.at_broker(), bytes);
    assert_eq!(bench.proxy.stats().violations, 1);
}

#[test]
fn subscriptions_wait_and_refused_filters_are_left_out() {
    let mut bench = Bench::new(Config::default(), Version::V5);
    let options = SubscribeOptions::default();
    let filters = [("a/#", options), ("b", options), ("c", options)];
    let subscribe = |filters: &[(&str, SubscribeOptions)]| {
        let mut out = Vec::new();
        let none = Properties::EMPTY;
        Subscribe::put(5, none, filters, Version::V5, &mut out).unwrap();
        out
    };
    assert_eq!(bench.client(&subscribe(&filters)), b"");
    let asks = bench.asks();
    let [
        Ask::Subscribe {
            conn,
            filters: asked,
            ..
        },
    ] = &asks[..]
    else {
        panic!("{asks:?}");
    };
    assert_eq!(asked.len(), 3);
    let best = Answer {
        status: Some(Status::BestEffort),
        ..Answer::default()
    };
    let decision = |verdict| SubscriptionDecision {
        verdicts: vec![("b".into(), verdict)],
        answer: Some(best.clone()),
    };
    let refused = decision(FilterVerdict::Refused);
    assert!(bench.proxy.decide_subscription(*conn, refused.clone(), NOW));
    assert!(
        !bench.proxy.decide_subscription(*conn, refused, NOW),
        "only once"
    );
    assert_eq!(bench.at_broker(), subscribe(&[filters[0], filters[2]]));
    // The broker refuses the last.
    let suback = SubAck {
        packet_id: 5,
        properties: Properties::EMPTY,
        reasons: &[1, 0x87],
    };
    let told = bench.receive(&Packet::SubAck(suback));
    assert_eq!(answer_in(&told).1, Some(best.clone()));
    assert!(told.ends_with(&[1, 0x97, 0x87]), "{told:?}");
    let asks = bench.asks();
    assert_eq!(
        asks,
        [Ask::Unsubscribed {
            filters: vec!["c".into()]
        }]
    );

    // Nothing is left for the broker.
    bench.client(&subscribe(&[filters[1]]));
    let refused = decision(FilterVerdict::Refused);
    assert!(bench.proxy.decide_subscription(bench.conn, refused, NOW));
    assert_eq!(bench.at_broker(), b"");
    assert!(bench.at_client().ends_with(&[0x97]));
    bench.asks();

    let mut unsubscribe = Vec::new();
    Unsubscribe::put(
        6,
        Properties::EMPTY,
        &["a/#"],
        Version::V5,
        &mut unsubscribe,
    )
    .unwrap();
    assert_eq!(bench.client(&unsubscribe), unsubscribe);
    let gone = UnsubAck {
        packet_id: 6,
        properties: Properties::EMPTY,
        reasons: &[0],
    };
    bench.receive(&Packet::UnsubAck(gone));
    assert_eq!(
        bench.asks(),
        [Ask::Unsubscribed {
            filters: vec!["a/#".into()]
        }]
    );
}

#[test]
fn sessions_end_with_their_connection_or_when_they_expire() {
    let mut bench = Bench::new(Config::default(), Version::V5);
    bench.proxy.closed(bench.conn, NOW);
    assert_eq!(bench.asks(), [Ask::Ended]);

    let mut bench = Bench::new(Config::default(), Version::V5);
    let mut expiry = PropertyBuf::new();
    expiry.push_number(PropertyId::SessionExpiryInterval, 30);
    bench.send(&Packet::Disconnect(Disconnect {
        reason: ReasonCode::Success,
        properties: expiry.as_properties(),
    }));
    bench.proxy.closed(bench.conn, NOW);
    assert!(bench.asks().is_empty());
    let at = bench.proxy.next_tick().unwrap();
    assert_eq!(at, NOW + Nanos::from_secs(30));
    bench.proxy.tick(at);
    assert_eq!(bench.asks(), [Ask::Ended]);
    assert_eq!(bench.proxy.next_tick(), None);
}

#[test]
fn a_client_that_is_taken_over_leaves_its_session_to_the_other() {
    let mut bench = Bench::new(Config::default(), Version::V5);
    let first = bench.conn;
    bench.conn = bench.proxy.open(None, None, 0);
    bench.client(&connect(Version::V5, Properties::EMPTY));
    bench.receive(&Packet::ConnAck(ConnAck {
        session_present: true,
        reason: ReasonCode::Success,
        properties: Properties::EMPTY,
    }));
    let asks: Vec<_> = bench.proxy.take_asks();
    assert_eq!(asks[0].asker.session, 1);
    bench.proxy.closed(first, NOW);
    assert!(bench.asks().is_empty());
    bench.proxy.closed(bench.conn, NOW);
    assert_eq!(bench.asks(), [Ask::Ended]);
}

#[test]
fn what_is_not_mqtt_passes() {
    for start in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xFF",
    ] {
        let mut proxy = Proxy::new(Config::default());
        let conn = proxy.open(None, None, 0);
        proxy.client_sent(conn, &start[..1], NOW);
        proxy.client_sent(conn, &start[1..], NOW);
        proxy.client_sent(conn, b"more", NOW);
        let expected: Vec<u8> = [start, b"more"].concat();
        assert_eq!(*proxy.to_broker(conn).unwrap(), expected);
        proxy.broker_sent(conn, b"\x15anything", NOW);
        assert_eq!(*proxy.to_client(conn).unwrap(), b"\x15anything");
    }
}

/// Packets of a client that has nothing to do with real time, and of a broker.
fn plain_packets(seed: &[(u8, Vec<u8>)], up: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let (some, none) = (user(&[("unit", "K")]), PropertyBuf::new());
    for (choice, data) in seed {
        let packet_id = u16::from(*choice) + 1;
        let qos = match choice % 3 {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        };
        let properties = if choice % 2 == 0 { &some } else { &none };
        let message = Publish {
            packet_id: if qos == QoS::AtMostOnce { 0 } else { packet_id },
            ..publish(qos, properties, data)
        };
        let ack = Ack::new(packet_id, ReasonCode::Success);
        let packet = match (choice % 6, up) {
            (0..=2, _) => Packet::Publish(message),
            (3, _) => Packet::PubAck(ack),
            (4, _) => Packet::PubRec(ack),
            (_, true) => Packet::PingReq,
            (_, false) => Packet::PingResp,
        };
        out.extend(bytes(&packet, Version::V5));
    }
    out
}

proptest! {
    /// What asks for nothing passes byte for byte, however it is cut.
    #[test]
    fn plain_streams_pass_unchanged(
        up in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..300)), 0..20),
        down in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..300)), 0..20),
        cuts in proptest::collection::vec(1..100_usize, 1..20),
    ) {
        let mut bench = Bench::new(Config::default(), Version::V5);
        let (up, down) = (plain_packets(&up, true), plain_packets(&down, false));
        let (mut at_broker, mut at_client) = (Vec::new(), Vec::new());
        let mut sizes = cuts.iter().cycle();
        let (mut from_client, mut from_broker) = (&up[..], &down[..]);
        while !from_client.is_empty() || !from_broker.is_empty() {
            let n = (*sizes.next().unwrap()).min(from_client.len());
            at_broker.extend(bench.client(&from_client[..n]));
            from_client = &from_client[n..];
            let n = (*sizes.next().unwrap()).min(from_broker.len());
            at_client.extend(bench.broker(&from_broker[..n]));
            from_broker = &from_broker[n..];
        }
        prop_assert_eq!(at_broker, up);
        prop_assert_eq!(at_client, down);
        prop_assert!(bench.asks().is_empty());
    }

    /// Whatever comes, nothing panics, and after a CONNECT what the broker gets
    /// never has more bytes than what the client sent.
    #[test]
    fn anything_may_come(
        up in proptest::collection::vec(any::<u8>(), 0..400),
        down in proptest::collection::vec(any::<u8>(), 0..400),
        at in 0..400_usize,
    ) {
        let mut bench = Bench::new(Config::default(), Version::V5);
        let at = at.min(up.len());
        let mut passed = bench.client(&up[..at]).len();
        bench.broker(&down);
        passed += bench.client(&up[at..]).len();
        bench.proxy.tick(NOW + Nanos::from_secs(5));
        passed += bench.at_broker().len();
        prop_assert!(passed <= up.len());
        bench.proxy.closed(bench.conn, NOW);
        prop_assert!(bench.proxy.to_client(bench.conn).is_none());
    }
}

#[test]
fn a_client_without_a_word_for_it_is_not_told() {
    let mut quiet = PropertyBuf::new();
    quiet.push_number(PropertyId::RequestProblemInformation, 0);
    let mut bench = Bench::new(Config::default(), Version::V5);
    let mut proxy = Proxy::new(Config::default());
    bench.conn = proxy.open(None, None, 0);
    bench.proxy = proxy;
    bench.client(&connect(Version::V5, quiet.as_properties()));
    bench.receive(&Packet::ConnAck(ConnAck {
        session_present: false,
        reason: ReasonCode::Success,
        properties: Properties::EMPTY,
    }));
    bench.asks();
    let stated = user(STATED);
    bench.send(&Packet::Publish(publish(QoS::AtLeastOnce, &stated, b"17")));
    assert_eq!(bench.puback(), [0x40, 2, 0, 7]);
}
