//! The deadline of a shard's thread as a timer of the kernel (timerfd).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Token};
use punctual_broker::Nanos;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Token of the timer's events.
pub(crate) const ALARM: Token = Token(usize::MAX - 1);

/// A timer in the kernel that stays set while the thread sleeps and wakes many
/// times. A timeout given to `epoll_wait` would be set and cancelled each time,
/// which costs a microsecond or more on a virtual machine; and it is exact to
/// the nanosecond, where that one is to the millisecond.
pub(crate) struct Alarm {
    timer: OwnedFd,
    set: Nanos,
}

impl Alarm {
    pub(crate) fn new(registry: &mio::Registry) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), ALARM, Interest::READABLE)?;
        Ok(Self {
            timer,
            set: Nanos::MAX,
        })
    }

    /// Wakes the thread at `at`, or earlier: a later time waits until an
    /// earlier one has passed.
    pub(crate) fn set(&mut self, at: Nanos, now: Nanos) {
        if at >= self.set && self.set > now {
            return;
        }
        self.set = at;
        let value = if at == Nanos::MAX {
            Timespec::default()
        } else {
            // At least a nanosecond: zero would switch it off.
            let delay = (at - now).0.max(1);
            Timespec {
                tv_sec: (delay / 1_000_000_000) as i64,
                tv_nsec: (delay % 1_000_000_000) as i64,
            }
        };
        let value = Itimerspec {
            it_interval: Timespec::default(),
            it_value: value,
        };
        // Valid values on a valid timer cannot be refused.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
    }
}
