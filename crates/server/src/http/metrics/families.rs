//! Under which names the broker's counters appear. A test sees to it that none
//! of them is forgotten.

use std::collections::HashMap;

use punctual_broker::Stats;

use super::exposition::{Exposition, Kind};
use Kind::{Counter, Gauge};

/// Counters of the broker that belong together.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: Samples,
}

enum Samples {
    /// The counter.
    One(&'static str),
    /// The label that tells them apart, its value for each counter.
    Each(&'static str, &'static [(&'static str, &'static str)]),
}
use Samples::{Each, One};

const fn family(name: &'static str, kind: Kind, help: &'static str, samples: Samples) -> Family {
    Family {
        name,
        kind,
        help,
        samples,
    }
}

const FAMILIES: &[Family] = &[
    family(
        "punctual_messages_received_total",
        Counter,
        "PUBLISH packets received, repetitions of QoS 2 left out.",
        Each(
            "qos",
            &[
                ("0", "publishes_received_qos0"),
                ("1", "publishes_received_qos1"),
                ("2", "publishes_received_qos2"),
            ],
        ),
    ),
    family(
        "punctual_messages_sent_total",
        Counter,
        "PUBLISH packets sent.",
        Each(
            "qos",
            &[
                ("0", "publishes_sent_qos0"),
                ("1", "publishes_sent_qos1"),
                ("2", "publishes_sent_qos2"),
            ],
        ),
    ),
    family(
        "punctual_messages_resent_total",
        Counter,
        "PUBLISH packets sent again after a reconnection.",
        One("publishes_resent"),
    ),
    family(
        "punctual_mesh_messages_recognised_total",
        Counter,
        "PUBLISH packets from neighbour brokers that were here before.",
        One("publishes_recognised"),
    ),
    family(
        "punctual_mesh_messages_parked_total",
        Counter,
        "PUBLISH packets from neighbour brokers that waited for room before they were acknowledged.",
        One("publishes_parked"),
    ),
    family(
        "punctual_mesh_messages_throttled_total",
        Counter,
        "Messages that were kept back for neighbour brokers that take only little of them, since \
         somebody behind them has no room.",
        One("publishes_throttled"),
    ),
    family(
        "punctual_mesh_messages_held_total",
        Counter,
        "Messages for a neighbour broker that waited when its link began to carry, until those had come \
         that others had kept for it.",
        One("publishes_held"),
    ),
    family(
        "punctual_mesh_messages_early_total",
        Counter,
        "Messages that waited for those published before them: PUBLISH packets from neighbour \
         brokers, and what came to sessions from elsewhere than the rest of them.",
        One("publishes_early"),
    ),
    family(
        "punctual_mesh_sessions_moved_total",
        Counter,
        "Sessions that came from other brokers of the mesh, and went there, with their clients.",
        Each(
            "direction",
            &[("in", "sessions_moved_in"), ("out", "sessions_moved_out")],
        ),
    ),
    family(
        "punctual_mesh_messages_moved_late_total",
        Counter,
        "Messages that came from another broker of the mesh for a client that had got a new session.",
        One("messages_moved_late"),
    ),
    family(
        "punctual_messages_dropped_total",
        Counter,
        "Messages that a receiver did not get, by reason.",
        Each(
            "reason",
            &[
                ("slow_consumer", "dropped_slow_consumer"),
                ("queue_full", "dropped_queue_full"),
                ("expired", "dropped_expired"),
                ("too_large", "dropped_too_large"),
                ("offline", "dropped_offline"),
                ("session_ended", "dropped_session_ended"),
                ("not_authorized", "dropped_not_authorized"),
            ],
        ),
    ),
    family(
        "punctual_messages_refused_total",
        Counter,
        "Messages that were not taken from their publisher, by reason.",
        Each(
            "reason",
            &[
                ("not_authorized", "refused_not_authorized"),
                ("queue_full", "refused_queue_full"),
                ("retained_full", "refused_retained_full"),
                ("store", "refused_store"),
                ("not_joined", "refused_not_joined"),
            ],
        ),
    ),
    family(
        "punctual_mesh_refused_versions_total",
        Counter,
        "Retained messages of other brokers that are not kept: their version is in the future.",
        One("refused_versions"),
    ),
    family(
        "punctual_urgent_messages_received_total",
        Counter,
        "PUBLISH packets received with a priority or a requirement.",
        One("publishes_received_urgent"),
    ),
    family(
        "punctual_urgency_ignored_total",
        Counter,
        "PUBLISH packets whose stated urgency was not followed, by reason.",
        Each(
            "reason",
            &[
                ("not_understood", "bad_requirements"),
                ("not_authorized", "refused_urgency"),
            ],
        ),
    ),
    family(
        "punctual_payload_received_bytes_total",
        Counter,
        "Payload of the PUBLISH packets received.",
        One("publish_bytes_received"),
    ),
    family(
        "punctual_payload_sent_bytes_total",
        Counter,
        "Payload of the PUBLISH packets sent.",
        One("publish_bytes_sent"),
    ),
    family(
        "punctual_packets_received_total",
        Counter,
        "MQTT packets received.",
        One("packets_received"),
    ),
    family(
        "punctual_packets_sent_total",
        Counter,
        "MQTT packets sent.",
        One("packets_sent"),
    ),
    family(
        "punctual_received_bytes_total",
        Counter,
        "Bytes received, as MQTT packets.",
        One("bytes_received"),
    ),
    family(
        "punctual_sent_bytes_total",
        Counter,
        "Bytes sent, as MQTT packets.",
        One("bytes_sent"),
    ),
    family(
        "punctual_connections_opened_total",
        Counter,
        "Connections opened.",
        One("connections_opened"),
    ),
    family(
        "punctual_connects_received_total",
        Counter,
        "CONNECT packets received.",
        One("connects_received"),
    ),
    family(
        "punctual_connects_refused_total",
        Counter,
        "CONNECT packets refused.",
        One("refused_connects"),
    ),
    family(
        "punctual_subscriptions_refused_total",
        Counter,
        "Topic filters of SUBSCRIBE packets refused.",
        One("refused_subscriptions"),
    ),
    family(
        "punctual_sessions_expired_total",
        Counter,
        "Sessions that expired while their client was away.",
        One("sessions_expired"),
    ),
    family(
        "punctual_sessions_taken_over_total",
        Counter,
        "Sessions taken over by a new connection while the old one was open.",
        One("sessions_taken_over"),
    ),
    family(
        "punctual_flow_messages_total",
        Counter,
        "Messages that ask for real time where flows are admitted, by what became of them.",
        Each(
            "carried",
            &[
                ("admitted", "flow_messages_admitted"),
                ("best_effort", "flow_messages_best_effort"),
                ("refused", "flow_messages_refused"),
            ],
        ),
    ),
    family(
        "punctual_flow_violations_total",
        Counter,
        "Messages of admitted flows that were larger or sooner than declared.",
        One("flow_violations"),
    ),
    family(
        "punctual_flow_policed_total",
        Counter,
        "What was done about them.",
        Each(
            "action",
            &[
                ("demote", "flow_messages_demoted"),
                ("shape", "flow_messages_shaped"),
                ("drop", "flow_messages_dropped"),
            ],
        ),
    ),
    family(
        "punctual_publisher_pauses_total",
        Counter,
        "Times a receiver held back those that publish to it.",
        One("publisher_pauses"),
    ),
    family(
        "punctual_store_pauses_total",
        Counter,
        "Times a publisher waited because its messages were not stored as fast as they came.",
        One("store_pauses"),
    ),
    family(
        "punctual_slow_consumers_total",
        Counter,
        "Times a receiver was declared slow.",
        One("slow_consumers"),
    ),
    family(
        "punctual_connections",
        Gauge,
        "Connections open, with those before CONNECT.",
        One("connections"),
    ),
    family(
        "punctual_clients_connected",
        Gauge,
        "Clients connected.",
        One("clients_connected"),
    ),
    family(
        "punctual_sessions",
        Gauge,
        "Sessions, their client connected or not.",
        One("sessions"),
    ),
    family(
        "punctual_subscriptions",
        Gauge,
        "Subscriptions, shared ones included.",
        One("subscriptions"),
    ),
    family(
        "punctual_shared_subscriptions",
        Gauge,
        "Shared subscriptions.",
        One("shared_subscriptions"),
    ),
    family(
        "punctual_queued_messages",
        Gauge,
        "Messages that wait for clients.",
        One("queued_messages"),
    ),
    family(
        "punctual_queued_bytes",
        Gauge,
        "Size of the messages that wait for clients.",
        One("queued_bytes"),
    ),
    family(
        "punctual_inflight_messages",
        Gauge,
        "Messages sent to clients that have not acknowledged them.",
        One("inflight_messages"),
    ),
];

/// Writes the families with what was counted.
pub(super) fn write(stats: &Stats, out: &mut Exposition) {
    let fields: HashMap<&str, u64> = stats.fields().collect();
    let value = |field: &str| fields.get(field).copied().unwrap_or_default();
    for family in FAMILIES {
        out.family(family.name, family.kind, family.help);
        match family.samples {
            One(field) => out.sample(&[], value(field)),
            Each(label, samples) => {
                for (text, field) in samples {
                    out.sample(&[(label, text)], value(field));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_counter_of_the_broker_appears_once() {
        let fields = FAMILIES.iter().flat_map(|family| match family.samples {
            One(field) => vec![field],
            Each(_, samples) => samples.iter().map(|(_, field)| *field).collect(),
        });
        let mut fields: Vec<&str> = fields.collect();
        fields.sort_unstable();
        let mut all: Vec<&str> = Stats::default().fields().map(|(name, _)| name).collect();
        all.sort_unstable();
        assert_eq!(fields, all);
    }

    #[test]
    fn names_are_those_that_prometheus_expects() {
        let names: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            let counter = family.kind == Counter;
            assert_eq!(family.name.ends_with("_total"), counter, "{}", family.name);
            assert!(family.name.starts_with("punctual_"), "{}", family.name);
            assert!(family.help.ends_with('.'), "{}", family.name);
        }
    }
}
