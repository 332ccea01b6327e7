//! A faulty or malicious client, while two others exchange messages.
//!
//! Its byte stream consists of valid and invalid packets, with random changes. The test derives
//! from the packets what the broker has to do: either the connection continues, or it ends with a
//! reason that the client receives (if its protocol version can express the reason) and that is
//! counted once. The other two clients lose no message, memory is bounded, and no state is left at
//! the end.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use punctual_broker::{Config, Stats};
use punctual_codec::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketType, PropertyBuf, PropertyId, Publish,
    QoS, ReasonCode, Split, SubAck, Subscribe, SubscribeOptions, Unsubscribe, Version, Will,
    split_of,
};
use punctual_model::Rng;
use punctual_sim::{Decoder, Incoming, LinkId, LinkProfile, Scenario};

/// Largest packet that the broker accepts, and largest CONNECT, in bytes.
const MAX_PACKET: u32 = 5_000;
/// Most bytes in the send buffer of a connection, including those of one more turn.
const SEND_BUFFER: usize = 10_000;
const SLACK: usize = 70_000;

const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

const TOPICS: [&str; 6] = ["t", "t/u", "/", "$SYS/x", "ä/ö", "bad"];

/// Invalid topic names, most of which are also invalid topic filters.
const BAD_TEXT: [&[u8]; 10] = [
    b"t\0",
    b"t/\xC0\x80",
    b"t/\xED\xA0\x80",
    b"\xFF",
    b"t/\xE2\x82",
    b"t/+",
    b"#",
    b"t/#/u",
    b"t+",
    b"",
];

/// Kind of a piece of the stream before random changes.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Connect,
    Publish,
    Subscribe,
    Unsubscribe,
    Ack,
    Ping,
    Disconnect,
    Auth,
    /// A packet that only servers send.
    Server,
    /// Invalid UTF-8, wildcards in a topic name, or a duplicate property.
    BadField,
    /// CONNECT with an unknown protocol level, protocol name or flag.
    BadConnect,
    /// Reserved bits, or a Remaining Length that is too long, not minimal, or wrong.
    BadHeader,
    Noise,
}

/// A random change of a packet.
#[derive(Debug, Clone)]
enum Change {
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Truncate(Index),
    Append(Vec<u8>),
}

/// One piece of the client's byte stream; the seed determines its details.
#[derive(Debug, Clone)]
struct Piece {
    kind: Kind,
    seed: u64,
    change: Option<Change>,
}

/// The client's byte stream.
#[derive(Debug, Clone)]
struct Stream {
    version: Version,
    /// Whether the stream begins with a valid CONNECT.
    connects: bool,
    pieces: Vec<Piece>,
    /// Most bytes that the network delivers at once; 0 for no limit.
    cut: usize,
    seed: u64,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        1 => Just(Kind::Connect),
        6 => Just(Kind::Publish),
        4 => Just(Kind::Subscribe),
        2 => Just(Kind::Unsubscribe),
        3 => Just(Kind::Ack),
        1 => Just(Kind::Ping),
        1 => Just(Kind::Disconnect),
        1 => Just(Kind::Auth),
        1 => Just(Kind::Server),
        2 => Just(Kind::BadField),
        1 => Just(Kind::BadConnect),
        1 => Just(Kind::BadHeader),
        1 => Just(Kind::Noise),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let telling = prop_oneof![
        prop::sample::select(vec![
            0, 1, 0x7F, 0x80, 0xC0, 0xED, 0xFF, b'+', b'#', b'/', b'$'
        ]),
        any::<u8>(),
    ];
    prop_oneof![
        3 => (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        2 => (any::<Index>(), telling.clone()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => (any::<Index>(), telling).prop_map(|(at, byte)| Change::Insert(at, byte)),
        1 => any::<Index>().prop_map(Change::Remove),
        1 => any::<Index>().prop_map(Change::Truncate),
        1 => vec(any::<u8>(), 1..20).prop_map(Change::Append),
    ]
}

fn piece() -> impl Strategy<Value = Piece> {
    let change = prop_oneof![3 => Just(None), 1 => change().prop_map(Some)];
    (kind(), any::<u64>(), change).prop_map(|(kind, seed, change)| Piece { kind, seed, change })
}

fn stream() -> impl Strategy<Value = Stream> {
    (
        prop::sample::select(VERSIONS.to_vec()),
        prop::bool::weighted(0.85),
        vec(piece(), 0..12),
        prop::sample::select(vec![0usize, 1, 7, 100]),
        any::<u64>(),
    )
        .prop_map(|(version, connects, pieces, cut, seed)| Stream {
            version,
            connects,
            pieces,
            cut,
            seed,
        })
}

impl Stream {
    /// The bytes of each piece.
    fn bytes(&self) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        if self.connects {
            pieces.push(connect(self.version, &mut Rng::new(self.seed)));
        }
        for piece in &self.pieces {
            let mut bytes = piece.kind.bytes(self.version, &mut Rng::new(piece.seed));
            if let Some(change) = &piece.change {
                change.apply(&mut bytes);
            }
            pieces.push(bytes);
        }
        pieces
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            _ if bytes.is_empty() => {}
            Self::Flip(at, bit) => *at.get_mut(bytes) ^= 1 << bit,
            Self::Set(at, byte) => *at.get_mut(bytes) = *byte,
            Self::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
            Self::Remove(at) => {
                bytes.remove(at.index(bytes.len()));
            }
            Self::Truncate(at) => bytes.truncate(at.index(bytes.len())),
            Self::Append(more) => bytes.extend_from_slice(more),
        }
    }
}

impl Kind {
    #[expect(
        clippy::too_many_lines,
        reason = "one arm for each kind of malformed packet"
    )]
    fn bytes(self, version: Version, rng: &mut Rng) -> Vec<u8> {
        let v5 = version.is_v5();
        let mut out = Vec::new();
        let done = match self {
            Self::Connect => return connect(version, rng),
            Self::Publish => {
                let properties = publish_properties(v5, rng);
                let topic: &&str = rng.pick(&TOPICS);
                let qos = any_qos(rng);
                Publish {
                    dup: qos != QoS::AtMostOnce && rng.chance(20),
                    qos,
                    retain: rng.chance(20),
                    topic,
                    packet_id: if qos == QoS::AtMostOnce {
                        0
                    } else {
                        any_id(rng)
                    },
                    properties: properties.as_properties(),
                    payload: &vec![b'p'; rng.below(300) as usize],
                }
                .encode(version, &mut out)
            }
            Self::Subscribe => {
                let mut properties = PropertyBuf::new();
                if v5 && rng.chance(30) {
                    properties.push_number(PropertyId::SubscriptionIdentifier, 1);
                }
                let filters = ["#", "t/+", "+/u", "$share/g/t", "bad", "/", "$SYS/#"];
                let mut options = SubscribeOptions {
                    qos: any_qos(rng),
                    ..SubscribeOptions::default()
                };
                options.retain_as_published = v5 && rng.chance(30);
                let filters = [
                    (*rng.pick(&filters), options),
                    (*rng.pick(&filters), options),
                ];
                let properties = properties.as_properties();
                Subscribe::put(any_id(rng), properties, &filters, version, &mut out)
            }
            Self::Unsubscribe => {
                let filters = [*rng.pick(&["#", "t/+", "never", "$share/g/t"])];
                let properties = PropertyBuf::new();
                let properties = properties.as_properties();
                Unsubscribe::put(any_id(rng), properties, &filters, version, &mut out)
            }
            Self::Ack => {
                let kinds = [
                    PacketType::PubAck,
                    PacketType::PubRec,
                    PacketType::PubRel,
                    PacketType::PubComp,
                ];
                let kind = *rng.pick(&kinds);
                let reason = *rng.pick(&[
                    ReasonCode::Success,
                    ReasonCode::Success,
                    ReasonCode::UnspecifiedError,
                ]);
                let release = matches!(kind, PacketType::PubRel | PacketType::PubComp);
                let reason = if release { ReasonCode::Success } else { reason };
                Ack::new(any_id(rng), reason).encode(kind, version, &mut out)
            }
            Self::Ping => Packet::PingReq.encode(version, &mut out),
            Self::Disconnect => {
                let mut properties = PropertyBuf::new();
                if v5 && rng.chance(50) {
                    let expiry = rng.below(2) as u32;
                    properties.push_number(PropertyId::SessionExpiryInterval, expiry);
                }
                let reasons = [ReasonCode::Success, ReasonCode::DisconnectWithWill];
                Disconnect {
                    reason: *rng.pick(&reasons),
                    properties: properties.as_properties(),
                }
                .encode(version, &mut out)
            }
            Self::Auth => {
                let mut properties = PropertyBuf::new();
                let _ = properties.push_data(PropertyId::AuthenticationMethod, b"m");
                let reasons = [
                    ReasonCode::ContinueAuthentication,
                    ReasonCode::ReAuthenticate,
                ];
                Auth {
                    reason: *rng.pick(&reasons),
                    properties: properties.as_properties(),
                }
                .encode(&mut out)
            }
            Self::Server => match rng.below(3) {
                0 => ConnAck {
                    session_present: false,
                    reason: ReasonCode::Success,
                    properties: Default::default(),
                }
                .encode(version, &mut out),
                1 => SubAck {
                    packet_id: 1,
                    properties: Default::default(),
                    reasons: &[0],
                }
                .encode(version, &mut out),
                _ => Packet::PingResp.encode(version, &mut out),
            },
            Self::BadField => return bad_field(v5, rng),
            Self::BadConnect => {
                let mut bytes = connect(version, rng);
                let (at, byte) = *rng.pick(&[
                    (4, b'X'),
                    (8, 0),
                    (8, 2),
                    (8, 6),
                    (8, 0x84),
                    (8, 0xFF),
                    (9, 1),
                    (9, 0x18),
                    (3, 5),
                ]);
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
                return bytes;
            }
            Self::BadHeader => {
                return rng
                    .pick(&[
                        &[0x00, 0][..],
                        &[0xF1, 0],
                        &[0xC1, 0],
                        &[0x80, 2, 0, 1],
                        &[0x36, 2, 0, 0],
                        &[0x38, 4, 0, 1, b't', b'p'],
                        &[0xC0, 1, 0],
                        &[0xC0, 0x80, 0],
                        &[0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0],
                        &[0x30, 0xFF, 0xFF, 0xFF, 0x7F],
                        &[0x30, 0xFF, 0x7F],
                        &[0x10, 0xFF, 0xFF, 0x7F],
                        &[0x62, 1, 0],
                        &[0x40, 2, 0, 0],
                    ])
                    .to_vec();
            }
            Self::Noise => {
                return (0..rng.below(40)).map(|_| rng.any() as u8).collect();
            }
        };
        done.expect("small packets can be encoded");
        out
    }
}

fn connect(version: Version, rng: &mut Rng) -> Vec<u8> {
    let v5 = version.is_v5();
    let mut properties = PropertyBuf::new();
    if v5 {
        for (id, values) in [
            (PropertyId::SessionExpiryInterval, &[0, 1, 100][..]),
            (PropertyId::ReceiveMaximum, &[1, 3, 65_535]),
            (PropertyId::MaximumPacketSize, &[100, 5_000]),
            (PropertyId::TopicAliasMaximum, &[0, 3]),
        ] {
            if rng.chance(30) {
                properties.push_number(id, *rng.pick(values));
            }
        }
    }
    let will = rng.chance(30).then(|| Will {
        topic: "bad/will",
        payload: b"gone",
        qos: any_qos(rng),
        retain: rng.chance(30),
        properties: Default::default(),
    });
    let mut out = Vec::new();
    Connect {
        version,
        clean_start: rng.chance(70),
        keep_alive: *rng.pick(&[0, 1, 60]),
        client_id: "bad",
        will,
        username: rng.chance(20).then_some("user"),
        password: None,
        properties: properties.as_properties(),
    }
    .encode(&mut out)
    .expect("a small packet can be encoded");
    out
}

fn publish_properties(v5: bool, rng: &mut Rng) -> PropertyBuf {
    let mut properties = PropertyBuf::new();
    if !v5 {
        return properties;
    }
    if rng.chance(20) {
        properties.push_number(PropertyId::TopicAlias, *rng.pick(&[1, 2, 64, 65, 65_535]));
    }
    if rng.chance(20) {
        properties.push_number(PropertyId::MessageExpiryInterval, rng.below(3) as u32);
    }
    if rng.chance(10) {
        properties.push_number(PropertyId::SubscriptionIdentifier, 1);
    }
    for _ in 0..rng.below(3) {
        let _ = properties.push_user("name", "value");
    }
    properties
}

/// A PUBLISH or SUBSCRIBE with one invalid field.
fn bad_field(v5: bool, rng: &mut Rng) -> Vec<u8> {
    let text: &&[u8] = rng.pick(&BAD_TEXT);
    let field = |text: &[u8]| [&(text.len() as u16).to_be_bytes(), text].concat();
    let properties: &[u8] = match (v5, rng.below(4)) {
        (false, _) => b"",
        // Payload Format Indicator twice; a property of CONNECT; a wrong property length.
        (true, 0) => b"\x04\x01\x00\x01\x00",
        (true, 1) => b"\x05\x11\0\0\0\x01",
        (true, 2) => b"\x7F",
        (true, _) => b"\0",
    };
    let (first, body) = if rng.chance(70) {
        (0x30, [&field(text)[..], properties, b"payload"].concat())
    } else {
        (
            0x82,
            [&b"\0\x07"[..], properties, &field(text), b"\0"].concat(),
        )
    };
    [&[first, body.len() as u8][..], &body].concat()
}

fn any_qos(rng: &mut Rng) -> QoS {
    *rng.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn any_id(rng: &mut Rng) -> u16 {
    *rng.pick(&[1, 2, 3, 65_535])
}

/// What the broker has to do with the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    GoesOn,
    /// The client has sent DISCONNECT.
    Left,
    /// The broker closes the connection with one of these reason codes.
    Ends(Vec<ReasonCode>),
}

/// The state that the broker should have about the client.
struct Judge {
    /// Parameters of the connection, after CONNECT was accepted.
    connected: Option<Agreed>,
    /// Protocol version of the answer to a refused CONNECT.
    version: Version,
    aliases: Vec<u32>,
    /// All acknowledgements of the client, valid or not.
    acks: Vec<(PacketType, u16)>,
}

#[derive(Clone, Copy)]
struct Agreed {
    version: Version,
    max_packet: u32,
    alias_max: u16,
    transient: bool,
}

impl Judge {
    fn of(stream: &[u8], config: &Config) -> (Self, Verdict) {
        let mut judge = Self {
            connected: None,
            version: Version::V311,
            aliases: Vec::new(),
            acks: Vec::new(),
        };
        let mut rest = stream;
        loop {
            let version = judge
                .connected
                .map_or(Version::V311, |agreed| agreed.version);
            let frame = match split_of(rest, MAX_PACKET, version) {
                Ok(Split::Frame(frame)) => frame,
                Ok(Split::Incomplete { .. }) => return (judge, Verdict::GoesOn),
                Err(error) => return (judge, Verdict::Ends(vec![error.reason()])),
            };
            rest = &rest[frame.bytes.len()..];
            // If a packet has two errors, the broker may find either first.
            let decoded = Packet::decode(frame, version).map_err(|error| {
                Verdict::Ends(vec![
                    error.reason(),
                    ReasonCode::MalformedPacket,
                    ReasonCode::ProtocolError,
                    ReasonCode::TopicAliasInvalid,
                ])
            });
            let verdict = match (judge.connected.is_some(), frame.kind) {
                (true, _) => match decoded {
                    Ok(packet) => judge.packet(&packet, config),
                    Err(verdict) => verdict,
                },
                (false, PacketType::Connect) => {
                    if let Some(version) = Connect::peek_version(frame.body) {
                        judge.version = version;
                    }
                    match decoded {
                        Ok(Packet::Connect(connect)) => judge.connect(&connect),
                        Ok(_) => Verdict::Ends(Vec::new()),
                        Err(verdict) => verdict,
                    }
                }
                (false, _) => Verdict::Ends(vec![ReasonCode::ProtocolError]),
            };
            if verdict != Verdict::GoesOn {
                return (judge, verdict);
            }
        }
    }

    fn connect(&mut self, connect: &Connect<'_>) -> Verdict {
        let properties = connect.properties;
        let named = !connect.client_id.is_empty();
        let may_be_named = match connect.version {
            Version::V31 => false,
            Version::V311 => connect.clean_start,
            Version::V5 => true,
        };
        if properties.contains(PropertyId::AuthenticationMethod) {
            return Verdict::Ends(vec![ReasonCode::BadAuthenticationMethod]);
        }
        if !named && !may_be_named {
            return Verdict::Ends(vec![ReasonCode::ClientIdentifierNotValid]);
        }
        let number = |id| properties.number(id);
        let expiry = number(PropertyId::SessionExpiryInterval).unwrap_or(0);
        self.connected = Some(Agreed {
            version: connect.version,
            max_packet: number(PropertyId::MaximumPacketSize).unwrap_or(u32::MAX),
            alias_max: number(PropertyId::TopicAliasMaximum).unwrap_or(0) as u16,
            transient: match connect.version {
                Version::V5 => expiry == 0,
                _ => connect.clean_start,
            },
        });
        Verdict::GoesOn
    }

    fn packet(&mut self, packet: &Packet<'_>, config: &Config) -> Verdict {
        let protocol_error = Verdict::Ends(vec![ReasonCode::ProtocolError]);
        match packet {
            Packet::Publish(publish) => self.publish(publish, config),
            Packet::Disconnect(disconnect) => {
                let properties = disconnect.properties;
                let expiry = properties.number(PropertyId::SessionExpiryInterval);
                let transient = self.connected.is_some_and(|agreed| agreed.transient);
                if properties.contains(PropertyId::ServerReference)
                    || (transient && expiry.is_some_and(|expiry| expiry != 0))
                {
                    return protocol_error;
                }
                Verdict::Left
            }
            Packet::Connect(_)
            | Packet::ConnAck(_)
            | Packet::SubAck(_)
            | Packet::UnsubAck(_)
            | Packet::PingResp
            | Packet::Auth(_) => protocol_error,
            Packet::PubAck(ack) => self.ack(PacketType::PubAck, ack),
            Packet::PubRec(ack) => self.ack(PacketType::PubRec, ack),
            Packet::PubComp(ack) => self.ack(PacketType::PubComp, ack),
            _ => Verdict::GoesOn,
        }
    }

    fn ack(&mut self, kind: PacketType, ack: &Ack<'_>) -> Verdict {
        self.acks.push((kind, ack.packet_id));
        Verdict::GoesOn
    }

    /// Whether the type of an acknowledgement may not have matched the state of its message. That
    /// depends on when the message was sent, which the stream does not determine.
    fn may_have_acked_wrongly(&self, heard: &[Incoming]) -> bool {
        heard.iter().any(|packet| match packet {
            Incoming::Publish(message) => self.acks.iter().any(|&(kind, packet_id)| {
                let right = match message.qos {
                    QoS::AtMostOnce => return false,
                    QoS::AtLeastOnce => kind == PacketType::PubAck,
                    // PUBCOMP is valid only after PUBREL.
                    QoS::ExactlyOnce => kind == PacketType::PubRec,
                };
                packet_id == message.packet_id && !right
            }),
            _ => false,
        })
    }

    fn publish(&mut self, publish: &Publish<'_>, config: &Config) -> Verdict {
        let properties = publish.properties;
        if properties.contains(PropertyId::SubscriptionIdentifier) {
            return Verdict::Ends(vec![ReasonCode::ProtocolError]);
        }
        if let Some(alias) = properties.number(PropertyId::TopicAlias) {
            if alias > u32::from(config.limits.topic_alias_maximum) {
                return Verdict::Ends(vec![ReasonCode::TopicAliasInvalid]);
            }
            if publish.topic.is_empty() && !self.aliases.contains(&alias) {
                return Verdict::Ends(vec![ReasonCode::ProtocolError]);
            }
            self.aliases.push(alias);
        }
        Verdict::GoesOn
    }
}

fn config() -> Config {
    let mut config = Config {
        sys_interval: None,
        ..Config::default()
    };
    config.limits.max_packet_size = MAX_PACKET;
    config.limits.max_connect_size = MAX_PACKET;
    config.limits.send_buffer = SEND_BUFFER;
    config
}

/// A broker with two clients that talk to each other.
struct Scene {
    scenario: Scenario,
    spoken: u32,
}

impl Scene {
    fn new(settings: &str) -> Self {
        let mut scenario = Scenario::run(&format!(
            "broker {settings} buffer={SEND_BUFFER} max_packet={MAX_PACKET} max_expiry=100"
        ));
        scenario.go_on(
            "conn first-friend; conn second-friend v3
             sub first-friend to/first/friend q2; sub second-friend to/second/friend q2",
        );
        Self {
            scenario,
            spoken: 0,
        }
    }

    /// The two clients send each other messages with QoS 0, 1 and 2, and each arrives at once.
    fn exchange(&mut self) {
        self.spoken += 1;
        let n = self.spoken;
        for (from, to) in [("first", "second"), ("second", "first")] {
            for qos in ["", "q1", "q2"] {
                self.scenario.go_on(&format!(
                    "pub {from}-friend to/{to}/friend m{n}{qos} {qos}
                     expect {to}-friend to/{to}/friend m{n}{qos} {qos}; none {to}-friend"
                ));
            }
        }
    }

    fn stats(&mut self) -> Stats {
        let mut sum = Stats::default();
        for shard in self.scenario.world().shards() {
            sum.add(shard.stats());
        }
        sum
    }

    fn buffered(&mut self, link: LinkId) -> usize {
        let world = self.scenario.world();
        match world.conn(link) {
            Some((shard, conn)) => world.shards()[usize::from(shard)].buffered(conn),
            None => 0,
        }
    }

    /// The two clients disconnect, and the broker has no state left.
    fn farewell(mut self) {
        self.exchange();
        self.scenario
            .go_on("drop first-friend; drop second-friend; wait 200s; idle");
        let totals = self.scenario.world().directory().totals();
        assert_eq!(
            (totals.sessions, totals.subscriptions),
            (0, 0),
            "{totals:?}"
        );
        for shard in self.scenario.world().shards() {
            assert!(shard.timers() < 5_000, "{} timers", shard.timers());
        }
    }
}

/// Decodes the broker's packets to the client, which checks their format.
fn said(bytes: Vec<u8>, judge: &Judge) -> Result<Vec<Incoming>, TestCaseError> {
    let (version, max_packet, alias_max) = match judge.connected {
        Some(agreed) => (agreed.version, agreed.max_packet, agreed.alias_max),
        None => (judge.version, u32::MAX, 0),
    };
    let mut decoder = Decoder::new(version, max_packet, alias_max);
    *decoder.buffer() = bytes;
    let mut packets = Vec::new();
    loop {
        match decoder.next_packet() {
            Ok(Some(packet)) => packets.push(packet),
            Ok(None) => return Ok(packets),
            Err(why) => return Err(TestCaseError::fail(why)),
        }
    }
}

/// Runs one stream and checks all properties.
fn try_stream(stream: &Stream, shards: u16) -> Result<(), TestCaseError> {
    let mut scene = Scene::new(&format!("shards={shards}"));
    scene.exchange();
    let before = scene.stats().disconnects;
    let link = scene.scenario.world().connect(LinkProfile {
        piece: stream.cut,
        ..LinkProfile::default()
    });
    scene.exchange();
    let pieces = stream.bytes();
    for piece in &pieces {
        scene.scenario.world().write(link, piece);
        scene.exchange();
        prop_assert!(scene.buffered(link) <= SEND_BUFFER + SLACK);
    }
    let (judge, mut verdict) = Judge::of(&pieces.concat(), &config());

    let mut bytes = Vec::new();
    let world = scene.scenario.world();
    world.take_received(link, &mut bytes);
    let alive = world.conn(link).is_some();
    let packets = said(bytes, &judge)?;
    let mut counted: Vec<u8> = Vec::new();
    for (reason, count) in scene.stats().disconnects {
        let earlier = before.get(&reason).copied().unwrap_or(0);
        counted.extend((earlier..count).map(|_| reason));
    }
    if counted == [ReasonCode::ProtocolError as u8] && judge.may_have_acked_wrongly(&packets) {
        verdict = Verdict::Ends(vec![ReasonCode::ProtocolError]);
    }
    let context = format!("{verdict:?}; counted {counted:02x?}; said {packets:?}");
    prop_assert_eq!(alive, verdict == Verdict::GoesOn, "{}", &context);
    let accepted = packets
        .iter()
        .any(|packet| matches!(packet, Incoming::ConnAck { reason, .. } if !reason.is_error()));
    let fits = judge
        .connected
        .is_none_or(|agreed| agreed.max_packet >= 100);
    if fits {
        prop_assert_eq!(accepted, judge.connected.is_some(), "{}", &context);
    }
    match &verdict {
        Verdict::GoesOn | Verdict::Left => {
            prop_assert!(counted.is_empty(), "{counted:?} {}", &context);
        }
        Verdict::Ends(reasons) => {
            prop_assert_eq!(counted.len(), 1, "{}", &context);
            let reason = ReasonCode::from_byte(counted[0]);
            prop_assert!(reason.is_some_and(|r| reasons.contains(&r)), "{}", &context);
            let told = match packets.last() {
                Some(Incoming::Disconnect { reason } | Incoming::ConnAck { reason, .. }) => {
                    Some(*reason)
                }
                _ => None,
            };
            let owed = judge.connected.is_some_and(|a| a.version.is_v5()) && fits;
            if owed {
                prop_assert_eq!(told, reason, "{}", &context);
            }
        }
    }
    scene.scenario.world().finish(link);
    scene.farewell();
    Ok(())
}

proptest! {
    #[test]
    fn a_bad_client_harms_nobody_but_itself(stream in stream(), shards in 1..3u16) {
        try_stream(&stream, shards)?;
    }

    /// The client sends its stream many times, and reads nothing.
    #[test]
    fn a_bad_client_that_does_not_read_makes_nothing_grow(
        stream in stream(),
        window in prop::sample::select(vec![0usize, 1, 1000]),
    ) {
        // Publishers do not wait for a receiver that does not read.
        let mut scene = Scene::new("pause=0ms");
        let link = scene.scenario.world().connect(LinkProfile {
            piece: stream.cut,
            window,
            ..LinkProfile::default()
        });
        scene.scenario.world().set_reading(link, false);
        for piece in stream.bytes() {
            let again = if stream.connects && stream.version.is_v5() { 30 } else { 3 };
            let is_connect = piece.first() == Some(&0x10);
            for _ in 0..if is_connect { 1 } else { again } {
                scene.scenario.world().write(link, &piece);
            }
            scene.exchange();
            prop_assert!(scene.buffered(link) <= SEND_BUFFER + SLACK);
            let totals = scene.scenario.world().directory().totals();
            prop_assert!(totals.queued_bytes <= 1 << 20, "{:?}", totals);
        }
        scene.scenario.world().cut(link, Some(punctual_broker::Nanos(1)));
        scene.farewell();
    }
}

/// Each kind of piece alone, after a CONNECT and without one.
#[test]
fn every_kind_alone() {
    let kinds = [
        Kind::Connect,
        Kind::Publish,
        Kind::Subscribe,
        Kind::Unsubscribe,
        Kind::Ack,
        Kind::Ping,
        Kind::Disconnect,
        Kind::Auth,
        Kind::Server,
        Kind::BadField,
        Kind::BadConnect,
        Kind::BadHeader,
        Kind::Noise,
    ];
    for kind in kinds {
        for version in VERSIONS {
            for seed in 0..20 {
                for connects in [true, false] {
                    let piece = Piece {
                        kind,
                        seed,
                        change: None,
                    };
                    let stream = Stream {
                        version,
                        connects,
                        pieces: vec![piece],
                        cut: 0,
                        seed,
                    };
                    if let Err(why) = try_stream(&stream, 1) {
                        panic!("{stream:?}: {why}");
                    }
                }
            }
        }
    }
}
