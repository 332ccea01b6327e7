//! Answers about meters.

use super::group::sized_part;
use crate::flow::Elapsed;
use crate::meter::{MeterBand, MeterFlags};
use crate::wire::{Reader, Result, Wire, layout, sized};
use crate::{DecodeError, MeterId};

/// Counters of a meter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterStats {
    /// Which.
    pub meter: MeterId,
    /// Entries that use it.
    pub flows: u32,
    /// Packets that came to it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it is there.
    pub duration: Elapsed,
    /// Counters of its bands.
    pub bands: Vec<BandStats>,
}

layout! {
    /// Counters of a band.
    #[derive(Copy)]
    pub struct BandStats {
        /// Packets above its rate.
        pub packets: u64,
        /// Their bytes.
        pub bytes: u64,
    }
}

impl Wire for MeterStats {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 4, |out| {
            self.meter.put(out);
            0_u64.put(out);
            self.flows.put(out);
            self.packets.put(out);
            self.bytes.put(out);
            self.duration.put(out);
            self.bands.put(out);
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let meter = from.get()?;
        let length: u16 = from.get()?;
        let body = usize::from(length)
            .checked_sub(6)
            .ok_or(DecodeError::Length("meter's counters"))?;
        let mut from = from.part(body, "meter's counters")?;
        from.skip(6)?;
        Ok(Self {
            meter,
            flows: from.get()?,
            packets: from.get()?,
            bytes: from.get()?,
            duration: from.get()?,
            bands: from.get()?,
        })
    }
}

/// What a meter does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterConfig {
    /// Units and options.
    pub flags: MeterFlags,
    /// Which.
    pub meter: MeterId,
    /// Its bands.
    pub bands: Vec<MeterBand>,
}

impl Wire for MeterConfig {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 0, |out| {
            0_u16.put(out);
            self.flags.put(out);
            self.meter.put(out);
            self.bands.put(out);
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let mut from = sized_part(from, "meter")?;
        Ok(Self {
            flags: from.get()?,
            meter: from.get()?,
            bands: from.get()?,
        })
    }
}

layout! {
    /// What meters can do.
    #[derive(Copy)]
    pub struct MeterFeatures {
        /// Meters at most.
        pub max_meters: u32,
        /// Bit n: bands of type n are supported.
        pub band_types: u32,
        /// Which [`MeterFlags`] are supported.
        pub capabilities: u32,
        /// Bands of a meter at most.
        pub max_bands: u8,
        /// Colours.
        pub max_color: u8 [2],
    }
}
