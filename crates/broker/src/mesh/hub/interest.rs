//! Notifications of the federation about subscriptions that end, and about links that are down.

use crate::base::connection::ConnId;
use crate::base::name::peer_of;
use crate::hub::Hub;
use crate::mesh::federation::LinkNews;
use crate::session::Subscription;

/// A filter whose interest is held, and whether it was reported as that of a persistent session.
type Wanted = (Box<str>, bool);

impl Hub {
    /// Reports subscriptions that were removed from the index.
    pub(crate) fn end_interest(&self, subscriptions: &[Subscription]) {
        if let Some(federation) = self.directory.federation() {
            let gone = subscriptions.iter();
            gone.for_each(|gone| federation.unsubscribed(&gone.filter, gone.persistent));
        }
    }

    /// The connection of a neighbour has ended: drops its state, and notifies the federation.
    pub(crate) fn link_is_down(&mut self, conn: ConnId, slot: u32, why: &str) {
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let client_id = session.handle.client_id.clone();
        if let Some(link) = &mut session.link {
            link.held = None;
            link.told.clear();
            // The neighbour sends these publications again.
            link.parked.clear();
            link.early.clear();
        }
        if let Some(custody) = &mut self.links.custody {
            custody
                .unacknowledged
                .retain(|_, (other, _)| *other != conn);
        }
        if let (Some(federation), Some(peer)) = (self.directory.federation(), peer_of(&client_id)) {
            federation.link(conn, peer, LinkNews::Down(why));
        }
    }

    /// Holds the interest of a session that is replaced: the federation sees no end of its
    /// subscriptions before those of the next session have begun. [`Self::end_wanted`] releases
    /// them.
    pub(crate) fn keep_wanted(&self, slot: u32) -> Vec<Wanted> {
        let (federation, session) = (self.directory.federation(), self.sessions.get(slot));
        let (Some(federation), Some(session)) = (federation, session) else {
            return Vec::new();
        };
        let wanted = session.subscriptions.iter().map(|subscription| {
            federation.subscribed(&subscription.filter, subscription.persistent);
            (subscription.filter.clone(), subscription.persistent)
        });
        wanted.collect()
    }

    pub(crate) fn end_wanted(&self, wanted: Vec<Wanted>) {
        if let Some(federation) = self.directory.federation() {
            for (filter, persistent) in wanted {
                federation.unsubscribed(&filter, persistent);
            }
        }
    }
}
