//! What a manager asks for one flow.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::peer::Peer;
use super::{
    MAX_FLOW, MAX_FRAMES, MAX_INTEGER, MAX_MANAGER, MAX_SIZE, MAX_SUBSCRIBERS, MAX_TOPIC,
    WIRE_BYTES,
};
use crate::network::{FlowEntry, MAX_TIME};
use crate::wire::Frames;
use crate::{MAX_PRIORITY, Requirements, deadline_monotonic};

/// A flow: its publisher, its receivers, and its requirements on the network. Times are
/// nanoseconds, at most [`MAX_TIME`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The manager that asks; 1 to 64 characters. With TLS the common name of its
    /// certificate.
    pub manager: String,
    /// Name of the flow, unique among those of its manager.
    pub flow: String,
    /// Grows with every change of this request.
    pub generation: u64,
    /// Topic of its messages.
    pub topic: String,
    /// MQTT's quality of service, 0 to 2.
    pub qos: u8,
    /// Where its messages come from.
    pub publisher: Peer,
    /// The receivers; empty while there are no subscribers.
    pub subscribers: BTreeSet<Peer>,
    /// The broker between them, as the publisher sees it. Packets from there to
    /// a subscriber are known by the broker's address and the subscriber.
    /// `None`: publisher and subscribers exchange packets directly.
    pub broker: Option<Peer>,
    /// From the publisher's sending to each subscriber's receipt, above 0.
    pub deadline_ns: u64,
    /// Least time between two messages, above 0.
    pub period_ns: u64,
    /// How much later than its period a message may be released.
    pub jitter_ns: u64,
    /// Largest application message, bytes.
    pub size: u32,
    /// Largest frame, bytes on the wire, preamble, check sequence and gap
    /// included.
    pub wire_bytes: u32,
    /// Frames of the largest message, at least 1.
    pub frames: u32,
    /// 0 to 7, 7 most urgent; `None`: the controller chooses.
    pub priority: Option<u8>,
    /// Bits per second that the flow may use at most, above 0.
    pub bandwidth: Option<u64>,
}

impl Request {
    /// Whether every value is in its range.
    ///
    /// # Errors
    /// The field, the value and the remedy.
    pub fn check(&self) -> Result<(), SrtError> {
        text("manager", &self.manager, 1, MAX_MANAGER)?;
        text("flow", &self.flow, 1, MAX_FLOW)?;
        text("topic", &self.topic, 1, MAX_TOPIC)?;
        number("generation", self.generation, 0, MAX_INTEGER)?;
        number("qos", self.qos.into(), 0, 2)?;
        let subscribers = self.subscribers.len() as u64;
        number("subscribers", subscribers, 0, MAX_SUBSCRIBERS as u64)?;
        number("deadline_ns", self.deadline_ns, 1, MAX_TIME)?;
        number("period_ns", self.period_ns, 1, MAX_TIME)?;
        number("jitter_ns", self.jitter_ns, 0, MAX_TIME)?;
        number("size", self.size.into(), 0, MAX_SIZE.into())?;
        let (least, most) = (*WIRE_BYTES.start(), *WIRE_BYTES.end());
        number(
            "wire_bytes",
            self.wire_bytes.into(),
            least.into(),
            most.into(),
        )?;
        number("frames", self.frames.into(), 1, MAX_FRAMES.into())?;
        if let Some(priority) = self.priority {
            number("priority", priority.into(), 0, MAX_PRIORITY.into())?;
        }
        if let Some(bandwidth) = self.bandwidth {
            number("bandwidth", bandwidth, 1, MAX_INTEGER)?;
        }
        Ok(())
    }

    /// Whether it asks for the same as another one: all but the generation.
    pub fn same_demand(&self, other: &Self) -> bool {
        let other = Self {
            generation: self.generation,
            ..other.clone()
        };
        *self == other
    }

    /// The frames of its largest message.
    pub fn message(&self) -> Frames {
        Frames {
            count: self.frames.into(),
            bytes: self.wire_bytes.into(),
        }
    }

    /// Its priority; deadline monotonic where it states none.
    pub fn effective_priority(&self) -> u8 {
        self.priority
            .unwrap_or_else(|| deadline_monotonic(self.deadline_ns))
    }

    /// The requirements of the flow.
    pub fn requirements(&self) -> Requirements {
        Requirements {
            deadline: Some(Duration::from_nanos(self.deadline_ns)),
            period: Some(Duration::from_nanos(self.period_ns)),
            priority: self.priority,
            size: Some(self.size),
            bandwidth: self.bandwidth,
            jitter: (self.jitter_ns > 0).then(|| Duration::from_nanos(self.jitter_ns)),
            ..Requirements::NONE
        }
    }

    /// The flow as networks state it, with the name `id`, over these paths. A
    /// broker of which the node's name is given sends a copy to each subscriber.
    pub fn flow_entry(
        &self,
        id: impl Into<String>,
        paths: Vec<Vec<String>>,
        broker: Option<String>,
    ) -> FlowEntry {
        FlowEntry {
            id: id.into(),
            prio: self.effective_priority().into(),
            period_ns: self.period_ns,
            jitter_ns: self.jitter_ns,
            deadline_ns: Some(self.deadline_ns),
            wire_bytes: Some(self.wire_bytes.into()),
            frames: Some(self.frames.into()),
            paths,
            fanout_node: broker,
            ..FlowEntry::default()
        }
    }
}

/// A value that the table does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrtError {
    field: &'static str,
    problem: String,
}

impl SrtError {
    pub(super) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self {
            field,
            problem: problem.into(),
        }
    }

    /// The column.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for SrtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for SrtError {}

/// Whether a text has a length within bounds, in characters.
pub(super) fn text(
    field: &'static str,
    text: &str,
    least: usize,
    most: usize,
) -> Result<(), SrtError> {
    let length = text.chars().count();
    if (least..=most).contains(&length) {
        return Ok(());
    }
    let problem = format!("has {length} characters; there may be {least} to {most}");
    Err(SrtError::new(field, problem))
}

/// Whether a number is within bounds.
pub(super) fn number(
    field: &'static str,
    value: u64,
    least: u64,
    most: u64,
) -> Result<(), SrtError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let problem = format!("{value} must be {least} to {most}");
    Err(SrtError::new(field, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            manager: "edge-a".into(),
            flow: "plant/axis@plc".into(),
            generation: 3,
            topic: "plant/axis".into(),
            qos: 1,
            publisher: Peer::tcp([10, 0, 0, 1], 41_000),
            subscribers: [Peer::tcp([10, 0, 0, 2], 42_000)].into(),
            broker: Some(Peer::tcp([10, 0, 0, 9], 1883)),
            deadline_ns: 5_000_000,
            period_ns: 10_000_000,
            jitter_ns: 0,
            size: 100,
            wire_bytes: 202,
            frames: 1,
            priority: None,
            bandwidth: None,
        }
    }

    #[test]
    fn ranges_are_enforced_and_named() {
        assert_eq!(request().check(), Ok(()));
        type Change = fn(&mut Request);
        let wrong: &[(&str, Change)] = &[
            ("manager", |r| r.manager.clear()),
            ("flow", |r| r.flow.clear()),
            ("topic", |r| r.topic = "t".repeat(65_536)),
            ("generation", |r| r.generation = 1 << 63),
            ("qos", |r| r.qos = 3),
            ("deadline_ns", |r| r.deadline_ns = 0),
            ("wire_bytes", |r| r.wire_bytes = 83),
            ("priority", |r| r.priority = Some(8)),
            ("bandwidth", |r| r.bandwidth = Some(0)),
        ];
        for (field, change) in wrong {
            let mut request = request();
            change(&mut request);
            assert_eq!(request.check().unwrap_err().field(), *field);
        }
    }

    #[test]
    fn the_generation_is_no_demand() {
        let mut other = request();
        other.generation = 9;
        assert!(request().same_demand(&other));
        other.period_ns += 1;
        assert!(!request().same_demand(&other));
    }

    #[test]
    fn a_request_is_a_flow_of_a_network() {
        let flow = request().flow_entry("f", vec![vec!["l".into()]], Some("b".into()));
        assert_eq!((flow.prio, flow.deadline_ns), (5, Some(5_000_000)));
        assert_eq!(flow.fanout_node.as_deref(), Some("b"));
        assert_eq!(
            request().requirements().to_string(),
            "rt-deadline=5ms, rt-period=10ms, rt-size=100"
        );
    }

    #[test]
    fn rows_survive_json() {
        let json = serde_json::to_string(&request()).unwrap();
        assert!(json.contains("\"tcp:10.0.0.2:42000\""), "{json}");
        assert_eq!(serde_json::from_str::<Request>(&json).unwrap(), request());
    }
}
