//! Refusals of CONNECT.

use punctual_codec::ReasonCode;

/// The reason for which CONNECT is refused.
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
