//! A group over switches that are Open vSwitch: copies where paths part, and nowhere before.

use std::net::{IpAddr, UdpSocket};

use punctual_testbed::netns::Namespace;

use crate::network::{BROKER, Network, PUBLISHER, SUBSCRIBER};
use crate::programs::{Controller, Table};
use crate::until;

const MESSAGES: u64 = 50;

fn open(host: &Namespace, address: IpAddr, port: u16) -> UdpSocket {
    let socket = host.enter(|| UdpSocket::bind((address, port))).unwrap();
    let socket = socket.unwrap();
    socket.set_read_timeout(Some(crate::LONG)).unwrap();
    socket
}

/// A cable to two members carries one copy of each message where unicast carries two, in the
/// queue of the flow; each member gets each message once; and a group that nobody asked for
/// reaches nobody.
#[test]
fn a_cable_carries_one_copy_for_all_members_behind_it() {
    let Some(network) = Network::build(3, 2) else {
        return;
    };
    let table = Table::start(&network.switches);
    // The test sends as fast as messages are received, and not every 100 ms.
    let _controller = Controller::start(&network, &table, &["--policing", "nothing"]);
    // From the host at the first switch to those at the second and the third.
    table.request(
        "udp:10.78.0.1:4000",
        ["udp:10.78.0.2:5000", "udp:10.78.0.3:5000"],
    );
    let group = until("the group", || table.group());
    let route = "route add 224.0.0.0/4 dev eth0";
    network.publisher.ip(route).unwrap();
    let publisher = open(&network.publisher, PUBLISHER, 4000);
    publisher.set_multicast_ttl_v4(8).unwrap();
    let stranger = open(&network.publisher, PUBLISHER, 4001);
    stranger.set_multicast_ttl_v4(8).unwrap();
    let members = [
        open(&network.broker, BROKER, 5000),
        open(&network.subscriber, SUBSCRIBER, 5000),
    ];
    let receive = |member: &UdpSocket, number: u8| {
        let mut received = [0; 200];
        let length = member.recv(&mut received).unwrap();
        assert_eq!(received[..length], [number; 100]);
    };
    let all = |port| (0..8).map(|queue| network.sent(port, queue)).sum::<u64>();
    let queue = until("the queue", || {
        let text = table.dump("Channel", &["queue"]);
        let mut words = text.split(|c: char| !c.is_ascii_digit());
        words.find_map(|word| word.parse::<u8>().ok())
    });
    // Late packets of the set-up, such as ARP, use queue 0 and not the queue of the flow.
    let queued = network.sent("s1-s2", queue);
    for number in 0..MESSAGES as u8 {
        stranger.send_to(&[200; 100], ("239.1.1.1", 5000)).unwrap();
        publisher
            .send_to(&[number; 100], (group.as_str(), 5000))
            .unwrap();
        for member in &members {
            receive(member, number);
        }
    }
    let copies = network.sent("s1-s2", queue) - queued;
    assert_eq!(copies, MESSAGES, "copies between the first switches");

    let before = all("s1-s2");
    for number in 0..MESSAGES as u8 {
        for (member, address) in members.iter().zip([BROKER, SUBSCRIBER]) {
            stranger.send_to(&[number; 100], (address, 5000)).unwrap();
            receive(member, number);
        }
    }
    let unicast = all("s1-s2") - before;
    assert!(unicast >= 2 * MESSAGES, "{unicast} by unicast");
}
