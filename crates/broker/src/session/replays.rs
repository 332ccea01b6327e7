//! Replays: retained messages that are still to be sent for new subscriptions of one session.

use std::collections::VecDeque;

use punctual_codec::QoS;

use super::subscriptions::Subscription;
use crate::retained::lack::Lack;
use crate::retained::{RetainedCursor, RetainedMatch};

/// Cancelled replays are removed once they are more than half of all, and more than this number.
const FEW: usize = 16;

/// Retained messages that are still to be sent for a new subscription.
#[derive(Debug)]
pub(crate) struct Replay {
    /// Number of the replay, ascending within the session.
    serial: u32,
    /// Whether its subscription has ended, or has begun another replay.
    cancelled: bool,
    pub(crate) filter: Box<str>,
    pub(crate) from: RetainedCursor,
    pub(crate) qos: QoS,
    pub(crate) no_local: bool,
    pub(crate) id: u32,
    pub(crate) numbered: bool,
    /// Messages that are fetched and not yet sent.
    pub(crate) ready: VecDeque<RetainedMatch>,
    pub(crate) complete: bool,
    /// Number of the last change of retained messages before the subscription existed. Later
    /// changes are also delivered live.
    pub(crate) began: u64,
    /// The fence that must be passed before more messages are sent.
    pub(crate) fence: u64,
    /// For a neighbour: the retained messages that it lacks.
    pub(crate) lack: Option<Box<Lack>>,
}

/// The replays of a session, in the order in which they are sent. Most sessions have none: then
/// this takes one word.
#[derive(Debug, Default)]
pub(crate) struct Replays(Option<Box<Pending>>);

/// The replays of a session that has at least one; the first is not cancelled.
#[derive(Debug)]
struct Pending {
    /// The replays by serial number.
    queue: VecDeque<Replay>,
    cancelled: usize,
    next: u32,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            cancelled: 0,
            // 0 is the number of a subscription without a replay.
            next: 1,
        }
    }
}

impl Replays {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn first(&self) -> Option<&Replay> {
        self.0.as_ref()?.queue.front()
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut Replay> {
        self.0.as_mut()?.queue.front_mut()
    }

    pub(crate) fn pop_front(&mut self) -> Option<Replay> {
        let first = self.0.as_mut()?.queue.pop_front();
        self.tidy();
        first
    }

    /// Begins to send all retained messages that a subscription matches, once a fence is passed.
    /// This replaces the subscription's current replay. `began` as in [`Replay::began`].
    pub(crate) fn begin(&mut self, subscription: &mut Subscription, began: u64, fence: u64) {
        self.cancel(subscription);
        let replay = Replay {
            serial: 0,
            cancelled: false,
            filter: subscription.filter.clone(),
            from: RetainedCursor::default(),
            qos: subscription.options.qos,
            no_local: subscription.options.no_local,
            id: subscription.id,
            numbered: subscription.numbered,
            ready: VecDeque::new(),
            complete: false,
            began,
            fence,
            lack: None,
        };
        subscription.replay = self.push(replay);
    }

    /// Begins to send a neighbour the retained messages that it lacks, in place of all its current
    /// replays.
    pub(crate) fn begin_for_neighbour(&mut self, lack: Lack) {
        self.0 = None;
        self.push(Replay {
            serial: 0,
            cancelled: false,
            filter: Box::from("#"),
            from: RetainedCursor::default(),
            qos: QoS::ExactlyOnce,
            no_local: false,
            id: 0,
            numbered: true,
            ready: VecDeque::new(),
            complete: false,
            began: u64::MAX,
            fence: 0,
            lack: Some(Box::new(lack)),
        });
    }

    fn push(&mut self, mut replay: Replay) -> u32 {
        let pending = self.0.get_or_insert_default();
        let serial = pending.next;
        replay.serial = serial;
        pending.next += 1;
        pending.queue.push_back(replay);
        serial
    }

    /// Whether messages are still to be sent for a subscription.
    pub(crate) fn has(&self, subscription: &Subscription) -> bool {
        self.0
            .as_ref()
            .is_some_and(|pending| pending.place(subscription).is_some())
    }

    /// Cancels the replay of a subscription.
    pub(crate) fn cancel(&mut self, subscription: &Subscription) {
        if let Some(pending) = &mut self.0
            && let Some(place) = pending.place(subscription)
        {
            pending.queue[place].cancelled = true;
            pending.cancelled += 1;
            if pending.cancelled > FEW.max(pending.queue.len() / 2) {
                pending.queue.retain(|replay| !replay.cancelled);
                pending.cancelled = 0;
            }
            self.tidy();
        }
    }

    /// Cancels all replays.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    fn tidy(&mut self) {
        let Some(pending) = &mut self.0 else {
            return;
        };
        while pending
            .queue
            .pop_front_if(|first| first.cancelled)
            .is_some()
        {
            pending.cancelled -= 1;
        }
        if pending.queue.is_empty() {
            self.0 = None;
        }
    }
}

impl Pending {
    /// The position of a subscription's replay that is not cancelled. Serial numbers start again
    /// once there was no replay, so the filter is compared, too.
    fn place(&self, subscription: &Subscription) -> Option<usize> {
        let serial = |it: &Replay| it.serial;
        let place = self
            .queue
            .binary_search_by_key(&subscription.replay, serial);
        let place = place.ok()?;
        let there = &self.queue[place];
        (!there.cancelled && there.filter == subscription.filter).then_some(place)
    }
}
