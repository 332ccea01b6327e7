//! What the coordinator and its stations say to each other: one JSON document per line over the
//! station's standard input and output.
//!
//! All times are nanoseconds on `CLOCK_MONOTONIC`, which the stations share with the coordinator
//! because all run on one machine; network namespaces do not change it.

use std::io::{BufRead, Write};
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cell::Flow;
use super::link::Transport;
use punctual_measure::{Error, Result};

/// What a station is to do. The first line that it gets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Assignment {
    /// Its client identifier.
    pub(crate) name: String,
    pub(crate) broker: SocketAddr,
    pub(crate) transport: Transport,
    /// All flows of the cell; the index is carried in every message.
    pub(crate) flows: Vec<Flow>,
    /// Those that it publishes.
    pub(crate) publishes: Vec<u32>,
    /// Those that it receives.
    pub(crate) receives: Vec<u32>,
    /// Mark of its packets for switches that look at it.
    pub(crate) dscp: u8,
}

/// When to publish. The second line, once every station is ready.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// The first periods begin.
    pub(crate) begin: u64,
    /// Round trips that begin from here on count.
    pub(crate) measure: u64,
    /// Nothing is published from here on.
    pub(crate) end: u64,
}

/// What a station answers: `Ready` or `Failed` to its assignment, then `Done` or `Failed`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// Connected, and subscribed to what it receives.
    Ready,
    /// Everything is over.
    Done(Outcome),
    /// Why it cannot go on.
    Failed(String),
}

/// Values in nanoseconds with their counts, ascending.
pub(crate) type Buckets = Vec<(u64, u64)>;

/// What a station has seen.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) sent: Vec<Sent>,
    pub(crate) received: Vec<Received>,
    /// Messages that it did not ask for.
    pub(crate) strays: u64,
    /// Round trips by data flow.
    pub(crate) round_trips: Vec<(u32, Buckets)>,
    /// How long after the intended time its periodic messages were sent.
    pub(crate) lateness: Buckets,
}

/// What a station published on one flow.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) flow: u32,
    pub(crate) messages: u64,
}

/// What a station received of one flow.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) flow: u32,
    /// Distinct messages.
    pub(crate) unique: u64,
    pub(crate) out_of_order: u64,
    pub(crate) duplicates: u64,
    /// Distinct messages that came while the round trips counted.
    pub(crate) measured: u64,
}

/// Sends one line.
pub(crate) fn say(message: &impl Serialize, to: &mut dyn Write) -> Result<()> {
    let mut line = serde_json::to_vec(message).map_err(|e| broken(e.into()))?;
    line.push(b'\n');
    to.write_all(&line)
        .and_then(|()| to.flush())
        .map_err(broken)
}

/// Waits for one line; `None` when the other side has ended.
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
