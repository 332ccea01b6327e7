//! What must hold for any bytes from a neighbour: the check of the fuzz target
//! `mesh`, which `crates/mesh/tests/replay.rs` also runs over the seeds.

use punctual_mesh::transfer::{
    self, Bounds, Event, HomeId, Located, Mark, Sessions, Times, TransferMessage, Transfers,
};
use punctual_mesh::wire::{Message, Open, SessionAddress, VERSIONS};
use punctual_mesh::{BrokerId, Node, Settings, Strategy};
use punctual_model::Nanos;

/// The same for what brokers' cores say to each other about sessions that move.
fn transfers(data: &[u8]) {
    struct Nothing;
    impl Sessions for Nothing {
        fn mark(&self, _: &str) -> Option<Mark> {
            None
        }
    }
    if let Ok(located) = Located::decode(data) {
        assert_eq!(located.encode(), data);
    }
    if let Ok(address) = SessionAddress::decode(data) {
        assert_eq!(address.encode(), data);
    }
    let (Ok(message), Some(own), Some(other)) = (
        TransferMessage::decode(data),
        HomeId::new("own"),
        HomeId::new("one"),
    ) else {
        return;
    };
    assert_eq!(message.encode(), data);
    let long = Nanos::from_secs(60);
    let mut transfers = Transfers::new(transfer::Settings {
        own,
        instance: 1,
        times: Times {
            session_wait: long,
            heal: long,
            keep: long,
        },
        bounds: Bounds::default(),
    });
    transfers.set_reach(&[other.clone()].into(), false);
    transfers.connect("c", false, 1, &Nothing);
    for _ in 0..2 {
        let event = Event::Message(other.clone(), message.clone());
        transfers.handle("c", event, 1_800_000_000_000_000, &Nothing);
    }
}

/// Decodes the input; what decodes is encoded the same again, and a broker with two
/// neighbours takes it from one of them, in its turn, without a panic.
pub fn mesh(data: &[u8]) {
    transfers(data);
    let message = Message::decode(data);
    match &message {
        Ok(message) => assert_eq!(message.encode(), data),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let Some(own) = BrokerId::new("own") else {
        return;
    };
    let now = Nanos::from_secs(1);
    let mut node = Node::new(Settings::new(own, 1, 5), now);
    node.set_clock(1_800_000_000_000_000);
    let mut links = Vec::new();
    for peer in ["one", "two"] {
        let Some(id) = BrokerId::new(peer) else {
            return;
        };
        let open = Open {
            versions: (*VERSIONS.start(), *VERSIONS.end()),
            id,
            instance: 1,
            strategy: Strategy::SubscriptionTable,
            dialled: true,
        };
        links.extend(node.link_up(&open, 1.0, now).ok());
    }
    if let Ok(Message::Open(open)) = &message {
        let _ = node.link_up(open, 1.0, now);
    }
    for (turn, link) in links.iter().cycle().take(4).enumerate() {
        let now = now + Nanos::from_secs(turn as u64);
        let _ = node.receive(*link, data, now);
        node.tick(now);
        for output in node.take_outputs() {
            if let punctual_mesh::Output::Send(_, bytes) = output {
                assert!(Message::decode(&bytes).is_ok());
            }
        }
    }
}
