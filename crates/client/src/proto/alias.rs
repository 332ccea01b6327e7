//! Topic aliases (section 3.3.2.3.4), both ways. They live as long as a
//! connection, never longer.

use std::collections::HashMap;

use punctual_codec::ReasonCode;

use crate::Error;

/// Aliases that the client has introduced.
#[derive(Debug, Default)]
pub(super) struct OutboundAliases {
    by_topic: HashMap<String, u16>,
    /// The topic of alias 1, 2, ….
    topics: Vec<Option<String>>,
    /// The server's Topic Alias Maximum.
    limit: u16,
    /// How many may be given without being asked for.
    automatic: u16,
}

/// How to send a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// By its name alone.
    Name,
    /// By its name, together with the alias it has from now on.
    Introduce(u16),
    /// By its alias alone.
    Alias(u16),
}

impl OutboundAliases {
    pub(super) fn new(limit: u16, automatic: u16) -> Self {
        Self {
            limit,
            automatic: automatic.min(limit),
            ..Self::default()
        }
    }

    pub(super) fn limit(&self) -> u16 {
        self.limit
    }

    /// Decides how to send `topic`, for which the publisher may have `asked` for an
    /// alias. The returned form must be sent.
    pub(super) fn name(&mut self, topic: &str, asked: Option<u16>) -> Naming {
        let alias = match asked {
            Some(alias) if alias == 0 || alias > self.limit => return Naming::Name,
            Some(alias) => alias,
            None if self.automatic == 0 => return Naming::Name,
            None => match self.by_topic.get(topic) {
                Some(alias) => return Naming::Alias(*alias),
                None => match self.unused() {
                    Some(alias) => alias,
                    None => return Naming::Name,
                },
            },
        };
        let at = usize::from(alias) - 1;
        if self.topics.len() <= at {
            self.topics.resize(at + 1, None);
        }
        if self.topics[at].as_deref() == Some(topic) {
            return Naming::Alias(alias);
        }
        if let Some(former) = self.topics[at].replace(topic.to_owned()) {
            self.by_topic.remove(&former);
        }
        self.by_topic.insert(topic.to_owned(), alias);
        Naming::Introduce(alias)
    }

    /// Takes back an alias that was introduced in a packet that is not sent.
    pub(super) fn forget(&mut self, alias: u16) {
        let at = usize::from(alias).wrapping_sub(1);
        if let Some(topic) = self.topics.get_mut(at).and_then(Option::take) {
            self.by_topic.remove(&topic);
        }
    }

    fn unused(&self) -> Option<u16> {
        let at = self.topics.iter().position(Option::is_none);
        let at = at.unwrap_or(self.topics.len());
        let alias = u16::try_from(at + 1).ok()?;
        (alias <= self.automatic).then_some(alias)
    }
}

/// Aliases that the server has introduced.
#[derive(Debug, Default)]
pub(super) struct InboundAliases {
    topics: Vec<Option<String>>,
    /// Our Topic Alias Maximum.
    limit: u16,
}

impl InboundAliases {
    pub(super) fn new(limit: u16) -> Self {
        Self {
            topics: Vec::new(),
            limit,
        }
    }

    /// The topic that a PUBLISH with an alias is about.
    ///
    /// # Errors
    /// 0x94 for an alias of 0 or above the maximum [MQTT-3.3.2-10], 0x82 for
    /// one that has no topic.
    pub(super) fn resolve(&mut self, topic: &str, alias: u32) -> Result<String, Error> {
        let Some(at) = alias
            .checked_sub(1)
            .filter(|_| alias <= u32::from(self.limit))
        else {
            return Err(Error::protocol(
                ReasonCode::TopicAliasInvalid,
                format!(
                    "topic alias {alias}, where at most {} is allowed",
                    self.limit
                ),
            ));
        };
        let at = at as usize;
        if self.topics.len() <= at {
            self.topics.resize(at + 1, None);
        }
        if topic.is_empty() {
            return self.topics[at].clone().ok_or_else(|| {
                Error::protocol(
                    ReasonCode::ProtocolError,
                    format!("topic alias {alias} has no topic"),
                )
            });
        }
        self.topics[at] = Some(topic.to_owned());
        Ok(topic.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_given_until_the_limit() {
        let mut out = OutboundAliases::new(2, 10);
        assert_eq!(out.name("a", None), Naming::Introduce(1));
        assert_eq!(out.name("b", None), Naming::Introduce(2));
        assert_eq!(out.name("c", None), Naming::Name);
        assert_eq!(out.name("b", None), Naming::Alias(2));
        assert_eq!(out.name("c", Some(2)), Naming::Introduce(2));
        assert_eq!(out.name("b", None), Naming::Name, "its alias was taken");
        assert_eq!(out.name("c", None), Naming::Alias(2));
        assert_eq!(out.name("c", Some(3)), Naming::Name, "above the limit");
    }

    #[test]
    fn unknown_aliases_are_refused() {
        let mut incoming = InboundAliases::new(2);
        assert!(incoming.resolve("", 1).is_err());
        assert!(incoming.resolve("a", 3).is_err());
        assert!(incoming.resolve("a", 0).is_err());
        assert_eq!(incoming.resolve("a", 2).unwrap(), "a");
        assert_eq!(incoming.resolve("", 2).unwrap(), "a");
        assert_eq!(incoming.resolve("b", 2).unwrap(), "b");
        assert_eq!(incoming.resolve("", 2).unwrap(), "b");
    }
}
