//! Whether receivers of a publication can take it now.

use std::sync::atomic::Ordering;

use punctual_codec::QoS;

use crate::hub::Hub;
use crate::index::target::Target;
use crate::publication::Publication;

pub(crate) fn is_congested(target: &Target) -> bool {
    target.session.congested.load(Ordering::Acquire)
}

/// Whether a receiver is the publisher itself.
pub(super) fn is_own(target: &Target, publication: &Publication<'_>) -> bool {
    target.session.number == publication.publisher
}

/// Whether a receiver gets the publication with QoS above 0.
pub(super) fn is_kept(target: &Target, publication: &Publication<'_>) -> bool {
    publication.qos.min(target.qos) != QoS::AtMostOnce
}

/// Whether a receiver can keep a publication, if it has to.
pub(super) fn has_room(hub: &Hub, target: &Target, publication: &Publication<'_>) -> bool {
    let need = publication.need(target);
    if !is_kept(target, publication) {
        true
    } else if target.session.shard == hub.index {
        hub.has_room(target, need)
    } else {
        hub.may_have_room(&target.session, need)
    }
}

/// Whether a session is that of a neighbour.
pub(super) fn is_neighbour(hub: &Hub, session: u32) -> bool {
    let session = hub.sessions.get(session);
    session.is_some_and(|session| session.handle.link)
}
