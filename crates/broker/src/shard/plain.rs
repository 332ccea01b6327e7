//! The fast path for QoS 0: messages on a known topic, without properties, or, from a
//! neighbour in a mesh, with a name only.
//!
//! [`Shard::publish_packet`] does the same for any message, with several times as much code. For a
//! single message, little of that code is in the processor's caches, so that fetching it takes
//! longer than executing it.

use punctual_codec::Frame;

use super::Shard;
use super::row::Row;
use super::run::Run;
use crate::Nanos;
use crate::base::connection::ConnId;
use crate::egress::{Class, SHARE_FROM};
use crate::hub::{Hub, State};
use crate::index::target::Target;
use crate::message::Parts;
use crate::publication::Publication;
use crate::sequence::Number;
use crate::shard::acknowledge::pause_or_go_on;
use crate::shard::deliver::{DependentSender, deliver_all};

impl Shard {
    /// Delivers a publication with QoS 0 and no properties on a known topic, in a mesh only if all
    /// receivers are on this shard. `None` leaves the message to [`Self::publish_packet`], which
    /// makes all decisions that this function relies on.
    pub(super) fn publish_plain(
        &mut self,
        id: ConnId,
        frame: Frame<'_>,
        now: Nanos,
    ) -> Option<Run> {
        #[cfg(test)]
        if self.one_by_one {
            return None;
        }
        let Self { hub, routes, .. } = self;
        let conn = hub.outlets.conns.get_mut(id.slot)?;
        if !matches!(conn.state, State::Connected) || conn.states {
            return None;
        }
        let (publisher, v5) = (conn.number, conn.v5());
        let mut row = Row::of(frame, v5, conn.link)?;
        let known = row.topic(conn.aliases_in())?;
        let route = routes.find(known, conn.route, &hub.directory)?;
        conn.set_route(route, routes.get(route).topic());
        if !conn.route_allowed {
            return None;
        }
        let packet = row.packet(frame.bytes)?;
        if let (Some(alias), Some(name)) = (row.alias, packet.name)
            && row.origin != Some(name.origin)
        {
            // Each function that handles the packet notes the same origin.
            conn.note_origin(alias, name.origin);
        }
        let route = routes.get(route);
        let matched = &route.matched;
        // The receivers, if all are on this shard.
        let targets: Option<&[Target]> = match &*matched.shards {
            _ if !matched.groups.is_empty() => None,
            [] => Some(&[]),
            [(shard, targets)] if *shard == hub.index => Some(targets),
            _ => None,
        };
        let size = packet.payload.len();
        if route.rule.is_some() || matched.crowd || size >= SHARE_FROM {
            return None;
        }
        let parts = Parts {
            topic: route.topic().as_bytes(),
            properties: &[],
            expiry: None,
            payload: packet.payload,
            shared: None,
        };
        let frame = (!row.named).then_some((frame.bytes, v5));
        let Some(targets) = targets else {
            if hub.directory.federation().is_some() {
                return None;
            }
            let mut publication = Publication {
                frame,
                ..Publication::plain(parts, publisher)
            };
            // A message with QoS 0 is never refused.
            let _ = deliver_all(
                hub,
                matched,
                &mut publication,
                Some(id),
                now,
                DependentSender::Nobody,
            );
            return Some(delivered(hub, id, size, packet.len));
        };
        let mut name = None;
        if let Some(federation) = hub.directory.federation() {
            if federation.relay().is_some() {
                return None;
            }
            name = match packet.name {
                // The message is not refused after this point: each noted message is delivered.
                Some(name) => {
                    let is_new = !hub.directory.is_own_will(name) && federation.note_new(name);
                    is_new.then_some(Some(name))?
                }
                None if targets.iter().any(|target| target.session.link) => {
                    hub.directory.new_name()
                }
                None => None,
            };
        }
        let plain = Plain {
            parts,
            frame,
            publisher,
            name: name.map(Number::from),
        };
        hub.work.offered += targets.len() as u64;
        for target in targets {
            if let Some(receiver) = hub.deliver_plain(&plain, target, now) {
                hub.wait_for(id, receiver);
            }
        }
        Some(delivered(hub, id, size, packet.len))
    }
}

/// Counts a message, with the bytes of its payload and of its packet.
#[inline]
fn delivered(hub: &mut Hub, id: ConnId, payload: usize, packet: usize) -> Run {
    hub.stats.publishes_received_qos0 += 1;
    hub.stats.publish_bytes_received += payload as u64;
    Run {
        messages: 1,
        bytes: packet,
        next: pause_or_go_on(hub, id),
    }
}

/// A publication with QoS 0, without properties, not retained and not urgent.
struct Plain<'a> {
    parts: Parts<'a>,
    /// The packet as received, and whether it is MQTT 5.
    frame: Option<(&'a [u8], bool)>,
    publisher: u64,
    name: Option<Number>,
}

impl Hub {
    /// Delivers to one receiver of this shard. Returns like [`Self::deliver`].
    #[inline]
    fn deliver_plain(&mut self, plain: &Plain<'_>, target: &Target, now: Nanos) -> Option<u32> {
        if target.no_local && plain.publisher == target.session.number {
            return None;
        }
        match self.takes_at_once(target) {
            Some(slot) => {
                let number = plain.name.filter(|_| target.numbered);
                self.put_at_once(slot, &plain.parts, plain.frame, target, number, now)
            }
            None => {
                let mut publication = Publication {
                    frame: plain.frame,
                    name: plain.name,
                    ..Publication::plain(plain.parts.clone(), plain.publisher)
                };
                self.deliver(&mut publication, target, now)
            }
        }
    }

    /// The connection of a receiver to which a plain message is written at once, whatever the
    /// message; the message's number, if it has one, is its name.
    #[inline]
    fn takes_at_once(&self, target: &Target) -> Option<u32> {
        let session = self.session_of(target)?;
        let slot = session.conn?;
        let conn = self.outlets.conns.get(slot)?;
        let takes = session.classes & (1 << Class::Normal as u8) != 0
            && session.history.is_none()
            && target.numbered == session.link.is_some()
            && !session.queue.has_qos0()
            && !conn.slow
            && conn.receive_max > 0;
        takes.then_some(slot)
    }
}
