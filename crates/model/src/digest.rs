//! Numbers for names that all brokers have in common.

/// A number for bytes, the same in every process and version, and never 0: FNV-1a with a
/// final mix, so that its high bits differ where the bytes do. It is not
/// collision-resistant.
pub fn digest(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    for byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    }
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (hash ^ (hash >> 32)).max(1)
}
