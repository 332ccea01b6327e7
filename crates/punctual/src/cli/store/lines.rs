//! A store as text: a JSON object on each line, in the order in which recovery
//! tells operations. Bytes are in base64.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use punctual_codec::{Properties, PropertySet, SubscribeOptions, Version, topic};
use punctual_manager::State;
use punctual_store::op::{
    Content, EntryOp, HighestNumbers, Ids, SessionOp, SubscriptionOp, Wall, WillOp,
};
use punctual_store::{Batch, Op};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

/// Of a retained message: 0 is none.
const OLDEST_VERSION: u64 = 1;

/// One line. Times are nanoseconds since the UNIX epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Line {
    /// Numbers up to these were used.
    Highest {
        session: u64,
        message: u64,
        entry: u64,
        version: u64,
    },
    Flow {
        key: String,
        value: Bytes,
    },
    Message {
        message: u64,
        #[serde(flatten)]
        content: Published,
    },
    Retain {
        topic: String,
        message: u64,
        version: u64,
    },
    Session {
        session: u64,
        client_id: String,
        user: Option<String>,
        version: u8,
        expiry: u32,
        detached: Option<Wall>,
        next_packet_id: u16,
    },
    Subscription {
        session: u64,
        filter: String,
        options: u8,
        id: Option<u32>,
        properties: Bytes,
    },
    Received {
        session: u64,
        packet_id: u16,
        #[serde(default, skip_serializing_if = "is_unknown")]
        gist: u32,
    },
    Will {
        session: u64,
        delay: u32,
        due: Option<Wall>,
        expiry: Option<u32>,
        #[serde(flatten)]
        content: Published,
    },
    Entry {
        session: u64,
        entry: u64,
        message: u64,
        qos: u8,
        retain: bool,
        subscription_ids: Vec<u32>,
        number: Option<(u32, u32)>,
    },
    Inflight {
        session: u64,
        entry: u64,
        packet_id: u16,
        step: bool,
    },
    /// Admitted flows, with the subscriptions that their bounds were computed for.
    Admitted {
        flows: Value,
    },
    /// The last line: that nothing was cut off.
    End {
        /// How many come before it.
        lines: u64,
    },
}

/// A message, or that of a will.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Published {
    topic: String,
    properties: Bytes,
    payload: Bytes,
    publisher: u64,
    qos: u8,
    retain: bool,
    expires: Option<Wall>,
    stamp: Bytes,
}

/// Bytes, as base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD
            .decode(text)
            .map(Self)
            .map_err(de::Error::custom)
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<&Content<'_>> for Published {
    fn from(content: &Content<'_>) -> Self {
        Self {
            topic: content.topic.into(),
            properties: content.properties.into(),
            payload: content.payload.into(),
            publisher: content.publisher,
            qos: content.qos,
            retain: content.retain,
            expires: content.expires,
            stamp: content.stamp.into(),
        }
    }
}

impl Published {
    fn check(&self, allowed: PropertySet) -> Result<(), String> {
        if let Err(error) = topic::validate_name(self.topic.as_bytes()) {
            return Err(wrong("topic", &self.topic, error));
        }
        if let Err(error) = Properties::check(&self.properties.0, allowed) {
            let value = BASE64_STANDARD.encode(&self.properties.0);
            return Err(wrong("properties", &value, error));
        }
        check_qos(self.qos)
    }

    fn content(&self) -> Content<'_> {
        Content {
            topic: &self.topic,
            properties: &self.properties.0,
            payload: &self.payload.0,
            publisher: self.publisher,
            qos: self.qos,
            retain: self.retain,
            expires: self.expires,
            stamp: &self.stamp.0,
        }
    }
}

fn wrong(field: &str, value: impl fmt::Debug, why: impl fmt::Display) -> String {
    format!("{field} = {value:?}: {why}")
}

/// Whether a gist is not known: that is not written.
fn is_unknown(gist: &u32) -> bool {
    *gist == 0
}

fn check_qos(qos: u8) -> Result<(), String> {
    match qos {
        0..=2 => Ok(()),
        other => Err(wrong("qos", other, "write 0, 1 or 2")),
    }
}

impl Line {
    /// Whether a broker can go on with it.
    ///
    /// # Errors
    /// Names the field, its value and what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Admitted { flows } => match State::from_json(&flows.to_string()) {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("flows {error}")),
            },
            Self::Message { content, .. } => content.check(PropertySet::PUBLISH),
            Self::Will { content, .. } => content.check(PropertySet::WILL),
            Self::Session {
                client_id, version, ..
            } => match (client_id.is_empty(), *version) {
                (true, _) => Err(wrong("client_id", client_id, "it is empty")),
                (false, 3..=5) => Ok(()),
                (false, other) => Err(wrong("version", other, "write 3, 4 or 5")),
            },
            Self::Subscription {
                filter, options, ..
            } => {
                let filter_of = |error| wrong("filter", filter, error);
                topic::validate_filter(filter).map_err(filter_of)?;
                let parsed = SubscribeOptions::from_byte(*options, Version::V5);
                parsed
                    .map(drop)
                    .map_err(|error| wrong("options", options, error))
            }
            Self::Entry { qos, .. } => check_qos(*qos),
            Self::Received { packet_id: 0, .. } | Self::Inflight { packet_id: 0, .. } => {
                Err(wrong("packet_id", 0, "write a number from 1 to 65535"))
            }
            _ => Ok(()),
        }
    }

    /// Makes a retained message the oldest of its topic if its version is above this one, which is the
    /// highest that can be true.
    pub(super) fn lower_version(&mut self, latest: u64) {
        match self {
            Self::Retain { version, .. } if *version > latest => *version = OLDEST_VERSION,
            Self::Highest { version, .. } => *version = latest.min(*version),
            _ => {}
        }
    }

    /// What recovery told; it tells nothing else.
    pub(super) fn of(op: &Op<'_>) -> Option<Self> {
        Some(match *op {
            Op::Highest(highest) => Self::Highest {
                session: highest.session,
                message: highest.message,
                entry: highest.entry,
                version: highest.version,
            },
            Op::Flow { key, value } => Self::Flow {
                key: key.into(),
                value: value.into(),
            },
            Op::Message {
                message,
                ref content,
            } => Self::Message {
                message,
                content: content.into(),
            },
            Op::Retain {
                topic,
                message,
                version,
            } => Self::Retain {
                topic: topic.into(),
                message,
                version,
            },
            Op::Session(op) => Self::Session {
                session: op.session,
                client_id: op.client_id.into(),
                user: op.user.map(Into::into),
                version: op.version,
                expiry: op.expiry,
                detached: op.detached,
                next_packet_id: op.next_packet_id,
            },
            Op::Subscription(op) => Self::Subscription {
                session: op.session,
                filter: op.filter.into(),
                options: op.options,
                id: op.id,
                properties: op.properties.into(),
            },
            Op::Received {
                session,
                packet_id,
                gist,
            } => Self::Received {
                session,
                packet_id,
                gist,
            },
            Op::Will(ref op) => Self::Will {
                session: op.session,
                delay: op.delay,
                due: op.due,
                expiry: op.expiry,
                content: (&op.content).into(),
            },
            Op::Entry(op) => Self::Entry {
                session: op.session,
                entry: op.entry,
                message: op.message,
                qos: op.qos,
                retain: op.retain,
                subscription_ids: op.subscription_ids.iter().collect(),
                number: op.number,
            },
            Op::Inflight {
                session,
                entry,
                packet_id,
                step,
            } => Self::Inflight {
                session,
                entry,
                packet_id,
                step,
            },
            _ => return None,
        })
    }

    /// Appends the operation that it says, if it says one.
    pub(super) fn put(&self, out: &mut Batch) {
        out.push(&match self {
            &Self::Highest {
                session,
                message,
                entry,
                version,
            } => Op::Highest(HighestNumbers {
                session,
                message,
                entry,
                version,
            }),
            Self::Flow { key, value } => Op::Flow {
                key,
                value: &value.0,
            },
            Self::Message { message, content } => Op::Message {
                message: *message,
                content: content.content(),
            },
            Self::Retain {
                topic,
                message,
                version,
            } => Op::Retain {
                topic,
                message: *message,
                version: *version,
            },
            Self::Session {
                session,
                client_id,
                user,
                version,
                expiry,
                detached,
                next_packet_id,
            } => Op::Session(SessionOp {
                session: *session,
                client_id,
                user: user.as_deref(),
                version: *version,
                expiry: *expiry,
                detached: *detached,
                next_packet_id: *next_packet_id,
            }),
            Self::Subscription {
                session,
                filter,
                options,
                id,
                properties,
            } => Op::Subscription(SubscriptionOp {
                session: *session,
                filter,
                options: *options,
                id: *id,
                properties: &properties.0,
            }),
            &Self::Received {
                session,
                packet_id,
                gist,
            } => Op::Received {
                session,
                packet_id,
                gist,
            },
            Self::Will {
                session,
                delay,
                due,
                expiry,
                content,
            } => Op::Will(WillOp {
                session: *session,
                delay: *delay,
                due: *due,
                expiry: *expiry,
                content: content.content(),
            }),
            Self::Entry {
                session,
                entry,
                message,
                qos,
                retain,
                subscription_ids,
                number,
            } => Op::Entry(EntryOp {
                session: *session,
                entry: *entry,
                message: *message,
                qos: *qos,
                retain: *retain,
                subscription_ids: Ids::from(&subscription_ids[..]),
                number: *number,
            }),
            &Self::Inflight {
                session,
                entry,
                packet_id,
                step,
            } => Op::Inflight {
                session,
                entry,
                packet_id,
                step,
            },
            Self::Admitted { .. } | Self::End { .. } => return,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_the_future_become_the_oldest() {
        let retain = |version| Line::Retain {
            topic: "t".into(),
            message: 1,
            version,
        };
        for (version, lowered) in [(5, 5), (100, 100), (101, 1), (u64::MAX, 1)] {
            let mut line = retain(version);
            line.lower_version(100);
            assert_eq!(line, retain(lowered));
        }
        let highest = |version| Line::Highest {
            session: 200,
            message: 200,
            entry: 200,
            version,
        };
        let mut line = highest(200);
        line.lower_version(100);
        assert_eq!(line, highest(100));
    }

    #[test]
    fn a_line_says_what_was_told() {
        let will = Op::Will(WillOp {
            session: 3,
            delay: 5,
            due: Some(1_700_000_000_000_000_000),
            expiry: None,
            content: Content {
                topic: "a/b",
                properties: &[38],
                payload: &[0, 255],
                publisher: 3,
                qos: 1,
                retain: true,
                expires: None,
                stamp: &[],
            },
        });
        let line = Line::of(&will).expect("a line");
        let text = serde_json::to_string(&line).expect("JSON");
        assert!(text.contains(r#""payload":"AP8=""#), "{text}");
        let read: Line = serde_json::from_str(&text).expect("a line");
        assert_eq!(read, line);
        let mut batch = Batch::new();
        read.put(&mut batch);
        assert!(batch.iter().eq([will]));
    }

    #[test]
    fn a_packet_identifier_is_not_0() {
        let line = |packet_id| Line::Inflight {
            session: 1,
            entry: 2,
            packet_id,
            step: false,
        };
        assert_eq!(line(1).check(), Ok(()));
        assert!(line(0).check().unwrap_err().starts_with("packet_id = 0"));
    }

    #[test]
    fn what_is_not_told_has_no_line() {
        assert_eq!(Line::of(&Op::SessionEnd { session: 1 }), None);
    }
}
