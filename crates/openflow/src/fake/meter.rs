//! Meters in virtual time: a token bucket per band.
//!
//! A packet takes tokens from every band that has enough; of the bands that have not, the one
//! with the highest rate decides, as in Open vSwitch's userspace datapath (lib/dpif-netdev.c).
//! Without [`MeterFlags::BURST`] a bucket holds what one second brings.

use punctual_model::Nanos;

use super::frame::{Layers, Tags};
use crate::multipart::{BandStats, MeterConfig, MeterStats};
use crate::{FieldKind, MeterBand, MeterFlags, MeterId, MeterMod, OxmField};

const NANOS: u128 = 1_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct Meter {
    flags: MeterFlags,
    bands: Vec<Band>,
    created: Nanos,
    filled: Nanos,
    packets: u64,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct Band {
    band: MeterBand,
    /// In units of the cost (bits or packets) times nanoseconds.
    tokens: u128,
    count: BandStats,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Drop,
    /// Raise the drop precedence by so much.
    Remark(u8),
}

impl Meter {
    pub(super) fn new(change: &MeterMod, now: Nanos) -> Self {
        let mut meter = Self {
            flags: change.flags,
            bands: Vec::new(),
            created: now,
            filled: now,
            packets: 0,
            bytes: 0,
        };
        for band in &change.bands {
            meter.bands.push(Band {
                tokens: meter.capacity(band),
                band: band.clone(),
                count: BandStats {
                    packets: 0,
                    bytes: 0,
                },
            });
        }
        meter
    }

    /// What one unit of a rate or a burst is in costs: a kilobit or a packet.
    fn unit(&self) -> u128 {
        match self.flags.contains(MeterFlags::PKTPS) {
            true => 1,
            false => 1000,
        }
    }

    fn capacity(&self, band: &MeterBand) -> u128 {
        let (rate, burst) = band.limits();
        let most = match self.flags.contains(MeterFlags::BURST) {
            true => burst,
            false => rate,
        };
        u128::from(most) * self.unit() * NANOS
    }

    /// Takes a packet of `bytes` bytes into account.
    pub(super) fn pass(&mut self, bytes: usize, now: Nanos) -> Verdict {
        let time = u128::from((now - self.filled).0);
        self.filled = self.filled.max(now);
        self.packets += 1;
        self.bytes += bytes as u64;
        let unit = self.unit();
        let cost = match self.flags.contains(MeterFlags::PKTPS) {
            true => NANOS,
            false => bytes as u128 * 8 * NANOS,
        };
        let mut exceeded: Option<usize> = None;
        for index in 0..self.bands.len() {
            let Some(capacity) = self.bands.get(index).map(|band| self.capacity(&band.band)) else {
                continue;
            };
            let highest = exceeded
                .and_then(|band| self.bands.get(band))
                .map_or(0, |band| band.band.limits().0);
            let Some(band) = self.bands.get_mut(index) else {
                continue;
            };
            let rate = band.band.limits().0;
            let fresh = u128::from(rate) * unit * time;
            band.tokens = band.tokens.saturating_add(fresh).min(capacity);
            match band.tokens.checked_sub(cost) {
                Some(rest) => band.tokens = rest,
                None if rate > highest => exceeded = Some(index),
                None => {}
            }
        }
        let Some(band) = exceeded.and_then(|index| self.bands.get_mut(index)) else {
            return Verdict::Pass;
        };
        band.count.packets += 1;
        band.count.bytes += bytes as u64;
        match band.band {
            MeterBand::DscpRemark { levels, .. } => Verdict::Remark(levels),
            _ => Verdict::Drop,
        }
    }

    pub(super) fn stats(&self, meter: MeterId, flows: u32, now: Nanos) -> MeterStats {
        MeterStats {
            meter,
            flows,
            packets: self.packets,
            bytes: self.bytes,
            duration: (now - self.created).into(),
            bands: self.bands.iter().map(|band| band.count).collect(),
        }
    }

    pub(super) fn config(&self, meter: MeterId) -> MeterConfig {
        MeterConfig {
            flags: self.flags,
            meter,
            bands: self.bands.iter().map(|band| band.band.clone()).collect(),
        }
    }
}

/// Raises the drop precedence of assured forwarding (RFC 2597) by `levels`, to 3 at most; other
/// classes have none.
pub(super) fn remark(frame: &mut [u8], tags: Tags, levels: u8) {
    let Some(layers) = Layers::behind(frame, tags) else {
        return;
    };
    let Some(dscp) = layers
        .read(frame, FieldKind::IpDscp)
        .and_then(|value| value.first().copied())
    else {
        return;
    };
    let (class, precedence) = (dscp >> 3, dscp >> 1 & 3);
    if !(1..=4).contains(&class) || precedence == 0 || dscp & 1 == 1 {
        return;
    }
    let precedence = precedence.saturating_add(levels).min(3);
    let raised = class << 3 | precedence << 1;
    layers.write(frame, &OxmField::IpDscp(raised));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::example;

    fn at(micros: u64) -> Nanos {
        Nanos(micros * 1000)
    }

    #[test]
    fn what_is_above_the_rate_is_dropped() {
        // 8 Mbit/s, at once 2 packets of 1000 bytes; a packet is due every millisecond.
        let mut meter = Meter::new(&MeterMod::drop_above(MeterId(1), 8_000, 16), at(0));
        let passed = |meter: &mut Meter, from: u64, every: u64, count: u64| {
            (0..count)
                .filter(|n| meter.pass(1000, at(from + n * every)) == Verdict::Pass)
                .count()
        };
        assert_eq!(passed(&mut meter, 0, 0, 5), 2);
        assert_eq!(passed(&mut meter, 1_000, 1_000, 50), 50);
        assert_eq!(passed(&mut meter, 51_000, 500, 100), 50);
        let stats = meter.stats(MeterId(1), 3, at(200_000));
        assert_eq!((stats.packets, stats.bytes), (155, 155_000));
        assert_eq!(stats.bands[0].packets, 53);
        assert_eq!(stats.duration.nanos, 200_000_000);
    }

    #[test]
    fn without_a_burst_a_second_is_the_burst() {
        let mut change = MeterMod::drop_above(MeterId(1), 10, 0);
        change.flags = MeterFlags::PKTPS;
        let mut meter = Meter::new(&change, at(0));
        let passed = (0..30).filter(|_| meter.pass(64, at(0)) == Verdict::Pass);
        assert_eq!(passed.count(), 10);
    }

    #[test]
    fn the_highest_rate_that_is_exceeded_decides() {
        let mut change = MeterMod::drop_above(MeterId(1), 16, 16);
        let (rate, burst, levels) = (8, 8, 1);
        change.bands.push(MeterBand::DscpRemark {
            rate,
            burst,
            levels,
        });
        let mut meter = Meter::new(&change, at(0));
        let verdicts = [(); 3].map(|()| meter.pass(1000, at(0)));
        assert_eq!(verdicts, [Verdict::Pass, Verdict::Remark(1), Verdict::Drop]);
    }

    #[test]
    fn only_assured_forwarding_has_a_precedence() {
        let marked = |dscp: u8, levels| {
            let mut frame = example::v4(crate::IP_UDP, b"x");
            Layers::of(&frame)
                .unwrap()
                .write(&mut frame, &OxmField::IpDscp(dscp));
            let tags = Tags::of(&frame);
            remark(&mut frame, tags, levels);
            frame[15] >> 2
        };
        assert_eq!(marked(10, 1), 12);
        assert_eq!(marked(34, 9), 38);
        assert_eq!(marked(46, 1), 46);
        assert_eq!(marked(0, 1), 0);
        assert_eq!(marked(40, 1), 40);
    }
}
