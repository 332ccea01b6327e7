//! What is kept over a restart: flows and subscriptions, as JSON.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use punctual_model::wire::Transport;
use punctual_model::{Requirements, Status};
use serde::{Deserialize, Serialize};

use super::Manager;
use crate::client::Client;
use crate::quota::Quota;
use crate::request::{Publication, Subscription};

/// The version of this format.
const VERSION: u32 = 1;

/// Flows and subscriptions, with nothing that can be computed again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// 1.
    pub version: u32,
    /// Clients that have flows or subscriptions.
    pub clients: Vec<Arc<SavedClient>>,
}

/// A client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedClient {
    /// Client identifier.
    pub id: String,
    /// User name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether that is more than a claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_proven: bool,
    /// Address it connected from last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// `tcp`, `tls`, `ws`, `wss`, `udp` or `quic`.
    pub transport: String,
    /// Its flows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<SavedFlow>,
    /// Its subscriptions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscriptions: Vec<SavedSubscription>,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFlow {
    /// Topic.
    pub topic: String,
    /// Requirements as [`Requirements`] writes them.
    pub requirements: String,
    /// Bytes of the largest payload.
    pub payload: u32,
    /// Bytes of the largest properties.
    pub properties: u32,
    /// The priority that it was given or stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Made over the API.
    #[serde(default)]
    pub fixed: bool,
}

/// A subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSubscription {
    /// Topic filter, with the share prefix.
    pub filter: String,
    /// Requirements; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub requirements: String,
    /// It is served as well as can be only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub best_effort: bool,
    /// The receiver's own deadline is not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_deadline: bool,
}

/// A text that is no state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateError(String);

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for StateError {}

impl State {
    /// Reads JSON.
    ///
    /// # Errors
    /// It is something else, or of a later version.
    pub fn from_json(text: &str) -> Result<Self, StateError> {
        let state: Self = serde_json::from_str(text)
            .map_err(|error| StateError(format!("is no list of flows: {error}")))?;
        if state.version != VERSION {
            return Err(StateError(format!(
                "has version {}, and this program knows {VERSION}; use a newer one",
                state.version
            )));
        }
        Ok(state)
    }

    /// As JSON for people, too.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl Manager {
    /// What is to be kept, if it has changed since the last call. Takes as long as
    /// there are clients, and what those have of whom it has changed.
    pub fn changed_state(&mut self) -> Option<State> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        for id in std::mem::take(&mut self.stale) {
            match self.saved_client(&id) {
                Some(saved) => self.saved.insert(id, Arc::new(saved)),
                None => self.saved.remove(&id),
            };
        }
        Some(State {
            version: VERSION,
            clients: self.saved.values().cloned().collect(),
        })
    }

    /// What is to be kept.
    pub fn state(&self) -> State {
        let clients = self.registry.clients_after(None);
        let clients = clients.filter_map(|known| self.saved_client(&known.client.id));
        State {
            version: VERSION,
            clients: clients.map(Arc::new).collect(),
        }
    }

    /// What is to be kept of a client, if anything.
    fn saved_client(&self, id: &str) -> Option<SavedClient> {
        let known = self.registry.client(id)?;
        let Client {
            user,
            is_proven,
            address,
            transport,
            ..
        } = &known.client;
        let flows = known.flows().iter().filter_map(|id| self.registry.flow(id));
        let saved = SavedClient {
            id: id.to_owned(),
            user: user.as_deref().map(str::to_owned),
            is_proven: *is_proven,
            address: *address,
            transport: name(*transport).into(),
            flows: flows
                .map(|record| SavedFlow {
                    topic: record.name.topic.to_string(),
                    requirements: record.requirements.to_string(),
                    payload: record.sizes.payload,
                    properties: record.sizes.properties,
                    priority: Some(record.demand.priority),
                    fixed: record.fixed,
                })
                .collect(),
            subscriptions: known
                .subscriptions()
                .iter()
                .map(|(filter, s)| SavedSubscription {
                    filter: filter.to_string(),
                    requirements: s.requirements.to_string(),
                    best_effort: !s.served,
                    without_deadline: !s.with_deadline,
                })
                .collect(),
        };
        (!saved.flows.is_empty() || !saved.subscriptions.is_empty()).then_some(saved)
    }

    /// Takes in what was kept: to be called before anyone connects. Returns
    /// what could not be admitted again, in words.
    pub fn restore(&mut self, state: &State) -> Vec<String> {
        let mut lost = Vec::new();
        let client_of = |saved: &SavedClient| Client {
            id: saved.id.as_str().into(),
            session: 0,
            user: saved.user.as_deref().map(Arc::from),
            is_proven: saved.is_proven,
            address: saved.address,
            transport: transport(&saved.transport),
        };
        // Who had a place in the network gets it before who had none.
        let clients = state.clients.iter().map(|saved| &**saved);
        let (placed, others): (Vec<_>, Vec<_>) = clients.partition(|saved| {
            !saved.flows.is_empty() || saved.subscriptions.iter().any(|s| !s.best_effort)
        });
        for saved in &placed {
            self.meet(&client_of(saved));
        }
        for saved in placed.iter().copied().chain(others) {
            let client = client_of(saved);
            for subscription in &saved.subscriptions {
                let SavedSubscription {
                    filter,
                    requirements,
                    best_effort,
                    without_deadline,
                } = subscription;
                let subscription = Subscription {
                    filter: filter.as_str().into(),
                    requirements: requirements.parse().unwrap_or(Requirements::NONE),
                };
                // There are no flows yet that it could make late.
                self.subscribe(&client, std::slice::from_ref(&subscription));
                let made = self.registry.subscription_mut(&client.id, filter);
                if let Some(made) = made {
                    made.served &= !best_effort;
                    made.with_deadline &= !without_deadline;
                }
            }
        }
        for saved in &state.clients {
            for flow in &saved.flows {
                let name = format!("flow of client {} on {}", saved.id, flow.topic);
                let requirements = match flow.requirements.parse() {
                    Ok(requirements) => requirements,
                    Err(error) => {
                        lost.push(format!("{name}: {error}"));
                        continue;
                    }
                };
                let publication = Publication {
                    topic: &flow.topic,
                    requirements,
                    payload: flow.payload,
                    properties: flow.properties,
                    // They were within it when they were let in.
                    quota: Quota::UNLIMITED,
                };
                let client = client_of(saved);
                let decision = match flow.fixed {
                    true => self.reserve_with(&client, publication, flow.priority),
                    false => self.publish_with(&client, publication, flow.priority),
                };
                if decision.answer.status != Some(Status::Admitted) {
                    let why = decision.answer.reason.unwrap_or_default();
                    lost.push(format!("{name}: {why}"));
                }
            }
        }
        for saved in placed {
            self.forget_if_idle(&saved.id);
        }
        // Nobody is connected who could be notified.
        self.take_changes();
        lost
    }
}

fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Tls => "tls",
        Transport::WebSocket => "ws",
        Transport::SecureWebSocket => "wss",
        Transport::Udp => "udp",
        Transport::Quic => "quic",
    }
}

/// What is unknown counts as what takes most.
fn transport(name: &str) -> Transport {
    match name {
        "tcp" => Transport::Tcp,
        "tls" => Transport::Tls,
        "ws" => Transport::WebSocket,
        "udp" => Transport::Udp,
        "quic" => Transport::Quic,
        _ => Transport::SecureWebSocket,
    }
}
