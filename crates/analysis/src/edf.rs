//! The bound of one port that serves by deadline.
//!
//! Non-preemptive earliest deadline first: the frame goes first whose arrival
//! at the port and relative deadline together are earliest, ties in the order
//! of arrival. Let a frame of flow i come within t of the beginning of the
//! busy period of what is not later due than it. At most one frame that is
//! later due had begun: of a flow with a longer deadline, or undeclared. Of
//! flow j those count that come within t + D_i - D_j, for they are due no
//! later, and before the frame begins. Then it is as in the holistic bound:
//!
//! ```text
//! w(t) = B_i + floor(t/T_i) C_i + sum_j min(alpha_j(t + D_i - D_j), alpha_j(w)) C_j
//! HA   = max over 0 <= t < L of  w(t) + C_i - t
//! ```
//!
//! with the length L of the longest busy period of all. Sources: George,
//! Rivierre & Spuri (1996), in the form of WCRT.md section 4 that counts from
//! the nominal release.

use crate::arrivals::{EarlierFrames, Group, Stream};
use crate::offsets::{ITERATIONS, busy_period};
use crate::system::{FULL, StageId, System, UNBOUNDED};

/// Offsets that are looked at; a search that needs more is given up.
const MAX_OFFSETS: usize = 1 << 16;

/// Another flow, seen from the one under test.
struct Rival {
    stream: Stream,
    /// How much longer its deadline is.
    patience: i128,
}

impl Rival {
    /// Its work before a frame that comes at `offset`, of which `window` is
    /// the time until it begins.
    fn work(&self, offset: u64, window: u64) -> u64 {
        let due = i128::from(offset) - self.patience;
        match u64::try_from(due) {
            Ok(due) => self.stream.work(due.min(window)),
            Err(_) if due < 0 => 0,
            Err(_) => self.stream.work(window),
        }
    }

    /// Offsets below `length` at which one more of its frames is due.
    fn offsets(&self, length: u64) -> impl Iterator<Item = u64> + use<> {
        let (period, jitter) = (
            i128::from(self.stream.period),
            i128::from(self.stream.jitter),
        );
        let (patience, length) = (self.patience, i128::from(length));
        // One more comes in windows of k T - J > 0; those are no offsets that
        // are less than 0.
        let first = (jitter / period).max((jitter - patience - 1).div_euclid(period)) + 1;
        let all = (first..).map(move |k| k * period - jitter + patience);
        let all = std::iter::once(patience).chain(all.take_while(move |offset| *offset < length));
        let within = all.filter(move |offset| (0..length).contains(offset));
        within.filter_map(|offset| u64::try_from(offset).ok())
    }
}

/// End of transmission less latest arrival, at most. `None` if no bound is
/// found.
pub(crate) fn bound(system: &System, latest: &[u64], id: StageId) -> Option<u64> {
    let stage = &system.stages[id];
    let own = &system.classes[stage.class];
    let port = &system.ports[stage.port];
    let message = stage.cost.checked_mul(stage.frames)?;
    let mut everything = Group::default();
    everything.reset(0, EarlierFrames::default());
    let mut rivals = Vec::with_capacity(port.stages.len());
    let mut blocking = port.best_effort;
    for other in &port.stages {
        let stage = &system.stages[*other];
        let class = &system.classes[stage.class];
        if latest[*other] == UNBOUNDED {
            return None;
        }
        let work = stage.cost.checked_mul(stage.frames)?;
        let stream = |count: u64| {
            Some(Stream {
                stage: *other,
                work: work.checked_mul(count)?,
                again: 0,
                period: class.period,
                jitter: latest[*other] - stage.earliest,
            })
        };
        everything.add(stream(class.count)?);
        let rivalry = class.count - u64::from(*other == id);
        if rivalry > 0 {
            rivals.push(Rival {
                stream: stream(rivalry)?,
                patience: i128::from(class.deadline) - i128::from(own.deadline),
            });
        }
        if class.deadline > own.deadline {
            blocking = blocking.max(stage.cost);
        }
    }
    if everything.load() >= FULL {
        return None;
    }
    let length = busy_period(system.longest(stage.port), &mut [&mut everything])?;

    let mut offsets = vec![0];
    let releases = (1..).map(|k| own.period.saturating_mul(k));
    offsets.extend(releases.take_while(|t| *t < length).take(MAX_OFFSETS));
    for rival in &rivals {
        let room = MAX_OFFSETS.checked_sub(offsets.len())?;
        offsets.extend(rival.offsets(length).take(room + 1));
    }
    if offsets.len() > MAX_OFFSETS {
        return None;
    }
    offsets.sort_unstable();
    offsets.dedup();

    let rest = message - stage.cost;
    let (mut best, mut start, mut left) = (0, 0_u64, ITERATIONS);
    for t in offsets {
        if length + stage.cost <= best + t {
            break;
        }
        let fixed = blocking + rest + (t / own.period).checked_mul(message)?;
        start = start.max(fixed);
        loop {
            left = left.checked_sub(1)?;
            let work = rivals.iter().map(|rival| rival.work(t, start));
            let next = work.fold(fixed, u64::saturating_add);
            if next <= start {
                break;
            }
            start = next;
        }
        best = best.max((start + stage.cost).saturating_sub(t));
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rival(patience: i128, period: u64, jitter: u64) -> Rival {
        let stream = Stream {
            stage: 0,
            work: 1,
            again: 0,
            period,
            jitter,
        };
        Rival { stream, patience }
    }

    #[test]
    fn offsets_are_where_work_jumps() {
        for (patience, period, jitter) in
            [(0, 10, 0), (7, 10, 3), (-23, 10, 3), (5, 4, 11), (-9, 3, 8)]
        {
            let rival = rival(patience, period, jitter);
            let work = |offset: u64| rival.work(offset, u64::MAX / 2);
            let jumps: Vec<_> = (1..50).filter(|t| work(*t) > work(t - 1)).collect();
            let mut found: Vec<_> = rival.offsets(50).collect();
            found.retain(|t| *t > 0);
            assert_eq!(found, jumps, "{patience} {period} {jitter}");
        }
    }

    #[test]
    fn deadlines_of_any_length_are_no_work() {
        let far = i128::from(u64::MAX);
        assert_eq!(rival(-far, 10, 3).offsets(50).count(), 5);
        assert_eq!(rival(far, 10, 3).offsets(50).count(), 0);
    }
}
