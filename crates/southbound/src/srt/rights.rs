//! Access rights: rows of RBAC in the database (`ovsdb-server(7)`).
//!
//! A manager on a listener with the role changes only requests whose `manager`
//! is the common name of its certificate, and its own row of managers. All else
//! it may read.

use super::MANAGER_ROLE;
use super::rows::{MANAGER, REQUEST};
use crate::ovsdb::operation::Operation;
use crate::ovsdb::value::{Atom, Datum, Row};

/// Columns of requests that a manager may change; the others are its name and
/// the flow's.
const REQUEST_COLUMNS: [&str; 14] = [
    "generation",
    "topic",
    "qos",
    "publisher",
    "subscribers",
    "broker",
    "deadline_ns",
    "period_ns",
    "jitter_ns",
    "size",
    "wire_bytes",
    "frames",
    "priority",
    "bandwidth",
];
const MANAGER_COLUMNS: [&str; 3] = ["address", "generation", "last_seen_ms"];

/// Makes the role of managers in a database that does not have it.
pub fn rights() -> Vec<Operation> {
    let permission = |table: &str, owner: &str, columns: &[&str]| {
        let columns = columns.iter().map(|column| Atom::from(*column));
        Operation::Insert {
            table: "RBAC_Permission".into(),
            row: Row::default()
                .with("table", table)
                .with("authorization", owner)
                .with("insert_delete", true)
                .with("update", Datum::Set(columns.collect())),
            name: Some(format!("of_{table}")),
        }
    };
    let named = |table: &str| (table.into(), Atom::NamedUuid(format!("of_{table}")));
    let permissions = [named(REQUEST), named(MANAGER)];
    let role = Row::default()
        .with("name", MANAGER_ROLE)
        .with("permissions", Datum::Map(permissions.into()));
    vec![
        permission(REQUEST, "manager", &REQUEST_COLUMNS),
        permission(MANAGER, "name", &MANAGER_COLUMNS),
        Operation::insert("RBAC_Role", role),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_manager_may_change_all_but_the_names() {
        let schema: serde_json::Value = serde_json::from_str(super::super::SCHEMA).unwrap();
        for (table, columns, names) in [
            (REQUEST, &REQUEST_COLUMNS[..], &["manager", "flow"][..]),
            (MANAGER, &MANAGER_COLUMNS, &["name"]),
        ] {
            let all = schema["tables"][table]["columns"].as_object().unwrap();
            let all: BTreeSet<_> = all.keys().map(String::as_str).collect();
            let stated: BTreeSet<_> = columns.iter().chain(names).copied().collect();
            assert_eq!(stated, all);
        }
    }
}
