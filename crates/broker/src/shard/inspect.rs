//! Inspection for the management interface: clients and their subscriptions.
//!
//! A shard serves messages on the same thread, so all work over all sessions is done in pieces of a
//! bounded size, and only requested data is copied. A client that exists during a whole scan is
//! seen exactly once; one that appears or disappears meanwhile may be seen or not, and so may
//! subscriptions of a client that ends some of them meanwhile.

use std::sync::Arc;

use punctual_mesh::transfer::Record;

use super::Shard;
use crate::Nanos;
use crate::hub::{ClientInfo, Hub, SubscriptionInfo};
use crate::session::{Session, Subscription};

/// The position at which a scan continues; the default is the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanPosition {
    place: u32,
    subscription: usize,
}

/// A client, connected or not.
#[derive(Debug, Clone, Copy)]
pub struct ClientView<'a> {
    hub: &'a Hub,
    session: &'a Session,
}

/// A subscription of a client.
#[derive(Debug, Clone, Copy)]
pub struct SubscriptionView<'a> {
    session: &'a Session,
    subscription: &'a Subscription,
}

impl Shard {
    /// The client with that identifier, if its session lives here.
    pub fn client(&self, client_id: &str) -> Option<ClientView<'_>> {
        let hub = &self.hub;
        let session = hub.sessions.get(hub.sessions.named(client_id)?)?;
        Some(ClientView { hub, session })
    }

    /// Passes the clients in the next `steps` places from `from` on to `visit`, in no order.
    /// Returns the position at which to continue, `None` at the end.
    pub fn scan_clients(
        &self,
        from: ScanPosition,
        steps: u32,
        mut visit: impl FnMut(ClientView<'_>),
    ) -> Option<ScanPosition> {
        let hub = &self.hub;
        let end = from.place.saturating_add(steps).min(hub.sessions.places());
        for session in (from.place..end).filter_map(|place| hub.sessions.get(place)) {
            visit(ClientView { hub, session });
        }
        (end < hub.sessions.places()).then_some(ScanPosition {
            place: end,
            subscription: 0,
        })
    }

    /// Passes subscriptions from `from` on to `visit`, in no order, in at most `steps` steps: one
    /// for each subscription, and one for each place without any. Returns the position at which to
    /// continue, `None` at the end.
    pub fn scan_subscriptions(
        &self,
        from: ScanPosition,
        steps: usize,
        mut visit: impl FnMut(SubscriptionView<'_>),
    ) -> Option<ScanPosition> {
        let ScanPosition {
            mut place,
            subscription: mut first,
        } = from;
        let mut left = steps;
        while place < self.hub.sessions.places() {
            if left == 0 {
                return Some(ScanPosition {
                    place,
                    subscription: first,
                });
            }
            let Some(session) = self.hub.sessions.get(place) else {
                (place, first, left) = (place + 1, 0, left - 1);
                continue;
            };
            let client = ClientView {
                hub: &self.hub,
                session,
            };
            let taken = session.subscriptions.len().saturating_sub(first).max(1);
            match client.scan_subscriptions(first, left, &mut visit) {
                Some(next) => (first, left) = (next, 0),
                None => (place, first, left) = (place + 1, 0, left - taken),
            }
        }
        None
    }
}

impl ClientView<'_> {
    /// Client identifier.
    pub fn client_id(&self) -> &Arc<str> {
        &self.session.handle.client_id
    }

    /// Whether this is the client's session, or a copy or stub of it. `None` where sessions do not
    /// move, and for the queue of a link to a neighbour.
    pub fn record(&self) -> Option<&Record> {
        self.session.record()
    }

    /// Whether the client is connected.
    pub fn is_connected(&self) -> bool {
        self.session.conn.is_some()
    }

    /// Passes at most `steps` of the client's subscriptions to `visit`, in no order, from the one
    /// at `first` on. Returns the position at which to continue, `None` at the end.
    pub fn scan_subscriptions(
        &self,
        first: usize,
        steps: usize,
        mut visit: impl FnMut(SubscriptionView<'_>),
    ) -> Option<usize> {
        let Self { session, .. } = self;
        // Some may have gone since the last piece.
        let rest = session.subscriptions.get(first..).unwrap_or_default();
        for subscription in rest.iter().take(steps) {
            visit(SubscriptionView {
                session,
                subscription,
            });
        }
        (rest.len() > steps).then_some(first + steps)
    }

    /// A copy of the client's data.
    pub fn info(&self) -> ClientInfo {
        let Self { hub, session } = self;
        let conn = session.conn.and_then(|slot| hub.outlets.conns.get(slot));
        ClientInfo {
            client_id: session.handle.client_id.clone(),
            username: session.username.clone(),
            peer: conn.and_then(|c| c.meta.peer()),
            version: conn.map(|c| c.version),
            listener: conn.map(|c| c.meta.listener),
            connected: conn.is_some(),
            connected_at: conn.map_or(Nanos(0), |c| c.connected_at),
            keep_alive: conn.map_or(0, |c| c.keep_alive),
            session_expiry: session.expiry,
            subscriptions: session.subscriptions.len(),
            queued_messages: session.queue.len(),
            queued_bytes: session.queue.bytes(),
            dropped: session
                .losses
                .as_ref()
                .map_or(0, |losses| losses.count()[0]),
            inflight: session.window.open() as usize,
            buffered: conn.map_or(0, |c| c.out.len()),
            slow: conn.is_some_and(|c| c.slow),
            replaying: !session.replays.is_empty(),
            shard: hub.index,
        }
    }
}

impl SubscriptionView<'_> {
    /// Client identifier.
    pub fn client_id(&self) -> &Arc<str> {
        &self.session.handle.client_id
    }

    /// Topic filter, with share prefix.
    pub fn filter(&self) -> &str {
        &self.subscription.filter
    }

    /// A copy of the subscription's data.
    pub fn info(&self) -> SubscriptionInfo {
        let Subscription {
            filter,
            options,
            id,
            ..
        } = self.subscription;
        SubscriptionInfo {
            client_id: self.client_id().clone(),
            filter: filter.clone(),
            qos: options.qos as u8,
            no_local: options.no_local,
            retain_as_published: options.retain_as_published,
            id: *id,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Config, ConnMeta, Directory};

    /// A shard with `clients` clients of which number `n` has `n % 5`
    /// subscriptions.
    fn shard(clients: usize) -> Shard {
        let mut shard = Shard::new(Directory::new(1), 0, Arc::new(Config::default()), Nanos(0));
        for n in 0..clients {
            let meta = ConnMeta {
                allow_anonymous: true,
                ..ConnMeta::default()
            };
            let id = shard.open(meta, Nanos(0));
            let mut bytes = b"\x10\x10\0\x04MQTT\x04\x02\0\0\0\x04".to_vec();
            bytes.extend_from_slice(format!("{n:04}").as_bytes());
            for filter in 0..n % 5 {
                bytes.extend_from_slice(b"\x82\x06\0\x01\0\x01");
                bytes.extend_from_slice(&[b'0' + filter as u8, 0]);
            }
            shard.receive(id, &bytes, Nanos(0));
        }
        shard
    }

    #[test]
    fn scans_show_everything_once_however_large_the_pieces() {
        let shard = shard(300);
        for steps in [1, 2, 3, 7, 128, 5000] {
            let (mut clients, mut seen) = (BTreeSet::new(), 0);
            let mut next = Some(ScanPosition::default());
            while let Some(from) = next {
                let before = seen;
                next = shard.scan_clients(from, steps, |client| {
                    seen += 1;
                    assert!(client.is_connected());
                    clients.insert(client.client_id().clone());
                });
                assert!(seen - before <= steps);
            }
            assert_eq!((clients.len(), seen), (300, 300));

            let (mut subscriptions, mut seen) = (BTreeSet::new(), 0);
            let mut next = Some(ScanPosition::default());
            while let Some(from) = next {
                let before = seen;
                next = shard.scan_subscriptions(from, steps as usize, |subscription| {
                    seen += 1;
                    let id = subscription.client_id().clone();
                    subscriptions.insert((id, subscription.filter().to_owned()));
                });
                assert!(seen - before <= steps);
            }
            assert_eq!((subscriptions.len(), seen), (600, 600));
        }
    }

    #[test]
    fn a_client_is_found_by_its_identifier() {
        let shard = shard(10);
        let info = shard.client("0009").map(|client| client.info());
        assert_eq!(info.map(|info| info.subscriptions), Some(4));
        assert!(shard.client("0010").is_none());
    }
}
