//! The publisher of a retained message. The broker stops delivering the message when its publisher
//! loses the right to publish to its topic.

use std::sync::Arc;

use crate::access::may_publish;
use crate::{Budget, Directory, Permissions};

/// Units of work of looking up the rights of a publisher.
const RIGHTS: u64 = 16;

/// The publisher of a message: the user and the client that its rights depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Author {
    pub(crate) user: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    /// The listener that it came by; not stored, since listeners are others after a restart.
    pub(crate) listener: Option<u16>,
}

impl Author {
    /// Appends it in the form of [`Self::read`].
    pub(crate) fn put(&self, out: &mut impl Extend<u8>) {
        let user = self.user.as_deref();
        let length = user.map_or(0, |user| user.len() as u32 + 1);
        out.extend(length.to_le_bytes());
        out.extend(user.unwrap_or_default().bytes());
        out.extend(self.client_id.bytes());
    }

    /// What [`Self::put`] wrote, if it is whole.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (user, client_id) = match u32::from_le_bytes(*length).checked_sub(1) {
            Some(length) => {
                let (user, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                (Some(std::str::from_utf8(user).ok()?.into()), rest)
            }
            None => (None, rest),
        };
        Some(Self {
            user,
            client_id: std::str::from_utf8(client_id).ok()?.into(),
            listener: None,
        })
    }
}

/// The rights of one author, the last one that was looked up: consecutive retained messages often have
/// the same author.
#[derive(Debug, Default)]
pub(crate) struct AuthorRights {
    last: Option<Known>,
}

/// An author, and what it may do; `None` for everything.
type Known = (Arc<Author>, Option<Arc<dyn Permissions>>);

impl AuthorRights {
    /// Rights may have changed.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// Whether the author may publish to the topic now.
    pub(crate) fn may_publish(
        &mut self,
        author: &Arc<Author>,
        topic: &str,
        directory: &Directory,
        budget: &mut Budget,
    ) -> bool {
        let is_known = |(known, _): &Known| Arc::ptr_eq(known, author);
        if !self.last.as_ref().is_some_and(is_known) {
            let user = author.user.as_deref();
            let permissions = match author.listener {
                None => directory.permissions_anywhere(user, &author.client_id),
                listener => directory.permissions(listener, user, &author.client_id),
            };
            budget.spend(if permissions.is_some() { RIGHTS } else { 1 });
            self.last = Some((author.clone(), permissions));
        }
        let permissions = self.last.as_ref().and_then(|(_, rights)| rights.as_deref());
        may_publish(permissions, topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn authors_are_read_as_written(user: Option<String>, client_id: String) {
            let author = Author {
                user: user.map(Into::into),
                client_id: client_id.into(),
                listener: None,
            };
            let mut bytes = Vec::new();
            author.put(&mut bytes);
            prop_assert_eq!(Author::read(&bytes), Some(author));
        }

        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = Author::read(&bytes);
        }
    }
}
