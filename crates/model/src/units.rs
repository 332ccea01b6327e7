//! Numbers with units, exactly.
//!
//! A decimal fraction is a shorter way to write a whole number of the smallest
//! unit: `1.5ms` is 1 500 000 ns, and `0.1ns` is nothing and refused. All
//! arithmetic is on integers and checked.

use std::borrow::Cow;
use std::time::Duration;

const NANOS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

const BITS: &[(&str, u64)] = &[
    ("bit", 1),
    ("kbit", 1_000),
    ("Mbit", 1_000_000),
    ("Gbit", 1_000_000_000),
];

/// Unit of a duration without one: milliseconds, as in RT-MQTT.
const BARE_DURATION: u64 = 1_000_000;

/// Why a text is no number with a unit: words that go after "must".
pub(crate) type Remedy = Cow<'static, str>;

const DURATION: &str = "must be a duration such as 10ms, 800us, 5ns, 1.5ms or 2s; \
                        a number without unit is milliseconds";
const BANDWIDTH: &str = "must be bits per second such as 500kbit, 2Mbit or 1Gbit; \
                         a number without unit is bit/s";
const TOO_FINE_DURATION: &str = "is finer than a nanosecond; leave out digits";
const TOO_FINE_BANDWIDTH: &str = "is finer than one bit per second; leave out digits";
const TOO_LARGE: &str = "is too large: more than 64 bits can hold";

/// Reads a duration: `10ms`, `800us`, `5ns`, `1.5ms`, `2s`; a number without a
/// unit is milliseconds. Zero is a duration, too.
///
/// # Errors
/// The problem, to be appended to the name and the value.
pub fn parse_duration(text: &[u8]) -> Result<Duration, Cow<'static, str>> {
    let number = Decimal::read(text).ok_or(DURATION)?;
    let scale = match number.unit {
        [] => BARE_DURATION,
        unit => *NANOS
            .iter()
            .find_map(|(name, scale)| (name.as_bytes() == unit).then_some(scale))
            .ok_or(DURATION)?,
    };
    let nanos = number.times(scale, TOO_FINE_DURATION)?;
    Ok(Duration::from_nanos(nanos))
}

/// Reads a data rate in bits per second: `500kbit`, `2Mbit`, `1Gbit` (powers
/// of ten, upper or lower case); a number without a unit is bit/s.
///
/// # Errors
/// The problem, to be appended to the name and the value.
pub fn parse_bandwidth(text: &[u8]) -> Result<u64, Cow<'static, str>> {
    let number = Decimal::read(text).ok_or(BANDWIDTH)?;
    let scale = match number.unit {
        [] => 1,
        // Units are compared without case, as `m` for milli does not occur in bandwidths.
        unit => *BITS
            .iter()
            .find_map(|(name, scale)| name.as_bytes().eq_ignore_ascii_case(unit).then_some(scale))
            .ok_or(BANDWIDTH)?,
    };
    number.times(scale, TOO_FINE_BANDWIDTH)
}

/// Reads a whole number without sign, unit or fraction.
pub(crate) fn parse_integer(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then_some(())?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// A duration in the largest unit in which it is a whole number; limited to 2^64 - 1
/// nanoseconds, the longest that can be parsed.
pub fn format_duration(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let units = NANOS.iter().filter(|(name, _)| name.is_ascii());
    let (name, scale) = largest(nanos, units).unwrap_or(("ns", 1));
    format!("{}{name}", nanos / scale)
}

/// A data rate in the largest unit that holds it in a whole number.
pub fn format_bandwidth(bits: u64) -> String {
    let (name, scale) = largest(bits, BITS.iter()).unwrap_or(("bit", 1));
    format!("{}{name}", bits / scale)
}

fn largest<'a>(
    value: u64,
    units: impl DoubleEndedIterator<Item = &'a (&'static str, u64)>,
) -> Option<(&'static str, u64)> {
    let divides = |scale: u64| value != 0 && value.is_multiple_of(scale);
    units.copied().rev().find(|(_, scale)| divides(*scale))
}

/// `123.456unit`, taken apart: `digits / 10^places`.
struct Decimal<'a> {
    /// `None` when there are more than 128 bits hold.
    digits: Option<u128>,
    /// The last of them is not 0.
    places: usize,
    unit: &'a [u8],
}

impl<'a> Decimal<'a> {
    /// `None` when it does not begin with a digit, or has a point without a
    /// digit after it.
    fn read(text: &'a [u8]) -> Option<Self> {
        let (whole, rest) = split_digits(text);
        if whole.is_empty() {
            return None;
        }
        let (fraction, unit) = match rest.split_first() {
            Some((b'.', rest)) => {
                let (fraction, unit) = split_digits(rest);
                if fraction.is_empty() {
                    return None;
                }
                (fraction, unit)
            }
            _ => (&[][..], rest),
        };
        if fraction.is_empty() {
            let digits = parse_integer(whole);
            // More than 64 bits are too many without a fraction.
            return Some(Self {
                digits: digits.map(u128::from),
                places: 0,
                unit,
            });
        }
        let zeros = fraction.iter().rev().take_while(|d| **d == b'0').count();
        let fraction = &fraction[..fraction.len() - zeros];
        let mut digits = whole.iter().chain(fraction);
        let digits = digits.try_fold(0_u128, |number, digit| {
            let digit = u128::from(digit.wrapping_sub(b'0'));
            number.checked_mul(10)?.checked_add(digit)
        });
        Some(Self {
            digits,
            places: fraction.len(),
            unit,
        })
    }

    /// The number in the smallest unit, of which its own has `scale`.
    fn times(&self, scale: u64, too_fine: &'static str) -> Result<u64, Remedy> {
        // No unit has more than 10^9 of the smallest, so more places than that
        // leave something over.
        const MOST: usize = 9;
        if self.places > MOST {
            return Err(too_fine.into());
        }
        let value = self.digits.and_then(|d| d.checked_mul(scale.into()));
        let value = value.ok_or(TOO_LARGE)?;
        if self.places == 0 {
            return u64::try_from(value).map_err(|_| TOO_LARGE.into());
        }
        let divisor = 10_u128.pow(self.places as u32);
        if value % divisor != 0 {
            return Err(too_fine.into());
        }
        u64::try_from(value / divisor).map_err(|_| TOO_LARGE.into())
    }
}

fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(text: &str) -> Result<u64, Remedy> {
        parse_duration(text.as_bytes()).map(|duration| duration.as_nanos() as u64)
    }

    #[test]
    fn durations_are_exact() {
        for (text, expected) in [
            ("10ms", 10_000_000),
            ("800us", 800_000),
            ("800µs", 800_000),
            ("800μs", 800_000),
            ("5ns", 5),
            ("1.5ms", 1_500_000),
            ("2s", 2_000_000_000),
            ("10", 10_000_000),
            ("0.25", 250_000),
            ("0", 0),
            ("007us", 7_000),
            ("1.000000000s", 1_000_000_000),
            ("0.000000001s", 1),
            (
                "1.0000000000000000000000000000000000000000000s",
                1_000_000_000,
            ),
            ("18446744073709551615ns", u64::MAX),
            ("18446744073.709551615s", u64::MAX),
        ] {
            assert_eq!(nanos(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_durations_are_refused_with_the_reason() {
        for (text, why) in [
            ("", DURATION),
            ("ms", DURATION),
            ("-1ms", DURATION),
            ("+1ms", DURATION),
            ("1 ms", DURATION),
            (" 1ms", DURATION),
            ("1.ms", DURATION),
            (".5ms", DURATION),
            ("1,5ms", DURATION),
            ("1e3ms", DURATION),
            ("1MS", DURATION),
            ("1min", DURATION),
            ("0.5ns", TOO_FINE_DURATION),
            ("0.0000000001s", TOO_FINE_DURATION),
            (
                "0.12345678901234567890123456789012345678901234s",
                TOO_FINE_DURATION,
            ),
            ("99999999999999999999.5ns", TOO_FINE_DURATION),
            (
                "0.00000000000000000000000000000000000000000000001s",
                TOO_FINE_DURATION,
            ),
            ("18446744073709551616ns", TOO_LARGE),
            ("18446744074s", TOO_LARGE),
            ("99999999999999999999999s", TOO_LARGE),
        ] {
            assert_eq!(nanos(text), Err(why.into()), "{text}");
        }
    }

    #[test]
    fn bandwidths_are_powers_of_ten() {
        for (text, expected) in [
            ("500kbit", 500_000),
            ("2Mbit", 2_000_000),
            ("2mbit", 2_000_000),
            ("1Gbit", 1_000_000_000),
            ("1.5Mbit", 1_500_000),
            ("9600", 9_600),
            ("1bit", 1),
        ] {
            assert_eq!(parse_bandwidth(text.as_bytes()), Ok(expected), "{text}");
        }
        for (text, why) in [
            ("2MB", BANDWIDTH),
            ("2kbps", BANDWIDTH),
            ("0.5bit", TOO_FINE_BANDWIDTH),
            ("18446744073710Mbit", TOO_LARGE),
        ] {
            assert_eq!(parse_bandwidth(text.as_bytes()), Err(why.into()), "{text}");
        }
    }

    #[test]
    fn texts_are_the_shortest_whole_ones() {
        for (nanos, expected) in [
            (0, "0ns"),
            (1, "1ns"),
            (1_500_000, "1500us"),
            (10_000_000, "10ms"),
            (2_000_000_000, "2s"),
            (2_000_000_001, "2000000001ns"),
        ] {
            assert_eq!(format_duration(Duration::from_nanos(nanos)), expected);
        }
        assert_eq!(
            format_duration(Duration::MAX),
            "18446744073709551615ns",
            "the most that can be read"
        );
        assert_eq!(format_bandwidth(0), "0bit");
        assert_eq!(format_bandwidth(1_500_000), "1500kbit");
        assert_eq!(format_bandwidth(3_000_000_000), "3Gbit");
    }
}
