//! Order on a slow link, where queues build.

use punctual_testbed::netns::Queue;

use crate::broker::Broker;
use crate::mqtt::Client;
use crate::network::{BROKER, Network};

/// Bulk messages, and how many of them arrive before the urgent one is
/// published.
const BULK: usize = 500;
const BEFORE: usize = 50;

/// Number of bulk messages that a client has received when the urgent one that
/// was published after [`BEFORE`] of them arrives.
fn overtaken(configuration: &str) -> Option<usize> {
    let network = Network::build()?;
    // Half of the bulk takes 0.4 s: longer than this test may have to wait for a processor.
    let rate = 5_000_000;
    let queue = Queue::ByPriority;
    network.broker.shape("eth0", rate, queue).unwrap();
    let _broker = Broker::start(&network.broker, configuration);
    let [address, _] = BROKER;
    let mut receiver = Client::connect(&network.clients, address, "receiver");
    receiver.subscribe("#");
    // They are on the broker's host: for them no link is slow.
    let mut bulk = Client::connect(&network.broker, address, "bulk");
    let mut urgent = Client::connect(&network.broker, address, "urgent");
    let mut is_urgent = |receiver: &mut Client, publish: bool| {
        if publish {
            urgent.publish("urgent", &[("priority", "0")], "urgent");
        }
        receiver.next_ends_with("urgent")
    };
    // The connection is known to get urgent messages from here on.
    assert!(is_urgent(&mut receiver, true));
    let payload = "b".repeat(1000);
    for _ in 0..BULK {
        bulk.publish("bulk", &[], &payload);
    }
    let mut received = 0;
    while !is_urgent(&mut receiver, received == BEFORE) {
        received += 1;
    }
    Some(received)
}

#[test]
fn an_urgent_message_overtakes_the_bulk_to_the_same_client() {
    let Some(received) = overtaken("") else {
        return;
    };
    assert!(received < BULK / 2, "it came after {received} of {BULK}");
}

#[test]
fn in_the_kernels_buffer_nothing_overtakes() {
    let configuration = "[tcp]\nnotsent_lowat = \"off\"\nurgent_notsent_lowat = \"off\"\n";
    let Some(with_a_full_buffer) = overtaken(configuration) else {
        return;
    };
    let Some(received) = overtaken("") else {
        return;
    };
    assert!(
        received < with_a_full_buffer,
        "it came after {received} of {BULK}, and after {with_a_full_buffer} otherwise"
    );
}
