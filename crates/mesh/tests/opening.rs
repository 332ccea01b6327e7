//! The first message on a link: supported protocol versions, and refusals. Some brokers here
//! support a second version, which does not exist yet.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use punctual_mesh::wire::{Message, Open, VERSIONS, WireError};
use punctual_mesh::{BrokerId, Node, Output, Refusal, Settings, Strategy};
use punctual_model::Nanos;

const NOW: Nanos = Nanos::from_secs(1);

fn node(name: &str) -> Node {
    Node::new(Settings::new(BrokerId::new(name).unwrap(), 1, 1), NOW)
}

/// The first message of a broker that supports these versions.
fn opening(name: &str, dialled: bool, versions: (u8, u8)) -> Open {
    let open = node(name).open(dialled);
    Open { versions, ..open }
}

#[test]
fn a_broker_says_which_versions_it_speaks() {
    let open = node("a").open(true);
    assert_eq!(open.versions, (1, 1));
    assert_eq!(open.versions, (*VERSIONS.start(), *VERSIONS.end()));
}

#[test]
fn the_highest_common_version_is_spoken() {
    let mut ours = node("a");
    let mut theirs = node("b");
    let newer = opening("b", true, (1, 2));
    // As the message arrives from the network.
    let bytes = Message::Open(newer.clone()).encode();
    assert_eq!(Message::decode(&bytes), Ok(Message::Open(newer.clone())));
    let link = ours.link_up(&newer, 1.0, NOW).unwrap();
    assert_eq!(ours.status().links[0].version, 1);
    let back = theirs.link_up(&ours.open(false), 1.0, NOW).unwrap();
    // The link works like any other.
    loop {
        let (said, heard) = (ours.take_outputs(), theirs.take_outputs());
        if said.is_empty() && heard.is_empty() {
            break;
        }
        for output in said {
            if let Output::Send(_, bytes) = output {
                theirs.receive(back, &bytes, NOW).unwrap();
            }
        }
        for output in heard {
            if let Output::Send(_, bytes) = output {
                ours.receive(link, &bytes, NOW).unwrap();
            }
        }
    }
    for status in [ours.status(), theirs.status()] {
        assert!(status.links[0].edge.carries(), "{status:?}");
    }
}

#[test]
fn who_speaks_no_common_version_is_refused() {
    let mut node = node("a");
    let first: Vec<Output> = node.take_outputs().into();
    assert!(matches!(first[..], [Output::Reach { .. }]), "{first:?}");
    for (versions, why) in [
        (
            (2, 2),
            "speaks versions 2 to 2 of the mesh protocol, this broker 1 to 1: none in common",
        ),
        (
            (2, 9),
            "speaks versions 2 to 9 of the mesh protocol, this broker 1 to 1: none in common",
        ),
    ] {
        let open = opening("b", true, versions);
        let refusal = node.link_up(&open, 1.0, NOW).unwrap_err();
        assert_eq!(refusal, Refusal::Version(versions));
        assert_eq!(refusal.to_string(), why);
        assert!(node.status().links.is_empty());
        assert!(node.take_outputs().is_empty());
    }
    // The neighbour may return with another build.
    let open = opening("b", true, (1, 2));
    assert!(node.link_up(&open, 1.0, NOW).is_ok());
}

#[test]
fn who_forwards_otherwise_is_refused() {
    let open = Open {
        strategy: Strategy::Flooding,
        ..opening("b", true, (1, 1))
    };
    let mut node = node("a");
    let refusal = node.link_up(&open, 1.0, NOW).unwrap_err();
    let (theirs, ours) = (Strategy::Flooding, Strategy::SubscriptionTable);
    assert_eq!(refusal, Refusal::Strategy { theirs, ours });
    assert!(node.status().links.is_empty());
}

#[test]
fn a_range_without_versions_is_not_valid() {
    for versions in [(0, 1), (0, 0), (2, 1)] {
        let bytes = Message::Open(opening("b", true, versions)).encode();
        assert_eq!(Message::decode(&bytes), Err(WireError::Field("versions")));
    }
}
