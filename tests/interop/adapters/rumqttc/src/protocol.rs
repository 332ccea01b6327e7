//! The runner's protocol: one JSON object per line.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rumqttc::{TlsConfiguration, Transport};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Larger bodies are reported by size and hash only.
const LARGEST_SHOWN: usize = 4096;
/// Above the largest payload of any case.
pub const LARGEST_PACKET: u32 = 1 << 20;

/// One request; every operation uses the fields it needs.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Request {
    pub id: u64,
    pub op: String,
    pub conn: String,
    pub host: String,
    pub port: u16,
    pub transport: String,
    pub version: u8,
    pub client_id: String,
    pub username: Option<String>,
    pub password: Option<String>,
    pub clean: bool,
    pub session_expiry: u32,
    pub keepalive: u64,
    pub ca: String,
    pub cert: Option<String>,
    pub key: Option<String>,
    pub will: Option<Will>,
    pub filters: Vec<Filter>,
    pub topic: String,
    pub payload: String,
    pub qos: u8,
    pub retain: bool,
    pub count: usize,
    pub window: Option<u16>,
    pub props: Props,
}

/// The message that the broker publishes for a lost client.
#[derive(Deserialize)]
pub struct Will {
    pub topic: String,
    pub payload: String,
    pub qos: u8,
    pub retain: bool,
}

/// A filter: an object in SUBSCRIBE requests, a string in UNSUBSCRIBE requests.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Filter {
    Subscribe(Subscription),
    Unsubscribe(String),
}

#[derive(Deserialize, Clone)]
pub struct Subscription {
    pub filter: String,
    pub qos: u8,
    #[serde(default)]
    pub no_local: bool,
    #[serde(default)]
    pub retain_as_published: bool,
    pub identifier: Option<usize>,
}

/// MQTT 5 PUBLISH properties.
#[derive(Deserialize, Serialize, Default, Clone)]
#[serde(default)]
pub struct Props {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub user: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiry: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_alias: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub identifiers: Vec<usize>,
}

impl Request {
    pub fn subscriptions(&self) -> impl Iterator<Item = Subscription> + '_ {
        self.filters.iter().filter_map(|filter| match filter {
            Filter::Subscribe(subscription) => Some(subscription.clone()),
            Filter::Unsubscribe(_) => None,
        })
    }

    /// The one filter to unsubscribe from: rumqttc takes one at a time.
    pub fn unsubscription(&self) -> String {
        match self.filters.first() {
            Some(Filter::Unsubscribe(filter)) => filter.clone(),
            _ => String::new(),
        }
    }

    pub fn body(&self) -> Vec<u8> {
        STANDARD
            .decode(&self.payload)
            .expect("the runner sends Base64")
    }

    /// Host or URL, as rumqttc wants it for the transport.
    pub fn address(&self) -> String {
        match self.transport.as_str() {
            "ws" | "wss" => format!("{}://{}:{}/mqtt", self.transport, self.host, self.port),
            _ => self.host.clone(),
        }
    }

    pub fn network(&self) -> std::io::Result<Transport> {
        Ok(match self.transport.as_str() {
            "tls" => Transport::tls_with_config(self.tls()?),
            "ws" => Transport::ws(),
            "wss" => Transport::wss_with_config(self.tls()?),
            _ => Transport::tcp(),
        })
    }

    fn tls(&self) -> std::io::Result<TlsConfiguration> {
        let client_auth = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((std::fs::read(cert)?, std::fs::read(key)?)),
            _ => None,
        };
        Ok(TlsConfiguration::Simple {
            ca: std::fs::read(&self.ca)?,
            alpn: None,
            client_auth,
        })
    }
}

pub fn decode(text: &str) -> Vec<u8> {
    STANDARD.decode(text).expect("the runner sends Base64")
}

pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub fn say(value: Value) {
    let mut line = value.to_string();
    line.push('\n');
    // A runner that is gone wants no answer.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

pub fn fail(id: u64, error: impl ToString) {
    say(json!({ "id": id, "error": error.to_string() }));
}

pub fn message(
    conn: &str,
    topic: &str,
    payload: &[u8],
    qos: u8,
    retain: bool,
    dup: bool,
    props: Props,
) {
    let hash: String = Sha256::digest(payload)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut event = json!({
        "event": "message", "conn": conn, "topic": topic, "size": payload.len(), "sha256": hash,
        "qos": qos, "retain": retain, "dup": dup, "props": props,
    });
    if payload.len() <= LARGEST_SHOWN {
        event["payload"] = encode(payload).into();
    }
    say(event);
}
