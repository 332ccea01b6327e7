//! Messages that are being delivered to crowds of clients.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use punctual_model::Answer;

use crate::base::connection::ConnId;
use crate::index::members::Place;
use crate::journal::keeping::Keeping;
use crate::message::Message;
use crate::sequence::Number;

/// Maximum number of waiting messages of one publisher whose connection is gone. Further ones are
/// dropped.
pub(crate) const MOST_WAITING: usize = 1024;

/// A message that is being delivered to a crowd.
#[derive(Debug)]
pub(crate) struct FanOut {
    pub(crate) message: Arc<Message>,
    /// The name in the mesh, if there is one.
    pub(crate) name: Option<Number>,
    pub(crate) keeping: Keeping,
    /// The place of the client to which it was offered last.
    pub(crate) after: Place,
    /// Whether its publisher is paused for receivers that do not keep up.
    pub(crate) waits: bool,
    pub(crate) receipt: Option<Receipt>,
}

/// The data for acknowledging a message to its publisher when all clients have it.
#[derive(Debug)]
pub(crate) struct Receipt {
    pub(crate) conn: ConnId,
    /// Slot of the publisher's session.
    pub(crate) session: u32,
    pub(crate) packet_id: u16,
    /// The answer about the requirements that the message stated.
    pub(crate) answer: Option<Answer>,
}

/// Messages of one publisher to crowds.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) messages: VecDeque<FanOut>,
    /// Connections of the publisher that are not read until all messages have been delivered.
    pub(crate) paused: Vec<ConnId>,
}

/// All messages that are being delivered to crowds, by the number of the publisher's session; 0 is
/// the broker.
#[derive(Debug, Default)]
pub(crate) struct FanOuts {
    pub(crate) queues: HashMap<u64, Queue, RandomState>,
}

impl FanOuts {
    /// Whether messages of a publisher are being delivered to crowds.
    #[inline]
    pub(crate) fn are_under_way(&self, publisher: u64) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&publisher)
    }
}
