//! The stamp in a message, by which captures recognise it: flow, sequence number, due time and time
//! of writing.
//!
//! The stamp is the end of the payload, so that a message is complete when its stamp arrives, in
//! however many frames. A capture finds a stamp by its first eight bytes.

/// The first bytes of a stamp; other traffic does not contain them.
const MAGIC: [u8; 8] = *b"\x91pt\x07Stmp";

/// Size of a stamp, bytes.
pub(super) const LENGTH: usize = 32;

/// All times are nanoseconds on `CLOCK_REALTIME`, as are the kernel's time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) flow: u32,
    pub(super) sequence: u32,
    /// Nominal release of the message, before its release jitter.
    pub(super) nominal: u64,
    /// Time just before the message was written to the socket.
    pub(super) written: u64,
}

impl Stamp {
    pub(super) fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.flow.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.nominal.to_be_bytes());
        bytes[24..].copy_from_slice(&self.written.to_be_bytes());
        bytes
    }

    /// Every complete stamp in a packet.
    pub(super) fn all(packet: &[u8]) -> impl Iterator<Item = Self> {
        let found = memchr::memmem::find_iter(packet, &MAGIC);
        found.filter_map(|at| {
            let (_, rest) = packet.get(at..at + LENGTH)?.split_first_chunk::<8>()?;
            let (flow, rest) = rest.split_first_chunk()?;
            let (sequence, rest) = rest.split_first_chunk()?;
            let (nominal, rest) = rest.split_first_chunk()?;
            let (written, _) = rest.split_first_chunk()?;
            Some(Self {
                flow: u32::from_be_bytes(*flow),
                sequence: u32::from_be_bytes(*sequence),
                nominal: u64::from_be_bytes(*nominal),
                written: u64::from_be_bytes(*written),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_wherever_they_are_and_only_whole() {
        let stamp = |sequence| Stamp {
            flow: 7,
            sequence,
            nominal: 1_795_000_000_000_000_000,
            written: 1_795_000_000_000_012_345,
        };
        let mut packet = vec![0; 54];
        packet.extend(stamp(1).to_bytes());
        packet.extend(b"2\x80\x01 next");
        packet.extend(stamp(2).to_bytes());
        packet.extend(&stamp(3).to_bytes()[..LENGTH - 1]);
        let all: Vec<_> = Stamp::all(&packet).collect();
        assert_eq!(all, [stamp(1), stamp(2)]);
    }
}
