//! Clients over UDP against a server of these tests, on the loopback: the
//! protocol is `punctual-udp`'s, which has its own tests; here it is the
//! sockets, the timers and what a user sees.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[allow(dead_code, reason = "not every test binary needs all of it")]
mod support;

use std::net::UdpSocket;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use punctual_client::{
    Backoff, Client, Config, Error, Event, Message, Options, QoS, ReasonCode, Scheme,
    SubscribeOptions, Version,
};
use punctual_udp::{Endpoint, EndpointConfig, Event as Happened, Path, PeerId};
use support::{Server, Taken};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

/// A server for one client at a time. Of the datagrams that reach it, and of
/// those that leave it, one in `lose` is lost.
struct Fake {
    port: u16,
    thread: Option<JoinHandle<Server>>,
    stop: Sender<()>,
}

impl Fake {
    fn start(lose: Option<usize>, messages: Vec<Taken>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        Self::start_on(socket, lose, messages)
    }

    fn start_on(socket: UdpSocket, lose: Option<usize>, messages: Vec<Taken>) -> Self {
        let port = socket.local_addr().unwrap().port();
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || serve(&socket, lose, messages, &stopped));
        Self {
            port,
            thread: Some(thread),
            stop,
        }
    }

    fn end(mut self) -> Server {
        self.stop.send(()).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

fn serve(
    socket: &UdpSocket,
    lose: Option<usize>,
    messages: Vec<Taken>,
    stopped: &Receiver<()>,
) -> Server {
    let epoch = Instant::now();
    let mut endpoint = Endpoint::new(EndpointConfig::default(), &[7; 32], Duration::ZERO);
    let mut server = Server::new(Version::V5, 10, 0);
    let mut messages = Some(messages);
    let mut peer: Option<PeerId> = None;
    let mut buffer = [0; 65_535];
    let mut count = 0;
    let mut is_lost = || {
        count += 1;
        lose.is_some_and(|lose| count % lose == 0)
    };
    loop {
        if stopped.try_recv().is_ok() {
            return server;
        }
        let now = epoch.elapsed();
        let due = endpoint.next_timeout().map(|at| at.saturating_sub(now));
        let wait = due.unwrap_or(Duration::from_millis(20));
        let wait = wait.clamp(Duration::from_micros(1), Duration::from_millis(20));
        socket.set_read_timeout(Some(wait)).unwrap();
        if let Ok((n, remote)) = socket.recv_from(&mut buffer)
            && !is_lost()
        {
            let path = Path {
                remote,
                local: None,
            };
            endpoint.handle(path, &buffer[..n], epoch.elapsed());
        }
        let now = epoch.elapsed();
        endpoint.handle_timeout(now);
        while let Some(event) = endpoint.poll_event() {
            if let Happened::Opened(id) = event {
                peer = Some(id);
                server.connection_lost();
            }
        }
        if let Some(id) = peer {
            let bytes = endpoint.inbox(id).to_vec();
            endpoint.consumed(id, bytes.len());
            if !bytes.is_empty() {
                server.receive(&bytes);
                for message in messages.take().into_iter().flatten() {
                    server.deliver(message);
                }
                let output = std::mem::take(&mut server.output);
                endpoint.send(id, &output, 2, now);
            }
        }
        while let Some(transmit) = endpoint.poll_transmit() {
            if !is_lost() {
                socket
                    .send_to(&transmit.data, transmit.path.remote)
                    .unwrap();
            }
        }
    }
}

fn options(port: u16) -> Options {
    let mut options = Options {
        config: Config {
            client_id: "client".into(),
            ..Config::default()
        },
        ..Options::default()
    };
    options.endpoint.scheme = Scheme::Udp;
    // Also has an IPv6 address, where nobody listens.
    options.endpoint.host = "localhost".into();
    options.endpoint.port = port;
    options
}

fn taken(n: u32, qos: QoS) -> Taken {
    Taken {
        topic: format!("t/{n}"),
        payload: n.to_string().into_bytes(),
        qos,
    }
}

/// Takes what has come: payloads of messages, and whether the subscription is acknowledged.
fn note(event: Event, got: &mut Vec<Vec<u8>>, subscribed: &mut bool) {
    match event {
        Event::Message(delivery) => got.push(delivery.message.payload),
        Event::Published { reason, .. } => assert_eq!(reason, ReasonCode::Success),
        Event::Subscribed { .. } => *subscribed = true,
        _ => {}
    }
}

/// Both have got `count` messages: the client these, the server what was published.
fn compare(fake: Fake, mut got: Vec<Vec<u8>>, count: u32) {
    let server = fake.end();
    let mut expected: Vec<Vec<u8>> = (0..count).map(|n| n.to_string().into_bytes()).collect();
    let mut taken: Vec<Vec<u8>> = server.taken.iter().map(|t| t.payload.clone()).collect();
    // Datagrams overtake each other where some are lost.
    expected.sort();
    got.sort();
    taken.sort();
    assert_eq!(got, expected);
    assert_eq!(taken, expected);
}

/// Publishes and receives messages with QoS 1 and 2, and compares.
fn exchange(lose: Option<usize>) {
    const COUNT: u32 = 60;
    let qos = |n: u32| QoS::from_bits(1 + n as u8 % 2).unwrap();
    let fake = Fake::start(lose, (0..COUNT).map(|n| taken(n, qos(n))).collect());
    let (mut client, _) = Client::connect(options(fake.port)).unwrap();
    let filters = [("t/#", SubscribeOptions::default())];
    client.subscribe(&filters, &Default::default()).unwrap();
    for n in 0..COUNT {
        let message = Message::new(format!("t/{n}"), n.to_string()).qos(qos(n));
        client.publish(&message.priority(1)).unwrap();
    }
    let (mut got, mut subscribed) = (Vec::new(), false);
    while got.len() < COUNT as usize || client.unfinished() > 0 || !subscribed {
        let event = client.next(PATIENCE).unwrap().expect("nothing comes");
        note(event, &mut got, &mut subscribed);
    }
    client
        .disconnect(ReasonCode::Success, &Default::default())
        .unwrap();
    compare(fake, got, COUNT);
}

#[test]
fn messages_travel_in_datagrams() {
    exchange(None);
}

/// The asynchronous client by UDP.
#[cfg(feature = "tokio")]
#[test]
fn messages_travel_in_datagrams_asynchronously() {
    const COUNT: u32 = 20;
    let qos = |n: u32| QoS::from_bits(1 + n as u8 % 2).unwrap();
    let fake = Fake::start(None, (0..COUNT).map(|n| taken(n, qos(n))).collect());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let got = runtime.block_on(async {
        let connecting = punctual_client::aio::Client::connect(options(fake.port));
        let (mut client, _) = connecting.await.unwrap();
        let filters = [("t/#", SubscribeOptions::default())];
        client.subscribe(&filters, &Default::default()).unwrap();
        for n in 0..COUNT {
            let message = Message::new(format!("t/{n}"), n.to_string()).qos(qos(n));
            client.publish(&message).await.unwrap();
        }
        let (mut got, mut subscribed) = (Vec::new(), false);
        while got.len() < COUNT as usize || client.unfinished() > 0 || !subscribed {
            note(client.next().await.unwrap(), &mut got, &mut subscribed);
        }
        client
            .disconnect(ReasonCode::Success, &Default::default())
            .await
            .unwrap();
        got
    });
    compare(fake, got, COUNT);
}

#[test]
fn lost_datagrams_are_made_good() {
    exchange(Some(5));
}

#[test]
fn qos_0_and_priorities_arrive() {
    let fake = Fake::start(None, Vec::new());
    let (mut client, _) = Client::connect(options(fake.port)).unwrap();
    for n in 0..10 {
        let message = Message::new("t", n.to_string()).priority(n);
        client.publish(&message).unwrap();
    }
    // What was sent before it has arrived, too, on the loopback.
    let last = Message::new("t", "last").qos(QoS::AtLeastOnce);
    client.publish(&last).unwrap();
    while client.unfinished() > 0 {
        client.next(PATIENCE).unwrap().expect("nothing comes");
    }
    drop(client);
    assert_eq!(fake.end().taken.len(), 11);
}

#[test]
fn a_message_too_long_for_a_datagram_is_refused() {
    let fake = Fake::start(None, Vec::new());
    let mut options = options(fake.port);
    options.endpoint.max_datagram = Some(600);
    let (mut client, _) = Client::connect(options).unwrap();
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let error = client.publish(&Message::new("t", vec![0; 600]).qos(qos));
        assert!(
            matches!(error, Err(Error::Unsupported(ReasonCode::PacketTooLarge))),
            "{error:?}"
        );
        client
            .publish(&Message::new("t", vec![0; 500]).qos(qos))
            .unwrap();
    }
    while client.unfinished() > 0 {
        client.next(PATIENCE).unwrap().expect("nothing comes");
    }
    assert_eq!(fake.end().taken.len(), 2);
}

#[test]
fn nobody_there_is_said_at_once() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    let error = Client::connect(options(port)).err().unwrap();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.is_transient());
}

/// A server that has lost its memory says so, and the client begins anew.
#[test]
fn a_server_that_has_forgotten_is_met_again() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fake = Fake::start_on(socket.try_clone().unwrap(), None, Vec::new());
    let mut options = options(fake.port);
    options.config.keep_alive = 1;
    options.reconnect = Some(Backoff {
        first: Duration::from_millis(10),
        longest: Duration::from_millis(10),
    });
    let (mut client, _) = Client::connect(options).unwrap();
    fake.end();
    let fake = Fake::start_on(socket, None, Vec::new());
    let mut errors = 0;
    loop {
        match client.next(PATIENCE) {
            Ok(Some(Event::Connected(_))) => break,
            Ok(event) => assert!(event.is_some(), "nothing comes"),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                errors += 1;
            }
        }
    }
    assert!(errors > 0);
    fake.end();
}
