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
    /// Whether anything was emitted that its publisher waits for.
    pub(crate) awaited: bool,
    /// Whether nobody could be told that it is refused.
    pub(crate) insists: bool,
    /// Number of the entry that the publisher's shard has emitted for the only
    /// receiver of this copy; 0 for none.
    pub(crate) entry: u64,
    /// Number of its content among what is kept in the shard; 0 for none.
    pub(crate) content: u64,
    /// Whether something was emitted that acknowledgements of receivers do not make
    /// needless, as far as this shard knows.
    pub(crate) firm: bool,
    /// Connection that published it, if one session of this shard receives it, and nobody
    /// else, and there is nothing about it that most messages have not.
    pub(crate) alone: Option<ConnId>,
    /// Number of the entry if that is kept together with the message; 0 otherwise.
    pub(crate) light: u64,
}

impl Keeping {
    /// Of what is not stored.
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

    /// Of a new publication with that durability.
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

/// What decides whether something of a publication would have to be stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nature {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) publisher: u64,
    pub(crate) relayed: bool,
}

/// A message that gets a packet identifier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    pub(crate) entry: u64,
    pub(crate) packet_id: u16,
    pub(crate) qos: QoS,
    pub(crate) class: Class,
}
