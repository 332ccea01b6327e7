//! Parsers of argument values that several subcommands share.

use std::time::Duration;

/// Reads a duration in seconds, for clap.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "give seconds, such as 5 or 0.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_a_fraction_and_not_be_negative() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "-1", "x", "inf", "NaN"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
