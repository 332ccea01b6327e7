//! The choice of the lane that sends next: the most urgent, with a minimum share for the others.
//!
//! Lane 0 comes before lane 1, lane 1 before lane 2, and so on. A lane with a configured share that
//! has a packet to send earns credit for bytes that others send meanwhile, and goes first once its
//! credit covers its next packet. Lane 0 is shielded: such a packet is sent only between two
//! packets of lane 0, so a message that finds lane 0 empty waits for at most the packet being sent.
//!
//! The resulting guarantee, for `W` bytes sent while a lane has packets to send, packets of at most
//! `L` bytes, and shares that sum up to at most a half: lane i from 1 gets at least `share_i W -
//! 3L`, and lane 0 at least `(1 - sum of shares) W - 3L`. So no lane starves.

use super::Class;

/// Minimum of the maximum credit, in bytes, that a lane may save up: a frame.
const MIN_CAP: i64 = 1500;

/// Minimum shares of the bytes that a receiver is sent, in per mille, by class; together at most
/// 500. The share of [`Class::RealTime`] is 0, or [`Shares::ALL`]: then no other lane sends while
/// lane 0 has a packet, and lane 0 has to be bounded by other means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares(pub [u16; 4]);

impl Shares {
    /// The share of a lane that gets all bytes.
    pub const ALL: u16 = 1000;
}

impl Default for Shares {
    fn default() -> Self {
        Self([0, 100, 50, 10])
    }
}

/// Size in bytes of the next packet of each lane; `None` for an empty lane.
pub type Heads = [Option<usize>; 4];

/// The credits of the lanes, in thousandths of bytes. Each sender that serves several lanes in
/// turn, such as a connection or a paced listener, keeps one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Credits {
    earned: [i64; 4],
    /// Bytes that may be sent before the next packet of lane 0 that waits.
    before_realtime: i64,
}

impl Credits {
    /// The lane that sends its next packet; `None` if all are empty.
    #[inline]
    pub fn pick(&mut self, shares: &Shares, heads: &Heads) -> Option<Class> {
        let first = heads.iter().position(Option::is_some)?;
        if first != 0 {
            self.lane_0_is_empty();
        }
        let mut chosen = first;
        let mut most = i64::MIN;
        for (lane, size) in heads.iter().enumerate().skip(first.max(1)) {
            let Some(size) = *size else { continue };
            let earned = self.earned[lane];
            let entitled = shares.0[lane] > 0 && lane != first && earned >= 1000 * size as i64;
            let shielded = first == 0 && (self.before_realtime <= 0 || shares.0[0] == Shares::ALL);
            if entitled && !shielded && earned > most {
                (chosen, most) = (lane, earned);
            }
        }
        Some(Class::ALL[chosen])
    }

    /// Notes that lane 0 is empty: the next message of lane 0 goes first.
    #[inline]
    pub(crate) fn lane_0_is_empty(&mut self) {
        self.before_realtime = 0;
    }

    /// As [`Self::sent`], for the rest of a packet that was begun before. A packet of lane 0 in two
    /// parts lets another lane go once, not twice.
    pub(crate) fn sent_rest(&mut self, shares: &Shares, heads: &Heads, lane: Class, bytes: usize) {
        let before = self.before_realtime;
        self.sent(shares, heads, lane, bytes);
        self.before_realtime = self.before_realtime.min(before);
    }

    /// Notes that `lane` was sent a packet of `bytes` while those in `heads`
    /// had something to send.
    #[inline]
    pub fn sent(&mut self, shares: &Shares, heads: &Heads, lane: Class, bytes: usize) {
        let bytes = bytes as i64;
        for (other, head) in heads.iter().enumerate().skip(1) {
            let Some(head) = head else {
                self.earned[other] = 0;
                continue;
            };
            if other == lane as usize {
                continue;
            }
            let cap = 1000 * MIN_CAP.max(*head as i64).max(bytes);
            let before = self.earned[other];
            let earned = before + bytes * i64::from(shares.0[other]);
            self.earned[other] = earned.min(cap.max(before));
        }
        if lane == Class::RealTime {
            self.before_realtime = bytes.max(MIN_CAP);
        } else {
            let own = &mut self.earned[lane as usize];
            let share = i64::from(shares.0[lane as usize]);
            *own = (*own - (1000 - share) * bytes).max(0);
            self.before_realtime -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sends until `total` bytes are sent, every lane in `sizes` always having a packet; returns
    /// the bytes of each lane.
    fn run(shares: &Shares, sizes: [Vec<usize>; 4], total: usize) -> [usize; 4] {
        let mut credits = Credits::default();
        let mut sent = [0; 4];
        let mut at = [0; 4];
        while sent.iter().sum::<usize>() < total {
            let heads: Heads = std::array::from_fn(|lane| {
                (!sizes[lane].is_empty()).then(|| sizes[lane][at[lane] % sizes[lane].len()])
            });
            let lane = credits.pick(shares, &heads).unwrap();
            let bytes = heads[lane as usize].unwrap();
            credits.sent(shares, &heads, lane, bytes);
            sent[lane as usize] += bytes;
            at[lane as usize] += 1;
        }
        sent
    }

    fn sizes() -> impl Strategy<Value = [Vec<usize>; 4]> {
        let lane = || proptest::collection::vec(2..70_000usize, 0..6);
        let small = || proptest::collection::vec(2..200usize, 0..6);
        let any = move || prop_oneof![lane(), small()];
        [any(), any(), any(), any()]
    }

    proptest! {
        /// Whatever the sizes, lanes that always have a packet get their shares, and lane 0 all but
        /// the others' shares.
        #[test]
        fn everybody_gets_the_share(
            sizes in sizes(),
            shares in [0..1u16, 0..167u16, 0..167u16, 0..167u16],
            total in 100_000..3_000_000usize,
        ) {
            prop_assume!(sizes.iter().any(|lane| !lane.is_empty()));
            let shares = Shares(shares);
            let largest = *sizes.iter().flatten().max().unwrap();
            let largest = largest.max(MIN_CAP as usize);
            let sent = run(&shares, sizes.clone(), total);
            let all: usize = sent.iter().sum();
            let others: usize = (1..4).map(|lane| usize::from(shares.0[lane])).sum();
            for lane in 1..4 {
                if !sizes[lane].is_empty() {
                    let share = all * usize::from(shares.0[lane]) / 1000;
                    prop_assert!(sent[lane] + 3 * largest >= share, "lane {lane}: {sent:?}");
                }
            }
            if !sizes[0].is_empty() {
                let least = all * (1000 - others) / 1000;
                prop_assert!(sent[0] + 3 * largest >= least, "{sent:?} {least}");
            }
        }

        /// A message that finds lane 0 empty is next, whatever credit the others have.
        #[test]
        fn an_arrival_at_an_empty_lane_0_is_next(
            history in proptest::collection::vec((1..4usize, 1..5000usize, any::<bool>()), 1..200),
        ) {
            let shares = Shares([0, 300, 300, 300]);
            let mut credits = Credits::default();
            for (lane, size, realtime) in history {
                let mut heads = [None, Some(size), Some(size), Some(size)];
                let _ = credits.pick(&shares, &heads);
                credits.sent(&shares, &heads, Class::ALL[lane], size);
                if realtime {
                    heads = [None; 4];
                    heads[lane] = Some(size);
                    let _ = credits.pick(&shares, &heads);
                    heads[0] = Some(size);
                    prop_assert_eq!(credits.pick(&shares, &heads), Some(Class::RealTime));
                    credits.sent(&shares, &heads, Class::RealTime, size);
                }
            }
        }
    }

    #[test]
    fn without_shares_the_order_is_strict() {
        let sent = run(
            &Shares([0; 4]),
            [vec![], vec![90], vec![80], vec![70]],
            10_000,
        );
        assert_eq!((sent[2], sent[3]), (0, 0));
    }
}
