//! MQTT over UDP: a whole server on loopback.
//!
//! Clients are `punctual_udp::Client` on a socket, and bare packets on a
//! socket for what a client library would not do.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic; clippy knows only the tests themselves"
)]

mod support;

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::ops::Range;
use std::time::{Duration, Instant};

use punctual_codec::{
    Connect, Disconnect, Frame, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish,
    QoS, ReasonCode, Split, Subscribe, SubscribeOptions, Version, split,
};
use punctual_net::realtime::RealtimeOptions;
use punctual_net::{Server, ServerOptions, UdpOptions};
use punctual_udp::{Client, ClientConfig, ClientState, Header};

/// How long anything may take before it counts as not happening.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server on free ports, for as long as the value lives.
struct Serve {
    server: RefCell<Option<Server>>,
    udp: SocketAddr,
    tcp: SocketAddr,
}

impl Serve {
    fn start(shards: u16, udp: UdpOptions) -> Self {
        Self::start_with(shards, udp, None)
    }

    fn start_with(shards: u16, udp: UdpOptions, realtime: Option<RealtimeOptions>) -> Self {
        let options = ServerOptions {
            shards,
            realtime,
            ..support::options(udp)
        };
        let server = Server::start(options).unwrap();
        Self {
            udp: server.addresses()[0],
            tcp: server.addresses()[1],
            server: RefCell::new(Some(server)),
        }
    }

    fn stop(&self) {
        let server = self.server.borrow_mut().take().unwrap();
        std::thread::spawn(move || server.shut_down());
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        if let Some(server) = self.server.borrow_mut().take() {
            server.shut_down();
        }
    }
}

fn encode(packet: &Packet<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    packet.encode(Version::V5, &mut out).unwrap();
    out
}

fn connect_packet(id: &str, expiry: u32) -> Vec<u8> {
    let mut properties = PropertyBuf::new();
    properties.push_number(PropertyId::SessionExpiryInterval, expiry);
    properties.push_number(PropertyId::TopicAliasMaximum, 10);
    encode(&Packet::Connect(Connect {
        version: Version::V5,
        clean_start: false,
        keep_alive: 60,
        client_id: id,
        will: None,
        username: None,
        password: None,
        properties: properties.as_properties(),
    }))
}

fn subscribe_packet(id: u16, filter: &str, qos: QoS) -> Vec<u8> {
    let options = SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    };
    let mut out = Vec::new();
    let filters = [(filter, options)];
    Subscribe::put(id, Properties::EMPTY, &filters, Version::V5, &mut out).unwrap();
    out
}

fn publish_packet(topic: &str, qos: QoS, packet_id: u16, payload: &[u8]) -> Vec<u8> {
    encode(&Packet::Publish(Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id,
        properties: Properties::EMPTY,
        payload,
    }))
}

/// A client by UDP.
struct Udp {
    socket: UdpSocket,
    server: SocketAddr,
    client: Client,
    origin: Instant,
}

impl Udp {
    fn new(server: SocketAddr, sealed: bool) -> Self {
        let config = ClientConfig {
            sealed,
            ..ClientConfig::default()
        };
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Ports are unique, and so is this.
        let nonce = u64::from(socket.local_addr().unwrap().port()).to_be_bytes();
        Self {
            socket,
            server,
            client: Client::new(config, nonce),
            origin: Instant::now(),
        }
    }

    /// Connects; whether a session was there, and how large a packet may be.
    fn connect(&mut self, id: &str, expiry: u32) -> (bool, Option<u32>) {
        self.send(&connect_packet(id, expiry));
        let packet = self.receive();
        let Packet::ConnAck(connack) = Packet::decode(frame(&packet), Version::V5).unwrap() else {
            panic!("{packet:02x?}");
        };
        assert_eq!(connack.reason, ReasonCode::Success);
        let properties = connack.properties;
        assert_eq!(properties.number(PropertyId::TopicAliasMaximum), None);
        let max = properties.number(PropertyId::MaximumPacketSize);
        (connack.session_present, max)
    }

    fn subscribe(&mut self, filter: &str, qos: QoS) {
        self.send(&subscribe_packet(1, filter, qos));
        assert_eq!(frame(&self.receive()).kind, PacketType::SubAck);
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn send(&mut self, packets: &[u8]) {
        let now = self.now();
        self.client.send(packets, 2, now).unwrap();
        self.transmit();
    }

    fn transmit(&mut self) {
        while let Some(transmit) = self.client.poll_transmit() {
            self.socket.send_to(&transmit.data, self.server).unwrap();
        }
    }

    /// The next packet from the server.
    fn receive(&mut self) -> Vec<u8> {
        let start = Instant::now();
        loop {
            if let Ok(Split::Frame(frame)) = split(self.client.received(), u32::MAX) {
                let packet = frame.bytes.to_vec();
                self.client.take_received(packet.len());
                return packet;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "nothing came; the client is {:?}",
                self.client.state()
            );
            self.turn();
        }
    }

    /// Waits for a datagram or a timeout, and handles it.
    fn turn(&mut self) {
        let due = self
            .client
            .next_timeout()
            .map(|at| at.saturating_sub(self.now()));
        let wait = due
            .unwrap_or(PATIENCE)
            .clamp(Duration::from_millis(1), PATIENCE);
        self.socket.set_read_timeout(Some(wait)).unwrap();
        let mut buffer = [0; 2048];
        if let Ok((n, _)) = self.socket.recv_from(&mut buffer) {
            let now = self.now();
            self.client.handle(&buffer[..n], now);
        }
        let now = self.now();
        self.client.handle_timeout(now);
        self.transmit();
    }

    fn message(&mut self) -> Vec<u8> {
        let packet = self.receive();
        let Packet::Publish(publish) = Packet::decode(frame(&packet), Version::V5).unwrap() else {
            panic!("{packet:02x?}");
        };
        publish.payload.to_vec()
    }
}

fn frame(packet: &[u8]) -> Frame<'_> {
    match split(packet, u32::MAX) {
        Ok(Split::Frame(frame)) => frame,
        other => panic!("{other:?}"),
    }
}

/// A client by TCP.
struct Tcp {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Tcp {
    fn connect(server: SocketAddr, id: &str, expiry: u32) -> Self {
        let stream = TcpStream::connect(server).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut tcp = Self {
            stream,
            buffer: Vec::new(),
        };
        tcp.stream.write_all(&connect_packet(id, expiry)).unwrap();
        assert_eq!(frame(&tcp.receive()).kind, PacketType::ConnAck);
        tcp
    }

    fn receive(&mut self) -> Vec<u8> {
        loop {
            if let Ok(Split::Frame(frame)) = split(&self.buffer, u32::MAX) {
                let packet = frame.bytes.to_vec();
                self.buffer.drain(..packet.len());
                return packet;
            }
            let mut buffer = [0; 4096];
            let n = self.stream.read(&mut buffer).unwrap();
            assert!(n > 0, "the server has closed");
            self.buffer.extend_from_slice(&buffer[..n]);
        }
    }
}

/// All levels of service between UDP and TCP clients, sealed and not, and with
/// the session on another shard than the sockets.
#[test]
fn tcp_and_udp_clients_share_topics() {
    for (shards, sealed) in [(1, true), (1, false), (3, true)] {
        let serve = Serve::start(shards, UdpOptions::default());
        let mut udp = Udp::new(serve.udp, sealed);
        let (_, max) = udp.connect("udp", 0);
        assert_eq!(max, Some(if sealed { 1445 } else { 1472 }));
        udp.subscribe("to/udp", QoS::ExactlyOnce);
        let mut tcp = Tcp::connect(serve.tcp, "tcp", 0);
        tcp.stream
            .write_all(&subscribe_packet(1, "to/tcp", QoS::ExactlyOnce))
            .unwrap();
        assert_eq!(frame(&tcp.receive()).kind, PacketType::SubAck);

        for (n, qos) in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]
            .into_iter()
            .enumerate()
        {
            let id = if n == 0 { 0 } else { 10 + n as u16 };
            udp.send(&publish_packet("to/tcp", qos, id, b"from udp"));
            let mut answers = Vec::new();
            if n > 0 {
                answers.push(frame(&udp.receive()).kind);
            }
            if n == 2 {
                udp.send(&[0x62, 2, 0, 12]);
                answers.push(frame(&udp.receive()).kind);
            }
            let expected: &[PacketType] = match n {
                0 => &[],
                1 => &[PacketType::PubAck],
                _ => &[PacketType::PubRec, PacketType::PubComp],
            };
            assert_eq!(answers, expected);
            let packet = tcp.receive();
            assert!(packet.ends_with(b"from udp"), "{packet:02x?}");
            acknowledge(&packet, |ack| tcp.stream.write_all(ack).unwrap());
            if n == 2 {
                assert_eq!(frame(&tcp.receive()).kind, PacketType::PubRel);
            }

            tcp.stream
                .write_all(&publish_packet("to/udp", qos, id, b"from tcp"))
                .unwrap();
            let packet = udp.receive();
            assert!(packet.ends_with(b"from tcp"), "{packet:02x?}");
            acknowledge(&packet, |ack| udp.send(ack));
            if n == 2 {
                assert_eq!(frame(&udp.receive()).kind, PacketType::PubRel);
            }
            for _ in 0..n {
                tcp.receive();
                if n == 2 {
                    tcp.stream.write_all(&[0x62, 2, 0, 12]).unwrap();
                }
            }
        }
        udp.send(&[0xC0, 0]);
        assert_eq!(udp.receive(), [0xD0, 0]);
    }
}

/// What is ready at one time travels in few datagrams, from the server and to it.
#[test]
fn a_datagram_carries_several_messages() {
    const COUNT: usize = 40;
    for sealed in [true, false] {
        let serve = Serve::start(1, UdpOptions::default());
        let mut udp = Udp::new(serve.udp, sealed);
        udp.connect("udp", 0);
        udp.subscribe("to/udp", QoS::AtMostOnce);
        let mut tcp = Tcp::connect(serve.tcp, "tcp", 0);
        tcp.stream
            .write_all(&subscribe_packet(1, "to/tcp", QoS::AtMostOnce))
            .unwrap();
        assert_eq!(frame(&tcp.receive()).kind, PacketType::SubAck);

        let message = |topic| publish_packet(topic, QoS::AtMostOnce, 0, b"x");
        tcp.stream
            .write_all(&message("to/udp").repeat(COUNT))
            .unwrap();
        let (mut count, mut most) = (0, 0);
        let start = Instant::now();
        while count < COUNT {
            assert!(start.elapsed() < PATIENCE, "{count} of {COUNT} came");
            udp.turn();
            let mut together = 0;
            while let Ok(Split::Frame(frame)) = split(udp.client.received(), u32::MAX) {
                assert_eq!(frame.kind, PacketType::Publish);
                let length = frame.bytes.len();
                udp.client.take_received(length);
                together += 1;
            }
            (count, most) = (count + together, most.max(together));
        }
        assert!(
            most > 1,
            "each of {COUNT} messages had a datagram of its own"
        );

        let now = udp.now();
        let packets = message("to/tcp").repeat(COUNT);
        udp.client.send(&packets, 2, now).unwrap();
        let mut datagrams = 0;
        while let Some(transmit) = udp.client.poll_transmit() {
            udp.socket.send_to(&transmit.data, udp.server).unwrap();
            datagrams += 1;
        }
        assert_eq!(datagrams, 1, "{} bytes", packets.len());
        for _ in 0..COUNT {
            assert!(tcp.receive().ends_with(b"x"));
        }
    }
}

/// Answers a PUBLISH by its QoS.
fn acknowledge(packet: &[u8], send: impl FnOnce(&[u8])) {
    if let Packet::Publish(publish) = Packet::decode(frame(packet), Version::V5).unwrap() {
        let [high, low] = publish.packet_id.to_be_bytes();
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => send(&[0x40, 2, high, low]),
            QoS::ExactlyOnce => send(&[0x50, 2, high, low]),
        }
    }
}

/// A session that lives on whatever shard is continued by UDP, and taken over
/// by TCP, and back.
#[test]
fn a_session_goes_from_transport_to_transport() {
    for shards in [1, 4] {
        let serve = Serve::start(shards, UdpOptions::default());
        for n in 0..8 {
            let id = format!("wanderer-{n}");
            let mut tcp = Tcp::connect(serve.tcp, &id, 600);
            tcp.stream
                .write_all(&subscribe_packet(1, &id, QoS::AtLeastOnce))
                .unwrap();
            tcp.receive();
            let mut udp = Udp::new(serve.udp, true);
            let (present, _) = udp.connect(&id, 600);
            assert!(present, "the session is continued");
            let kick = tcp.receive();
            assert_eq!(
                (kick[0], kick[2]),
                (0xE0, ReasonCode::SessionTakenOver.byte())
            );
            udp.send(&publish_packet(&id, QoS::AtMostOnce, 0, b"to myself"));
            assert_eq!(udp.message(), b"to myself");
            let _tcp = Tcp::connect(serve.tcp, &id, 600);
            let goodbye = udp.receive();
            assert_eq!(
                (goodbye[0], goodbye[2]),
                (0xE0, ReasonCode::SessionTakenOver.byte())
            );
            assert!(matches!(udp.client.state(), ClientState::Closed(_)));
        }
    }
}

#[test]
fn a_client_with_a_new_address_goes_on() {
    for sealed in [true, false] {
        let serve = Serve::start(2, UdpOptions::default());
        let mut udp = Udp::new(serve.udp, sealed);
        udp.connect("mobile", 0);
        udp.subscribe("news", QoS::AtLeastOnce);
        // What a NAT box does when it forgets.
        udp.socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.send(&[0xC0, 0]);
        let mut tcp = Tcp::connect(serve.tcp, "reporter", 0);
        let news = publish_packet("news", QoS::AtLeastOnce, 5, b"news");
        tcp.stream.write_all(&news).unwrap();
        assert_eq!(frame(&tcp.receive()).kind, PacketType::PubAck);
        let mut got = udp.receive();
        while frame(&got).kind == PacketType::PingResp {
            got = udp.receive();
        }
        assert!(got.ends_with(b"news"), "{got:02x?}");
    }
}

/// A small PUBLISH may come in one piece and the answer is clear; a large one
/// gets DISCONNECT 0x95.
#[test]
fn a_datagram_that_is_too_large_is_refused() {
    let serve = Serve::start(
        1,
        UdpOptions {
            max_datagram: Some(600),
            ..UdpOptions::default()
        },
    );
    let mut udp = Udp::new(serve.udp, false);
    let (_, max) = udp.connect("large", 0);
    assert_eq!(max, Some(600));
    let packet = publish_packet("t", QoS::AtMostOnce, 0, &[0; 1000]);
    udp.socket.send_to(&packet, serve.udp).unwrap();
    let goodbye = udp.receive();
    assert_eq!((goodbye[0], goodbye[2]), (0xE0, 0x95));
}

/// Nothing of more bytes than came goes to who has proven nothing.
#[test]
fn strangers_get_little() {
    let serve = Serve::start(1, UdpOptions::default());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let connect = connect_packet("stranger", 0);
    let unknown = publish_packet("t", QoS::AtMostOnce, 0, b"a message of nobody");
    let mut buffer = [0; 2048];
    for datagram in [&connect, &unknown] {
        socket.send_to(datagram, serve.udp).unwrap();
        let (n, _) = socket.recv_from(&mut buffer).unwrap();
        assert!(n <= datagram.len());
    }
    // Too short for any answer; the next one is to what came after.
    socket.send_to(&[0xC0, 0], serve.udp).unwrap();
    socket.send_to(&connect, serve.udp).unwrap();
    let (n, _) = socket.recv_from(&mut buffer).unwrap();
    assert!(matches!(
        Header::split(&buffer[..n]),
        Ok((Some(Header::Retry { .. }), []))
    ));
}

/// A client that knows nothing of headers, as in PrioMQTT.
#[test]
fn bare_packets_do_where_cookies_are_off() {
    let serve = Serve::start(
        1,
        UdpOptions {
            cookie: false,
            ..UdpOptions::default()
        },
    );
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(serve.udp).unwrap();
    let mut buffer = [0; 2048];
    let mut exchange = |packet: &[u8]| {
        socket.send(packet).unwrap();
        let n = socket.recv(&mut buffer).unwrap();
        buffer[..n].to_vec()
    };
    assert_eq!(exchange(&connect_packet("bare", 0))[0], 0x20);
    assert_eq!(
        exchange(&subscribe_packet(1, "t", QoS::AtMostOnce))[0],
        0x90
    );
    let message = publish_packet("t", QoS::AtMostOnce, 0, b"x");
    assert_eq!(exchange(&message), message);
}

#[test]
fn goodbyes_come_through_both_ways() {
    let serve = Serve::start(4, UdpOptions::default());
    let mut leaving = Udp::new(serve.udp, true);
    leaving.connect("leaving", 0);
    // Their sessions are on all shards, their socket is on the first.
    let mut staying: Vec<_> = (0..16)
        .map(|i| {
            let mut client = Udp::new(serve.udp, true);
            client.connect(&format!("staying-{i}"), 0);
            client
        })
        .collect();
    leaving.send(&encode(&Packet::Disconnect(Disconnect {
        reason: ReasonCode::Success,
        properties: Properties::EMPTY,
    })));
    while leaving.client.state() == ClientState::Closing {
        leaving.turn();
    }
    assert_eq!(leaving.client.state(), ClientState::Closed("disconnected"));
    serve.stop();
    for client in &mut staying {
        let goodbye = client.receive();
        assert_eq!(
            (goodbye[0], goodbye[2]),
            (0xE0, ReasonCode::ServerShuttingDown.byte())
        );
    }
}

/// With a link's rate given, what is sent takes the time that the link would
/// need, and all of it comes.
#[test]
fn sending_is_paced_to_the_rate_of_the_link() {
    let serve = Serve::start(
        1,
        UdpOptions {
            rate: Some(10_000_000),
            ..UdpOptions::default()
        },
    );
    let mut receiver = Udp::new(serve.udp, false);
    receiver.connect("receiver", 0);
    receiver.subscribe("bulk", QoS::AtMostOnce);
    let mut sender = Tcp::connect(serve.tcp, "sender", 0);
    let start = Instant::now();
    for n in 0..50u8 {
        let message = publish_packet("bulk", QoS::AtMostOnce, 0, &[n; 1400]);
        sender.stream.write_all(&message).unwrap();
    }
    for n in 0..50u8 {
        assert_eq!(receiver.message()[0], n);
    }
    // 50 datagrams of 1408 bytes and 66 of headers at 10 Mbit/s take 59 ms,
    // less a burst of 3100 bytes.
    let least = Duration::from_micros((50 * 1474 - 3100 - 1474) * 8 / 10);
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}

/// What is urgent for one receiver leaves the others' plain messages their share
/// of a paced link: the flood alone would keep it busy for more than a minute.
#[test]
fn nobody_starves_behind_an_urgent_flood_to_another() {
    for shards in [1, 2] {
        let serve = Serve::start(
            shards,
            UdpOptions {
                rate: Some(400_000),
                ..UdpOptions::default()
            },
        );
        let mut flooded = Udp::new(serve.udp, false);
        flooded.connect("flooded", 0);
        flooded.subscribe("flood", QoS::AtMostOnce);
        let mut calm: Vec<_> = (0..2)
            .map(|n| {
                let mut calm = Udp::new(serve.udp, false);
                calm.connect(&format!("calm{n}"), 0);
                calm.subscribe("calm", QoS::AtMostOnce);
                calm
            })
            .collect();
        let mut sender = Tcp::connect(serve.tcp, "sender", 0);
        let mut properties = PropertyBuf::new();
        properties.push_user("priority", "0").unwrap();
        let urgent = encode(&Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "flood",
            packet_id: 0,
            properties: properties.as_properties(),
            payload: &[0; 1300],
        }));
        for _ in 0..2700 {
            sender.stream.write_all(&urgent).unwrap();
        }
        for n in 0..2 {
            let plain = publish_packet("calm", QoS::AtMostOnce, 0, &[n; 10]);
            sender.stream.write_all(&plain).unwrap();
        }
        for calm in &mut calm {
            assert_eq!(calm.message()[0], 0);
            assert_eq!(calm.message()[0], 1);
        }
    }
}

/// What a round trip is measured through.
#[derive(Clone, Copy)]
enum Through {
    /// A thread that waits in `recv`: two system calls a datagram. Possible
    /// for a server that has one socket and no timer.
    Blocking,
    /// A thread that waits in epoll: three system calls, as every server with
    /// more than one socket makes them.
    Epoll,
    /// The broker.
    Broker,
}

/// Who runs where, which says what it costs to wake somebody up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Places {
    /// Clients, relays and broker on one CPU.
    Together,
    /// Clients on one, relays and broker on another.
    Apart,
    /// The same with `realtime.busy_poll`.
    Polling,
}

/// Binds the calling thread, and those that it starts, to CPUs.
fn bind(cpus: Range<usize>) {
    // SAFETY: cpu_set_t is plain data for which all zeros is the empty set; the
    // set lives until the call returns.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for n in cpus {
            libc::CPU_SET(n, &mut set);
        }
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    assert_eq!(result, 0);
}

/// Forwards datagrams to `target` until an empty one comes; its address.
fn relay(through: Through, target: SocketAddr, cpu: usize) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut buffer = [0; 2048];
    match through {
        Through::Epoll => {
            socket.set_nonblocking(true).unwrap();
            let mut socket = mio::net::UdpSocket::from_std(socket);
            let mut poll = mio::Poll::new().unwrap();
            let (token, interest) = (mio::Token(0), mio::Interest::READABLE);
            let registry = poll.registry();
            registry.register(&mut socket, token, interest).unwrap();
            let mut events = mio::Events::with_capacity(16);
            std::thread::spawn(move || {
                bind(cpu..cpu + 1);
                loop {
                    poll.poll(&mut events, None).unwrap();
                    // One datagram is under way at a time.
                    match socket.recv_from(&mut buffer) {
                        Ok((0, _)) | Err(_) => return,
                        Ok((n, _)) => socket.send_to(&buffer[..n], target).unwrap(),
                    };
                }
            });
        }
        _ => {
            std::thread::spawn(move || {
                bind(cpu..cpu + 1);
                while let Ok((n, _)) = socket.recv_from(&mut buffer) {
                    if n == 0 || socket.send_to(&buffer[..n], target).is_err() {
                        return;
                    }
                }
            });
        }
    }
    address
}

/// Figures, not a test: the time from the sending of a datagram with PUBLISH to
/// its receipt through the broker, against that of the same bytes through
/// threads that only forward datagrams. What a client does before and after is
/// not in it. All in turns in one run, with everything on one CPU, with clients
/// and relays or broker on CPUs of their own, and the same with
/// `realtime.busy_poll`; for a quiet machine with two CPUs:
/// `cargo test --release -p punctual-net --test udp -- --ignored --nocapture floor`
#[test]
#[ignore = "measures"]
fn floor() {
    const BLOCK: usize = 1000;
    const BLOCKS: usize = 20;
    for (sealed, places) in [
        (false, Places::Together),
        (true, Places::Together),
        (false, Places::Apart),
        (false, Places::Polling),
    ] {
        let realtime = (places == Places::Polling).then_some(RealtimeOptions {
            priority: 1,
            pin: true,
            heap: 0,
            busy_poll: Duration::from_micros(50),
            cpu_latency: None,
        });
        bind(match places {
            Places::Polling => 0..8 * size_of::<libc::cpu_set_t>(),
            _ => 0..1,
        });
        let serve = Serve::start_with(1, UdpOptions::default(), realtime);
        let chosen = serve.server.borrow().as_ref().and_then(|server| {
            let shard = server.realtime()?.shards.first()?;
            shard.cpu
        });
        let cpu = chosen.unwrap_or(0);
        let clients = cpu + usize::from(places != Places::Together);
        bind(clients..clients + 1);
        let mut receiver = Udp::new(serve.udp, sealed);
        receiver.connect("receiver", 0);
        receiver.subscribe("floor", QoS::AtMostOnce);
        let mut sender = Udp::new(serve.udp, sealed);
        sender.connect("sender", 0);
        let message = publish_packet("floor", QoS::AtMostOnce, 0, &[7; 100]);
        receiver.socket.set_read_timeout(Some(PATIENCE)).unwrap();

        let target = receiver.socket.local_addr().unwrap();
        let ways = [Through::Blocking, Through::Epoll, Through::Broker].map(|through| {
            let address = match through {
                Through::Broker => serve.udp,
                _ => relay(through, target, cpu),
            };
            (through, address)
        });
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        let mut buffer = [0; 2048];
        for _ in 0..BLOCKS {
            for ((through, address), times) in ways.iter().zip(&mut times) {
                for _ in 0..BLOCK {
                    let now = sender.now();
                    sender.client.send(&message, 2, now).unwrap();
                    let datagram = sender.client.poll_transmit().unwrap();
                    let start = Instant::now();
                    sender.socket.send_to(&datagram.data, *address).unwrap();
                    let n = receiver.socket.recv(&mut buffer).unwrap();
                    times.push(start.elapsed());
                    if matches!(through, Through::Broker) {
                        let now = receiver.now();
                        receiver.client.handle(&buffer[..n], now);
                        assert_eq!(receiver.client.received(), message);
                        receiver.client.take_received(message.len());
                    } else {
                        assert_eq!(n, datagram.data.len());
                    }
                }
            }
        }
        for (_, relay) in &ways[..2] {
            sender.socket.send_to(&[], relay).unwrap();
        }
        let figures = times.map(|mut times| {
            times.sort_unstable();
            [50, 99].map(|p| times[times.len() * p / 100].as_nanos() as f64 / 1000.0)
        });
        let [blocking, epoll, broker] = figures;
        println!(
            "{places:?}, sealed {sealed}: p50 / p99 in us: relay blocking {:.1} / {:.1}, relay epoll {:.1} / \
             {:.1}, broker {:.1} / {:.1}; broker's p50 to blocking {:.2}, to epoll {:.2}",
            blocking[0],
            blocking[1],
            epoll[0],
            epoll[1],
            broker[0],
            broker[1],
            broker[0] / blocking[0],
            broker[0] / epoll[0],
        );
    }
}
