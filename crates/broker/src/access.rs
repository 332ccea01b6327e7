//! Access control. The broker queries it; a shell implements it, typically from mosquitto-format
//! files.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::UrgencyRights;
use crate::base::name::LINK_PREFIX;

/// The rights of one client.
pub trait Permissions: Debug + Send + Sync {
    /// Whether the client may publish to the topic name.
    fn may_publish(&self, topic: &str) -> bool;
    /// Whether messages on the topic name may be delivered to the client.
    fn may_receive(&self, topic: &str) -> bool;
    /// Whether the client may subscribe to the filter (without share prefix) at all.
    fn may_subscribe(&self, filter: &str) -> bool;
    /// The urgency that the client may state for messages on the topic name.
    fn urgency(&self, _topic: &str) -> UrgencyRights {
        UrgencyRights::ALL
    }
    /// Whether messages on the topic name are refused if their requirements are rejected; `None`:
    /// the listener's setting applies.
    fn refuses(&self, _topic: &str) -> Option<bool> {
        None
    }
    /// Whether the client may connect as the neighbour broker with that name, which forwards all
    /// messages.
    fn may_be_broker(&self, _name: &str) -> bool {
        false
    }
    /// The bound on admitted flows of all clients of its user together.
    fn quota(&self) -> FlowQuota {
        FlowQuota::default()
    }
}

/// Whether a client with these rights may publish to the topic name. No client may publish to
/// topics of the broker itself and of its links.
pub(crate) fn may_publish(permissions: Option<&dyn Permissions>, topic: &str) -> bool {
    !topic.starts_with("$SYS/")
        && !topic.starts_with(LINK_PREFIX)
        && permissions.is_none_or(|permissions| permissions.may_publish(topic))
}

/// Whether messages on the topic name may be delivered to a client with these rights.
pub(crate) fn may_receive(permissions: Option<&dyn Permissions>, topic: &[u8]) -> bool {
    permissions.is_none_or(|permissions| {
        std::str::from_utf8(topic).is_ok_and(|topic| permissions.may_receive(topic))
    })
}

/// Bounds on the admitted flows of a user; `None` for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FlowQuota {
    /// Flows.
    pub max_flows: Option<u32>,
    /// Bits per second on the wire.
    pub max_bandwidth: Option<u64>,
}

/// The credential with which clients have authenticated: the password of a user, or a certificate.
/// All clients that were accepted by one credential share it.
#[derive(Debug, Default)]
pub struct Credential {
    revoked: AtomicBool,
}

impl Credential {
    /// Revokes the credential. Clients that were accepted by it are disconnected once
    /// [`crate::Shard::access_changed`] was called, and none is accepted any more.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// Whether the credential was revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }
}

/// Gives every client its rights.
pub trait AccessControl: Debug + Send + Sync {
    /// The rights of a client by user name and client identifier; `None` for
    /// all rights.
    fn permissions(&self, user: Option<&str>, client_id: &str) -> Option<Arc<dyn Permissions>>;
    /// As [`Self::permissions`], for a client of that listener; `None` if the listener is not known
    /// any more.
    fn permissions_at(
        &self,
        _listener: Option<u16>,
        user: Option<&str>,
        client_id: &str,
    ) -> Option<Arc<dyn Permissions>> {
        self.permissions(user, client_id)
    }
    /// The rights of a client at any listener; `None` for everything. Queried for earlier actions
    /// of a client whose listener is not known any more.
    fn permissions_anywhere(
        &self,
        user: Option<&str>,
        client_id: &str,
    ) -> Option<Arc<dyn Permissions>> {
        self.permissions(user, client_id)
    }
}
