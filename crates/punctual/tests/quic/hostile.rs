//! Garbage, floods, and clients that vanish.

use std::net::UdpSocket;
use std::time::Duration;

use punctual_client::{Message, QoS};
use punctual_model::Rng;

use crate::broker::{Broker, PATIENCE, connect, message, publish, subscribe};

/// The first datagram of a client: an Initial packet.
fn initial(broker: &Broker) -> Vec<u8> {
    // A client that knows nothing of where it is sent records what it sends.
    let recorder = UdpSocket::bind("127.0.0.1:0").unwrap();
    recorder.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut options = broker.options("c");
    options.endpoint.port = recorder.local_addr().unwrap().port();
    options.endpoint.timeout = Duration::from_millis(10);
    let client = std::thread::spawn(move || connect(options).err().unwrap());
    let mut buffer = [0; 2000];
    let n = recorder.recv(&mut buffer).unwrap();
    client.join().unwrap();
    buffer[..n].to_vec()
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The broker serves.
fn check(broker: &Broker) {
    let mut client = broker.datagram_client("check");
    subscribe(&mut client, "check", QoS::AtMostOnce);
    let sent = Message::new("check", b"1".to_vec()).qos(QoS::AtLeastOnce);
    client.publish(&sent).unwrap();
    assert_eq!(message(&mut client).message.payload, b"1");
}

/// Type of a long header packet (RFC 9000 section 17.2): 0 Initial, 3 Retry.
fn kind(datagram: &[u8]) -> u8 {
    assert!(datagram[0] & 0x80 != 0, "a long header");
    datagram[0] >> 4 & 3
}

#[test]
fn addresses_that_prove_nothing_get_a_retry_and_nothing_is_kept() {
    let broker = Broker::start("", "");
    let first = initial(&broker);
    let mut buffer = [0; 2000];
    for _ in 0..300 {
        let socket = socket();
        socket.send_to(&first, broker.quic).unwrap();
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(kind(&buffer[..len]), 3);
        assert!(len < first.len(), "{len} bytes for {}", first.len());
    }
    assert_eq!(broker.metric("punctual_quic_retries_total "), 300);
    assert_eq!(broker.connections(), 0);
    assert_eq!(broker.metric("punctual_quic_handshakes_failed_total "), 0);
    check(&broker);
}

#[test]
fn without_retry_a_flood_is_bounded() {
    let broker = Broker::start("cookie = \"off\"", "");
    check(&broker);
    assert_eq!(broker.metric("punctual_quic_retries_total "), 0);
    let mut buffer = [0; 2000];
    let mut retried = 0;
    for _ in 0..100 {
        // Genuine ones, whose keys fit their connection ID.
        let first = initial(&broker);
        let socket = socket();
        socket.send_to(&first, broker.quic).unwrap();
        let len = socket.recv(&mut buffer).unwrap();
        retried += u64::from(kind(&buffer[..len]) == 3);
        assert!(broker.connections() <= 64 + 1);
    }
    assert!(retried > 0, "the flood was not held up");
    check(&broker);
}

#[test]
fn versions_are_negotiated_and_small_questions_not_answered() {
    let broker = Broker::start("", "");
    let mut first = initial(&broker);
    first[1..5].copy_from_slice(&0x1A2A_3A4A_u32.to_be_bytes());
    let socket = socket();
    socket.send_to(&first[..1000], broker.quic).unwrap();
    socket.send_to(&first, broker.quic).unwrap();
    let mut buffer = [0; 2000];
    let len = socket.recv(&mut buffer).unwrap();
    assert_eq!(buffer[1..5], [0; 4], "version negotiation");
    let from = 6 + usize::from(buffer[5]);
    let from = from + 1 + usize::from(buffer[from]);
    let mut versions = buffer[from..len].chunks(4);
    assert!(versions.any(|version| version == [0, 0, 0, 1]));
    // The small one got nothing, or it would have come first.
    check(&broker);
}

#[test]
fn garbage_disturbs_nobody() {
    let broker = Broker::start("", "");
    let mut bystander = broker.client("bystander");
    subscribe(&mut bystander, "t", QoS::AtMostOnce);
    let first = initial(&broker);
    let socket = socket();
    let mut rng = Rng::new(7);
    for n in 0..2000_usize {
        let mut datagram = match n % 4 {
            0 => first.clone(),
            1 => first[..n % first.len()].to_vec(),
            2 => (0..n % 1500).map(|_| rng.any() as u8).collect(),
            _ => vec![0x40 | rng.below(64) as u8; 30 + n % 100],
        };
        if n % 4 == 0 {
            let at = rng.index(datagram.len());
            datagram[at] ^= rng.within(1..=255) as u8;
        }
        let _ = socket.send_to(&datagram, broker.quic);
    }
    check(&broker);
    let mut publisher = broker.tcp_client("p");
    publish(&mut publisher, "t", b"1", QoS::AtLeastOnce);
    assert_eq!(message(&mut bystander).message.payload, b"1");
    broker.wait_for("nothing is kept", || broker.connections() == 1);
}

#[test]
fn a_client_that_vanishes_is_found_out_and_its_will_published() {
    let broker = Broker::start("idle_timeout = \"1s\"", "");
    let mut watcher = broker.client("watcher");
    subscribe(&mut watcher, "gone", QoS::AtMostOnce);
    let mut options = broker.options("c");
    options.config.will = Some(Message::new("gone", b"c".to_vec()));
    options.config.keep_alive = 0;
    // Nothing answers for a client that nobody drives; nothing says goodbye for
    // one that is forgotten.
    std::mem::forget(connect(options).unwrap());
    let got = loop {
        if let Some(punctual_client::Event::Message(got)) =
            watcher.next(Some(Duration::from_millis(100))).unwrap()
        {
            break got;
        }
    };
    assert_eq!(got.message.payload, b"c");
    // The watcher, which is silent but answers, is still there.
    assert_eq!(broker.connections(), 1);
}

#[test]
fn no_more_clients_than_there_may_be() {
    let broker = Broker::start("max_connections = 2", "");
    let kept = [broker.client("a"), broker.client("b")];
    let error = connect(broker.options("c")).err().unwrap();
    assert!(error.to_string().contains("refuse"), "{error}");
    assert_eq!(broker.metric("punctual_quic_refused_total "), 1);
    drop(kept);
    broker.wait_for("the end", || broker.connections() == 0);
    check(&broker);
}
