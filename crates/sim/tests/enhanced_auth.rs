//! Enhanced authentication (section 4.12) from the first packet to the last, with a method for
//! these tests: the client names itself, receives a challenge, and answers it.
//! `docs/conformance.md` names these tests, because the binary has no built-in method.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use punctual_broker::{AuthAnswer, AuthRequest, Config, Nanos};
use punctual_codec::{
    Auth, Connect, Disconnect, Packet, PacketType, PropertyBuf, PropertyId, Publish, QoS,
    ReasonCode, Split, Subscribe, SubscribeOptions, Version, Will, split,
};
use punctual_sim::{LinkId, LinkProfile, World};

const METHOD: &str = "question";
const CONTINUE: ReasonCode = ReasonCode::ContinueAuthentication;
const AGAIN: ReasonCode = ReasonCode::ReAuthenticate;

/// The authentication hook. It accepts a client that needs no challenge at once, and sends a
/// challenge to the others. The client knows the expected answer.
fn question(request: &AuthRequest) -> AuthAnswer {
    let Some((method, data)) = &request.method else {
        return AuthAnswer::Accept {
            username: None,
            data: None,
            credential: None,
        };
    };
    assert_eq!(&**method, METHOD);
    match &**data {
        b"it is me" => AuthAnswer::Accept {
            username: Some("trusted".into()),
            data: None,
            credential: None,
        },
        b"hello" => AuthAnswer::Continue {
            data: b"7 * 6?".as_slice().into(),
        },
        b"42" => AuthAnswer::Accept {
            username: Some("clever".into()),
            data: Some(b"right".as_slice().into()),
            credential: None,
        },
        _ => AuthAnswer::Deny {
            reason: ReasonCode::NotAuthorized,
        },
    }
}

/// A packet from the broker, with the fields that these tests check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reply {
    kind: PacketType,
    reason: Option<ReasonCode>,
    method: Option<String>,
    data: Option<Vec<u8>>,
    /// Whether the packet has a Reason String or User Properties.
    chatty: bool,
}

impl Reply {
    fn of(packet: &Packet<'_>) -> Self {
        let (kind, reason, properties) = match packet {
            Packet::Auth(p) => (PacketType::Auth, Some(p.reason), p.properties),
            Packet::ConnAck(p) => (PacketType::ConnAck, Some(p.reason), p.properties),
            Packet::Disconnect(p) => (PacketType::Disconnect, Some(p.reason), p.properties),
            Packet::PingResp => (PacketType::PingResp, None, Default::default()),
            Packet::Publish(p) => (PacketType::Publish, None, p.properties),
            Packet::SubAck(p) => (PacketType::SubAck, None, p.properties),
            other => panic!("no client of these tests gets {other:?}"),
        };
        let method = properties.text(PropertyId::AuthenticationMethod);
        Self {
            kind,
            reason,
            method: method.map(str::to_owned),
            data: properties
                .data(PropertyId::AuthenticationData)
                .map(<[u8]>::to_vec),
            chatty: properties.contains(PropertyId::ReasonString)
                || properties.contains(PropertyId::UserProperty),
        }
    }

    fn is(&self, kind: PacketType, reason: ReasonCode, data: Option<&[u8]>) -> bool {
        let method = Some(METHOD.to_owned());
        (self.kind, self.reason) == (kind, Some(reason))
            && self.method == method
            && self.data.as_deref() == data
    }
}

/// A broker whose hook knows the method.
struct Broker(World);

impl Broker {
    fn new(shards: u16) -> Self {
        let config = Config {
            sys_interval: None,
            auth_methods: vec!["other".into(), METHOD.into()],
            ..Config::default()
        };
        let mut world = World::new(config, shards, 7);
        world.set_authenticator(Box::new(question));
        Self(world)
    }

    /// Opens a connection that sends this CONNECT. With two shards, the connection begins on
    /// another shard than the session.
    fn connect(&mut self, connect: &Connect<'_>) -> LinkId {
        let shards = self.0.directory().shards();
        let link = self.0.connect_to(shards - 1, LinkProfile::default());
        self.say(link, &Packet::Connect(*connect));
        link
    }

    fn say(&mut self, link: LinkId, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        self.0.write(link, &bytes);
    }

    fn say_auth(&mut self, link: LinkId, reason: ReasonCode, method: &str, data: &[u8]) {
        let properties = auth_properties(method, data);
        let properties = properties.as_properties();
        self.say(link, &Packet::Auth(Auth { reason, properties }));
    }

    /// Returns the packets that the client receives until all bytes in flight have arrived.
    fn hear(&mut self, link: LinkId) -> Vec<Reply> {
        let until = self.0.now() + Nanos::from_millis(10);
        self.0.run_until(until);
        let mut bytes = Vec::new();
        self.0.take_received(link, &mut bytes);
        let mut rest = &bytes[..];
        let mut heard = Vec::new();
        while let Ok(Split::Frame(frame)) = split(rest, u32::MAX) {
            rest = &rest[frame.bytes.len()..];
            heard.push(Reply::of(&Packet::decode(frame, Version::V5).unwrap()));
        }
        assert!(rest.is_empty());
        heard
    }

    fn hear_one(&mut self, link: LinkId) -> Reply {
        let heard = self.hear(link);
        let [one] = &heard[..] else {
            panic!("one packet is due, not {heard:?}");
        };
        one.clone()
    }

    /// The broker answers PINGREQ, and sends no other packet.
    fn is_served(&mut self, link: LinkId) {
        self.say(link, &Packet::PingReq);
        assert_eq!(self.hear_one(link).kind, PacketType::PingResp);
    }

    /// The broker sends no further packet and closes the connection.
    fn is_closed(&mut self, link: LinkId) {
        assert_eq!(self.hear(link), []);
        assert!(self.0.is_ended(link));
        assert_eq!(self.0.conn(link), None);
    }

    /// Connects a client that receives a challenge and answers it.
    fn authenticated(&mut self, client_id: &str) -> LinkId {
        let properties = auth_properties(METHOD, b"hello");
        let link = self.connect(&connect(client_id, &properties));
        assert!(
            self.hear_one(link)
                .is(PacketType::Auth, CONTINUE, Some(b"7 * 6?"))
        );
        self.say_auth(link, CONTINUE, METHOD, b"42");
        let connack = self.hear_one(link);
        assert!(
            connack.is(PacketType::ConnAck, ReasonCode::Success, Some(b"right")),
            "{connack:?}"
        );
        link
    }

    fn username(&mut self, client_id: &str) -> Option<String> {
        let shards = self.0.shards().iter();
        let view = shards.filter_map(|shard| shard.client(client_id)).next()?;
        view.info().username.as_deref().map(str::to_owned)
    }

    fn counted(&mut self, reason: ReasonCode) -> u64 {
        let shards = self.0.shards().iter_mut();
        let counts = shards.map(|shard| shard.stats().disconnects.get(&reason.byte()).copied());
        counts.flatten().sum()
    }
}

fn auth_properties(method: &str, data: &[u8]) -> PropertyBuf {
    let mut properties = PropertyBuf::new();
    let _ = properties.push_data(PropertyId::AuthenticationMethod, method.as_bytes());
    if !data.is_empty() {
        let _ = properties.push_data(PropertyId::AuthenticationData, data);
    }
    properties
}

fn connect<'a>(client_id: &'a str, properties: &'a PropertyBuf) -> Connect<'a> {
    Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive: 0,
        client_id,
        will: None,
        username: None,
        password: None,
        properties: properties.as_properties(),
    }
}

/// [MQTT-4.12.0-2] [MQTT-4.12.0-5] The broker's challenge is an AUTH with reason code 0x18
/// (Continue authentication); the AUTH and the CONNACK name the method of CONNECT. The user name of
/// the session is the authenticated one.
#[test]
fn a_question_is_asked_and_answered() {
    for shards in [1, 2] {
        let mut broker = Broker::new(shards);
        let link = broker.authenticated("c");
        assert_eq!(broker.username("c").as_deref(), Some("clever"));
        broker.is_served(link);
    }
}

/// [MQTT-4.12.0-5] A client that needs no challenge receives CONNACK at once, with the method.
#[test]
fn who_is_trusted_is_not_asked() {
    let mut broker = Broker::new(1);
    let properties = auth_properties(METHOD, b"it is me");
    let link = broker.connect(&connect("c", &properties));
    let connack = broker.hear_one(link);
    assert!(connack.is(PacketType::ConnAck, ReasonCode::Success, None));
    assert_eq!(broker.username("c").as_deref(), Some("trusted"));
    broker.is_served(link);
}

/// [MQTT-4.12.0-4] [MQTT-3.2.2-7] A wrong answer, at the first or at the second
/// step, is refused by reason code, and the connection ends.
#[test]
fn a_wrong_answer_is_refused() {
    for wrong in [None, Some(b"43")] {
        let mut broker = Broker::new(1);
        let first: &[u8] = if wrong.is_some() { b"hello" } else { b"" };
        let properties = auth_properties(METHOD, first);
        let link = broker.connect(&connect("c", &properties));
        if let Some(wrong) = wrong {
            broker.hear_one(link);
            broker.say_auth(link, CONTINUE, METHOD, wrong);
        }
        let connack = broker.hear_one(link);
        let expected = (PacketType::ConnAck, Some(ReasonCode::NotAuthorized));
        assert_eq!((connack.kind, connack.reason), expected);
        broker.is_closed(link);
        assert_eq!(broker.counted(ReasonCode::NotAuthorized), 1);
        assert_eq!(broker.username("c"), None);
    }
}

/// [MQTT-4.12.0-1] CONNECT with a method that the broker does not support is refused with reason
/// code 0x8C.
#[test]
fn another_method_is_refused() {
    let mut broker = Broker::new(1);
    let properties = auth_properties("riddle", b"hello");
    let link = broker.connect(&connect("c", &properties));
    let connack = broker.hear_one(link);
    let expected = (
        PacketType::ConnAck,
        Some(ReasonCode::BadAuthenticationMethod),
    );
    assert_eq!((connack.kind, connack.reason), expected);
    broker.is_closed(link);
    assert_eq!(broker.counted(ReasonCode::BadAuthenticationMethod), 1);
}

/// [MQTT-4.12.0-3] [MQTT-4.12.0-5] [MQTT-3.1.2-30] After a challenge a client may send AUTH with
/// reason code 0x18 (Continue authentication) and the method of CONNECT, and no other packet:
/// otherwise the connection ends without CONNACK, and the other packets have no effect.
#[test]
fn anything_but_an_answer_ends_the_connection() {
    let right = auth_properties(METHOD, b"42");
    let foreign = auth_properties("other", b"42");
    let auth = |reason, properties: &PropertyBuf| {
        let properties = properties.as_properties();
        let mut bytes = Vec::new();
        Auth { reason, properties }.encode(&mut bytes).unwrap();
        bytes
    };
    let mut publish = Vec::new();
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: true,
        topic: "t",
        packet_id: 0,
        properties: Default::default(),
        payload: b"too early",
    }
    .encode(Version::V5, &mut publish)
    .unwrap();
    let cases = [
        auth(AGAIN, &right),
        auth(ReasonCode::Success, &right),
        auth(ReasonCode::Success, &PropertyBuf::new()),
        auth(CONTINUE, &foreign),
        vec![0xF0, 2, 0x18, 0],
        publish,
        vec![0xC0, 0],
        vec![0x10, 0],
    ];
    for case in cases {
        let mut broker = Broker::new(1);
        let properties = auth_properties(METHOD, b"hello");
        let link = broker.connect(&connect("c", &properties));
        broker.hear_one(link);
        broker.0.write(link, &case);
        broker.is_closed(link);
        assert_eq!(broker.counted(ReasonCode::ProtocolError), 1, "{case:02x?}");
        assert_eq!(broker.username("c"), None);
        assert_eq!(broker.0.directory().totals().retained_messages, 0);
    }
}

/// [MQTT-3.1.2-30] A client may disconnect instead of answering the challenge.
#[test]
fn who_is_asked_may_leave() {
    let mut broker = Broker::new(1);
    let properties = auth_properties(METHOD, b"hello");
    let link = broker.connect(&connect("c", &properties));
    broker.hear_one(link);
    broker.say(
        link,
        &Packet::Disconnect(Disconnect {
            reason: ReasonCode::Success,
            properties: Default::default(),
        }),
    );
    broker.is_closed(link);
    for shard in broker.0.shards() {
        assert!(shard.stats().disconnects.is_empty());
    }
}

/// A connection whose client never answers the challenge, or closes before the hook has decided,
/// leaves no state.
#[test]
fn who_does_not_answer_is_forgotten() {
    let mut broker = Broker::new(1);
    let properties = auth_properties(METHOD, b"hello");
    let silent = broker.connect(&connect("silent", &properties));
    let hasty = broker.connect(&connect("hasty", &properties));
    broker.0.finish(hasty);
    broker.hear_one(silent);
    let until = broker.0.now() + Config::default().connect_timeout;
    broker.0.run_until(until);
    broker.is_closed(silent);
    for shard in broker.0.shards() {
        assert_eq!((shard.connections(), shard.stats().sessions), (0, 0));
    }
}

/// [MQTT-3.15.2-2] [MQTT-3.15.2-3] AUTH has no Reason String or User Properties that would exceed
/// the client's Maximum Packet Size. If AUTH is too large even so, the client is told by a packet
/// that is not.
#[test]
fn auth_fits_the_client() {
    // Fixed header 2, reason 1, length 1, method 3 + 8, data 3 + 6.
    const AUTH: u32 = 24;
    for (limit, fits) in [(AUTH, true), (AUTH - 1, false)] {
        let mut broker = Broker::new(1);
        let mut properties = auth_properties(METHOD, b"hello");
        properties.push_number(PropertyId::MaximumPacketSize, limit);
        let link = broker.connect(&connect("c", &properties));
        let heard = broker.hear(link);
        let expected = if fits {
            (PacketType::Auth, Some(CONTINUE))
        } else {
            (PacketType::ConnAck, Some(ReasonCode::PacketTooLarge))
        };
        let heard: Vec<_> = (heard.iter())
            .inspect(|packet| assert!(!packet.chatty, "{packet:?}"))
            .map(|packet| (packet.kind, packet.reason))
            .collect();
        assert_eq!(heard, [expected]);
        let until = broker.0.now() + Config::default().connect_timeout;
        broker.0.run_until(until);
        broker.is_closed(link);
    }
}

/// [MQTT-4.12.1-1] [MQTT-4.12.0-2] [MQTT-4.12.0-5] A client re-authenticates with the method of
/// CONNECT, and is served before and after the exchange completes.
#[test]
fn authenticating_again() {
    for shards in [1, 2] {
        let mut broker = Broker::new(shards);
        let link = broker.authenticated("c");
        for _ in 0..2 {
            broker.say_auth(link, AGAIN, METHOD, b"hello");
            let auth = broker.hear_one(link);
            assert!(auth.is(PacketType::Auth, CONTINUE, Some(b"7 * 6?")));
            broker.is_served(link);
            broker.say_auth(link, CONTINUE, METHOD, b"42");
            let auth = broker.hear_one(link);
            assert!(auth.is(PacketType::Auth, ReasonCode::Success, Some(b"right")));
            assert!(!auth.chatty);
            broker.is_served(link);
        }
        // Re-authentication without a challenge.
        broker.say_auth(link, AGAIN, METHOD, b"it is me");
        let auth = broker.hear_one(link);
        assert!(auth.is(PacketType::Auth, ReasonCode::Success, None));
        broker.is_served(link);
    }
}

/// [MQTT-4.12.1-2] A failed re-authentication ends the connection of an authenticated client with a
/// reason code, and its will is published.
#[test]
fn failing_to_authenticate_again_ends_the_connection() {
    for asked in [false, true] {
        let mut broker = Broker::new(1);
        let nothing = PropertyBuf::new();
        let heir = broker.connect(&connect("heir", &nothing));
        broker.hear_one(heir);
        let mut bytes = Vec::new();
        let filters = [("will", SubscribeOptions::default())];
        let properties = nothing.as_properties();
        Subscribe::put(1, properties, &filters, Version::V5, &mut bytes).unwrap();
        broker.0.write(heir, &bytes);
        assert_eq!(broker.hear_one(heir).kind, PacketType::SubAck);

        let properties = auth_properties(METHOD, b"it is me");
        let mut connect = connect("c", &properties);
        connect.will = Some(Will {
            topic: "will",
            payload: b"gone",
            qos: QoS::AtMostOnce,
            retain: false,
            properties: Default::default(),
        });
        let link = broker.connect(&connect);
        broker.hear_one(link);
        if asked {
            broker.say_auth(link, AGAIN, METHOD, b"hello");
            broker.hear_one(link);
            broker.say_auth(link, CONTINUE, METHOD, b"43");
        } else {
            broker.say_auth(link, AGAIN, METHOD, b"nobody");
        }
        let disconnect = broker.hear_one(link);
        let expected = (PacketType::Disconnect, Some(ReasonCode::NotAuthorized));
        assert_eq!((disconnect.kind, disconnect.reason), expected);
        broker.is_closed(link);
        assert_eq!(broker.counted(ReasonCode::NotAuthorized), 1);
        assert_eq!(broker.hear_one(heir).kind, PacketType::Publish);
        broker.is_served(heir);
    }
}

/// [MQTT-4.12.1-1] [MQTT-4.12.0-3] [MQTT-4.12.0-5] It is a protocol error to send AUTH with another
/// method than that of CONNECT, with a reason code that is not expected at this step, or without a
/// challenge.
#[test]
fn steps_that_are_not_due_are_protocol_errors() {
    type Step = (ReasonCode, &'static str, &'static [u8]);
    let cases: [&[Step]; 5] = [
        &[(AGAIN, "other", b"hello")],
        &[(CONTINUE, METHOD, b"42")],
        &[(ReasonCode::Success, METHOD, b"42")],
        &[(AGAIN, METHOD, b"hello"), (AGAIN, METHOD, b"hello")],
        &[(AGAIN, METHOD, b"hello"), (CONTINUE, "other", b"42")],
    ];
    for steps in cases {
        let mut broker = Broker::new(1);
        let link = broker.authenticated("c");
        let (last, before) = steps.split_last().unwrap();
        for (reason, method, data) in before {
            broker.say_auth(link, *reason, method, data);
            assert_eq!(broker.hear_one(link).kind, PacketType::Auth);
        }
        let (reason, method, data) = last;
        broker.say_auth(link, *reason, method, data);
        let disconnect = broker.hear_one(link);
        let expected = (PacketType::Disconnect, Some(ReasonCode::ProtocolError));
        assert_eq!((disconnect.kind, disconnect.reason), expected, "{steps:?}");
        broker.is_closed(link);
    }
}

/// [MQTT-4.12.0-6] [MQTT-4.12.0-7] Even if the broker has methods, it sends no AUTH to a client
/// whose CONNECT named none, and AUTH from such a client is a protocol error.
#[test]
fn auth_out_of_the_blue_is_a_protocol_error() {
    let mut broker = Broker::new(1);
    let nothing = PropertyBuf::new();
    let link = broker.connect(&connect("c", &nothing));
    let connack = broker.hear_one(link);
    assert_eq!(connack.reason, Some(ReasonCode::Success));
    assert_eq!((connack.method, connack.data), (None, None));
    broker.say_auth(link, AGAIN, METHOD, b"it is me");
    let disconnect = broker.hear_one(link);
    assert_eq!(disconnect.reason, Some(ReasonCode::ProtocolError));
    broker.is_closed(link);
}
