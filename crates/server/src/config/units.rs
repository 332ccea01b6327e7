//! Sizes and durations: a number and a unit, exact to the byte and the
//! nanosecond.

use std::fmt;
use std::time::Duration;

use super::value::{Scalar, Setting, Unreadable, quote};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub(crate) u64);

/// Units of [`Size`], largest first. The binary ones stand before the decimal
/// ones of the same letter, since output takes the first that divides.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
];

impl Size {
    /// `n` times 1024 bytes.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` times 1024 KiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` times 1024 MiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides = |unit: &u64| self.0 >= *unit && self.0.is_multiple_of(*unit);
        let (name, unit) = SIZE_UNITS
            .into_iter()
            .find(|(_, unit)| divides(unit))
            .unwrap_or(("B", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

impl Setting for Size {
    fn expects() -> String {
        "a size such as \"64KiB\" or \"1MiB\", or a whole number of bytes".into()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        if let Some(bytes) = scalar.integer() {
            return u64::try_from(bytes).map(Self).map_err(|_| {
                Unreadable::Because("a size is from 0 to 18446744073709551615 bytes".into())
            });
        }
        let text = scalar.text().ok_or(Unreadable::Kind)?;
        let (number, unit) = number_and_unit(text).ok_or(Unreadable::Kind)?;
        let (_, scale) = SIZE_UNITS
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .ok_or_else(|| unknown_unit(unit, "B, KiB, MiB, GiB, kB, MB and GB"))?;
        scaled(number, u128::from(scale))
            .and_then(|bytes| u64::try_from(bytes).ok())
            .map(Self)
            .ok_or_else(|| Unreadable::Because("this is not a whole number of bytes".into()))
    }

    fn show(&self) -> Option<String> {
        Some(quote(&self.to_string()))
    }
}

/// A number of bits in one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub(crate) u64);

/// Units of [`Rate`], largest first.
const RATE_UNITS: [(&str, u64); 4] = [
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

impl Setting for Rate {
    fn expects() -> String {
        "a rate such as \"100Mbit\" or \"2.5Gbit\" (a second)".into()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        let text = scalar.text().ok_or(Unreadable::Kind)?;
        let (number, unit) = number_and_unit(text).ok_or(Unreadable::Kind)?;
        let bare = unit.strip_suffix("/s").unwrap_or(unit);
        let (_, scale) = RATE_UNITS
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(bare))
            .ok_or_else(|| unknown_unit(unit, "bit, kbit, Mbit and Gbit"))?;
        scaled(number, u128::from(scale))
            .and_then(|bits| u64::try_from(bits).ok())
            .map(Self)
            .ok_or_else(|| Unreadable::Because("this is not a whole number of bits".into()))
    }

    fn show(&self) -> Option<String> {
        let divides = |unit: &u64| self.0 >= *unit && self.0.is_multiple_of(*unit);
        let (name, unit) = RATE_UNITS
            .into_iter()
            .find(|(_, unit)| divides(unit))
            .unwrap_or(("bit", 1));
        Some(quote(&format!("{}{name}", self.0 / unit)))
    }
}

/// Units of a duration in nanoseconds, largest first.
const TIME_UNITS: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl Setting for Duration {
    fn expects() -> String {
        "a duration such as \"500us\", \"10ms\", \"30s\" or \"5m\"".into()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        if let Some(number) = scalar.integer() {
            return Err(Unreadable::Because(format!(
                "a duration needs a unit, for example \"{number}s\" or \"{number}ms\""
            )));
        }
        let text = scalar.text().ok_or(Unreadable::Kind)?;
        let (number, unit) = number_and_unit(text).ok_or(Unreadable::Kind)?;
        let (_, scale) = TIME_UNITS
            .into_iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| unknown_unit(unit, "ns, us, ms, s, m, h and d"))?;
        scaled(number, scale)
            .and_then(|nanos| u64::try_from(nanos).ok())
            .map(Self::from_nanos)
            .ok_or_else(|| {
                Unreadable::Because("this is too long, or not a whole number of ns".into())
            })
    }

    fn show(&self) -> Option<String> {
        let nanos = self.as_nanos();
        let (name, unit) = TIME_UNITS
            .into_iter()
            .find(|(_, unit)| nanos >= *unit && nanos.is_multiple_of(*unit))
            .unwrap_or(("s", TIME_UNITS[3].1));
        Some(quote(&format!("{}{name}", nanos / unit)))
    }
}

/// Splits `"1.5 MiB"` into its number and its unit; `None` without a number.
fn number_and_unit(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    number
        .starts_with(|c: char| c.is_ascii_digit())
        .then(|| (number, unit.trim_start()))
}

/// `number`, which may have decimals, times `scale`, where that is exact.
fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let decimals = decimals.trim_end_matches('0');
    let tens = 10u128.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let fraction = match decimals {
        "" => 0,
        digits => digits.parse::<u128>().ok()?.checked_mul(scale)?,
    };
    fraction.is_multiple_of(tens).then_some(())?;
    let whole = whole.parse::<u128>().ok()?;
    whole.checked_mul(scale)?.checked_add(fraction / tens)
}

fn unknown_unit(unit: &str, known: &str) -> Unreadable {
    Unreadable::Because(if unit.is_empty() {
        format!("the unit is missing; there are {known}")
    } else {
        format!("{unit} is not a unit; there are {known}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T: Setting>(text: &str) -> Result<T, Unreadable> {
        T::read(&Scalar::Text(text.into()))
    }

    #[test]
    fn sizes_read_and_show() {
        for (written, bytes, shown) in [
            ("64KiB", 65536, "64KiB"),
            ("1 MiB", 1 << 20, "1MiB"),
            ("1.5GiB", 3 << 29, "1536MiB"),
            ("2mb", 2_000_000, "2000000B"),
            ("7B", 7, "7B"),
            ("0B", 0, "0B"),
        ] {
            assert_eq!(text(written), Ok(Size(bytes)), "{written}");
            assert_eq!(Size(bytes).to_string(), shown);
            assert_eq!(text(shown), Ok(Size(bytes)), "{shown} reads back");
        }
        assert_eq!(Size::read(&Scalar::Integer(42)), Ok(Size(42)));
        for wrong in [
            "",
            "MiB",
            "1",
            "1XB",
            "-1MiB",
            "0.3B",
            "99999999999TiB",
            "1..2MiB",
        ] {
            assert!(text::<Size>(wrong).is_err(), "{wrong}");
        }
        assert!(Size::read(&Scalar::Integer(-1)).is_err());
        assert!(Size::read(&Scalar::Boolean(true)).is_err());
    }

    #[test]
    fn rates_read_and_show() {
        for (written, bits, shown) in [
            ("100Mbit", 100_000_000, "\"100Mbit\""),
            ("2.5 Gbit/s", 2_500_000_000, "\"2500Mbit\""),
            ("64kbit", 64_000, "\"64kbit\""),
            ("7bit", 7, "\"7bit\""),
        ] {
            assert_eq!(text(written), Ok(Rate(bits)), "{written}");
            assert_eq!(Rate(bits).show().as_deref(), Some(shown));
        }
        for wrong in ["", "100", "100MB", "0.5bit", "-1Mbit"] {
            assert!(text::<Rate>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_read_and_show() {
        for (written, nanos, shown) in [
            ("500us", 500_000, "\"500us\""),
            ("10ms", 10_000_000, "\"10ms\""),
            ("1.5s", 1_500_000_000, "\"1500ms\""),
            ("90s", 90_000_000_000, "\"90s\""),
            ("5m", 300_000_000_000, "\"5m\""),
            ("7d", 604_800_000_000_000, "\"7d\""),
            ("0s", 0, "\"0s\""),
        ] {
            let value = Duration::from_nanos(nanos);
            assert_eq!(text(written), Ok(value), "{written}");
            assert_eq!(value.show().as_deref(), Some(shown));
        }
        for wrong in ["", "s", "10", "10 minutes", "-1s", "0.5ns", "999999999d"] {
            assert!(text::<Duration>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_bare_number_is_no_duration_and_the_message_shows_the_remedy() {
        let Err(Unreadable::Because(reason)) = Duration::read(&Scalar::Integer(10)) else {
            panic!("a number without unit was taken for a duration");
        };
        assert!(reason.contains("\"10s\""), "{reason}");
    }
}
