//! Messages on their way to crowds of clients.

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

/// Messages of one publisher that may wait while none is read from it any more. Further ones are dropped.
pub(crate) const MOST_WAITING: usize = 1024;

/// A message on its way to a crowd.
#[derive(Debug)]
pub(crate) struct FanOut {
    pub(crate) message: Arc<Message>,
    /// What it is called in the mesh, if it has a name.
    pub(crate) name: Option<Number>,
    pub(crate) keeping: Keeping,
    /// The place of the client that it was offered to last.
    pub(crate) after: Place,
    /// Whether its publisher waits for receivers that do not keep up.
    pub(crate) waits: bool,
    pub(crate) receipt: Option<Receipt>,
}

/// What the publisher of a message is told when all have it.
#[derive(Debug)]
pub(crate) struct Receipt {
    pub(crate) conn: ConnId,
    /// Place of its session.
    pub(crate) session: u32,
    pub(crate) packet_id: u16,
    /// About what the message stated.
    pub(crate) answer: Option<Answer>,
}

/// Messages of one publisher to crowds.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) messages: VecDeque<FanOut>,
    /// Connections of the publisher that are not read until all have been given out.
    pub(crate) paused: Vec<ConnId>,
}

/// All messages on their way to crowds, by the number of the publisher's session; 0 is the broker.
#[derive(Debug, Default)]
pub(crate) struct FanOuts {
    pub(crate) queues: HashMap<u64, Queue, RandomState>,
}

impl FanOuts {
    /// Whether messages of a publisher are on their way.
    #[inline]
    pub(crate) fn are_under_way(&self, publisher: u64) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&publisher)
    }
}
