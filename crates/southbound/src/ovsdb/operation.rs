//! Transactions: what is to be done, and what came of it (RFC 7047 section
//! 5.2). All operations of a transaction are done, or none.

use std::fmt;

use serde_json::{Map, Value, json};

use super::value::{Datum, MalformedValue, Row, Uuid};

/// A comparison in a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// Less.
    Less,
    /// Less or equal.
    LessOrEqual,
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Greater or equal.
    GreaterOrEqual,
    /// Greater.
    Greater,
    /// Contains all of it.
    Includes,
    /// Contains nothing of it.
    Excludes,
}

impl Function {
    fn name(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::GreaterOrEqual => ">=",
            Self::Greater => ">",
            Self::Includes => "includes",
            Self::Excludes => "excludes",
        }
    }
}

/// A condition on a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The column.
    pub column: String,
    /// How it is compared.
    pub function: Function,
    /// With what.
    pub value: Datum,
}

impl Condition {
    /// That a column has a value.
    pub fn equal(column: &str, value: impl Into<Datum>) -> Self {
        Self {
            column: column.to_owned(),
            function: Function::Equal,
            value: value.into(),
        }
    }

    /// That it is this row.
    pub fn is(uuid: Uuid) -> Self {
        Self::equal("_uuid", uuid)
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!([self.column, self.function.name(), self.value.to_json()])
    }
}

/// How a column is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutator {
    /// Adds to numbers.
    Add,
    /// Subtracts from numbers.
    Subtract,
    /// Multiplies numbers.
    Multiply,
    /// Divides numbers.
    Divide,
    /// The rest of a division of whole numbers.
    Modulo,
    /// Adds elements.
    Insert,
    /// Takes elements away.
    Delete,
}

impl Mutator {
    fn name(self) -> &'static str {
        match self {
            Self::Add => "+=",
            Self::Subtract => "-=",
            Self::Multiply => "*=",
            Self::Divide => "/=",
            Self::Modulo => "%=",
            Self::Insert => "insert",
            Self::Delete => "delete",
        }
    }
}

/// A change of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// The column.
    pub column: String,
    /// How.
    pub mutator: Mutator,
    /// By what.
    pub value: Datum,
}

/// A step of a transaction. `conditions` that are empty hold for every row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Inserts a row.
    Insert {
        /// Where.
        table: String,
        /// Its columns; others have their defaults.
        row: Row,
        /// Name by which other operations of the transaction mean it.
        name: Option<String>,
    },
    /// Reads rows.
    Select {
        /// Where.
        table: String,
        /// Which.
        conditions: Vec<Condition>,
        /// Columns; `None` is all.
        columns: Option<Vec<String>>,
    },
    /// Overwrites columns of rows.
    Update {
        /// Where.
        table: String,
        /// Which.
        conditions: Vec<Condition>,
        /// The columns.
        row: Row,
    },
    /// Changes columns of rows.
    Mutate {
        /// Where.
        table: String,
        /// Which.
        conditions: Vec<Condition>,
        /// The changes.
        mutations: Vec<Mutation>,
    },
    /// Deletes rows.
    Delete {
        /// Where.
        table: String,
        /// Which.
        conditions: Vec<Condition>,
    },
    /// Waits until rows are, or are not, as stated; fails after the time.
    Wait {
        /// Where.
        table: String,
        /// Which.
        conditions: Vec<Condition>,
        /// Columns that are compared.
        columns: Vec<String>,
        /// Whether they are to be equal or not.
        equal: bool,
        /// What they are compared with.
        rows: Vec<Row>,
        /// Longest wait, ms; 0: fails at once.
        timeout_ms: u64,
    },
    /// Fails unless the client has the lock.
    Assert {
        /// Name of the lock.
        lock: String,
    },
    /// Says something in the server's journal.
    Comment(String),
    /// Replies when the transaction is on disk.
    Commit,
}

impl Operation {
    /// Deletes one row.
    pub fn delete(table: &str, row: Uuid) -> Self {
        Self::Delete {
            table: table.to_owned(),
            conditions: vec![Condition::is(row)],
        }
    }

    /// Inserts a row.
    pub fn insert(table: &str, row: Row) -> Self {
        Self::Insert {
            table: table.to_owned(),
            row,
            name: None,
        }
    }

    /// Overwrites columns of one row.
    pub fn update(table: &str, uuid: Uuid, row: Row) -> Self {
        Self::Update {
            table: table.to_owned(),
            conditions: vec![Condition::is(uuid)],
            row,
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let all = |conditions: &[Condition]| -> Value {
            conditions.iter().map(Condition::to_json).collect()
        };
        match self {
            Self::Insert { table, row, name } => {
                let mut operation = json!({"op": "insert", "table": table, "row": row.to_json()});
                if let (Some(name), Value::Object(fields)) = (name, &mut operation) {
                    fields.insert("uuid-name".into(), name.as_str().into());
                }
                operation
            }
            Self::Select {
                table,
                conditions,
                columns,
            } => {
                let mut operation =
                    json!({"op": "select", "table": table, "where": all(conditions)});
                if let (Some(columns), Value::Object(fields)) = (columns, &mut operation) {
                    fields.insert("columns".into(), json!(columns));
                }
                operation
            }
            Self::Update {
                table,
                conditions,
                row,
            } => json!({
                "op": "update", "table": table, "where": all(conditions), "row": row.to_json(),
            }),
            Self::Mutate {
                table,
                conditions,
                mutations,
            } => {
                let mutations: Vec<_> = mutations
                    .iter()
                    .map(|m| json!([m.column, m.mutator.name(), m.value.to_json()]))
                    .collect();
                json!({
                    "op": "mutate", "table": table, "where": all(conditions),
                    "mutations": mutations,
                })
            }
            Self::Delete { table, conditions } => {
                json!({"op": "delete", "table": table, "where": all(conditions)})
            }
            Self::Wait {
                table,
                conditions,
                columns,
                equal,
                rows,
                timeout_ms,
            } => {
                let rows: Vec<_> = rows.iter().map(Row::to_json).collect();
                json!({
                    "op": "wait", "table": table, "where": all(conditions), "columns": columns,
                    "until": if *equal { "==" } else { "!=" }, "rows": rows,
                    "timeout": timeout_ms,
                })
            }
            Self::Assert { lock } => json!({"op": "assert", "lock": lock}),
            Self::Comment(text) => json!({"op": "comment", "comment": text}),
            Self::Commit => json!({"op": "commit", "durable": true}),
        }
    }
}

/// Parameters of a `transact`.
pub fn transact(database: &str, operations: &[Operation]) -> Value {
    let name = std::iter::once(Value::from(database));
    name.chain(operations.iter().map(Operation::to_json))
        .collect()
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The row that was inserted.
    Inserted(Uuid),
    /// Rows that were found.
    Rows(Vec<Row>),
    /// How many rows were changed.
    Count(u64),
    /// Nothing to say.
    Done,
}

/// Why a transaction, or another request, failed at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Operation of the transaction, from 0; `None`: when it was committed.
    pub operation: Option<usize>,
    /// What kind of error: `constraint violation`, `permission error`, ...
    pub error: String,
    /// What exactly, for people.
    pub details: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        if !self.details.is_empty() {
            write!(f, ": {}", self.details)?;
        }
        match self.operation {
            Some(at) => write!(f, " (operation {at})"),
            None => Ok(()),
        }
    }
}

impl Failure {
    /// Reads an error object; anything else is quoted.
    pub fn from_json(operation: Option<usize>, value: &Value) -> Self {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        Self {
            operation,
            error: match (text("error"), value.as_str()) {
                (Some(error), _) | (None, Some(error)) => error.to_owned(),
                (None, None) => MalformedValue::new("unknown error", value).0,
            },
            details: text("details").unwrap_or_default().to_owned(),
        }
    }
}

/// Reads the result of a transaction of `count` operations.
///
/// # Errors
/// The reply makes no sense. The inner one: what the server has against it.
pub fn outcomes(
    count: usize,
    reply: &Value,
) -> Result<Result<Vec<Outcome>, Failure>, MalformedValue> {
    let wrong = || MalformedValue::new("is no result of a transaction", reply);
    let Value::Array(list) = reply else {
        return Err(wrong());
    };
    let failed = |value: &&Value| value.get("error").is_some_and(|error| !error.is_null());
    if let Some((at, error)) = list.iter().enumerate().find(|(_, value)| failed(value)) {
        let operation = (at < count).then_some(at);
        return Ok(Err(Failure::from_json(operation, error)));
    }
    if list.len() != count {
        return Err(wrong());
    }
    let read = |value: &Value| -> Result<Outcome, MalformedValue> {
        let Value::Object(fields) = value else {
            return Err(wrong());
        };
        outcome(fields).ok_or_else(wrong)?
    };
    list.iter().map(read).collect::<Result<_, _>>().map(Ok)
}

fn outcome(fields: &Map<String, Value>) -> Option<Result<Outcome, MalformedValue>> {
    if let Some(uuid) = fields.get("uuid") {
        return match Datum::from_json(uuid).ok()?.scalar()? {
            super::value::Atom::Uuid(uuid) => Some(Ok(Outcome::Inserted(*uuid))),
            _ => None,
        };
    }
    if let Some(rows) = fields.get("rows") {
        let rows: Result<_, _> = rows.as_array()?.iter().map(Row::from_json).collect();
        return Some(rows.map(Outcome::Rows));
    }
    match fields.get("count") {
        Some(count) => Some(Ok(Outcome::Count(count.as_u64()?))),
        None => Some(Ok(Outcome::Done)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_written_as_the_rfc_says() {
        let uuid = Uuid(1);
        let all = [
            Operation::Insert {
                table: "T".into(),
                row: Row::default().with("a", 1),
                name: Some("new".into()),
            },
            Operation::update("T", uuid, Row::default().with("b", "x")),
            Operation::Mutate {
                table: "T".into(),
                conditions: vec![],
                mutations: vec![Mutation {
                    column: "a".into(),
                    mutator: Mutator::Add,
                    value: 2.into(),
                }],
            },
            Operation::delete("T", uuid),
            Operation::Comment("why".into()),
        ];
        let name = "00000000-0000-0000-0000-000000000001";
        assert_eq!(
            transact("D", &all),
            json!(["D",
                {"op": "insert", "table": "T", "row": {"a": 1}, "uuid-name": "new"},
                {"op": "update", "table": "T", "where": [["_uuid", "==", ["uuid", name]]], "row": {"b": "x"}},
                {"op": "mutate", "table": "T", "where": [], "mutations": [["a", "+=", 2]]},
                {"op": "delete", "table": "T", "where": [["_uuid", "==", ["uuid", name]]]},
                {"op": "comment", "comment": "why"},
            ])
        );
    }

    #[test]
    fn results_are_read() {
        let name = "00000000-0000-0000-0000-000000000001";
        let reply = json!([{"uuid": ["uuid", name]}, {"rows": [{"a": 1}]}, {"count": 3}, {}]);
        let expected = vec![
            Outcome::Inserted(Uuid(1)),
            Outcome::Rows(vec![Row::default().with("a", 1)]),
            Outcome::Count(3),
            Outcome::Done,
        ];
        assert_eq!(outcomes(4, &reply), Ok(Ok(expected)));
        assert!(outcomes(3, &reply).is_err(), "one too many");
        assert!(outcomes(1, &json!({})).is_err());
        assert!(outcomes(1, &json!([{"uuid": 3}])).is_err());
    }

    #[test]
    fn the_failing_operation_is_named() {
        let failed =
            json!([{"count": 1}, {"error": "constraint violation", "details": "3 > 2"}, null]);
        let failure = outcomes(3, &failed).unwrap().unwrap_err();
        assert_eq!(
            failure.to_string(),
            "constraint violation: 3 > 2 (operation 1)"
        );
        let late = json!([{"count": 1}, {"error": "timed out"}]);
        let failure = outcomes(1, &late).unwrap().unwrap_err();
        assert_eq!(failure.operation, None, "when it was committed");
    }
}
