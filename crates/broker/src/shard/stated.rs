//! The urgency that a publication states, and how far the broker follows it.

use std::sync::Arc;

use punctual_codec::{Properties, RawPublish};
use punctual_model::{Answer, MessageSize, Requirements};

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::base::notes::UrgencyTrust;
use crate::egress::Stamp;
use crate::hub::{Event, Hub, Output};
use crate::index::matched::Matched;
use crate::urgency::{self, Asked, UrgencyRights, UrgencyRule};
use crate::watch::Watch;

/// Time between two log events about urgency that is not followed.
pub(super) const REPORT_INTERVAL: Nanos = Nanos::from_secs(10);

/// The facts that determine the urgency of a publication.
pub(super) struct StatedRequirements<'a> {
    pub(crate) route: u64,
    pub(super) topic: &'a [u8],
    pub(crate) properties: Properties<'a>,
    pub(crate) rule: Option<&'a UrgencyRule>,
    /// How far the stated urgency is followed, according to a neighbour.
    pub(super) trust: UrgencyTrust,
    pub(super) sizes: Sizes,
    /// The receivers.
    pub(super) matched: &'a Matched,
}

/// The requirements of a publication, and an error message for those that cannot be decoded.
pub(super) fn asked(
    hub: &mut Hub,
    id: ConnId,
    stated: &StatedRequirements<'_>,
) -> Option<(Asked, Option<String>)> {
    let conn = hub.outlets.conns.get_mut(id.slot)?;
    let mut error = None;
    let own = match stated.trust {
        UrgencyTrust::Nothing => Ok(Requirements::NONE),
        UrgencyTrust::All | UrgencyTrust::UpTo(_) => urgency::stated(stated.properties),
    };
    let own = own.unwrap_or_else(|wrong| {
        error = Some(wrong.to_string());
        Requirements::NONE
    });
    let default = conn
        .extra
        .as_ref()
        .map_or(Requirements::NONE, |e| e.default);
    let permissions = conn.permissions.clone();
    let own = own.or(default);
    let rights = || {
        let Some(permissions) = permissions else {
            return UrgencyRights::ALL;
        };
        let cached = &mut conn.extra().rights;
        match cached {
            Some((known, rights)) if *known == stated.route => *rights,
            _ => {
                let topic = std::str::from_utf8(stated.topic).unwrap_or_default();
                cached.insert((stated.route, permissions.urgency(topic))).1
            }
        }
    };
    let asked = urgency::asked(own, stated.rule, || stated.trust.limit(rights()));
    Some((asked, error))
}

/// The real-time requirements of a publication, if it states any that are permitted.
pub(super) fn requirements_of(
    hub: &mut Hub,
    id: ConnId,
    stated: &StatedRequirements<'_>,
) -> Option<Requirements> {
    let requirements = asked(hub, id, stated)?.0.requirements;
    requirements.is_real_time().then_some(requirements)
}

/// Whether a publication is urgent, within the rights of its publisher.
pub(super) fn is_urgent(hub: &mut Hub, id: ConnId, stated: &StatedRequirements<'_>) -> bool {
    asked(hub, id, stated).is_some_and(|(asked, _)| asked.urgency.class().is_urgent())
}

/// Logs, at most once per [`REPORT_INTERVAL`], that a client's stated urgency is not followed.
pub(crate) fn report_urgency(hub: &mut Hub, id: ConnId, why: &str, now: Nanos) {
    if now < hub.urgency_reported {
        return;
    }
    hub.urgency_reported = now + REPORT_INTERVAL;
    let session = hub.outlets.conns.get(id.slot).map(|conn| conn.session);
    if let Some(session) = session.and_then(|slot| hub.sessions.get(slot)) {
        hub.outlets
            .outputs
            .push(Output::Event(Event::UrgencyIgnored {
                client_id: session.handle.client_id.clone(),
                reason: why.to_owned(),
            }));
    }
}

/// The decision about a message with stated requirements.
pub(super) enum UrgencyDecision {
    /// The message is delivered, perhaps as one of a watched admitted flow, perhaps with an answer
    /// for its publisher.
    Go(Stamp, Option<Arc<Watch>>, Option<Answer>),
    /// The message is refused, or dropped because it does not conform to its declared flow.
    Refuse(Answer),
}

/// Sizes in bytes that determine a flow's frames.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) message: MessageSize,
    pub(super) packet: usize,
}

impl Sizes {
    pub(super) fn of(raw: &RawPublish<'_>, packet: usize) -> Self {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Self {
            message: MessageSize {
                payload: length(raw.payload),
                properties: length(raw.properties.as_bytes()),
            },
            packet,
        }
    }
}
