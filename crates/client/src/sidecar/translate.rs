//! What MQTT 5 says, in the words of earlier versions.

use punctual_codec::{Properties, PropertyBuf, PropertyId, ReasonCode};

/// Whether a refused publication is one that the client should keep. Before
/// MQTT 5 there is no word for that but to close the connection; of the others
/// it hears, as from any broker, that they were taken, because it would only
/// bring them again.
pub(super) fn is_final(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::QuotaExceeded
            | ReasonCode::UnspecifiedError
            | ReasonCode::ImplementationSpecificError
    )
}

/// The SUBACK return code for a reason code (3.1.1, section 3.9.3).
pub(super) fn return_code(reason: u8) -> u8 {
    match reason {
        0..=2 => reason,
        _ => 0x80,
    }
}

/// Appends properties but one.
pub(super) fn within(from: Properties<'_>, but: Option<PropertyId>, out: &mut PropertyBuf) {
    for property in from.iter().filter(|property| Some(property.id) != but) {
        out.push(property);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_codes_are_those_of_3_1_1() {
        let codes = [0x00, 0x01, 0x02, 0x80, 0x87, 0x97, 0xA2].map(return_code);
        assert_eq!(codes, [0, 1, 2, 0x80, 0x80, 0x80, 0x80]);
    }

    #[test]
    fn only_what_may_work_later_closes() {
        assert!(is_final(ReasonCode::QuotaExceeded));
        assert!(!is_final(ReasonCode::NotAuthorized));
        assert!(!is_final(ReasonCode::Success));
    }
}
