//! What is not as it was promised is told: on `$SYS`, to the log, and to whoever asks.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[allow(dead_code, reason = "other tests need more of it")]
mod support;

use std::time::Duration;

use punctual_broker::{
    Admission, Alarm, Ask, Budget, Config, ConnId, Event, FilterVerdict, FlowDecision, Nanos,
    Output, Policing, SubscriptionDecision,
};
use punctual_codec::{
    PacketType, Properties, PropertyBuf, Publish, QoS, RawPublish, Subscribe, SubscribeOptions,
    Version,
};
use punctual_model::{Answer, Condition, Conditions, Status};

use support::{GRANT, NOW, Rig};

const BOUND: Duration = Duration::from_millis(5);

fn rig() -> Rig {
    Rig::with(Config {
        admission: Some(Admission {
            refuse: false,
            policing: Policing::Off,
            max_flows_per_session: 10,
            absent_after: Nanos::from_secs(3600),
            conditions: Conditions::NONE.with(Condition::NoRealtime),
        }),
        ..Config::default()
    })
}

/// A client that may go on.
fn client(rig: &mut Rig, id: &str) -> ConnId {
    let client = rig.client(id);
    rig.shard.go_on(client);
    client
}

/// Subscribes a client as whoever admits flows lets it.
fn subscribe(rig: &mut Rig, client: ConnId, filters: &[String]) {
    let options = SubscribeOptions::default();
    let pairs: Vec<_> = filters.iter().map(|filter| (&**filter, options)).collect();
    let mut bytes = Vec::new();
    Subscribe::put(7, Properties::EMPTY, &pairs, Version::V5, &mut bytes).unwrap();
    let received = rig.shard.receive(client, &bytes, NOW);
    assert_eq!(received.consumed, 0, "it waits for the decision");
    // All are asked about.
    rig.shard.tick(NOW);
    let served = |filter: &String| (Box::from(&**filter), FilterVerdict::Served);
    let decision = SubscriptionDecision {
        verdicts: filters.iter().map(served).collect(),
        answer: None,
    };
    rig.shard.decide_subscription(client, decision).unwrap();
    let received = rig.shard.receive(client, &bytes, NOW);
    assert_eq!(received.consumed, bytes.len());
}

/// A message that asks for a deadline.
fn urgent() -> Vec<u8> {
    let mut properties = PropertyBuf::new();
    for (key, value) in [("rt-deadline", "1s"), ("rt-period", "1s")] {
        properties.push_user(key, value).unwrap();
    }
    let publish = Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: "axis/1",
        packet_id: 9,
        properties: properties.as_properties(),
        payload: b"x",
    };
    let mut bytes = Vec::new();
    publish.encode(Version::V5, &mut bytes).unwrap();
    bytes
}

/// Admits the flow that `publisher` asks for with its first message.
fn admit(rig: &mut Rig, publisher: ConnId) {
    let received = rig.shard.receive(publisher, &urgent(), NOW);
    assert_eq!(received.consumed, 0, "it waits for the decision");
    let mut outputs = Vec::new();
    rig.shard.take_outputs(&mut outputs);
    let asked = outputs.into_iter().find_map(|output| match output {
        Output::Admission(request) => match request.ask {
            Ask::Publish {
                topic,
                requirements,
                ..
            } => Some((request.asker, topic, requirements)),
            _ => None,
        },
        _ => None,
    });
    let (asker, topic, requirements) = asked.unwrap();
    let decision = FlowDecision {
        answer: Answer {
            status: Some(Status::Admitted),
            bound: Some(BOUND),
            flow: Some("axis/1@p".into()),
            ..Answer::default()
        },
        grant: Some(GRANT),
    };
    rig.shard.decide_flow(
        &asker.client_id,
        asker.session,
        &topic,
        requirements,
        Some(decision),
        false,
        NOW,
    );
}

fn events(rig: &mut Rig) -> Vec<Alarm> {
    let mut outputs = Vec::new();
    rig.shard.take_outputs(&mut outputs);
    let alarms = outputs.into_iter().filter_map(|output| match output {
        Output::Event(Event::Alarm(alarm)) => Some(alarm),
        _ => None,
    });
    alarms.collect()
}

/// Topics and payloads of what a client was sent.
fn texts(rig: &mut Rig, client: ConnId) -> Vec<(String, String)> {
    let packets = rig.read(client).into_iter();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let texts = packets.map(|(kind, body)| {
        assert_eq!(kind, PacketType::Publish);
        // With QoS 0.
        let publish = RawPublish::decode(0x30, &body, Version::V5).unwrap();
        (text(publish.topic), text(publish.payload))
    });
    texts.collect()
}

#[test]
fn a_message_beyond_its_bound_raises_an_alarm_once_in_a_while() {
    let mut rig = rig();
    let [publisher, receiver, watcher] = ["p", "s", "w"].map(|id| client(&mut rig, id));
    subscribe(&mut rig, receiver, &["axis/#".into()]);
    subscribe(&mut rig, watcher, &["$SYS/rt/alarms/#".into()]);
    rig.kinds(receiver);
    rig.kinds(watcher);
    admit(&mut rig, publisher);
    events(&mut rig);
    // It came when the thread was away, and is written too late.
    let late = |rig: &mut Rig, now: Nanos| {
        let received = rig.shard.receive_promised(publisher, &urgent(), now, now);
        assert_eq!(received.consumed, urgent().len());
        let (mut bytes, written) = (Vec::new(), now + Nanos::from_millis(7));
        assert!(
            rig.shard
                .next_packets(receiver, 1 << 20, &mut bytes, written)
                .is_some()
        );
        rig.shard.tick(now + Nanos::from_secs(2));
        events(rig)
    };
    let alarms = late(&mut rig, NOW);
    let [Alarm::Missed(missed)] = &alarms[..] else {
        panic!("{alarms:?}");
    };
    assert_eq!((&*missed.flow, missed.messages), ("axis/1@p", 1));
    assert_eq!(missed.longest, Nanos::from_millis(7));
    assert_eq!(missed.bound, Some(Nanos(BOUND.as_nanos() as u64)));
    assert_eq!(
        texts(&mut rig, watcher),
        [(
            "$SYS/rt/alarms/missed/axis/1@p".to_owned(),
            "messages=1 longest_us=7000 bound_us=5000 deadline_us=1000000".to_owned()
        )]
    );
    assert_eq!(late(&mut rig, NOW + Nanos::from_secs(3)), []);
    let alarms = late(&mut rig, NOW + Nanos::from_secs(20));
    let [Alarm::Missed(missed)] = &alarms[..] else {
        panic!("{alarms:?}");
    };
    assert_eq!(missed.messages, 2, "with the one that nobody was told of");
    let kept = rig.directory.alarms();
    assert_eq!(kept.len(), 2);
    assert_eq!(kept[0].1, alarms[0]);
}

#[test]
fn a_long_piece_of_work_names_its_client_and_filter() {
    let mut rig = rig();
    let storm = client(&mut rig, "storm");
    let filters: Vec<_> = (0..1000).map(|n| format!("f/{n}")).collect();
    subscribe(&mut rig, storm, &filters);
    let mut budget = Budget::new(200);
    assert!(rig.shard.work(NOW, &mut budget).is_some());
    rig.shard.overran("filters", Nanos(700_000), None, NOW);
    rig.shard.overran("read", Nanos(900_000), Some(storm), NOW);
    let alarms = events(&mut rig);
    let [Alarm::Overrun(filters), Alarm::Overrun(read)] = &alarms[..] else {
        panic!("{alarms:?}");
    };
    assert_eq!(filters.client.as_deref(), Some("storm"));
    assert_eq!(filters.filter.as_deref(), Some("f/32"));
    assert_eq!(read.client.as_deref(), Some("storm"));
    assert_eq!((read.filter.as_deref(), read.took), (None, Nanos(900_000)));
}

/// Whoever admits flows is asked about many filters in slices, too, and the answer is found for each.
#[test]
fn many_filters_are_asked_about_in_slices() {
    let mut rig = rig();
    let storm = client(&mut rig, "storm");
    let options = SubscribeOptions::default();
    let filters: Vec<_> = (0..1000).map(|n| format!("f/{n}")).collect();
    let pairs: Vec<_> = filters.iter().map(|filter| (&**filter, options)).collect();
    let mut bytes = Vec::new();
    Subscribe::put(7, Properties::EMPTY, &pairs, Version::V5, &mut bytes).unwrap();
    assert_eq!(rig.shard.receive(storm, &bytes, NOW).consumed, 0);
    let asked = |rig: &mut Rig| {
        let mut outputs = Vec::new();
        rig.shard.take_outputs(&mut outputs);
        outputs.into_iter().find_map(|output| match output {
            Output::Admission(request) => match request.ask {
                Ask::Subscribe { filters, .. } => Some(filters),
                _ => None,
            },
            _ => None,
        })
    };
    let mut slices = 0;
    let filters = loop {
        if let Some(filters) = asked(&mut rig) {
            break filters;
        }
        let mut budget = Budget::new(200);
        assert!(rig.shard.work(NOW, &mut budget).is_some());
        assert!(budget.spent() < 264, "{budget:?}");
        slices += 1;
    };
    assert_eq!((filters.len(), slices > 10), (1000, true), "{slices}");
    let verdict = |n: usize| match n % 2 {
        0 => FilterVerdict::Served,
        _ => FilterVerdict::Refused,
    };
    let verdicts = filters.into_iter().enumerate();
    let decision = SubscriptionDecision {
        verdicts: verdicts.map(|(n, filter)| (filter, verdict(n))).collect(),
        answer: None,
    };
    rig.shard.decide_subscription(storm, decision).unwrap();
    assert_eq!(rig.shard.receive(storm, &bytes, NOW).consumed, bytes.len());
    rig.shard.tick(NOW);
    let packets = rig.read(storm);
    let [(PacketType::SubAck, body)] = &packets[..] else {
        panic!("{packets:?}");
    };
    // Packet identifier, no properties, and a reason for each.
    let reasons = &body[3..];
    assert_eq!(reasons.len(), 1000);
    let is_right = |(n, reason): (usize, &u8)| *reason == if n % 2 == 0 { 0 } else { 0x97 };
    assert!(reasons.iter().enumerate().all(is_right));
}

/// Whoever is admitted is told what the bound takes for granted.
#[test]
fn what_is_not_guaranteed_is_said_with_the_bound() {
    let mut rig = rig();
    let [publisher, watcher] = ["p", "w"].map(|id| client(&mut rig, id));
    subscribe(&mut rig, watcher, &["$SYS/rt/clients/#".into()]);
    rig.kinds(watcher);
    admit(&mut rig, publisher);
    let texts = texts(&mut rig, watcher);
    let [(topic, text)] = &texts[..] else {
        panic!("{texts:?}");
    };
    assert_eq!(topic, "$SYS/rt/clients/p");
    assert!(text.contains("rt-status=admitted"), "{text}");
    assert!(text.contains("rt-condition=no-realtime"), "{text}");
}
