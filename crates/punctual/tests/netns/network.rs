//! Two hosts and a cable between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use punctual_testbed::netns::Namespace;

/// The broker's host and the clients', joined by `eth0` on both.
pub(crate) struct Network {
    pub(crate) broker: Namespace,
    pub(crate) clients: Namespace,
}

/// Addresses of the broker's host.
pub(crate) const BROKER: [IpAddr; 2] = [address_4(1), address_6(1)];

const fn address_4(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, host))
}

const fn address_6(host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host))
}

impl Network {
    /// Builds it; `None`, with the reason printed, where it cannot be and need
    /// not be.
    pub(crate) fn build() -> Option<Self> {
        if Namespace::is_missing() {
            return None;
        }
        let network = Self {
            broker: Namespace::new("broker").unwrap(),
            clients: Namespace::new("clients").unwrap(),
        };
        let Self { broker, clients } = &network;
        broker.cable("eth0", clients, "eth0").unwrap();
        for (host, n) in [(broker, 1), (clients, 2)] {
            host.address("eth0", address_4(n), 24).unwrap();
            host.address("eth0", address_6(n.into()), 64).unwrap();
        }
        Some(network)
    }
}

/// Leaves a test, or fails it where it must run.
pub(crate) fn skip<T>(why: &str) -> Option<T> {
    punctual_testbed::skip("PUNCTUAL_REQUIRE_NETNS", why);
    None
}
