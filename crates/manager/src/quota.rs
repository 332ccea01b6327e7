//! What one user may have: flows, bandwidth, and processor time of the broker.
//!
//! Invariant: the flows of all clients of an [`Owner`] count together, so that
//! nobody gets more by more client identifiers.

use std::fmt;
use std::net::IpAddr;

use punctual_broker::FlowQuota;
use punctual_model::source_address;

use crate::client::Client;

/// What all clients of one user may have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Flows.
    pub max_flows: Option<u32>,
    /// Bits per second on the wire.
    pub max_bandwidth: Option<u64>,
}

impl Quota {
    /// Of whoever decides about quotas.
    pub const UNLIMITED: Self = Self {
        max_flows: Some(u32::MAX),
        max_bandwidth: Some(u64::MAX),
    };

    /// Whether `name` may have that many flows with that many bits per second.
    pub(crate) fn check(&self, name: Owner<'_>, flows: u64, bandwidth: u64) -> Result<(), String> {
        if let Some(most) = self.max_flows.filter(|most| flows > u64::from(*most)) {
            return Err(format!(
                "{name} may have {most} flows and has as many (max-flows)"
            ));
        }
        if let Some(most) = self.max_bandwidth.filter(|most| bandwidth > *most) {
            return Err(format!(
                "{name} may use {most} bit/s and would use {bandwidth} bit/s (max-bandwidth)"
            ));
        }
        Ok(())
    }
}

impl From<FlowQuota> for Quota {
    fn from(quota: FlowQuota) -> Self {
        Self {
            max_flows: quota.max_flows,
            max_bandwidth: quota.max_bandwidth,
        }
    }
}

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

/// What a flow needs of the broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// Bits per second on the wire.
    pub(crate) bandwidth: u64,
    /// Time of a thread for one message, ns.
    pub(crate) cost_ns: u64,
    /// Least time between two messages, ns; not 0.
    pub(crate) period_ns: u64,
    /// Within so long a message comes before those that are less urgent, ns: its deadline, or a
    /// shorter one that its stated priority is meant for.
    pub(crate) window_ns: u64,
}

/// Whether these needs of one user are within its share of the time of a thread, in per cent: in the
/// long run, and within the window of each for those that are as urgent. The second keeps room for
/// short deadlines of others: flows that seldom send delay them all the same if they send together.
pub(crate) fn check_share(user: Owner<'_>, needs: &mut [Need], share: u64) -> Result<(), String> {
    // Millionths of the time.
    let load = needs.iter().fold(0, |sum: u64, need| {
        sum.saturating_add(need.cost_ns.saturating_mul(1_000_000) / need.period_ns)
    });
    if load > share * 10_000 {
        return Err(format!(
            "{user} may use {share} % of the broker's processor time and would use {} % \
             (admission.max_user_load)",
            load.div_ceil(10_000)
        ));
    }
    needs.sort_unstable_by_key(|need| need.window_ns);
    let mut together = 0_u64;
    for (before, need) in needs.iter().enumerate() {
        together = together.saturating_add(need.cost_ns);
        let window = need.window_ns;
        // Whether one alone is in time is for the analysis to say.
        if before > 0 && together.saturating_mul(100) > window.saturating_mul(share) {
            return Err(format!(
                "{user} may use {share} % of the broker's processor time within {} us, and its \
                 flows that are as urgent would use {} us if they sent together: longer deadlines or \
                 lower priorities need less (admission.max_user_load)",
                window / 1000,
                together.div_ceil(1000)
            ));
        }
    }
    Ok(())
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
