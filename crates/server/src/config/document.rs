//! The configuration as it was written: a tree of values that know their origin.
//!
//! Files, included files and the environment are merged here, before anything
//! is checked against the known keys, so that a message can always name the
//! file and line, or the variable, that a value came from.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::origin::Origin;
use super::problem::{Problem, Problems};
use super::value::Scalar;

/// A value, table or list of tables, and where it was written.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub origin: Origin,
    pub content: Content,
}

/// What a [`Node`] holds.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A value.
    Scalar(Scalar),
    /// `[name]`.
    Table(Table),
    /// `[[name]]`.
    Tables(Vec<Node>),
}

/// Entries by key.
pub(crate) type Table = BTreeMap<String, Node>;

/// Syntax errors that are reported of one file: more of them mean that it is
/// something else than TOML.
const MOST_ERRORS: usize = 10;

/// Reads a TOML file. What can be read is returned even when something is
/// wrong elsewhere, so that one run shows as many problems as possible.
pub(crate) fn parse(text: &str, path: &Path, problems: &mut Problems) -> Table {
    let file = File {
        path: path.into(),
        line_ends: text.match_indices('\n').map(|(at, _)| at).collect(),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    // The parser may find several errors in one line; the first one tells.
    let by_line: BTreeMap<usize, _> = errors
        .iter()
        .rev()
        .map(|error| (file.line(error.span().map_or(0, |span| span.start)), error))
        .collect();
    for (line, error) in by_line.into_iter().take(MOST_ERRORS) {
        problems.push(Problem {
            origin: Some(file.at(line)),
            key: String::new(),
            value: None,
            what: format!("this is not TOML: {}", error.message()),
            remedy: "write `key = value`, with text in double quotes (`punctual config import` \
                     reads the format of Mosquitto)"
                .into(),
        });
    }
    file.table(table.get_ref())
}

/// Lays `upper` over `base`: its values replace, its list items are added.
pub(crate) fn merge(base: &mut Table, upper: Table) {
    for (key, node) in upper {
        match (
            base.get_mut(&key).map(|node| &mut node.content),
            node.content,
        ) {
            (Some(Content::Table(below)), Content::Table(above)) => merge(below, above),
            (Some(Content::Tables(below)), Content::Tables(above)) => below.extend(above),
            (_, content) => {
                let origin = node.origin;
                base.insert(key, Node { origin, content });
            }
        }
    }
}

/// A file's name and the byte offsets at which its lines end.
struct File {
    path: Arc<Path>,
    line_ends: Vec<usize>,
}

impl File {
    fn line(&self, offset: usize) -> usize {
        self.line_ends.partition_point(|end| *end < offset) + 1
    }

    fn at(&self, line: usize) -> Origin {
        let path = self.path.clone();
        Origin::File { path, line }
    }

    fn origin(&self, offset: usize) -> Origin {
        self.at(self.line(offset))
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        table
            .iter()
            .map(|(key, value)| {
                let node = Node {
                    origin: self.origin(key.span().start),
                    content: self.content(value),
                };
                (key.get_ref().to_string(), node)
            })
            .collect()
    }

    fn content(&self, value: &Spanned<DeValue<'_>>) -> Content {
        Content::Scalar(match value.get_ref() {
            DeValue::String(text) => Scalar::Text(text.to_string()),
            DeValue::Boolean(value) => Scalar::Boolean(*value),
            DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| Scalar::Other(number.to_string()), Scalar::Integer),
            DeValue::Float(number) => Scalar::Other(number.to_string()),
            DeValue::Datetime(time) => Scalar::Other(time.to_string()),
            DeValue::Table(table) => return Content::Table(self.table(table)),
            DeValue::Array(items) => {
                let is_table =
                    |item: &Spanned<DeValue<'_>>| matches!(item.get_ref(), DeValue::Table(_));
                if !items.is_empty() && items.iter().all(is_table) {
                    let node = |item: &Spanned<DeValue<'_>>| Node {
                        origin: self.origin(item.span().start),
                        content: self.content(item),
                    };
                    return Content::Tables(items.iter().map(node).collect());
                }
                let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
                    DeValue::String(text) => Some(text.to_string()),
                    _ => None,
                };
                match items.iter().map(text).collect() {
                    Some(texts) => Scalar::List(texts),
                    None => Scalar::Other("[...]".into()),
                }
            }
        })
    }
}
