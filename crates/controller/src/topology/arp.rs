//! ARP probes (RFC 5227): ask for the owner of an address without claiming one.
//! The owner of the address answers.

use std::net::Ipv4Addr;

use crate::plan::Mac;

/// Ethernet and IPv4, a request.
const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];

/// A frame that asks for the owner of an address.
pub(crate) fn probe(asker: Mac, wanted: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend([0xff; 6]);
    frame.extend(asker.0);
    frame.extend([0x08, 0x06]);
    frame.extend(REQUEST);
    frame.extend(asker.0);
    frame.extend([0; 4]);
    frame.extend([0; 6]);
    frame.extend(wanted.octets());
    frame
}
