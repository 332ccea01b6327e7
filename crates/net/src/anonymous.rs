//! Clients without a user name, and where they are.

use std::net::IpAddr;

use crate::layer::ClientAddress;

/// Which clients without a user name a listener lets in; a greater one lets in more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Anonymous {
    /// None.
    #[default]
    Nobody,
    /// Those on this machine.
    Local,
    /// All.
    Everybody,
}

impl Anonymous {
    /// Whether one is let in whose socket leads to `socket`.
    ///
    /// A client is on this machine if both the socket and what a proxy tells say so: one that a proxy
    /// elsewhere calls local is local there.
    pub(crate) fn lets_in(self, socket: IpAddr, client: ClientAddress) -> bool {
        match self {
            Self::Nobody => false,
            Self::Everybody => true,
            Self::Local => {
                is_loopback(socket)
                    && match client {
                        ClientAddress::Socket => true,
                        ClientAddress::Told(address) => is_loopback(address.ip()),
                        ClientAddress::Untold => false,
                    }
            }
        }
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_seen_through_mapped_addresses() {
        let local = |ip: &str| Anonymous::Local.lets_in(ip.parse().unwrap(), ClientAddress::Socket);
        for ip in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(local(ip), "{ip}");
        }
        for ip in ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1"] {
            assert!(!local(ip), "{ip}");
        }
    }

    #[test]
    fn what_a_proxy_tells_decides_who_is_local() {
        let (here, there) = ("127.0.0.1", "192.0.2.1");
        let told = |ip: &str| ClientAddress::Told((ip.parse::<IpAddr>().unwrap(), 50_000).into());
        for (socket, client, local) in [
            (here, ClientAddress::Socket, true),
            (here, told(here), true),
            (here, told(there), false),
            (here, ClientAddress::Untold, false),
            (there, ClientAddress::Socket, false),
            (there, told(here), false),
        ] {
            let socket = socket.parse().unwrap();
            assert_eq!(
                Anonymous::Local.lets_in(socket, client),
                local,
                "{client:?}"
            );
            assert!(Anonymous::Everybody.lets_in(socket, client));
            assert!(!Anonymous::Nobody.lets_in(socket, client));
        }
    }
}
