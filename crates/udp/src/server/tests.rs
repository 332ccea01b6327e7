use super::*;
use proptest::prelude::*;
use punctual_codec::{ConnAck, Properties, PropertyBuf, PropertyId, Publish, QoS, Version};

const SEED: [u8; 32] = [3; 32];
const NONCE: [u8; 8] = *b"a nonce!";

fn path(n: u8) -> Path {
    Path {
        remote: ([10, 0, 0, n], 4000).into(),
        local: None,
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_secs(100) + Duration::from_millis(n)
}

fn connect_packet() -> Vec<u8> {
    let mut out = Vec::new();
    Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive: 10,
        client_id: "c",
        will: None,
        username: None,
        password: None,
        properties: Properties::EMPTY,
    }
    .encode(&mut out)
    .unwrap();
    out
}

fn publish(qos: QoS, id: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Publish {
        dup: false,
        qos,
        retain: false,
        topic: "t",
        packet_id: id,
        properties: Properties::EMPTY,
        payload,
    }
    .encode(Version::V5, &mut out)
    .unwrap();
    out
}

fn hello(sealed: bool, nonce: [u8; 8], cookie: Cookie) -> Vec<u8> {
    let mut out = Vec::new();
    Header::Hello {
        sealed,
        nonce,
        cookie,
    }
    .put(&mut out);
    out.extend(connect_packet());
    out
}

fn events(endpoint: &mut Endpoint) -> Vec<Event> {
    std::iter::from_fn(|| endpoint.poll_event()).collect()
}

fn sent(endpoint: &mut Endpoint) -> Vec<(SocketAddr, Vec<u8>)> {
    std::iter::from_fn(|| endpoint.poll_transmit())
        .map(|t| (t.path.remote, t.data))
        .collect()
}

const CONNACK: [u8; 5] = [0x20, 3, 0, 0, 0];

/// A connection from 10.0.0.1, past its CONNACK.
struct Connected {
    endpoint: Endpoint,
    peer: PeerId,
    seal: crate::seal::Seal,
    cookie: Cookie,
}

fn connected(config: EndpointConfig, sealed: bool) -> Connected {
    let mut endpoint = Endpoint::new(config, &SEED, ms(0));
    endpoint.handle(path(1), &hello(sealed, NONCE, Cookie::default()), ms(0));
    let answers = sent(&mut endpoint);
    let Ok((Some(Header::Retry { nonce, cookie }), _)) = Header::split(&answers[0].1) else {
        panic!("{answers:?}");
    };
    assert_eq!(nonce, NONCE);
    assert_eq!(endpoint.open(), 0, "nothing is kept before the cookie");
    endpoint.handle(path(1), &hello(sealed, NONCE, cookie), ms(1));
    let [Event::Opened(peer)] = events(&mut endpoint)[..] else {
        panic!("not opened");
    };
    let len = endpoint.inbox(peer).len();
    endpoint.consumed(peer, len);
    endpoint.send(peer, &CONNACK, 0, ms(2));
    let answers = sent(&mut endpoint);
    let Ok((Some(Header::Welcome { id, key, nonce, .. }), packets)) = Header::split(&answers[0].1)
    else {
        panic!("{answers:?}");
    };
    assert_eq!((answers.len(), nonce), (1, NONCE));
    assert_eq!(packets[0], 0x20);
    Connected {
        endpoint,
        peer,
        seal: crate::seal::Seal::new(id, key, crate::Side::Client),
        cookie,
    }
}

impl Connected {
    fn token(&mut self, packets: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Header::Token(self.seal.next()).put(&mut out);
        out.extend_from_slice(packets);
        self.seal.sign(&mut out);
        out
    }

    fn moved(&mut self, cookie: Cookie, packets: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Header::Move(self.seal.next(), cookie).put(&mut out);
        out.extend_from_slice(packets);
        self.seal.sign(&mut out);
        out
    }

    fn take(&mut self) -> Vec<u8> {
        let inbox = self.endpoint.inbox(self.peer).to_vec();
        self.endpoint.consumed(self.peer, inbox.len());
        events(&mut self.endpoint);
        inbox
    }
}

#[test]
fn a_connect_without_cookie_gets_one_and_no_state() {
    let mut endpoint = Endpoint::new(EndpointConfig::default(), &SEED, ms(0));
    for datagram in [connect_packet(), hello(true, NONCE, Cookie::default())] {
        endpoint.handle(path(1), &datagram, ms(0));
        assert!(events(&mut endpoint).is_empty());
        assert!(endpoint.peers.is_empty() && endpoint.by_address.is_empty());
        let answers = sent(&mut endpoint);
        let large = datagram.len() >= Header::RETRY_LEN;
        assert_eq!(answers.len(), usize::from(large));
    }
}

#[test]
fn repetitions_of_connect_are_one_connection() {
    let mut c = connected(EndpointConfig::default(), true);
    let again = hello(true, NONCE, c.cookie);
    c.endpoint.handle(path(1), &again, ms(50));
    assert!(events(&mut c.endpoint).is_empty());
    let answers = sent(&mut c.endpoint);
    assert_eq!(answers.len(), 1, "CONNACK again");
    assert!(matches!(
        Header::split(&answers[0].1),
        Ok((Some(Header::Welcome { .. }), [0x20, ..]))
    ));
    c.endpoint.handle(path(1), &again, ms(51));
    assert!(sent(&mut c.endpoint).is_empty(), "not for every copy");
    // From elsewhere the cookie is worth nothing.
    c.endpoint.handle(path(2), &again, ms(60));
    assert!(events(&mut c.endpoint).is_empty());
    assert_eq!(c.endpoint.open(), 1);
}

#[test]
fn a_replayed_connect_opens_nothing_after_the_end() {
    let mut c = connected(EndpointConfig::default(), true);
    c.endpoint.close(c.peer, &[], ms(100));
    sent(&mut c.endpoint);
    let again = hello(true, NONCE, c.cookie);
    c.endpoint.handle(path(1), &again, ms(200));
    assert!(events(&mut c.endpoint).is_empty());
    c.endpoint.handle_timeout(ms(100) + LINGER);
    assert!(c.endpoint.by_address.is_empty());
    c.endpoint.handle(path(1), &again, ms(5200));
    assert!(events(&mut c.endpoint).is_empty());
    assert_eq!(c.endpoint.counters().replayed_cookies, 1);
}

#[test]
fn a_client_that_starts_again_replaces_itself() {
    let mut c = connected(EndpointConfig::default(), true);
    let nonce = *b"another!";
    c.endpoint
        .handle(path(1), &hello(true, nonce, Cookie::default()), ms(10));
    let answers = sent(&mut c.endpoint);
    let Ok((Some(Header::Retry { cookie, .. }), _)) = Header::split(&answers[0].1) else {
        panic!("{answers:?}");
    };
    c.endpoint
        .handle(path(1), &hello(true, nonce, cookie), ms(11));
    let [Event::Lost(old, _), Event::Opened(new)] = events(&mut c.endpoint)[..] else {
        panic!("not replaced");
    };
    assert_eq!(old, c.peer);
    assert!(c.endpoint.path(old).is_none() && c.endpoint.path(new).is_some());
    // What the broker says to the old connection goes nowhere.
    c.endpoint.close(old, &[0xE0, 1, 0x8E], ms(12));
    assert!(sent(&mut c.endpoint).is_empty());
}

#[test]
fn a_sealed_session_hears_its_client_alone() {
    let mut c = connected(EndpointConfig::default(), true);
    let message = publish(QoS::AtMostOnce, 0, b"x");
    c.endpoint.handle(path(1), &message, ms(10));
    c.endpoint.handle(path(1), &[0xE0, 0], ms(10));
    assert!(c.take().is_empty(), "a spoofed datagram has no token");
    let good = c.token(&message);
    let mut forged = good.clone();
    *forged.last_mut().unwrap() ^= 1;
    c.endpoint.handle(path(1), &forged, ms(10));
    assert!(c.take().is_empty());
    c.endpoint.handle(path(1), &good, ms(10));
    c.endpoint.handle(path(1), &good, ms(10));
    assert_eq!(c.take(), message, "once");
    assert_eq!(c.endpoint.counters().unproven, 4);
}

#[test]
fn an_open_session_takes_bare_packets_from_its_address() {
    let mut c = connected(EndpointConfig::default(), false);
    let message = publish(QoS::AtMostOnce, 0, b"x");
    c.endpoint.handle(path(1), &message, ms(10));
    assert_eq!(c.take(), message);
    c.endpoint.handle(path(2), &message, ms(10));
    assert!(c.take().is_empty());
    assert_eq!(c.endpoint.counters().unknown, 1);
}

#[test]
fn sealing_can_be_demanded() {
    let config = EndpointConfig {
        seal: true,
        ..EndpointConfig::default()
    };
    let mut c = connected(config, false);
    c.endpoint
        .handle(path(1), &publish(QoS::AtMostOnce, 0, b"x"), ms(10));
    assert!(c.take().is_empty());
}

#[test]
fn without_cookies_a_bare_connect_is_enough() {
    let config = EndpointConfig {
        cookie: false,
        ..EndpointConfig::default()
    };
    let mut endpoint = Endpoint::new(config, &SEED, ms(0));
    let mut datagram = connect_packet();
    datagram.extend(publish(QoS::AtMostOnce, 0, b"x"));
    endpoint.handle(path(1), &datagram, ms(0));
    let [Event::Opened(peer)] = events(&mut endpoint)[..] else {
        panic!("not opened");
    };
    assert!(endpoint.inbox(peer).ends_with(b"x"));
    let len = endpoint.inbox(peer).len();
    endpoint.consumed(peer, len);
    endpoint.send(peer, &CONNACK, 0, ms(1));
    let answers = sent(&mut endpoint);
    assert_eq!(answers[0].1[0], 0x20, "no header for who sent none");
    // Repeated within its window: answered again; much later: begun anew.
    endpoint.handle(path(1), &datagram, ms(100));
    assert!(events(&mut endpoint).is_empty());
    assert_eq!(sent(&mut endpoint).len(), 1);
    endpoint.handle(path(1), &datagram, ms(10_000));
    assert!(matches!(
        events(&mut endpoint)[..],
        [Event::Lost(..), Event::Opened(_)]
    ));
}

#[test]
fn repeated_packets_are_answered_and_not_delivered_again() {
    let mut c = connected(EndpointConfig::default(), false);
    let message = publish(QoS::AtLeastOnce, 7, b"x");
    c.endpoint.handle(path(1), &message, ms(10));
    assert_eq!(c.take(), message);
    c.endpoint.handle(path(1), &message, ms(11));
    assert!(sent(&mut c.endpoint).is_empty(), "not answered yet");
    c.endpoint.send(c.peer, &[0x40, 2, 0, 7], 1, ms(12));
    assert_eq!(sent(&mut c.endpoint)[0].1, [0x40, 2, 0, 7]);
    c.endpoint.handle(path(1), &message, ms(13));
    assert_eq!(sent(&mut c.endpoint)[0].1, [0x40, 2, 0, 7]);
    assert!(c.take().is_empty());
    assert_eq!(c.endpoint.counters().repeated_received, 2);
}

#[test]
fn messages_to_a_client_are_repeated_until_it_answers() {
    let mut c = connected(EndpointConfig::default(), true);
    c.endpoint
        .send(c.peer, &publish(QoS::AtLeastOnce, 1, b"x"), 2, ms(10));
    let first = sent(&mut c.endpoint);
    let at = c.endpoint.next_timeout().unwrap();
    c.endpoint.handle_timeout(at);
    let transmit = c.endpoint.poll_transmit().unwrap();
    assert_eq!(transmit.class, 2, "in its class");
    assert_eq!(transmit.data.len(), first[0].1.len());
    let ack = c.token(&[0x40, 2, 0, 1]);
    c.endpoint.handle(path(1), &ack, at);
    assert_eq!(c.take(), [0x40, 2, 0, 1]);
    assert_eq!(c.endpoint.next_timeout(), None);
    let stray = c.token(&[0x40, 2, 0, 1]);
    c.endpoint.handle(path(1), &stray, at);
    assert!(c.take().is_empty());
}

#[test]
fn a_move_needs_token_and_cookie_of_the_new_address() {
    let mut c = connected(EndpointConfig::default(), true);
    let ping = [0xC0, 0];
    let old = c.token(&ping);
    let new = c.token(&ping);
    // The newest datagram from elsewhere is heard, and asked for a cookie.
    c.endpoint.handle(path(2), &new, ms(10));
    assert_eq!(c.take(), ping);
    assert_eq!(c.endpoint.path(c.peer), Some(path(1)));
    let answers = sent(&mut c.endpoint);
    assert_eq!(answers[0].0, path(2).remote);
    assert!(answers[0].1.len() <= new.len());
    let Ok((Some(Header::Retry { cookie, nonce }), _)) = Header::split(&answers[0].1) else {
        panic!("{answers:?}");
    };
    assert_eq!(nonce, c.seal.id.to_be_bytes());
    // An old datagram replayed from elsewhere moves nothing.
    c.endpoint.handle(path(3), &old, ms(40));
    assert!(sent(&mut c.endpoint).is_empty());
    // The cookie of one address does not move the session to another.
    let wrong = c.moved(cookie, &ping);
    c.endpoint.handle(path(3), &wrong, ms(50));
    assert_eq!(c.endpoint.path(c.peer), Some(path(1)));
    let right = c.moved(cookie, &ping);
    c.endpoint.handle(path(2), &right, ms(60));
    assert_eq!(c.endpoint.path(c.peer), Some(path(2)));
    assert!(events(&mut c.endpoint).contains(&Event::Moved(c.peer, path(2).remote)));
    // A copy of it does not move the session back later.
    sent(&mut c.endpoint);
    c.endpoint.handle(path(2), &right, ms(70));
    c.endpoint.send(c.peer, &[0xD0, 0], 0, ms(80));
    assert_eq!(sent(&mut c.endpoint)[0].0, path(2).remote);
}

#[test]
fn changes_of_address_are_few() {
    let mut c = connected(EndpointConfig::default(), true);
    let mut moves = 0;
    for n in 0..100u64 {
        let to = path(10 + (n % 2) as u8);
        let at = ms(100 + 100 * n);
        let ask = c.token(&[0xC0, 0]);
        c.endpoint.handle(to, &ask, at);
        for (_, answer) in sent(&mut c.endpoint) {
            if let Ok((Some(Header::Retry { cookie, .. }), _)) = Header::split(&answer) {
                let datagram = c.moved(cookie, &[0xC0, 0]);
                c.endpoint.handle(to, &datagram, at);
            }
        }
        c.take();
        moves = c.endpoint.counters().moves;
    }
    assert!((5..=11).contains(&moves), "{moves} in ten seconds");
}

#[test]
fn who_is_not_known_is_told_so_in_fewer_bytes() {
    let mut endpoint = Endpoint::new(EndpointConfig::default(), &SEED, ms(0));
    let mut datagram = Vec::new();
    let token = Token {
        id: 7,
        counter: 9,
        tag: [0; 8],
    };
    Header::Token(token).put(&mut datagram);
    endpoint.handle(path(1), &datagram, ms(0));
    let answers = sent(&mut endpoint);
    assert_eq!(
        Header::split(&answers[0].1),
        Ok((Some(Header::Reset { id: 7, counter: 9 }), &[][..]))
    );
    endpoint.handle(path(1), &[0xC0, 0], ms(0));
    assert!(sent(&mut endpoint).is_empty(), "too short for an answer");
}

#[test]
fn a_disconnect_is_confirmed_each_time() {
    let mut c = connected(EndpointConfig::default(), true);
    for n in 0..2 {
        let goodbye = c.token(&[0xE0, 0]);
        c.endpoint.handle(path(1), &goodbye, ms(10 + 100 * n));
        if n == 0 {
            c.endpoint.close(c.peer, &[], ms(10));
        }
        let answers = sent(&mut c.endpoint);
        let counter = c.seal.sent();
        let id = c.seal.id;
        assert_eq!(
            Header::split(&answers[0].1),
            Ok((Some(Header::Reset { id, counter }), &[][..]))
        );
    }
}

#[test]
fn last_words_are_repeated_to_who_missed_them() {
    let mut c = connected(EndpointConfig::default(), true);
    let goodbye = [0xE0, 1, 0x8B];
    c.endpoint.close(c.peer, &goodbye, ms(10));
    assert!(sent(&mut c.endpoint)[0].1.ends_with(&goodbye));
    let ping = c.token(&[0xC0, 0]);
    c.endpoint.handle(path(1), &ping, ms(100));
    assert!(sent(&mut c.endpoint)[0].1.ends_with(&goodbye));
    assert_eq!(c.endpoint.open(), 0);
}

#[test]
fn a_datagram_above_the_bound_is_refused_with_its_reason() {
    let config = EndpointConfig {
        max_datagram_v4: 512,
        ..EndpointConfig::default()
    };
    let mut c = connected(config, true);
    let large = c.token(&publish(QoS::AtLeastOnce, 1, &[0; 500]));
    c.endpoint.handle(path(1), &large, ms(10));
    assert!(matches!(
        events(&mut c.endpoint)[..],
        [Event::Lost(peer, _)] if peer == c.peer
    ));
    let answers = sent(&mut c.endpoint);
    let (_, packets) = Header::split(&answers[0].1).unwrap();
    assert_eq!((packets[0], packets[2]), (0xE0, 0x95));
}

#[test]
fn a_message_too_large_for_a_client_is_dropped_and_settled() {
    let config = EndpointConfig {
        max_datagram_v4: 512,
        ..EndpointConfig::default()
    };
    let mut c = connected(config, false);
    let small = publish(QoS::AtMostOnce, 0, b"small");
    let mut packets = small.clone();
    packets.extend(publish(QoS::AtLeastOnce, 1, &[0; 600]));
    packets.extend(publish(QoS::AtMostOnce, 0, &[0; 600]));
    packets.extend(&small);
    c.endpoint.send(c.peer, &packets, 2, ms(10));
    let sent: Vec<u8> = sent(&mut c.endpoint)
        .into_iter()
        .flat_map(|(_, data)| data)
        .collect();
    assert_eq!(sent, [small.clone(), small].concat());
    assert_eq!(c.take(), [0x40, 3, 0, 1, 0x80], "the broker's slot is free");
    assert_eq!(c.endpoint.counters().too_large, 2);
}

#[test]
fn a_narrow_path_is_sent_smaller_datagrams() {
    let mut c = connected(EndpointConfig::default(), true);
    let to = path(1).remote;
    assert_eq!(c.endpoint.narrow(to, 1272), Some(c.peer));
    assert_eq!(c.endpoint.capacity(c.peer) + Header::TOKEN_LEN, 1272);
    assert_eq!(c.endpoint.narrow(to, 1400), None, "it takes less");
    let packets = publish(QoS::AtMostOnce, 0, &[0; 600]).repeat(2);
    c.endpoint.send(c.peer, &packets, 2, ms(10));
    assert_eq!(sent(&mut c.endpoint).len(), 1);
    // Whoever can forge ICMP cannot make it useless.
    assert_eq!(c.endpoint.narrow(to, 68), Some(c.peer));
    assert_eq!(
        c.endpoint.capacity(c.peer) + Header::TOKEN_LEN,
        LEAST_DATAGRAM
    );
    assert_eq!(c.endpoint.narrow(path(9).remote, 600), None, "a stranger");
    assert_eq!(c.endpoint.counters().narrowed, 2);
}

#[test]
fn a_topic_alias_is_refused() {
    let mut c = connected(EndpointConfig::default(), false);
    let mut properties = PropertyBuf::new();
    properties.push_number(PropertyId::TopicAlias, 1);
    let mut packet = Vec::new();
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: 0,
        properties: properties.as_properties(),
        payload: b"x",
    }
    .encode(Version::V5, &mut packet)
    .unwrap();
    c.endpoint.handle(path(1), &packet, ms(10));
    let answers = sent(&mut c.endpoint);
    assert_eq!((answers[0].1[0], answers[0].1[2]), (0xE0, 0x94));
    assert!(c.take().is_empty());
}

#[test]
fn a_publisher_that_is_held_back_fills_its_inbox_and_no_more() {
    let mut c = connected(EndpointConfig::default(), false);
    let message = publish(QoS::AtMostOnce, 0, &[0; 1000]);
    for n in 0..200 {
        c.endpoint.handle(path(1), &message, ms(10 + n));
    }
    let inbox = c.endpoint.inbox(c.peer).len();
    assert!((INBOX..INBOX + 1500).contains(&inbox), "{inbox}");
    assert!(c.endpoint.counters().inbox_full > 100);
    // The broker is told once, and asks for the rest when it goes on.
    assert_eq!(events(&mut c.endpoint), [Event::Received(c.peer)]);
}

#[test]
fn who_has_no_keep_alive_is_not_kept_for_ever() {
    let config = EndpointConfig {
        cookie: false,
        ..EndpointConfig::default()
    };
    let idle = config.idle;
    let mut endpoint = Endpoint::new(config, &SEED, ms(0));
    let mut connect = Vec::new();
    Connect {
        version: Version::V311,
        clean_start: true,
        keep_alive: 0,
        client_id: "c",
        will: None,
        username: None,
        password: None,
        properties: Properties::EMPTY,
    }
    .encode(&mut connect)
    .unwrap();
    endpoint.handle(path(1), &connect, ms(0));
    events(&mut endpoint);
    endpoint.handle(path(1), &[0xC0, 0], ms(1000));
    events(&mut endpoint);
    endpoint.handle_timeout(ms(0) + idle);
    assert!(
        events(&mut endpoint).is_empty(),
        "heard of one second later"
    );
    endpoint.handle_timeout(ms(1000) + idle);
    assert!(matches!(events(&mut endpoint)[..], [Event::Lost(..)]));
    assert!(endpoint.by_address.is_empty() && endpoint.timers.is_empty());
}

#[test]
fn there_is_an_end_to_connections() {
    let config = EndpointConfig {
        max_peers: 0,
        ..EndpointConfig::default()
    };
    let mut endpoint = Endpoint::new(config, &SEED, ms(0));
    endpoint.handle(path(1), &hello(true, NONCE, Cookie::default()), ms(0));
    let answers = sent(&mut endpoint);
    let Ok((Some(Header::Retry { cookie, .. }), _)) = Header::split(&answers[0].1) else {
        panic!("{answers:?}");
    };
    let datagram = hello(true, NONCE, cookie);
    endpoint.handle(path(1), &datagram, ms(0));
    let answers = sent(&mut endpoint);
    let (_, packets) = Header::split(&answers[0].1).unwrap();
    assert_eq!(packets, [0x20, 3, 0, 0x89, 0]);
    assert!(answers[0].1.len() <= datagram.len());
    assert_eq!(endpoint.counters().refused, 1);
}

/// Without cookies anybody may have written the address of a CONNECT: until CONNACK lets its client
/// in, nothing else goes there, and a refusal is no larger than what it answers.
#[test]
fn nothing_but_connack_goes_to_an_address_that_has_proven_nothing() {
    let config = EndpointConfig {
        cookie: false,
        ..EndpointConfig::default()
    };
    let mut endpoint = Endpoint::new(config, &SEED, ms(0));
    let connect = connect_packet();
    let message = publish(QoS::AtLeastOnce, 1, b"x");
    let datagram = [&connect[..], &message, &message, &[0xC0, 0]].concat();
    endpoint.handle(path(1), &datagram, ms(0));
    let [Event::Opened(peer)] = events(&mut endpoint)[..] else {
        panic!("not opened");
    };
    endpoint.handle(path(1), &message, ms(1));
    endpoint.send(peer, &[0xD0, 0], 0, ms(2));
    endpoint.handle_timeout(ms(5000));
    assert_eq!(sent(&mut endpoint), []);

    let mut why = PropertyBuf::new();
    let long = "a reason that is much longer than all that came";
    why.push_data(PropertyId::ReasonString, long.as_bytes())
        .unwrap();
    let mut refusal = Vec::new();
    ConnAck {
        session_present: false,
        reason: ReasonCode::NotAuthorized,
        properties: why.as_properties(),
    }
    .encode(Version::V5, &mut refusal)
    .unwrap();
    endpoint.close(peer, &refusal, ms(5001));
    let bare = vec![0x20, 3, 0, 0x87, 0];
    assert_eq!(sent(&mut endpoint), [(path(1).remote, bare)]);
    endpoint.handle(path(1), &[0xC0, 0], ms(5100));
    assert_eq!(sent(&mut endpoint), [], "smaller than the refusal");
}

/// Bytes that look like something, from many addresses.
fn any_datagram() -> impl Strategy<Value = Vec<u8>> {
    let cookie = any::<[u8; Cookie::LEN]>().prop_map(Cookie::from_bytes);
    let bytes = || proptest::collection::vec(any::<u8>(), 0..60);
    prop_oneof![
        bytes(),
        (any::<bool>(), any::<[u8; 8]>(), cookie.clone(), bytes()).prop_map(
            |(sealed, nonce, cookie, rest)| {
                let mut out = hello(sealed, nonce, cookie);
                out.extend(rest);
                out
            }
        ),
        bytes().prop_map(|rest| [connect_packet(), rest].concat()),
        (
            any::<u64>(),
            any::<u64>(),
            any::<[u8; 8]>(),
            cookie,
            any::<bool>(),
            bytes()
        )
            .prop_map(|(id, counter, tag, cookie, moves, rest)| {
                let token = Token { id, counter, tag };
                let mut out = Vec::new();
                match moves {
                    true => Header::Move(token, cookie).put(&mut out),
                    false => Header::Token(token).put(&mut out),
                }
                out.extend(rest);
                out
            }),
        bytes().prop_map(|rest| [&[0x30, 4, 0, 1, b't', 1][..], &rest].concat()),
    ]
}

proptest! {
    /// No amplification: to an address that has proven nothing never more
    /// bytes go than came from there, in every datagram, and nothing is kept.
    #[test]
    fn fewer_bytes_out_than_in_until_proven(
        datagrams in proptest::collection::vec((0..4u8, any_datagram()), 1..60),
        seal: bool,
    ) {
        let config = EndpointConfig { seal, ..EndpointConfig::default() };
        let mut endpoint = Endpoint::new(config, &SEED, ms(0));
        for (n, (from, datagram)) in datagrams.iter().enumerate() {
            endpoint.handle(path(*from), datagram, ms(n as u64));
            let out = sent(&mut endpoint);
            prop_assert!(out.len() <= 1);
            for (to, data) in out {
                prop_assert_eq!(to, path(*from).remote);
                prop_assert!(data.len() <= datagram.len());
            }
            prop_assert!(endpoint.peers.is_empty() && endpoint.by_address.is_empty());
            prop_assert!(events(&mut endpoint).is_empty());
        }
    }

    /// Anything from a client that is connected: no panic, bounded memory, and
    /// what reaches the broker is whole packets.
    #[test]
    fn a_connected_client_may_send_anything(
        datagrams in proptest::collection::vec(any_datagram(), 1..60),
    ) {
        let mut c = connected(EndpointConfig::default(), false);
        for (n, datagram) in datagrams.iter().enumerate() {
            let now = ms(100 + 10 * n as u64);
            c.endpoint.handle(path(1), datagram, now);
            c.endpoint.handle_timeout(now);
            let inbox = c.endpoint.inbox(c.peer).to_vec();
            let mut all = frames(&inbox, usize::MAX);
            let _ = (&mut all).count();
            prop_assert!(all.rest().is_empty());
            c.endpoint.consumed(c.peer, inbox.len());
            sent(&mut c.endpoint);
            events(&mut c.endpoint);
        }
    }
}
