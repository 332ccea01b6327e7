//! Builds control packets byte by byte for tests, right or deliberately wrong.
//!
//! Nothing here is shared with the broker's codec, so a mistake there cannot
//! cancel out here. A builder adds nothing the test did not ask for and checks
//! nothing: flags, lengths and contents may all be overridden with values that
//! the specification forbids.

/// The protocol level byte of CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// MQTT 3.1 (`MQIsdp`).
    V31 = 3,
    /// MQTT 3.1.1.
    V311 = 4,
    /// MQTT 5.0.
    V5 = 5,
}

pub(crate) use Level::{V5, V31, V311};

/// Property identifiers (section 2.2.2.2 of MQTT 5.0).
pub(crate) mod id {
    pub(crate) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(crate) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(crate) const CONTENT_TYPE: u8 = 0x03;
    pub(crate) const RESPONSE_TOPIC: u8 = 0x08;
    pub(crate) const CORRELATION_DATA: u8 = 0x09;
    pub(crate) const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
    pub(crate) const SESSION_EXPIRY: u8 = 0x11;
    pub(crate) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(crate) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(crate) const AUTH_METHOD: u8 = 0x15;
    pub(crate) const AUTH_DATA: u8 = 0x16;
    pub(crate) const REQUEST_PROBLEM_INFO: u8 = 0x17;
    pub(crate) const WILL_DELAY: u8 = 0x18;
    pub(crate) const REQUEST_RESPONSE_INFO: u8 = 0x19;
    pub(crate) const RESPONSE_INFO: u8 = 0x1A;
    pub(crate) const SERVER_REFERENCE: u8 = 0x1C;
    pub(crate) const REASON_STRING: u8 = 0x1F;
    pub(crate) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(crate) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(crate) const TOPIC_ALIAS: u8 = 0x23;
    pub(crate) const MAXIMUM_QOS: u8 = 0x24;
    pub(crate) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(crate) const USER_PROPERTY: u8 = 0x26;
    pub(crate) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub(crate) const WILDCARD_AVAILABLE: u8 = 0x28;
    pub(crate) const SUBSCRIPTION_IDS_AVAILABLE: u8 = 0x29;
    pub(crate) const SHARED_AVAILABLE: u8 = 0x2A;
}

/// First bytes of the fixed header, with the flags the specification fixes.
pub(crate) mod first {
    pub(crate) const CONNECT: u8 = 0x10;
    pub(crate) const CONNACK: u8 = 0x20;
    pub(crate) const PUBLISH: u8 = 0x30;
    pub(crate) const PUBACK: u8 = 0x40;
    pub(crate) const PUBREC: u8 = 0x50;
    pub(crate) const PUBREL: u8 = 0x62;
    pub(crate) const PUBCOMP: u8 = 0x70;
    pub(crate) const SUBSCRIBE: u8 = 0x82;
    pub(crate) const SUBACK: u8 = 0x90;
    pub(crate) const UNSUBSCRIBE: u8 = 0xA2;
    pub(crate) const UNSUBACK: u8 = 0xB0;
    pub(crate) const PINGREQ: u8 = 0xC0;
    pub(crate) const PINGRESP: u8 = 0xD0;
    pub(crate) const DISCONNECT: u8 = 0xE0;
    pub(crate) const AUTH: u8 = 0xF0;
}

/// A byte string under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bytes(Vec<u8>);

impl Bytes {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.raw(value.to_be_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(value.to_be_bytes())
    }

    /// A variable byte integer in the fewest bytes.
    pub(crate) fn var(mut self, mut value: u32) -> Self {
        loop {
            let more = value >= 0x80;
            self.0
                .push((value & 0x7F) as u8 | if more { 0x80 } else { 0 });
            value >>= 7;
            if !more {
                return self;
            }
        }
    }

    /// Bytes (text or binary) behind a two-byte length.
    pub(crate) fn field(self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let length = u16::try_from(bytes.len()).expect("a field holds at most 65535 bytes");
        self.u16(length).raw(bytes)
    }

    pub(crate) fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    /// Closes the body: a fixed header with `first` and the remaining length.
    pub(crate) fn packet(self, first: u8) -> Vec<u8> {
        Self::new().u8(first).var(self.0.len() as u32).raw(self.0).0
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A property list of MQTT 5.0, without its length.
#[derive(Debug, Clone, Default)]
pub(crate) struct Props(Bytes);

impl Props {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn byte(self, id: u8, value: u8) -> Self {
        Self(self.0.u8(id).u8(value))
    }

    pub(crate) fn two(self, id: u8, value: u16) -> Self {
        Self(self.0.u8(id).u16(value))
    }

    pub(crate) fn four(self, id: u8, value: u32) -> Self {
        Self(self.0.u8(id).u32(value))
    }

    pub(crate) fn var(self, id: u8, value: u32) -> Self {
        Self(self.0.u8(id).var(value))
    }

    /// Text or binary data.
    pub(crate) fn field(self, id: u8, value: impl AsRef<[u8]>) -> Self {
        Self(self.0.u8(id).field(value))
    }

    /// A user property.
    pub(crate) fn user(self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self(self.0.u8(id::USER_PROPERTY).field(name).field(value))
    }

    pub(crate) fn raw(self, bytes: impl AsRef<[u8]>) -> Self {
        Self(self.0.raw(bytes))
    }

    /// The properties alone, to be put behind others.
    pub(crate) fn raw_bytes(&self) -> Vec<u8> {
        self.0.as_ref().to_vec()
    }

    fn put(&self, to: Bytes) -> Bytes {
        to.var(self.0.as_ref().len() as u32).raw(&self.0)
    }
}

/// The will of a CONNECT.
#[derive(Debug, Clone, Default)]
pub(crate) struct Will {
    topic: Vec<u8>,
    payload: Vec<u8>,
    qos: u8,
    retain: bool,
    props: Props,
}

impl Will {
    pub(crate) fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        Self {
            topic: topic.as_ref().to_vec(),
            payload: payload.as_ref().to_vec(),
            ..Self::default()
        }
    }

    pub(crate) fn qos(self, qos: u8) -> Self {
        Self { qos, ..self }
    }

    pub(crate) fn retain(self) -> Self {
        Self {
            retain: true,
            ..self
        }
    }

    pub(crate) fn props(self, props: Props) -> Self {
        Self { props, ..self }
    }

    /// Will delay interval in seconds.
    pub(crate) fn delay(self, seconds: u32) -> Self {
        let props = self.props.clone().four(id::WILL_DELAY, seconds);
        self.props(props)
    }
}

/// A CONNECT packet.
#[derive(Debug, Clone)]
pub(crate) struct Connect {
    level: Level,
    protocol: Vec<u8>,
    level_byte: u8,
    clean: bool,
    flags: Option<u8>,
    keep_alive: u16,
    props: Props,
    max_packet: Option<u32>,
    client_id: Vec<u8>,
    will: Option<Will>,
    user: Option<Vec<u8>>,
    password: Option<Vec<u8>>,
    tail: Vec<u8>,
}

impl Connect {
    /// Clean start, keep-alive 60 s, nothing optional.
    pub(crate) fn new(level: Level, client_id: impl AsRef<[u8]>) -> Self {
        Self {
            level,
            protocol: if level == V31 { "MQIsdp" } else { "MQTT" }.into(),
            level_byte: level as u8,
            clean: true,
            flags: None,
            keep_alive: 60,
            props: Props::new(),
            max_packet: None,
            client_id: client_id.as_ref().to_vec(),
            will: None,
            user: None,
            password: None,
            tail: Vec::new(),
        }
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// The client identifier, as it is in the packet.
    pub(crate) fn client_id(&self) -> &[u8] {
        &self.client_id
    }

    pub(crate) fn protocol(self, name: impl AsRef<[u8]>, level_byte: u8) -> Self {
        Self {
            protocol: name.as_ref().to_vec(),
            level_byte,
            ..self
        }
    }

    /// Clean start (5.0) or clean session (3.1.1) off.
    pub(crate) fn resume(self) -> Self {
        Self {
            clean: false,
            ..self
        }
    }

    /// A session that outlives its connection: off the clean flag and, in
    /// 5.0, an expiry interval of `seconds`.
    pub(crate) fn lasting(self, seconds: u32) -> Self {
        self.resume().expiry(seconds)
    }

    /// Session expiry interval; MQTT 3.1.1 has none and ignores this.
    pub(crate) fn expiry(self, seconds: u32) -> Self {
        let props = self.props.clone().four(id::SESSION_EXPIRY, seconds);
        self.props(props)
    }

    /// The connect flags, whatever the fields say.
    pub(crate) fn flags(self, flags: u8) -> Self {
        Self {
            flags: Some(flags),
            ..self
        }
    }

    pub(crate) fn keep_alive(self, seconds: u16) -> Self {
        Self {
            keep_alive: seconds,
            ..self
        }
    }

    pub(crate) fn props(self, props: Props) -> Self {
        Self { props, ..self }
    }

    /// Maximum Packet Size, in bytes, beside the other properties.
    pub(crate) fn max_packet(self, bytes: u32) -> Self {
        Self {
            max_packet: Some(bytes),
            ..self
        }
    }

    /// What [`max_packet`](Self::max_packet) set.
    pub(crate) fn limit(&self) -> Option<u32> {
        self.max_packet
    }

    pub(crate) fn will(self, will: Will) -> Self {
        Self {
            will: Some(will),
            ..self
        }
    }

    pub(crate) fn user(self, name: impl AsRef<[u8]>) -> Self {
        Self {
            user: Some(name.as_ref().to_vec()),
            ..self
        }
    }

    pub(crate) fn password(self, password: impl AsRef<[u8]>) -> Self {
        Self {
            password: Some(password.as_ref().to_vec()),
            ..self
        }
    }

    /// Bytes behind the last field, inside the packet.
    pub(crate) fn tail(self, tail: impl AsRef<[u8]>) -> Self {
        Self {
            tail: tail.as_ref().to_vec(),
            ..self
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut flags = u8::from(self.clean) << 1;
        if let Some(will) = &self.will {
            flags |= 0x04 | will.qos << 3 | u8::from(will.retain) << 5;
        }
        flags |= u8::from(self.password.is_some()) << 6 | u8::from(self.user.is_some()) << 7;
        let mut body = Bytes::new()
            .field(&self.protocol)
            .u8(self.level_byte)
            .u8(self.flags.unwrap_or(flags))
            .u16(self.keep_alive);
        if self.level == V5 {
            let props = self.props.clone();
            let props = match self.max_packet {
                Some(bytes) => props.four(id::MAXIMUM_PACKET_SIZE, bytes),
                None => props,
            };
            body = props.put(body);
        }
        body = body.field(&self.client_id);
        if let Some(will) = &self.will {
            if self.level == V5 {
                body = will.props.put(body);
            }
            body = body.field(&will.topic).field(&will.payload);
        }
        for field in [&self.user, &self.password].into_iter().flatten() {
            body = body.field(field);
        }
        body.raw(&self.tail).packet(first::CONNECT)
    }
}

/// A PUBLISH packet.
#[derive(Debug, Clone)]
pub(crate) struct Publish {
    level: Level,
    topic: Vec<u8>,
    payload: Vec<u8>,
    qos: u8,
    id: u16,
    retain: bool,
    dup: bool,
    props: Props,
}

impl Publish {
    /// QoS 0, not retained.
    pub(crate) fn new(level: Level, topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        Self {
            level,
            topic: topic.as_ref().to_vec(),
            payload: payload.as_ref().to_vec(),
            qos: 0,
            id: 0,
            retain: false,
            dup: false,
            props: Props::new(),
        }
    }

    pub(crate) fn qos(self, qos: u8, id: u16) -> Self {
        Self { qos, id, ..self }
    }

    pub(crate) fn retain(self) -> Self {
        Self {
            retain: true,
            ..self
        }
    }

    pub(crate) fn dup(self) -> Self {
        Self { dup: true, ..self }
    }

    pub(crate) fn props(self, props: Props) -> Self {
        Self { props, ..self }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let flags = u8::from(self.dup) << 3 | self.qos << 1 | u8::from(self.retain);
        let mut body = Bytes::new().field(&self.topic);
        if self.qos > 0 {
            body = body.u16(self.id);
        }
        if self.level == V5 {
            body = self.props.put(body);
        }
        body.raw(&self.payload).packet(first::PUBLISH | flags)
    }
}

/// A SUBSCRIBE packet with filters and their options bytes.
pub(crate) fn subscribe(
    level: Level,
    id: u16,
    props: &Props,
    filters: &[(impl AsRef<[u8]>, u8)],
) -> Vec<u8> {
    let mut body = Bytes::new().u16(id);
    if level == V5 {
        body = props.put(body);
    }
    for (filter, options) in filters {
        body = body.field(filter).u8(*options);
    }
    body.packet(first::SUBSCRIBE)
}

/// An UNSUBSCRIBE packet.
pub(crate) fn unsubscribe(
    level: Level,
    id: u16,
    props: &Props,
    filters: &[impl AsRef<[u8]>],
) -> Vec<u8> {
    let mut body = Bytes::new().u16(id);
    if level == V5 {
        body = props.put(body);
    }
    for filter in filters {
        body = body.field(filter);
    }
    body.packet(first::UNSUBSCRIBE)
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP with success, in the two-byte form.
pub(crate) fn ack(first: u8, id: u16) -> Vec<u8> {
    Bytes::new().u16(id).packet(first)
}

/// The same with a reason code (MQTT 5.0).
pub(crate) fn ack_with(first: u8, id: u16, code: u8) -> Vec<u8> {
    Bytes::new().u16(id).u8(code).packet(first)
}

pub(crate) fn pingreq() -> Vec<u8> {
    Bytes::new().packet(first::PINGREQ)
}

/// A normal DISCONNECT.
pub(crate) fn disconnect() -> Vec<u8> {
    Bytes::new().packet(first::DISCONNECT)
}

/// DISCONNECT or AUTH with reason code and properties (MQTT 5.0).
pub(crate) fn with_reason(first: u8, code: u8, props: &Props) -> Vec<u8> {
    props.put(Bytes::new().u8(code)).packet(first)
}
