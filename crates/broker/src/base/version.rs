//! Versions of retained messages in a mesh.

use punctual_model::{LAST_INSTANT, VERSIONS_SINCE};

/// Bits of a version in which brokers differ that publish in the same microsecond.
pub(crate) const SALT: u32 = 3;
/// Bits of a version in a mesh; they last until 2091.
pub(crate) const VERSION_BITS: u32 = 54;
/// The highest version there can be.
pub(crate) const LAST_VERSION: u64 = (1 << VERSION_BITS) - 1;
const _: () = assert!(
    version_at(LAST_INSTANT) == LAST_VERSION,
    "both end with the bits"
);

/// The highest version of a retained message that brokers of a mesh give at an instant, microseconds
/// since 1970.
pub const fn version_at(micros: u64) -> u64 {
    let time = micros.saturating_sub(VERSIONS_SINCE);
    if time > LAST_VERSION >> SALT {
        return LAST_VERSION;
    }
    (time << SALT) | ((1 << SALT) - 1)
}
