//! Why CONNECT is refused.

use punctual_codec::ReasonCode;

/// Why CONNECT is refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: ReasonCode,
    pub(crate) why: String,
}

impl Refusal {
    pub(crate) fn new(reason: ReasonCode, why: impl Into<String>) -> Self {
        Self {
            reason,
            why: why.into(),
        }
    }
}
