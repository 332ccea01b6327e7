//! Work whose length a client decides is done in slices: between two of them others are served, a
//! slice takes no more than its budget, and the whole takes no more than what there is of it.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod support;

use punctual_broker::{Budget, ConnId, Flow, FlowDecision, Output, Work};
use punctual_codec::{
    Packet, PacketType, Properties, Publish, QoS, SubAck, Subscribe, SubscribeOptions, UnsubAck,
    Unsubscribe, Version,
};
use punctual_model::{Answer, Requirements};

use support::{GRANT, NOW, Rig};

/// Units of a slice.
const SLICE: u64 = 200;

/// Most that a slice may take beyond its budget: what it has begun of one filter or message.
const PIECE: u64 = 64;

impl Rig {
    /// Does a slice; what it was, and the units that it took.
    fn slice(&mut self) -> Option<(Work, u64)> {
        let mut budget = Budget::new(SLICE);
        let work = self.shard.work(NOW, &mut budget)?;
        Some((work, budget.spent()))
    }

    /// Does all slices of one kind that wait, with `between` after each; how many there were.
    fn slices(&mut self, kind: Work, mut between: impl FnMut(&mut Self)) -> u64 {
        let mut count = 0;
        while let Some((work, _)) = self.slice() {
            assert!(work == kind || work == Work::Timers, "{work:?}");
            count += u64::from(work == kind);
            between(self);
        }
        count
    }

    fn resumed(&mut self) -> Vec<ConnId> {
        let mut outputs = Vec::new();
        self.shard.take_outputs(&mut outputs);
        let resumed = outputs.into_iter().filter_map(|output| match output {
            Output::Resume(conn) => Some(conn),
            _ => None,
        });
        resumed.collect()
    }
}

fn filters(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("f/{n}/+")).collect()
}

#[test]
fn others_are_served_between_slices_of_subscribe() {
    let mut rig = Rig::new();
    let [storm, publisher, other] = ["storm", "publisher", "other"].map(|id| rig.client(id));
    rig.subscribe(other, &["t".to_owned()]);
    rig.kinds(other);
    let filters = filters(10_000);
    // Nothing more is read from it until it has its acknowledgement.
    assert_eq!(rig.subscribe(storm, &filters), Flow::Pause);
    assert_eq!(rig.kinds(storm), []);
    let slices = rig.slices(Work::Filters, |rig| {
        rig.publish(publisher, "t", false);
        assert_eq!(rig.kinds(other), [PacketType::Publish]);
    });
    // One filter costs the same, be it the first or the last.
    let units = slices * SLICE;
    assert!((10_000..30_000 * 16).contains(&units), "{slices}");
    assert!(slices > 500, "{slices}");
    assert_eq!(rig.resumed(), [storm]);
    let packets = rig.read(storm);
    let [(PacketType::SubAck, body)] = &packets[..] else {
        panic!("{packets:?}");
    };
    let ack = SubAck::decode(body, Version::V5).unwrap();
    assert_eq!((ack.packet_id, ack.reasons.len()), (7, 10_000));
    rig.publish(publisher, "f/9999/x", false);
    assert_eq!(rig.kinds(storm), [PacketType::Publish]);
}

#[test]
fn unsubscribe_is_sliced_and_answered_filter_by_filter() {
    let mut rig = Rig::new();
    let [storm, publisher] = ["storm", "publisher"].map(|id| rig.client(id));
    let mut filters = filters(5000);
    rig.subscribe(storm, &filters);
    rig.slices(Work::Filters, |_| {});
    rig.kinds(storm);
    filters[3] = "unknown".to_owned();
    let mut bytes = Vec::new();
    let asked: Vec<&str> = filters.iter().map(|filter| &**filter).collect();
    Unsubscribe::put(9, Properties::EMPTY, &asked, Version::V5, &mut bytes).unwrap();
    assert_eq!(rig.send(storm, &bytes), Flow::Pause);
    assert!(rig.slices(Work::Filters, |_| {}) > 200);
    let packets = rig.read(storm);
    let [(PacketType::UnsubAck, body)] = &packets[..] else {
        panic!("{packets:?}");
    };
    let ack = UnsubAck::decode(body, Version::V5).unwrap();
    assert_eq!((ack.packet_id, ack.reasons.len()), (9, 5000));
    let unknown: Vec<usize> = (0..5000).filter(|at| ack.reasons[*at] == 0x11).collect();
    assert_eq!(unknown, [3]);
    rig.publish(publisher, "f/2/x", false);
    rig.publish(publisher, "f/3/x", false);
    assert_eq!(rig.read(storm).len(), 1);
}

#[test]
fn slices_end_with_their_client() {
    let mut rig = Rig::new();
    let storm = rig.client("storm");
    rig.subscribe(storm, &filters(10_000));
    rig.slice();
    rig.shard.closed(storm, "gone", NOW);
    let rest: Vec<Work> = std::iter::from_fn(|| Some(rig.slice()?.0)).collect();
    // What was subscribed goes; no further filter is looked at.
    assert!(rest.len() < 10, "{rest:?}");
    assert_eq!(rig.shard.tasks(), 0);
    assert_eq!(rig.resumed(), []);
    assert_eq!(rig.directory.totals().subscriptions, 0);
}

/// They take turns: who asks for little waits for a slice of who asks for much.
#[test]
fn clients_take_turns() {
    let mut rig = Rig::new();
    let [much, little] = ["much", "little"].map(|id| rig.client(id));
    rig.subscribe(much, &filters(10_000));
    rig.subscribe(little, &filters(100));
    let mut slices = 0;
    while rig.kinds(little).is_empty() {
        slices += 1;
        assert!(slices < 30, "it waits for the other one");
        rig.slice();
    }
    assert_eq!(rig.kinds(much), []);
}

/// Packets of more than one slice wait in their connections while much else does.
#[test]
fn what_waits_is_bounded() {
    let mut rig = Rig::new();
    let clients: Vec<ConnId> = (0..4).map(|n| rig.client(&format!("c{n}"))).collect();
    let long = "l/".repeat(60) + &"x".repeat(400);
    let filters: Vec<String> = (0..20_000).map(|n| format!("{long}{n}")).collect();
    let options = SubscribeOptions::default();
    let filters: Vec<_> = filters.iter().map(|filter| (&**filter, options)).collect();
    let mut bytes = Vec::new();
    Subscribe::put(7, Properties::EMPTY, &filters, Version::V5, &mut bytes).unwrap();
    let taken = clients.iter().filter(|client| {
        let received = rig.shard.receive(**client, &bytes, NOW);
        assert_eq!(received.flow, Flow::Pause);
        received.consumed > 0
    });
    assert_eq!(taken.count(), 1);
    // The others are told of when there is room.
    rig.slices(Work::Filters, |_| {});
    let mut resumed = rig.resumed();
    resumed.sort_unstable_by_key(|id| id.slot);
    assert_eq!(resumed, clients);
}

/// A search for retained messages goes on in slices, once for a client however often it is asked.
#[test]
fn retained_messages_are_looked_up_in_slices() {
    let mut rig = Rig::new();
    let [storm, publisher, other] = ["storm", "publisher", "other"].map(|id| rig.client(id));
    for n in 0..20_000 {
        rig.publish(publisher, &format!("r/{n}"), true);
    }
    rig.subscribe(other, &["t".to_owned()]);
    rig.kinds(other);
    // Nothing of it matches.
    rig.subscribe(storm, &["+/+/none".to_owned()]);
    for _ in 0..10 {
        rig.subscribe(storm, &["+/+/none".to_owned()]);
    }
    assert!(rig.shard.tasks() <= 1);
    rig.slices(Work::Retained, |rig| {
        rig.publish(publisher, "t", false);
        assert_eq!(rig.kinds(other), [PacketType::Publish]);
    });
    assert!(
        rig.kinds(storm)
            .iter()
            .all(|kind| *kind == PacketType::SubAck)
    );
    // What was asked for behind it comes.
    rig.subscribe(storm, &["r/19999".to_owned()]);
    rig.slices(Work::Retained, |_| {});
    assert_eq!(rig.kinds(storm), [PacketType::SubAck, PacketType::Publish]);
}

/// Those that match are sent in slices, too.
#[test]
fn retained_messages_are_sent_in_slices() {
    const COUNT: usize = 2000;
    let mut rig = Rig::new();
    let [reader, publisher] = ["reader", "publisher"].map(|id| rig.client(id));
    for n in 0..COUNT {
        rig.publish(publisher, &format!("r/{n}"), true);
    }
    rig.subscribe(reader, &["r/+".to_owned()]);
    // A branch for each, and the message.
    let least = 2 * COUNT as u64 / (SLICE + PIECE);
    let mut slices = 0;
    while let Some((work, units)) = rig.slice() {
        assert_eq!(work, Work::Retained);
        assert!(units <= SLICE + PIECE, "{units}");
        slices += 1;
    }
    assert!(slices >= least, "{slices}");
    assert_eq!(rig.kinds(reader).len(), 1 + COUNT);
}

#[test]
fn a_piece_takes_what_it_was_given() {
    let mut rig = Rig::new();
    let storm = rig.client("storm");
    rig.subscribe(storm, &filters(1000));
    while let Some((_, units)) = rig.slice() {
        assert!(units <= SLICE + PIECE, "{units}");
    }
    let mut bytes = Vec::new();
    Packet::PingReq.encode(Version::V5, &mut bytes).unwrap();
    rig.send(storm, &bytes);
    assert_eq!(rig.kinds(storm), [PacketType::SubAck, PacketType::PingResp]);
}

/// What a session has left goes in slices; no message is for it meanwhile, and its client may be
/// back before that is done.
#[test]
fn sessions_are_cleared_away_in_slices() {
    let mut rig = Rig::new();
    let [storm, publisher, member] = ["storm", "publisher", "member"].map(|id| rig.client(id));
    let mut filters = filters(10_000);
    filters[0] = "$share/g/s".to_owned();
    rig.subscribe(storm, &filters);
    rig.slices(Work::Filters, |_| {});
    rig.kinds(storm);
    rig.subscribe(member, &["$share/g/s".to_owned()]);
    rig.kinds(member);
    rig.shard.closed(storm, "gone", NOW);
    // A new session of the same client has nothing to do with what is left.
    let again = rig.client("storm");
    rig.subscribe(again, &["f/1/+".to_owned()]);
    rig.kinds(again);
    let slices = rig.slices(Work::Remains, |rig| {
        // Its turn in the group has gone with it.
        rig.publish(publisher, "s", false);
        assert_eq!(rig.kinds(member), [PacketType::Publish]);
        rig.publish(publisher, "f/1/x", false);
        assert_eq!(rig.kinds(again), [PacketType::Publish]);
    });
    assert!(slices > 500, "{slices}");
    assert_eq!(rig.directory.totals().subscriptions, 2);
    assert_eq!(rig.shard.tasks(), 0);
}

/// So do the flows that it had, of which nothing is left to be gone through.
#[test]
fn flows_of_a_session_end_in_slices() {
    const FLOWS: usize = 1000;
    let mut rig = Rig::new();
    let publisher = rig.client("p");
    for n in 0..FLOWS {
        let decision = FlowDecision {
            answer: Answer::default(),
            grant: Some(GRANT),
        };
        let (topic, wish) = (format!("t/{n}"), Requirements::default());
        let shard = &mut rig.shard;
        shard.decide_flow("p", 0, &topic, wish, Some(decision), false, NOW);
    }
    let flows = |rig: &Rig| rig.directory.flows(None, 2 * FLOWS).0.len();
    assert_eq!(flows(&rig), FLOWS);
    rig.shard.closed(publisher, "gone", NOW);
    let at_once = FLOWS - flows(&rig);
    assert!((1..=8).contains(&at_once), "{at_once}");
    let mut before = flows(&rig);
    let slices = rig.slices(Work::Remains, |rig| {
        let left = flows(rig);
        assert!(before - left <= 4, "{before} {left}");
        before = left;
    });
    assert!(slices > 200, "{slices}");
    assert_eq!((flows(&rig), rig.shard.tasks()), (0, 0));
}

/// A reload that follows another one begins the pass again, and adds no task.
#[test]
fn reloads_in_a_row_are_one_task() {
    let mut rig = Rig::new();
    for n in 0..200 {
        rig.client(&format!("c{n}"));
    }
    for _ in 0..10 {
        rig.shard.access_changed();
        rig.slice();
    }
    assert_eq!(rig.shard.tasks(), 1);
    let slices = rig.slices(Work::Rights, |_| {});
    assert!((10..40).contains(&slices), "{slices}");
    assert_eq!(rig.shard.tasks(), 0);
}

/// Members of a shared subscription take each message by itself.
#[test]
fn others_have_their_turn_between_many_small_messages() {
    let mut rig = Rig::new();
    let storm = rig.client("storm");
    let members = ["one", "two"].map(|id| rig.client(id));
    for member in members {
        rig.subscribe(member, &["$share/g/t".to_owned()]);
        rig.kinds(member);
    }
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: 0,
        properties: Properties::EMPTY,
        payload: b"x",
    };
    let mut bytes = Vec::new();
    for _ in 0..1000 {
        publish.encode(Version::V5, &mut bytes).unwrap();
    }
    let (mut consumed, mut calls) = (0, 0);
    loop {
        let received = rig
            .shard
            .receive_promised(storm, &bytes[consumed..], NOW, NOW);
        assert_eq!(received.flow, Flow::Read);
        consumed += received.consumed;
        calls += 1;
        if !received.more {
            break;
        }
    }
    assert_eq!(consumed, bytes.len());
    assert!((10..100).contains(&calls), "{calls}");
    assert_eq!(members.map(|it| rig.kinds(it).len()), [500; 2]);
}

/// Clients of a crowd, all of whom receive `t`.
const CROWD: usize = 2000;

impl Rig {
    fn crowd(&mut self) -> Vec<ConnId> {
        let crowd: Vec<ConnId> = (0..CROWD).map(|n| self.client(&format!("c{n}"))).collect();
        for client in &crowd {
            self.subscribe(*client, &["t".to_owned()]);
            self.kinds(*client);
        }
        crowd
    }

    fn publish_with(&mut self, client: ConnId, qos: QoS, packet_id: u16, payload: &[u8]) -> Flow {
        let bytes = publish_bytes(qos, packet_id, payload);
        self.send(client, &bytes)
    }

    /// The payloads that each client has been sent.
    fn payloads(&mut self, clients: &[ConnId]) -> Vec<Vec<Vec<u8>>> {
        let payloads = |packets: Vec<(PacketType, Vec<u8>)>| {
            let payload = |(kind, body): (PacketType, Vec<u8>)| {
                assert_eq!(kind, PacketType::Publish);
                body[4..].to_vec()
            };
            packets.into_iter().map(payload).collect()
        };
        clients.iter().map(|it| payloads(self.read(*it))).collect()
    }
}

fn publish_bytes(qos: QoS, packet_id: u16, payload: &[u8]) -> Vec<u8> {
    let publish = Publish {
        dup: false,
        qos,
        retain: false,
        topic: "t",
        packet_id,
        properties: Properties::EMPTY,
        payload,
    };
    let mut bytes = Vec::new();
    publish.encode(Version::V5, &mut bytes).unwrap();
    bytes
}

/// Others are served while very many clients are given a message, which each gets once, before the
/// next one of its publisher.
#[test]
fn a_crowd_is_given_a_message_in_slices() {
    let mut rig = Rig::new();
    let crowd = rig.crowd();
    let [publisher, other, listener] = ["publisher", "other", "listener"].map(|id| rig.client(id));
    rig.subscribe(listener, &["u".to_owned()]);
    rig.kinds(listener);
    let mut bytes = publish_bytes(QoS::AtLeastOnce, 5, b"1");
    let first = bytes.len();
    bytes.extend(publish_bytes(QoS::AtMostOnce, 0, b"2"));
    let received = rig.shard.receive(publisher, &bytes, NOW);
    // Nothing more is read from it, and it has no acknowledgement, until all have the message.
    assert_eq!((received.consumed, received.flow), (first, Flow::Pause));
    let slices = rig.slices(Work::FanOut, |rig| {
        rig.publish(other, "u", false);
        assert_eq!(rig.kinds(listener), [PacketType::Publish]);
    });
    assert!((10..200).contains(&slices), "{slices}");
    assert_eq!(rig.resumed(), [publisher]);
    assert_eq!(rig.kinds(publisher), [PacketType::PubAck]);
    assert_eq!(rig.send(publisher, &bytes[first..]), Flow::Pause);
    rig.slices(Work::FanOut, |_| {});
    let both = vec![b"1".to_vec(), b"2".to_vec()];
    assert!(rig.payloads(&crowd).iter().all(|it| *it == both));
    assert_eq!(rig.shard.tasks(), 0);
}

/// Who leaves or comes while a crowd is given a message neither stops that nor gets it twice.
#[test]
fn a_crowd_changes_while_it_is_given_a_message() {
    let mut rig = Rig::new();
    let crowd = rig.crowd();
    let publisher = rig.client("publisher");
    rig.publish_with(publisher, QoS::AtMostOnce, 0, b"1");
    let mut leaving = crowd.iter().copied().rev().step_by(3);
    let mut come = Vec::new();
    rig.slices(Work::FanOut, |rig| {
        for _ in 0..10 {
            let gone = leaving.next().unwrap();
            rig.shard.closed(gone, "gone", NOW);
        }
        let new = rig.client(&format!("new {}", come.len()));
        rig.subscribe(new, &["t".to_owned()]);
        rig.read(new);
        come.push(new);
    });
    let got = rig.payloads(&come);
    assert!(got.iter().all(|it| it.len() <= 1));
    let stayed: Vec<ConnId> = crowd.iter().copied().rev().skip(1).step_by(3).collect();
    assert!(rig.payloads(&stayed).iter().all(|it| it.len() == 1));
    assert_eq!(rig.resumed(), [publisher]);
}

/// A publisher that comes back while its message is still on its way waits for it, and is recognised.
#[test]
fn a_publisher_comes_back_while_its_message_goes_to_a_crowd() {
    let mut rig = Rig::new();
    let crowd = rig.crowd();
    let connect = |rig: &mut Rig| {
        let publisher = rig.client_that_stays("publisher");
        assert_eq!(rig.kinds(publisher), [PacketType::ConnAck]);
        publisher
    };
    let publisher = connect(&mut rig);
    rig.publish_with(publisher, QoS::ExactlyOnce, 5, b"1");
    rig.slice();
    rig.shard.closed(publisher, "gone", NOW);
    let again = connect(&mut rig);
    let bytes = publish_bytes(QoS::ExactlyOnce, 5, b"1");
    let received = rig.shard.receive(again, &bytes, NOW);
    assert_eq!((received.consumed, received.flow), (0, Flow::Pause));
    rig.slices(Work::FanOut, |_| {});
    assert_eq!(rig.resumed(), [again]);
    rig.send(again, &bytes);
    assert_eq!(rig.kinds(again), [PacketType::PubRec]);
    assert_eq!(rig.shard.tasks(), 0);
    assert!(rig.payloads(&crowd).iter().all(|it| it.len() == 1));
}

/// How many packets of a client are handled before others have their turn depends on how many
/// receivers they have.
#[test]
fn a_turn_counts_receivers() {
    let mut rig = Rig::new();
    let crowd: Vec<ConnId> = (0..300).map(|n| rig.client(&format!("c{n}"))).collect();
    for client in &crowd {
        rig.subscribe(*client, &["t".to_owned()]);
        rig.kinds(*client);
    }
    let publisher = rig.client("publisher");
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let one = publish_bytes(qos, u16::from(qos != QoS::AtMostOnce), &[7; 1000]);
        let bytes = one.repeat(64);
        let received = rig.shard.receive_promised(publisher, &bytes, NOW, NOW);
        assert!(received.more, "{qos:?}");
        let messages = received.consumed / one.len();
        assert!((1..=4).contains(&messages), "{qos:?} {messages}");
    }
}
