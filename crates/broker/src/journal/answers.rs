//! Answers to a connection that wait for commits, ordered within each kind.

use std::collections::VecDeque;

use punctual_codec::{PacketType, ReasonCode};

use super::Journal;

/// Number of answers for which a connection keeps memory when none waits.
const USUAL: usize = 32;

/// The condition that an answer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct After {
    /// The answer may be sent when this ticket is committed,
    pub(crate) ticket: u64,
    /// or when this is not needed any more.
    pub(crate) or: Needed,
}

/// The part of a message that need not be committed once its receivers have finished it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// Nothing: the commit is needed in any case.
    Always,
    /// The content with that number.
    Content(u64),
    /// A message whose only entry has that number.
    Light(u64),
}

impl After {
    /// Waits for the commit of a ticket.
    pub(crate) fn ticket(ticket: u64) -> Self {
        let or = Needed::Always;
        Self { ticket, or }
    }

    /// Waits for the commit of a ticket, or until a content is not needed any more.
    pub(crate) fn needed(content: u64, ticket: u64) -> Self {
        let or = Needed::Content(content);
        Self { ticket, or }
    }

    /// Waits for the commit of a ticket, or until a message with only that entry is not needed any
    /// more.
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
    /// An answer without properties.
    Plain {
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    },
    /// An encoded answer; its kind, its packet identifier, and whether it reports success.
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

    /// The packet identifier of an answer that reports success.
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

/// An answer in the queue of its kind.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// `None` if it waits only for the answers before it.
    pub(crate) after: Option<After>,
    pub(crate) answer: Answer,
}

/// The waiting answers to a connection.
#[derive(Debug, Default)]
pub(crate) struct HeldAnswers(pub(crate) Option<Box<Places>>);

#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Queues of PUBACK, PUBREC and PUBREL: answers of one kind must not overtake each other (MQTT
    /// 5, 4.6).
    pub(crate) queues: [VecDeque<Waiting>; 3],
    /// Number of other answers, which are in the gate.
    pub(crate) others: usize,
    /// Whether the connection is in the list of those with waiting answers.
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

    /// Removes and returns the next answer that may be sent.
    pub(crate) fn next(&mut self, journal: &Journal) -> Option<Answer> {
        let places = self.0.as_mut()?;
        let is_over = |it: &mut Waiting| it.after.is_none_or(|after| after.is_over(journal));
        let mut queues = places.queues.iter_mut();
        queues.find_map(|queue| Some(queue.pop_front_if(is_over)?.answer))
    }

    /// Marks the connection as listed if it has ordered answers; returns whether it has to be added
    /// to the list.
    pub(crate) fn begin_list(&mut self) -> bool {
        let is_ordered = self.in_order() > 0;
        let places = self.0.as_mut().filter(|_| is_ordered);
        places.is_some_and(|places| !std::mem::replace(&mut places.is_listed, true))
    }

    /// Sets whether the connection is listed.
    pub(crate) fn list(&mut self, is_listed: bool) {
        if let Some(places) = &mut self.0 {
            places.is_listed = is_listed;
            if !is_listed {
                // Most of the time many connections have no waiting answers.
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
