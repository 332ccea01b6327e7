//! Why CONNECT is refused.

use punctual_codec::ReasonCode;

/// Why CONNECT is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(crate) reason: ReasonCode,
    pub(super) why: String,
}

impl Refusal {
    pub(super) fn new(reason: ReasonCode, why: impl Into<String>) -> Self {
        Self {
            reason,
            why: why.into(),
        }
    }
}
