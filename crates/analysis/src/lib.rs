//! Worst-case response times of flows over links with strict priorities.
//!
//! [`analyze`] takes a checked network and gives, for every flow and
//! destination, bounds of the time from the nominal release to the last bit at
//! the destination: the holistic bound (one port after the other), the
//! trajectory bound (the whole path at once) and the best of all ways to cut
//! the path into segments. [`tfa`] is network calculus, as a cross-check. Every
//! bound that is given is safe: no behaviour of the model exceeds it. Where none
//! exists (overload, or a search that passes its named limit) there is `None`,
//! never a loop. The papers' formulas in [`printed`] are no bounds.
//!
//! [`Admission`] decides which flows are guaranteed their deadlines, [`assign`]
//! finds priorities and [`choose_route`] paths with which they can be.
//!
//! Integers only; no clock, thread or random source. The proofs are in
//! `docs/analysis.md`; the sources are Tindell & Clark (1994), Davis et al.
//! (2007), Martin & Minet (2006) with the corrections named there.
#![forbid(unsafe_code)]

mod admission;
mod arrivals;
mod bounds;
pub mod contract;
mod edf;
mod explain;
mod frames;
mod levels;
mod load;
mod offsets;
mod order;
pub mod printed;
mod priority;
mod refusal;
mod remedies;
mod routing;
mod segment;
mod stages;
mod system;
mod tfa;

pub use admission::{Admission, DEFAULT_EFFORT};
pub use bounds::{Bounds, PathBounds, analyze, holistic};
pub use explain::{Cause, Explanation, Part, explain};
pub use load::{LinkLoad, link_loads};
pub use priority::{Method, Unassignable, assign};
pub use refusal::{Reason, Refusal};
pub use remedies::Remedy;
pub use routing::{
    Ends, Enumeration, MAX_PATHS, MAX_SHORTEST, MAX_STEPS, MAX_VERIFIED, NoRoute, Path, Route,
    Selection, SelectionError, WeightedPath, all_paths, choose_paths, choose_route,
    paths_by_bucket_weight, rendezvous_point, shortest_paths, without_loops,
};
pub use tfa::tfa;
