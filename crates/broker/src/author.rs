//! The publisher of a retained message. The broker stops delivering the message when its publisher
//! loses the right to publish to its topic.

use std::sync::Arc;

use crate::access::may_publish;
use crate::base::author::Author;
use crate::{Budget, Directory, Permissions};

/// Units of work for looking up the rights of a publisher.
const RIGHTS: u64 = 16;

/// The rights of one author, the last one that was looked up: consecutive retained messages often
/// have the same author.
#[derive(Debug, Default)]
pub(crate) struct AuthorRights {
    last: Option<CachedRights>,
}

/// An author, and its rights; `None` for all rights.
type CachedRights = (Arc<Author>, Option<Arc<dyn Permissions>>);

impl AuthorRights {
    /// Forgets the cached rights, which may have changed.
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
        let is_known = |(known, _): &CachedRights| Arc::ptr_eq(known, author);
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
