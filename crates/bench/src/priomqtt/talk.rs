//! The protocol between the coordinator and its stations: one JSON document per line over the
//! station's standard input and output.
//!
//! All times are nanoseconds on `CLOCK_MONOTONIC`. All processes run on one machine and share this
//! clock; network namespaces do not change it.

use std::io::{BufRead, Write};
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cell::Flow;
use super::link::Transport;
use punctual_measure::{Error, Result};

/// The task of a station: the first line that the coordinator sends.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Assignment {
    /// The station's client identifier.
    pub(crate) name: String,
    pub(crate) broker: SocketAddr,
    pub(crate) transport: Transport,
    /// All flows of the cell; every message carries the index of its flow.
    pub(crate) flows: Vec<Flow>,
    /// Indexes of the flows that the station publishes.
    pub(crate) publishes: Vec<u32>,
    /// Indexes of the flows that the station receives.
    pub(crate) receives: Vec<u32>,
    /// DiffServ code point of the station's packets, for switches with priorities.
    pub(crate) dscp: u8,
}

/// Times of a run: the second line that the coordinator sends, once every station is ready.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// When the first periods begin.
    pub(crate) begin: u64,
    /// From when on round trips are measured.
    pub(crate) measure: u64,
    /// When the stations stop publishing.
    pub(crate) end: u64,
}

/// An answer of a station: `Ready` or `Failed` to its assignment, then `Done` or `Failed`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The station is connected and has subscribed.
    Ready,
    /// The run has finished.
    Done(Outcome),
    /// The station cannot continue, for this reason.
    Failed(String),
}

/// Values in nanoseconds with their counts, ascending.
pub(crate) type Buckets = Vec<(u64, u64)>;

/// The results of a station.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) sent: Vec<Sent>,
    pub(crate) received: Vec<Received>,
    /// Messages of flows that the station does not receive according to its assignment.
    pub(crate) strays: u64,
    /// Round-trip times by index of the data flow.
    pub(crate) round_trips: Vec<(u32, Buckets)>,
    /// Time from when a periodic message was due until the station sent it, ns.
    pub(crate) lateness: Buckets,
}

/// What a station published on one flow.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) flow: u32,
    pub(crate) messages: u64,
}

/// Messages that a station received on one flow.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) flow: u32,
    /// Distinct messages received.
    pub(crate) unique: u64,
    pub(crate) out_of_order: u64,
    pub(crate) duplicates: u64,
    /// Distinct messages received during the measurement.
    pub(crate) measured: u64,
}

/// Writes one line.
pub(crate) fn say(message: &impl Serialize, to: &mut dyn Write) -> Result<()> {
    let mut line = serde_json::to_vec(message).map_err(|e| broken(e.into()))?;
    line.push(b'\n');
    to.write_all(&line)
        .and_then(|()| to.flush())
        .map_err(broken)
}

/// Waits for one line; `None` if the other process has closed the stream.
pub(crate) fn hear<T: DeserializeOwned>(from: &mut dyn BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line).map_err(broken)? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line)
        .map(Some)
        .map_err(|e| broken(e.into()))
}

fn broken(error: std::io::Error) -> Error {
    Error::io("the coordinator and a station cannot talk")(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_heard_as_they_were_said() {
        let mut line = Vec::new();
        let outcome = Outcome {
            round_trips: vec![(2, vec![(100, 7)])],
            ..Outcome::default()
        };
        say(&Answer::Ready, &mut line).unwrap();
        say(&Answer::Done(outcome), &mut line).unwrap();
        let mut from = &line[..];
        assert!(matches!(hear(&mut from).unwrap(), Some(Answer::Ready)));
        let Some(Answer::Done(heard)) = hear(&mut from).unwrap() else {
            panic!("not done");
        };
        assert_eq!(heard.round_trips, [(2, vec![(100, 7)])]);
        assert!(hear::<Answer>(&mut from).unwrap().is_none());
        assert!(hear::<Answer>(&mut &b"{}\n"[..]).is_err());
    }
}
