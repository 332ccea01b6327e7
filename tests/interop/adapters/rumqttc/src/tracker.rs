//! Joins packet ids with requests.
//!
//! rumqttc takes a request without saying which packet id it will get. Its event loop handles
//! requests in order and reports each one's id when it sends it: the oldest waiting request of
//! that kind is the one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::protocol::{fail, say};

/// What to tell the runner once a handshake is complete.
#[derive(Clone)]
pub enum Answer {
    /// Answer the request with the result.
    Each(u64),
    /// Answer the request after the last of its messages.
    Burst(u64, Arc<Mutex<usize>>),
}

impl Answer {
    pub fn burst(id: u64, count: usize) -> Self {
        Self::Burst(id, Arc::new(Mutex::new(count)))
    }

    fn give(self, result: Value) {
        match self {
            Self::Each(id) => {
                let mut answer = result;
                answer["id"] = id.into();
                say(answer);
            }
            Self::Burst(id, left) => {
                let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                *left -= 1;
                if *left == 0 {
                    say(json!({ "id": id }));
                }
            }
        }
    }

    fn id(&self) -> u64 {
        match self {
            Self::Each(id) | Self::Burst(id, _) => *id,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Publish,
    Subscribe,
    Unsubscribe,
}

#[derive(Default)]
struct State {
    unsent: HashMap<Kind, VecDeque<Answer>>,
    sent: HashMap<(Kind, u16), Answer>,
    disconnect: Option<u64>,
}

#[derive(Default, Clone)]
pub struct Tracker(Arc<Mutex<State>>);

impl Tracker {
    /// Before the request goes to rumqttc.
    pub fn expect(&self, kind: Kind, answer: Answer) {
        let mut state = self.state();
        state.unsent.entry(kind).or_default().push_back(answer);
    }

    /// rumqttc did not take the request that was expected last.
    pub fn reject(&self, kind: Kind, error: impl ToString) {
        let answer = self.state().unsent.entry(kind).or_default().pop_back();
        if let Some(answer) = answer {
            fail(answer.id(), error);
        }
    }

    /// Sent under this id; packet id 0 is QoS 0, which is complete by that.
    pub fn sent(&self, kind: Kind, packet: u16) {
        let mut state = self.state();
        let Some(answer) = state.unsent.entry(kind).or_default().pop_front() else {
            return;
        };
        if packet == 0 {
            answer.give(json!({}));
        } else {
            state.sent.insert((kind, packet), answer);
        }
    }

    pub fn done(&self, kind: Kind, packet: u16, result: Value) {
        if let Some(answer) = self.state().sent.remove(&(kind, packet)) {
            answer.give(result);
        }
    }

    pub fn disconnecting(&self, id: u64) {
        self.state().disconnect = Some(id);
    }

    /// The connection is over. True if the runner had asked for that, and is answered.
    pub fn end(&self, error: &str) -> bool {
        let mut state = self.state();
        let unsent = std::mem::take(&mut state.unsent);
        let sent = std::mem::take(&mut state.sent);
        for answer in unsent.into_values().flatten().chain(sent.into_values()) {
            fail(answer.id(), error);
        }
        match state.disconnect.take() {
            Some(id) => {
                say(json!({ "id": id }));
                true
            }
            None => false,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
