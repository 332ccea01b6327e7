//! Large packets by TCP: whatever their lengths and the pieces in which they come, each arrives as it was
//! sent, also after it has waited for its receiver.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use punctual_net::{Server, UdpOptions};

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Around the lengths at which packets are read in another way, and small ones between them.
const LENGTHS: [usize; 14] = [
    1, 65_000, 65_536, 16_384, 70_000, 3, 262_144, 262_130, 524_288, 0, 700_000, 700_001, 16_370,
    900_000,
];

#[test]
fn large_packets_arrive_as_they_were_sent() {
    for piece in [usize::MAX, 100_000, 65_543, 16_384, 4_099] {
        let server = server();
        let mut subscriber = connect(&server, "s");
        subscriber
            .write_all(&[0x82, 6, 0, 1, 0, 1, b't', 0])
            .unwrap();
        subscriber.read_exact(&mut [0; 5]).unwrap();
        let mut publisher = connect(&server, "p");
        let sender = std::thread::spawn(move || {
            let all: Vec<u8> = (0..)
                .zip(LENGTHS)
                .flat_map(|(n, len)| publish(n, len, 0))
                .collect();
            for piece in all.chunks(piece.min(all.len())) {
                publisher.write_all(piece).unwrap();
            }
            publisher
        });
        for (n, len) in (0..).zip(LENGTHS) {
            expect(&mut subscriber, &publish(n, len, 0), (piece, len));
        }
        drop(sender.join().unwrap());
    }
}

#[test]
fn a_retained_large_packet_stays_as_it_was_sent() {
    let server = server();
    let mut publisher = connect(&server, "p");
    for len in [300_000, 70_000, 100] {
        let sent = publish(9, len, 1);
        publisher.write_all(&sent).unwrap();
        // Its answer to a ping comes when it has handled all that came before.
        publisher.write_all(&[0xC0, 0]).unwrap();
        publisher.read_exact(&mut [0; 2]).unwrap();
        let mut subscriber = connect(&server, "s");
        subscriber
            .write_all(&[0x82, 6, 0, 1, 0, 1, b't', 0])
            .unwrap();
        subscriber.read_exact(&mut [0; 5]).unwrap();
        expect(&mut subscriber, &sent, (0, len));
    }
}

fn server() -> Server {
    let mut options = support::options(UdpOptions::default());
    options.broker.sys_interval = None;
    options.max_receive_bytes = 16 << 20;
    Server::start(options).unwrap()
}

/// A client that speaks 3.1.1.
fn connect(server: &Server, id: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.addresses()[1]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut connect = vec![0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 1];
    connect.extend(id.bytes());
    stream.write_all(&connect).unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    stream
}

/// A message of QoS 0 whose payload has so many bytes.
fn publish(n: usize, len: usize, retain: u8) -> Vec<u8> {
    let mut packet = vec![0x30 | retain];
    let mut rest = len + 3;
    while rest >= 0x80 {
        packet.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    packet.extend([rest as u8, 0, 1, b't']);
    packet.extend((0..len).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ n as u8));
    packet
}

fn expect(subscriber: &mut TcpStream, packet: &[u8], case: (usize, usize)) {
    let mut came = vec![0; packet.len()];
    subscriber.read_exact(&mut came).unwrap();
    // Two megabytes of numbers would tell nobody anything.
    assert!(
        came == packet,
        "pieces of {} bytes, payload of {}",
        case.0,
        case.1
    );
}
