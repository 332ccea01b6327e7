//! How long messages take through the broker, by samples: from when one arrived to when its last
//! byte was handed to a receiver's socket.
//!
//! Messages of admitted flows are all timed ([`crate::FlowSight`]). Of all messages one is timed for
//! some reads of connections ([`EVERY`]), one at a time on each shard, so that the others cost nothing
//! but a counter. A time is never less than what the message took: arrival is when its socket was last
//! known to be empty, and what came after it for the same receiver may be written before the time is
//! taken.

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::egress::Class;

/// Reads of connections for each that is timed.
const EVERY: u32 = 64;

/// A sample that takes longer is given up for the next: its receiver is gone, or does not read.
const PATIENCE: Nanos = Nanos::from_secs(1);

/// Takes samples, on one shard.
#[derive(Debug, Default)]
pub(crate) struct Sampling {
    reads: u32,
    /// When what is read now arrived, until a message of it has been given to a receiver.
    armed: Option<Nanos>,
    sample: Option<Sample>,
}

/// A message that is being timed.
#[derive(Debug)]
struct Sample {
    receiver: ConnId,
    class: Class,
    arrived: Nanos,
    /// Bytes up to its last one; `None` until the first are about to be written.
    left: Option<usize>,
}

impl Sampling {
    /// A connection is read of which something `arrived`.
    #[inline]
    pub(crate) fn read(&mut self, arrived: Nanos, now: Nanos) {
        self.reads += 1;
        if self.reads >= EVERY {
            self.reads = 0;
            let is_free = |sample: &Sample| now >= sample.arrived + PATIENCE;
            self.armed = self.sample.as_ref().is_none_or(is_free).then_some(arrived);
        }
    }

    /// Nothing more is read of it.
    #[inline]
    pub(crate) fn disarm(&mut self) {
        self.armed = None;
    }

    /// A message was put into the buffers of a receiver.
    #[inline]
    pub(crate) fn given(&mut self, receiver: ConnId, class: Class) {
        if self.armed.is_some() {
            self.begin(receiver, class);
        }
    }

    /// The message that was given now is timed.
    #[cold]
    fn begin(&mut self, receiver: ConnId, class: Class) {
        self.sample = self.armed.take().map(|arrived| Sample {
            receiver,
            class,
            arrived,
            left: None,
        });
    }

    /// A receiver, with so many bytes in its buffers, is about to be written to.
    #[inline]
    pub(crate) fn about_to_write(&mut self, receiver: ConnId, waiting: impl FnOnce() -> usize) {
        if let Some(sample) = &mut self.sample
            && sample.receiver == receiver
            && sample.left.is_none()
        {
            sample.left = Some(waiting());
        }
    }

    /// So many bytes were written to a receiver: how long the message took, once it is among them.
    #[inline]
    pub(crate) fn written(
        &mut self,
        receiver: ConnId,
        bytes: usize,
        now: Nanos,
    ) -> Option<(Class, Nanos)> {
        let sample = self.sample.as_mut()?;
        if sample.receiver != receiver {
            return None;
        }
        let left = sample.left.as_mut()?;
        *left = left.saturating_sub(bytes);
        if *left > 0 {
            return None;
        }
        let Sample { class, arrived, .. } = self.sample.take()?;
        Some((class, now - arrived))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnId = ConnId {
        slot: 1,
        generation: 1,
    };
    const B: ConnId = ConnId {
        slot: 2,
        generation: 1,
    };

    /// Reads until one is to be timed.
    fn armed(sampling: &mut Sampling, arrived: Nanos) {
        for _ in 0..EVERY {
            sampling.disarm();
            sampling.read(arrived, arrived);
        }
    }

    #[test]
    fn a_message_is_timed_from_its_arrival_to_its_last_byte() {
        let mut sampling = Sampling::default();
        armed(&mut sampling, Nanos(100));
        sampling.given(A, Class::Bulk);
        sampling.given(B, Class::Normal);
        sampling.about_to_write(B, || 7);
        assert_eq!(sampling.written(B, 7, Nanos(200)), None);
        sampling.about_to_write(A, || 10);
        assert_eq!(sampling.written(A, 6, Nanos(300)), None);
        // What comes later does not count.
        sampling.about_to_write(A, || 1000);
        let timed = sampling.written(A, 6, Nanos(400));
        assert_eq!(timed, Some((Class::Bulk, Nanos(300))));
        assert_eq!(sampling.written(A, 6, Nanos(500)), None);
    }

    #[test]
    fn reads_without_messages_leave_nothing() {
        let mut sampling = Sampling::default();
        armed(&mut sampling, Nanos(100));
        sampling.disarm();
        sampling.given(A, Class::Normal);
        sampling.about_to_write(A, || 1);
        assert_eq!(sampling.written(A, 1, Nanos(200)), None);
    }

    #[test]
    fn a_receiver_that_does_not_read_holds_up_no_samples_for_long() {
        let mut sampling = Sampling::default();
        armed(&mut sampling, Nanos(100));
        sampling.given(A, Class::Normal);
        armed(&mut sampling, Nanos(200));
        sampling.given(B, Class::Normal);
        sampling.about_to_write(B, || 1);
        assert_eq!(sampling.written(B, 1, Nanos(300)), None);
        armed(&mut sampling, Nanos(200) + PATIENCE);
        sampling.given(B, Class::Normal);
        sampling.about_to_write(B, || 1);
        assert!(sampling.written(B, 1, Nanos(300) + PATIENCE).is_some());
    }
}
