//! From the text of an ACL file to [`Acl`].
//!
//! Takes what mosquitto 2.0 takes: words are separated by spaces, a filter may hold spaces if its
//! access is given, `user` sections may be repeated. Unlike mosquitto it reads on after a bad line to
//! report them all.

use std::collections::HashMap;
use std::sync::Arc;

use super::rules::Access;
use super::{Acl, BrokerName, Pattern, RtRights, Section};
use crate::error::BYTE_ORDER_MARK;
use crate::topic::{MAX_BYTES, check_filter};
use crate::{FileError, HttpRole};

/// Most bytes of the name of a broker of a mesh.
const MAX_BROKER_NAME: usize = 64;

pub(super) fn parse(text: &str) -> Result<Acl, Vec<FileError>> {
    let mut parser = Parser::default();
    let mut errors = Vec::new();
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        parser.number = index + 1;
        if let Err(error) = parser.line(line.trim_matches(is_space)) {
            errors.push(error);
        }
    }
    if errors.is_empty() {
        Ok(parser.finish())
    } else {
        Err(errors)
    }
}

#[derive(Default)]
struct Parser {
    number: usize,
    anonymous: Section,
    users: HashMap<Box<str>, Section>,
    /// The section that the current line belongs to; `None` before the first `user`.
    user: Option<Box<str>>,
    patterns: Vec<Pattern>,
    warnings: Vec<FileError>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), FileError> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let (keyword, rest) = split_word(line);
        match keyword {
            "user" => self.user(rest),
            "topic" => {
                let (access, filter) = self.rule(rest)?;
                if filter.contains("%c") || filter.contains("%u") {
                    let remedy = "write pattern instead of topic to have it replaced";
                    self.warn(
                        filter,
                        "holds %c or %u, which a topic line takes as it is",
                        remedy,
                    );
                }
                self.section().rules.insert(filter, access);
                Ok(())
            }
            "pattern" => {
                let (access, filter) = self.rule(rest)?;
                self.check_pattern(filter);
                self.patterns.push(Pattern {
                    access,
                    filter: filter.into(),
                });
                Ok(())
            }
            "rt" => self.rt(rest),
            "broker" => self.broker(rest),
            "http" => self.http(rest),
            _ => Err(self.error(
                "keyword",
                keyword,
                "is unknown",
                "begin the line with user, topic, pattern, rt, broker, http or #",
            )),
        }
    }

    fn broker(&mut self, rest: &str) -> Result<(), FileError> {
        let Some(user) = &self.user else {
            let problem = "stands before the first user: anybody could be a broker";
            let remedy = "write it below user and the name of the broker's user";
            return Err(self.error("broker line", rest, problem, remedy));
        };
        let mut names = Vec::new();
        for name in rest.split_ascii_whitespace() {
            let is_name = |c: char| !c.is_control() && !matches!(c, '/' | '+' | '#');
            names.push(match name {
                "*" => BrokerName::Any,
                _ if name.len() <= MAX_BROKER_NAME && name.chars().all(is_name) => {
                    BrokerName::Named(name.into())
                }
                _ => {
                    let problem = "is no name of a broker";
                    let remedy = "write names of 1 to 64 bytes without '/', '+' and '#' as mesh.id says \
                                  them, or * for any, or nothing for the user's own name";
                    return Err(self.error("broker line", name, problem, remedy));
                }
            });
        }
        if names.is_empty() {
            names.push(BrokerName::Named(user.clone()));
        }
        self.section().brokers.extend(names);
        Ok(())
    }

    fn user(&mut self, name: &str) -> Result<(), FileError> {
        let problem = if name.is_empty() {
            "is missing"
        } else if name.len() > MAX_BYTES {
            "is longer than 65535 bytes"
        } else if name.contains(char::is_control) {
            "holds a control character"
        } else {
            self.users.entry(name.into()).or_default();
            self.user = Some(name.into());
            return Ok(());
        };
        Err(self.error(
            "user name",
            name,
            problem,
            "write user and the name of a user",
        ))
    }

    /// The rest of an `http` line: a role.
    fn http(&mut self, rest: &str) -> Result<(), FileError> {
        let Ok(role) = rest.parse() else {
            return Err(self.error("http role", rest, "is unknown", HttpRole::REMEDY));
        };
        if self.user.is_none() {
            let problem = "stands before the first user";
            let remedy = "write it below the name of the user who is to have this role";
            return Err(self.error("http role", rest, problem, remedy));
        }
        self.section().http = Some(role);
        Ok(())
    }

    /// The rest of a `topic` or `pattern` line: `[access] filter`.
    fn rule<'a>(&self, rest: &'a str) -> Result<(Access, &'a str), FileError> {
        let (first, second) = split_word(rest);
        let (access, filter) = match (first, second) {
            (filter, "") => (Access::READ_WRITE, filter),
            ("read", filter) => (Access::READ, filter),
            ("write", filter) => (Access::WRITE, filter),
            ("readwrite", filter) => (Access::READ_WRITE, filter),
            ("deny", filter) => (Access::DENY, filter),
            (access, _) => {
                let remedy = "write read, write, readwrite or deny, also before a filter that \
                              holds a space";
                return Err(self.error("access", access, "is unknown", remedy));
            }
        };
        check_filter(filter).map_err(|problem| {
            let remedy = "write a topic filter: levels separated by '/', '+' alone for one level, \
                          '#' alone and last for all that follow";
            self.error("topic filter", filter, problem, remedy)
        })?;
        Ok((access, filter))
    }

    fn check_pattern(&mut self, filter: &str) {
        let holds = |text: &str| text.contains("%c") || text.contains("%u");
        if !holds(filter) {
            let remedy = "write %c for the client identifier or %u for the user name if it should \
                          differ by client";
            self.warn(
                filter,
                "is a pattern without %c and %u, a rule for everybody",
                remedy,
            );
        } else if filter
            .split('/')
            .any(|level| level.len() > 2 && holds(level))
        {
            let remedy = "give it a level of its own";
            self.warn(
                filter,
                "has %c or %u beside other text, which mosquitto 2.1 takes as it is",
                remedy,
            );
        }
    }

    fn rt(&mut self, rest: &str) -> Result<(), FileError> {
        if rest.is_empty() {
            let remedy = "write for example rt max-priority=3 max-flows=10";
            return Err(self.error("rt key", rest, "is missing", remedy));
        }
        let number = self.number;
        let mut items = rest.split_ascii_whitespace().peekable();
        // A filter has no `=`; one that has can be told by its `/`, which no
        // key has.
        let is_filter = |item: &&str| {
            let key = item.split_once('=').map_or(*item, |(key, _)| key);
            key == *item || key.contains('/')
        };
        let Some(filter) = items.next_if(is_filter) else {
            let rights: &mut RtRights = self.section().rt.get_or_insert_default();
            return items.try_for_each(|item| rights.set(item, number));
        };
        if items.peek().is_none() {
            let remedy = "write key=value, after a topic filter or without one";
            return Err(self.error("rt key", filter, "has no value", remedy));
        }
        check_filter(filter).map_err(|problem| {
            let remedy = "write a topic filter, or nothing to have the line hold for all topics";
            self.error("topic filter", filter, problem, remedy)
        })?;
        let mut rights = RtRights::default();
        items.try_for_each(|item| rights.set(item, number))?;
        self.section().rt_topics.push((filter.into(), rights));
        Ok(())
    }

    fn section(&mut self) -> &mut Section {
        match &self.user {
            None => &mut self.anonymous,
            Some(user) => self.users.entry(user.clone()).or_default(),
        }
    }

    fn error(
        &self,
        field: &'static str,
        value: &str,
        problem: &'static str,
        remedy: &'static str,
    ) -> FileError {
        FileError::new(self.number, field, value, problem, remedy)
    }

    fn warn(&mut self, filter: &str, problem: &'static str, remedy: &'static str) {
        self.warnings
            .push(self.error("topic filter", filter, problem, remedy));
    }

    fn finish(self) -> Acl {
        Acl {
            anonymous: Arc::new(self.anonymous),
            users: self
                .users
                .into_iter()
                .map(|(user, rules)| (user, Arc::new(rules)))
                .collect(),
            patterns: self.patterns,
            warnings: self.warnings,
        }
    }
}

/// The first word and, without the space before it, the rest; as in mosquitto only spaces separate.
fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    (word, rest.trim_start_matches(is_space))
}

/// C's `isspace`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}
