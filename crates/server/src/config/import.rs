//! `punctual config import`: what a mosquitto.conf means here.
//!
//! The lines become the same tree of values that a TOML file becomes, so the
//! same checks apply to them and messages name the line of mosquitto.conf. Every
//! line ends in a value or in a note with the reason; none is dropped in
//! silence. Source: mosquitto.conf(5) of 2.0, and the options that 2.1 added.

mod lines;
mod listeners;
mod options;

use std::fmt::{self, Write as _};
use std::path::Path;

pub(crate) use self::lines::{Line, read};
use self::listeners::Listeners;
use self::options::Meaning;
use super::document::{Content, Node, Table, merge};
use super::keys::Listener;
use super::origin::Origin;
use super::problem::{Problem, nearest};
use super::schema::{Reader, Section};
use super::value::Scalar;
use super::{Config, validate};

/// A configuration made from a mosquitto.conf.
#[derive(Debug)]
pub struct Imported {
    /// The TOML file.
    pub toml: String,
    /// Lines that are not in it, or not as they were.
    pub notes: Vec<Note>,
}

/// Something to know about a line.
#[derive(Clone, Debug)]
pub struct Note {
    origin: Origin,
    /// The line, where it can be repeated.
    line: String,
    reason: String,
    /// Whether something that keeps clients out, or from topics, is lost with it.
    lost: bool,
}

impl Note {
    /// Whether something that keeps clients out, or from topics, is lost: the configuration is not
    /// to be used before that has been replaced.
    pub fn is_lost_protection(&self) -> bool {
        self.lost
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.origin, self.line, self.reason)
    }
}

/// Translates a mosquitto.conf.
///
/// # Errors
///
/// A file that cannot be read.
pub fn import(path: &Path) -> Result<Imported, String> {
    let mut importer = Importer::default();
    for line in read(path)? {
        importer.line(line);
    }
    Ok(importer.finish(path))
}

/// What the lines so far have said.
#[derive(Default)]
struct Importer {
    table: Table,
    listeners: Listeners,
    notes: Vec<Note>,
    /// Whether passwords, rights and anonymity are the listener's own.
    per_listener: bool,
    /// The most that any `log_type` asks for, as index of [`LEVELS`].
    log_level: Option<(usize, Origin)>,
}

/// What a problem is about.
enum Place<'a> {
    /// The listener of that number.
    Listener(usize),
    Key(&'a str, &'a str),
}

fn place_of(name: &str) -> Place<'_> {
    let (section, key) = name.split_once('.').unwrap_or((name, ""));
    let number = key.split('.').next().and_then(|number| number.parse().ok());
    match number {
        Some(number) if section == Listener::NAME => Place::Listener(number),
        _ => Place::Key(section, key),
    }
}

/// What Mosquitto does where no line says anything, and this broker does not: a full queue loses what
/// comes, all of it may be filled with anything, and sessions are kept for ever.
fn mosquitto_has() -> [(&'static str, &'static str, Scalar); 3] {
    let text = |text: &str| Scalar::Text(text.into());
    [
        ("queue", "full", text("drop-new")),
        ("queue", "urgent_reserve", Scalar::Integer(0)),
        ("limits", "max_session_expiry", text("unlimited")),
    ]
}

/// Levels of the log, and what Mosquitto calls the types of each.
const LEVELS: [(&str, &[&str]); 4] = [
    ("error", &["error", "none"]),
    ("warn", &["warning"]),
    ("info", &["notice", "information"]),
    (
        "debug",
        &[
            "debug",
            "subscribe",
            "unsubscribe",
            "websockets",
            "internal",
            "all",
        ],
    ),
];

impl Importer {
    fn line(&mut self, line: Line) {
        match options::meaning(&line.option) {
            Some(Meaning::Key(section, key, convert)) => match convert(&line.value) {
                Ok(value) => self.set(section, key, value, line.origin),
                Err(reason) => self.note(&line, reason),
            },
            Some(Meaning::Listener(key, convert)) => {
                self.listeners.restricted(&line, self.per_listener);
                match convert(&line.value) {
                    Ok(value) => self.listeners.set(key, value, line.origin),
                    Err(reason) => self.note(&line, reason),
                }
            }
            Some(Meaning::None(reason)) => {
                self.listeners.restricted(&line, self.per_listener);
                self.note(&line, reason.into());
            }
            Some(Meaning::Secret(reason)) => {
                let value = "...".into();
                self.note(&Line { value, ..line }, reason.into());
            }
            Some(Meaning::Special) => {
                if let Err(reason) = self.special(&line) {
                    self.note(&line, reason);
                }
            }
            None => {
                let reason = unknown(&line.option);
                self.note(&line, reason);
            }
        }
    }

    /// Options that need more than a conversion. `Err`: why it has no effect.
    fn special(&mut self, line: &Line) -> Result<(), String> {
        let origin = || line.origin.clone();
        let value = line.value.as_str();
        let boolean = || options::boolean(value).map(|value| value == Scalar::Boolean(true));
        match line.option.as_str() {
            "per_listener_settings" => self.per_listener = boolean()?,
            "allow_anonymous" if !self.per_listener => {
                self.listeners.allow_anonymous = Some((boolean()?, origin()));
            }
            "allow_anonymous" | "listener_allow_anonymous" => {
                let value = Scalar::Boolean(boolean()?);
                self.listeners.set("allow_anonymous", value, origin());
            }
            "password_file" | "acl_file" => {
                let key = match line.option.as_str() {
                    "acl_file" => "acl_file",
                    _ => "password_file",
                };
                let file = options::text(value)?;
                match self.per_listener {
                    true => self.listeners.set(key, file, origin()),
                    false => self.set("auth", key, file, origin()),
                }
            }
            "max_inflight_messages" => {
                let number = match value {
                    "0" => Scalar::Integer(65_535),
                    value => options::number(value)?,
                };
                self.set("limits", "max_inflight", number.clone(), origin());
                self.set("limits", "receive_maximum", number, origin());
            }
            "max_inflight_bytes" if value == "0" => {
                return Err("there is no such bound here either".into());
            }
            "max_inflight_bytes" => return Err("see limits.max_inflight".into()),
            "message_size_limit" => {
                let packet = options::packet_of_payload(value)?;
                self.set("limits", "max_packet_size", packet, origin());
            }
            "max_qos" => self.of_all_listeners(("mqtt", "maximum_qos"), line)?,
            "max_topic_alias" => self.of_all_listeners(("limits", "topic_alias_maximum"), line)?,
            "set_tcp_nodelay" => {
                return Err("TCP_NODELAY is always set".into());
            }
            "log_type" => {
                for word in value.split_whitespace() {
                    let level = LEVELS.iter().position(|(_, types)| types.contains(&word));
                    let level = level.ok_or_else(|| format!("{word} is not a type of log"))?;
                    if self
                        .log_level
                        .as_ref()
                        .is_none_or(|(most, _)| *most < level)
                    {
                        self.log_level = Some((level, origin()));
                    }
                }
            }
            "log_dest" if value == "stderr" => {}
            "log_dest" => {
                return Err(format!(
                    "the log goes to standard error; let the service manager send it to {value}"
                ));
            }
            "persistence" => {
                if boolean()? {
                    return Err(options::STORED_ELSEWHERE.into());
                }
            }
            _ => return self.listeners.line(line),
        }
        Ok(())
    }

    /// An option of a listener that is one of all listeners here.
    fn of_all_listeners(&mut self, key: (&str, &str), line: &Line) -> Result<(), String> {
        let (section, key) = key;
        if self.listeners.count() > 1 {
            return Err(format!(
                "all listeners share one {section}.{key}; set it if it is meant for all"
            ));
        }
        self.set(
            section,
            key,
            options::number(&line.value)?,
            line.origin.clone(),
        );
        Ok(())
    }

    fn finish(mut self, path: &Path) -> Imported {
        if let Some((level, origin)) = self.log_level.take() {
            let (level, _) = LEVELS[level];
            self.set("log", "level", Scalar::Text(level.into()), origin);
        }
        let origin = Origin::File {
            path: path.into(),
            line: 1,
        };
        for (section, key, value) in mosquitto_has() {
            if !self.has(section, key) {
                self.set(section, key, value, origin.clone());
            }
        }
        let common = self.table.get("auth").map(|node| &node.content);
        let passwords = match common {
            Some(Content::Table(auth)) => auth.contains_key("password_file"),
            _ => false,
        };
        let (mut nodes, notes) = std::mem::take(&mut self.listeners).finish(path, passwords);
        self.notes.extend(notes);
        if nodes.is_empty() {
            nodes.push(self.closed_listener(&origin));
        }
        // What is not right by itself or beside the rest is left out: a listener as a whole, since
        // its other values may say who is kept out.
        let (config, reader) = loop {
            let mut table = self.table.clone();
            let (place, content) = (origin.clone(), Content::Tables(nodes.clone()));
            let listeners = Node {
                origin: place,
                content,
            };
            table.insert(Listener::NAME.into(), listeners);
            let mut reader = Reader::default();
            let config = Config::read(table, &mut reader);
            validate::validate(&config, &mut reader);
            if reader.problems.is_empty() {
                break (config, reader);
            }
            let mut left_out = Vec::new();
            let mut changed = false;
            for problem in reader.problems.iter() {
                let mut note = note_of(problem);
                match place_of(&problem.key) {
                    Place::Listener(at) => {
                        left_out.push(at);
                        note.lost = true;
                        note.reason.push_str("; its listener is left out");
                    }
                    Place::Key(section, key) => {
                        changed |= self.leave_out(section, key);
                        note.lost |= section == "auth";
                    }
                }
                self.notes.push(note);
            }
            let mut at = 0..;
            nodes.retain(|_| at.next().is_none_or(|at| !left_out.contains(&at)));
            if left_out.is_empty() && !changed {
                break (config, reader);
            }
            if nodes.is_empty() {
                nodes.push(self.closed_listener(&origin));
            }
        };
        Imported {
            toml: toml(path, &config, &reader, &self.notes),
            notes: self.notes,
        }
    }

    /// Whether a line has said something of that.
    fn has(&self, section: &str, key: &str) -> bool {
        let section = self.table.get(section).map(|node| &node.content);
        matches!(section, Some(Content::Table(keys)) if keys.contains_key(key))
    }

    /// Leaves out a value that is not right, or the values beside which it is not. False if there
    /// are none.
    fn leave_out(&mut self, section: &str, key: &str) -> bool {
        let node = self.table.get_mut(section);
        let key_is_gone = match node.map(|node| &mut node.content) {
            Some(Content::Table(keys)) => keys.remove(key).is_some(),
            _ => false,
        };
        key_is_gone || self.table.remove(section).is_some()
    }

    /// The listener where none is left, since a configuration needs one: nobody can connect to it.
    fn closed_listener(&mut self, origin: &Origin) -> Node {
        self.notes.push(Note {
            origin: origin.clone(),
            line: "listeners".into(),
            reason: "none is left, so there is one on this machine to which nobody can connect; \
                     write a [[listener]]"
                .into(),
            lost: true,
        });
        let node = |content| Node {
            origin: origin.clone(),
            content,
        };
        let keys = [
            ("address", Scalar::Text("tcp://localhost:1883".into())),
            ("allow_anonymous", Scalar::Boolean(false)),
            ("password_file", Scalar::Text("/dev/null".into())),
        ];
        let keys = keys.map(|(key, value)| (key.to_owned(), node(Content::Scalar(value))));
        node(Content::Table(Table::from(keys)))
    }

    fn set(&mut self, section: &str, key: &str, value: Scalar, origin: Origin) {
        let value = Node {
            origin: origin.clone(),
            content: Content::Scalar(value),
        };
        let section_node = Node {
            origin,
            content: Content::Table(Table::from([(key.to_owned(), value)])),
        };
        merge(
            &mut self.table,
            Table::from([(section.to_owned(), section_node)]),
        );
    }

    fn note(&mut self, line: &Line, reason: String) {
        self.notes.push(note(line, reason));
    }
}

/// Whether Mosquitto has such an option.
pub(crate) fn is_known(option: &str) -> bool {
    options::meaning(option).is_some()
}

/// What is wrong with an option that Mosquitto does not have.
pub(crate) fn unknown(option: &str) -> String {
    match nearest(option, options::names()) {
        Some(near) => format!("this is not an option of Mosquitto; is it {near}?"),
        None => "this is not an option of Mosquitto that is known here".into(),
    }
}

fn note(line: &Line, reason: String) -> Note {
    Note {
        origin: line.origin.clone(),
        line: format!("{} {}", line.option, line.value).trim_end().into(),
        reason,
        lost: options::protects(&line.option),
    }
}

/// A value that Mosquitto takes and Punctual does not, or a combination.
fn note_of(problem: &Problem) -> Note {
    let Problem {
        origin,
        key,
        value,
        what,
        remedy,
    } = problem;
    Note {
        origin: origin.clone().unwrap_or(Origin::Argument("import")),
        line: match value {
            Some(value) => format!("{key} = {value}"),
            None => key.clone(),
        },
        reason: format!("{what}; {remedy}"),
        lost: false,
    }
}

/// The values that were set, each with its line of mosquitto.conf, then the notes.
fn toml(path: &Path, config: &Config, reader: &Reader, notes: &[Note]) -> String {
    let mut out = format!(
        "# Made from {} by `punctual config import`.\n\
         # What is not here has its default; `punctual config default` prints them all.\n",
        path.display()
    );
    let mut section = "";
    let values = config.values();
    for (name, value) in &values {
        let Some(origin) = reader.origins.get(name) else {
            continue;
        };
        let Some((path, key)) = name.rsplit_once('.') else {
            continue;
        };
        if path != section {
            section = path;
            let _ = match path.starts_with("listener.") {
                true => writeln!(out, "\n[[listener]]"),
                false => writeln!(out, "\n[{path}]"),
            };
        }
        let _ = writeln!(out, "{key} = {value}  # {origin}");
    }
    if !notes.is_empty() {
        out.push_str("\n# Not taken over, or not as it was:\n");
    }
    for note in notes {
        // A comment in TOML has no control characters.
        let note = note.to_string().replace(|c: char| c.is_control(), "?");
        let _ = writeln!(out, "# {note}");
    }
    out
}

#[cfg(test)]
mod tests;
