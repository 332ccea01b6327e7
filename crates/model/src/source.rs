//! Addresses that count as one source.

use std::net::{IpAddr, Ipv6Addr};

/// The address by which clients at `address` are counted where the clients of one source share a
/// bound: an IPv4 address stays as it is, also where it is mapped into IPv6; of an IPv6 address the
/// network (/64) counts, because a host can use every address in it.
pub fn source_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << 64);
            Ipv6Addr::from_bits(network).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_source_whichever_of_its_addresses_it_uses() {
        for (address, source) in [
            ("10.0.0.5", "10.0.0.5"),
            ("::ffff:10.0.0.5", "10.0.0.5"),
            ("2001:db8::1:2", "2001:db8::"),
            ("2001:db8:0:1::2", "2001:db8:0:1::"),
            ("::1", "::"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(source_address(address).to_string(), source, "{address}");
        }
    }
}
