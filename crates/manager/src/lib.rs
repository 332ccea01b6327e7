//! The real-time network manager: it knows the network, the publishers of each
//! topic and their receivers, and decides which flows are admitted.
//!
//! A [`Manager`] gets events ([`Manager::publish`], [`Manager::subscribe`],
//! [`Manager::unsubscribe`], [`Manager::connected`], [`Manager::ended`]; or all of
//! them as requests of a broker's shards, [`Manager::answer`]) and answers with
//! [`Decision`]s; what follows for other clients than the one that asked are
//! [`Change`]s. A flow is a publisher and a topic; its paths lead through the
//! broker to all its subscribers. A [`RemoteManager`] gets the same events and asks
//! the controller of the network instead. The module [`proxy`] lets either of them
//! serve a broker that knows nothing of it.
//!
//! Invariant: at any time all flows that a [`Manager`] has admitted keep their
//! deadlines together, by the bounds of `punctual-analysis`; a further one is
//! admitted if that stays so, and otherwise nothing changes for the others. Pure:
//! no socket, clock, thread or random source.
#![forbid(unsafe_code)]

mod client;
mod decision;
mod demand;
mod gate;
mod levels;
mod manager;
mod map;
mod name;
mod place;
pub mod proxy;
mod quota;
mod registry;
mod remote;
mod request;
mod settings;
#[cfg(test)]
mod tests;
mod view;

pub use client::Client;
pub use decision::{Change, Decision, Reply, Subscribed, Verdict};
pub use manager::{
    Manager, Progress, SLICE, SavedClient, SavedFlow, SavedSubscription, State, StateError, Work,
};
pub use place::{PlaceRule, Who};
pub use quota::Quota;
pub use remote::{Endpoints, RemoteManager, RequirementsTable};
pub use request::{Publication, Subscription};
pub use settings::{Service, Settings, Star};
pub use view::{ExplanationView, FlowView, PartView, ReceiverView};
