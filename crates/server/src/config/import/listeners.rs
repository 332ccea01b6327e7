//! The listeners of a mosquitto.conf.
//!
//! `listener` begins one. Options before the first one belong to the default
//! listener, which exists where it has a port or an address, or where there is
//! no other: then Mosquitto 2 listens on this machine alone.

use std::path::Path;

use super::super::document::{Content, Node, Table};
use super::super::origin::Origin;
use super::super::value::Scalar;
use super::lines::Line;
use super::options::Reach;
use super::{Note, note, options};

/// The listeners so far.
#[derive(Default)]
pub(super) struct Listeners {
    /// What comes before the first `listener`.
    default: Draft,
    /// Those that `listener` began.
    begun: Vec<Draft>,
    /// An option that keeps clients out everywhere in a way that there is none of here, and what that
    /// is.
    all_restricted_by: Option<(Line, &'static str)>,
    /// The `allow_anonymous` of all listeners.
    pub(super) allow_anonymous: Option<(bool, Origin)>,
}

/// A listener that is being put together.
#[derive(Default)]
struct Draft {
    /// Where it, or its first option, is written.
    origin: Option<Origin>,
    port: Option<u16>,
    host: Option<String>,
    websockets: bool,
    /// `ipv4` or `ipv6`.
    domain: Option<String>,
    /// Of pages that may open WebSockets.
    origins: Vec<String>,
    client_ca: Option<Line>,
    client_crl: Option<Line>,
    /// An option that asks for encryption.
    encrypted_by: Option<Line>,
    /// An option that keeps clients out in a way that there is none of here, and what that is.
    restricted_by: Option<(Line, &'static str)>,
    values: Table,
}

impl Listeners {
    /// How many there are so far.
    pub(super) fn count(&self) -> usize {
        self.begun.len() + usize::from(self.default.is_addressed() || self.begun.is_empty())
    }

    /// Sets a key of the current listener.
    pub(super) fn set(&mut self, key: &str, value: Scalar, origin: Origin) {
        self.current(&origin).set(key, value, origin);
    }

    /// Notes what a line says about whom its listener, or all, are to keep out, whatever becomes of
    /// it. `per_listener`: the `per_listener_settings` so far.
    pub(super) fn restricted(&mut self, line: &Line, per_listener: bool) {
        if ["certfile", "keyfile"].contains(&line.option.as_str()) {
            self.current(&line.origin).encrypted_by = Some(line.clone());
        }
        let known = options::RESTRICTIONS
            .iter()
            .copied()
            .find(|(option, ..)| *option == line.option);
        if let Some((_, reach, what)) = known {
            let restricted = Some((line.clone(), what));
            match reach {
                Reach::Setting if !per_listener => self.all_restricted_by = restricted,
                Reach::Listener | Reach::Setting => {
                    self.current(&line.origin).restricted_by = restricted;
                }
                Reach::All => self.all_restricted_by = restricted,
            }
        }
    }

    /// Takes a line that is about a listener. `Err`: why it has no effect.
    pub(super) fn line(&mut self, line: &Line) -> Result<(), String> {
        let value = line.value.as_str();
        match line.option.as_str() {
            "port" => self.default_listener(line).port = Some(port(value)?),
            "bind_address" => self.default_listener(line).host = Some(value.into()),
            "listener" => return self.begin(line),
            "protocol" => {
                self.current(&line.origin).websockets = match value {
                    "mqtt" => false,
                    "websockets" => true,
                    _ => {
                        let what = "another protocol, and there are mqtt and websockets";
                        let restricted = Some((line.clone(), what));
                        self.current(&line.origin).restricted_by = restricted;
                        false
                    }
                }
            }
            "socket_domain" => match value {
                "ipv4" | "ipv6" => self.current(&line.origin).domain = Some(value.into()),
                _ => return Err("there are ipv4 and ipv6".into()),
            },
            "cafile" => {
                options::text(value)?;
                self.current(&line.origin).client_ca = Some(line.clone());
            }
            "crlfile" => {
                options::text(value)?;
                self.current(&line.origin).client_crl = Some(line.clone());
            }
            "websockets_origin" => {
                options::text(value)?;
                let origins = &mut self.current(&line.origin).origins;
                origins.push(value.into());
                let origins = Scalar::List(origins.clone());
                self.set("websocket_origins", origins, line.origin.clone());
            }
            "tls_version" => {
                let version = match value {
                    "tlsv1.3" => "1.3",
                    "tlsv1.2" => "1.2",
                    _ => return Err("the oldest version of TLS is 1.2".into()),
                };
                self.set(
                    "tls_min_version",
                    Scalar::Text(version.into()),
                    line.origin.clone(),
                );
            }
            "enable_proxy_protocol" => match value {
                "1" | "2" => self.set("proxy_protocol", Scalar::Boolean(true), line.origin.clone()),
                _ => return Err("there are versions 1 and 2 of the PROXY protocol".into()),
            },
            option => return Err(format!("{option} is not handled")),
        }
        Ok(())
    }

    /// The listeners as a list of tables, and what to say about them.
    /// `passwords`: whether there is a password file of all listeners.
    pub(super) fn finish(self, path: &Path, passwords: bool) -> (Vec<Node>, Vec<Note>) {
        let mut notes = Vec::new();
        let mut drafts = self.begun;
        let local_only = drafts.is_empty() && !self.default.is_addressed();
        // Those that `begin` refused.
        drafts.retain(|draft| draft.port.is_some());
        if local_only || self.default.is_addressed() {
            drafts.insert(0, self.default);
        } else if let Some(origin) = self.default.origin {
            notes.push(Note {
                origin,
                line: "options of a listener".into(),
                reason: "they stand before the first `listener` and are meant for none below; \
                         move them, or set `port`"
                    .into(),
                lost: false,
            });
        }
        if drafts.is_empty() {
            return (Vec::new(), notes);
        }
        let start = Origin::File {
            path: path.into(),
            line: 1,
        };
        let nodes = drafts
            .into_iter()
            .filter_map(|mut draft| {
                if draft.restricted_by.is_none() {
                    draft.restricted_by.clone_from(&self.all_restricted_by);
                }
                if let Some(note) = draft.cannot_be() {
                    notes.push(note);
                    return None;
                }
                let origin = draft.origin.clone().unwrap_or_else(|| start.clone());
                if local_only {
                    draft.host = Some("localhost".into());
                }
                let anonymous = match (&self.allow_anonymous, local_only) {
                    (Some((allow, line)), _) => (Scalar::Boolean(*allow), line.clone()),
                    (None, true) => (Scalar::Text("loopback".into()), origin.clone()),
                    // As in Mosquitto 2.
                    (None, false) => (Scalar::Boolean(false), origin.clone()),
                };
                if !draft.values.contains_key("allow_anonymous") {
                    draft.set("allow_anonymous", anonymous.0, anonymous.1);
                }
                notes.extend(draft.settle_client_certificates());
                notes.extend(draft.settle_nobody(passwords, &origin));
                let address = Scalar::Text(draft.address());
                draft.set("address", address, origin.clone());
                let content = Content::Table(draft.values);
                Some(Node { origin, content })
            })
            .collect();
        (nodes, notes)
    }

    /// `listener PORT [HOST]`
    fn begin(&mut self, line: &Line) -> Result<(), String> {
        let mut words = line.value.split_whitespace();
        let number = port(words.next().unwrap_or_default());
        let host = words.next().map(str::to_owned);
        // Without a port it is left out in the end, with the options that
        // follow: they are not meant for the listener before it.
        self.begun.push(Draft {
            origin: Some(line.origin.clone()),
            host,
            ..Draft::default()
        });
        match number? {
            0 => Err("there are no Unix sockets".into()),
            number => {
                self.current(&line.origin).port = Some(number);
                Ok(())
            }
        }
    }

    fn default_listener(&mut self, line: &Line) -> &mut Draft {
        self.default
            .origin
            .get_or_insert_with(|| line.origin.clone());
        &mut self.default
    }

    fn current(&mut self, origin: &Origin) -> &mut Draft {
        let draft = self.begun.last_mut().unwrap_or(&mut self.default);
        draft.origin.get_or_insert_with(|| origin.clone());
        draft
    }
}

impl Draft {
    fn is_addressed(&self) -> bool {
        self.port.is_some() || self.host.is_some()
    }

    fn set(&mut self, key: &str, value: Scalar, origin: Origin) {
        let content = Content::Scalar(value);
        self.values.insert(key.into(), Node { origin, content });
    }

    fn is(&self, key: &str) -> bool {
        let node = self.values.get(key).map(|node| &node.content);
        matches!(node, Some(Content::Scalar(Scalar::Boolean(true))))
    }

    /// Why it is left out: it would be open to more than it is.
    fn cannot_be(&self) -> Option<Note> {
        let whole = |key| self.values.contains_key(key);
        let plain = match &self.encrypted_by {
            Some(line) if !whole("certificate") || !whole("key") => {
                let why = "the listener would not be encrypted without both certfile and keyfile";
                Some((line, why.to_owned()))
            }
            _ => None,
        };
        let open = self.restricted_by.as_ref();
        let open = open.map(|(line, what)| (line, format!("the listener has {what}")));
        let (line, why) = plain.or(open)?;
        let mut note = note(line, format!("{why}; it is left out"));
        note.lost = true;
        Some(note)
    }

    /// Nobody can connect to a listener that wants a user name and has no user. So it is here, too:
    /// with a file of passwords that is empty.
    fn settle_nobody(&mut self, passwords: bool, origin: &Origin) -> Option<Note> {
        let named =
            self.is("use_identity_as_username") || self.values.contains_key("password_file");
        let anonymous = self.values.get("allow_anonymous").map(|node| &node.content);
        let nobody = matches!(anonymous, Some(Content::Scalar(Scalar::Boolean(false))));
        if !nobody || named || passwords {
            return None;
        }
        let nothing = Scalar::Text("/dev/null".into());
        self.set("password_file", nothing, origin.clone());
        Some(Note {
            origin: origin.clone(),
            line: "listener".into(),
            reason: "nobody can connect here, as in Mosquitto: allow_anonymous is false and no \
                     user has a password; name a password_file, or remove the listener"
                .into(),
            lost: false,
        })
    }

    /// Mosquitto asks for client certificates only where it requires them.
    fn settle_client_certificates(&mut self) -> Vec<Note> {
        let lines = [
            ("client_ca", self.client_ca.take()),
            ("client_crl", self.client_crl.take()),
        ];
        let lines = lines
            .into_iter()
            .filter_map(|(key, line)| Some((key, line?)));
        if self.is("require_client_certificate") {
            lines.for_each(|(key, line)| self.set(key, Scalar::Text(line.value), line.origin));
            return Vec::new();
        }
        let reason = "require_certificate is not true, so clients are asked for none; if the \
                      file completes the chain of certfile, append it to that file";
        let notes = lines.map(|(_, line)| Note {
            lost: false,
            ..note(&line, reason.into())
        });
        notes.collect()
    }

    fn address(&self) -> String {
        let encrypted = self.values.contains_key("certificate");
        let scheme = match (self.websockets, encrypted) {
            (false, false) => "tcp",
            (false, true) => "tls",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        let host = match (self.host.as_deref(), self.domain.as_deref()) {
            (Some(host), _) if host.contains(':') => format!("[{host}]"),
            (Some(host), _) => host.into(),
            (None, Some("ipv4")) => "0.0.0.0".into(),
            (None, Some("ipv6")) => "[::]".into(),
            (None, _) => "*".into(),
        };
        format!("{scheme}://{host}:{}", self.port.unwrap_or(1883))
    }
}

fn port(value: &str) -> Result<u16, String> {
    value
        .parse()
        .map_err(|_| "the port is not a number from 1 to 65535".into())
}
