//! Storing a publication as the retained message of its topic.

use crate::hub::Hub;
use crate::publication::Publication;
use crate::retained::Entry;

/// Stores a publication as the retained message of its topic.
pub(crate) fn retain(
    hub: &mut Hub,
    entry: Entry<'_>,
    publication: &mut Publication<'_>,
    version: u64,
) {
    let message = publication.message(&mut hub.messages).to_be_retained();
    if let Some(journal) = &mut hub.journal {
        journal.retain(publication, version, entry.is_stored());
    }
    entry.set(message, version, publication.author.clone());
}

pub(super) fn has_retained_room(
    hub: &Hub,
    entry: &Entry<'_>,
    publication: &Publication<'_>,
) -> bool {
    let limits = &hub.config.limits;
    publication.parts.payload.is_empty()
        || entry.has_room(
            publication.size(),
            limits.max_retained_messages,
            limits.max_retained_bytes,
        )
}
