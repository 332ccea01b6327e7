//! The real-time network manager: it knows the network, who publishes what
//! where and who receives it, and says which flows keep their deadlines.
//!
//! A [`Manager`] is told what happens ([`Manager::publish`],
//! [`Manager::subscribe`], [`Manager::unsubscribe`], [`Manager::connected`],
//! [`Manager::ended`]; or all of them as a broker's shards ask,
//! [`Manager::answer`]) and answers with [`Decision`]s; what follows for others
//! than the one who asked are [`Change`]s. A flow is a publisher and a topic;
//! its paths lead through the broker to everyone who is subscribed.
//!
//! Invariant: at any time the flows that are admitted keep their deadlines
//! together, as the bounds of `punctual-analysis` say; whoever comes is admitted
//! if that stays so, and otherwise nothing changes for the others. Pure: no
//! socket, clock, thread or random source.
#![forbid(unsafe_code)]

mod client;
mod decision;
mod demand;
mod envoy;
mod gate;
mod levels;
mod manager;
mod map;
mod name;
mod place;
pub mod proxy;
mod quota;
mod request;
mod settings;
#[cfg(test)]
mod tests;
mod view;

pub use client::Client;
pub use decision::{Change, Decision, Reply, Subscribed, Verdict};
pub use envoy::{Ends, Envoy, Table};
pub use manager::{
    Manager, Progress, SLICE, SavedClient, SavedFlow, SavedSubscription, State, StateError, Work,
};
pub use place::{PlaceRule, Who};
pub use quota::Quota;
pub use request::{Publication, Subscription};
pub use settings::{Service, Settings, Star};
pub use view::{ExplanationView, FlowView, PartView, ReceiverView};
