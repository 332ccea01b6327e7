//! A connection of one shard.

use std::num::NonZeroU32;
use std::sync::Arc;

use punctual_codec::{Ack, PacketType, ReasonCode, Version};

use super::Origin;
use super::aliases::{Alias, Aliases};
use crate::access::{Permissions, may_publish, may_receive};
use crate::admission::SubscriptionDecision;
use crate::base::author::Author;
use crate::base::connection::ConnId;
use crate::base::durability::Durability;
use crate::egress::{Class, Egress, Encoding, Pool};
use crate::journal::HeldAnswers;
use crate::{Config, Nanos};
use punctual_model::Requirements;

use crate::urgency::UrgencyRights;

/// The state of a connection.
#[derive(Debug)]
pub(crate) enum State {
    /// Only a CONNECT is accepted.
    Opening,
    /// The client waits for an authentication outside the shard.
    Authenticating(Box<Authenticating>),
    /// The client waits for its session, which may be at another broker.
    Awaiting(Box<Awaited>),
    /// A session is attached.
    Connected,
}

/// A client that is being authenticated.
#[derive(Debug)]
pub(crate) struct Authenticating {
    /// The body of CONNECT.
    pub(crate) body: Box<[u8]>,
    /// Dropped when the client does not wait any more.
    pub(crate) waits: Arc<()>,
}

/// A client that waits for its session.
#[derive(Debug)]
pub(crate) struct Awaited {
    /// The body of CONNECT.
    pub(crate) body: Box<[u8]>,
    /// Its authenticated user name.
    pub(crate) username: Option<Arc<str>>,
    /// Authentication method and data for CONNACK.
    pub(crate) auth: Option<(Box<str>, Box<[u8]>)>,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) generation: u32,
    pub(crate) state: State,
    pub(crate) version: Version,
    pub(crate) dirty: bool,
    /// Whether it is in the list of connections with urgent messages to write.
    pub(crate) urgent: bool,
    /// Most urgent class of the messages that it was sent, at least normal; bulk if it accepts no
    /// other class.
    pub(crate) class: Class,
    pub(crate) congested: bool,
    pub(crate) slow: bool,
    /// Whether the peer has not accepted all bytes that were written, and the bytes that have
    /// waited since are not all sent.
    pub(crate) behind: bool,
    /// Whether the timer is armed that ends a congestion that lasts too long.
    pub(crate) pause_armed: bool,
    /// Whether reason strings may be sent with all packets.
    pub(crate) problem_information: bool,
    /// Number of receivers and other reasons that hold this publisher back.
    pub(crate) paused: u32,
    /// Whether one of the reasons is that the client does not read its own messages.
    pub(crate) unread: bool,
    pub(crate) session: u32,
    /// Number of the session, as publisher of messages.
    pub(crate) number: u64,
    /// When its last complete packet arrived, or when the present keep-alive interval began.
    pub(crate) last_received: Nanos,
    /// Whether the shard reads from it again after a pause: its silence counts from the next check
    /// on.
    pub(crate) resumed: bool,
    /// Whether CONNECT identified it as a bridge, in a version before MQTT 5.
    pub(crate) bridge: bool,
    pub(crate) keep_alive: u16,
    pub(crate) receive_max: u16,
    /// QoS 2 messages received on this connection and not released. Those of earlier connections do
    /// not count (section 4.9).
    pub(crate) unreleased: u16,
    pub(crate) max_packet: u32,
    /// Route of the last publication, and whether it was allowed.
    pub(crate) route: u64,
    pub(crate) route_allowed: bool,
    /// Guaranteed durability of its publications.
    pub(crate) durability: Durability,
    /// Acknowledgements to the client that wait for commits.
    pub(crate) held: HeldAnswers,
    /// Whether nothing is sent to the client until its session is committed.
    pub(crate) corked: bool,
    /// Whether CONNECT stated requirements for all publications, or the session
    /// has flows.
    pub(crate) states: bool,
    /// Priority of the messages of admitted flows that it sends, as far as it
    /// sends nothing else.
    pub(crate) promised: Option<u8>,
    /// Whether it has sent urgent messages recently.
    pub(crate) sends_urgent: bool,
    /// When it sent the last one, in milliseconds.
    pub(crate) urgent_at: u32,
    /// Whether nothing has arrived from the client since the CONNACK for its new session.
    pub(crate) unheard: bool,
    /// Whether a neighbour broker is at the other end.
    pub(crate) link: bool,
    /// Whether the timer is armed that sends acknowledgements to a neighbour.
    pub(crate) answers_armed: bool,
    pub(crate) alias_max: u16,
    pub(crate) out: Egress,
    pub(crate) permissions: Option<Arc<dyn Permissions>>,
    pub(crate) connected_at: Nanos,
    pub(crate) meta: Box<Origin>,
    /// State that only few connections have.
    pub(crate) extra: Option<Box<Extra>>,
}

/// State that only few connections have; created when needed.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) aliases_in: Vec<Alias>,
    /// Topic aliases that the broker has defined.
    pub(crate) aliases_out: Aliases,
    /// Publishers that wait for this receiver.
    pub(crate) waiters: Vec<ConnId>,
    /// When its publishers stop waiting, if it is still congested.
    pub(crate) congested_until: Nanos,
    /// Longest time for which its publishers wait.
    pub(crate) congested_for: Nanos,
    /// Number of lost messages of its session that its CONNACK reports.
    pub(crate) told_dropped: u64,
    /// Enhanced authentication method in use.
    pub(crate) auth_method: Option<Box<str>>,
    /// Whether a re-authentication is in progress.
    pub(crate) authenticating_again: bool,
    /// DISCONNECT, to be sent last.
    pub(crate) farewell: Vec<u8>,
    /// Requirements that CONNECT states for all publications.
    pub(crate) default: Requirements,
    /// Route of the last publication, and the urgency that the client may state on its topic.
    pub(crate) rights: Option<(u64, UrgencyRights)>,
    /// Its client as the author of retained messages, once it has published one.
    pub(crate) author: Option<Arc<Author>>,
    /// The decision about the next SUBSCRIBE.
    pub(crate) subscribed: Option<SubscriptionDecision>,
}

impl Conn {
    /// Records the route of the last publication, and whether the client may publish to its topic.
    /// The check is not repeated for the same route.
    #[inline]
    pub(crate) fn set_route(&mut self, route: u64, topic: &str) {
        if self.route != route {
            self.route = route;
            self.route_allowed = may_publish(self.permissions.as_deref(), topic);
        }
    }

    /// Whether its client may receive messages on a topic.
    pub(crate) fn may_receive(&self, topic: &[u8]) -> bool {
        may_receive(self.permissions.as_deref(), topic)
    }

    /// Silence after which the client counts as gone (section 3.1.2.10).
    pub(crate) fn patience(&self) -> Nanos {
        Nanos(u64::from(self.keep_alive) * 1_500_000_000)
    }

    #[inline]
    pub(crate) fn v5(&self) -> bool {
        self.version.is_v5()
    }

    #[inline]
    pub(crate) fn encoding(&self) -> Encoding {
        Encoding {
            v5: self.v5(),
            max_packet: self.max_packet,
        }
    }

    /// Appends an acknowledgement. One without properties always fits.
    #[inline]
    pub(super) fn put_ack(
        &mut self,
        pool: &mut Pool,
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        let (ack, version) = (Ack::new(packet_id, reason), self.version);
        self.out.control(pool, |buffer| {
            let _ = ack.encode(kind, version, buffer);
        });
    }

    /// The identifier of this connection, which is in that slot.
    #[inline]
    pub(crate) fn id(&self, slot: u32) -> ConnId {
        ConnId {
            slot,
            generation: self.generation,
        }
    }

    /// Whether bytes wait that the peer did not accept at once.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.behind && self.out.backlog() > 0
    }

    /// The topic aliases that the client has defined, alias 1 first.
    #[inline]
    pub(crate) fn aliases_in(&self) -> &[Alias] {
        self.extra.as_ref().map_or(&[], |extra| &extra.aliases_in)
    }

    /// Records the origin in the name of a neighbour's last message under that alias.
    #[inline]
    pub(crate) fn note_origin(&mut self, alias: u16, origin: NonZeroU32) {
        if let Some(extra) = &mut self.extra
            && let Some(known) = extra.aliases_in.get_mut(usize::from(alias).wrapping_sub(1))
        {
            known.origin = Some(origin);
        }
    }

    pub(crate) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    pub(super) fn take_waiters(&mut self) -> Vec<ConnId> {
        match &mut self.extra {
            Some(extra) => std::mem::take(&mut extra.waiters),
            None => Vec::new(),
        }
    }

    /// Whether the user name of its client, if it has one, is authenticated.
    pub(crate) fn is_proven(&self, config: &Config) -> bool {
        self.meta.identity().is_some()
            || self.auth_method().is_some()
            || config.checks_passwords(self.meta.listener)
    }

    pub(crate) fn auth_method(&self) -> Option<&str> {
        self.extra.as_ref()?.auth_method.as_deref()
    }

    pub(crate) fn authenticating_again(&self) -> bool {
        self.extra.as_ref().is_some_and(|e| e.authenticating_again)
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use crate::base::handle::SessionHandle;
    use crate::session::Session;

    /// Bytes of the counters of an [`Arc`], or of the rounding by an allocator.
    const OVERHEAD: usize = 16;

    /// A broker has one of each for every idle client: state that only few clients have belongs
    /// into a separate box.
    #[test]
    fn an_idle_connection_takes_little() {
        let sizes = [
            size_of::<Option<Session>>(),
            size_of::<Option<Conn>>(),
            OVERHEAD + size_of::<SessionHandle>(),
            size_of::<Origin>(),
        ];
        assert!(sizes.iter().sum::<usize>() <= 712, "{sizes:?}");
    }
}
