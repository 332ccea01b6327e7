//! A controller and fake OpenFlow switches: what is found, what is laid, and
//! that nothing is changed that is as it should be.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use punctual_controller::{
    Controller, Effect, End, Event, Notice, Settings, SwitchProtocol, port_state,
};
use punctual_model::Nanos;
use punctual_model::srt::{Channel, Peer, Request, State};
use punctual_openflow::fake::{Emission, Switch, example};
use punctual_openflow::{
    Cookie, DatapathId, Envelope, FlowMod, IP_UDP, Match, Message, MultipartBody, MultipartRequest,
    OxmField, PortNo, QueueId, TableId, Xid, apply,
};

/// A frame that came to a host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Arrived {
    at: End,
    queue: Option<QueueId>,
    frame: Vec<u8>,
}

struct World {
    controller: Controller,
    settings: Settings,
    now: u64,
    switches: BTreeMap<u64, Switch>,
    cables: BTreeMap<End, End>,
    /// Messages of switches that the controller has not heard.
    heard: VecDeque<(u64, Envelope)>,
    deaf: bool,
    rows: BTreeMap<String, Channel>,
    requests: Vec<Request>,
    arrived: Vec<Arrived>,
    /// Queues that frames waited in between switches.
    queues: Vec<QueueId>,
    /// Frames between switches.
    carried: Vec<Vec<u8>>,
    /// Changes that were sent to switches.
    changes: Vec<Message>,
    notices: Vec<Notice>,
    /// For whom hosts were asked.
    asked: Vec<Ipv4Addr>,
    /// What became of requests, one after the other.
    states: Vec<State>,
}

/// The address of the host at port 1 or 2 of a switch.
fn address(switch: u8, port: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, switch, port)
}

fn mac(switch: u8, port: u8) -> [u8; 6] {
    [2, 0, 0, 0, switch, port]
}

impl World {
    /// Switches in a ring: hosts at ports 1 and 2, neighbours at 3 and 4.
    fn ring(switches: u64) -> Self {
        Self::ring_with(switches, Settings::default())
    }

    fn ring_with(switches: u64, settings: Settings) -> Self {
        let mut cables = BTreeMap::new();
        for datapath in 1..=switches {
            let next = datapath % switches + 1;
            let (a, b) = (
                End { datapath, port: 3 },
                End {
                    datapath: next,
                    port: 4,
                },
            );
            cables.insert(a, b);
            cables.insert(b, a);
        }
        let mut world = Self {
            controller: Controller::new(&settings),
            settings,
            now: 0,
            switches: BTreeMap::new(),
            cables,
            heard: VecDeque::new(),
            deaf: false,
            rows: BTreeMap::new(),
            requests: Vec::new(),
            arrived: Vec::new(),
            queues: Vec::new(),
            carried: Vec::new(),
            changes: Vec::new(),
            notices: Vec::new(),
            asked: Vec::new(),
            states: Vec::new(),
        };
        for datapath in 1..=switches {
            world.switch_on(datapath);
            world.connect(datapath);
        }
        world.tell(Event::Synchronised);
        world.run(4_000);
        for datapath in 1..=switches {
            for port in 1..=2 {
                world.arp(datapath as u8, port);
            }
        }
        world.run(500);
        world
    }

    fn time(&self) -> Nanos {
        Nanos(self.now)
    }

    fn switch_on(&mut self, datapath: u64) {
        let ports = (1..=4).map(PortNo);
        let switch = Switch::new(DatapathId(datapath), ports, self.time());
        self.switches.insert(datapath, switch);
    }

    fn connect(&mut self, datapath: u64) {
        let now = self.time();
        let ask = Message::MultipartRequest(MultipartRequest::PortDesc);
        let switch = self.switches.get_mut(&datapath).unwrap();
        let mut answers = switch.handle(&Envelope::new(Xid(1), ask), now);
        let ports = match answers.pop().map(|envelope| envelope.message) {
            Some(Message::MultipartReply(reply)) => match reply.body {
                MultipartBody::PortDesc(ports) => ports.iter().filter_map(port_state).collect(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        self.tell(Event::Connected {
            datapath,
            speaks: SwitchProtocol::OpenFlow,
            meters: 65_535,
            ports,
        });
    }

    fn tell(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.controller.handle(event, Nanos(self.now), &mut effects);
        for effect in effects {
            match effect {
                Effect::Send {
                    datapath,
                    xid,
                    message,
                } => {
                    if let Message::FlowMod(_) | Message::GroupMod(_) | Message::MeterMod(_) =
                        &message
                    {
                        self.changes.push(message.clone());
                    }
                    let now = self.time();
                    let Some(switch) = self.switches.get_mut(&datapath) else {
                        continue;
                    };
                    let answers = switch.handle(&Envelope::new(Xid(xid), message), now);
                    for answer in &answers {
                        assert!(!matches!(answer.message, Message::Error(_)), "{answer:?}");
                    }
                    let out = switch.take_emissions();
                    self.heard
                        .extend(answers.into_iter().map(|answer| (datapath, answer)));
                    self.emitted(datapath, out);
                }
                Effect::Write(channel) => {
                    self.states.push(channel.state);
                    self.rows.insert(channel.flow.clone(), channel);
                }
                Effect::Erase { flow, .. } => {
                    self.rows.remove(&flow);
                }
                Effect::Notice(notice) => self.notices.push(notice),
                Effect::Apply { .. } => panic!("all speak OpenFlow"),
            }
        }
    }

    /// Frames leave a switch.
    fn emitted(&mut self, datapath: u64, out: Vec<Emission>) {
        for emission in out {
            let from = End {
                datapath,
                port: emission.port.0,
            };
            match self.cables.get(&from).copied() {
                Some(to) => {
                    self.queues.extend(emission.queue);
                    self.carried.push(emission.frame.clone());
                    self.frame(to, &emission.frame);
                }
                None => {
                    self.resolve(from, &emission.frame);
                    self.arrived.push(Arrived {
                        at: from,
                        queue: emission.queue,
                        frame: emission.frame,
                    });
                }
            }
        }
    }

    /// A host answers who asks for its address without telling one.
    fn resolve(&mut self, at: End, frame: &[u8]) {
        let ([_, _, _, _, _, _, asker @ ..], Some(&[a, b, c, d])) =
            (frame, frame.get(38..).and_then(<[u8]>::first_chunk))
        else {
            return;
        };
        if frame[12..14] != [0x08, 0x06] || frame[28..32] != [0; 4] {
            return;
        }
        let wanted = Ipv4Addr::new(a, b, c, d);
        self.asked.push(wanted);
        let (switch, port) = (at.datapath as u8, at.port as u8);
        if wanted == address(switch, port) {
            let mut answer = example::arp();
            answer[..6].copy_from_slice(&asker[..6]);
            answer[6..12].copy_from_slice(&mac(switch, port));
            answer[21] = 2;
            answer[22..28].copy_from_slice(&mac(switch, port));
            answer[28..32].copy_from_slice(&wanted.octets());
            answer[32..38].copy_from_slice(&asker[..6]);
            answer[38..42].copy_from_slice(&[0; 4]);
            self.frame(at, &answer);
        }
    }

    /// A frame comes to a port.
    fn frame(&mut self, at: End, frame: &[u8]) {
        let now = self.time();
        let Some(switch) = self.switches.get_mut(&at.datapath) else {
            return;
        };
        let out = switch.packet(PortNo(at.port), frame, now);
        let said = switch.take_messages();
        self.heard
            .extend(said.into_iter().map(|message| (at.datapath, message)));
        self.emitted(at.datapath, out);
    }

    fn hear(&mut self) {
        while let Some((datapath, envelope)) = self.heard.pop_front().filter(|_| !self.deaf) {
            let Envelope { xid, message } = envelope;
            self.tell(Event::Message {
                datapath,
                xid: xid.0,
                message,
            });
        }
    }

    /// Lets milliseconds pass.
    fn run(&mut self, millis: u64) {
        self.hear();
        let end = self.now + millis * 1_000_000;
        while self.controller.next_tick().0 <= end && !self.deaf {
            self.now = self.now.max(self.controller.next_tick().0) + 1;
            self.tell(Event::Tick);
            self.hear();
        }
        self.now = self.now.max(end);
    }

    fn arp(&mut self, switch: u8, port: u8) {
        let mut frame = example::arp();
        frame[..6].copy_from_slice(&[0xff; 6]);
        frame[6..12].copy_from_slice(&mac(switch, port));
        frame[22..28].copy_from_slice(&mac(switch, port));
        frame[28..32].copy_from_slice(&address(switch, port).octets());
        self.frame(
            End {
                datapath: switch.into(),
                port: port.into(),
            },
            &frame,
        );
        self.hear();
    }

    /// A host sends a datagram with a mark of its own.
    fn udp(&mut self, from: (u8, u8), to: Ipv4Addr, to_mac: [u8; 6], ports: (u16, u16)) {
        let mut frame = example::v4_between(address(from.0, from.1), to, IP_UDP, ports, b"hello");
        frame[..6].copy_from_slice(&to_mac);
        frame[6..12].copy_from_slice(&mac(from.0, from.1));
        frame[15] = 63 << 2;
        self.arrived.clear();
        self.queues.clear();
        self.carried.clear();
        self.frame(
            End {
                datapath: from.0.into(),
                port: from.1.into(),
            },
            &frame,
        );
    }

    fn request(&mut self, request: Request) {
        self.requests.push(request.clone());
        self.tell(Event::Request(request));
        self.run(2_000);
    }

    fn restart_controller(&mut self) {
        self.begin_anew();
        for datapath in self.switches.keys().copied().collect::<Vec<_>>() {
            self.connect(datapath);
        }
        self.changes.clear();
        self.run(6_000);
    }

    /// Another controller, which has been told all requests and knows no switch.
    fn begin_anew(&mut self) {
        self.heard.clear();
        self.controller = Controller::new(&self.settings);
        for channel in self.rows.values().cloned().collect::<Vec<_>>() {
            self.tell(Event::Known(channel));
        }
        for request in self.requests.clone() {
            self.tell(Event::Request(request));
        }
        self.tell(Event::Synchronised);
    }

    /// The group's packets come once to each member, as if sent to it alone.
    fn check_group(&mut self, from: (u8, u8), members: &[(u8, u8)]) {
        let group = match self.rows["g"].group_address {
            Some(IpAddr::V4(group)) => group,
            other => panic!("{other:?}"),
        };
        self.udp(from, group, [1, 0, 0x5e, 0, 0, 1], (4000, 1883));
        let mut came: Vec<_> = self
            .arrived
            .iter()
            .map(|arrived| (arrived.at.datapath, arrived.at.port))
            .collect();
        came.sort_unstable();
        let wanted: Vec<_> = members
            .iter()
            .map(|(s, p)| (u64::from(*s), u32::from(*p)))
            .collect();
        assert_eq!(came, wanted);
        assert!(
            self.queues.iter().all(|queue| *queue == QueueId(5)),
            "{:?}",
            self.queues
        );
        for arrived in &self.arrived {
            assert_eq!(arrived.queue, Some(QueueId(5)));
            let (s, p) = (arrived.at.datapath as u8, arrived.at.port as u8);
            assert_eq!(arrived.frame[..6], mac(s, p));
            assert_eq!(arrived.frame[30..34], address(s, p).octets());
            // The port that it listens on.
            assert_eq!(arrived.frame[36..38], 5000_u16.to_be_bytes());
            assert_eq!(arrived.frame[15] >> 2, 5 << 3, "the mark of the class");
        }
    }
}

fn group_of(members: &[(u8, u8)]) -> Request {
    let peer = |(s, p): &(u8, u8)| Peer::udp(address(*s, *p), 5000);
    Request {
        manager: "m".into(),
        flow: "g".into(),
        generation: 1,
        topic: "g".into(),
        qos: 0,
        publisher: Peer::udp(address(1, 1), 4000),
        subscribers: members.iter().map(peer).collect(),
        broker: None,
        deadline_ns: 10_000_000,
        period_ns: 10_000_000,
        jitter_ns: 0,
        size: 100,
        wire_bytes: 200,
        frames: 1,
        priority: Some(5),
        bandwidth: None,
    }
}

#[test]
fn links_and_hosts_are_found() {
    let world = World::ring(5);
    let status = world.controller.status();
    let between = status
        .links
        .iter()
        .filter(|link| link.from.port >= 3 && link.up);
    assert_eq!(between.count(), 10);
    assert_eq!(status.hosts.len(), 10);
    for host in &status.hosts {
        let [_, _, _, _, s, p] = host.mac.0;
        assert_eq!(
            host.host.at,
            Some(End {
                datapath: s.into(),
                port: p.into()
            })
        );
        assert_eq!(host.host.addresses, [IpAddr::V4(address(s, p))]);
    }
}

#[test]
fn other_packets_take_shortest_ways_without_their_marks() {
    let mut world = World::ring(5);
    world.udp((1, 1), address(3, 2), mac(3, 2), (1, 2));
    assert_eq!(world.arrived.len(), 1);
    assert_eq!(
        world.arrived[0].at,
        End {
            datapath: 3,
            port: 2
        }
    );
    assert_eq!(
        world.arrived[0].frame[15] >> 2,
        0,
        "the mark of the sender is gone"
    );
    assert_eq!(world.queues, [QueueId(0), QueueId(0)]);
    // A broadcast and a packet for a group with link scope reach each other host once. A packet for another group,
    // to which no request refers, reaches none.
    let mut sends = |to: Ipv4Addr, to_mac: [u8; 6]| {
        world.udp((2, 1), to, to_mac, (1, 2));
        let mut came: Vec<_> = world.arrived.iter().map(|arrived| arrived.at).collect();
        came.sort_unstable();
        came.dedup();
        (came.len(), world.arrived.len())
    };
    assert_eq!(sends(Ipv4Addr::BROADCAST, [0xff; 6]), (9, 9));
    let on_link = Ipv4Addr::new(224, 0, 0, 251);
    assert_eq!(sends(on_link, [1, 0, 0x5e, 0, 0, 251]), (9, 9));
    let group = Ipv4Addr::new(239, 1, 1, 1);
    assert_eq!(sends(group, [1, 0, 0x5e, 1, 1, 1]), (0, 0));
}

#[test]
fn flows_are_laid_and_taken_away() {
    let mut world = World::ring(5);
    let members = [(3, 1), (4, 2)];
    world.request(group_of(&members));
    assert_eq!(
        world.rows["g"].state,
        State::Admitted,
        "{}",
        world.rows["g"].reason
    );
    world.check_group((1, 1), &members);
    world.changes.clear();
    world.tell(Event::Withdrawn {
        manager: "m".into(),
        flow: "g".into(),
    });
    world.run(2_000);
    // All that was added was deleted: groups and the meter, too.
    let deleted = |message: &&Message| match message {
        Message::GroupMod(group) => group.buckets.is_empty(),
        Message::MeterMod(meter) => meter.bands.is_empty(),
        Message::FlowMod(flow) => flow.instructions.is_empty(),
        _ => false,
    };
    let kinds = |number: u8| {
        world
            .changes
            .iter()
            .filter(deleted)
            .filter(|message| message.number() == number)
            .count()
    };
    assert!(
        kinds(14) >= 4 && kinds(15) >= 1 && kinds(29) == 1,
        "{:?}",
        world.changes
    );
}

#[test]
fn a_priority_can_be_carried_in_a_tag_between_switches() {
    let settings = Settings {
        tags: true,
        ..Settings::default()
    };
    let mut world = World::ring_with(5, settings);
    let members = [(3, 1), (4, 2)];
    world.request(group_of(&members));
    // Hosts get no tag, or what follows it would not be where it is looked for.
    world.check_group((1, 1), &members);
    assert!(!world.carried.is_empty());
    for frame in &world.carried {
        assert_eq!(frame[12..14], [0x81, 0x00], "802.1Q");
        assert_eq!(frame[14] >> 5, 5, "the priority code point of the class");
    }
}

#[test]
fn nothing_is_sent_that_is_there_and_nothing_is_touched_that_is_not_ours() {
    let mut world = World::ring(5);
    let members = [(3, 1), (4, 2)];
    world.request(group_of(&members));
    // Somebody else has an entry.
    let now = world.time();
    let foreign = FlowMod::add(
        TableId(0),
        9,
        Match::new([OxmField::EthType(0x88f7)]).unwrap(),
        apply([]),
    );
    let foreign = Message::FlowMod(foreign.with_cookie(Cookie(7)));
    world
        .switches
        .get_mut(&2)
        .unwrap()
        .handle(&Envelope::new(Xid(9), foreign), now);

    let before = world.rows.clone();
    world.restart_controller();
    assert_eq!(world.changes, [], "all was as it should be");
    assert_eq!(world.rows, before);
    world.check_group((1, 1), &members);
    let mut reconciled = world.notices.iter().filter_map(|notice| match notice {
        Notice::Reconciled { changes, .. } => Some(*changes),
        _ => None,
    });
    assert_eq!(reconciled.next_back(), Some(0));

    // A switch that begins anew gets all of its part.
    world.tell(Event::Disconnected { datapath: 3 });
    world.switch_on(3);
    world.connect(3);
    world.run(3_000);
    world.check_group((1, 1), &members);
}

/// Switches wait some seconds between two attempts to connect, each as long as it likes. A
/// packet a millisecond finds its entries all the time.
#[test]
fn what_was_promised_stays_while_switches_come_back_one_after_the_other() {
    for order in [[1, 2, 3, 4, 5], [3, 5, 4, 2, 1]] {
        let mut world = World::ring(5);
        let members = [(3, 1), (4, 2)];
        let mut asked = group_of(&members);
        asked.period_ns = 500_000;
        world.request(asked);
        world.run(1_000);
        let before = world.rows.clone();
        world.begin_anew();
        world.changes.clear();
        for datapath in order {
            for _ in 0..2_100 {
                world.run(1);
                world.check_group((1, 1), &members);
            }
            world.connect(datapath);
        }
        for _ in 0..6_000 {
            world.run(1);
            world.check_group((1, 1), &members);
        }
        assert!(world.controller.is_settled());
        assert_eq!(world.changes, [], "{order:?}");
        assert_eq!(world.rows, before);
    }
}

/// What other packets go by stays as well, also where nothing was promised.
#[test]
fn a_switch_that_comes_late_keeps_what_is_on_it_until_hosts_are_known() {
    let mut world = World::ring(3);
    world.run(1_000);
    world.begin_anew();
    world.changes.clear();
    world.run(9_000);
    for datapath in 1..=3 {
        world.connect(datapath);
        world.run(300);
    }
    for _ in 0..6_000 {
        world.run(1);
        world.udp((1, 1), address(3, 2), mac(3, 2), (4000, 1883));
        let ends: Vec<End> = world.arrived.iter().map(|arrived| arrived.at).collect();
        let there = End {
            datapath: 3,
            port: 2,
        };
        assert_eq!(ends, [there], "at {} ms", world.now / 1_000_000);
    }
    assert!(world.controller.is_settled());
    assert_eq!(world.changes, []);
}

/// A switch that does not come back does not hold up decisions for ever.
#[test]
fn what_is_not_there_for_long_is_gone() {
    let mut world = World::ring(4);
    let members = [(3, 1)];
    world.request(group_of(&members));
    world.switches.remove(&3);
    world.begin_anew();
    for datapath in [1, 2, 4] {
        world.connect(datapath);
    }
    world.states.clear();
    let mut other = group_of(&[(2, 2)]);
    other.flow = "other".into();
    world.tell(Event::Request(other));
    world.run(14_000);
    assert_eq!(world.states, [], "nothing is decided yet");
    world.run(3_000);
    assert_eq!(world.rows["other"].state, State::Admitted);
    assert_ne!(world.rows["g"].state, State::Admitted);
    world.switch_on(3);
    world.connect(3);
    world.run(3_000);
    world.arp(3, 1);
    world.run(2_000);
    assert_eq!(world.rows["g"].state, State::Admitted);
    world.check_group((1, 1), &members);
}

/// It is in effect before any switch has confirmed anything, and answered after
/// all have.
#[test]
fn a_new_stream_to_one_receiver_is_laid_at_once() {
    let mut world = World::ring(5);
    let mut asked = group_of(&[]);
    asked.broker = Some(Peer::udp(address(3, 1), 1883));
    world.deaf = true;
    world.tell(Event::Request(asked));
    world.udp((1, 1), address(3, 1), mac(3, 1), (4000, 1883));
    assert_eq!(world.arrived[0].queue, Some(QueueId(5)));
    assert_eq!(world.queues, [QueueId(5), QueueId(5)]);
    assert!(world.rows.is_empty());
    world.deaf = false;
    world.run(500);
    assert_eq!(world.rows["g"].state, State::Admitted);
}

/// Switches that kept their entries know where hosts are, not what their
/// addresses are.
#[test]
fn a_controller_that_begins_anew_asks_for_the_hosts_of_requests() {
    let mut world = World::ring(4);
    let members = [(3, 1), (4, 2)];
    world.requests.push(group_of(&members));
    world.restart_controller();
    assert_eq!(world.states, [State::Admitted], "{:?}", world.rows);
    world.check_group((1, 1), &members);
    // Nobody is asked for who is known, and nothing goes astray.
    world.asked.clear();
    world.run(3_000);
    assert!(world.asked.is_empty(), "{:?}", world.asked);
    let host = |end| (1..=2).contains(&end);
    assert!(world.arrived.iter().all(|arrived| host(arrived.at.port)));
}

#[test]
fn hosts_are_asked_for_in_turns() {
    let mut world = World::ring(3);
    let strangers: Vec<Ipv4Addr> = (0..80).map(|n| Ipv4Addr::new(10, 9, 0, n)).collect();
    for (number, stranger) in strangers.iter().enumerate() {
        let mut asked = group_of(&[]);
        asked.flow = format!("f{number}");
        asked.subscribers = [Peer::udp(*stranger, 5000)].into();
        world.tell(Event::Request(asked));
    }
    // At six ports.
    world.asked.clear();
    world.run(500);
    assert!(
        (1..=6 * 2 * 32).contains(&world.asked.len()),
        "{}",
        world.asked.len()
    );
    world.run(2_500);
    let mut asked = world.asked.clone();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked, strangers);
    assert!(world.rows.values().all(|row| row.state == State::Pending));
}

#[test]
fn what_was_withdrawn_while_the_controller_was_away_goes() {
    let mut world = World::ring(4);
    world.request(group_of(&[(3, 1), (2, 2)]));
    world.requests.clear();
    world.restart_controller();
    assert!(world.rows.is_empty());
    assert!(world.changes.iter().all(|message| match message {
        Message::FlowMod(flow) => flow.instructions.is_empty(),
        Message::GroupMod(group) => group.buckets.is_empty(),
        Message::MeterMod(meter) => meter.bands.is_empty(),
        _ => false,
    }));
    assert!(!world.changes.is_empty());
}

#[test]
fn switches_go_around_a_dead_link_by_themselves() {
    let mut world = World::ring(5);
    let members = [(3, 1)];
    world.request(group_of(&members));
    world.run(1_000);
    assert_eq!(world.controller.status().uncovered, []);
    for port in [3, 4] {
        let far = world.cables[&End { datapath: 1, port }];
        // Nobody tells the controller.
        world.deaf = true;
        world
            .switches
            .get_mut(&1)
            .unwrap()
            .set_link(PortNo(port), false);
        world
            .switches
            .get_mut(&far.datapath)
            .unwrap()
            .set_link(PortNo(far.port), false);
        world.check_group((1, 1), &members);
        world.deaf = false;
        // Now it is told, finds another path, and that works, too.
        let said: Vec<_> = [1, far.datapath]
            .into_iter()
            .flat_map(|datapath| {
                let said = world.switches.get_mut(&datapath).unwrap().take_messages();
                said.into_iter().map(move |message| (datapath, message))
            })
            .collect();
        world.heard.extend(said);
        world.run(1_000);
        assert_eq!(
            world.rows["g"].state,
            State::Admitted,
            "{}",
            world.rows["g"].reason
        );
        world.check_group((1, 1), &members);
        world
            .switches
            .get_mut(&1)
            .unwrap()
            .set_link(PortNo(port), true);
        world
            .switches
            .get_mut(&far.datapath)
            .unwrap()
            .set_link(PortNo(far.port), true);
        for datapath in [1, far.datapath] {
            let said = world.switches.get_mut(&datapath).unwrap().take_messages();
            world
                .heard
                .extend(said.into_iter().map(|message| (datapath, message)));
        }
        world.run(3_000);
    }
}

#[test]
fn a_silent_link_is_noticed_when_no_probe_comes() {
    let mut world = World::ring(4);
    world.request(group_of(&[(2, 1)]));
    let cable = (
        End {
            datapath: 1,
            port: 3,
        },
        End {
            datapath: 2,
            port: 4,
        },
    );
    assert!(
        world.rows["g"]
            .paths
            .values()
            .any(|path| path.contains(&"s1>s2".to_owned()))
    );
    // Carriers stay; nothing comes through.
    world.cables.insert(
        cable.0,
        End {
            datapath: 99,
            port: 1,
        },
    );
    world.cables.insert(
        cable.1,
        End {
            datapath: 99,
            port: 2,
        },
    );
    world.run(4_000);
    assert_eq!(
        world.rows["g"].state,
        State::Admitted,
        "{}",
        world.rows["g"].reason
    );
    world.check_group((1, 1), &[(2, 1)]);
}
