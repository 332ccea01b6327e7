//! Real-time priority for threads that decide about flows, beside those that
//! serve clients (`punctual_net::realtime`): whoever waits for a decision is not
//! to wait for other programs of the machine, too.

use std::time::Duration;

use punctual_net::realtime::{Awake, keep_awake, set_fifo};

/// Gives the calling thread SCHED_FIFO at `priority`, if there is one. Without the
/// privilege a warning names it, and the thread goes on as it is; `who` it is for.
pub(crate) fn put_first(priority: Option<u8>, who: &str) {
    if let Some(priority) = priority
        && let Err(error) = set_fifo(priority)
    {
        tracing::warn!(
            "real time: {who} has no real-time priority: {error}; give the process CAP_SYS_NICE, \
             or a LimitRTPRIO (systemd) or ulimit -r of at least {priority}"
        );
    }
}

/// Keeps CPUs from taking longer than `most` to wake up, if that is asked for, as long as
/// what is returned lives. Without the right a warning says what would give it.
pub(crate) fn stay_awake(most: Option<Duration>) -> Option<Awake> {
    match keep_awake(most?) {
        Ok(awake) => Some(awake),
        Err(refused) => {
            tracing::warn!("{refused}");
            None
        }
    }
}
