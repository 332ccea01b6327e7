//! Reads what the server sends, and is strict about it.
//!
//! Every byte the server ever sends to a test passes through here, so the
//! rules that bind all packets (fixed-header flags, shortest variable byte
//! integers, properties that belong to the packet and occur once, legal reason
//! codes, well-formed UTF-8, no zero packet identifier, nothing left over) are
//! checked in each test. An error text starts with the statement it breaks.

use crate::build::{Level, V5, first, id};

/// A packet from the server.
#[derive(Debug, Clone)]
pub(crate) enum Packet {
    ConnAck(ConnAck),
    Publish(Message),
    Ack(Ack),
    SubAck(Codes),
    UnsubAck(Codes),
    PingResp,
    Disconnect(Reason),
    Auth,
}

#[derive(Debug, Clone)]
pub(crate) struct ConnAck {
    pub(crate) session_present: bool,
    pub(crate) code: u8,
    pub(crate) props: PropList,
}

#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) dup: bool,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) topic: String,
    /// Zero at QoS 0.
    pub(crate) id: u16,
    pub(crate) props: PropList,
    pub(crate) payload: Vec<u8>,
    /// Size of the packet in bytes, fixed header included.
    pub(crate) size: usize,
}

impl Message {
    /// The payload for comparison with a literal.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// PUBACK, PUBREC, PUBREL and PUBCOMP.
#[derive(Debug, Clone)]
pub(crate) struct Ack {
    /// First byte of the packet: one of [`first`].
    pub(crate) kind: u8,
    pub(crate) id: u16,
    pub(crate) code: u8,
    pub(crate) props: PropList,
}

/// SUBACK and UNSUBACK.
#[derive(Debug, Clone)]
pub(crate) struct Codes {
    pub(crate) id: u16,
    pub(crate) codes: Vec<u8>,
    pub(crate) props: PropList,
}

/// DISCONNECT.
#[derive(Debug, Clone)]
pub(crate) struct Reason {
    pub(crate) code: u8,
    pub(crate) props: PropList,
}

/// Properties in the order in which they came.
#[derive(Debug, Clone, Default)]
pub(crate) struct PropList(Vec<(u8, Value)>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u32),
    Text(String),
    Data(Vec<u8>),
    Pair(String, String),
}

impl PropList {
    pub(crate) fn number(&self, id: u8) -> Option<u32> {
        self.numbers(id).first().copied()
    }

    pub(crate) fn numbers(&self, id: u8) -> Vec<u32> {
        let number = |(key, value): &(u8, Value)| match value {
            Value::Number(number) if *key == id => Some(*number),
            _ => None,
        };
        self.0.iter().filter_map(number).collect()
    }

    pub(crate) fn text(&self, id: u8) -> Option<&str> {
        self.0.iter().find_map(|(key, value)| match value {
            Value::Text(text) if *key == id => Some(text.as_str()),
            _ => None,
        })
    }

    pub(crate) fn data(&self, id: u8) -> Option<&[u8]> {
        self.0.iter().find_map(|(key, value)| match value {
            Value::Data(data) if *key == id => Some(data.as_slice()),
            _ => None,
        })
    }

    /// User properties in order.
    pub(crate) fn user<'a>(&'a self) -> Vec<(&'a str, &'a str)> {
        let pair = |(_, value): (u8, &'a Value)| match value {
            Value::Pair(name, value) => Some((name.as_str(), value.as_str())),
            _ => None,
        };
        self.0
            .iter()
            .map(|(id, value)| (*id, value))
            .filter_map(pair)
            .collect()
    }

    pub(crate) fn has(&self, id: u8) -> bool {
        self.0.iter().any(|(key, _)| *key == id)
    }
}

/// Takes the first whole packet off `bytes`: the packet and its size, or
/// nothing while it is incomplete.
pub(crate) fn take(level: Level, bytes: &[u8]) -> Result<Option<(Packet, usize)>, String> {
    let Some(&first) = bytes.first() else {
        return Ok(None);
    };
    let mut length = 0usize;
    let mut at = 1;
    loop {
        let Some(&byte) = bytes.get(at) else {
            return Ok(None);
        };
        length |= usize::from(byte & 0x7F) << (7 * (at - 1));
        at += 1;
        if byte & 0x80 == 0 {
            if byte == 0 && at > 2 {
                return Err("[MQTT-1.5.5-1] remaining length not in the fewest bytes".into());
            }
            break;
        }
        if at > 4 {
            return Err("remaining length has more than four bytes".into());
        }
    }
    let Some(body) = bytes.get(at..at + length) else {
        return Ok(None);
    };
    let mut reader = Reader { bytes: body, level };
    let packet = body_of(first, at + length, &mut reader)?;
    if !reader.bytes.is_empty() {
        return Err(format!("{} bytes left over", reader.bytes.len()));
    }
    Ok(Some((packet, at + length)))
}

fn body_of(first: u8, size: usize, reader: &mut Reader<'_>) -> Result<Packet, String> {
    let v5 = reader.level == V5;
    if first & 0xF0 == first::PUBLISH {
        return publish(first & 0x0F, size, reader).map(Packet::Publish);
    }
    Ok(match first {
        first::CONNACK => {
            let flags = reader.u8("connect acknowledge flags")?;
            if flags > 1 {
                return Err(format!("[MQTT-3.2.2-1] CONNACK flags {flags:#04x}"));
            }
            let code = reader.u8("CONNACK code")?;
            if !v5 && code > 5 {
                return Err(format!("CONNACK return code {code} is reserved in 3.1.1"));
            }
            if flags == 1 && code != 0 {
                return Err("[MQTT-3.2.2-6] Session Present beside an error".into());
            }
            Packet::ConnAck(ConnAck {
                session_present: flags == 1,
                code: reader.code(first, code)?,
                props: reader.props(first)?,
            })
        }
        first::PUBACK | first::PUBREC | first::PUBREL | first::PUBCOMP => {
            let id = reader.packet_id()?;
            let code = if v5 { reader.optional_code(first)? } else { 0 };
            let props = reader.optional_props(first)?;
            Packet::Ack(Ack {
                kind: first,
                id,
                code,
                props,
            })
        }
        first::SUBACK => {
            let id = reader.packet_id()?;
            let props = reader.props(first)?;
            let codes = reader.codes(first)?;
            Packet::SubAck(Codes { id, codes, props })
        }
        first::UNSUBACK => {
            let id = reader.packet_id()?;
            let props = reader.props(first)?;
            let codes = if v5 { reader.codes(first)? } else { Vec::new() };
            Packet::UnsubAck(Codes { id, codes, props })
        }
        first::PINGRESP => Packet::PingResp,
        first::DISCONNECT | first::AUTH if v5 => {
            let code = reader.optional_code(first)?;
            let props = reader.optional_props(first)?;
            let reason = Reason { code, props };
            if first == first::AUTH {
                Packet::Auth
            } else {
                Packet::Disconnect(reason)
            }
        }
        _ => {
            return Err(format!(
                "[MQTT-2.1.3-1] a server of this level sends no packet with first byte {first:#04x}"
            ));
        }
    })
}

fn publish(flags: u8, size: usize, reader: &mut Reader<'_>) -> Result<Message, String> {
    let qos = flags >> 1 & 3;
    let dup = flags & 8 != 0;
    if qos == 3 {
        return Err("[MQTT-3.3.1-4] PUBLISH with both QoS bits set".into());
    }
    if qos == 0 && dup {
        return Err("[MQTT-3.3.1-2] DUP at QoS 0".into());
    }
    let topic = reader.text("topic name")?;
    if topic.contains(['+', '#']) {
        return Err("[MQTT-3.3.2-2] wildcard in a topic name".into());
    }
    let id = if qos > 0 { reader.packet_id()? } else { 0 };
    let props = reader.props(first::PUBLISH)?;
    if topic.is_empty() && !props.has(id::TOPIC_ALIAS) {
        return Err("[MQTT-4.7.3-1] empty topic name without an alias".into());
    }
    if props.number(id::TOPIC_ALIAS) == Some(0) {
        return Err("[MQTT-3.3.2-8] topic alias zero".into());
    }
    let payload = std::mem::take(&mut reader.bytes).to_vec();
    Ok(Message {
        dup,
        qos,
        retain: flags & 1 == 1,
        topic,
        id,
        props,
        payload,
        size,
    })
}

struct Reader<'a> {
    bytes: &'a [u8],
    level: Level,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], String> {
        let (head, tail) = self
            .bytes
            .split_at_checked(count)
            .ok_or_else(|| format!("{what} is cut short"))?;
        self.bytes = tail;
        Ok(head)
    }

    fn u8(&mut self, what: &str) -> Result<u8, String> {
        Ok(self.take(1, what)?[0])
    }

    fn number(&mut self, bytes: usize, what: &str) -> Result<u32, String> {
        let bytes = self.take(bytes, what)?;
        Ok(bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    }

    fn var(&mut self, what: &str) -> Result<u32, String> {
        let mut value = 0;
        for at in 0..4 {
            let byte = self.u8(what)?;
            value |= u32::from(byte & 0x7F) << (7 * at);
            if byte & 0x80 == 0 {
                if byte == 0 && at > 0 {
                    return Err(format!("[MQTT-1.5.5-1] {what} not in the fewest bytes"));
                }
                return Ok(value);
            }
        }
        Err(format!("{what} has more than four bytes"))
    }

    fn data(&mut self, what: &str) -> Result<&'a [u8], String> {
        let length = self.number(2, what)? as usize;
        self.take(length, what)
    }

    fn text(&mut self, what: &str) -> Result<String, String> {
        let text = std::str::from_utf8(self.data(what)?)
            .map_err(|_| format!("[MQTT-1.5.4-1] {what} is not UTF-8"))?;
        if text.contains('\0') {
            return Err(format!("[MQTT-1.5.4-2] {what} contains U+0000"));
        }
        Ok(text.into())
    }

    fn packet_id(&mut self) -> Result<u16, String> {
        match self.number(2, "packet identifier")? {
            0 => Err("[MQTT-2.2.1-4] packet identifier zero".into()),
            id => Ok(id as u16),
        }
    }

    fn code(&self, first: u8, code: u8) -> Result<u8, String> {
        let legal: &[u8] = match (first, self.level == V5) {
            (first::CONNACK, true) => &[
                0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90,
                0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
            ],
            (first::PUBACK | first::PUBREC, true) => {
                &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]
            }
            (first::PUBREL | first::PUBCOMP, true) => &[0x00, 0x92],
            (first::SUBACK, true) => &[
                0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2,
            ],
            (first::UNSUBACK, true) => &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91],
            // 0x04 (Disconnect with Will Message) is the client's alone.
            (first::DISCONNECT, true) => &[
                0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94,
                0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
            ],
            // 0x19 (Re-authenticate) is the client's alone.
            (first::AUTH, true) => &[0x00, 0x18],
            (first::CONNACK, false) => &[0, 1, 2, 3, 4, 5],
            (first::SUBACK, false) => &[0x00, 0x01, 0x02, 0x80],
            _ => &[],
        };
        if legal.contains(&code) {
            Ok(code)
        } else {
            Err(format!(
                "reason code {code:#04x} is not defined for a packet with first byte {first:#04x}"
            ))
        }
    }

    fn optional_code(&mut self, first: u8) -> Result<u8, String> {
        if self.bytes.is_empty() {
            return Ok(0);
        }
        let code = self.u8("reason code")?;
        self.code(first, code)
    }

    fn codes(&mut self, first: u8) -> Result<Vec<u8>, String> {
        let codes = std::mem::take(&mut self.bytes);
        codes.iter().map(|code| self.code(first, *code)).collect()
    }

    /// Properties that may be left out together with their length.
    fn optional_props(&mut self, first: u8) -> Result<PropList, String> {
        if self.bytes.is_empty() {
            return Ok(PropList::default());
        }
        self.props(first)
    }

    fn props(&mut self, first: u8) -> Result<PropList, String> {
        if self.level != V5 {
            return Ok(PropList::default());
        }
        let length = self
            .var("property length")
            .map_err(|why| format!("[MQTT-2.2.2-1] {why}"))? as usize;
        let mut inside = Reader {
            bytes: self.take(length, "properties")?,
            level: self.level,
        };
        let mut list = PropList::default();
        while !inside.bytes.is_empty() {
            let (key, value) = inside.property(first)?;
            let repeatable = matches!(key, id::USER_PROPERTY) || key == id::SUBSCRIPTION_IDENTIFIER;
            if list.has(key) && !repeatable {
                return Err(format!("property {key:#04x} occurs twice"));
            }
            list.0.push((key, value));
        }
        Ok(list)
    }

    fn property(&mut self, first: u8) -> Result<(u8, Value), String> {
        let key = self.u8("property identifier")?;
        let legal: &[u8] = match first {
            first::CONNACK => &[
                id::SESSION_EXPIRY,
                id::RECEIVE_MAXIMUM,
                id::MAXIMUM_QOS,
                id::RETAIN_AVAILABLE,
                id::MAXIMUM_PACKET_SIZE,
                id::ASSIGNED_CLIENT_ID,
                id::TOPIC_ALIAS_MAXIMUM,
                id::REASON_STRING,
                id::USER_PROPERTY,
                id::WILDCARD_AVAILABLE,
                id::SUBSCRIPTION_IDS_AVAILABLE,
                id::SHARED_AVAILABLE,
                id::SERVER_KEEP_ALIVE,
                id::RESPONSE_INFO,
                id::SERVER_REFERENCE,
                id::AUTH_METHOD,
                id::AUTH_DATA,
            ],
            first::PUBLISH => &[
                id::PAYLOAD_FORMAT,
                id::MESSAGE_EXPIRY,
                id::TOPIC_ALIAS,
                id::RESPONSE_TOPIC,
                id::CORRELATION_DATA,
                id::USER_PROPERTY,
                id::SUBSCRIPTION_IDENTIFIER,
                id::CONTENT_TYPE,
            ],
            // No session expiry: [MQTT-3.14.2-2].
            first::DISCONNECT => &[id::REASON_STRING, id::USER_PROPERTY, id::SERVER_REFERENCE],
            first::AUTH => &[
                id::AUTH_METHOD,
                id::AUTH_DATA,
                id::REASON_STRING,
                id::USER_PROPERTY,
            ],
            _ => &[id::REASON_STRING, id::USER_PROPERTY],
        };
        if !legal.contains(&key) {
            return Err(format!(
                "property {key:#04x} is not allowed in a packet with first byte {first:#04x}"
            ));
        }
        let value = match key {
            id::PAYLOAD_FORMAT
            | id::MAXIMUM_QOS
            | id::RETAIN_AVAILABLE
            | id::WILDCARD_AVAILABLE
            | id::SUBSCRIPTION_IDS_AVAILABLE
            | id::SHARED_AVAILABLE => Value::Number(self.flag(key)?),
            id::SERVER_KEEP_ALIVE
            | id::RECEIVE_MAXIMUM
            | id::TOPIC_ALIAS_MAXIMUM
            | id::TOPIC_ALIAS => Value::Number(self.number(2, "property")?),
            id::MESSAGE_EXPIRY | id::SESSION_EXPIRY | id::MAXIMUM_PACKET_SIZE => {
                Value::Number(self.number(4, "property")?)
            }
            id::SUBSCRIPTION_IDENTIFIER => Value::Number(self.var("subscription identifier")?),
            id::CORRELATION_DATA | id::AUTH_DATA => Value::Data(self.data("property")?.to_vec()),
            id::USER_PROPERTY => {
                Value::Pair(self.text("property name")?, self.text("property value")?)
            }
            _ => Value::Text(self.text("property")?),
        };
        let zero_forbidden = [
            id::RECEIVE_MAXIMUM,
            id::MAXIMUM_PACKET_SIZE,
            id::SUBSCRIPTION_IDENTIFIER,
        ];
        if value == Value::Number(0) && zero_forbidden.contains(&key) {
            return Err(format!("property {key:#04x} is zero"));
        }
        Ok((key, value))
    }

    fn flag(&mut self, key: u8) -> Result<u32, String> {
        match self.u8("property")? {
            value @ (0 | 1) => Ok(u32::from(value)),
            value => Err(format!("property {key:#04x} has the value {value}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{V5, V311};

    fn refused(level: Level, bytes: &[u8], why: &str) {
        let error = take(level, bytes).expect_err(why);
        assert!(error.contains(why), "{error} does not say {why}");
    }

    #[test]
    fn a_whole_packet_is_taken_and_a_partial_one_waits() {
        let bytes = [0x40, 2, 0, 7, 0xD0, 0];
        for cut in 0..4 {
            assert!(take(V5, &bytes[..cut]).unwrap().is_none());
        }
        let (packet, size) = take(V5, &bytes).unwrap().unwrap();
        assert_eq!(size, 4);
        assert!(matches!(packet, Packet::Ack(ack) if ack.id == 7 && ack.code == 0));
    }

    #[test]
    fn what_no_server_may_send_is_refused() {
        refused(V5, &[0xD0, 0x80, 0x00], "[MQTT-1.5.5-1]");
        refused(V5, &[0x20, 3, 2, 0, 0], "[MQTT-3.2.2-1]");
        refused(V5, &[0x20, 3, 1, 0x81, 0], "[MQTT-3.2.2-6]");
        refused(V5, &[0x41, 2, 0, 7], "[MQTT-2.1.3-1]");
        refused(V311, &[0xE0, 0], "[MQTT-2.1.3-1]");
        refused(V5, &[0x40, 2, 0, 0], "packet identifier zero");
        refused(V5, &[0x40, 3, 0, 7, 0x81], "reason code 0x81");
        refused(V5, &[0x36, 0], "[MQTT-3.3.1-4]");
        refused(V5, &[0x38, 0], "[MQTT-3.3.1-2]");
        refused(V5, &[0x30, 4, 0, 1, b'#', 0], "[MQTT-3.3.2-2]");
        refused(V5, &[0x30, 3, 0, 0, 0], "[MQTT-4.7.3-1]");
        refused(V5, &[0x30, 3, 0, 1, 0xFF], "[MQTT-1.5.4-1]");
        refused(V5, &[0x30, 3, 0, 1, 0], "[MQTT-1.5.4-2]");
        refused(V5, &[0x30, 3, 0, 1, b'a'], "[MQTT-2.2.2-1]");
        refused(V5, &[0xE0, 7, 0, 5, 0x11, 0, 0, 0, 1], "property 0x11");
        refused(V5, &[0xD0, 1, 0], "left over");
        let twice = [0x30, 8, 0, 1, b'a', 4, 0x01, 0, 0x01, 0];
        refused(V5, &twice, "occurs twice");
    }
}
