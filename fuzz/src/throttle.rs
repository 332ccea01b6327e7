//! What must hold for any bytes that say what a neighbour takes only little of: the check of the fuzz
//! target `throttle`, which `crates/broker/tests/replay.rs` also runs over the seeds.

use punctual_broker::throttle;
use punctual_codec::topic;

/// Reads the input; what is read are valid filters, and is written the same again.
pub fn throttle(data: &[u8]) {
    if let Some(filters) = throttle::parse(data) {
        assert!(filters.len() <= 512);
        for filter in &filters {
            assert!(topic::validate_filter(filter).is_ok(), "{filter:?}");
        }
        assert_eq!(throttle::encode(&filters), data);
    }
}
