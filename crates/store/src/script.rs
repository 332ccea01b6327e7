//! Sequences of operations as a broker with several shards says them, from
//! numbers that a property test draws.

use std::collections::{BTreeMap, BTreeSet};

use crate::op::{Content, EntryOp, Ids, SessionOp, SubscriptionOp, WillOp};
use crate::{Batch, Op};

/// How far an entry is. A PUBLISH with QoS 2 leaves when its packet identifier
/// is safe, so no PUBREC is said of an entry that was recovered without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Waiting,
    Sent,
    Stepped,
}

/// What such a broker knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    last: u64,
    sessions: Vec<u64>,
    /// Entry, session, and how far it is.
    entries: Vec<(u64, u64, Progress)>,
    /// Entries of which `Sent` or `Done` was said before they were.
    late: Vec<(u64, u64)>,
    retained: Vec<(&'static str, u64)>,
    /// Retained messages that are said too late.
    stale: Vec<(&'static str, u64)>,
    received: BTreeSet<(u64, u16)>,
}

const TOPICS: [&str; 4] = ["a", "a/b", "c", "d/e/f"];

impl Script {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// What was under way between shards is gone with them, and so is how far
    /// entries were: it goes on from what was recovered.
    pub(crate) fn crash(
        &mut self,
        sessions: BTreeSet<u64>,
        entries: BTreeMap<u64, Progress>,
        messages: BTreeSet<u64>,
    ) {
        self.late.clear();
        self.stale.clear();
        // A number that was lost never comes again.
        self.retained
            .retain(|(_, message)| messages.contains(message));
        self.sessions.retain(|session| sessions.contains(session));
        self.entries
            .retain_mut(|(entry, _, progress)| match entries.get(entry) {
                Some(recovered) => {
                    *progress = *recovered;
                    true
                }
                None => false,
            });
    }

    /// Brings the first entry that is at `from` to `to`.
    fn advance(&mut self, from: Progress, to: Progress) -> Option<(u64, u64)> {
        let mut entries = self.entries.iter_mut();
        let (entry, session, progress) = entries.find(|(.., progress)| *progress == from)?;
        *progress = to;
        Some((*entry, *session))
    }

    /// Says something, as `draw` decides.
    pub(crate) fn say(&mut self, draw: u64, out: &mut Batch) {
        let (kind, pick) = (draw % 32, (draw >> 8) as usize);
        let session = match self.sessions.len() {
            0 => None,
            len => Some(self.sessions[pick % len]),
        };
        match (kind, session) {
            (0..=1, _) | (_, None) => {
                let session = self.next();
                self.sessions.push(session);
                self.put_session(session, pick, out);
            }
            (2, Some(session)) => {
                self.sessions.retain(|other| *other != session);
                self.entries.retain(|(_, of, _)| *of != session);
                // Of what was sent it is said that it is done with, too.
                self.late.retain(|(_, of)| *of != session);
                self.received.retain(|(of, _)| *of != session);
                out.push(&Op::SessionEnd { session });
            }
            (3, Some(session)) => self.put_session(session, pick, out),
            (4, Some(session)) => out.push(&Op::Subscription(SubscriptionOp {
                session,
                filter: TOPICS[pick % 4],
                options: pick as u8,
                id: pick.is_multiple_of(2).then_some(pick as u32),
                properties: &[1],
            })),
            (5, Some(session)) => out.push(&Op::Unsubscription {
                session,
                filter: TOPICS[pick % 4],
            }),
            (6..=13, Some(_)) => self.publish(pick, out),
            (14..=16, _) => {
                if let Some((entry, session)) = self.advance(Progress::Waiting, Progress::Sent) {
                    out.push(&Op::Sent {
                        session,
                        entry,
                        packet_id: (entry % 1000) as u16 + 1,
                    });
                }
            }
            (17, _) => {
                if let Some((entry, session)) = self.advance(Progress::Sent, Progress::Stepped) {
                    out.push(&Op::Step { session, entry });
                }
            }
            (18..=23, _) if !self.entries.is_empty() => {
                let at = pick % self.entries.len();
                let (entry, session, _) = self.entries.remove(at);
                out.push(&Op::Done { session, entry });
            }
            (24, Some(session)) => {
                let entry = self.next();
                self.late.push((entry, session));
                out.push(&match pick.is_multiple_of(2) {
                    true => Op::Done { session, entry },
                    false => Op::Sent {
                        session,
                        entry,
                        packet_id: (entry % 1000) as u16 + 1,
                    },
                });
            }
            (25, _) => {
                if let Some((entry, session)) = self.late.pop() {
                    let message = self.put_message(out);
                    put_entry(session, entry, message, pick, out);
                }
            }
            (26, Some(session)) => {
                let packet_id = (pick % 4) as u16 + 1;
                let op = match self.received.insert((session, packet_id)) {
                    true => Op::Received {
                        session,
                        packet_id,
                        gist: pick as u32 / 4 % 3,
                    },
                    false => {
                        self.received.remove(&(session, packet_id));
                        Op::Released { session, packet_id }
                    }
                };
                out.push(&op);
            }
            (27, Some(session)) => out.push(&Op::Will(WillOp {
                session,
                delay: pick as u32,
                due: None,
                expiry: Some(7),
                content: content(&[1, 2, 3]),
            })),
            (28, Some(session)) => out.push(&Op::WillGone { session }),
            (29, _) => {
                let version = self.next();
                let topic = TOPICS[pick % 4];
                self.retained.retain(|(of, _)| *of != topic);
                self.stale.push((topic, version - 1));
                out.push(&Op::RetainGone { topic, version });
            }
            (30, _) => match self.stale.pop() {
                Some((topic, version)) => {
                    let message = self.put_message(out);
                    out.push(&Op::Retain {
                        topic,
                        message,
                        version,
                    });
                }
                None => out.push(&Op::FlowGone {
                    key: TOPICS[pick % 4],
                }),
            },
            _ => out.push(&Op::Flow {
                key: TOPICS[pick % 4],
                value: &[pick as u8; 20],
            }),
        }
    }

    fn put_session(&mut self, session: u64, pick: usize, out: &mut Batch) {
        out.push(&Op::Session(SessionOp {
            session,
            client_id: TOPICS[pick % 4],
            user: pick.is_multiple_of(2).then_some("someone"),
            version: 5,
            expiry: pick as u32,
            detached: None,
            next_packet_id: 1,
        }));
    }

    fn put_message(&mut self, out: &mut Batch) -> u64 {
        let message = self.next();
        out.push(&Op::Message {
            message,
            content: content(&payload(message)),
        });
        message
    }

    fn publish(&mut self, pick: usize, out: &mut Batch) {
        // A retained message may have been said before, and is said again.
        let again = self.retained.get(pick % 8).map(|(_, message)| *message);
        let message = match again {
            Some(message) => {
                out.push(&Op::Message {
                    message,
                    content: content(&payload(message)),
                });
                message
            }
            None => self.put_message(out),
        };
        for at in 0..pick % 4 {
            let session = self.sessions[(pick / 4 + at) % self.sessions.len()];
            let entry = self.next();
            self.entries.push((entry, session, Progress::Waiting));
            put_entry(session, entry, message, pick, out);
        }
        if pick.is_multiple_of(3) && again.is_none() {
            let version = self.next();
            let topic = TOPICS[pick / 3 % 4];
            self.retained.retain(|(of, _)| *of != topic);
            self.retained.push((topic, message));
            out.push(&Op::Retain {
                topic,
                message,
                version,
            });
        }
    }
}

fn put_entry(session: u64, entry: u64, message: u64, pick: usize, out: &mut Batch) {
    out.push(&Op::Entry(EntryOp {
        session,
        entry,
        message,
        qos: 1 + (pick % 2) as u8,
        retain: false,
        subscription_ids: Ids::from(&[1, 2][..pick % 3]),
        number: None,
    }));
}

/// The same whenever the message is said.
fn payload(message: u64) -> Vec<u8> {
    vec![message as u8; (message * 37 % 300) as usize]
}

fn content(payload: &[u8]) -> Content<'_> {
    Content {
        topic: "t/o/p",
        properties: &[],
        payload,
        publisher: 1,
        qos: 1,
        retain: false,
        expires: Some(5),
        stamp: &[9],
    }
}
