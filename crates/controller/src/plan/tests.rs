use std::collections::BTreeSet;

use super::*;

fn packet(dscp: u8) -> Packet {
    Packet {
        protocol: Protocol::Udp,
        source: [10, 0, 0, 1].into(),
        source_port: 5000,
        destination: [239, 192, 0, 1].into(),
        destination_port: 1883,
        dscp,
    }
}

fn entry(mark: Option<u8>, legs: Vec<Leg>) -> Entry {
    Entry {
        owner: "f".into(),
        police: None,
        mark: mark.map(|dscp| Mark { dscp, pcp: None }),
        legs,
    }
}

fn leg(port: PortNumber) -> Leg {
    Leg {
        port,
        queue: 5,
        hand_over: None,
        detour: None,
    }
}

fn port(to: FarEnd) -> Port {
    Port {
        name: "p".into(),
        link: None,
        rate_bps: 100_000_000,
        to,
    }
}

/// a:1 is the edge; a:2 leads to b:1, a:3 to c:1, c:2 to b:2; b:3 is the edge.
fn plan() -> Plan {
    let to = |name: &str, number| {
        port(FarEnd::Switch {
            name: name.into(),
            port: number,
        })
    };
    let edge = || port(FarEnd::Edge(vec!["h".into()]));
    let header = Header {
        protocol: Protocol::Udp,
        source: [10, 0, 0, 1].into(),
        source_port: None,
        destination: [239, 192, 0, 1].into(),
        destination_port: None,
    };
    let at = |in_port, dscp| Match {
        in_port,
        header,
        dscp,
        tagged: false,
    };
    let last = Leg {
        hand_over: Some(HandOver {
            address: Some(Rewrite {
                mac: Mac([2, 0, 0, 0, 0, 2]),
                ip: [10, 0, 0, 2].into(),
                port: Some(7),
            }),
            ..HandOver::default()
        }),
        ..leg(3)
    };
    let detour = Detour {
        port: 3,
        queue: 5,
        dscp: 44,
    };
    let first = Leg {
        detour: Some(detour),
        ..leg(2)
    };
    let switch = |ports: Vec<(u32, Port)>, entries: Vec<(Match, Entry)>| SwitchPlan {
        ports: ports.into_iter().collect(),
        entries: entries.into_iter().collect(),
        ..SwitchPlan::default()
    };
    let a = switch(
        vec![(1, edge()), (2, to("b", 1)), (3, to("c", 1))],
        vec![(at(1, None), entry(Some(40), vec![first]))],
    );
    let b = switch(
        vec![(1, to("a", 2)), (2, to("c", 2)), (3, edge())],
        vec![
            (at(1, Some(40)), entry(None, vec![last.clone()])),
            (at(2, Some(44)), entry(None, vec![last])),
        ],
    );
    let c = switch(
        vec![(1, to("a", 3)), (2, to("b", 2))],
        vec![(at(1, Some(44)), entry(None, vec![leg(2)]))],
    );
    let switches = [("a", a), ("b", b), ("c", c)];
    let switches = switches.map(|(name, plan)| (name.to_owned(), plan));
    Plan {
        switches: switches.into(),
    }
}

#[test]
fn packets_go_where_the_entries_send_them() {
    let delivered = plan()
        .deliver("a", 1, packet(63), &BTreeSet::new())
        .unwrap();
    let [copy] = delivered.as_slice() else {
        panic!("{delivered:?}");
    };
    assert_eq!(
        copy.hops,
        [("a".into(), 2, 5), ("b".into(), 3, 5)],
        "the mark of the sender does not count"
    );
    let packet = copy.packet;
    assert_eq!(packet.destination, IpAddr::from([10, 0, 0, 2]));
    assert_eq!((packet.destination_port, packet.dscp), (7, 0));
}

#[test]
fn detours_are_taken_when_a_port_is_down() {
    let down = BTreeSet::from([("a".to_owned(), 2)]);
    let delivered = plan().deliver("a", 1, packet(0), &down).unwrap();
    let ports: Vec<_> = delivered[0]
        .hops
        .iter()
        .map(|(name, port, _)| (name.as_str(), *port))
        .collect();
    assert_eq!(ports, [("a", 3), ("c", 2), ("b", 3)]);
    // Neither way works.
    let down = BTreeSet::from([("a".to_owned(), 2), ("a".to_owned(), 3)]);
    assert_eq!(plan().deliver("a", 1, packet(0), &down), Ok(vec![]));
}

#[test]
fn what_is_wrong_with_a_plan_is_found() {
    let none = BTreeSet::new();
    let lost = Fault::Lost("a".into(), 2);
    assert_eq!(plan().deliver("a", 2, packet(0), &none), Err(lost));

    let mut twice = plan();
    let first = twice
        .switches
        .get_mut("a")
        .unwrap()
        .entries
        .first_entry()
        .unwrap();
    first.into_mut().legs.push(leg(2));
    let again = Fault::Again("b".into(), 1);
    assert_eq!(twice.deliver("a", 1, packet(0), &none), Err(again));

    let mut nowhere = plan();
    nowhere.switches.get_mut("a").unwrap().ports.remove(&2);
    let no_port = Fault::NoPort("a".into(), 2);
    assert_eq!(nowhere.deliver("a", 1, packet(0), &none), Err(no_port));
}

#[test]
fn plans_survive_json() {
    let json = serde_json::to_string(&plan()).unwrap();
    assert!(json.contains(r#""match":{"in_port":1"#), "{json}");
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan());
}
