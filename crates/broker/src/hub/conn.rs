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

/// How far a connection is.
#[derive(Debug)]
pub(crate) enum State {
    /// Nothing but a CONNECT is accepted.
    Opening,
    /// It waits for an answer from outside.
    Authenticating(Box<Authenticating>),
    /// The session may be at another broker.
    Awaiting(Box<Awaited>),
    /// A session is attached.
    Connected,
}

/// A client that proves who it is.
#[derive(Debug)]
pub(crate) struct Authenticating {
    /// The body of CONNECT.
    pub(crate) body: Box<[u8]>,
    /// Gone when it does not wait any more.
    pub(crate) waits: Arc<()>,
}

/// A client that is let in when its session has come.
#[derive(Debug)]
pub(crate) struct Awaited {
    /// The body of CONNECT.
    pub(crate) body: Box<[u8]>,
    /// Who it was found to be.
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
    /// In the list of connections with something urgent to say.
    pub(crate) urgent: bool,
    /// Most urgent class it was sent, at least normal; bulk if it takes nothing
    /// else.
    pub(crate) class: Class,
    pub(crate) congested: bool,
    pub(crate) slow: bool,
    /// It has not taken everything that was written, and what has waited since
    /// has not all been sent.
    pub(crate) behind: bool,
    /// A timer looks whether congestion has lasted for long enough.
    pub(crate) pause_armed: bool,
    /// Whether reason strings may be sent with everything.
    pub(crate) problem_information: bool,
    /// Receivers (and other reasons) that hold this publisher back.
    pub(crate) paused: u32,
    /// Whether one of the reasons is that it does not read what it is sent.
    pub(crate) unread: bool,
    pub(crate) session: u32,
    /// Number of the session, as publisher of messages.
    pub(crate) number: u64,
    /// When its last whole packet came, or time began in which one may come.
    pub(crate) last_received: Nanos,
    /// It was not read for a while, and is again: its silence counts from the next look on.
    pub(crate) resumed: bool,
    /// It said in CONNECT that it is a bridge before MQTT 5.
    pub(crate) bridge: bool,
    pub(crate) keep_alive: u16,
    pub(crate) receive_max: u16,
    /// QoS 2 messages received on this connection and not released. What an
    /// earlier connection left does not count (section 4.9).
    pub(crate) unreleased: u16,
    pub(crate) max_packet: u32,
    /// Route of the last publication, and whether it was allowed.
    pub(crate) route: u64,
    pub(crate) route_allowed: bool,
    /// What is promised about what it publishes.
    pub(crate) durability: Durability,
    /// Acknowledgements to it that wait for commits.
    pub(crate) held: HeldAnswers,
    /// Whether nothing is sent to it until its session is committed.
    pub(crate) corked: bool,
    /// Whether CONNECT stated requirements for all publications, or the session
    /// has flows.
    pub(crate) states: bool,
    /// Priority of the messages of admitted flows that it sends, as far as it
    /// sends nothing else.
    pub(crate) promised: Option<u8>,
    /// It has sent something urgent lately.
    pub(crate) sends_urgent: bool,
    /// When it has last, milliseconds.
    pub(crate) urgent_at: u32,
    /// Its session is new, and nothing has come since CONNACK said so.
    pub(crate) unheard: bool,
    /// A neighbour broker is at the other end.
    pub(crate) link: bool,
    /// A timer looks after acknowledgements to it that wait for company.
    pub(crate) answers_armed: bool,
    pub(crate) alias_max: u16,
    pub(crate) out: Egress,
    pub(crate) permissions: Option<Arc<dyn Permissions>>,
    pub(crate) connected_at: Nanos,
    pub(crate) meta: Box<Origin>,
    /// What few connections have.
    pub(crate) extra: Option<Box<Extra>>,
}

/// What few connections have; made when needed.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) aliases_in: Vec<Alias>,
    /// Those that the broker has defined.
    pub(crate) aliases_out: Aliases,
    /// Publishers that wait for this receiver,
    pub(crate) waiters: Vec<ConnId>,
    /// and when its congestion has lasted for long enough.
    pub(crate) congested_until: Nanos,
    /// For how long it may last.
    pub(crate) congested_for: Nanos,
    /// How many messages its CONNACK says that its session has lost.
    pub(crate) told_dropped: u64,
    /// Enhanced authentication method in use.
    pub(crate) auth_method: Option<Box<str>>,
    /// Whether an authentication after CONNECT is under way.
    pub(crate) authenticating_again: bool,
    /// DISCONNECT, to be sent last.
    pub(crate) farewell: Vec<u8>,
    /// What CONNECT states for all publications.
    pub(crate) default: Requirements,
    /// What may be stated on the topic of the last publication.
    pub(crate) rights: Option<(u64, UrgencyRights)>,
    /// Its client as a publisher, once it has published a message that is retained.
    pub(crate) author: Option<Arc<Author>>,
    /// What has been decided about the SUBSCRIBE that comes next.
    pub(crate) subscribed: Option<SubscriptionDecision>,
}

impl Conn {
    /// Notes the route of the last publication, and whether the client may publish to its topic. What
    /// was found for the last route is not looked for again.
    #[inline]
    pub(crate) fn set_route(&mut self, route: u64, topic: &str) {
        if self.route != route {
            self.route = route;
            self.route_allowed = may_publish(self.permissions.as_deref(), topic);
        }
    }

    /// Whether messages on a topic may be sent to it.
    pub(crate) fn may_receive(&self, topic: &[u8]) -> bool {
        may_receive(self.permissions.as_deref(), topic)
    }

    /// Silence after which it is gone (section 3.1.2.10).
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

    /// Of the connection in that slot.
    #[inline]
    pub(crate) fn id(&self, slot: u32) -> ConnId {
        ConnId {
            slot,
            generation: self.generation,
        }
    }

    /// Whether something waits that it did not take at once.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.behind && self.out.backlog() > 0
    }

    /// The aliases that the client has defined, that of alias 1 first.
    #[inline]
    pub(crate) fn aliases_in(&self) -> &[Alias] {
        self.extra.as_ref().map_or(&[], |extra| &extra.aliases_in)
    }

    /// Notes where a neighbour's last message under that alias was taken in.
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

    /// Whether the user name of its client, if it has one, is more than a claim.
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

    /// The counters of an [`Arc`], or what is left where an allocator rounds up.
    const OVERHEAD: usize = 16;

    /// A broker has one of each for every client, however little it says: what few clients have
    /// belongs into a box of its own.
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
