//! What every benchmark payload carries: time, sequence, publisher.
//!
//! Little-endian at the front of the payload, [`STAMP_LEN`] bytes; the rest is filler.

/// Bytes of a stamp, hence the least payload.
pub const STAMP_LEN: usize = 28;

/// The front of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Intended send time (open loop) or actual send time (windows), nanoseconds on the
    /// generator's clock. In a factory reply: the sensor's actual send time TA.
    pub time: u64,
    /// Counts from 0 per publisher.
    pub seq: u64,
    /// Factory only: TA in a sensor's message, TC - TB in the controller's reply.
    pub extra: u64,
    /// Index of the publisher in the plan.
    pub publisher: u32,
}

impl Stamp {
    /// As it stands at the front of a payload.
    #[inline]
    pub fn to_bytes(self) -> [u8; STAMP_LEN] {
        let mut bytes = [0; STAMP_LEN];
        bytes[..8].copy_from_slice(&self.time.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.extra.to_le_bytes());
        bytes[24..].copy_from_slice(&self.publisher.to_le_bytes());
        bytes
    }

    /// Reads the front of a payload; `None` if it is too short to be ours.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let (bytes, _) = payload.split_first_chunk::<STAMP_LEN>()?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Some(Self {
            time: word(0),
            seq: word(8),
            extra: word(16),
            publisher: u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_survives_the_wire() {
        let stamp = Stamp {
            time: 1,
            seq: u64::MAX,
            extra: 3 << 40,
            publisher: 0xdead_beef,
        };
        let mut payload = stamp.to_bytes().to_vec();
        assert_eq!(Stamp::read(&payload[..STAMP_LEN - 1]), None);
        payload.extend([9; 10]);
        assert_eq!(Stamp::read(&payload), Some(stamp));
    }
}
