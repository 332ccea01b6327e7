//! Answers to a connection that wait, in the order of their kinds.

use std::collections::VecDeque;

use punctual_codec::{PacketType, ReasonCode};

use super::Journal;

/// Answers for which a connection keeps memory when none waits.
const USUAL: usize = 32;

/// What an answer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct After {
    /// That this is committed,
    pub(crate) ticket: u64,
    /// or that this is not needed any more.
    pub(crate) or: Needed,
}

/// What need not be committed once its receivers have done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// Whatever they do.
    Always,
    /// A content.
    Content(u64),
    /// A message with only that entry.
    Light(u64),
}

impl After {
    /// That a ticket is committed.
    pub(crate) fn ticket(ticket: u64) -> Self {
        let or = Needed::Always;
        Self { ticket, or }
    }

    /// The same, or that a content is not needed before.
    pub(crate) fn needed(content: u64, ticket: u64) -> Self {
        let or = Needed::Content(content);
        Self { ticket, or }
    }

    /// The same with a message that has only that entry.
    pub(crate) fn light(entry: u64, ticket: u64) -> Self {
        let or = Needed::Light(entry);
        Self { ticket, or }
    }

    pub(crate) fn is_over(self, journal: &Journal) -> bool {
        let is_needless = match self.or {
            Needed::Always => false,
            Needed::Content(content) => content != 0 && !journal.kept.is_needed(content),
            Needed::Light(entry) => !journal.kept.has_light(entry),
        };
        is_needless || journal.is_committed(self.ticket)
    }
}

/// An acknowledgement, or another answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Without properties.
    Plain {
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    },
    /// Encoded; its kind, its identifier, and whether it says that something was
    /// done.
    Encoded {
        kind: PacketType,
        packet_id: u16,
        success: bool,
        bytes: Box<[u8]>,
    },
}

impl Answer {
    pub(crate) fn kind(&self) -> PacketType {
        match self {
            Self::Plain { kind, .. } | Self::Encoded { kind, .. } => *kind,
        }
    }

    /// Packet identifier, for one that says that a message was accepted.
    pub(crate) fn accepted(&self) -> Option<u16> {
        match self {
            Self::Plain {
                packet_id, reason, ..
            } if !reason.is_error() => Some(*packet_id),
            Self::Encoded {
                packet_id,
                success: true,
                ..
            } => Some(*packet_id),
            _ => None,
        }
    }
}

/// An answer in the order of its kind.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// `None` if it only waits for those before it.
    pub(crate) after: Option<After>,
    pub(crate) answer: Answer,
}

/// Answers to a connection that wait.
#[derive(Debug, Default)]
pub(crate) struct HeldAnswers(pub(crate) Option<Box<Places>>);

#[derive(Debug, Default)]
pub(crate) struct Places {
    /// PUBACK, PUBREC and PUBREL: those of one kind must not overtake each other
    /// (MQTT 5, 4.6).
    pub(crate) queues: [VecDeque<Waiting>; 3],
    /// Others, which are in the gate.
    pub(crate) others: usize,
    /// It is among the connections with answers that wait.
    pub(super) is_listed: bool,
}

impl HeldAnswers {
    pub(crate) fn place(kind: PacketType) -> Option<usize> {
        match kind {
            PacketType::PubAck => Some(0),
            PacketType::PubRec => Some(1),
            PacketType::PubRel => Some(2),
            _ => None,
        }
    }

    /// Whether an answer of that kind has to wait for others.
    pub(crate) fn are_before(&self, kind: PacketType) -> bool {
        let queue = Self::place(kind).and_then(|place| Some(&self.0.as_ref()?.queues[place]));
        queue.is_some_and(|queue| !queue.is_empty())
    }

    pub(crate) fn in_order(&self) -> usize {
        let places = self.0.as_ref();
        places.map_or(0, |places| places.queues.iter().map(VecDeque::len).sum())
    }

    pub(crate) fn all(&self) -> usize {
        self.in_order() + self.0.as_ref().map_or(0, |places| places.others)
    }

    /// The next that may leave.
    pub(crate) fn next(&mut self, journal: &Journal) -> Option<Answer> {
        let places = self.0.as_mut()?;
        let is_over = |it: &mut Waiting| it.after.is_none_or(|after| after.is_over(journal));
        let mut queues = places.queues.iter_mut();
        queues.find_map(|queue| Some(queue.pop_front_if(is_over)?.answer))
    }

    /// Notes that it is listed if it has to be; whether it was not.
    pub(crate) fn begin_list(&mut self) -> bool {
        let is_ordered = self.in_order() > 0;
        let places = self.0.as_mut().filter(|_| is_ordered);
        places.is_some_and(|places| !std::mem::replace(&mut places.is_listed, true))
    }

    /// Notes whether it is listed.
    pub(crate) fn list(&mut self, is_listed: bool) {
        if let Some(places) = &mut self.0 {
            places.is_listed = is_listed;
            if !is_listed {
                // Many connections have nothing that waits most of the time.
                let queues = places.queues.iter_mut();
                queues.for_each(|queue| queue.shrink_to(USUAL));
            }
        }
    }

    pub(crate) fn remove_other(&mut self) {
        if let Some(places) = &mut self.0 {
            places.others -= 1;
        }
    }
}
