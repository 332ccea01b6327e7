//! Operations for property tests: few numbers, so that they meet.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::op::{Content, EntryOp, HighestNumbers, Ids, SessionOp, SubscriptionOp, WillOp};
use crate::{Batch, Op};

/// An operation that owns what it is made of.
#[derive(Debug, Clone)]
pub(crate) struct Owned(Batch);

impl Owned {
    /// Takes a copy.
    pub(crate) fn new(op: &Op<'_>) -> Self {
        let mut batch = Batch::new();
        batch.push(op);
        Self(batch)
    }

    /// The operation.
    pub(crate) fn op(&self) -> Op<'_> {
        self.0.iter().next().expect("an operation")
    }
}

type Parts = (String, Vec<u8>, Vec<u8>, u64, u8, bool, Option<u64>);

fn content() -> impl Strategy<Value = Parts> {
    (
        "[a-c]{1,3}",
        vec(any::<u8>(), 0..4),
        vec(any::<u8>(), 0..200),
        0u64..4,
        0u8..3,
        any::<bool>(),
        option::of(any::<u64>()),
    )
}

fn as_content(
    (topic, properties, payload, publisher, qos, retain, expires): &Parts,
) -> Content<'_> {
    Content {
        topic,
        properties,
        payload,
        publisher: *publisher,
        qos: *qos,
        retain: *retain,
        expires: *expires,
        stamp: properties,
    }
}

/// Any operation.
#[expect(clippy::too_many_lines, reason = "one strategy for each operation")]
pub(crate) fn owned() -> impl Strategy<Value = Owned> {
    let session = || 1u64..5;
    let entry = || 1u64..40;
    let packet_id = || 1u16..6;
    let key = || "[a-c]{1,2}";
    let sessions = (
        session(),
        key(),
        option::of(key()),
        4u8..6,
        any::<u32>(),
        option::of(any::<u64>()),
        1u16..9,
    )
        .prop_map(
            |(session, client_id, user, version, expiry, detached, next)| {
                Owned::new(&Op::Session(SessionOp {
                    session,
                    client_id: &client_id,
                    user: user.as_deref(),
                    version,
                    expiry,
                    detached,
                    next_packet_id: next,
                }))
            },
        );
    let subscriptions = (session(), key(), 0u8..64, option::of(any::<u32>())).prop_map(
        |(session, filter, options, id)| {
            Owned::new(&Op::Subscription(SubscriptionOp {
                session,
                filter: &filter,
                options,
                id,
                properties: &[options],
            }))
        },
    );
    let wills = (session(), any::<u32>(), option::of(any::<u64>()), content()).prop_map(
        |(session, delay, due, parts)| {
            Owned::new(&Op::Will(WillOp {
                session,
                delay,
                due,
                expiry: due.map(|due| due as u32),
                content: as_content(&parts),
            }))
        },
    );
    let entries = (
        session(),
        entry(),
        1u8..3,
        any::<bool>(),
        vec(any::<u32>(), 0..3),
        option::of((any::<u32>(), any::<u32>())),
    )
        .prop_map(|(session, number, qos, retain, ids, count)| {
            Owned::new(&Op::Entry(EntryOp {
                session,
                // An entry is of one session.
                entry: number * 8 + session,
                // Several entries have the same message.
                message: number / 2 + 1,
                qos,
                retain,
                subscription_ids: Ids::from(&ids[..]),
                number: count,
            }))
        });
    // The content is the same wherever the number is.
    let messages = entry().prop_map(|message| {
        let message = message / 2 + 1;
        let payload = vec![message as u8; message as usize * 3];
        Owned::new(&Op::Message {
            message,
            content: Content {
                topic: "t",
                properties: &[],
                payload: &payload,
                publisher: 1,
                qos: 1,
                retain: false,
                expires: None,
                stamp: &[],
            },
        })
    });
    let steps =
        (session(), entry(), packet_id(), 0u8..4).prop_map(|(session, entry, packet_id, step)| {
            let entry = entry * 8 + session;
            Owned::new(&match step {
                0 => Op::Sent {
                    session,
                    entry,
                    packet_id,
                },
                1 => Op::Step { session, entry },
                2 => Op::Inflight {
                    session,
                    entry,
                    packet_id,
                    step: packet_id > 3,
                },
                _ => Op::Done { session, entry },
            })
        });
    let gist = option::of(any::<u32>());
    let received =
        (session(), packet_id(), gist, any::<bool>()).prop_map(|(session, packet_id, gist, on)| {
            Owned::new(&match on {
                true => Op::Received {
                    session,
                    packet_id,
                    gist: gist.unwrap_or(0),
                },
                false => Op::Released { session, packet_id },
            })
        });
    // A version is used once.
    let retained =
        (key(), entry(), any::<u32>(), any::<bool>()).prop_map(|(topic, message, version, on)| {
            let version = u64::from(version);
            Owned::new(&match on {
                true => Op::Retain {
                    topic: &topic,
                    message: message / 2 + 1,
                    version,
                },
                false => Op::RetainGone {
                    topic: &topic,
                    version,
                },
            })
        });
    let flows = (key(), vec(any::<u8>(), 0..9), any::<bool>()).prop_map(|(key, value, on)| {
        Owned::new(&match on {
            true => Op::Flow {
                key: &key,
                value: &value,
            },
            false => Op::FlowGone { key: &key },
        })
    });
    let rare = (session(), key(), 0u8..5).prop_map(|(session, filter, which)| {
        Owned::new(&match which {
            0 => Op::SessionEnd { session },
            1 => Op::Unsubscription {
                session,
                filter: &filter,
            },
            2 => Op::WillGone { session },
            3 => Op::GivenBack { segment: 300 },
            _ => Op::Highest(HighestNumbers {
                session,
                message: 7,
                entry: 300,
                version: 1,
            }),
        })
    });
    prop_oneof![
        2 => sessions,
        2 => subscriptions,
        1 => wills,
        8 => entries,
        8 => messages,
        10 => steps,
        2 => received,
        3 => retained,
        1 => flows,
        1 => rare,
    ]
}
