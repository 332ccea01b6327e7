//! How publications spread over the tree.

/// A forwarding strategy; the same in all brokers of a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Strategy {
    /// Over every link of the tree behind which a client has subscribed, and no other.
    #[default]
    SubscriptionTable = 0,
    /// Over every link of the tree.
    Flooding = 1,
    /// Up to the root, which sends it down to all brokers, the origin included. For comparison only:
    /// publications in flight while the tree changes may be lost.
    RootRelay = 2,
}

impl Strategy {
    /// All strategies, the default first.
    pub const ALL: [Self; 3] = [Self::SubscriptionTable, Self::Flooding, Self::RootRelay];

    /// The strategy with this number on the wire; `None` if there is none.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// Name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::SubscriptionTable => "subscription-table",
            Self::Flooding => "flooding",
            Self::RootRelay => "root-relay",
        }
    }
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Strategy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|strategy| strategy.name() == name);
        found.ok_or_else(|| {
            format!("{name}: no strategy; subscription-table, flooding or root-relay")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
            assert_eq!(Strategy::from_byte(strategy as u8), Some(strategy));
        }
        assert!("broadcast".parse::<Strategy>().is_err());
        assert_eq!(Strategy::from_byte(3), None);
    }
}
