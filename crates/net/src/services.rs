//! What a program that embeds the server provides: who checks passwords, who admits flows, and what
//! keeps what is to survive the process.

use std::sync::Arc;

use punctual_broker::{
    AdmissionRequest, AuthAnswer, AuthRequest, Operations, StoreTrouble, SysSource,
};
use punctual_store::Op;

/// Checks user names and passwords, and conducts enhanced authentication, on
/// threads of its own.
pub trait Authenticator: Send + Sync {
    /// The answer, if it is known without work: that client has proven the same lately. Called on one
    /// thread, before the client waits for its turn.
    fn recognise(&self, _request: &AuthRequest) -> Option<AuthAnswer> {
        None
    }

    /// Decides, or continues, an authentication. May take long: it is called on threads that run
    /// when nothing else wants to.
    fn authenticate(&self, request: &AuthRequest) -> AuthAnswer;
}

/// Decides about flows and subscriptions, and is notified of what ends, on a thread
/// of its own; with [`Config::admission`](punctual_broker::Config::admission).
pub trait AdmissionDesk: Send + Sync {
    /// Takes a question or news of a shard. Called on that shard's thread: it
    /// must not block, nor lose anything. Answers go by [`Handle::call`](crate::Handle::call).
    fn ask(&self, shard: u16, request: AdmissionRequest);
}

/// Takes what is to survive and makes it safe, on a thread of its own. News go by
/// [`Handle::store`](crate::Handle::store).
pub trait StoreDesk: Send + Sync {
    /// Takes the operations of one turn of a shard. Called on that shard's
    /// thread: it must not block, nor lose anything.
    fn post(&self, shard: u16, operations: Operations);
}

/// What survives the process.
pub struct StoreOptions {
    /// Tells what is stored to whom it is given; called once, before any client
    /// is served, and says why there is room only for what does not need any, if that is so.
    /// From its return on, what is posted to `desk` is kept.
    pub recover: Recover,
    /// Keeps what happens from then on.
    pub desk: Arc<dyn StoreDesk>,
    /// What is said of it below `$SYS`.
    pub sys: Arc<dyn SysSource>,
}

/// See [`StoreOptions::recover`].
pub type Recover = Box<dyn FnOnce(&mut dyn FnMut(&Op<'_>)) -> Result<Option<StoreTrouble>, String>>;

/// What a store tells a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreNews {
    /// Operations up to this ticket are safe.
    Committed(u64),
    /// Some could not be committed; it is tried again.
    Failed(StoreTrouble),
    /// Why there is room only for what was handed over already, or `None` when there is
    /// more.
    Full(Option<StoreTrouble>),
}
