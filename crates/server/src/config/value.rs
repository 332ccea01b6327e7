//! The kinds of value that a key can have, and their spelling in TOML.
//!
//! Each kind reads itself from a [`Scalar`] and writes itself back, and says in
//! words what it expects: messages, the commented default file and the
//! reference are made from the same words. No kind gives zero a second meaning:
//! what has no bound is `"unlimited"`, what is switched off is `"off"`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use punctual_net::marking::Dscp;

/// One value as it was written, before it is known what it should be.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
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
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Untyped(text) => Some(text),
            _ => None,
        }
    }

    /// The number, where this is one.
    pub(crate) fn integer(&self) -> Option<i128> {
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
pub enum Unreadable {
    /// It is something else than the key expects.
    Kind,
    /// It is of the right kind, and wrong for this reason.
    Because(String),
}

/// A kind of value.
pub trait Setting: Sized {
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

ranged_by_itself!(
    u8,
    u16,
    u32,
    u64,
    super::units::Size,
    super::units::Rate,
    Duration
);

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

/// What stands in a list as a text of its own form, such as `log/#: bulk`.
pub trait Listed: FromStr<Err = String> + fmt::Display {
    /// What is expected of the list, to stand after "expected".
    const EXPECTS: &'static str;
}

impl<T: Listed> Setting for Vec<T> {
    fn expects() -> String {
        T::EXPECTS.into()
    }

    /// The environment separates the texts by semicolons.
    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        let texts = match scalar {
            Scalar::List(items) => items.clone(),
            Scalar::Untyped(text) => text.split(';').map(|item| item.trim().into()).collect(),
            _ => return Err(Unreadable::Kind),
        };
        let item = |text: &String| {
            let wrong = |why: String| Unreadable::Because(format!("{text:?}: {why}"));
            text.parse().map_err(wrong)
        };
        texts.iter().map(item).collect()
    }

    fn show(&self) -> Option<String> {
        let texts: Vec<String> = self.iter().map(T::to_string).collect();
        Some(quote_all(&texts))
    }
}

impl Setting for Dscp {
    fn expects() -> String {
        "a DSCP by name such as \"EF\", \"CS5\" or \"AF41\", or by number from 0 to 63".into()
    }

    /// The environment has no types: `46` is a number there, and "46" is one
    /// nowhere else.
    fn read(scalar: &Scalar) -> Result<Self, Unreadable> {
        let text = match (scalar.integer(), scalar) {
            (Some(number), _) => number.to_string(),
            (None, Scalar::Text(text) | Scalar::Untyped(text)) => text.clone(),
            _ => return Err(Unreadable::Kind),
        };
        text.parse()
            .map_err(|error: punctual_net::marking::DscpError| {
                Unreadable::Because(format!("this is not a DSCP; {}", error.remedy))
            })
    }

    fn show(&self) -> Option<String> {
        Some(match self.name() {
            Some(name) => quote(name),
            None => self.number().to_string(),
        })
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

/// A bound, or in words that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit<T> {
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
pub enum Switch<T> {
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
pub enum Auto<T> {
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
        pub enum $name {
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
    fn code_points_are_named_or_numbered() {
        assert_eq!(text("EF"), Ok(Dscp::EF));
        assert_eq!(text("cs5"), Ok(Dscp::CS5));
        assert_eq!(Dscp::read(&Scalar::Integer(46)), Ok(Dscp::EF));
        assert_eq!(Dscp::read(&Scalar::Untyped("46".into())), Ok(Dscp::EF));
        assert_eq!(Dscp::EF.show().as_deref(), Some("\"EF\""));
        let unnamed = Dscp::read(&Scalar::Integer(45)).unwrap();
        assert_eq!(unnamed.show().as_deref(), Some("45"));
        for wrong in [
            Scalar::Integer(184),
            Scalar::Integer(-1),
            Scalar::Text("AF".into()),
        ] {
            let Err(Unreadable::Because(reason)) = Dscp::read(&wrong) else {
                panic!("{wrong} was taken for a DSCP");
            };
            assert!(reason.contains("write"), "{reason}");
        }
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
