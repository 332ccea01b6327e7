//! What must hold for any bytes from a neighbour: the check of the fuzz target
//! `mesh`, which `crates/mesh/tests/replay.rs` also runs over the seeds.

use punctual_mesh::wire::{Message, Open, VERSIONS};
use punctual_mesh::{BrokerId, Node, Settings, Strategy};
use punctual_model::Nanos;

/// Decodes the input; what decodes is encoded the same again, and a broker with two
/// neighbours takes it from one of them, in its turn, without a panic.
pub fn mesh(data: &[u8]) {
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
