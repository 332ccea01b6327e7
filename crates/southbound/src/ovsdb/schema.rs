//! What has to be known of a schema to follow changes of rows: which columns
//! hold several values or pairs (RFC 7047 section 3.2).

use std::collections::BTreeMap;

use serde_json::Value;

use super::value::{Datum, MalformedValue};

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One value, or at most one. Changes name the new value.
    Single,
    /// A set that may have more. Changes name what is new and what is gone.
    Set,
    /// Pairs. Changes name those that differ.
    Map,
}

/// The columns of each table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schema {
    /// Its version, such as `1.0.0`.
    pub version: String,
    tables: BTreeMap<String, BTreeMap<String, Shape>>,
}

impl Schema {
    /// From the reply to `get_schema`.
    ///
    /// # Errors
    /// It is no schema.
    pub fn from_json(value: &Value) -> Result<Self, MalformedValue> {
        let wrong = || MalformedValue::new("is no schema", value);
        let tables = value.get("tables").and_then(Value::as_object);
        let tables = tables.ok_or_else(wrong)?.iter().map(|(name, table)| {
            let columns = table.get("columns").and_then(Value::as_object)?;
            let columns = columns
                .iter()
                .map(|(name, column)| Some((name.clone(), shape(column.get("type")?))))
                .collect::<Option<_>>()?;
            Some((name.clone(), columns))
        });
        Ok(Self {
            version: value
                .get("version")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            tables: tables.collect::<Option<_>>().ok_or_else(wrong)?,
        })
    }

    /// Shape of a column; `None` if there is no such column.
    pub fn shape(&self, table: &str, column: &str) -> Option<Shape> {
        self.tables.get(table)?.get(column).copied()
    }

    /// Value of a column after a change that a server reported.
    pub fn changed(
        &self,
        table: &str,
        column: &str,
        old: Option<&Datum>,
        difference: Datum,
    ) -> Datum {
        match (self.shape(table, column), old, difference) {
            (Some(Shape::Set), Some(Datum::Set(old)), Datum::Set(new)) => {
                Datum::Set(old.symmetric_difference(&new).cloned().collect())
            }
            (Some(Shape::Map), Some(Datum::Map(old)), Datum::Map(new)) => {
                let mut map = old.clone();
                for (key, value) in new {
                    if map.get(&key) == Some(&value) {
                        map.remove(&key);
                    } else {
                        map.insert(key, value);
                    }
                }
                Datum::Map(map)
            }
            (_, _, new) => new,
        }
    }
}

fn shape(kind: &Value) -> Shape {
    if kind.get("value").is_some() {
        return Shape::Map;
    }
    match kind.get("max") {
        None => Shape::Single,
        Some(max) if max.as_u64() == Some(1) => Shape::Single,
        Some(_) => Shape::Set,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::srt::SCHEMA;

    #[test]
    fn differences_are_applied_by_shape() {
        let schema = Schema::from_json(&serde_json::from_str(SCHEMA).unwrap()).unwrap();
        let set = |items: &[&str]| Datum::Set(items.iter().map(|item| (*item).into()).collect());
        let changed =
            |table, column, old: Datum, new| schema.changed(table, column, Some(&old), new);
        assert_eq!(
            changed("Request", "subscribers", set(&["a", "b"]), set(&["b", "c"])),
            set(&["a", "c"])
        );
        assert_eq!(
            changed("Request", "broker", set(&["a"]), set(&["b"])),
            set(&["b"])
        );
        assert_eq!(
            changed("Request", "broker", set(&["a"]), Datum::EMPTY),
            Datum::EMPTY
        );
        let map = |pairs: &[(&str, i64)]| {
            Datum::Map(
                pairs
                    .iter()
                    .map(|(k, v)| ((*k).into(), (*v).into()))
                    .collect(),
            )
        };
        assert_eq!(
            changed(
                "Channel",
                "bounds_ns",
                map(&[("a", 1), ("b", 2)]),
                map(&[("a", 1), ("b", 3), ("c", 4)])
            ),
            map(&[("b", 3), ("c", 4)])
        );
        assert_eq!(
            schema.changed("Request", "subscribers", None, set(&["x"])),
            set(&["x"])
        );
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for text in [
            "{}",
            "[]",
            r#"{"tables": {"T": {}}}"#,
            r#"{"tables": {"T": {"columns": {"c": {}}}}}"#,
        ] {
            let value = serde_json::from_str(text).unwrap();
            assert!(Schema::from_json(&value).is_err(), "{text}");
        }
    }
}
