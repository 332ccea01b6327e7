//! Tests of [`PendingOperations`]: which operations are withdrawn, which are handed over, and when.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use punctual_codec::{Properties, QoS};
use punctual_store::op::{Content as Stored, EntryOp, Ids};

use super::*;
use crate::Message;
use crate::journal::content::with_content;
use crate::publication::Publication;

const MS: Nanos = Nanos::from_millis(1);
const PATIENCE: Nanos = Nanos::from_millis(100);
const PUBLISHER: ConnId = ConnId {
    slot: 3,
    generation: 1,
};

/// A [`PendingOperations`] with a clock and the last number of an entry.
struct Rig {
    kept: PendingOperations,
    now: Nanos,
    entries: u64,
}

fn rig() -> Rig {
    Rig {
        kept: PendingOperations::new(2),
        now: MS,
        entries: 0,
    }
}

impl Rig {
    /// Emits a message that is sent to that many sessions; returns the numbers of its content and
    /// of its last entry.
    fn publish(&mut self, message: u64, sessions: u64) -> (u64, u64) {
        self.kept.see(self.now);
        let stored = Stored {
            topic: "t",
            properties: &[],
            payload: b"x",
            publisher: 1,
            qos: 1,
            retain: false,
            expires: None,
            stamp: &[],
        };
        let place = self.kept.emit(&Op::Message {
            message,
            content: stored,
        });
        let content = self.kept.add_content(message, place);
        for session in 0..sessions {
            self.entries += 1;
            let entry = self.entries;
            let place = self.kept.emit(&Op::Entry(EntryOp {
                session,
                entry,
                message,
                qos: 1,
                retain: false,
                subscription_ids: Ids::NONE,
                number: None,
            }));
            self.kept.add_entry(entry, content, place);
            let place = self.kept.emit(&Op::Sent {
                session,
                entry,
                packet_id: 1,
            });
            self.kept.was_sent(entry, place);
        }
        self.kept.tell(content, PUBLISHER);
        (content, self.entries)
    }

    /// Ends a turn; returns the ticket and the kinds of the operations that are handed over.
    fn take(&mut self, all: bool) -> Option<(u64, Vec<String>)> {
        let taken = self.kept.take(self.now, PATIENCE, all, Offset(0))?;
        let kind = |op: Op<'_>| {
            let op = format!("{op:?}");
            let end = op.find([' ', '(']).unwrap_or(op.len());
            op[..end].to_owned()
        };
        Some((taken.ticket, taken.batch.iter().map(kind).collect()))
    }

    /// Ends turns at the time when operations are due, until some are handed over.
    fn wait(&mut self) -> Option<(u64, Vec<String>)> {
        let due = self.kept.due()?;
        self.now = self.now.max(due);
        (0..TURNS).find_map(|_| self.take(false))
    }
}

#[test]
fn what_is_acknowledged_in_time_is_not_handed_over() {
    let mut rig = rig();
    let (content, entry) = rig.publish(7, 1);
    assert_eq!(rig.take(false), None);
    assert!(rig.kept.is_needed(content));
    assert_eq!(rig.kept.done(entry), Done::Needless);
    assert!(!rig.kept.is_needed(content));
    assert_eq!(rig.kept.freed, [PUBLISHER]);
    assert_eq!(rig.kept.bytes(), 0);
    assert_eq!(rig.take(false), Some((2, Vec::new())));
    assert!(!rig.kept.has_some());
    // A finished entry is not recorded any more.
    assert_eq!(rig.kept.done(entry), Done::Stored);
}

#[test]
fn what_one_receiver_has_not_acknowledged_stays_for_it() {
    let mut rig = rig();
    let (content, entry) = rig.publish(7, 2);
    rig.take(false);
    assert_eq!(rig.kept.done(entry), Done::Needless);
    assert!(rig.kept.is_needed(content));
    assert!(rig.kept.freed.is_empty());
    let left = ["Message", "Entry", "Sent"].map(Into::into).into();
    assert_eq!(rig.wait(), Some((2, left)));
    // After handing over, the end of the entry has to be stored, but the publisher need not wait
    // for that.
    assert_eq!(rig.kept.done(entry - 1), Done::Stored);
    assert!(!rig.kept.is_needed(content));
    assert_eq!(rig.kept.freed, [PUBLISHER]);
}

#[test]
fn chunks_leave_in_their_order_and_not_before_their_time() {
    let mut rig = rig();
    let (first, _) = rig.publish(7, 1);
    rig.take(false);
    rig.now = rig.now + Nanos(1);
    let (_, second) = rig.publish(8, 1);
    rig.take(false);
    // The second chunk waits for the first one even if it is empty.
    assert_eq!(rig.kept.done(second), Done::Needless);
    assert_eq!(rig.take(false), None);
    let (ticket, ops) = rig.wait().unwrap();
    assert_eq!((ticket, ops.len()), (3, 3));
    assert!(rig.kept.is_needed(first));
    rig.kept.committed(ticket, MS);
    // A committed content is not recorded any more.
    assert!(!rig.kept.has_content(first));
    assert!(!rig.kept.has_some());
}

#[test]
fn everything_leaves_when_something_cannot_wait() {
    let mut rig = rig();
    let (_, entry) = rig.publish(7, 1);
    rig.take(false);
    rig.publish(8, 1);
    assert_eq!(rig.kept.done(entry), Done::Needless);
    let (ticket, ops) = rig.take(true).unwrap();
    assert_eq!((ticket, ops.len()), (3, 3));
    assert_eq!(rig.kept.due(), None);
}

#[test]
fn a_content_with_something_else_that_refers_to_it_stays() {
    let mut rig = rig();
    let (content, entry) = rig.publish(7, 1);
    rig.kept.pin(content);
    assert_eq!(rig.kept.done(entry), Done::Needless);
    assert_eq!(rig.take(true), Some((2, vec!["Message".into()])));
    assert_eq!(rig.kept.content_of(7), content);
    assert_eq!(rig.kept.content_of(6), 0);
}

#[test]
fn nobody_waits_for_receivers_that_are_slow() {
    let mut rig = rig();
    for message in 0..u64::from(SAMPLE) {
        rig.publish(message, 1);
    }
    rig.take(false);
    let (ticket, _) = rig.wait().unwrap();
    rig.kept.committed(ticket, MS);
    rig.publish(0, 1);
    assert!(rig.take(false).is_some());
    // Receivers are as quick as commits again.
    let entries: Vec<u64> = (0..u64::from(SAMPLE))
        .map(|message| rig.publish(message, 1).1)
        .collect();
    assert!(rig.take(false).is_some());
    for entry in entries {
        assert_eq!(rig.kept.done(entry), Done::Stored);
    }
    rig.publish(0, 1);
    assert_eq!(rig.take(false), None);
}

#[test]
fn under_load_chunks_stay_as_long_as_receivers_take() {
    let mut rig = rig();
    let mut stays = Vec::new();
    for answer in [1, 20, 20, 20] {
        let first = rig.entries + 1;
        for message in 0..100 {
            rig.publish(message, 1);
        }
        rig.take(false);
        rig.now = rig.now + Nanos::from_millis(answer);
        rig.kept.see(rig.now);
        for entry in first..=rig.entries {
            assert_eq!(rig.kept.done(entry), Done::Needless);
        }
        rig.take(false);
        while rig.kept.bytes() < LITTLE {
            rig.publish(0, 1);
        }
        stays.push(rig.kept.stay());
        // Finishes all entries of this round.
        for entry in first..=rig.entries {
            rig.kept.done(entry);
        }
        rig.take(false);
    }
    assert_eq!(stays[0], Nanos(PATIENCE.0 / SHORT));
    assert!(stays.is_sorted(), "{stays:?}");
    let last = stays.last().unwrap();
    assert!(
        (Nanos::from_millis(20)..=PATIENCE).contains(last),
        "{last:?}"
    );
}

#[test]
fn what_never_leaves_is_forgotten() {
    let mut rig = rig();
    let (_, first) = rig.publish(0, 1);
    rig.take(true);
    // Nothing is committed.
    for message in 1..10_000 {
        let (_, entry) = rig.publish(message, 1);
        rig.take(false);
        assert_eq!(rig.kept.done(entry), Done::Needless);
        rig.kept.freed.clear();
    }
    rig.take(false);
    assert!(rig.kept.closed.is_empty());
    assert_eq!(rig.kept.bytes(), 0);
    assert_eq!(rig.kept.entries.len(), 1);
    assert_eq!(rig.kept.contents.len(), 1);
    assert_eq!(rig.kept.done(first), Done::Stored);
}

#[test]
fn another_shard_is_told_unless_something_was_handed_over_here() {
    let mut rig = rig();
    let sent = |rig: &mut Rig, entry| {
        rig.kept.see(rig.now);
        rig.kept.add_foreign(entry, 5);
        let place = rig.kept.emit(&Op::Sent {
            session: 1,
            entry,
            packet_id: 1,
        });
        rig.kept.was_sent(entry, place);
    };
    sent(&mut rig, 70);
    assert_eq!(rig.take(false), None);
    assert_eq!(rig.kept.done(70), Done::Elsewhere(5));
    assert_eq!(rig.take(false), Some((2, Vec::new())));
    sent(&mut rig, 80);
    assert_eq!(rig.take(true), Some((3, vec!["Sent".into()])));
    assert_eq!(rig.kept.done(80), Done::Stored);
    // An entry whose message was not sent.
    rig.kept.add_foreign(90, 6);
    assert_eq!(rig.kept.done(90), Done::Elsewhere(6));
    // An entry that is to be copied.
    rig.kept.add_foreign(95, 6);
    rig.kept.insist(95);
    assert!(rig.kept.is_foreign(95));
    assert_eq!(rig.kept.done(95), Done::Stored);
    // After twice the patience the other shard has handed the entry over.
    rig.kept.add_foreign(91, 6);
    rig.now = rig.now + PATIENCE + PATIENCE + MS;
    rig.take(false);
    assert_eq!(rig.kept.done(91), Done::Stored);
}

#[derive(Debug, Clone)]
enum Step {
    /// A message for one session is published, and sent at once or queued.
    Publish { sent: bool },
    /// The message that many places before the last one is sent, if it is queued.
    Send(usize),
    /// The session finishes that message.
    Done(usize),
    /// That message is copied.
    Insist(usize),
    /// Another operation is emitted.
    Other,
    /// A turn ends that many milliseconds later; if true, everything is handed over.
    Turn(u64, bool),
    /// All operations that were handed over are committed.
    Commit,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<bool>().prop_map(|sent| Step::Publish { sent }),
        2 => (0usize..20).prop_map(Step::Send),
        6 => (0usize..20).prop_map(Step::Done),
        1 => (0usize..20).prop_map(Step::Insist),
        1 => Just(Step::Other),
        3 => (0u64..60, any::<bool>()).prop_map(|(ms, all)| Step::Turn(ms, all)),
        1 => Just(Step::Commit),
    ]
}

/// A message that was published: its content if its operations were emitted, and the packet
/// identifier with which it was sent; 0 if it is queued.
struct Published {
    content: u64,
    packet_id: u16,
    is_done: bool,
}

fn message(number: u64) -> Arc<Message> {
    let payload = vec![b'x'; number as usize % 7];
    let qos = QoS::AtLeastOnce;
    let message = Message::new(b"t/1", Properties::EMPTY, &payload, qos, false, MS, number);
    message.stored_as(number)
}

/// Emits the operations of a message for one session one after the other.
fn emit(kept: &mut PendingOperations, number: u64, packet_id: u16) -> u64 {
    let message = message(number);
    let publication = Publication::from_message(&message, Nanos(0));
    let place = with_content(&publication, Offset(5), |content| {
        let message = number;
        kept.emit(&Op::Message { message, content })
    });
    let content = kept.add_content(number, place);
    let place = kept.emit(&Op::Entry(EntryOp {
        session: 1,
        entry: number,
        message: number,
        qos: 1,
        retain: false,
        subscription_ids: Ids::NONE,
        number: None,
    }));
    kept.add_entry(number, content, place);
    kept.tell(content, PUBLISHER);
    if packet_id != 0 {
        say(kept, number, packet_id);
    }
    content
}

/// Emits the packet identifier with which a message is sent.
fn say(kept: &mut PendingOperations, entry: u64, packet_id: u16) {
    let place = kept.emit(&Op::Sent {
        session: 1,
        entry,
        packet_id,
    });
    kept.was_sent(entry, place);
}

proptest! {
    /// Messages with one receiver behave as if they had been emitted like others: the same
    /// operations are handed over at the same time, and the publisher is answered at the same time.
    #[test]
    fn messages_with_one_receiver_are_like_others(steps in vec(step(), 0..120)) {
        let (mut light, mut other) = (PendingOperations::new(2), PendingOperations::new(2));
        let mut published: Vec<Published> = Vec::new();
        let (mut now, mut packet_id, mut handed) = (MS, 0, 0);
        for step in steps {
            light.see(now);
            other.see(now);
            let at = |back: usize| published.len().checked_sub(back + 1);
            match step {
                Step::Publish { sent } => {
                    let number = published.len() as u64 + 1;
                    packet_id += u16::from(sent);
                    let packet_id = if sent { packet_id } else { 0 };
                    light.keep_light(number, Light {
                        session: 1,
                        packet_id,
                        publisher: PUBLISHER,
                        message: message(number),
                    });
                    let content = emit(&mut other, number, packet_id);
                    published.push(Published { content, packet_id, is_done: false });
                }
                Step::Send(back) => {
                    if let Some(at) = at(back)
                        && published[at].packet_id == 0
                        && !published[at].is_done
                    {
                        packet_id += 1;
                        published[at].packet_id = packet_id;
                        say(&mut light, at as u64 + 1, packet_id);
                        say(&mut other, at as u64 + 1, packet_id);
                    }
                }
                Step::Done(back) => {
                    if let Some(at) = at(back)
                        && !std::mem::replace(&mut published[at].is_done, true)
                    {
                        let entry = at as u64 + 1;
                        prop_assert_eq!(light.done(entry), other.done(entry));
                    }
                }
                Step::Insist(back) => {
                    if let Some(at) = at(back)
                        && !published[at].is_done
                    {
                        light.insist(at as u64 + 1);
                        other.insist(at as u64 + 1);
                    }
                }
                Step::Other => {
                    for kept in [&mut light, &mut other] {
                        kept.emit(&Op::WillGone { session: published.len() as u64 });
                    }
                }
                Step::Turn(ms, all) => {
                    now = now + Nanos(ms * MS.0);
                    let taken = light.take(now, PATIENCE, all, Offset(5));
                    let expected = other.take(now, PATIENCE, all, Offset(5));
                    let parts = |it: &Taken| (it.ticket, it.since, format!("{:?}", it.batch));
                    prop_assert_eq!(taken.as_ref().map(parts), expected.as_ref().map(parts));
                    handed = taken.map_or(handed, |taken| taken.ticket);
                }
                Step::Commit => {
                    light.committed(handed, MS);
                    other.committed(handed, MS);
                }
            }
            prop_assert_eq!(std::mem::take(&mut light.freed), std::mem::take(&mut other.freed));
            for (at, it) in published.iter().enumerate() {
                prop_assert_eq!(light.has_light(at as u64 + 1), other.is_needed(it.content));
            }
        }
        light.take(now, PATIENCE, true, Offset(5));
        prop_assert_eq!(light.bytes(), 0);
    }
}
