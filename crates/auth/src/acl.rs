//! The ACL file: rights to publish and receive, in mosquitto's format.
//!
//! A check looks at the client's own rules first (its `user` section, or for a
//! client without a user name the lines before the first `user`), then at the
//! `pattern` rules, which apply to all clients. In each of the two, a matching
//! `deny` refuses and otherwise a matching rule with the right access grants;
//! when neither decides, the answer is no. Order within a section does not
//! matter.
//!
//! Everything that depends on the client alone (its section, substitution of `%c` and `%u`) is done
//! once by [`Acl::for_client`]; a check is one walk over a trie. Source: `mosquitto.conf(5)`, observed
//! behaviour of mosquitto 2.0.11. `rt`, `broker` and `http` lines are Punctual's own.

mod parse;
mod rights;
mod rules;

use std::collections::HashMap;
use std::sync::Arc;

pub use self::rights::RtRights;
use self::rules::{Access, Rules};
use crate::topic::{check_filter, matches};
use crate::{FileError, HttpRole};

/// The one `$SYS` topic that clients may publish to, if the rules grant it: a bridge tells there
/// whether it is connected.
const BRIDGE_STATE: &str = "$SYS/broker/connection/+/state";

/// A parsed ACL file.
///
/// ```
/// use punctual_auth::Acl;
/// let acl = Acl::parse("user robot\ntopic read plan/#\npattern write state/%c\n").unwrap();
/// let client = acl.for_client(Some("robot"), "arm-1");
/// assert!(client.may_receive("plan/today"));
/// assert!(client.may_publish("state/arm-1"));
/// assert!(!client.may_publish("state/arm-2"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Acl {
    anonymous: Arc<Section>,
    users: HashMap<Box<str>, Arc<Section>>,
    patterns: Vec<Pattern>,
    warnings: Vec<FileError>,
}

/// What the file says about one user, or about clients without a user name.
#[derive(Debug, Clone, Default)]
struct Section {
    rules: Rules,
    rt: Option<RtRights>,
    /// `rt` lines with a filter, in the order of the file.
    rt_topics: Vec<(Box<str>, RtRights)>,
    /// `broker` lines.
    brokers: Vec<BrokerName>,
    /// An `http` line.
    http: Option<HttpRole>,
}

/// Which broker of a mesh a client may be.
#[derive(Debug, Clone)]
enum BrokerName {
    /// Any.
    Any,
    /// This one.
    Named(Box<str>),
}

#[derive(Debug, Clone)]
struct Pattern {
    access: Access,
    filter: Box<str>,
}

impl Acl {
    /// Reads an ACL file. A file without rules is valid and denies everything.
    ///
    /// # Errors
    ///
    /// One [`FileError`] per line that is none of a comment, `user`, `topic`, `pattern` or `rt` line
    /// in its correct form.
    pub fn parse(text: &str) -> Result<Self, Vec<FileError>> {
        parse::parse(text)
    }

    /// Whether some user may be a broker of a mesh.
    pub fn has_brokers(&self) -> bool {
        self.users.values().any(|user| !user.brokers.is_empty())
    }

    /// Lines that are valid but probably not meant so. For the log.
    pub fn warnings(&self) -> &[FileError] {
        &self.warnings
    }

    /// What a user may do over the HTTP interface: its `http` line; `None` if there is none. Clients
    /// without a user name may do nothing there.
    pub fn http_role(&self, user: &str) -> Option<HttpRole> {
        self.users.get(user)?.http
    }

    /// The rights of a client with this user name (`None` or empty for an anonymous client) and
    /// client identifier. To be called once per connection, and again after a reload.
    ///
    /// As in mosquitto, a user name or client identifier that holds `+` or `#` gets nothing from any
    /// `pattern`. Beyond mosquitto, the same holds where substitution makes a filter longer or deeper
    /// than MQTT allows, and a name that begins with `$` cannot turn a `pattern` like `%c/#` into a
    /// grant on `$` topics.
    pub fn for_client(&self, user: Option<&str>, client_id: &str) -> ClientAcl {
        let user = user.filter(|user| !user.is_empty());
        let own = match user {
            None => Some(&self.anonymous),
            Some(user) => self.users.get(user),
        };
        ClientAcl(Some(Arc::new(Rights {
            own: own.cloned().unwrap_or_default(),
            patterns: self.patterns_for(user, client_id).unwrap_or_default(),
        })))
    }

    /// `None` where the names make patterns unsafe.
    fn patterns_for(&self, user: Option<&str>, client_id: &str) -> Option<Rules> {
        let wildcard = |name: &str| name.contains(['+', '#']);
        if wildcard(client_id) || user.is_some_and(wildcard) {
            return None;
        }
        let mut rules = Rules::default();
        for Pattern { access, filter } in &self.patterns {
            if filter.contains("%u") && user.is_none() {
                continue;
            }
            let substituted = substitute(filter, user, client_id);
            if substituted.is_empty() {
                continue;
            }
            check_filter(&substituted).ok()?;
            let escapes = substituted.starts_with('$') && !filter.starts_with('$');
            if *access == Access::DENY || !escapes {
                rules.insert(&substituted, *access);
            }
        }
        Some(rules)
    }
}

/// The rights of one connected client. Cloning is cheap.
///
/// Topics are topic names without wildcards and filters are valid topic filters: the codec has seen
/// to that.
#[derive(Debug, Clone)]
pub struct ClientAcl(Option<Arc<Rights>>);

#[derive(Debug)]
struct Rights {
    own: Arc<Section>,
    patterns: Rules,
}

impl ClientAcl {
    /// The rights of every client when no ACL file is configured: all, except for publishing to
    /// `$SYS` and `$share` topics.
    pub const fn unrestricted() -> Self {
        Self(None)
    }

    /// Whether the client may publish to this topic.
    ///
    /// Topics below `$SYS` belong to the broker and those below `$share` are no topics, so that no
    /// rule grants them; the exception is `$SYS/broker/connection/+/state`, which bridges of
    /// mosquitto publish.
    pub fn may_publish(&self, topic: &str) -> bool {
        let reserved = topic.starts_with("$SYS") && !matches(BRIDGE_STATE, topic);
        !reserved && !topic.starts_with("$share") && self.grants(topic, Access::WRITE)
    }

    /// Whether a message on this topic may be delivered to the client.
    pub fn may_receive(&self, topic: &str) -> bool {
        self.grants(topic, Access::READ)
    }

    /// Whether the client may subscribe with this filter, which may begin with `$share/name/`: whether
    /// there is a topic that matches it and that [`ClientAcl::may_receive`] allows. With another one
    /// nothing could ever be delivered, and an error tells so at once (mosquitto 2.0 grants such a
    /// subscription, and delivers nothing). Work is bounded; beyond, the answer is yes.
    pub fn may_subscribe(&self, filter: &str) -> bool {
        let Some(rights) = &self.0 else {
            return true;
        };
        let shared = filter
            .strip_prefix("$share/")
            .and_then(|rest| rest.split_once('/'));
        let filter = shared.map_or(filter, |(_, filter)| filter);
        let rules = [&rights.own.rules, &rights.patterns];
        let depth = rules.iter().map(|rules| rules.depth()).max().unwrap_or(0);
        let granted = |topic: &str| self.may_receive(topic);
        rules
            .iter()
            .any(|rules| rules.reaches(filter, Access::READ, depth, granted))
    }

    /// What the `rt` lines allow the client to state about messages on a topic: the first line whose
    /// filter matches, and for what it does not say the lines without a filter.
    pub fn rt_rights_on(&self, topic: &str) -> RtRights {
        let Some(rights) = &self.0 else {
            return RtRights::default();
        };
        let general = rights.own.rt.unwrap_or_default();
        let mut lines = rights.own.rt_topics.iter();
        match lines.find(|(filter, _)| matches(filter, topic)) {
            Some((_, own)) => own.or(general),
            None => general,
        }
    }

    /// Whether the client may act as the broker of the mesh with this name, which
    /// forwards everything: a `broker` line. Without an ACL file no client may.
    pub fn may_be_broker(&self, name: &str) -> bool {
        let brokers = self.0.as_ref().map(|rights| &rights.own.brokers);
        brokers.into_iter().flatten().any(|broker| match broker {
            BrokerName::Any => true,
            BrokerName::Named(known) => **known == *name,
        })
    }

    /// What the `rt` lines without a filter allow the client to ask for; `None` if there is none.
    pub fn rt_rights(&self) -> Option<RtRights> {
        self.0.as_ref().and_then(|rights| rights.own.rt)
    }

    fn grants(&self, topic: &str, wanted: Access) -> bool {
        let Some(rights) = &self.0 else {
            return true;
        };
        let decide = |rules: &Rules| rules.lookup(topic).decide(wanted);
        decide(&rights.own.rules)
            .or_else(|| decide(&rights.patterns))
            .unwrap_or(false)
    }
}

/// Replaces `%c` and `%u` wherever they stand, as mosquitto 2.0 does. What is put in is not looked
/// at again.
fn substitute(pattern: &str, user: Option<&str>, client_id: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + client_id.len());
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        let (name, length) = match (tail.as_bytes().get(1), user) {
            (Some(b'c'), _) => (client_id, 2),
            (Some(b'u'), Some(user)) => (user, 2),
            _ => ("%", 1),
        };
        out.push_str(name);
        rest = &tail[length..];
    }
    out + rest
}

#[cfg(test)]
mod tests;
