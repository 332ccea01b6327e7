//! The stored form of the content of a message, and of a message whose content is not needed any
//! more.

use punctual_codec::QoS;
use punctual_store::op::{Content, EntryOp};

use crate::journal::wall::Offset;
use crate::publication::Publication;
use crate::sequence::Number;

/// The entry of a QoS 2 message without content, which only waits for PUBCOMP.
pub(crate) fn released(session: u64, entry: u64) -> EntryOp<'static> {
    EntryOp {
        session,
        entry,
        message: 0,
        qos: QoS::ExactlyOnce as u8,
        retain: false,
        subscription_ids: (&[][..]).into(),
        number: None,
    }
}

/// Calls `say` with the stored form of the content of a publication.
pub(crate) fn with_content<R>(
    publication: &Publication<'_>,
    offset: Offset,
    say: impl FnOnce(Content<'_>) -> R,
) -> R {
    let parts = &publication.parts;
    let name = publication.name.and_then(Number::name_key);
    let name = name.or_else(|| Some(publication.message.as_ref()?.name));
    let stamp = offset.stamp(publication.stamp).named(name.unwrap_or(0));
    let stamp = stamp.by(publication.author.as_deref());
    say(Content {
        topic: topic_of(publication),
        payload: parts.payload,
        properties: parts.properties,
        publisher: publication.publisher,
        qos: publication.qos as u8,
        retain: publication.retain,
        expires: offset.deadline(publication.expires),
        stamp: stamp.bytes(),
    })
}

/// The topic of a publication. Topics that were routed are valid UTF-8.
pub(crate) fn topic_of<'a>(publication: &Publication<'a>) -> &'a str {
    std::str::from_utf8(publication.parts.topic).unwrap_or_default()
}
