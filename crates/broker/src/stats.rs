//! Counters of one shard. Plain numbers on the data path; copies are shared
//! with other threads a few times a second.

use punctual_codec::{QoS, ReasonCode};

use crate::base::delivery::Load;
use crate::depth::Depth;
use crate::egress::Class;
use crate::wait::Wait;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters since start, and gauges where the doc says so.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// Connections ended by the broker, by MQTT 5 reason code.
            pub disconnects: std::collections::BTreeMap<u8, u64>,
            /// By traffic class, most urgent first.
            pub classes: [ClassStats; 4],
            /// Waiting times of messages by the value of `priority`, those of
            /// 15 and more together.
            pub priorities: [Wait; 16],
        }

        impl Stats {
            /// Adds the counters of another shard.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                for (reason, count) in &other.disconnects {
                    *self.disconnects.entry(*reason).or_default() += count;
                }
                for (own, other) in self.classes.iter_mut().zip(&other.classes) {
                    own.add(other);
                }
                for (own, other) in self.priorities.iter_mut().zip(&other.priorities) {
                    own.add(other);
                }
            }

            /// Copies a later state of the same counters, without allocation.
            pub(crate) fn follow(&mut self, later: &Self) {
                $(self.$name = later.$name;)*
                for (reason, count) in &later.disconnects {
                    *self.disconnects.entry(*reason).or_default() = *count;
                }
                for (own, later) in self.classes.iter_mut().zip(&later.classes) {
                    own.follow(later);
                }
                self.priorities.clone_from(&later.priorities);
            }

            /// All plain counters and gauges by name.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Connections opened.
    connections_opened,
    /// Gauge: connections open, with those before CONNECT.
    connections,
    /// Gauge: clients connected.
    clients_connected,
    /// Gauge: sessions, connected or not.
    sessions,
    /// Sessions that expired while disconnected.
    sessions_expired,
    /// Sessions taken over by a new connection.
    sessions_taken_over,
    /// Sessions that came from other brokers of a mesh with their clients.
    sessions_moved_in,
    /// Sessions that went to other brokers of a mesh with their clients.
    sessions_moved_out,
    /// Messages that waited at another broker for a client that was given a new session here.
    messages_moved_late,
    /// Gauge: subscriptions.
    subscriptions,
    /// Gauge: shared subscriptions.
    shared_subscriptions,
    /// Bytes received, as MQTT packets.
    bytes_received,
    /// Bytes sent, as MQTT packets.
    bytes_sent,
    /// Packets received.
    packets_received,
    /// Packets sent.
    packets_sent,
    /// CONNECT packets received.
    connects_received,
    /// PUBLISH packets received with QoS 0.
    publishes_received_qos0,
    /// PUBLISH packets received with QoS 1.
    publishes_received_qos1,
    /// PUBLISH packets received with QoS 2, without repetitions.
    publishes_received_qos2,
    /// PUBLISH packets received that are urgent: of class realtime or priority.
    publishes_received_urgent,
    /// PUBLISH packets sent with QoS 0.
    publishes_sent_qos0,
    /// PUBLISH packets sent with QoS 1.
    publishes_sent_qos1,
    /// PUBLISH packets sent with QoS 2.
    publishes_sent_qos2,
    /// Payload bytes of PUBLISH packets received.
    publish_bytes_received,
    /// Payload bytes of PUBLISH packets sent.
    publish_bytes_sent,
    /// Messages re-sent after a reconnection.
    publishes_resent,
    /// Messages from neighbour brokers that were here before.
    publishes_recognised,
    /// Messages from neighbour brokers that had to wait for room before they were
    /// acknowledged.
    publishes_parked,
    /// Messages that were deferred for neighbour brokers by remote flow control.
    publishes_throttled,
    /// Messages that waited at a link that began to carry, until older ones had come from
    /// elsewhere.
    publishes_held,
    /// Messages from neighbour brokers that had to wait for those published before them.
    publishes_early,
    /// Dropped: the receiver is slow and its buffer full (QoS 0).
    dropped_slow_consumer,
    /// User properties that state an urgency and cannot be understood.
    bad_requirements,
    /// Priorities and requirements the publisher has no right to.
    refused_urgency,
    /// Messages of admitted flows, as declared.
    flow_messages_admitted,
    /// Messages that ask for real time and have no admitted flow.
    flow_messages_best_effort,
    /// Refused or dropped: the requirement is rejected, by policy.
    flow_messages_refused,
    /// Messages of admitted flows that were larger or earlier than declared.
    flow_violations,
    /// Of these: sent with the plain messages.
    flow_messages_demoted,
    /// Of these: made to wait.
    flow_messages_shaped,
    /// Of these: dropped.
    flow_messages_dropped,
    /// Dropped: policy `drop-oldest` or `drop-new` of a full queue.
    dropped_queue_full,
    /// Dropped: the message expired before it could be sent.
    dropped_expired,
    /// Dropped: larger than the receiver's Maximum Packet Size.
    dropped_too_large,
    /// Dropped: QoS 0 for a session that is not connected.
    dropped_offline,
    /// Dropped: waiting in a session that ended, or for a neighbour that is given up.
    dropped_session_ended,
    /// Dropped: it waited, and meanwhile the receiver lost the right to read it, or the publisher
    /// of a retained message the right to write it.
    dropped_not_authorized,
    /// Refused: nothing can be stored now.
    refused_store,
    /// Refused: the broker reaches none of its neighbours, and knows nothing of them.
    refused_not_joined,
    /// Times that a publisher waited for commits.
    store_pauses,
    /// Refused: the publisher lacks the right (QoS 0: dropped).
    refused_not_authorized,
    /// Refused: a receiver's queue was full.
    refused_queue_full,
    /// Refused: no room for another retained message (QoS 0: dropped).
    refused_retained_full,
    /// Not kept: retained messages of other brokers that are newer than can be.
    refused_versions,
    /// CONNECT refused.
    refused_connects,
    /// SUBSCRIBE filters refused.
    refused_subscriptions,
    /// Times a receiver held back its publishers.
    publisher_pauses,
    /// Times a receiver was declared slow.
    slow_consumers,
    /// Gauge: messages waiting in queues.
    queued_messages,
    /// Gauge: bytes waiting in queues.
    queued_bytes,
    /// Gauge: messages in flight to clients.
    inflight_messages,
}

/// Counters of one traffic class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Gauge: messages that wait in lanes 0 and 1.
    pub waiting: u64,
    /// Gauge: messages that wait in queues of sessions, for a client that is away
    /// or has not acknowledged what it was sent.
    pub queued: u64,
    /// Messages sent.
    pub sent: u64,
    /// Dropped: the receiver's lanes were full.
    pub dropped_full: u64,
    /// Dropped: past the deadline, with `rt-late = drop`.
    pub dropped_late: u64,
    /// Dropped: expired before it could be sent.
    pub dropped_expired: u64,
    /// Dropped: the queue of the session was full, or the receiver too slow.
    pub dropped_queue: u64,
    /// Dropped: the receiver's connection was lost. Messages with QoS 1 or 2 are not counted: they
    /// wait in the session.
    pub dropped_gone: u64,
    /// Sent after the deadline.
    pub missed: u64,
    /// Time that messages waited in queues of sessions before they came to the
    /// lanes, those that did.
    pub held: Wait,
    /// Time that messages of lanes 0 and 1 waited.
    pub wait: Wait,
    /// From a message's arrival to its writing to a receiver, by samples.
    pub passage: Wait,
    /// With how many of their class.
    pub depth: Depth,
}

impl ClassStats {
    fn follow(&mut self, later: &Self) {
        let Self {
            waiting,
            queued,
            sent,
            dropped_full,
            dropped_late,
            dropped_expired,
            dropped_queue,
            dropped_gone,
            missed,
            held,
            wait,
            passage,
            depth,
        } = self;
        (*waiting, *sent, *missed) = (later.waiting, later.sent, later.missed);
        (*dropped_full, *dropped_late) = (later.dropped_full, later.dropped_late);
        (*dropped_expired, *dropped_queue) = (later.dropped_expired, later.dropped_queue);
        *dropped_gone = later.dropped_gone;
        *queued = later.queued;
        held.clone_from(&later.held);
        wait.clone_from(&later.wait);
        passage.clone_from(&later.passage);
        depth.clone_from(&later.depth);
    }

    fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.queued += other.queued;
        self.sent += other.sent;
        self.dropped_full += other.dropped_full;
        self.dropped_late += other.dropped_late;
        self.dropped_expired += other.dropped_expired;
        self.dropped_queue += other.dropped_queue;
        self.dropped_gone += other.dropped_gone;
        self.missed += other.missed;
        self.held.add(&other.held);
        self.wait.add(&other.wait);
        self.passage.add(&other.passage);
        self.depth.add(&other.depth);
    }

    /// Counts a message that begins to wait in lanes 0 and 1.
    #[inline]
    pub(crate) fn arrived(&mut self) {
        self.waiting += 1;
        self.depth.record(self.waiting);
    }
}

impl Stats {
    /// Counts a connection that the broker ends.
    pub(crate) fn count_disconnect(&mut self, reason: ReasonCode) {
        *self.disconnects.entry(reason.byte()).or_default() += 1;
    }

    #[inline]
    pub(crate) fn class(&mut self, class: Class) -> &mut ClassStats {
        &mut self.classes[class as usize]
    }

    /// Counts messages that begin to wait in a session.
    pub(crate) fn queued(&mut self, load: &Load) {
        self.queued_messages += load.total() as u64;
        self.queued_bytes += load.bytes as u64;
        for (class, messages) in self.classes.iter_mut().zip(load.messages) {
            class.queued += messages as u64;
        }
    }

    /// Counts messages that wait in a session no more.
    pub(crate) fn left_queue(&mut self, load: &Load) {
        self.queued_messages -= load.total() as u64;
        self.queued_bytes -= load.bytes as u64;
        for (class, messages) in self.classes.iter_mut().zip(load.messages) {
            class.queued -= messages as u64;
        }
    }

    /// Counts a message that had expired.
    pub(crate) fn expired(&mut self, class: Class) {
        self.dropped_expired += 1;
        self.class(class).dropped_expired += 1;
    }

    /// Counts a message that the full queue of a session did not keep.
    pub(crate) fn not_queued(&mut self, class: Class) {
        self.dropped_queue_full += 1;
        self.class(class).dropped_queue += 1;
    }

    /// Counts messages that a slow receiver did not get.
    pub(crate) fn too_slow(&mut self, class: Class, messages: u64) {
        self.dropped_slow_consumer += messages;
        self.class(class).dropped_queue += messages;
    }

    /// Counts a PUBLISH packet that is sent.
    #[inline]
    pub(crate) fn published(&mut self, qos: QoS, payload: usize) {
        match qos {
            QoS::AtMostOnce => self.publishes_sent_qos0 += 1,
            QoS::AtLeastOnce => self.publishes_sent_qos1 += 1,
            QoS::ExactlyOnce => self.publishes_sent_qos2 += 1,
        }
        self.publish_bytes_sent += payload as u64;
    }

    /// PUBLISH packets received, all QoS.
    pub fn publishes_received(&self) -> u64 {
        self.publishes_received_qos0 + self.publishes_received_qos1 + self.publishes_received_qos2
    }

    /// PUBLISH packets sent, all QoS.
    pub fn publishes_sent(&self) -> u64 {
        self.publishes_sent_qos0 + self.publishes_sent_qos1 + self.publishes_sent_qos2
    }

    /// Messages dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_slow_consumer
            + self.dropped_queue_full
            + self.dropped_expired
            + self.dropped_too_large
            + self.dropped_offline
            + self.dropped_session_ended
            + self.dropped_not_authorized
            + self
                .classes
                .iter()
                .map(|class| class.dropped_full + class.dropped_late + class.dropped_gone)
                .sum::<u64>()
    }
}
