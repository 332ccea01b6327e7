//! Rows as they are wanted against rows as they are: what to write, until both
//! agree.
//!
//! What is wanted is a state, not a list of things to do, so that a broken
//! connection, a restart on either side or a change that overtakes another
//! needs no cases of its own: what differs is written again. Invariant: a row
//! that differs, and is not being written, is due. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::Key;
use crate::ovsdb::operation::Operation;
use crate::ovsdb::value::{Row, Uuid};

/// The rows of a table that this side is responsible for.
#[derive(Debug, Clone)]
pub(crate) struct Replica {
    table: &'static str,
    wanted: BTreeMap<Key, Row>,
    actual: BTreeMap<Key, (Uuid, Row)>,
    due: BTreeSet<Key>,
    writing: BTreeSet<Key>,
    /// Rows that are not wanted are not touched.
    lenient: bool,
}

impl Replica {
    /// Rows of a table. As long as it is lenient, it deletes only what was
    /// wanted and is not any more.
    pub(crate) fn new(table: &'static str) -> Self {
        Self {
            table,
            wanted: BTreeMap::new(),
            actual: BTreeMap::new(),
            due: BTreeSet::new(),
            writing: BTreeSet::new(),
            lenient: true,
        }
    }

    /// Wants a row, or none.
    pub(crate) fn want(&mut self, key: Key, row: Option<Row>) {
        match row {
            Some(row) => self.wanted.insert(key.clone(), row),
            None => self.wanted.remove(&key),
        };
        self.due.insert(key);
    }

    /// What is wanted.
    pub(crate) fn wanted(&self, key: &Key) -> Option<&Row> {
        self.wanted.get(key)
    }

    /// What is there.
    pub(crate) fn actual(&self, key: &Key) -> Option<&Row> {
        self.actual.get(key).map(|(_, row)| row)
    }

    /// A row of the database is now so.
    pub(crate) fn seen(&mut self, uuid: Uuid, old: Option<&Row>, new: Option<&Row>) {
        if let Some(old) = old {
            let key = super::rows::key(old);
            // A row may have taken its place already.
            if self
                .actual
                .get(&key)
                .is_some_and(|(known, _)| *known == uuid)
            {
                self.actual.remove(&key);
                self.mark(key);
            }
        }
        if let Some(new) = new {
            let key = super::rows::key(new);
            self.actual.insert(key.clone(), (uuid, new.clone()));
            self.mark(key);
        }
    }

    fn mark(&mut self, key: Key) {
        if self.wanted.contains_key(&key) || !self.lenient {
            self.due.insert(key);
        }
    }

    /// From now on, unwanted rows are deleted.
    pub(crate) fn be_strict(&mut self) {
        self.lenient = false;
        self.due.extend(self.actual.keys().cloned());
    }

    /// What to write now: at most `most` rows.
    pub(crate) fn plan(&mut self, most: usize) -> Vec<(Key, Operation)> {
        let mut plan = Vec::new();
        let due: Vec<Key> = self.due.difference(&self.writing).cloned().collect();
        for key in due {
            if plan.len() >= most {
                break;
            }
            self.due.remove(&key);
            let operation = match (self.wanted.get(&key), self.actual.get(&key)) {
                (None, None) => continue,
                (Some(row), None) => Operation::insert(self.table, row.clone()),
                (None, Some((uuid, _))) => Operation::delete(self.table, *uuid),
                (Some(row), Some((uuid, actual))) => {
                    let differing = difference(row, actual);
                    if differing.0.is_empty() {
                        continue;
                    }
                    Operation::update(self.table, *uuid, differing)
                }
            };
            self.writing.insert(key.clone());
            plan.push((key, operation));
        }
        plan
    }

    /// A row was written. Until it is seen, it is as it was written.
    pub(crate) fn written(&mut self, key: &Key, operation: &Operation, inserted: Option<Uuid>) {
        self.writing.remove(key);
        match operation {
            Operation::Insert { row, .. } => {
                if let Some(uuid) = inserted {
                    // It may have been seen meanwhile, and even have changed.
                    self.actual
                        .entry(key.clone())
                        .or_insert_with(|| (uuid, row.clone()));
                }
            }
            Operation::Update { row, .. } => {
                if let Some((_, actual)) = self.actual.get_mut(key) {
                    actual.0.extend(row.0.clone());
                }
            }
            Operation::Delete { .. } => {
                self.actual.remove(key);
            }
            _ => {}
        }
        if self.wanted.get(key).is_some_and(|_| !self.agrees(key)) {
            self.due.insert(key.clone());
        }
    }

    /// Writing a row failed. What is wanted stays due, unless it is hopeless.
    pub(crate) fn failed(&mut self, key: &Key, hopeless: bool) {
        self.writing.remove(key);
        if !hopeless {
            self.due.insert(key.clone());
        }
    }

    /// Whether a row is there as it is wanted.
    pub(crate) fn agrees(&self, key: &Key) -> bool {
        match (self.wanted.get(key), self.actual.get(key)) {
            (Some(row), Some((_, actual))) => difference(row, actual).0.is_empty(),
            (None, None) => true,
            _ => false,
        }
    }

    /// Rows that are still to be written.
    pub(crate) fn unsettled(&self) -> usize {
        self.due.len() + self.writing.len()
    }
}

/// The columns of `wanted` that are otherwise in `actual`, where an absent
/// column has the default of its type.
fn difference(wanted: &Row, actual: &Row) -> Row {
    let columns = wanted.0.iter();
    let differing = columns.filter(|(name, value)| match actual.get(name) {
        Some(actual) => actual != *value,
        None => !is_default(value),
    });
    Row(differing.map(|(n, v)| (n.clone(), v.clone())).collect())
}

fn is_default(value: &crate::ovsdb::value::Datum) -> bool {
    use crate::ovsdb::value::{Atom, Datum};
    match value {
        Datum::Map(map) => map.is_empty(),
        Datum::Set(set) => match set.first() {
            None => true,
            Some(Atom::Integer(0) | Atom::Boolean(false)) if set.len() == 1 => true,
            Some(Atom::String(text)) if set.len() == 1 => text.is_empty(),
            Some(_) => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(n: u8) -> Key {
        ("m".into(), n.to_string())
    }

    fn row(n: u8, value: i64) -> Row {
        let (manager, flow) = key(n);
        Row::default()
            .with("manager", manager)
            .with("flow", flow)
            .with("v", value)
    }

    /// A database that does what it is told, and tells of it later.
    #[derive(Default)]
    struct Server {
        rows: BTreeMap<Uuid, Row>,
        next: u128,
        news: Vec<(Uuid, Option<Row>, Option<Row>)>,
    }

    impl Server {
        fn write(&mut self, operation: &Operation) -> Result<Option<Uuid>, ()> {
            let conditions = |conditions: &[crate::ovsdb::operation::Condition]| match conditions[0]
                .value
                .scalar()
            {
                Some(crate::ovsdb::value::Atom::Uuid(uuid)) => *uuid,
                _ => Uuid(0),
            };
            match operation {
                Operation::Insert { row, .. } => {
                    let taken = |other: &Row| {
                        super::super::rows::key(other) == super::super::rows::key(row)
                    };
                    if self.rows.values().any(taken) {
                        return Err(());
                    }
                    self.next += 1;
                    let uuid = Uuid(self.next);
                    self.rows.insert(uuid, row.clone());
                    self.news.push((uuid, None, Some(row.clone())));
                    Ok(Some(uuid))
                }
                Operation::Update {
                    conditions: c, row, ..
                } => {
                    let uuid = conditions(c);
                    if let Some(now) = self.rows.get_mut(&uuid) {
                        let old = now.clone();
                        now.0.extend(row.0.clone());
                        self.news.push((uuid, Some(old), Some(now.clone())));
                    }
                    Ok(None)
                }
                Operation::Delete { conditions: c, .. } => {
                    let uuid = conditions(c);
                    if let Some(old) = self.rows.remove(&uuid) {
                        self.news.push((uuid, Some(old), None));
                    }
                    Ok(None)
                }
                _ => Err(()),
            }
        }

        fn tell(&mut self, replica: &mut Replica) {
            for (uuid, old, new) in self.news.drain(..) {
                replica.seen(uuid, old.as_ref(), new.as_ref());
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Want(u8, Option<i64>),
        Plan,
        Finish,
        /// Written, but nobody was told.
        Lose,
        Tell,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4_u8, proptest::option::of(0..3_i64)).prop_map(|(n, v)| Step::Want(n, v)),
            Just(Step::Plan),
            Just(Step::Finish),
            Just(Step::Lose),
            Just(Step::Tell),
        ]
    }

    fn finish(
        replica: &mut Replica,
        server: &mut Server,
        writing: &mut Vec<(Key, Operation)>,
        heard: bool,
    ) {
        for (key, operation) in writing.drain(..) {
            match server.write(&operation) {
                Ok(uuid) if heard => replica.written(&key, &operation, uuid),
                _ => replica.failed(&key, false),
            }
        }
    }

    proptest! {
        #[test]
        fn in_the_end_the_database_has_what_is_wanted(
            steps in proptest::collection::vec(step(), 0..60),
            strays in proptest::collection::vec(0..6_u8, 0..3),
        ) {
            let mut server = Server::default();
            for n in strays {
                let _ = server.write(&Operation::insert("T", row(n, 9)));
            }
            let mut replica = Replica::new("T");
            let mut writing = Vec::new();
            let mut wanted = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Want(n, v) => {
                        replica.want(key(n), v.map(|v| row(n, v)));
                        match v {
                            Some(v) => wanted.insert(key(n), row(n, v)),
                            None => wanted.remove(&key(n)),
                        };
                    }
                    Step::Plan => {
                        let plan = replica.plan(2);
                        prop_assert!(plan.len() <= 2);
                        for (key, _) in &plan {
                            prop_assert!(!writing.iter().any(|(other, _)| other == key), "one write at a time");
                        }
                        writing.extend(plan);
                    }
                    Step::Finish => finish(&mut replica, &mut server, &mut writing, true),
                    Step::Lose => finish(&mut replica, &mut server, &mut writing, false),
                    Step::Tell => server.tell(&mut replica),
                }
            }
            replica.be_strict();
            for _ in 0..10 {
                finish(&mut replica, &mut server, &mut writing, true);
                server.tell(&mut replica);
                writing = replica.plan(100);
            }
            prop_assert!(writing.is_empty(), "it comes to rest");
            prop_assert_eq!(replica.unsettled(), 0);
            let found: BTreeMap<Key, Row> = server
                .rows
                .values()
                .map(|row| (super::super::rows::key(row), row.clone()))
                .collect();
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn a_lenient_one_leaves_strays_alone() {
        let mut replica = Replica::new("T");
        replica.seen(Uuid(1), None, Some(&row(1, 1)));
        assert_eq!(replica.plan(9), []);
        replica.want(key(1), Some(row(1, 1)));
        assert_eq!(replica.plan(9), [], "adopted");
        replica.want(key(1), None);
        assert_eq!(replica.plan(9), [(key(1), Operation::delete("T", Uuid(1)))]);
    }

    #[test]
    fn what_is_absent_is_the_default() {
        let mut replica = Replica::new("T");
        replica.seen(
            Uuid(1),
            None,
            Some(&Row::default().with("manager", "m").with("flow", "1")),
        );
        replica.want(key(1), Some(row(1, 0)));
        assert_eq!(replica.plan(9), []);
    }
}
