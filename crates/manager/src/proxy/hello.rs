//! What CONNECT says that is needed later.

use punctual_broker::urgency;
use punctual_codec::{Connect, PropertyId, Version};
use punctual_model::Requirements;

/// A client that wants to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: Version,
    /// Empty if the broker is to choose one.
    pub(crate) client_id: String,
    pub(crate) username: Option<String>,
    /// Seconds; `u32::MAX` for ever.
    pub(crate) session_expiry: u32,
    /// Requirements of all its publications.
    pub(crate) default: Requirements,
    /// What of them cannot be understood, or is missing.
    pub(crate) remark: Option<String>,
    /// Whether acknowledgements may carry user properties.
    pub(crate) problem_information: bool,
    /// Maximum Packet Size.
    pub(crate) max_packet: u32,
}

impl Hello {
    pub(crate) fn of(connect: &Connect<'_>) -> Self {
        let number = |id| connect.properties.number(id);
        let mut remark = None;
        let stated = urgency::stated(connect.properties);
        let default = stated.unwrap_or_else(|error| {
            remark = Some(error.to_string());
            Requirements::NONE
        });
        if default.is_real_time() && default.period.is_none() && default.bandwidth.is_none() {
            remark = Some("rt-period is missing (or rt-bandwidth): no flow can be admitted".into());
        }
        let session_expiry = match (connect.version.is_v5(), connect.clean_start) {
            (true, _) => number(PropertyId::SessionExpiryInterval).unwrap_or(0),
            (false, true) => 0,
            (false, false) => u32::MAX,
        };
        Self {
            version: connect.version,
            client_id: connect.client_id.to_owned(),
            username: connect.username.map(str::to_owned),
            session_expiry,
            default,
            remark,
            problem_information: number(PropertyId::RequestProblemInformation) != Some(0),
            max_packet: number(PropertyId::MaximumPacketSize).unwrap_or(u32::MAX),
        }
    }
}
