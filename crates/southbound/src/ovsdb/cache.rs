//! Rows as a server has them, from the replies and updates of
//! `monitor_cond_since` (`ovsdb-server(7)`, sections 4.1.12 to 4.1.15).
//!
//! A full reply and a resumed one lead to the same: the cache knows what it had and reports what
//! differs. Changes that were not taken yet are merged by row, so that their number is bounded by
//! the rows.

use std::collections::BTreeMap;

use serde_json::Value;

use super::schema::Schema;
use super::value::{MalformedValue, Row, Uuid};

/// A row that is not what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its table.
    pub table: String,
    /// Its name.
    pub uuid: Uuid,
    /// As it was; `None`: it is new.
    pub old: Option<Row>,
    /// As it is; `None`: it is gone.
    pub new: Option<Row>,
}

/// What a row was when changes were last taken, and what it is.
type Differences = BTreeMap<(String, Uuid), (Option<Row>, Option<Row>)>;
type Tables = BTreeMap<String, BTreeMap<Uuid, Row>>;

/// The rows of the monitored tables.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    schema: Schema,
    tables: Tables,
    /// Last transaction that it has; `None`: nothing that could be gone on from.
    last: Option<String>,
    changes: Differences,
}

/// A transaction that no server has seen.
const NOTHING: &str = "00000000-0000-0000-0000-000000000000";

impl Cache {
    /// Parameters of the request that begins or resumes a monitor. `tables` are
    /// requests of that method, by table. Updates carry the database's name.
    pub fn monitor(&self, database: &str, tables: &Value) -> Value {
        let last = self.last.as_deref().unwrap_or(NOTHING);
        serde_json::json!([database, database, tables, last])
    }

    /// The schema that rows follow from now on.
    pub fn set_schema(&mut self, schema: Schema) {
        self.schema = schema;
    }

    /// Takes the reply to the request.
    ///
    /// # Errors
    /// It makes no sense; end the connection.
    pub fn replied(&mut self, reply: &Value) -> Result<(), MalformedValue> {
        let wrong = || MalformedValue::new("is no reply to a monitor", reply);
        let Some([Value::Bool(found), Value::String(last), updates]) =
            reply.as_array().map(Vec::as_slice)
        else {
            return Err(wrong());
        };
        if *found {
            return self.update(last, updates);
        }
        let mut fresh = Self {
            schema: self.schema.clone(),
            ..Self::default()
        };
        fresh.apply(last, updates)?;
        let old = std::mem::replace(&mut self.tables, fresh.tables);
        self.last = fresh.last;
        for (table, rows) in &old {
            let now = self.tables.get(table);
            for (uuid, row) in rows {
                let new = now.and_then(|rows| rows.get(uuid));
                if new != Some(row) {
                    note(
                        &mut self.changes,
                        table,
                        *uuid,
                        Some(row.clone()),
                        new.cloned(),
                    );
                }
            }
        }
        for (table, rows) in &self.tables {
            let before = old.get(table);
            for (uuid, row) in rows {
                if before.is_none_or(|rows| !rows.contains_key(uuid)) {
                    note(&mut self.changes, table, *uuid, None, Some(row.clone()));
                }
            }
        }
        Ok(())
    }

    /// Takes the parameters of an `update3`.
    ///
    /// # Errors
    /// They make no sense; end the connection.
    pub fn updated(&mut self, params: &Value) -> Result<(), MalformedValue> {
        match params.as_array().map(Vec::as_slice) {
            Some([_, Value::String(last), updates]) => self.update(last, updates),
            _ => Err(MalformedValue::new("is no update", params)),
        }
    }

    fn update(&mut self, last: &str, updates: &Value) -> Result<(), MalformedValue> {
        let applied = self.apply(last, updates);
        if applied.is_err() {
            // Half of it may have been taken: everything is to be said again.
            self.last = None;
        }
        applied
    }

    fn apply(&mut self, last: &str, updates: &Value) -> Result<(), MalformedValue> {
        let wrong = |value: &Value| MalformedValue::new("is no update of rows", value);
        let tables = updates.as_object().ok_or_else(|| wrong(updates))?;
        for (table, rows) in tables {
            for (uuid, update) in rows.as_object().ok_or_else(|| wrong(rows))? {
                let uuid: Uuid = uuid.parse()?;
                let fields = update.as_object().ok_or_else(|| wrong(update))?;
                let (kind, content) = fields.iter().next().ok_or_else(|| wrong(update))?;
                let rows = self.tables.entry(table.clone()).or_default();
                let old = rows.get(&uuid).cloned();
                let new = match kind.as_str() {
                    "initial" | "insert" => Some(columns(content)?),
                    "modify" => {
                        let mut row = old.clone().unwrap_or_default();
                        for (column, difference) in columns(content)?.0 {
                            let old = row.0.remove(&column);
                            let new = self
                                .schema
                                .changed(table, &column, old.as_ref(), difference);
                            row.0.insert(column, new);
                        }
                        Some(row)
                    }
                    "delete" => None,
                    _ => return Err(wrong(update)),
                };
                match &new {
                    Some(row) => rows.insert(uuid, row.clone()),
                    None => rows.remove(&uuid),
                };
                if old != new {
                    note(&mut self.changes, table, uuid, old, new);
                }
            }
        }
        self.last = Some(last.to_owned());
        Ok(())
    }

    /// Rows of a table.
    pub fn rows(&self, table: &str) -> impl Iterator<Item = (Uuid, &Row)> {
        let rows = self.tables.get(table).into_iter().flatten();
        rows.map(|(uuid, row)| (*uuid, row))
    }

    /// What has changed since it was last asked for, sorted by table and row.
    pub fn take_changes(&mut self) -> Vec<Change> {
        let changes = std::mem::take(&mut self.changes).into_iter();
        let changed = changes.filter(|(_, (old, new))| old != new);
        changed
            .map(|((table, uuid), (old, new))| Change {
                table,
                uuid,
                old,
                new,
            })
            .collect()
    }
}

/// The columns of an update that hold data. A server gives every row a new
/// `_version` when it starts, which says nothing about the row.
fn columns(content: &Value) -> Result<Row, MalformedValue> {
    let mut row = Row::from_json(content)?;
    row.0.remove("_version");
    Ok(row)
}

fn note(changes: &mut Differences, table: &str, uuid: Uuid, old: Option<Row>, new: Option<Row>) {
    changes
        .entry((table.to_owned(), uuid))
        .and_modify(|(_, last)| last.clone_from(&new))
        .or_insert((old, new));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const A: &str = "00000000-0000-0000-0000-00000000000a";
    const B: &str = "00000000-0000-0000-0000-00000000000b";

    fn cache() -> Cache {
        let schema = json!({"tables": {"T": {"columns": {
            "n": {"type": "integer"},
            "s": {"type": {"key": "string", "min": 0, "max": "unlimited"}},
        }}}});
        let mut cache = Cache::default();
        cache.set_schema(Schema::from_json(&schema).unwrap());
        cache
    }

    fn n(number: i64) -> Row {
        Row::default().with("n", number)
    }

    #[test]
    fn updates_become_rows_and_changes() {
        let mut cache = cache();
        let reply =
            json!([false, "t1", {"T": {A: {"initial": {"n": 1, "s": ["set", ["x", "y"]]}}}}]);
        cache.replied(&reply).unwrap();
        let old = cache.rows("T").next().unwrap().1.clone();
        assert_eq!(cache.take_changes().len(), 1);

        let update = json!([null, "t2", {"T": {A: {"modify": {"s": ["set", ["y", "z"]]}}, B: {"insert": {}}}}]);
        cache.updated(&update).unwrap();
        let changes = cache.take_changes();
        assert_eq!(changes[0].old, Some(old));
        let new = json!({"n": 1, "s": ["set", ["x", "z"]]});
        assert_eq!(changes[0].new, Some(Row::from_json(&new).unwrap()));
        assert_eq!((changes[1].uuid, &changes[1].old), (Uuid(11), &None));

        cache
            .updated(&json!([null, "t3", {"T": {A: {"delete": null}}}]))
            .unwrap();
        assert_eq!(cache.take_changes()[0].new, None);
        assert_eq!(cache.rows("T").count(), 1);
        assert_eq!(cache.monitor("D", &json!({}))[3], "t3", "it resumes there");
    }

    #[test]
    fn a_full_reply_after_a_break_tells_what_differs() {
        let mut cache = cache();
        let initial = |n, version| json!({"initial": {"n": n, "_version": ["uuid", version]}});
        let first = json!([false, "t1", {"T": {A: initial(1, A), B: initial(2, A)}}]);
        cache.replied(&first).unwrap();
        cache.take_changes();
        // The server has started again.
        let again = json!([false, "t9", {"T": {B: initial(2, B)}}]);
        cache.replied(&again).unwrap();
        let gone = Change {
            table: "T".into(),
            uuid: Uuid(10),
            old: Some(n(1)),
            new: None,
        };
        assert_eq!(cache.take_changes(), [gone]);
    }

    #[test]
    fn changes_that_wait_are_merged() {
        let mut cache = cache();
        cache.replied(&json!([false, "t0", {}])).unwrap();
        for number in 1..=3 {
            let kind = if number == 1 { "insert" } else { "modify" };
            let update = json!([null, "t", {"T": {A: {kind: {"n": number}}}}]);
            cache.updated(&update).unwrap();
        }
        let changes = cache.take_changes();
        assert_eq!(
            (changes.len(), &changes[0].old, &changes[0].new),
            (1, &None, &Some(n(3)))
        );
        cache
            .updated(&json!([null, "t", {"T": {B: {"insert": {"n": 1}}}}]))
            .unwrap();
        cache
            .updated(&json!([null, "t", {"T": {B: {"delete": null}}}]))
            .unwrap();
        assert_eq!(cache.take_changes(), [], "it came and went");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for reply in [
            json!(null),
            json!([true, "t"]),
            json!([false, "t", {"T": 1}]),
            json!([false, "t", {"T": {"x": {}}}]),
        ] {
            assert!(cache().replied(&reply).is_err(), "{reply}");
        }
        for updates in [
            json!({"T": {A: {}}}),
            json!({"T": {A: {"merge": {}}}}),
            json!({"T": {A: {"insert": [1]}}}),
        ] {
            assert!(
                cache().updated(&json!([null, "t", updates])).is_err(),
                "{updates}"
            );
        }
    }
}
