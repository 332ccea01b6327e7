//! Acknowledgements to the publisher of a message.

use punctual_codec::{Ack, Packet, PacketType, PropertyBuf, QoS, RawPublish, ReasonCode};
use punctual_model::Answer;

use crate::answers::put_answer;
use crate::base::connection::ConnId;
use crate::base::durability::StoreTrouble;
use crate::hub::Hub;
use crate::journal::answers::After;
use crate::session::gist;
use crate::shard::{Fail, Next};

/// Answers a PUBLISH by its QoS, after the commit `after` if there is one.
pub(super) fn acknowledge(
    hub: &mut Hub,
    id: ConnId,
    raw: &RawPublish<'_>,
    session: u32,
    reason: ReasonCode,
    mut after: Option<After>,
) -> Next {
    let kind = match raw.qos {
        QoS::AtMostOnce => return pause_or_go_on(hub, id),
        QoS::AtLeastOnce => PacketType::PubAck,
        QoS::ExactlyOnce => {
            let v5 = hub.outlets.conns.get(id.slot).is_some_and(|conn| conn.v5());
            // A refusal in MQTT 5 ends the handshake; before, PUBREL follows.
            if !reason.is_error() || !v5 {
                after = await_release(hub, id, raw, session, after);
            }
            PacketType::PubRec
        }
    };
    hub.answer(id.slot, kind, raw.packet_id, reason, after);
    pause_or_go_on(hub, id)
}

/// Notes a QoS 2 message until its PUBREL arrives, and counts it for its connection. Returns the
/// commit for which its PUBREC waits, which is `after` for the message.
pub(super) fn await_release(
    hub: &mut Hub,
    id: ConnId,
    raw: &RawPublish<'_>,
    session: u32,
    after: Option<After>,
) -> Option<After> {
    let after = note_reception(hub, raw, session, after);
    if let Some(conn) = hub.outlets.conns.get_mut(id.slot) {
        conn.unreleased = conn.unreleased.saturating_add(1);
    }
    after
}

/// Notes the reception of a QoS 2 message, also in the store if the message is stored. Returns the
/// commit for which its PUBREC waits.
pub(super) fn note_reception(
    hub: &mut Hub,
    raw: &RawPublish<'_>,
    session: u32,
    after: Option<After>,
) -> Option<After> {
    let is_client = hub
        .sessions
        .get(session)
        .is_some_and(|it| it.link.is_none());
    let gist = match is_client && hub.directory.federation().is_some() {
        true => gist(raw.topic, raw.payload),
        false => 0,
    };
    hub.note_received(session, raw.packet_id, gist, after)
}

/// As [`acknowledge`], and sends an MQTT 5 publisher the answer about its stated requirements.
pub(super) fn acknowledge_with(
    hub: &mut Hub,
    id: ConnId,
    raw: &RawPublish<'_>,
    session: u32,
    reason: ReasonCode,
    answer: &Answer,
    mut after: Option<After>,
) -> Next {
    let mut properties = PropertyBuf::new();
    let told = hub.outlets.conns.get(id.slot).is_some_and(|conn| {
        conn.v5()
            && conn.problem_information
            && put_answer(&mut properties, answer, 4, conn.max_packet)
    });
    let kind = match raw.qos {
        QoS::AtLeastOnce => PacketType::PubAck,
        QoS::ExactlyOnce => PacketType::PubRec,
        QoS::AtMostOnce => return pause_or_go_on(hub, id),
    };
    if !told {
        return acknowledge(hub, id, raw, session, reason, after);
    }
    if kind == PacketType::PubRec && !reason.is_error() {
        after = await_release(hub, id, raw, session, after);
    }
    let ack = Ack {
        packet_id: raw.packet_id,
        reason,
        properties: properties.as_properties(),
    };
    let packet = match kind {
        PacketType::PubAck => Packet::PubAck(ack),
        _ => Packet::PubRec(ack),
    };
    let about = (kind, raw.packet_id, !reason.is_error());
    hub.answer_with(id.slot, &packet, about, after);
    pause_or_go_on(hub, id)
}

#[inline]
pub(super) fn pause_or_go_on(hub: &mut Hub, id: ConnId) -> Next {
    match hub.outlets.conns.get(id.slot) {
        Some(conn) if conn.paused > 0 => Next::Pause,
        Some(_) => Next::Packet,
        None => Next::Closed,
    }
}

/// Refuses a message that cannot be kept: with a reason code where the
/// protocol has one, by closing the connection where it has not.
pub(super) fn refuse(
    hub: &mut Hub,
    id: ConnId,
    raw: &RawPublish<'_>,
    session: u32,
    why: &'static str,
) -> Result<Next, Fail> {
    let v5 = hub.outlets.conns.get(id.slot).is_some_and(|conn| conn.v5());
    if v5 || raw.qos == QoS::AtMostOnce {
        return Ok(acknowledge(
            hub,
            id,
            raw,
            session,
            ReasonCode::QuotaExceeded,
            None,
        ));
    }
    Err(Fail::new(ReasonCode::QuotaExceeded, why))
}

/// Refuses a message that cannot be stored now; otherwise like [`refuse`].
#[cold]
pub(super) fn refuse_unstored(
    hub: &mut Hub,
    id: ConnId,
    raw: &RawPublish<'_>,
    trouble: StoreTrouble,
) -> Result<Next, Fail> {
    if !hub.outlets.conns.get(id.slot).is_some_and(|conn| conn.v5()) {
        hub.stats.refused_store += 1;
        return Err(Fail::new(trouble.reason(), trouble.why()));
    }
    let kind = match raw.qos {
        QoS::ExactlyOnce => PacketType::PubRec,
        _ => PacketType::PubAck,
    };
    hub.send_refusal(id.slot, kind, raw.packet_id, trouble);
    Ok(pause_or_go_on(hub, id))
}
