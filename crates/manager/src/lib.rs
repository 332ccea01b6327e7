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

mod answer;
mod demand;
mod envoy;
mod gate;
mod levels;
mod manager;
mod map;
mod owner;
mod place;
pub mod proxy;
mod settings;
#[cfg(test)]
mod tests;

pub use answer::Reply;
pub use envoy::{Ends, Envoy, Table};
pub use manager::{
    Change, Client, Decision, ExplanationView, FlowView, Manager, PartView, Progress, Publication,
    Quota, ReceiverView, SLICE, SavedClient, SavedFlow, SavedSubscription, State, StateError,
    Subscribed, Subscription, Verdict, Work,
};
pub use place::{PlaceRule, Who};
pub use settings::{Service, Settings, Star};
