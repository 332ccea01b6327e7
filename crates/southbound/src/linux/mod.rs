//! The Linux data plane: nftables forwards and marks, HTB serves eight strict priorities.
//!
//! Rendering is pure: [`hooks`], [`rules`] and [`replace`] give what `nft -f -` takes, [`queues`] what
//! `tc -batch -` takes, and [`frames_only`] what `ip -batch -` takes. [`Driver`] keeps what is installed and applies what
//! differs. All rules of a change are one nftables transaction, which takes effect at once for
//! the next packet: none meets half of the old rules and half of the new ones, and none is lost.
//!
//! Packets are forwarded in the netdev family's ingress hook, before bridges and routing, so
//! what no rule forwards is left to the system. Sources: nft(8), tc-htb(8), and for the values
//! of the queues the measurements in `docs/emulate.md`.

mod apply;
mod queues;
mod rules;
#[cfg(test)]
mod tests;

pub use apply::{Driver, DriverError, Shell};
pub use queues::{LEVELS, frames_only, queues, reserve};
pub use rules::{hooks, replace, rules};
