//! The probes by which links are found: LLDP frames (IEEE 802.1AB) that say
//! which port of which switch sent them.
//!
//! Chassis and port are locally assigned texts, readable for other listeners. A
//! frame that does not have exactly this form was sent by another device.

use crate::plan::Mac;

use super::End;

/// Where bridges do not forward to: the nearest bridge.
const NEAREST_BRIDGE: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];
const ETHERTYPE: [u8; 2] = [0x88, 0xcc];
const LOCALLY_ASSIGNED: u8 = 7;
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TIME_TO_LIVE: u8 = 3;
const PREFIX: &str = "punctual:";

/// A frame that says where it was sent.
pub(crate) fn probe(from: End, source: Mac, seconds: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(64);
    frame.extend(NEAREST_BRIDGE);
    frame.extend(source.0);
    frame.extend(ETHERTYPE);
    let chassis = format!("{PREFIX}{:016x}", from.datapath);
    put(
        &mut frame,
        CHASSIS,
        &[&[LOCALLY_ASSIGNED], chassis.as_bytes()].concat(),
    );
    put(
        &mut frame,
        PORT,
        &[&[LOCALLY_ASSIGNED], from.port.to_string().as_bytes()].concat(),
    );
    put(&mut frame, TIME_TO_LIVE, &seconds.to_be_bytes());
    put(&mut frame, 0, &[]);
    frame
}

fn put(frame: &mut Vec<u8>, kind: u8, value: &[u8]) {
    // Seven bits of type, nine of length; all values are short.
    frame.extend([kind << 1, value.len() as u8]);
    frame.extend(value);
}

/// Whether a frame is LLDP of anyone.
pub(crate) fn is_lldp(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&ETHERTYPE)
}

/// Where a probe was sent; `None` if it is not one of ours.
pub(crate) fn sender(frame: &[u8]) -> Option<End> {
    let mut rest = frame.get(14..).filter(|_| is_lldp(frame))?;
    let mut take = |kind: u8| {
        let (header, after) = rest.split_at_checked(2)?;
        let length = usize::from(header[0] & 1) << 8 | usize::from(header[1]);
        let (value, after) = after.split_at_checked(length)?;
        rest = after;
        let value = value.strip_prefix(&[LOCALLY_ASSIGNED])?;
        std::str::from_utf8(value)
            .ok()
            .filter(|_| header[0] >> 1 == kind)
    };
    let chassis = take(CHASSIS)?.strip_prefix(PREFIX)?;
    let port = take(PORT)?;
    Some(End {
        datapath: u64::from_str_radix(chassis, 16).ok()?,
        port: port.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn probes_say_where_they_were_sent(datapath: u64, port: u32) {
            let from = End { datapath, port };
            let frame = probe(from, Mac([2, 0, 0, 0, 0, 1]), 2);
            prop_assert!(is_lldp(&frame));
            prop_assert_eq!(sender(&frame), Some(from));
            for length in 0..frame.len() - 4 {
                prop_assert_eq!(sender(&frame[..length]).filter(|end| *end != from), None);
            }
        }

        #[test]
        fn nothing_else_is_a_probe(frame: Vec<u8>) {
            prop_assert_eq!(sender(&frame), None);
        }
    }
}
