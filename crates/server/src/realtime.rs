//! Real-time priority for threads that decide about flows, beside those that
//! serve clients (`punctual_net::realtime`): whoever waits for a decision is not
//! to wait for other programs of the machine, too.

use std::time::Duration;

use punctual_net::realtime::{Awake, keep_awake, set_fifo, set_least_nice};

/// What a thread is put before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// All ordinary threads, and those under SCHED_FIFO with a lower priority.
    Fifo(u8),
    /// All ordinary threads with its CPU; it has what threads under SCHED_FIFO leave of it. For
    /// threads of a broker whose shards have real-time priority: one under SCHED_FIFO would run in
    /// the rests of a shard, and Linux would stop both for 50 ms of each second.
    Ordinary,
}

/// Gives the calling thread its precedence, if it has one. Without the privilege a warning names it,
/// and the thread goes on as it is; `who` it is for.
pub fn put_first(precedence: Option<Precedence>, who: &str) {
    let (result, remedy) = match precedence {
        None => return,
        Some(Precedence::Fifo(priority)) => (
            set_fifo(priority),
            format!("a LimitRTPRIO (systemd) or ulimit -r of at least {priority}"),
        ),
        Some(Precedence::Ordinary) => (set_least_nice(), "LimitNICE=-20 (systemd)".to_owned()),
    };
    if let Err(error) = result {
        tracing::warn!(
            "real time: {who} does not go first: {error}; give the process CAP_SYS_NICE, or {remedy}"
        );
    }
}

/// Keeps CPUs from taking longer than `most` to wake up, if that is asked for, as long as
/// what is returned lives. Without the right a warning says what would give it.
pub fn stay_awake(most: Option<Duration>) -> Option<Awake> {
    match keep_awake(most?) {
        Ok(awake) => Some(awake),
        Err(refused) => {
            tracing::warn!("{refused}");
            None
        }
    }
}
