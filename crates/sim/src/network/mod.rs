//! Networks in virtual time: what they can do, and how badly.
//!
//! [`Engine`] runs one behaviour of a network and says the largest responses.
//! A [`Behaviour`] answers what the model leaves open: [`Scenario`] is one that
//! is written down, [`Drawn`] one of a seed. Every run is something that the
//! network may do, so a response that is seen here is below every true bound.
//! [`search`] looks for the worst of them, [`exhaust`] tries all that a tiny
//! network has. [`families`] has the networks of the literature, [`generate`]
//! has random ones.

mod drawn;
mod engine;
mod exhaustive;
pub mod families;
pub mod generate;
mod heap;
mod layout;
mod scenario;
mod search;
#[cfg(test)]
mod tests;
mod write;

pub use drawn::{Chances, Drawn};
pub use engine::{Behaviour, Engine, Nobody, Observer, Release, Worst};
pub use exhaustive::{Behaviours, ExhaustiveResult, Grid, TooManyBehaviours, exhaust};
pub use layout::Layout;
pub use scenario::{
    FlowChoices, LinkChoices, Message, Play, RepeatedChoice, Scenario, ScenarioError,
};
pub use search::{Effort, SearchResult, search};
pub use write::to_toml;
