//! Sampling of the time that messages spend in the broker: from the arrival of a message to the
//! moment at which its last byte was handed to a receiver's socket.
//!
//! Messages of admitted flows are all timed ([`crate::FlowSight`]). Of all messages, one is timed
//! for every [`EVERY`] reads of connections, one at a time on each shard, so that the others cost
//! only a counter. A time is never less than the message took: arrival is when its socket was last
//! known to be empty, and later output for the same receiver may be written before the time is
//! taken.

use crate::Nanos;
use crate::base::connection::ConnId;
use crate::egress::Class;

/// Number of reads of connections per timed one.
const EVERY: u32 = 64;

/// A sample that takes longer is abandoned for the next: its receiver is gone, or does not read.
const PATIENCE: Nanos = Nanos::from_secs(1);

/// Takes samples, on one shard.
#[derive(Debug, Default)]
pub(crate) struct Sampling {
    reads: u32,
    /// The arrival time of the bytes being read, until one of their messages has been given to a
    /// receiver.
    armed: Option<Nanos>,
    sample: Option<Sample>,
}

/// A message that is being timed.
#[derive(Debug)]
struct Sample {
    receiver: ConnId,
    class: Class,
    arrived: Nanos,
    /// Number of bytes up to the last byte of the message; `None` until its receiver is written to.
    left: Option<usize>,
}

impl Sampling {
    /// Notes the read of a connection whose bytes `arrived` at the given time.
    #[inline]
    pub(crate) fn read(&mut self, arrived: Nanos, now: Nanos) {
        self.reads += 1;
        if self.reads >= EVERY {
            self.reads = 0;
            let is_free = |sample: &Sample| now >= sample.arrived + PATIENCE;
            self.armed = self.sample.as_ref().is_none_or(is_free).then_some(arrived);
        }
    }

    /// Notes the end of the read.
    #[inline]
    pub(crate) fn disarm(&mut self) {
        self.armed = None;
    }

    /// Notes that a message was put into the buffers of a receiver.
    #[inline]
    pub(crate) fn given(&mut self, receiver: ConnId, class: Class) {
        if self.armed.is_some() {
            self.begin(receiver, class);
        }
    }

    /// Begins to time the given message.
    #[cold]
    fn begin(&mut self, receiver: ConnId, class: Class) {
        self.sample = self.armed.take().map(|arrived| Sample {
            receiver,
            class,
            arrived,
            left: None,
        });
    }

    /// Notes that a receiver with that many waiting bytes is about to be written to.
    #[inline]
    pub(crate) fn about_to_write(&mut self, receiver: ConnId, waiting: impl FnOnce() -> usize) {
        if let Some(sample) = &mut self.sample
            && sample.receiver == receiver
            && sample.left.is_none()
        {
            sample.left = Some(waiting());
        }
    }

    /// Notes that bytes were written to a receiver; returns the time of the message, once it is
    /// among them.
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
        // Later output does not count.
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
