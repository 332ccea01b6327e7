//! Traffic classes in the packets of real sockets.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use punctual_broker::Class;
use punctual_net::marking::{Dscp, Mark, Marking};
use punctual_testbed::netns::Namespace;

use crate::broker::{Broker, PORT};
use crate::capture::{Capture, Packet};
use crate::clients::{Subscriber, url};
use crate::mqtt::Client;
use crate::network::{BROKER, Network, skip};

/// User properties of a message.
type Properties = &'static [(&'static str, &'static str)];

/// What a message says, its class in words, and its default DSCP.
const CLASSES: [(Properties, &str, u8); 3] = [
    (&[], "normal", 0),
    (&[("priority", "0")], "priority", 40),
    (&[("rt-priority", "7")], "realtime", 46),
];

/// The segment that brought `text` to a port of a client.
fn segment(capture: &mut Capture, to: u16, text: &str) -> Packet {
    capture.find(|packet| packet.from == PORT && packet.to == to && packet.contains(text))
}

fn version(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

#[test]
fn segments_carry_the_code_point_of_their_receivers_class() {
    let Some(network) = Network::build() else {
        return;
    };
    let _broker = Broker::start(&network.broker, "");
    for address in BROKER {
        let mut publisher = Client::connect(&network.clients, address, "publisher");
        for (properties, class, dscp) in CLASSES {
            let mut capture = Capture::start(&network.clients);
            let id = format!("{class}-{}", version(address));
            let mut receiver = Client::connect(&network.clients, address, &id);
            receiver.subscribe(&id);
            let payload = format!("to the receiver {id}");
            publisher.publish(&id, properties, &payload);
            receiver.expect(&payload);
            let packet = segment(&mut capture, receiver.port(), &payload);
            assert_eq!(
                (packet.version, packet.dscp),
                (version(address), dscp),
                "{packet:?}"
            );
        }
    }
}

#[test]
fn a_receiver_of_several_classes_is_marked_with_the_most_urgent() {
    let Some(network) = Network::build() else {
        return;
    };
    let _broker = Broker::start(&network.broker, "");
    for address in BROKER {
        let mut capture = Capture::start(&network.clients);
        let mut publisher = Client::connect(&network.clients, address, "publisher");
        let mut receiver = Client::connect(&network.clients, address, "receiver");
        receiver.subscribe("cell/#");
        for (properties, class, dscp) in CLASSES {
            let payload = format!("the {class} message");
            publisher.publish("cell/1", properties, &payload);
            receiver.expect(&payload);
            let packet = segment(&mut capture, receiver.port(), &payload);
            assert_eq!(packet.dscp, dscp, "{packet:?}");
        }
    }
}

#[test]
fn a_connection_for_bulk_alone_is_marked_as_bulk() {
    let Some(network) = Network::build() else {
        return;
    };
    let _broker = Broker::start(&network.broker, "[marking]\ndscp_bulk = \"LE\"\n");
    for address in BROKER {
        let mut capture = Capture::start(&network.clients);
        let properties = [("rt-classes", "3")];
        let client = Client::connect_with(&network.clients, address, "bulk", &properties);
        let port = client.port();
        let answer = capture.find(|packet| packet.to == port && !packet.payload.is_empty());
        assert_eq!(answer.dscp, 1, "{answer:?}");
    }
}

#[test]
fn the_table_can_be_changed_and_switched_off() {
    let Some(network) = Network::build() else {
        return;
    };
    for (configuration, expected) in [
        (
            "[marking]\ndscp_realtime = \"CS6\"\ndscp_priority = 34\ndscp_normal = \"AF21\"\n",
            [18, 34, 48],
        ),
        ("[marking]\nenabled = false\n", [0, 0, 0]),
    ] {
        let _broker = Broker::start(&network.broker, configuration);
        for address in BROKER {
            let mut capture = Capture::start(&network.clients);
            let mut publisher = Client::connect(&network.clients, address, "publisher");
            // Answers to connection requests have the mark of class normal.
            let port = publisher.port();
            let answer = capture.find(|packet| packet.is_syn_ack && packet.to == port);
            assert_eq!(answer.dscp, expected[0], "{answer:?}");
            for ((properties, class, _), dscp) in CLASSES.into_iter().zip(expected) {
                let mut receiver = Client::connect(&network.clients, address, class);
                receiver.subscribe(class);
                let payload = format!("to the receiver {class}");
                publisher.publish(class, properties, &payload);
                receiver.expect(&payload);
                let packet = segment(&mut capture, receiver.port(), &payload);
                assert_eq!(packet.dscp, dscp, "{packet:?}");
            }
        }
    }
}

/// Packets of `Class`es counted by their priority where they enter the queue of
/// the device. Linux' `prio` queue would count by itself, but many kernels are
/// built without it; netfilter sees the same field.
struct Priorities<'a> {
    host: &'a Namespace,
}

impl<'a> Priorities<'a> {
    const COUNTED: [u8; 4] = [0, 2, 5, 6];

    fn count(host: &'a Namespace) -> Option<Self> {
        let mut rules = String::from(
            "add table inet t; add chain inet t c { type filter hook postrouting priority 0; }",
        );
        for priority in Self::COUNTED {
            rules += &format!(
                "; add counter inet t p{priority}; \
                 add rule inet t c meta l4proto {{ tcp, udp }} th sport {PORT} \
                 meta priority 0:{priority} \
                 meta length > 200 counter name p{priority}"
            );
        }
        if let Err(error) = host.run("nft", &[&rules]) {
            return skip(&format!("{error} (Debian: nftables)"));
        }
        Some(Self { host })
    }

    /// Packets with that priority so far.
    fn of(&self, priority: u8) -> u64 {
        let counter = format!("p{priority}");
        let text = self
            .host
            .run("nft", &["list", "counter", "inet", "t", &counter])
            .unwrap();
        let (_, rest) = text.split_once("packets ").unwrap();
        let (number, _) = rest.split_once(' ').unwrap();
        number.parse().unwrap()
    }
}

#[test]
fn packets_enter_the_queue_of_the_device_with_their_priority() {
    let Some(network) = Network::build() else {
        return;
    };
    let Some(priorities) = Priorities::count(&network.broker) else {
        return;
    };
    let configuration = "[marking]\nso_priority_priority = 5\n";
    let _broker = Broker::start(&network.broker, configuration);
    let payload = "x".repeat(300);
    for address in BROKER {
        let mut publisher = Client::connect(&network.clients, address, "publisher");
        for ((properties, class, _), priority) in CLASSES.into_iter().zip([0, 5, 6]) {
            let mut receiver = Client::connect(&network.clients, address, class);
            receiver.subscribe(class);
            let before = Priorities::COUNTED.map(|counted| priorities.of(counted));
            publisher.publish(class, properties, &payload);
            receiver.expect(&payload);
            for (counted, before) in Priorities::COUNTED.into_iter().zip(before) {
                // A segment that is sent again counts again.
                let grew = priorities.of(counted) > before;
                assert_eq!(grew, counted == priority, "{class}: priority {counted}");
            }
        }
    }
}

#[test]
fn datagrams_carry_the_code_point_of_their_sockets_class() {
    let Some(network) = Network::build() else {
        return;
    };
    let marking = Marking::default().with(
        Class::Bulk,
        Mark {
            dscp: Dscp::new(1).unwrap(),
            priority: 2,
        },
    );
    let mut capture = Capture::start(&network.clients);
    let to = |address: IpAddr| SocketAddr::new(address, 9000);
    let mapped = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        address => address,
    };
    for (class, dscp) in [
        (Class::RealTime, 46),
        (Class::Priority, 40),
        (Class::Normal, 0),
        (Class::Bulk, 1),
    ] {
        // A socket of each family, and one of IPv6 that talks to IPv4.
        for (local, peer, version) in [
            ("0.0.0.0:0", "10.77.0.2", 4),
            ("[::]:0", "fd77::2", 6),
            ("[::]:0", "10.77.0.2", 4),
        ] {
            let socket = network.broker.enter(|| UdpSocket::bind(local));
            let socket = socket.unwrap().unwrap();
            marking.apply(&socket, class).unwrap();
            let mut peer: IpAddr = peer.parse().unwrap();
            if socket.local_addr().unwrap().is_ipv6() {
                peer = mapped(peer);
            }
            let payload = format!("{class:?} from {local}");
            socket.send_to(payload.as_bytes(), to(peer)).unwrap();
            let packet = capture.find(|packet| packet.contains(&payload));
            assert_eq!((packet.version, packet.dscp), (version, dscp), "{packet:?}");
        }
    }
}

/// A listener for datagrams beside the one for TCP, and what its certificate
/// needs; gone with the value.
struct Datagrams {
    listener: String,
    /// For who is to trust it.
    authority: Vec<String>,
    _files: tempfile::TempDir,
}

impl Datagrams {
    fn of(scheme: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let path = |name: &str| files.path().join(name).display().to_string();
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = BROKER.iter().map(IpAddr::to_string).collect();
        let certificate = rcgen::CertificateParams::new(names).unwrap();
        let certificate = certificate.self_signed(&key).unwrap();
        std::fs::write(path("server.pem"), certificate.pem()).unwrap();
        std::fs::write(path("server.key"), key.serialize_pem()).unwrap();
        let (tls, authority) = match scheme {
            "quic" => (
                format!(
                    "certificate = {:?}\nkey = {:?}\n",
                    path("server.pem"),
                    path("server.key")
                ),
                vec!["--cafile".to_owned(), path("server.pem")],
            ),
            _ => (String::new(), Vec::new()),
        };
        Self {
            authority,
            listener: format!(
                "[[listener]]\naddress = \"{scheme}://*:{PORT}\"\nallow_anonymous = true\n{tls}"
            ),
            _files: files,
        }
    }
}

/// What the broker sends from its own sockets by UDP and QUIC: code point on the
/// wire and priority on the way to the device, seen from outside.
#[test]
fn the_brokers_datagrams_are_marked_by_class() {
    let Some(network) = Network::build() else {
        return;
    };
    let Some(priorities) = Priorities::count(&network.broker) else {
        return;
    };
    // Larger than all that a handshake leaves to be sent, in one datagram.
    let payload = "x".repeat(1100);
    for scheme in ["udp", "quic"] {
        let datagrams = Datagrams::of(scheme);
        let configuration = format!(
            "{}[marking]\nso_priority_priority = 5\n",
            datagrams.listener
        );
        let _broker = Broker::start(&network.broker, &configuration);
        for address in BROKER {
            let mut publisher = Client::connect(&network.clients, address, "publisher");
            for ((properties, class, dscp), priority) in CLASSES.into_iter().zip([0, 5, 6]) {
                let url = format!("{}/{class}", url(scheme, address));
                let subscriber = Subscriber::start(&network.clients, &url, &datagrams.authority);
                let mut capture = Capture::start(&network.clients);
                let before = priorities.of(priority);
                publisher.publish(class, properties, &payload);
                let packet = capture.find(|packet| {
                    // QUIC looks for a larger path with packets of its own.
                    let message = scheme == "udp" || packet.dscp == dscp;
                    packet.from == PORT && packet.is_udp && packet.payload.len() > 1100 && message
                });
                assert_eq!(
                    (packet.version, packet.dscp),
                    (version(address), dscp),
                    "{scheme} {class}: from {}",
                    packet.from
                );
                subscriber.message();
                assert!(priorities.of(priority) > before, "{scheme} {class}");
            }
        }
    }
}
