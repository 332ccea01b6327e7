//! Values of columns: atoms, sets and maps (RFC 7047 section 5.1).
//!
//! A scalar is a set of one. Sets and maps have no order in OVSDB; here they are
//! sorted, so that equal data are equal values.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde_json::{Number, Value, json};

/// Why JSON is no value of OVSDB.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedValue(pub String);

impl MalformedValue {
    pub(crate) fn new(what: &str, value: &Value) -> Self {
        let mut shown = value.to_string();
        if let Some((end, _)) = shown.char_indices().nth(120) {
            shown.truncate(end);
        }
        Self(format!("{what}: {shown}"))
    }
}

/// Name of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub u128);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            n >> 96,
            (n >> 80) & 0xffff,
            (n >> 64) & 0xffff,
            (n >> 48) & 0xffff,
            n & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = MalformedValue;

    fn from_str(text: &str) -> Result<Self, MalformedValue> {
        let wrong = || MalformedValue(format!("{text:?} is no UUID"));
        let hyphens = [8, 13, 18, 23];
        let shaped = text.len() == 36
            && text.bytes().enumerate().all(|(at, byte)| match byte {
                b'-' => hyphens.contains(&at),
                byte => byte.is_ascii_hexdigit() && !hyphens.contains(&at),
            });
        if !shaped {
            return Err(wrong());
        }
        let digits = text.replace('-', "");
        u128::from_str_radix(&digits, 16)
            .map(Self)
            .map_err(|_| wrong())
    }
}

/// An indivisible value.
#[derive(Debug, Clone)]
pub enum Atom {
    /// A whole number.
    Integer(i64),
    /// A floating-point number; finite.
    Real(f64),
    /// True or false.
    Boolean(bool),
    /// A text.
    String(String),
    /// A row.
    Uuid(Uuid),
    /// A row that the same transaction inserts.
    NamedUuid(String),
}

impl Atom {
    fn rank(&self) -> u8 {
        match self {
            Self::Integer(_) => 0,
            Self::Real(_) => 1,
            Self::Boolean(_) => 2,
            Self::String(_) => 3,
            Self::Uuid(_) => 4,
            Self::NamedUuid(_) => 5,
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Integer(number) => (*number).into(),
            Self::Real(number) => Number::from_f64(*number).map_or(Value::Null, Value::Number),
            Self::Boolean(truth) => (*truth).into(),
            Self::String(text) => text.as_str().into(),
            Self::Uuid(uuid) => json!(["uuid", uuid.to_string()]),
            Self::NamedUuid(name) => json!(["named-uuid", name]),
        }
    }

    /// From JSON.
    ///
    /// # Errors
    /// It is no atom.
    pub fn from_json(value: &Value) -> Result<Self, MalformedValue> {
        let atom = match value {
            Value::Bool(truth) => Some(Self::Boolean(*truth)),
            Value::String(text) => Some(Self::String(text.clone())),
            Value::Number(number) => match number.as_i64() {
                Some(number) => Some(Self::Integer(number)),
                None => number.as_f64().filter(|n| n.is_finite()).map(Self::Real),
            },
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(kind), Value::String(name)] if kind == "uuid" => {
                    Some(Self::Uuid(name.parse()?))
                }
                [Value::String(kind), Value::String(name)] if kind == "named-uuid" => {
                    Some(Self::NamedUuid(name.clone()))
                }
                _ => None,
            },
            _ => None,
        };
        atom.ok_or_else(|| MalformedValue::new("is no atom", value))
    }
}

impl Ord for Atom {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => a.cmp(b),
            (Self::Real(a), Self::Real(b)) => a.total_cmp(b),
            (Self::Boolean(a), Self::Boolean(b)) => a.cmp(b),
            (Self::String(a), Self::String(b)) | (Self::NamedUuid(a), Self::NamedUuid(b)) => {
                a.cmp(b)
            }
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Atom {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Atom {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Atom {}

impl From<i64> for Atom {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for Atom {
    fn from(truth: bool) -> Self {
        Self::Boolean(truth)
    }
}

impl From<&str> for Atom {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Atom {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Uuid> for Atom {
    fn from(uuid: Uuid) -> Self {
        Self::Uuid(uuid)
    }
}

/// Value of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datum {
    /// A set; a scalar is a set of one, an optional value one of at most one.
    Set(BTreeSet<Atom>),
    /// A map.
    Map(BTreeMap<Atom, Atom>),
}

impl Datum {
    /// The empty set.
    pub const EMPTY: Self = Self::Set(BTreeSet::new());

    /// A value or none.
    pub fn optional(atom: Option<impl Into<Atom>>) -> Self {
        Self::Set(atom.into_iter().map(Into::into).collect())
    }

    /// The only atom of a set of one.
    pub fn scalar(&self) -> Option<&Atom> {
        match self {
            Self::Set(set) if set.len() == 1 => set.first(),
            _ => None,
        }
    }

    /// The only text.
    pub fn text(&self) -> Option<&str> {
        match self.scalar()? {
            Atom::String(text) => Some(text),
            _ => None,
        }
    }

    /// The only whole number.
    pub fn integer(&self) -> Option<i64> {
        match self.scalar()? {
            Atom::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The only truth.
    pub fn boolean(&self) -> Option<bool> {
        match self.scalar()? {
            Atom::Boolean(truth) => Some(*truth),
            _ => None,
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Set(set) => match set.first() {
                Some(atom) if set.len() == 1 => atom.to_json(),
                _ => {
                    let atoms: Vec<_> = set.iter().map(Atom::to_json).collect();
                    json!(["set", atoms])
                }
            },
            Self::Map(map) => {
                let pairs: Vec<_> = map
                    .iter()
                    .map(|(key, value)| json!([key.to_json(), value.to_json()]))
                    .collect();
                json!(["map", pairs])
            }
        }
    }

    /// From JSON.
    ///
    /// # Errors
    /// It is no value of a column.
    pub fn from_json(value: &Value) -> Result<Self, MalformedValue> {
        let Some([Value::String(kind), Value::Array(list)]) = value.as_array().map(Vec::as_slice)
        else {
            return Ok(Atom::from_json(value)?.into());
        };
        match kind.as_str() {
            "set" => list
                .iter()
                .map(Atom::from_json)
                .collect::<Result<_, _>>()
                .map(Self::Set),
            "map" => list
                .iter()
                .map(|pair| match pair.as_array().map(Vec::as_slice) {
                    Some([key, value]) => Ok((Atom::from_json(key)?, Atom::from_json(value)?)),
                    _ => Err(MalformedValue::new("is no pair of a map", pair)),
                })
                .collect::<Result<_, _>>()
                .map(Self::Map),
            _ => Err(MalformedValue::new("is no set and no map", value)),
        }
    }
}

impl<A: Into<Atom>> From<A> for Datum {
    fn from(atom: A) -> Self {
        Self::Set(BTreeSet::from([atom.into()]))
    }
}

/// Columns and their values. What is absent has the default of its type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row(pub BTreeMap<String, Datum>);

impl Row {
    /// With another column.
    #[must_use]
    pub fn with(mut self, column: &str, value: impl Into<Datum>) -> Self {
        self.0.insert(column.to_owned(), value.into());
        self
    }

    /// Value of a column.
    pub fn get(&self, column: &str) -> Option<&Datum> {
        self.0.get(column)
    }

    /// A text, empty by default.
    pub fn text(&self, column: &str) -> &str {
        self.get(column).and_then(Datum::text).unwrap_or_default()
    }

    /// A whole number, 0 by default.
    pub fn integer(&self, column: &str) -> i64 {
        self.get(column).and_then(Datum::integer).unwrap_or(0)
    }

    /// A truth, false by default.
    pub fn boolean(&self, column: &str) -> bool {
        self.get(column).and_then(Datum::boolean).unwrap_or(false)
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let columns = self.0.iter();
        Value::Object(
            columns
                .map(|(name, datum)| (name.clone(), datum.to_json()))
                .collect(),
        )
    }

    /// From JSON.
    ///
    /// # Errors
    /// It is no row.
    pub fn from_json(value: &Value) -> Result<Self, MalformedValue> {
        let Value::Object(columns) = value else {
            return Err(MalformedValue::new("is no row", value));
        };
        columns
            .iter()
            .map(|(name, value)| Ok((name.clone(), Datum::from_json(value)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn atom() -> impl Strategy<Value = Atom> {
        prop_oneof![
            any::<i64>().prop_map(Atom::Integer),
            // The parser may be wrong in the last digit of others.
            any::<i32>().prop_map(|n| Atom::Real(f64::from(n) + 0.5)),
            any::<bool>().prop_map(Atom::Boolean),
            ".*".prop_map(Atom::String),
            any::<u128>().prop_map(|n| Atom::Uuid(Uuid(n))),
            "[a-z]+".prop_map(Atom::NamedUuid),
        ]
    }

    fn datum() -> impl Strategy<Value = Datum> {
        prop_oneof![
            proptest::collection::btree_set(atom(), 0..4).prop_map(Datum::Set),
            proptest::collection::btree_map(atom(), atom(), 0..4).prop_map(Datum::Map),
        ]
    }

    proptest! {
        #[test]
        fn data_survive_json(datum in datum()) {
            let text = datum.to_json().to_string();
            let value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(Datum::from_json(&value), Ok(datum));
        }
    }

    #[test]
    fn the_notation_is_that_of_the_rfc() {
        let uuid = "550e8400-e29b-41d4-a716-446655440000";
        for (json, datum) in [
            (json!(5), Datum::from(5)),
            (json!(["set", []]), Datum::EMPTY),
            (
                json!(["set", [1, 2]]),
                Datum::Set([1.into(), 2.into()].into()),
            ),
            (
                json!(["uuid", uuid]),
                Datum::from(uuid.parse::<Uuid>().unwrap()),
            ),
            (
                json!(["map", [["a", 1]]]),
                Datum::Map([("a".into(), 1.into())].into()),
            ),
        ] {
            assert_eq!(Datum::from_json(&json), Ok(datum.clone()));
            assert_eq!(datum.to_json(), json);
        }
        assert_eq!(
            Datum::from_json(&json!(["set", [7]])),
            Ok(7.into()),
            "a set of one"
        );
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for value in [
            json!(null),
            json!({}),
            json!(["set"]),
            json!(["set", 1]),
            json!(["set", [[1]]]),
            json!(["map", [["a"]]]),
            json!(["uuid", "550e8400"]),
            json!(["uuid", "550e8400-e29b-41d4-a716+446655440000"]),
            json!(["bag", []]),
        ] {
            assert!(Datum::from_json(&value).is_err(), "{value}");
        }
    }
}
