//! Events of the broker, written to the log by a thread of its own.

use std::sync::mpsc::Receiver;

use punctual_broker::Event;

/// Logs until the broker is gone.
pub(super) fn log(events: Receiver<Event>) {
    for event in events {
        match event {
            Event::Connected {
                client_id,
                peer,
                version,
                username,
            } => tracing::debug!(
                client = %client_id,
                peer = peer.map(tracing::field::display),
                version = ?version,
                user = username.as_deref(),
                "client connected"
            ),
            Event::Disconnected { client_id, reason } => {
                tracing::debug!(client = %client_id, reason, "client disconnected");
            }
            Event::Refused { peer, reason } => {
                tracing::debug!(
                    peer = peer.map(tracing::field::display),
                    reason,
                    "connection refused"
                );
            }
            Event::SessionCame { client_id, broker } => tracing::info!(
                client = %client_id,
                "mesh: its session came from {broker}: the client has connected here"
            ),
            Event::SessionLeft {
                client_id,
                broker,
                messages,
            } => tracing::info!(
                client = %client_id,
                messages,
                "mesh: its session went to {broker}: the client has connected there"
            ),
            Event::SlowConsumer {
                client_id,
                buffered,
                queued,
            } => tracing::warn!(
                client = %client_id,
                buffered,
                queued,
                "client does not keep up; its QoS 0 messages are dropped until it has caught up"
            ),
            Event::UrgencyIgnored { client_id, reason } => tracing::warn!(
                client = %client_id,
                reason,
                "what the client states about urgency is not followed"
            ),
            Event::QueueFull { client_id, queued } => tracing::warn!(
                client = %client_id,
                queued,
                "queue is full; publications to it are refused (queue.full, \
                 limits.max_queued_messages)"
            ),
        }
    }
}
