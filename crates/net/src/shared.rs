//! What the threads that accept and serve connections share with the management side.

use std::sync::RwLock;
use std::sync::atomic::AtomicBool;

use crate::certificates::Certificates;
use crate::policy::{AcceptPolicy, HandshakeLimits, Policies};

/// See the module.
pub(crate) struct Shared {
    pub(crate) policies: Policies,
    pub(crate) accept: RwLock<AcceptPolicy>,
    pub(crate) handshakes: HandshakeLimits,
    pub(crate) certificates: Certificates,
    /// Nothing more is accepted.
    pub(crate) stop: AtomicBool,
}
