//! Frames with sound checksums, for tests of this crate and of others.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{ETH_ARP, ETH_IPV4, ETH_IPV6, IP_ICMP, IP_ICMPV6, IP_TCP, IP_UDP, Mac};

/// Source of all frames here.
pub const SOURCE: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Destination of all frames here.
pub const DESTINATION: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// From 10.0.0.1 to 10.0.0.2, ports 1000 to 2000.
pub fn v4(proto: u8, payload: &[u8]) -> Vec<u8> {
    v4_between(
        Ipv4Addr::new(10, 0, 0, 1),
        Ipv4Addr::new(10, 0, 0, 2),
        proto,
        (1000, 2000),
        payload,
    )
}

/// An IPv4 packet; `ports` are source and destination of TCP and UDP, type and code of ICMP.
pub fn v4_between(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    proto: u8,
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let addresses = [source.octets(), destination.octets()].concat();
    let body = transport(proto, ports, &addresses, payload);
    let mut frame = ethernet(ETH_IPV4);
    frame.extend_from_slice(&[0x45, 0]);
    frame.extend_from_slice(&(20 + body.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[0, 1, 0x40, 0, 64, proto, 0, 0]);
    frame.extend_from_slice(&addresses);
    finish_v4(&mut frame);
    frame.extend_from_slice(&body);
    frame
}

/// Corrects the checksum of the IPv4 header of a frame from here, after a change of it.
pub fn finish_v4(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&sum);
}

/// From fd00::1 to fd00::2, ports 1000 to 2000.
pub fn v6(proto: u8, payload: &[u8]) -> Vec<u8> {
    let address = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
    let addresses = [address(1).octets(), address(2).octets()].concat();
    let body = transport(proto, (1000, 2000), &addresses, payload);
    let mut frame = ethernet(ETH_IPV6);
    frame.extend_from_slice(&[0x60, 0, 0, 0]);
    frame.extend_from_slice(&(body.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[proto, 64]);
    frame.extend_from_slice(&addresses);
    frame.extend_from_slice(&body);
    frame
}

/// Asks who has 10.0.0.2.
pub fn arp() -> Vec<u8> {
    let mut frame = ethernet(ETH_ARP);
    frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&SOURCE.0);
    frame.extend_from_slice(&[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    frame
}

fn ethernet(eth_type: u16) -> Vec<u8> {
    [&DESTINATION.0[..], &SOURCE.0, &eth_type.to_be_bytes()].concat()
}

fn transport(proto: u8, ports: (u16, u16), addresses: &[u8], payload: &[u8]) -> Vec<u8> {
    let (source, destination) = (ports.0.to_be_bytes(), ports.1.to_be_bytes());
    let (mut header, at) = match proto {
        IP_TCP => {
            let rest = [0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0x10, 0, 0, 0, 0, 0];
            ([&source[..], &destination, &rest].concat(), Some(16))
        }
        IP_UDP => {
            let length = (8 + payload.len() as u16).to_be_bytes();
            let rest = [&length[..], &[0, 0]].concat();
            ([&source[..], &destination, &rest].concat(), Some(6))
        }
        IP_ICMP | IP_ICMPV6 => {
            let (kind, code) = (ports.0 as u8, ports.1 as u8);
            (vec![kind, code, 0, 0, 0, 1, 0, 1], Some(2))
        }
        _ => (Vec::new(), None),
    };
    if let Some(at) = at {
        let length = (header.len() + payload.len()) as u16;
        let pseudo = match proto {
            IP_ICMP => Vec::new(),
            _ => [addresses, &length.to_be_bytes(), &[0, proto]].concat(),
        };
        let sum = checksum(&[&pseudo, &header, payload]);
        header[at..at + 2].copy_from_slice(&sum);
    }
    header.extend_from_slice(payload);
    header
}

/// The internet checksum over parts of which all but the last have an even length.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum: u32 = 0;
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
