//! Rules for the client identifiers that a user may use, and for the ownership of sessions.

use std::sync::Arc;

/// Separator between the user name and the rest of an identifier with [`ClientIds::Prefix`]. User
/// names in a password file do not contain it, so that no name is the prefix of another user's
/// identifiers.
pub const SEPARATOR: char = ':';

/// Longest identifier that a packet can carry, in bytes.
const LONGEST: usize = u16::MAX as usize;

/// The client identifiers that a user may use. Clients without a user name count as one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientIds {
    /// Any identifier without a session of another user.
    #[default]
    Owner,
    /// The user name alone, subject to [`Self::Owner`]. Clients without a user name may use only
    /// identifiers that are assigned to them.
    User,
    /// The user name, alone or followed by [`SEPARATOR`] and any text, subject to [`Self::Owner`].
    /// Clients without a user name may use only identifiers that are assigned to them.
    Prefix,
    /// Any identifier. A session of another user ends, with all its queued messages.
    Any,
}

impl ClientIds {
    /// The reason why a user may not use an identifier that it has chosen, whichever user has a
    /// session with it.
    pub(crate) fn refuses(self, client_id: &str, user: Option<&str>) -> Option<&'static str> {
        let bound = match self {
            Self::Owner | Self::Any => return None,
            Self::User => user.is_some_and(|user| user == client_id),
            Self::Prefix => user.is_some_and(|user| {
                let rest = client_id.strip_prefix(user);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(SEPARATOR))
            }),
        };
        match self {
            _ if bound => None,
            Self::Prefix => Some(
                "the client identifier has to be the user name, or to begin with it and a colon \
                 (auth.client_id)",
            ),
            _ => Some("the client identifier has to be the user name (auth.client_id)"),
        }
    }

    /// Whether a session belongs to its user only: other users are refused while it exists.
    pub(crate) fn keep_owner(self) -> bool {
        self != Self::Any
    }

    /// Assigns an identifier to a client without one; `nonce` is different for each.
    pub(crate) fn assign(self, user: Option<&str>, nonce: [u8; 16]) -> Arc<str> {
        let own = format!("auto-{:032x}", u128::from_be_bytes(nonce));
        match user {
            // The client may connect with it again.
            Some(user) if self == Self::Prefix && user.len() + 1 + own.len() <= LONGEST => {
                format!("{user}{SEPARATOR}{own}").into()
            }
            _ => own.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn identifiers_are_bound_as_the_rule_says() {
        let cases = [
            // Identifier, user, whether `User` and `Prefix` allow it.
            ("alice", Some("alice"), true, true),
            ("alice:1", Some("alice"), false, true),
            ("alice:", Some("alice"), false, true),
            ("alice1", Some("alice"), false, false),
            ("Alice", Some("alice"), false, false),
            ("bob:alice", Some("alice"), false, false),
            ("ali", Some("alice"), false, false),
            ("alice", None, false, false),
            (":x", None, false, false),
        ];
        for (client_id, user, by_user, by_prefix) in cases {
            let allowed = |rule: ClientIds| rule.refuses(client_id, user).is_none();
            assert_eq!(allowed(ClientIds::User), by_user, "{client_id} {user:?}");
            assert_eq!(
                allowed(ClientIds::Prefix),
                by_prefix,
                "{client_id} {user:?}"
            );
            assert!(allowed(ClientIds::Owner) && allowed(ClientIds::Any));
        }
    }

    proptest! {
        #[test]
        fn who_has_an_assigned_identifier_may_come_back_with_it(user in "[^:]{1,20}", nonce: [u8; 16]) {
            let rule = ClientIds::Prefix;
            let assigned = rule.assign(Some(&user), nonce);
            prop_assert_eq!(rule.refuses(&assigned, Some(&user)), None);
        }

        #[test]
        fn no_identifier_is_of_two_users(client_id: String, one in "[^:]{1,5}", other in "[^:]{1,5}") {
            prop_assume!(one != other);
            let mut users = [&one, &other].into_iter();
            let refused = |user: &String| ClientIds::Prefix.refuses(&client_id, Some(user)).is_some();
            prop_assert!(users.any(refused));
        }
    }

    #[test]
    fn what_is_assigned_fits_into_a_packet() {
        let user = "u".repeat(LONGEST);
        let assigned = ClientIds::Prefix.assign(Some(&user), [1; 16]);
        assert!(assigned.len() <= LONGEST && assigned.starts_with("auto-"));
    }
}
