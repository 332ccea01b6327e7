//! From what is stated to numbers: period, deadline, priority and frames.

use std::time::Duration;

use punctual_model::network::MAX_TIME;
use punctual_model::wire::{Carriage, Frames, frames, publish_bytes};
use punctual_model::{Grant, Requirements, deadline_monotonic};

use crate::request::Publication;
use crate::settings::Settings;

/// Millionths.
const PPM: u128 = 1_000_000;

/// What a flow asks of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Least time between two messages as the network sees it, ns.
    pub(crate) period_ns: u64,
    /// As declared, for policing.
    pub(crate) declared_period_ns: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) deadline_ns: u64,
    pub(crate) priority: u8,
    /// Bytes of the largest PUBLISH.
    pub(crate) packet: u64,
    /// Its bytes on the wire are given by its transmission time, if stated.
    pub(crate) wire_bytes: Option<u64>,
}

/// Sizes of what is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) topic: usize,
    pub(crate) properties: u32,
    /// The largest payload seen.
    pub(crate) payload: u32,
}

impl Sizes {
    /// Those of a publication, and the largest of a flow that is known with
    /// what it declared.
    pub(crate) fn of(publication: &Publication<'_>, known: Option<(Self, Option<u32>)>) -> Self {
        let mut sizes = Self {
            topic: publication.topic.len(),
            properties: publication.properties,
            payload: publication.payload,
        };
        if let Some((known, declared)) = known {
            sizes.properties = sizes.properties.max(known.properties);
            if declared.is_none() {
                sizes.payload = sizes.payload.max(known.payload);
            }
        }
        sizes
    }
}

impl Demand {
    /// What the requirements say of messages of these sizes.
    ///
    /// # Errors
    /// What is missing or contradicts the message, in plain words.
    pub(crate) fn new(
        requirements: &Requirements,
        sizes: Sizes,
        settings: &Settings,
    ) -> Result<Self, String> {
        if let Some(size) = requirements.size
            && sizes.payload > size
        {
            return Err(format!(
                "the message has {} bytes and rt-size says {size}; state the largest",
                sizes.payload
            ));
        }
        let payload = requirements.size.unwrap_or(sizes.payload);
        let packet = publish_bytes(sizes.topic, sizes.properties as usize, payload.into());
        let wire_bytes = requirements
            .transmission_time
            .map(|time| bytes_in(time, settings.reference_rate));
        let bits = u128::from(packet) * 8 * 1_000_000_000;
        let declared = match (requirements.period, requirements.bandwidth) {
            (Some(period), _) => within(period, "rt-period")?,
            (None, Some(bandwidth)) => {
                let nanos = bits / u128::from(bandwidth.max(1));
                u64::try_from(nanos).unwrap_or(MAX_TIME).clamp(1, MAX_TIME)
            }
            (None, None) => {
                return Err(
                    "rt-period is missing (or rt-bandwidth): messages that may come at \
                            any rate have no bound"
                        .into(),
                );
            }
        };
        let deadline_ns = match requirements.deadline {
            Some(deadline) => within(deadline, "rt-deadline")?,
            None => declared,
        };
        let shorter = PPM.saturating_sub(settings.clock_error_ppm.into());
        let period_ns = u64::try_from(u128::from(declared) * shorter / PPM).unwrap_or(declared);
        let (least, most) = settings.priorities;
        Ok(Self {
            period_ns: period_ns.max(1),
            declared_period_ns: declared,
            jitter_ns: match requirements.jitter {
                Some(jitter) => within(jitter, "rt-jitter")?,
                None => 0,
            },
            deadline_ns,
            priority: requirements
                .priority
                .unwrap_or_else(|| deadline_monotonic(deadline_ns).clamp(least, most.max(least))),
            packet,
            wire_bytes,
        })
    }

    /// How messages are carried that have this priority and may come so much too early.
    pub(crate) fn grant(
        &self,
        requirements: &Requirements,
        priority: u8,
        tolerance_ns: u64,
    ) -> Grant {
        Grant {
            priority,
            period_ns: self.declared_period_ns,
            tolerance_ns,
            bandwidth: requirements.bandwidth,
            max_payload: requirements.size,
            max_packet: u32::try_from(self.packet).unwrap_or(u32::MAX),
        }
    }

    /// Bits per second on the wire with messages of these frames.
    pub(crate) fn bandwidth(&self, message: Frames) -> u64 {
        let bits = u128::from(message.bytes) * u128::from(message.count) * 8_000_000_000;
        let period = u128::from(self.declared_period_ns.max(1));
        u64::try_from(bits.div_ceil(period)).unwrap_or(u64::MAX)
    }

    /// The frames of a message, carried in any of these ways.
    pub(crate) fn frames(&self, carriages: impl Iterator<Item = Carriage>, mtu: u32) -> Frames {
        let least = Frames { count: 1, bytes: 1 };
        let larger = |a: Frames, b: Frames| Frames {
            count: a.count.max(b.count),
            bytes: a.bytes.max(b.bytes),
        };
        let stated = self.wire_bytes.map(|b| Frames::of_wire_bytes(b, mtu));
        stated.unwrap_or_else(|| {
            carriages
                .map(|carriage| frames(self.packet, carriage))
                .fold(least, larger)
        })
    }
}

/// The bound that a flow of this bound is policed with, ns: with room to grow, for others will come.
pub(crate) fn assumed_bound(bound: u64, deadline: u64) -> u64 {
    bound.saturating_add(bound / 4).min(deadline.max(bound))
}

/// Bytes that take that long at a rate in bit/s.
fn bytes_in(time: Duration, rate: u64) -> u64 {
    let bits = time.as_nanos().saturating_mul(rate.into());
    u64::try_from(bits.div_ceil(8_000_000_000)).unwrap_or(u64::MAX)
}

fn within(duration: Duration, key: &str) -> Result<u64, String> {
    u64::try_from(duration.as_nanos())
        .ok()
        .filter(|nanos| *nanos <= MAX_TIME)
        .ok_or_else(|| format!("{key} is longer than {MAX_TIME} ns, the most that is analysed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_model::wire::Transport;

    const SIZES: Sizes = Sizes {
        topic: 4,
        properties: 0,
        payload: 10,
    };

    fn demand(text: &str) -> Result<Demand, String> {
        Demand::new(&text.parse().unwrap(), SIZES, &Settings::default())
    }

    #[test]
    fn what_is_stated_becomes_numbers() {
        let d = demand("deadline=5ms, period=10ms, jitter=1ms").unwrap();
        assert_eq!(
            (d.deadline_ns, d.jitter_ns, d.packet),
            (5_000_000, 1_000_000, 34)
        );
        assert_eq!((d.period_ns, d.declared_period_ns), (9_998_000, 10_000_000));
        assert_eq!(d.priority, 5);
        let d = demand("rt-priority=7, period=10ms, size=1000").unwrap();
        assert_eq!((d.deadline_ns, d.priority, d.packet), (10_000_000, 7, 1025));
    }

    #[test]
    fn a_rate_stands_for_a_period() {
        // 34 bytes at 272 bit/s.
        let d = demand("deadline=5ms, bandwidth=272bit").unwrap();
        assert_eq!(d.declared_period_ns, 1_000_000_000);
    }

    #[test]
    fn a_transmission_time_stands_for_a_size() {
        let d = demand("period=5ms, transmission-time=16us").unwrap();
        let frames = d.frames(std::iter::empty(), 1500);
        assert_eq!((frames.count, frames.bytes), (1, 200));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(demand("deadline=5ms").unwrap_err().contains("rt-period"));
        let small = demand("period=5ms, size=9").unwrap_err();
        assert!(small.contains("rt-size"), "{small}");
        let long = demand("period=2000000s").unwrap_err();
        assert!(long.contains("rt-period"), "{long}");
    }

    #[test]
    fn frames_are_those_of_the_largest_carriage() {
        let d = demand("period=5ms, size=1400").unwrap();
        let by = |transport| Carriage {
            transport,
            ipv6: false,
            mtu: 1500,
        };
        assert_eq!(d.frames([by(Transport::Tcp)].into_iter(), 1500).count, 1);
        let both = [by(Transport::Tcp), by(Transport::Tls)];
        assert_eq!(d.frames(both.into_iter(), 1500).count, 2);
    }
}
