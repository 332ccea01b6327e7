//! Versions of retained messages in a mesh.

use punctual_model::{LAST_INSTANT, VERSIONS_SINCE};

/// Bits of a version that differ between brokers that publish in the same microsecond.
pub(crate) const SALT: u32 = 3;
/// Bits of a version in a mesh; they suffice until 2091.
pub(crate) const VERSION_BITS: u32 = 54;
/// The highest possible version.
pub(crate) const LAST_VERSION: u64 = (1 << VERSION_BITS) - 1;
const _: () = assert!(
    version_at(LAST_INSTANT) == LAST_VERSION,
    "both end with the bits"
);

/// The highest version of a retained message that brokers of a mesh assign at an instant, given in
/// microseconds since 1970.
pub const fn version_at(micros: u64) -> u64 {
    let time = micros.saturating_sub(VERSIONS_SINCE);
    if time > LAST_VERSION >> SALT {
        return LAST_VERSION;
    }
    (time << SALT) | ((1 << SALT) - 1)
}
