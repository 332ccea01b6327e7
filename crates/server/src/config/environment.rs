//! Values from the environment: `PUNCTUAL__LIMITS__MAX_PACKET_SIZE=1MiB`,
//! `PUNCTUAL__LISTENER__0__ADDRESS=tcp://*:1883`.
//!
//! Two underscores stand between the parts of a key. Listeners count from 0;
//! the first number past the last listener adds one.

use super::document::{Content, Node, Table};
use super::keys::Listener;
use super::origin::Origin;
use super::problem::{Problem, Problems};
use super::schema::Section;
use super::value::Scalar;

/// What the names of variables begin with.
pub(super) const PREFIX: &str = "PUNCTUAL__";

/// Lays the values of `variables` over `table`; those with other names are
/// not looked at.
pub(super) fn lay_over(
    table: &mut Table,
    variables: impl IntoIterator<Item = (String, String)>,
    problems: &mut Problems,
) {
    let mut ours: Vec<(Vec<Part>, String, String)> = variables
        .into_iter()
        .filter_map(|(name, value)| {
            let parts = name.strip_prefix(PREFIX)?.split("__").map(Part::new);
            Some((parts.collect(), name, value))
        })
        .collect();
    ours.sort();
    for (parts, name, value) in ours {
        let wrong = |what: String, remedy: String| Problem {
            origin: Some(Origin::Environment(name.clone())),
            key: String::new(),
            value: None,
            what,
            remedy,
        };
        let (section, key) = match parts.as_slice() {
            [Part::Name(section), Part::Name(key)] => {
                (Ok(child(table, section, &name)), key.as_str())
            }
            [Part::Name(section), Part::Number(index), Part::Name(key)]
                if section == Listener::NAME =>
            {
                (listener(table, *index, &name), key.as_str())
            }
            _ => {
                problems.push(wrong(
                    "the name of this variable is not that of a key".into(),
                    format!(
                        "write {PREFIX}SECTION__KEY, or {PREFIX}LISTENER__0__KEY for the first listener"
                    ),
                ));
                continue;
            }
        };
        match section {
            Ok(Some(section)) => {
                let node = Node {
                    origin: Origin::Environment(name),
                    content: Content::Scalar(Scalar::Untyped(value)),
                };
                section.insert(key.into(), node);
            }
            // The file has something else in the section's place, which is
            // reported when it is read.
            Ok(None) => {}
            Err(count) => problems.push(wrong(
                format!("there is no such listener; there are {count}"),
                format!("use a number up to {count}, which adds one"),
            )),
        }
    }
}

/// A part of a variable's name. Numbers sort as numbers.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(usize),
    Name(String),
}

impl Part {
    fn new(text: &str) -> Self {
        match text.parse() {
            Ok(number) => Self::Number(number),
            Err(_) => Self::Name(text.to_lowercase()),
        }
    }
}

/// The table under `key`, made where there is none.
fn child<'a>(table: &'a mut Table, key: &str, variable: &str) -> Option<&'a mut Table> {
    let node = table
        .entry(key.into())
        .or_insert_with(|| empty(variable, Content::Table(Table::new())));
    match &mut node.content {
        Content::Table(table) => Some(table),
        _ => None,
    }
}

/// The table of a listener, made where it is the next one; `Err` has the
/// number of listeners where it is past that.
fn listener<'a>(
    table: &'a mut Table,
    index: usize,
    variable: &str,
) -> Result<Option<&'a mut Table>, usize> {
    let node = table
        .entry(Listener::NAME.into())
        .or_insert_with(|| empty(variable, Content::Tables(Vec::new())));
    let Content::Tables(listeners) = &mut node.content else {
        return Ok(None);
    };
    let count = listeners.len();
    if index == count {
        listeners.push(empty(variable, Content::Table(Table::new())));
    }
    match listeners.get_mut(index).map(|node| &mut node.content) {
        Some(Content::Table(table)) => Ok(Some(table)),
        Some(_) => Ok(None),
        None => Err(count),
    }
}

fn empty(variable: &str, content: Content) -> Node {
    Node {
        origin: Origin::Environment(variable.into()),
        content,
    }
}
