//! The `connection` sections of a mosquitto.conf: to which broker, as whom, and which topics.
//!
//! Source: mosquitto.conf(5), "Configuring Bridges". Options of other sections are left alone, so
//! that the file may be that of a Mosquitto. What a bridge cannot do is an error that names the
//! line; what it does by itself is passed over.

use std::path::PathBuf;
use std::time::Duration;

use punctual_client::{QoS, TlsOptions};
use punctual_codec::topic;

use crate::config::{MosquittoLine, Neighbour, is_mosquitto_option, unknown_mosquitto_option};

/// One bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: String,
    /// Host and port.
    pub(super) address: Option<Neighbour>,
    pub(super) topics: Vec<Topic>,
    /// As whom it connects there, and here.
    pub(super) remote: Account,
    pub(super) local: Account,
    /// Whether subscriptions and messages there end with the connection.
    pub(super) clean: bool,
    /// Seconds.
    pub(super) keep_alive: u16,
    /// Longest pause between two attempts.
    pub(super) restart: Duration,
    /// For TLS, if an option asks for it.
    pub(super) tls: Option<TlsOptions>,
    /// Whether a `$SYS` topic tells how it stands.
    pub(super) notifications: bool,
}

/// Names and a secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) client_id: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

/// Without the secret.
impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account")
            .field("client_id", &self.client_id)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Topics that are carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topic {
    /// Without the prefixes.
    pattern: String,
    pub(super) out: bool,
    pub(super) inward: bool,
    pub(super) qos: QoS,
    local: String,
    remote: String,
}

impl Topic {
    /// What is subscribed to here, for what goes out.
    pub(super) fn local_filter(&self) -> String {
        format!("{}{}", self.local, self.pattern)
    }

    /// What is subscribed to there, for what comes in.
    pub(super) fn remote_filter(&self) -> String {
        format!("{}{}", self.remote, self.pattern)
    }

    /// What a topic of here is called there, if this line is for it.
    pub(super) fn to_remote(&self, name: &str) -> Option<String> {
        let fits = self.out && topic::matches(&self.local_filter(), name);
        let rest = name.strip_prefix(&self.local).filter(|_| fits)?;
        Some(format!("{}{rest}", self.remote))
    }

    /// The reverse.
    pub(super) fn to_local(&self, name: &str) -> Option<String> {
        let fits = self.inward && topic::matches(&self.remote_filter(), name);
        let rest = name.strip_prefix(&self.remote).filter(|_| fits)?;
        Some(format!("{}{rest}", self.local))
    }

    /// `pattern [[[out | in | both] qos] local-prefix remote-prefix]`
    fn read(value: &str) -> Result<Self, String> {
        let mut words = value.split_whitespace().map(|word| match word {
            "\"\"" => "",
            word => word,
        });
        let pattern = words.next().unwrap_or_default().to_owned();
        let (out, inward) = match words.next() {
            None | Some("out") => (true, false),
            Some("in") => (false, true),
            Some("both") => (true, true),
            Some(other) => return Err(format!("{other}: write out, in or both")),
        };
        let qos = match words.next() {
            None | Some("0") => QoS::AtMostOnce,
            Some("1") => QoS::AtLeastOnce,
            Some("2") => QoS::ExactlyOnce,
            Some(other) => return Err(format!("{other}: write a QoS of 0, 1 or 2")),
        };
        let mut prefix = || words.next().unwrap_or_default().to_owned();
        let topic = Self {
            pattern,
            out,
            inward,
            qos,
            local: prefix(),
            remote: prefix(),
        };
        for filter in [topic.local_filter(), topic.remote_filter()] {
            topic::validate_filter(&filter)
                .map_err(|_| format!("{filter:?} is no topic filter"))?;
        }
        Ok(topic)
    }
}

/// Reads all sections.
///
/// # Errors
/// What cannot be read, or cannot be done; each with its line.
pub(super) fn read(lines: &[MosquittoLine]) -> Result<Vec<Section>, Vec<String>> {
    let mut sections: Vec<Section> = Vec::new();
    let mut problems = Vec::new();
    for line in lines {
        let wrong = |why: String| format!("{}: {} {}: {why}", line.origin, line.option, line.value);
        if line.option == "connection" {
            if line.value.is_empty() || sections.iter().any(|s| s.name == line.value) {
                problems.push(wrong("give each bridge a name of its own".into()));
            }
            sections.push(Section::new(&line.value));
        } else if let Some(section) = sections.last_mut()
            && let Err(why) = section.take(&line.option, &line.value)
        {
            problems.push(wrong(why));
        }
    }
    // What is missing may be what was refused.
    if problems.is_empty() {
        for section in &sections {
            let name = &section.name;
            if section.address.is_none() || section.topics.is_empty() {
                problems.push(format!(
                    "connection {name}: it needs an address and a topic"
                ));
            }
        }
        if sections.is_empty() {
            problems.push("it has no line `connection NAME`, and so no bridge".into());
        }
    }
    match problems.is_empty() {
        true => Ok(sections),
        false => Err(problems),
    }
}

impl Section {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            address: None,
            topics: Vec::new(),
            remote: Account::default(),
            local: Account::default(),
            clean: false,
            keep_alive: 60,
            restart: Duration::from_secs(30),
            tls: None,
            notifications: true,
        }
    }

    /// What is wrong with its certificates, if they cannot be used.
    pub(super) fn unreadable(&self) -> Option<String> {
        let error = self.tls.as_ref()?.check().err()?;
        Some(format!("connection {}: {error}", self.name))
    }

    fn tls(&mut self) -> &mut TlsOptions {
        self.tls.get_or_insert_default()
    }

    fn take(&mut self, option: &str, value: &str) -> Result<(), String> {
        let text = || Some(value.to_owned());
        let path = || Some(PathBuf::from(value));
        let yes = || match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("write true or false".to_owned()),
        };
        match option {
            "address" | "addresses" => {
                let mut words = value.split_whitespace();
                let first = words.next().unwrap_or_default();
                if words.next().is_some() {
                    return Err("one address is used: make a section for each".into());
                }
                let has_port = first
                    .rsplit_once(':')
                    .is_some_and(|(_, port)| !port.ends_with(']'));
                let whole = match has_port {
                    true => first.to_owned(),
                    false => format!("{first}:1883"),
                };
                self.address = Some(whole.parse()?);
            }
            "topic" => self.topics.push(Topic::read(value)?),
            "remote_username" | "username" => self.remote.user = text(),
            "remote_password" | "password" => self.remote.password = text(),
            "remote_clientid" | "clientid" => self.remote.client_id = text(),
            "local_username" => self.local.user = text(),
            "local_password" => self.local.password = text(),
            "local_clientid" => self.local.client_id = text(),
            "cleansession" => self.clean = yes()?,
            "keepalive_interval" => {
                self.keep_alive = value.parse().map_err(|_| "write seconds".to_owned())?;
            }
            "restart_timeout" => {
                let seconds = value.split_whitespace().last().and_then(|n| n.parse().ok());
                self.restart = Duration::from_secs(seconds.ok_or("write seconds")?);
            }
            "bridge_cafile" => self.tls().ca_file = path(),
            "bridge_capath" => self.tls().ca_dir = path(),
            "bridge_certfile" => self.tls().cert_file = path(),
            "bridge_keyfile" => self.tls().key_file = path(),
            "notifications" => self.notifications = yes()?,
            "bridge_insecure" => self.tls().insecure = yes()?,
            "start_type" if value == "automatic" => {}
            "start_type" => return Err("bridges are always connected".into()),
            "bridge_psk" | "bridge_identity" => {
                return Err("there is no TLS with pre-shared keys; use certificates".into());
            }
            // MQTT 5 is spoken, whatever is named: it marks messages and returns none.
            "bridge_protocol_version"
            | "try_private"
            | "bridge_attempt_unsubscribe"
            | "bridge_outgoing_retain"
            | "notifications_local_only"
            | "notification_topic" => {}
            _ if option.starts_with("bridge_") => return Err("this is not supported".into()),
            _ if !is_mosquitto_option(option) => return Err(unknown_mosquitto_option(option)),
            // Of the rest of the file.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mosquitto_lines;

    fn sections(text: &str) -> Result<Vec<Section>, Vec<String>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(&mosquitto_lines(file.path()).unwrap())
    }

    #[test]
    fn a_section_is_read_and_the_rest_left_alone() {
        let found = sections(
            "listener 1883\nconnection site\naddress mqtt.example\ntopic # out 1 here/ there/\n\
             topic a/+ both 2 \"\" far/\nremote_username u\nremote_password secret\n\
             try_private true\nbridge_protocol_version mqttv311\nconnection other\n\
             address 10.0.0.1:2883\ntopic x\nbridge_cafile ca.pem\nnotifications false\n",
        );
        let [site, other] = &found.unwrap()[..] else {
            panic!()
        };
        let address = |section: &Section| section.address.clone().unwrap().target().to_owned();
        assert_eq!(address(site), "mqtt.example:1883");
        assert_eq!(address(other), "10.0.0.1:2883");
        assert_eq!(site.remote.user.as_deref(), Some("u"));
        assert!(site.notifications && !other.notifications);
        assert!(!format!("{site:?}").contains("secret"));
        assert_eq!(
            site.topics[0].to_remote("here/b/c").as_deref(),
            Some("there/b/c")
        );
        assert_eq!(site.topics[0].to_remote("b/c"), None);
        assert_eq!(site.topics[0].to_local("there/b"), None);
        assert_eq!(site.topics[1].to_local("far/a/1").as_deref(), Some("a/1"));
        assert_eq!(site.topics[1].remote_filter(), "far/a/+");
        assert!(other.tls.is_some() && other.topics[0].out && !other.topics[0].inward);
    }

    #[test]
    fn what_cannot_be_done_names_its_line() {
        for (text, line, word) in [
            ("connection a\naddress h:1\ntopic # up\n", ":3: ", "both"),
            ("connection a\naddress h:1\ntopic # in 3\n", ":3: ", "QoS"),
            ("connection a\naddress h:1 i:1\ntopic #\n", ":2: ", "each"),
            (
                "connection a\naddress h:1\ntopic #\nbridge_psk 1\n",
                ":4: ",
                "certificates",
            ),
            ("connection a\ntopic #\n", "connection a", "address"),
            ("connection a\ntoppic #\n", ":2: ", "is it topic?"),
            ("listener 1883\n", "connection NAME", "no bridge"),
            ("connection a\naddress h:1\ntopic a#\n", ":3: ", "filter"),
        ] {
            let problems = sections(text).unwrap_err().join("\n");
            assert!(
                problems.contains(line) && problems.contains(word) && !problems.contains('\n'),
                "{problems}"
            );
        }
    }
}
