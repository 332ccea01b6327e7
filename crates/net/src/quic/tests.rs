//! A link and a client of `quinn-proto` in virtual time: what is handed over is
//! what leaves, and it all arrives, whatever is lost.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use proptest::prelude::*;
use punctual_model::Rng;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event, StreamEvent, StreamId,
};
use rustls::crypto::ring;

use super::link::Link;
use super::proof::Proof;
use super::settings::{self, AHEAD, ALPN};
use super::{QuicCounters, QuicOptions, rehearsal};
use crate::tls::{self, ClientCertificates, MinimumTls, TlsAcceptor, TlsServerOptions};

#[path = "../../../../fuzz/src/quic.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

/// One way through the network.
const DELAY: Duration = Duration::from_millis(5);

/// A server's link and a client.
struct Pair {
    now: Instant,
    server: Endpoint,
    link: Option<(ConnectionHandle, Link)>,
    proof: Option<Proof>,
    client: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    stream: Option<StreamId>,
    counters: QuicCounters,
    to_client: VecDeque<(Instant, Vec<u8>)>,
    to_server: VecDeque<(Instant, Vec<u8>)>,
    /// Which datagrams to the client are lost.
    lose: Box<dyn FnMut() -> bool>,
    /// Bytes that the client has read.
    read: usize,
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

impl Pair {
    fn new(lose: Box<dyn FnMut() -> bool>) -> Self {
        let mut pair = Self::begin();
        while !pair.link.as_ref().is_some_and(|(_, link)| link.has_room()) {
            pair.step();
            if !pair.connection.is_handshaking() && pair.stream.is_none() {
                let stream = pair.connection.streams().open(Dir::Bi).unwrap();
                pair.connection.send_stream(stream).write(b"x").unwrap();
                pair.stream = Some(stream);
            }
        }
        pair.lose = lose;
        pair
    }

    /// A client that has not sent anything.
    fn begin() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
        let certificate = dir.path().join("c.pem");
        let key = dir.path().join("k.pem");
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = TlsAcceptor::load(&TlsServerOptions {
            certificate,
            key,
            clients: ClientCertificates::Ignored,
            minimum: MinimumTls::V1_3,
            max_record: tls::MAX_RECORD,
        })
        .unwrap();
        let config = settings::server(&tls, &QuicOptions::default()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let mut trust = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        trust.alpn_protocols = vec![ALPN.to_vec()];
        let trust = QuicClientConfig::try_from(trust).unwrap();
        let endpoint = || Arc::new(EndpointConfig::default());
        let now = Instant::now();
        let mut client = Endpoint::new(endpoint(), None, true, Some([1; 32]));
        let trust = ClientConfig::new(Arc::new(trust));
        let connecting = client.connect(now, trust, address(1), "localhost");
        let (handle, connection) = connecting.unwrap();
        Self {
            now,
            server: Endpoint::new(endpoint(), Some(Arc::new(config)), true, Some([2; 32])),
            link: None,
            proof: None,
            client,
            handle,
            connection,
            stream: None,
            counters: QuicCounters::default(),
            to_client: VecDeque::new(),
            to_server: VecDeque::new(),
            lose: Box::new(|| false),
            read: 0,
        }
    }

    /// Lets both sides send what they have, and moves on to what is next.
    fn step(&mut self) {
        self.send_link();
        self.send_client();
        let mut next = self.connection.poll_timeout();
        let due = self
            .link
            .as_mut()
            .and_then(|(_, link)| link.connection.poll_timeout());
        let arrivals = [&self.to_client, &self.to_server];
        let arrivals = arrivals
            .into_iter()
            .filter_map(|queue| Some(queue.front()?.0));
        next = arrivals.chain(next).chain(due).min();
        self.now = self.now.max(next.expect("somebody waits for something"));
        while let Some((_, datagram)) = self.to_client.pop_front_if(|(at, _)| *at <= self.now) {
            self.at_client(&datagram);
        }
        while let Some((_, datagram)) = self.to_server.pop_front_if(|(at, _)| *at <= self.now) {
            self.at_server(&datagram);
        }
        self.connection.handle_timeout(self.now);
        if let Some((_, link)) = &mut self.link {
            link.connection.handle_timeout(self.now);
        }
        self.client_events();
        self.server_events();
    }

    /// Sends the link's datagrams; returns how many there were.
    fn send_link(&mut self) -> usize {
        let Some((_, link)) = &mut self.link else {
            return 0;
        };
        let mut n = 0;
        loop {
            let mut data = Vec::new();
            if link.transmit(self.now, &mut data).is_none() {
                return n;
            }
            n += 1;
            if !(self.lose)() {
                self.to_client.push_back((self.now + DELAY, data));
            }
        }
    }

    fn send_client(&mut self) {
        loop {
            let mut data = Vec::new();
            if self
                .connection
                .poll_transmit(self.now, 1, &mut data)
                .is_none()
            {
                return;
            }
            self.to_server.push_back((self.now + DELAY, data));
        }
    }

    fn at_client(&mut self, datagram: &[u8]) {
        let data = BytesMut::from(datagram);
        let mut answer = Vec::new();
        let event = self
            .client
            .handle(self.now, address(1), None, None, data, &mut answer);
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.connection.handle_event(event);
        }
    }

    fn at_server(&mut self, datagram: &[u8]) {
        let data = BytesMut::from(datagram);
        let mut answer = Vec::new();
        let event = self
            .server
            .handle(self.now, address(2), None, None, data, &mut answer);
        match event {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                self.proof.take_if(|proof| proof.is_given_by(datagram));
                let (_, link) = self.link.as_mut().unwrap();
                link.connection.handle_event(event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let from = incoming.remote_address();
                let proof = Proof::new(from, *incoming.orig_dst_cid());
                let accepted = self.server.accept(incoming, self.now, &mut answer, None);
                let (handle, connection) = accepted.map_err(|e| e.cause).unwrap();
                let mut link = Link::new(0, connection, None, None);
                link.limit(proof.flag());
                self.link = Some((handle, link));
                self.proof = Some(proof);
            }
            _ => {}
        }
    }

    fn client_events(&mut self) {
        while let Some(event) = self.connection.poll() {
            if let (Event::Stream(StreamEvent::Readable { id }), Some(stream)) =
                (event, self.stream)
            {
                assert_eq!(id, stream);
            }
        }
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(answer) = self.client.handle_event(self.handle, event) {
                self.connection.handle_event(answer);
            }
        }
        let Some(stream) = self.stream else {
            return;
        };
        let mut stream = self.connection.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else {
            return;
        };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            self.read += chunk.bytes.len();
        }
        let _ = chunks.finalize();
    }

    fn server_events(&mut self) {
        let Some((handle, link)) = &mut self.link else {
            return;
        };
        let happened = link.happened(self.now, &self.counters);
        assert_eq!(happened.lost, None);
        while let Some(event) = link.connection.poll_endpoint_events() {
            if let Some(answer) = self.server.handle_event(*handle, event) {
                link.connection.handle_event(answer);
            }
        }
    }

    /// Hands over and sends until no more is taken; returns how many bytes
    /// that was.
    fn fill(&mut self, left: usize) -> usize {
        let mut handed = 0;
        loop {
            let n = self.hand_over(left - handed);
            if n == 0 {
                return handed;
            }
            handed += n;
            self.send_link();
        }
    }

    /// Hands over as much as is taken; returns how many bytes that was.
    fn hand_over(&mut self, left: usize) -> usize {
        let bytes = vec![0; left.min(64 << 10)];
        let (_, link) = self.link.as_mut().unwrap();
        if !link.has_room() {
            return 0;
        }
        link.hand_over(&[IoSlice::new(&bytes)], &self.counters)
    }
}

/// Without loss what the client has, or will have, is what has left. So it is
/// known how much has not.
#[test]
fn little_waits_in_quic_and_the_bound_on_it_holds() {
    let mut pair = Pair::new(Box::new(|| false));
    let total = 3 << 20;
    let mut handed = 0;
    let mut held_back = 0;
    while pair.read < total {
        handed += pair.fill(total - handed);
        // Nothing was handed over or sent since: what is on its way is all that
        // has left.
        let before = pair.read;
        let mut copy: Vec<_> = pair.to_client.drain(..).map(|(_, data)| data).collect();
        for datagram in &copy {
            pair.at_client(datagram);
        }
        copy.clear();
        pair.client_events();
        assert!(pair.read >= before);
        let (_, link) = pair.link.as_ref().unwrap();
        let unsent = handed - pair.read;
        assert!(unsent <= link.unsent.most(), "{unsent}");
        assert!(unsent <= AHEAD + 1, "{unsent}");
        held_back += usize::from(unsent > 0);
        pair.step();
    }
    assert!(held_back > 0, "the network never held anything back");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whatever is lost, the link never stops although there is more to send.
    #[test]
    fn everything_arrives(seed: u64, one_in in 3_u64..40, total in 1_usize..400_000) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(Box::new(move || rng.below(one_in) == 0));
        let mut handed = 0;
        let start = pair.now;
        while pair.read < total {
            handed += pair.fill(total - handed);
            pair.step();
            prop_assert!(pair.now - start < Duration::from_secs(250), "{} of {total}", pair.read);
        }
        prop_assert_eq!(pair.read, total);
    }
}

/// Whatever is lost, and however long the first datagram is: three times that goes to an address
/// that proves nothing, at most, although what is not answered is sent again and again.
#[test]
fn an_address_that_proves_nothing_is_sent_three_times_what_it_sent_at_most() {
    for more in [0, 1, 99, 252] {
        let mut pair = Pair::begin();
        pair.send_client();
        let (_, mut first) = pair.to_server.pop_front().unwrap();
        first.resize(first.len() + more, 0);
        pair.at_server(&first);
        let (_, link) = pair.link.as_mut().unwrap();
        let (mut sent, mut rounds) = (0, 0);
        while !link.connection.is_closed() && rounds < 100 {
            let mut data = Vec::new();
            while link.transmit(pair.now, &mut data).is_some() {}
            sent += data.len();
            let due = link.connection.poll_timeout();
            pair.now = pair.now.max(due.expect("it waits for the client"));
            link.connection.handle_timeout(pair.now);
            rounds += 1;
        }
        assert!(
            (1200..=3 * first.len()).contains(&sent),
            "{sent} for {}",
            first.len()
        );
    }
}

/// Otherwise who sends from one address could have another, which sends nothing, flooded by the
/// server.
#[test]
fn what_comes_from_elsewhere_lets_nothing_be_sent_to_an_address_that_proves_nothing() {
    let seeds = seeds::seeds("quic");
    let (_, hello) = seeds.iter().find(|(name, _)| name == "hello").unwrap();
    // From the next address to the same connection, and no time passes.
    let mut elsewhere = hello.clone();
    elsewhere[0] = 0x07;
    let alone = checks::answered(hello, false);
    let input = [&hello[..], &elsewhere.repeat(10)].concat();
    assert_eq!(checks::answered(&input, false), alone);
}

/// The check of the fuzz target `quic` on a stable toolchain: over its seeds, and over changes of
/// single bytes, cuts and joints of them.
#[test]
fn seeds_and_what_is_close_to_them() {
    let seeds = seeds::seeds("quic");
    let mut rng = Rng::new(1);
    for (_, seed) in &seeds {
        checks::quic(seed);
        for _ in 0..40 {
            let mut changed = seed.clone();
            let at = rng.index(seed.len());
            changed[at] = *rng.pick(&[0, 1, 0x7F, 0x80, 0xFF, seed[at] ^ 1]);
            checks::quic(&changed);
            checks::quic(&seed[..at]);
        }
        for (_, other) in &seeds {
            checks::quic(&[&seed[..], &other[..]].concat());
        }
    }
}

/// Otherwise the fuzzer would begin with nothing but noise.
#[test]
fn a_seed_gets_as_far_as_a_handshake_and_a_retry() {
    let seeds = seeds::seeds("quic");
    let (_, hello) = seeds.iter().find(|(name, _)| name == "hello").unwrap();
    assert!(checks::answered(hello, false) > 1200);
    assert!((1..200).contains(&checks::answered(hello, true)));
}

proptest! {
    #[test]
    fn any_datagrams(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        checks::quic(&data);
    }
}
