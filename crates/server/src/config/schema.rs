//! How a section of the configuration is declared: once.
//!
//! `section!` takes a key's name, type, documentation, default, range, first
//! version and time of effect, and makes the struct, its defaults, its reader
//! and the description from which the commented default file and the reference
//! are generated. Nothing about a key is written anywhere else.

use std::collections::BTreeMap;

use super::document::{Content, Node, Table};
use super::origin::Origin;
use super::problem::{Problem, Problems, nearest};
use super::value::{Ranged, Setting, Unreadable};

/// When a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// On reload (SIGHUP). What is agreed with a client when it connects holds
    /// for new connections.
    Reload,
    /// When the program is started again.
    Restart,
}

/// A key, described.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// Name within its section.
    pub name: &'static str,
    /// Paragraph that explains it, by line.
    pub doc: &'static [&'static str],
    /// What a value looks like.
    pub expects: String,
    /// Smallest and largest value, as TOML.
    pub range: Option<(String, String)>,
    /// Default, as TOML; `None` for a key that is absent by default.
    pub default: Option<String>,
    /// An example for a key that is absent by default, as TOML.
    pub example: Option<&'static str>,
    /// Version of Punctual that knew it first.
    pub since: &'static str,
    /// When a change takes effect.
    pub effect: Effect,
}

/// A section: a table in the file and a struct in the program.
pub(crate) trait Section: Default {
    /// Name of the table.
    const NAME: &'static str;
    /// What the section is about, by line.
    const DOC: &'static [&'static str];

    /// Its keys, in the order of declaration.
    fn keys() -> Vec<Key>;

    /// Takes its values out of `table`; what is left there is unknown.
    fn read_known(&mut self, table: &mut Table, path: &str, reader: &mut Reader);

    /// The values as TOML, in the order of [`keys`](Self::keys).
    fn values(&self) -> Vec<Option<String>>;

    /// Takes over what takes effect only at the next start.
    fn keep_fixed(&mut self, started: &Self);

    /// Reads the section named `path` from `node`.
    fn read(node: Node, path: &str, reader: &mut Reader) -> Self {
        let mut section = Self::default();
        reader.origins.insert(path.into(), node.origin.clone());
        let Content::Table(mut table) = node.content else {
            reader.problems.push(Problem {
                origin: Some(node.origin),
                key: path.into(),
                value: None,
                what: "this is a section, not a value".into(),
                remedy: format!("write [{path}] on a line of its own and its keys below it"),
            });
            return section;
        };
        section.read_known(&mut table, path, reader);
        let known: Vec<_> = Self::keys().iter().map(|key| key.name).collect();
        for (key, node) in table {
            reader.unknown(path, &key, &node, &known);
        }
        section
    }
}

/// What reading collects: problems, and where every value came from.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// What was wrong.
    pub problems: Problems,
    /// Where values and sections were written, by their full names.
    pub origins: BTreeMap<String, Origin>,
}

impl Reader {
    /// Reads one value into `target`, where `table` has it.
    pub(crate) fn value<T: Setting>(
        &mut self,
        table: &mut Table,
        path: &str,
        key: &str,
        in_range: impl FnOnce(&T) -> Result<(), (String, String)>,
        target: &mut T,
    ) {
        let Some(node) = table.remove(key) else {
            return;
        };
        let name = format!("{path}.{key}");
        let problem = |value, what, remedy| Problem {
            origin: Some(node.origin.clone()),
            key: name.clone(),
            value,
            what,
            remedy,
        };
        let Content::Scalar(scalar) = &node.content else {
            self.problems.push(problem(
                None,
                "this key has a value, not a table".into(),
                format!("write `{key} = ...` with {} under [{path}]", T::expects()),
            ));
            return;
        };
        let value = Some(scalar.to_string());
        match T::read(scalar) {
            Ok(read) => match in_range(&read) {
                Ok(()) => {
                    *target = read;
                    self.origins.insert(name, node.origin);
                }
                Err((low, high)) => self.problems.push(problem(
                    value,
                    "the value is out of range".into(),
                    format!("write a value from {low} to {high}"),
                )),
            },
            Err(Unreadable::Kind) => self.problems.push(problem(
                value,
                format!("expected {}", T::expects()),
                "correct the value, or leave the key out to have its default".into(),
            )),
            Err(Unreadable::Because(reason)) => {
                let remedy = format!("write {}", T::expects());
                self.problems.push(problem(value, reason, remedy));
            }
        }
    }

    /// Reports a key that does not exist.
    pub(crate) fn unknown(&mut self, path: &str, key: &str, node: &Node, known: &[&str]) {
        let full = |key: &str| match path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        self.problems.push(Problem {
            origin: Some(node.origin.clone()),
            key: full(key),
            value: None,
            what: "there is no such key".into(),
            remedy: match nearest(key, known.iter().copied()) {
                Some(near) => format!("did you mean {}?", full(near)),
                None => "`punctual config default` lists every key".into(),
            },
        });
    }
}

/// Checks a range: `Err` has the two ends as TOML.
pub(crate) fn check_range<T: Ranged>(
    value: &T,
    low: &T::Unit,
    high: &T::Unit,
) -> Result<(), (String, String)> {
    match value.unit() {
        Some(unit) if unit < low || unit > high => Err(ends::<T>(low, high)),
        _ => Ok(()),
    }
}

/// The ends of a range as TOML.
pub(crate) fn ends<T: Ranged>(low: &T::Unit, high: &T::Unit) -> (String, String) {
    (
        low.show().unwrap_or_default(),
        high.show().unwrap_or_default(),
    )
}

/// Declares a section. Each key is written
/// `name: type = default, in low => high, example "...", since "0.1.0", effect;`
/// where range and example may be left out.
macro_rules! section {
    (
        $(#[doc = $section_doc:literal])+
        $section:ident [$name:literal] {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $type:ty = $default:expr,
                $(in $low:expr => $high:expr,)?
                $(example $example:literal,)?
                since $since:literal, $effect:ident;
            )+
        }
    ) => {
        $(#[doc = $section_doc])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $section {
            $($(#[doc = $doc])+ pub $key: $type,)+
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }

        impl $crate::config::schema::Section for $section {
            const NAME: &'static str = $name;
            const DOC: &'static [&'static str] = &[$($section_doc),+];

            fn keys() -> Vec<$crate::config::schema::Key> {
                let defaults = Self::default();
                vec![$($crate::config::schema::Key {
                    name: stringify!($key),
                    doc: &[$($doc),+],
                    expects: <$type as $crate::config::value::Setting>::expects(),
                    range: section!(@ends $type $(, $low => $high)?),
                    default: $crate::config::value::Setting::show(&defaults.$key),
                    example: section!(@option $($example)?),
                    since: $since,
                    effect: $crate::config::schema::Effect::$effect,
                }),+]
            }

            fn read_known(
                &mut self,
                table: &mut $crate::config::document::Table,
                path: &str,
                reader: &mut $crate::config::schema::Reader,
            ) {
                $(reader.value(
                    table,
                    path,
                    stringify!($key),
                    |value: &$type| section!(@check value $($low => $high)?),
                    &mut self.$key,
                );)+
            }

            fn values(&self) -> Vec<Option<String>> {
                vec![$($crate::config::value::Setting::show(&self.$key)),+]
            }

            fn keep_fixed(&mut self, started: &Self) {
                use $crate::config::schema::Effect;
                $(if Effect::$effect == Effect::Restart {
                    self.$key.clone_from(&started.$key);
                })+
            }
        }
    };
    (@ends $type:ty) => { None };
    (@ends $type:ty, $low:expr => $high:expr) => {
        Some($crate::config::schema::ends::<$type>(&$low, &$high))
    };
    (@option) => { None };
    (@option $example:literal) => { Some($example) };
    (@check $value:ident) => {{
        let _ = $value;
        Ok(())
    }};
    (@check $value:ident $low:expr => $high:expr) => {
        $crate::config::schema::check_range($value, &$low, &$high)
    };
}

pub(crate) use section;
