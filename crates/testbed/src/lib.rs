//! Network namespaces and Open vSwitch instances of their own, for tests and emulated networks,
//! programs that are run to their end, and what to do where something is not installed.
//!
//! An [`Ovs`] is a database server and a switch daemon whose files and sockets are in a temporary
//! directory, so any number of them run beside one another and beside the system's. Both end with
//! the value, and with the thread that started them if that ends first, be it by a kill. Needs
//! the programs of Debian's openvswitch-switch.

mod missing;
mod names;
pub mod netns;
mod ovs;
mod run;

pub use missing::{find_program, skip};
pub use names::{assert_names, command_names};
pub use ovs::{Datapath, Ovs, Placement};
pub use run::{Run, plain_command};
