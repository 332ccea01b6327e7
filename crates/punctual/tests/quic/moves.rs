//! Clients whose address changes: NAT boxes forget, devices change networks.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual_client::{Message, QoS};

use crate::broker::{Broker, connect, message, subscribe};

/// A NAT box in front of the broker, for one client.
struct Nat {
    inside: UdpSocket,
    outside: Arc<Mutex<Arc<UdpSocket>>>,
    stop: Arc<AtomicBool>,
    client: Arc<AtomicU16>,
    broker: SocketAddr,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Nat {
    fn new(broker: SocketAddr) -> Self {
        let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut nat = Self {
            outside: Arc::new(Mutex::new(Arc::new(outside(broker)))),
            inside,
            stop: Arc::default(),
            client: Arc::default(),
            broker,
            threads: Vec::new(),
        };
        let first = nat.outside.lock().unwrap().clone();
        nat.bring_in(first);
        let inside = nat.inside.try_clone().unwrap();
        inside
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let (outside, stop) = (nat.outside.clone(), nat.stop.clone());
        let client = nat.client.clone();
        nat.threads.push(std::thread::spawn(move || {
            let mut buffer = [0; 65_535];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((n, from)) = inside.recv_from(&mut buffer) {
                    client.store(from.port(), Ordering::Relaxed);
                    let outside = outside.lock().unwrap().clone();
                    let _ = outside.send(&buffer[..n]);
                }
            }
        }));
        nat
    }

    /// Takes what comes to one of its outer ports to the client.
    fn bring_in(&mut self, outside: Arc<UdpSocket>) {
        let inside = self.inside.try_clone().unwrap();
        let (stop, client) = (self.stop.clone(), self.client.clone());
        self.threads.push(std::thread::spawn(move || {
            let mut buffer = [0; 65_535];
            while !stop.load(Ordering::Relaxed) {
                if let Ok(n) = outside.recv(&mut buffer) {
                    let to = SocketAddr::from(([127, 0, 0, 1], client.load(Ordering::Relaxed)));
                    let _ = inside.send_to(&buffer[..n], to);
                }
            }
        }));
    }

    /// Gives the client another port outside; what comes to the old one is lost.
    fn forget(&mut self) {
        let new = Arc::new(outside(self.broker));
        *self.outside.lock().unwrap() = new.clone();
        self.bring_in(new);
    }
}

fn outside(broker: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(broker).unwrap();
    let patience = Some(Duration::from_millis(20));
    socket.set_read_timeout(patience).unwrap();
    socket
}

impl Drop for Nat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_connection_survives_another_address() {
    let broker = Broker::start("", "");
    let mut nat = Nat::new(broker.quic);
    for (n, datagrams) in [false, true].into_iter().enumerate() {
        let mut options = broker.options("c");
        options.endpoint.port = nat.inside.local_addr().unwrap().port();
        options.endpoint.datagrams = datagrams;
        let mut client = connect(options).unwrap();
        subscribe(&mut client, "t", QoS::AtLeastOnce);
        for round in 0..3_u64 {
            nat.forget();
            for qos in [QoS::AtLeastOnce, QoS::AtMostOnce] {
                let sent = Message::new("t", vec![round as u8]).qos(qos);
                client.publish(&sent).unwrap();
                assert_eq!(message(&mut client).message.payload, [round as u8]);
            }
            let moves = n as u64 * 3 + round + 1;
            assert_eq!(broker.metric("punctual_quic_moves_total "), moves);
        }
    }
    assert_eq!(broker.metric("punctual_quic_connected_total "), 2);
}
