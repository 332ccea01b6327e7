//! Whose flows count together.

use std::fmt;
use std::net::IpAddr;

use punctual_model::source_address;

use crate::Client;

/// Who has the flows of some clients, so that nobody gets more by more client identifiers or by user
/// names that are just claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner<'a> {
    /// A user.
    User(&'a str),
    /// All clients without a proven user name on the machine of the broker, or without an address.
    Machine,
    /// All clients without a proven user name at a [source address](source_address).
    Address(IpAddr),
}

impl<'a> Owner<'a> {
    /// Whose share the flows of a client need.
    pub(crate) fn of(client: &'a Client) -> Self {
        match &client.user {
            Some(user) if client.is_proven => Self::User(user),
            _ => Self::at(client.address),
        }
    }

    /// For whose flows the rights of a client's user count, whether it is proven or not.
    pub(crate) fn named(client: &'a Client) -> Self {
        match &client.user {
            Some(user) => Self::User(user),
            None => Self::at(client.address),
        }
    }

    fn at(address: Option<IpAddr>) -> Self {
        match address {
            Some(address) if !address.to_canonical().is_loopback() => {
                Self::Address(source_address(address))
            }
            _ => Self::Machine,
        }
    }
}

impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CLIENTS: &str = "clients without a proven user name";
        match self {
            Self::User(user) => f.write_str(user),
            Self::Machine => write!(f, "{CLIENTS} on this machine"),
            Self::Address(IpAddr::V6(network)) => write!(f, "{CLIENTS} in {network}/64"),
            Self::Address(address) => write!(f, "{CLIENTS} at {address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_proven_nothing_is_known_by_its_address() {
        let client = |id: &str, user: Option<&str>, is_proven, address: &str| Client {
            id: id.into(),
            session: 1,
            user: user.map(Into::into),
            is_proven,
            address: address.parse().ok(),
            transport: Default::default(),
        };
        let said = |user, is_proven, address| {
            Owner::of(&client("c", user, is_proven, address)).to_string()
        };
        assert_eq!(said(Some("alice"), true, "10.0.0.5"), "alice");
        for user in [None, Some("alice")] {
            for (address, words) in [
                ("10.0.0.5", "at 10.0.0.5"),
                ("::ffff:10.0.0.5", "at 10.0.0.5"),
                ("2001:db8::1:2", "in 2001:db8::/64"),
                ("127.0.0.7", "on this machine"),
                ("::1", "on this machine"),
                ("none", "on this machine"),
            ] {
                let said = said(user, false, address);
                assert_eq!(said, format!("clients without a proven user name {words}"));
            }
        }
        let claimed = client("c", Some("alice"), false, "10.0.0.5");
        assert_eq!(Owner::named(&claimed), Owner::User("alice"));
    }
}
