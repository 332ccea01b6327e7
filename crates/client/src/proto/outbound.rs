//! What goes to the server on one connection: bytes not yet sent, and what
//! binds them: the server's limits and the topic aliases.

use punctual_codec::{
    Ack, Packet, PacketType, Properties, PropertyBuf, PropertyId, Publish, ReasonCode, Version,
};

use super::alias::{Naming, OutboundAliases};
use super::limits::Limits;
use crate::Error;

/// Bytes of output above which no further PUBLISH is added: 256 KiB. One
/// PUBLISH may exceed it by its own size.
pub const OUTPUT_LIMIT: usize = 256 * 1024;

/// The output of a connection.
#[derive(Debug)]
pub(super) struct Outbound {
    version: Version,
    pub(super) limits: Limits,
    /// Bytes of the largest packet that the transport can carry.
    carries: Option<usize>,
    aliases: OutboundAliases,
    bytes: Vec<u8>,
    /// How many of `bytes` have been sent.
    sent: usize,
}

impl Outbound {
    pub(super) fn new(version: Version) -> Self {
        Self {
            version,
            limits: Limits::from_connack(Properties::EMPTY),
            carries: None,
            aliases: OutboundAliases::default(),
            bytes: Vec::new(),
            sent: 0,
        }
    }

    /// Forgets all that belongs to a connection.
    pub(super) fn reset(&mut self) {
        self.limits = Limits::from_connack(Properties::EMPTY);
        self.aliases = OutboundAliases::default();
        self.bytes.clear();
        self.sent = 0;
    }

    /// The transport of the connection carries packets of so many bytes.
    pub(super) fn carry(&mut self, most: Option<usize>) {
        self.carries = most;
    }

    /// Takes over what the server said in CONNACK; at most `automatic` topics
    /// are given an alias of our own accord.
    pub(super) fn accept(&mut self, connack: Properties<'_>, automatic: u16) {
        self.limits = Limits::from_connack(connack);
        self.limits.carry(self.carries);
        self.aliases = OutboundAliases::new(self.limits.topic_alias_maximum, automatic);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes().len() >= OUTPUT_LIMIT
    }

    pub(super) fn sent(&mut self, n: usize) {
        self.sent += n;
        if self.sent >= self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    /// Appends a packet that no limit of the server concerns.
    pub(super) fn control(&mut self, packet: Packet<'_>) -> Result<(), Error> {
        Ok(packet.encode(self.version, &mut self.bytes)?)
    }

    pub(super) fn acknowledge(
        &mut self,
        kind: PacketType,
        id: u16,
        reason: ReasonCode,
    ) -> Result<(), Error> {
        let ack = Ack::new(id, reason);
        Ok(ack.encode(kind, self.version, &mut self.bytes)?)
    }

    /// Appends what `put` does, unless that is more than the server takes.
    pub(super) fn bounded(
        &mut self,
        put: impl FnOnce(Version, &mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let start = self.bytes.len();
        put(self.version, &mut self.bytes)?;
        self.limits
            .packet(self.bytes.len() - start)
            .map_err(|reason| {
                self.bytes.truncate(start);
                Error::Unsupported(reason)
            })
    }

    /// Appends a PUBLISH by its topic's name, by an alias or both; its
    /// publisher may have `asked` for a certain alias.
    ///
    /// # Errors
    /// `Unsupported`, `ApiMisuse`; nothing is appended then.
    pub(super) fn publish(
        &mut self,
        publish: Publish<'_>,
        asked: Option<u16>,
    ) -> Result<(), Error> {
        self.limits.publish(&publish).map_err(Error::Unsupported)?;
        let naming = self.aliases.name(publish.topic, asked);
        let (alias, topic) = match naming {
            Naming::Name => {
                return self
                    .bounded(|version, out| Ok(Packet::Publish(publish).encode(version, out)?));
            }
            Naming::Introduce(alias) => (alias, publish.topic),
            Naming::Alias(alias) => (alias, ""),
        };
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::TopicAlias, alias.into());
        for property in publish.properties.iter() {
            properties.push(property);
        }
        let aliased = Packet::Publish(Publish {
            topic,
            properties: properties.as_properties(),
            ..publish
        });
        let result = self.bounded(|version, out| Ok(aliased.encode(version, out)?));
        if result.is_err() {
            // What was not sent introduced nothing; and the packet may be one
            // that only the alias makes too large.
            self.aliases.forget(alias);
            return self.bounded(|version, out| Ok(Packet::Publish(publish).encode(version, out)?));
        }
        result
    }

    /// The highest alias that a publisher may ask for; 0 for none.
    pub(super) fn alias_limit(&self) -> u16 {
        self.aliases.limit()
    }
}
