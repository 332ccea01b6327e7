//! Who may do what. The broker asks; a shell answers, typically from
//! mosquitto-format files.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::UrgencyRights;
use crate::base::name::LINK_PREFIX;

/// The rights of one client.
pub trait Permissions: Debug + Send + Sync {
    /// Whether it may publish to the topic name.
    fn may_publish(&self, topic: &str) -> bool;
    /// Whether messages on the topic name may be delivered to it.
    fn may_receive(&self, topic: &str) -> bool;
    /// Whether it may subscribe to the filter (without share prefix) at all.
    fn may_subscribe(&self, filter: &str) -> bool;
    /// What it may state about the urgency of messages on the topic name.
    fn urgency(&self, _topic: &str) -> UrgencyRights {
        UrgencyRights::ALL
    }
    /// Whether messages on the topic name are refused if what is asked for them
    /// is rejected; `None`: as the listener says.
    fn refuses(&self, _topic: &str) -> Option<bool> {
        None
    }
    /// Whether it may connect as the neighbour broker that is called so, which forwards everything.
    fn may_be_broker(&self, _name: &str) -> bool {
        false
    }
    /// What all clients of its user may have promised together.
    fn quota(&self) -> FlowQuota {
        FlowQuota::default()
    }
}

/// Whether a client with these rights may publish to the topic name. What the broker itself
/// publishes on, and what its links do, is nobody's.
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

/// By what clients have proven who they are: the password of a user, a certificate. All that were
/// let in by one have the same.
#[derive(Debug, Default)]
pub struct Credential {
    revoked: AtomicBool,
}

impl Credential {
    /// It proves nothing any more. Whoever was let in by it is disconnected once
    /// [`crate::Shard::access_changed`] was called, and nobody is let in any more.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// Whether it proves nothing any more.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }
}

/// Gives every client its rights.
pub trait AccessControl: Debug + Send + Sync {
    /// The rights of a client by user name and client identifier; `None` for
    /// all rights.
    fn permissions(&self, user: Option<&str>, client_id: &str) -> Option<Arc<dyn Permissions>>;
    /// The same for a client that has come by that listener; `None` if that is not known any more.
    fn permissions_at(
        &self,
        _listener: Option<u16>,
        user: Option<&str>,
        client_id: &str,
    ) -> Option<Arc<dyn Permissions>> {
        self.permissions(user, client_id)
    }
    /// What a client may do by one listener or another; `None` for everything. It is asked for what
    /// such a client did when it is not known any more by which it came.
    fn permissions_anywhere(
        &self,
        user: Option<&str>,
        client_id: &str,
    ) -> Option<Arc<dyn Permissions>> {
        self.permissions(user, client_id)
    }
}
