//! The flows of one client, and the acknowledgements that carry answers.

use std::collections::{HashMap, VecDeque};

use punctual_broker::{FlowState, Nanos};
use punctual_codec::{Ack, PacketType};
use punctual_model::{Answer, Conformity, Requirements};

/// A flow, decided or not.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) state: FlowState,
    /// Nothing waits for the decision any more.
    pub(crate) overdue: bool,
}

impl Flow {
    pub(crate) fn new(requirements: Requirements) -> Self {
        Self {
            state: FlowState::new(requirements),
            overdue: false,
        }
    }

    /// Judges a message, and counts it if it is as declared, as everything is of
    /// a flow that is not admitted.
    pub(crate) fn judge(&mut self, payload: u32, packet: usize, now: Nanos) -> Conformity {
        let Some(grant) = self.state.grant().copied() else {
            return Conformity::Conforms;
        };
        let conformity = self.state.meter.judge(&grant, payload, now.0);
        if conformity == Conformity::Conforms {
            self.state.meter.spend(&grant, packet, now.0);
        }
        conformity
    }
}

/// What the acknowledgement of a PUBLISH is to carry.
#[derive(Debug)]
pub(crate) enum Note {
    /// This.
    Answer(Answer),
    /// What becomes of the flow with this topic; nothing is known by `until`.
    Pending { topic: Box<str>, until: Nanos },
}

/// Acknowledgements on their way to a client, in their order.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    notes: HashMap<u16, Note, foldhash::fast::RandomState>,
    held: VecDeque<(PacketType, u16, Vec<u8>)>,
}

impl Acks {
    /// Whether acknowledgements may pass unread.
    pub(crate) fn are_plain(&self) -> bool {
        self.notes.is_empty() && self.held.is_empty()
    }

    pub(crate) fn note(&mut self, packet_id: u16, note: Note) {
        self.notes.insert(packet_id, note);
    }

    /// The acknowledgement of `packet_id` is to say nothing: the identifier is
    /// used anew.
    pub(crate) fn forget(&mut self, packet_id: u16) {
        if !self.notes.is_empty() {
            self.notes.remove(&packet_id);
        }
    }

    /// An acknowledgement with the bytes of its packet.
    pub(crate) fn hold(&mut self, kind: PacketType, ack: &Ack<'_>, packet: &[u8]) {
        self.held.push_back((kind, ack.packet_id, packet.to_vec()));
    }

    /// What waits for the flow with that topic gets an answer. Whether there
    /// was something.
    pub(crate) fn decided(&mut self, topic: &str, answer: Option<&Answer>) -> bool {
        let mut answered = false;
        self.notes.retain(|_, note| match (&*note, answer) {
            (Note::Pending { topic: about, .. }, _) if **about != *topic => true,
            (Note::Pending { .. }, Some(answer)) => {
                *note = Note::Answer(answer.clone());
                answered = true;
                true
            }
            (Note::Pending { .. }, None) => false,
            (Note::Answer(_), _) => true,
        });
        answered
    }

    /// The next acknowledgement that need not wait, and what it is to carry.
    pub(crate) fn release(&mut self) -> Option<(PacketType, Vec<u8>, Option<Answer>)> {
        let (_, packet_id, _) = self.held.front()?;
        if let Some(Note::Pending { .. }) = self.notes.get(packet_id) {
            return None;
        }
        let (kind, packet_id, packet) = self.held.pop_front()?;
        let answer = match self.notes.remove(&packet_id) {
            Some(Note::Answer(answer)) => Some(answer),
            _ => None,
        };
        Some((kind, packet, answer))
    }

    /// Everything that is held, as it came.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = Vec<u8>> + use<'_> {
        self.notes.clear();
        self.held.drain(..).map(|(_, _, packet)| packet)
    }

    /// Flows that are waited for longer than they may be.
    pub(crate) fn overdue(&self, now: Nanos) -> Vec<Box<str>> {
        let notes = self.notes.values();
        let late = notes.filter_map(|note| match note {
            Note::Pending { topic, until } if *until <= now => Some(topic.clone()),
            _ => None,
        });
        late.collect()
    }

    /// When the next flow is overdue.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let notes = self.notes.values();
        let untils = notes.filter_map(|note| match note {
            Note::Pending { until, .. } => Some(*until),
            Note::Answer(_) => None,
        });
        untils.min()
    }
}
