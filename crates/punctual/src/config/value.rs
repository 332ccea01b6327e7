//! The kinds of value that a key can have, and their spelling in TOML.
//!
//! Each kind reads itself from a [`Scalar`] and writes itself back, and says in
//! words what it expects: messages, the commented default file and the
//! reference are made from the same words. No kind gives zero a second meaning:
//! what has no bound is `"unlimited"`, what is switched off is `"off"`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// One value as it was written, before it is known what it should be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    /// A TOML string.
    Text(String),
    /// Text from the environment, which has no types: `10` may be a number.
    Untyped(String),
    /// A TOML integer.
    Integer(i128),
    /// A TOML boolean.
    Boolean(bool),
    /// A TOML list of strings.
    List(Vec<String>),
    /// Anything else that TOML can write (a float, a date), as written.
    Other(String),
}

impl Scalar {
    /// The text of a string, whatever its origin.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Untyped(text) => Some(text),
            _ => None,
        }
    }

    /// The number, where this is one.
    fn integer(&self) -> Option<i128> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Untyped(text) => text.replace('_', "").parse().ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&quote(text)),
            Self::Untyped(text) | Self::Other(text) => f.write_str(text),
            Self::List(items) => f.write_str(&quote_all(items)),
            Self::Integer(number) => number.fmt(f),
            Self::Boolean(value) => value.fmt(f),
        }
    }
}

/// A TOML basic string with `text` in it.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A TOML list of strings.
fn quote_all(items: &[String]) -> String {
    let items: Vec<_> = items.iter().map(|item| quote(item)).collect();
    format!("[{}]", items.join(", "))
}

/// Why a value could not be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Unreadable {
    /// It is something else than the key expects.
    Kind,
    /// It is of the right kind, and wrong for this reason.
    Because(String),
}

/// A kind of value.
pub(crate) trait Setting: Sized {
    /// What is expected, to stand after "expected".
    fn expects() -> String;

    /// Reads the value, or says why it cannot be one.
    fn read(scalar: &Scalar) -> Result<Self, Unreadable>;

    /// The value in TOML; `None` for a key that is absent.
    fn show(&self) -> Option<String>;
}

/// A kind of value that can be given a smallest and a largest.
pub(crate) trait Ranged {
    /// What is compared.
    type Unit: PartialOrd + Setting;

    /// The value to compare; `None` where no range applies ("unlimited").
    fn unit(&self) -> Option<&Self::Unit>;
}

macro_rules! ranged_by_itself {
    ($($type:ty),+) => {
        $(impl Ranged for $type {
            type Unit = Self;

            fn unit(&self) -> Option<&Self> {
                Some(self)
            }
        })+
    };
}

ranged_by_itself!(u8, u16, u32, u64, Size, Duration);

macro_rules! whole_number {
    ($($type:ty),+) => {
        $(impl Setting for $type {
            fn expects() -> String {
                "a whole number".into()
            }

            fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
                let number = scalar.integer().ok_or(Unreadable::Kind)?;
                Self::try_from(number).map_err(|_| {
                    Unreadable::Because(if number < 0 {
                        "a negative number has no meaning here".into()
                    } else {
                        format!("the number is too large, {} is the largest", Self::MAX)
                    })
                })
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        })+
    };
}

whole_number!(u8, u16, u32, u64);

impl Setting for bool {
    fn expects() -> String {
        "true or false".into()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        match scalar {
            Scalar::Boolean(value) => Ok(*value),
            Scalar::Untyped(text) => text.parse().map_err(|_| Unreadable::Kind),
            Scalar::Text(text) if text == "true" || text == "false" => {
                Err(Unreadable::Because(format!("write {text} without quotes")))
            }
            _ => Err(Unreadable::Kind),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for PathBuf {
    fn expects() -> String {
        "a path".into()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        match scalar.text() {
            Some("") => Err(Unreadable::Because(
                "the path is empty; leave the key out instead".into(),
            )),
            Some(text) => Ok(text.into()),
            None => Err(Unreadable::Kind),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quote(&self.to_string_lossy()))
    }
}

impl Setting for String {
    fn expects() -> String {
        "text".into()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        scalar.text().map(Self::from).ok_or(Unreadable::Kind)
    }

    fn show(&self) -> Option<String> {
        Some(quote(self))
    }
}

impl Setting for Vec<String> {
    fn expects() -> String {
        "a list of texts such as [\"a\", \"b\"]".into()
    }

    /// The environment separates the texts by commas.
    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        match scalar {
            Scalar::List(items) => Ok(items.clone()),
            Scalar::Untyped(text) => Ok(text.split(',').map(|item| item.trim().into()).collect()),
            _ => Err(Unreadable::Kind),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quote_all(self))
    }
}

impl Setting for SocketAddr {
    fn expects() -> String {
        "an address and a port such as \"127.0.0.1:8080\" or \"[::1]:8080\"".into()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        scalar
            .text()
            .and_then(|text| text.parse().ok())
            .ok_or(Unreadable::Kind)
    }

    fn show(&self) -> Option<String> {
        Some(quote(&self.to_string()))
    }
}

/// A key that may be left out, and then has no value.
impl<T: Setting> Setting for Option<T> {
    fn expects() -> String {
        T::expects()
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        T::read(scalar).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(T::show)
    }
}

impl<T: PartialOrd + Setting> Ranged for Option<T> {
    type Unit = T;

    fn unit(&self) -> Option<&T> {
        self.as_ref()
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

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
    pub(crate) const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` times 1024 KiB.
    pub(crate) const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` times 1024 MiB.
    pub(crate) const fn gib(n: u64) -> Self {
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

/// A bound, or in words that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit<T> {
    /// At most this much.
    At(T),
    /// `"unlimited"`.
    Unlimited,
}

impl<T: Setting> Setting for Limit<T> {
    fn expects() -> String {
        format!("{}, or \"unlimited\"", T::expects())
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        match scalar.text() {
            Some("unlimited") => Ok(Self::Unlimited),
            _ => T::read(scalar).map(Self::At),
        }
    }

    fn show(&self) -> Option<String> {
        match self {
            Self::At(value) => value.show(),
            Self::Unlimited => Some(quote("unlimited")),
        }
    }
}

impl<T: PartialOrd + Setting> Ranged for Limit<T> {
    type Unit = T;

    fn unit(&self) -> Option<&T> {
        match self {
            Self::At(value) => Some(value),
            Self::Unlimited => None,
        }
    }
}

/// Something that can be switched off in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch<T> {
    /// `"off"`.
    Off,
    /// On, with this value.
    On(T),
}

impl<T: Setting> Setting for Switch<T> {
    fn expects() -> String {
        format!("{}, or \"off\"", T::expects())
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        match scalar.text() {
            Some("off") => Ok(Self::Off),
            _ => T::read(scalar).map(Self::On),
        }
    }

    fn show(&self) -> Option<String> {
        match self {
            Self::Off => Some(quote("off")),
            Self::On(value) => value.show(),
        }
    }
}

impl<T: PartialOrd + Setting> Ranged for Switch<T> {
    type Unit = T;

    fn unit(&self) -> Option<&T> {
        match self {
            Self::Off => None,
            Self::On(value) => Some(value),
        }
    }
}

/// A number, or `"auto"`: the program chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Auto<T> {
    /// `"auto"`.
    Auto,
    /// Exactly this.
    Fixed(T),
}

impl<T: Setting> Setting for Auto<T> {
    fn expects() -> String {
        format!("{}, or \"auto\"", T::expects())
    }

    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        match scalar.text() {
            Some("auto") => Ok(Self::Auto),
            _ => T::read(scalar).map(Self::Fixed),
        }
    }

    fn show(&self) -> Option<String> {
        match self {
            Self::Auto => Some(quote("auto")),
            Self::Fixed(value) => value.show(),
        }
    }
}

impl<T: PartialOrd + Setting> Ranged for Auto<T> {
    type Unit = T;

    fn unit(&self) -> Option<&T> {
        match self {
            Self::Auto => None,
            Self::Fixed(value) => Some(value),
        }
    }
}

/// Defines an enum whose values are words (or `true` and `false`) in TOML.
macro_rules! words {
    (
        $(#[doc = $doc:literal])+
        $name:ident {
            $($(#[doc = $word_doc:literal])+ $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $($(#[doc = $word_doc])+ $variant,)+
        }

        impl Setting for $name {
            fn expects() -> String {
                let words = [$(stringify!($word)),+];
                match words.split_last() {
                    Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
                    None => String::new(),
                }
            }

            fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
                let written = match scalar {
                    Scalar::Text(text) => quote(text),
                    other => other.to_string(),
                };
                $(
                    let word = stringify!($word);
                    let bare = matches!(scalar, Scalar::Untyped(_)) && word.trim_matches('"') == written;
                    if bare || written == word {
                        return Ok(Self::$variant);
                    }
                )+
                Err(Unreadable::Kind)
            }

            fn show(&self) -> Option<String> {
                Some(match self {
                    $(Self::$variant => stringify!($word).into(),)+
                })
            }
        }
    };
}

pub(crate) use words;

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

    #[test]
    fn words_stand_for_no_bound_and_for_off() {
        assert_eq!(text("unlimited"), Ok(Limit::<u32>::Unlimited));
        assert_eq!(Limit::read(&Scalar::Integer(0)), Ok(Limit::At(0u32)));
        assert_eq!(text("off"), Ok(Switch::<Duration>::Off));
        assert_eq!(text("10s"), Ok(Switch::On(Duration::from_secs(10))));
        assert_eq!(text("auto"), Ok(Auto::<u16>::Auto));
        assert!(text::<Limit<u32>>("infinite").is_err());
    }

    #[test]
    fn only_the_environment_may_write_numbers_as_text() {
        assert_eq!(u32::read(&Scalar::Untyped("1_000".into())), Ok(1000));
        assert_eq!(text::<u32>("1000"), Err(Unreadable::Kind));
        assert_eq!(bool::read(&Scalar::Untyped("true".into())), Ok(true));
        assert!(text::<bool>("true").is_err());
        assert!(u8::read(&Scalar::Integer(256)).is_err());
        assert!(u8::read(&Scalar::Integer(-1)).is_err());
    }

    #[test]
    fn lists_read_and_show() {
        let list = vec!["a".to_owned(), "b\"".to_owned()];
        assert_eq!(Vec::read(&Scalar::List(list.clone())), Ok(list.clone()));
        assert_eq!(list.show().as_deref(), Some(r#"["a", "b\""]"#));
        let untyped = Scalar::Untyped("a, b\"".into());
        assert_eq!(Vec::read(&untyped), Ok(list));
        assert_eq!(text::<Vec<String>>("a"), Err(Unreadable::Kind));
    }

    #[test]
    fn quoting_survives_toml() {
        let nasty = "a\"b\\c\nd\te\u{1}ä";
        let document = format!("key = {}", quote(nasty));
        let table: toml::Table = document.parse().unwrap();
        assert_eq!(table["key"].as_str(), Some(nasty));
    }
}
