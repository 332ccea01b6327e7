//! Behaviours drawn at random: any seed is one, and the same for ever.

use super::engine::{Behaviour, Release};
use super::layout::Layout;
use punctual_model::Rng;

/// The parameters with which random behaviours are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chances {
    /// Messages have nominal releases from 0 up to this time, ns.
    pub duration: u64,
    /// Percentage of messages whose nominal release is more than a period after the one before.
    pub gaps: u64,
    /// Percentage of jitters, delays and residuals that are the least or the greatest possible; the
    /// others are drawn from all values between.
    pub extremes: u64,
}

impl Default for Chances {
    fn default() -> Self {
        Self {
            duration: 1_000_000_000,
            gaps: 5,
            extremes: 70,
        }
    }
}

/// A random behaviour of a network. The first release of each flow is anywhere in its first period.
#[derive(Debug)]
pub struct Drawn<'a> {
    layout: &'a Layout,
    chances: Chances,
    rng: Rng,
    /// For each flow: its next nominal release and the time when its last message was queued, ns.
    flows: Vec<(u64, u64)>,
    ranks: Vec<u32>,
}

impl<'a> Drawn<'a> {
    /// Creates the behaviour that a seed determines.
    pub fn new(layout: &'a Layout, seed: u64, chances: Chances) -> Self {
        let mut rng = Rng::new(seed);
        let flows = layout.flows.iter();
        Self {
            layout,
            chances,
            flows: flows.map(|flow| (rng.below(flow.period), 0)).collect(),
            ranks: layout
                .flows
                .iter()
                .map(|_| rng.below(1 << 16) as u32)
                .collect(),
            rng,
        }
    }

    #[inline]
    fn choose(&mut self, low: u64, high: u64) -> u64 {
        if low == high {
            return low;
        }
        let draw = self.rng.any();
        // The upper half says how, the lower half which.
        if (draw >> 32) % 100 < self.chances.extremes {
            return low + (high - low) * (draw & 1);
        }
        self.rng.within(low..=high)
    }
}

impl Behaviour for Drawn<'_> {
    #[inline]
    fn release(&mut self, flow: usize) -> Option<Release> {
        let row = &self.layout.flows[flow];
        let (nominal, before) = self.flows[flow];
        if nominal >= self.chances.duration {
            return None;
        }
        let queued = (nominal + self.choose(0, row.jitter)).max(before);
        let gap = if self.rng.chance(self.chances.gaps) {
            self.rng.below(row.period)
        } else {
            0
        };
        self.flows[flow] = (nominal + row.period + gap, queued);
        Some(Release { nominal, queued })
    }

    #[inline]
    fn delay(&mut self, _hop: usize, _message: u32, (least, most): (u64, u64)) -> u64 {
        self.choose(least, most)
    }

    #[inline]
    fn residual(&mut self, _link: usize, best_effort: u64) -> u64 {
        self.choose(0, best_effort.saturating_sub(1))
    }

    #[inline]
    fn rank(&self, flow: usize) -> u32 {
        self.ranks[flow]
    }

    #[inline]
    fn rotation(&self, flow: usize) -> u32 {
        self.ranks[flow]
    }
}
