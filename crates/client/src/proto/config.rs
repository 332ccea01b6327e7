//! What a client says in CONNECT and how much it may hold.

use punctual_codec::{Properties, PropertyBuf, PropertyId, PropertySet, Version, topic};
use punctual_model::Requirements;

use crate::{Error, Message, RealTimeProperties as _};

/// Options of a connection and its session. Start from [`Config::default`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Protocol version. Default: 5.0.
    pub version: Version,
    /// Client identifier; empty to have the server assign one. Default: empty.
    pub client_id: String,
    /// Whether a session that the server may hold is thrown away (before
    /// MQTT 5 also: whether it ends with the connection). Counts for the first
    /// connection; when MQTT 5 keeps a session (a Session Expiry Interval
    /// above 0), later ones resume it. Default: true.
    pub clean_start: bool,
    /// Seconds without a packet after which a ping is sent; 0 for never. The
    /// server may choose another value. Default: 60.
    pub keep_alive: u16,
    /// User name.
    pub username: Option<String>,
    /// Password; before MQTT 5 only with a user name.
    pub password: Option<Vec<u8>>,
    /// What the server publishes if the connection breaks.
    pub will: Option<Message>,
    /// Properties of CONNECT, such as Session Expiry Interval, Receive Maximum or Topic
    /// Alias Maximum. The client observes those that bind it. Must be empty before MQTT
    /// 5.
    pub properties: PropertyBuf,
    /// Messages with QoS 1 and 2 sent and not yet acknowledged, at most; the
    /// server may ask for fewer. Default: 1000.
    pub max_inflight: u16,
    /// Messages waiting for a connection, for their turn among
    /// `max_inflight`, or for room in the output, at most. Default: 1000.
    pub max_queued: usize,
    /// Bound on the topics that get an alias automatically, also limited by the server;
    /// the first topics get them. Default: 0.
    pub topic_aliases: u16,
    /// Bytes of the largest packet accepted from the server. A Maximum Packet
    /// Size in `properties` takes its place. Default: 268 435 460, the most
    /// that MQTT has.
    pub max_packet: u32,
    /// Seconds the server may take to answer CONNECT. Default: 30.
    pub connack_timeout: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: Version::V5,
            client_id: String::new(),
            clean_start: true,
            keep_alive: 60,
            username: None,
            password: None,
            will: None,
            properties: PropertyBuf::new(),
            max_inflight: 1000,
            max_queued: 1000,
            topic_aliases: 0,
            max_packet: 268_435_460,
            connack_timeout: 30,
        }
    }
}

impl Config {
    /// The same with requirements for all that the client publishes and that
    /// says nothing else. MQTT 5 only.
    #[must_use]
    pub fn requirements(mut self, requirements: &Requirements) -> Self {
        self.properties.require(requirements);
        self
    }

    /// Checks what the specification demands of a CONNECT, so that mistakes
    /// are reported here and not by a server that hangs up.
    ///
    /// # Errors
    /// [`Error::ApiMisuse`] naming the option.
    pub fn validate(&self) -> Result<(), Error> {
        let v5 = self.version.is_v5();
        if !v5 && self.password.is_some() && self.username.is_none() {
            return Err(Error::misuse(
                "password",
                "",
                "give a user name too, or use MQTT 5, where a password can stand alone",
            ));
        }
        if self.version == Version::V31 && self.client_id.is_empty() {
            return Err(Error::misuse("client id", "", "MQTT 3.1 needs one"));
        }
        if !v5 && !self.clean_start && self.client_id.is_empty() {
            return Err(Error::misuse(
                "client id",
                "",
                "a session that is kept needs one, so that it can be found again",
            ));
        }
        check_text("client id", &self.client_id)?;
        check_text("user name", self.username.as_deref().unwrap_or(""))?;
        check_properties("CONNECT", &self.properties, PropertySet::CONNECT, v5)?;
        if let Some(will) = &self.will {
            check_topic("will topic", &will.topic)?;
            check_properties("the will", &will.properties, PropertySet::WILL, v5)?;
        }
        Ok(())
    }

    /// A number among the CONNECT properties.
    pub(super) fn number(&self, id: PropertyId) -> Option<u32> {
        self.properties.as_properties().number(id)
    }
}

/// Checks a topic name to publish to.
pub(super) fn check_topic(field: &'static str, name: &str) -> Result<(), Error> {
    check_text(field, name)?;
    topic::validate_name(name.as_bytes()).map_err(|_| {
        Error::misuse(
            field,
            name,
            "must not be empty and must not contain the wildcards + and #",
        )
    })?;
    Ok(())
}

fn check_text(field: &'static str, text: &str) -> Result<(), Error> {
    if text.len() > topic::MAX_TOPIC_LEN {
        let value = format!("({} bytes)", text.len());
        return Err(Error::misuse(field, value, "shorten it to 65535 bytes"));
    }
    if text.contains('\0') {
        return Err(Error::misuse(field, text, "take out the character U+0000"));
    }
    Ok(())
}

/// Checks properties against the packet they go into.
pub(super) fn check_properties(
    packet: &'static str,
    properties: &PropertyBuf,
    allowed: PropertySet,
    v5: bool,
) -> Result<(), Error> {
    let properties = properties.as_properties();
    if properties.is_empty() {
        return Ok(());
    }
    if !v5 {
        return Err(Error::misuse(
            "properties",
            packet,
            "only MQTT 5 has properties; use it, or leave them out",
        ));
    }
    match Properties::check(properties.as_bytes(), allowed) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::misuse(
            "properties",
            format!("{packet}: {error}"),
            "is not allowed there, is repeated, or its value is out of range",
        )),
    }
}
