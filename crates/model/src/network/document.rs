//! A network as it is written down.
//!
//! The machine's names end in a unit (`period_ns`, `rate_bps`) and take whole
//! numbers. For people each has a second name without it, which takes a text
//! with a unit: `period = "10ms"`, `rate = "100Mbit"`. Both are read in both
//! formats; JSON is written with the machine's names.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::NetworkError;
use crate::units::{parse_bandwidth, parse_duration};

/// A network as a file states it; nothing in it is checked yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// Switches, hosts, brokers.
    pub nodes: Vec<NodeEntry>,
    /// Directed links: output ports.
    pub links: Vec<LinkEntry>,
    /// Declared flows.
    pub flows: Vec<FlowEntry>,
}

/// A node: it takes what one link delivers and queues it at another.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Its name, unique among nodes.
    pub id: String,
    /// Least time from complete reception to the next queue, ns.
    #[serde(default)]
    pub sd_min_ns: u64,
    /// Greatest such time, ns; absent: as the least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sd_max_ns: Option<u64>,
    /// Greatest time that replicating a frame adds, ns.
    #[serde(default)]
    pub copy_max_ns: u64,
}

/// A directed link, or any other server that is not preempted (the broker's
/// processor): then flows state their cost on it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkEntry {
    /// Its name, unique among links.
    pub id: String,
    /// The node that sends.
    pub from: String,
    /// The node that receives.
    pub to: String,
    /// Rate, bit/s; absent or 0: every flow states its cost here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Propagation after the last bit, ns.
    #[serde(default)]
    pub prop_ns: u64,
    /// Longest frame of undeclared traffic, bytes on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub be_bytes: Option<u64>,
    /// Longest time that undeclared traffic holds the link, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub be_ns: Option<u64>,
    /// It ignores priorities.
    #[serde(default)]
    pub fifo: bool,
    /// It serves by deadline, not by priority: first the frame whose arrival
    /// here and flow's deadline together are earliest. That is a broker's
    /// `egress.policy = "edf"`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub edf: bool,
    /// Inside a priority it serves in any order, but each flow's frames in
    /// theirs: a processor that reads its clients' connections in turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unordered: bool,
    /// Whether it serves messages and not frames: a processor that begins when the last
    /// frame of a message has arrived, takes at most the stated cost for the whole
    /// message, and may send resulting frames at any time until then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// A declared flow: at least a period apart, messages go from a publisher to
/// all of its destinations.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FlowEntry {
    /// Its name, unique among flows.
    pub id: String,
    /// Priority, the higher the more urgent.
    #[serde(default)]
    pub prio: u64,
    /// Least time between nominal releases, ns.
    pub period_ns: u64,
    /// Release jitter: greatest time from the nominal release to the queue of
    /// the first link, ns.
    #[serde(default)]
    pub jitter_ns: u64,
    /// Deadline from the nominal release to the last bit at the destination,
    /// ns; absent: the period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ns: Option<u64>,
    /// Size of a frame on the wire, with preamble, check sequence and gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_bytes: Option<u64>,
    /// Frames that make up a message, one after the other; absent: one. Sizes
    /// and costs are those of one frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<u64>,
    /// The links to each destination, in order; empty: they are to be chosen
    /// from the publisher to the destinations, before the flow means anything.
    #[serde(default)]
    pub paths: Vec<Vec<String>>,
    /// The publisher's node, for a flow without paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The destinations' nodes, for a flow without paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// A node that every path visits before it branches, for a flow without
    /// paths: a broker, or a rendezvous point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// Time of a frame on the named links, ns, instead of what its size and
    /// the rate give.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cost_ns: BTreeMap<String, u64>,
    /// The broker that sends a copy per destination from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fanout_node: Option<String>,
    /// Priority of the copy to each destination behind the fan-out node, in the
    /// order of the paths; empty: `prio`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fanout_prio: Vec<u64>,
}

/// How to handle an unknown key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnknownKeyPolicy {
    Ignore,
    Refuse,
}

/// How a file states a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// RFC 8259.
    Json,
    /// TOML 1.0.
    Toml,
}

impl Format {
    /// By the end of the file's name; where that says nothing, a text that begins as an object is
    /// JSON.
    #[must_use]
    pub fn of(file: &Path, text: &str) -> Self {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Self::Json,
            Some("toml") => Self::Toml,
            _ if text.trim_start().starts_with('{') => Self::Json,
            _ => Self::Toml,
        }
    }
}

impl Document {
    /// Reads JSON. Unknown keys are ignored, so that files may carry more than
    /// this version knows.
    ///
    /// # Errors
    /// The entry and field, the value and the remedy.
    pub fn from_json(text: &str) -> Result<Self, NetworkError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| NetworkError::new("", format!("is not JSON: {error}")))?;
        Self::from_value(value, UnknownKeyPolicy::Ignore)
    }

    /// Reads TOML. Unknown keys are errors, for people mistype.
    ///
    /// # Errors
    /// As for [`from_json`](Self::from_json).
    pub fn from_toml(text: &str) -> Result<Self, NetworkError> {
        let value: Value = toml::from_str(text)
            .map_err(|error| NetworkError::new("", format!("is not TOML: {}", error.message())))?;
        Self::from_value(value, UnknownKeyPolicy::Refuse)
    }

    /// Reads a text in a format.
    ///
    /// # Errors
    /// As for [`from_json`](Self::from_json).
    pub fn parse(text: &str, format: Format) -> Result<Self, NetworkError> {
        match format {
            Format::Json => Self::from_json(text),
            Format::Toml => Self::from_toml(text),
        }
    }

    /// Reads a parsed JSON value as [`from_json`](Self::from_json) does a text.
    ///
    /// # Errors
    /// As for [`from_json`](Self::from_json).
    pub fn from_json_value(value: Value) -> Result<Self, NetworkError> {
        Self::from_value(value, UnknownKeyPolicy::Ignore)
    }

    fn from_value(value: Value, unknown: UnknownKeyPolicy) -> Result<Self, NetworkError> {
        let Value::Object(mut fields) = value else {
            return Err(NetworkError::new(
                "",
                "must be an object with nodes, links and flows",
            ));
        };
        let document = Self {
            nodes: entries(&mut fields, "nodes", unknown, NODE)?,
            links: entries(&mut fields, "links", unknown, LINK)?,
            flows: entries(&mut fields, "flows", unknown, FLOW)?,
        };
        if unknown == UnknownKeyPolicy::Refuse
            && let Some(key) = fields.keys().next()
        {
            let known = "known are nodes, links and flows";
            return Err(NetworkError::new(
                key.clone(),
                format!("is unknown; {known}"),
            ));
        }
        Ok(document)
    }
}

impl FlowEntry {
    /// Reads a flow from a parsed JSON value; unknown keys are ignored.
    ///
    /// # Errors
    /// The field, the value and the remedy.
    pub fn from_json_value(value: Value) -> Result<Self, NetworkError> {
        entry(value, "flow", UnknownKeyPolicy::Ignore, FLOW)
    }
}

/// A key and what its value is.
type Key = (&'static str, Kind);

#[derive(Clone, Copy)]
enum Kind {
    /// A value that is not converted.
    Any,
    /// A whole number, not negative.
    Number,
    /// A text with a unit of time, for the key with `_ns`.
    Time,
    /// A text with a unit of rate, for the key with `_bps`.
    Rate,
    /// An object whose values are numbers, or texts with a unit of time.
    Times,
}

const NODE: &[Key] = &[
    ("id", Kind::Any),
    ("sd_min_ns", Kind::Number),
    ("sd_min", Kind::Time),
    ("sd_max_ns", Kind::Number),
    ("sd_max", Kind::Time),
    ("copy_max_ns", Kind::Number),
    ("copy_max", Kind::Time),
];

const LINK: &[Key] = &[
    ("id", Kind::Any),
    ("from", Kind::Any),
    ("to", Kind::Any),
    ("rate_bps", Kind::Number),
    ("rate", Kind::Rate),
    ("prop_ns", Kind::Number),
    ("prop", Kind::Time),
    ("be_bytes", Kind::Number),
    ("be_ns", Kind::Number),
    ("be", Kind::Time),
    ("fifo", Kind::Any),
    ("edf", Kind::Any),
    ("unordered", Kind::Any),
    ("whole", Kind::Any),
];

const FLOW: &[Key] = &[
    ("id", Kind::Any),
    ("prio", Kind::Number),
    ("period_ns", Kind::Number),
    ("period", Kind::Time),
    ("jitter_ns", Kind::Number),
    ("jitter", Kind::Time),
    ("deadline_ns", Kind::Number),
    ("deadline", Kind::Time),
    ("wire_bytes", Kind::Number),
    ("frames", Kind::Number),
    ("paths", Kind::Any),
    ("from", Kind::Any),
    ("to", Kind::Any),
    ("via", Kind::Any),
    ("cost_ns", Kind::Times),
    ("fanout_node", Kind::Any),
    ("fanout_prio", Kind::Any),
];

/// Keys of a flow that count for one without paths.
const ENDS: [&str; 3] = ["from", "to", "via"];

/// Takes a list of entries out of the document.
fn entries<T: for<'de> Deserialize<'de>>(
    fields: &mut Map<String, Value>,
    name: &str,
    unknown: UnknownKeyPolicy,
    keys: &[Key],
) -> Result<Vec<T>, NetworkError> {
    let list = match fields.remove(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => {
            let problem = format!("must be a list, not {other}");
            return Err(NetworkError::new(name, problem));
        }
    };
    let numbered = list.into_iter().enumerate();
    numbered
        .map(|(index, value)| {
            let place = match value.get("id") {
                Some(Value::String(id)) => format!("{name} {id:?}"),
                _ => format!("{name}[{index}]"),
            };
            entry(value, &place, unknown, keys)
        })
        .collect()
}

/// Reads one entry: converts the form for people into the form for machines.
fn entry<T: for<'de> Deserialize<'de>>(
    value: Value,
    place: &str,
    unknown: UnknownKeyPolicy,
    keys: &[Key],
) -> Result<T, NetworkError> {
    let Value::Object(fields) = value else {
        return Err(NetworkError::new(place, "must be an object"));
    };
    let has_paths = fields.get("paths").is_some_and(|paths| !paths.is_null());
    let mut plain = Map::new();
    for (key, value) in fields {
        // Machines that state paths mean by these whatever they like.
        if unknown == UnknownKeyPolicy::Ignore && has_paths && ENDS.contains(&key.as_str()) {
            continue;
        }
        let field = || format!("{place}: {key}");
        let Some((_, kind)) = keys.iter().find(|(name, _)| *name == key) else {
            if unknown == UnknownKeyPolicy::Ignore {
                continue;
            }
            let known: Vec<_> = keys.iter().map(|(name, _)| *name).collect();
            let problem = format!("is unknown; known are {}", known.join(", "));
            return Err(NetworkError::new(field(), problem));
        };
        // Absent, said aloud.
        if value.is_null() {
            continue;
        }
        let (name, value) = match kind {
            Kind::Any => (key.clone(), value),
            Kind::Number => (key.clone(), number(value).map_err(at(field))?),
            Kind::Time => (format!("{key}_ns"), time(value).map_err(at(field))?),
            Kind::Rate => (format!("{key}_bps"), rate(value).map_err(at(field))?),
            Kind::Times => (key.clone(), times(value).map_err(at(field))?),
        };
        if plain.insert(name.clone(), value).is_some() {
            let problem = format!("is stated a second time as {name}; leave one out");
            return Err(NetworkError::new(field(), problem));
        }
    }
    T::deserialize(Value::Object(plain))
        .map_err(|error| NetworkError::new(place, error.to_string()))
}

fn at(place: impl Fn() -> String) -> impl Fn(String) -> NetworkError {
    move |problem| NetworkError::new(place(), problem)
}

/// A whole number; one with a fraction of zero is whole, too.
fn number(value: Value) -> Result<Value, String> {
    const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;
    let Value::Number(number) = &value else {
        return Err(format!("{value} must be a whole number"));
    };
    if number.is_u64() {
        return Ok(value);
    }
    if number.as_f64().is_some_and(|float| float < 0.0) {
        return Err(format!("{value} is negative; the least is 0"));
    }
    match number.as_f64() {
        // Exact: it is whole and has at most 53 bits.
        Some(float) if float.fract() == 0.0 && float <= LARGEST_EXACT => {
            Ok(Value::from(float as u64))
        }
        _ => Err(format!("{value} must be a whole number below 2^64")),
    }
}

fn time(value: Value) -> Result<Value, String> {
    let Value::String(text) = &value else {
        return Err(format!(
            "{value} must be a text with a unit, such as \"10ms\""
        ));
    };
    let duration =
        parse_duration(text.as_bytes()).map_err(|remedy| format!("{text:?} {remedy}"))?;
    let nanos = u64::try_from(duration.as_nanos()).map_err(|_| format!("{text:?} is too long"))?;
    Ok(Value::from(nanos))
}

fn rate(value: Value) -> Result<Value, String> {
    let Value::String(text) = &value else {
        return Err(format!(
            "{value} must be a text with a unit, such as \"100Mbit\""
        ));
    };
    let bits = parse_bandwidth(text.as_bytes()).map_err(|remedy| format!("{text:?} {remedy}"))?;
    Ok(Value::from(bits))
}

fn times(value: Value) -> Result<Value, String> {
    let Value::Object(fields) = value else {
        return Err(format!("{value} must be an object from link to time"));
    };
    let read = |(key, value): (String, Value)| {
        let value = match &value {
            Value::String(_) => time(value),
            _ => number(value),
        };
        value
            .map(|value| (key.clone(), value))
            .map_err(|problem| format!("{key:?}: {problem}"))
    };
    fields
        .into_iter()
        .map(read)
        .collect::<Result<Map<_, _>, _>>()
        .map(Value::Object)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SCHEMA: &str = include_str!("../../../../docs/schema/network.schema.json");

    /// The published schema has the keys that are read, each of the kind that
    /// is read.
    #[test]
    fn the_schema_says_what_is_read() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let lists = [
            ("node", "nodes", NODE),
            ("link", "links", LINK),
            ("flow", "flows", FLOW),
        ];
        for (name, list, keys) in lists {
            let entry = &schema["$defs"][name];
            let known: BTreeSet<_> = keys.iter().map(|(key, _)| *key).collect();
            let stated = entry["properties"].as_object().unwrap();
            let stated: BTreeSet<_> = stated.keys().map(String::as_str).collect();
            assert_eq!(stated, known, "{name}");
            for (key, kind) in keys {
                let stated = &entry["properties"][key]["type"];
                let allowed: &[&str] = match kind {
                    Kind::Number => &["integer"],
                    Kind::Time | Kind::Rate => &["string"],
                    Kind::Times => &["object"],
                    Kind::Any => &["string", "boolean", "array"],
                };
                assert!(
                    allowed.iter().any(|kind| stated == kind),
                    "{name} {key}: {stated}"
                );
            }
            assert_eq!(
                schema["properties"][list]["items"]["$ref"],
                format!("#/$defs/{name}")
            );
        }
        assert_eq!(
            schema["$defs"]["node"]["properties"]["sd_max_ns"]["maximum"],
            crate::network::MAX_TIME
        );
    }

    /// What the schema requires is required, and nothing else.
    #[test]
    fn the_schema_requires_what_is_required() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let full = serde_json::json!({
            "nodes": [{"id": "a", "sd_min_ns": 1}],
            "links": [{"id": "l", "from": "a", "to": "a", "rate_bps": 1}],
            "flows": [{"id": "m", "prio": 1, "period_ns": 1, "paths": [["l"]], "wire_bytes": 1}],
        });
        for (name, list) in [("node", "nodes"), ("link", "links"), ("flow", "flows")] {
            let mut required: BTreeSet<_> = schema["$defs"][name]["required"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect();
            if name == "flow" {
                required.insert("period_ns");
            }
            for key in full[list][0].as_object().unwrap().keys() {
                let mut without = full.clone();
                without[list][0].as_object_mut().unwrap().remove(key);
                let read = Document::from_json_value(without);
                assert_eq!(
                    read.is_err(),
                    required.contains(key.as_str()),
                    "{name} {key}"
                );
            }
        }
    }
}
