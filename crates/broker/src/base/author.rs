//! The publisher of a retained message, on whose rights it depends.

use std::sync::Arc;

/// The publisher of a message: the user and the client that its rights depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Author {
    pub(crate) user: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    /// The listener of the client's connection; not stored, since listeners may differ after a
    /// restart.
    pub(crate) listener: Option<u16>,
}

impl Author {
    /// Appends the author in the form that [`Self::read`] decodes.
    pub(crate) fn put(&self, out: &mut impl Extend<u8>) {
        let user = self.user.as_deref();
        let length = user.map_or(0, |user| user.len() as u32 + 1);
        out.extend(length.to_le_bytes());
        out.extend(user.unwrap_or_default().bytes());
        out.extend(self.client_id.bytes());
    }

    /// Decodes the output of [`Self::put`], if it is complete.
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
