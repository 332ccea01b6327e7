//! Messages on their way to the server (sections 4.3 and 4.4): waiting, sent
//! and unacknowledged, released.
//!
//! This is session state: it outlives connections. A message with QoS 1 or 2
//! is kept as its encoded PUBLISH, so that sending it again is setting one
//! bit. Order is that of publishing, after a reconnection too [MQTT-4.6.0-1];
//! PUBRELs are repeated in the order of their PUBRECs [MQTT-4.6.0-4].

use std::collections::{BTreeMap, VecDeque};

use punctual_codec::{
    EncodeError, Frame, Publish, QoS, RawPublish, Split, Version, split, varint_len,
};

use super::event::Token;
use crate::Message;

/// A PUBLISH in the encoding without topic alias, which holds on any
/// connection.
#[derive(Debug, Clone)]
pub(super) struct StoredPublish {
    bytes: Vec<u8>,
    /// Where the packet identifier is; 0 for QoS 0, which has none.
    id_at: usize,
    /// The alias that the publisher asked for.
    pub(super) alias: Option<u16>,
}

const DUP: u8 = 0x08;

impl StoredPublish {
    pub(super) fn new(publish: Publish<'_>, version: Version) -> Result<Self, EncodeError> {
        let mut bytes = Vec::new();
        publish.encode(version, &mut bytes)?;
        let mut after_id = publish.payload.len();
        if version.is_v5() {
            let properties = publish.properties.as_bytes().len();
            after_id += varint_len(properties) + properties;
        }
        let id_at = match publish.qos {
            QoS::AtMostOnce => 0,
            _ => bytes.len() - after_id - 2,
        };
        Ok(Self {
            bytes,
            id_at,
            alias: None,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The packet, decoded again; `None` never happens for what we encoded.
    pub(super) fn publish(&self, version: Version) -> Option<Publish<'_>> {
        let Ok(Split::Frame(Frame { first, body, .. })) = split(&self.bytes, u32::MAX) else {
            return None;
        };
        RawPublish::decode(first, body, version)
            .ok()?
            .validate()
            .ok()
    }

    fn qos(&self) -> QoS {
        QoS::from_bits((self.bytes[0] >> 1) & 3).unwrap_or_default()
    }

    fn set_id(&mut self, id: u16) {
        if self.id_at != 0 {
            self.bytes[self.id_at..self.id_at + 2].copy_from_slice(&id.to_be_bytes());
        }
    }

    fn set_dup(&mut self, dup: bool) {
        if dup {
            self.bytes[0] |= DUP;
        } else {
            self.bytes[0] &= !DUP;
        }
    }
}

/// Where a message with QoS 1 or 2 stands.
#[derive(Debug)]
enum Stage {
    /// PUBLISH sent or to be sent again; awaits PUBACK or PUBREC.
    Publish(StoredPublish),
    /// PUBREL sent; awaits PUBCOMP.
    Release,
}

#[derive(Debug)]
struct InFlightPublish {
    token: Token,
    stage: Stage,
    /// Position in the order of sending.
    seq: u64,
}

/// A PUBLISH to send.
#[derive(Debug)]
pub(super) enum Next {
    /// With QoS 0; it is not kept.
    Once(Token, StoredPublish),
    /// The one in flight under that identifier.
    Flying(u16),
}

/// What a PUBREC calls for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PubRecAction {
    /// Send PUBREL.
    Release,
    /// Nothing of that identifier is in flight.
    Unknown,
    /// That message has QoS 1.
    WrongQoS,
}

/// The outgoing half of the session.
#[derive(Debug, Default)]
pub(super) struct Flight {
    flying: BTreeMap<u16, InFlightPublish>,
    /// Of these the PUBLISH has to be sent again on this connection.
    resend: VecDeque<u16>,
    waiting: VecDeque<(Token, StoredPublish)>,
    last_id: u16,
    next_seq: u64,
}

impl Flight {
    /// Messages with QoS 1 or 2 that are not acknowledged to their end, and
    /// messages that have not been sent.
    pub(super) fn len(&self) -> usize {
        self.flying.len() + self.waiting.len()
    }

    /// Messages that have not been sent at all.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether something is to be sent as soon as that is allowed.
    pub(super) fn has_unsent(&self) -> bool {
        !self.resend.is_empty() || !self.waiting.is_empty()
    }

    pub(super) fn has_id(&self, id: u16) -> bool {
        self.flying.contains_key(&id)
    }

    pub(super) fn enqueue(&mut self, token: Token, stored: StoredPublish) {
        self.waiting.push_back((token, stored));
    }

    /// A packet identifier that neither a message nor, by `taken`, another
    /// request uses.
    pub(super) fn free_id(&mut self, taken: impl Fn(u16) -> bool) -> Option<u16> {
        for _ in 0..u16::MAX {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.has_id(self.last_id) && !taken(self.last_id) {
                return Some(self.last_id);
            }
        }
        None
    }

    /// The next PUBLISH to send while fewer than `quota` with QoS 1 and 2 are
    /// unacknowledged on this connection [MQTT-3.3.4-9].
    pub(super) fn next(&mut self, quota: u16, taken: impl Fn(u16) -> bool) -> Option<Next> {
        let in_use = self.flying.len() - self.resend.len();
        let free = in_use < usize::from(quota);
        if let Some(&id) = self.resend.front() {
            if !free {
                return None;
            }
            self.resend.pop_front();
            return Some(Next::Flying(id));
        }
        let (_, stored) = self.waiting.front()?;
        if stored.qos() == QoS::AtMostOnce {
            let (token, stored) = self.waiting.pop_front()?;
            return Some(Next::Once(token, stored));
        }
        if !free {
            return None;
        }
        let id = self.free_id(taken)?;
        let (token, mut stored) = self.waiting.pop_front()?;
        stored.set_id(id);
        let seq = self.seq();
        let stage = Stage::Publish(stored);
        self.flying
            .insert(id, InFlightPublish { token, stage, seq });
        Some(Next::Flying(id))
    }

    /// The PUBLISH in flight under that identifier.
    pub(super) fn stored(&self, id: u16) -> Option<&StoredPublish> {
        match &self.flying.get(&id)?.stage {
            Stage::Publish(stored) => Some(stored),
            Stage::Release => None,
        }
    }

    fn seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq
    }

    /// Ends a message with QoS 1; `None` if no such message is in flight,
    /// `Some(Err(()))` if it has QoS 2.
    pub(super) fn puback(&mut self, id: u16) -> Option<Result<Token, ()>> {
        match &self.flying.get(&id)?.stage {
            Stage::Publish(stored) if stored.qos() == QoS::AtLeastOnce => {}
            _ => return Some(Err(())),
        }
        self.finish(id).map(Ok)
    }

    /// The server has taken a message with QoS 2; it is not needed any more.
    pub(super) fn pubrec(&mut self, id: u16) -> PubRecAction {
        let seq = self.seq();
        let Some(flying) = self.flying.get_mut(&id) else {
            return PubRecAction::Unknown;
        };
        if let Stage::Publish(stored) = &flying.stage {
            if stored.qos() == QoS::AtLeastOnce {
                return PubRecAction::WrongQoS;
            }
            flying.seq = seq;
            flying.stage = Stage::Release;
        }
        self.answered(id);
        PubRecAction::Release
    }

    /// Ends a message with QoS 2 at its PUBCOMP; `Some(Err(()))` if its PUBREC
    /// has not come.
    pub(super) fn pubcomp(&mut self, id: u16) -> Option<Result<Token, ()>> {
        match self.flying.get(&id)?.stage {
            Stage::Release => self.finish(id).map(Ok),
            Stage::Publish(..) => Some(Err(())),
        }
    }

    /// Ends a message whatever its stage.
    pub(super) fn finish(&mut self, id: u16) -> Option<Token> {
        self.answered(id);
        self.flying.remove(&id).map(|flying| flying.token)
    }

    /// The server has answered for `id`. If it did so for what an earlier
    /// connection brought it, there is nothing to send again.
    fn answered(&mut self, id: u16) {
        self.resend.retain(|waiting| *waiting != id);
    }

    /// Prepares for a new connection on which the server has the session:
    /// every unacknowledged PUBLISH is sent again, marked as duplicate.
    /// Returns the identifiers to send PUBREL for, in order [MQTT-4.4.0-1].
    pub(super) fn resume(&mut self) -> Vec<u16> {
        let (publishes, releases) = self.in_order();
        for id in &publishes {
            self.set_dup(*id, true);
        }
        self.resend = publishes.into();
        releases
    }

    /// Prepares for a new connection on which the server has no session: every
    /// unacknowledged PUBLISH becomes new. Returns the messages that the
    /// server had taken and was not yet told to release.
    pub(super) fn restart(&mut self) -> Vec<Token> {
        let (publishes, releases) = self.in_order();
        for id in &publishes {
            self.set_dup(*id, false);
        }
        self.resend = publishes.into();
        releases.iter().filter_map(|id| self.finish(*id)).collect()
    }

    fn set_dup(&mut self, id: u16, dup: bool) {
        if let Some(InFlightPublish {
            stage: Stage::Publish(stored),
            ..
        }) = self.flying.get_mut(&id)
        {
            stored.set_dup(dup);
        }
    }

    /// Identifiers with a PUBLISH, and those with a PUBREL, to send again.
    fn in_order(&self) -> (Vec<u16>, Vec<u16>) {
        let mut all: Vec<(u64, u16)> = self.flying.iter().map(|(id, f)| (f.seq, *id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).partition(|id| {
            let stage = self.flying.get(id).map(|flying| &flying.stage);
            matches!(stage, Some(Stage::Publish(..)))
        })
    }
}

/// A message as a packet, without identifier and without topic alias.
pub(super) fn as_publish<'a>(
    message: &'a Message,
    properties: punctual_codec::Properties<'a>,
) -> Publish<'a> {
    Publish {
        dup: false,
        qos: message.qos,
        retain: message.retain,
        topic: &message.topic,
        packet_id: 0,
        properties,
        payload: &message.payload,
    }
}
