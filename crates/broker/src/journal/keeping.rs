//! How a publication is stored, and how a session receives it.

use std::sync::atomic::Ordering;

use punctual_codec::QoS;

use crate::base::connection::ConnId;
use crate::base::durability::Durability;
use crate::directory::Directory;
use crate::egress::Class;
use crate::sequence::Number;

/// How a publication is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    pub(crate) durability: Durability,
    /// Number of the message in the store; 0 for none.
    pub(crate) message: u64,
    /// Whether its content was emitted.
    pub(crate) written: bool,
    /// Whether operations were emitted whose commit the publisher waits for.
    pub(crate) awaited: bool,
    /// Whether the message has no publisher to which a refusal could be sent, so that it is stored
    /// even while the store is in trouble.
    pub(crate) insists: bool,
    /// Number of the entry that the publisher's shard has emitted for the only
    /// receiver of this copy; 0 for none.
    pub(crate) entry: u64,
    /// Number of its content among the operations that stay in the shard; 0 for none.
    pub(crate) content: u64,
    /// Whether operations were emitted that have to be committed even if all receivers acknowledge
    /// the message, as far as this shard knows.
    pub(crate) firm: bool,
    /// The publisher's connection, if exactly one session, of this shard, receives the message, and
    /// the message has no uncommon traits.
    pub(crate) alone: Option<ConnId>,
    /// Number of the entry if that stays in the shard together with the message; 0 otherwise.
    pub(crate) light: u64,
}

impl Keeping {
    /// For a message that is not stored.
    pub(crate) const NOT: Self = Self {
        durability: Durability::None,
        message: 0,
        written: false,
        awaited: false,
        insists: false,
        entry: 0,
        content: 0,
        firm: false,
        alone: None,
        light: 0,
    };

    /// For a new publication with that durability.
    pub(crate) fn new(durability: Durability, directory: &Directory) -> Self {
        match durability {
            Durability::None => Self::NOT,
            Durability::Batched | Durability::Sync => Self {
                durability,
                message: directory.next_message.fetch_add(1, Ordering::Relaxed),
                ..Self::NOT
            },
        }
    }
}

/// How a session receives a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reception<'a> {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) number: Option<Number>,
    pub(crate) subscription_ids: &'a [u32],
}

/// The traits of a publication that decide whether it has to be stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nature {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) publisher: u64,
    pub(crate) relayed: bool,
}

/// A message to which a packet identifier is assigned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    pub(crate) entry: u64,
    pub(crate) packet_id: u16,
    pub(crate) qos: QoS,
    pub(crate) class: Class,
}
