//! Meters: what is above a rate is dropped or marked.
//!
//! Source: OpenFlow 1.3.5, section 7.3.4.4.

use crate::wire::{Reader, Result, Wire, bits, codes, layout, pad, sized};
use crate::{DecodeError, MeterId};

layout! {
    /// Adds, changes or deletes a meter.
    pub struct MeterMod {
        /// What to do.
        pub command: MeterCommand,
        /// Units and options.
        pub flags: MeterFlags,
        /// Which meter; [`MeterId::ALL`] only to delete.
        pub meter: MeterId,
        /// What happens above which rate; the highest rate that is exceeded decides.
        pub bands: Vec<MeterBand>,
    }
}

impl MeterMod {
    /// A meter that drops what is above `kbps` kbit/s, after a burst of `burst` kbit.
    pub fn drop_above(meter: MeterId, kbps: u32, burst: u32) -> Self {
        Self {
            command: MeterCommand::Add,
            flags: MeterFlags::KBPS | MeterFlags::BURST | MeterFlags::STATS,
            meter,
            bands: vec![MeterBand::Drop { rate: kbps, burst }],
        }
    }

    /// Deletes a meter, or all of them, and the entries that use it.
    pub fn delete(meter: MeterId) -> Self {
        Self {
            command: MeterCommand::Delete,
            flags: MeterFlags::empty(),
            meter,
            bands: Vec::new(),
        }
    }
}

codes! {
    /// What a meter-mod does.
    pub enum MeterCommand: u16 else MeterCommand {
        /// Adds a meter that is not there.
        Add = 0,
        /// Replaces flags and bands of one that is there.
        Modify = 1,
        /// Deletes.
        Delete = 2,
    }
}

bits! {
    /// Units and options of a meter.
    pub struct MeterFlags: u16 {
        /// Rates are in kbit/s (the default), bursts in kbit.
        const KBPS = 1;
        /// Rates are in packets per second, bursts in packets.
        const PKTPS = 1 << 1;
        /// The bursts given are used.
        const BURST = 1 << 2;
        /// Count what happens.
        const STATS = 1 << 3;
    }
}

/// What a meter does above a rate. The units are those of [`MeterFlags`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MeterBand {
    /// Drops.
    Drop {
        /// Rate above which packets are dropped.
        rate: u32,
        /// After this much at once.
        burst: u32,
    },
    /// Raises the drop precedence in the DSCP (AFx1 becomes AFx2).
    DscpRemark {
        /// Above this.
        rate: u32,
        /// After this much at once.
        burst: u32,
        /// By how many steps.
        levels: u8,
    },
    /// An experimenter's own band.
    Experimenter {
        /// Above this.
        rate: u32,
        /// After this much at once.
        burst: u32,
        /// Whose.
        experimenter: u32,
        /// What it means.
        data: Vec<u8>,
    },
}

impl MeterBand {
    /// Rate and burst.
    pub fn limits(&self) -> (u32, u32) {
        match self {
            Self::Drop { rate, burst }
            | Self::DscpRemark { rate, burst, .. }
            | Self::Experimenter { rate, burst, .. } => (*rate, *burst),
        }
    }
}

const DROP: u16 = 1;
const DSCP_REMARK: u16 = 2;
const EXPERIMENTER: u16 = 0xffff;

impl Wire for MeterBand {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 2, |out| {
            let kind = match self {
                Self::Drop { .. } => DROP,
                Self::DscpRemark { .. } => DSCP_REMARK,
                Self::Experimenter { .. } => EXPERIMENTER,
            };
            kind.put(out);
            pad(out, 2);
            let (rate, burst) = self.limits();
            rate.put(out);
            burst.put(out);
            match self {
                Self::Drop { .. } => pad(out, 4),
                Self::DscpRemark { levels, .. } => {
                    levels.put(out);
                    pad(out, 3);
                }
                Self::Experimenter {
                    experimenter, data, ..
                } => {
                    experimenter.put(out);
                    data.put(out);
                }
            }
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (kind, length): (u16, u16) = (from.get()?, from.get()?);
        let body = usize::from(length)
            .checked_sub(4)
            .ok_or(DecodeError::Length("meter band"))?;
        let mut body = from.part(body, "meter band")?;
        let (rate, burst) = (body.get()?, body.get()?);
        let band = match kind {
            DROP => {
                body.skip(4)?;
                Self::Drop { rate, burst }
            }
            DSCP_REMARK => {
                let levels = body.get()?;
                body.skip(3)?;
                Self::DscpRemark {
                    rate,
                    burst,
                    levels,
                }
            }
            EXPERIMENTER => Self::Experimenter {
                rate,
                burst,
                experimenter: body.get()?,
                data: body.rest().to_vec(),
            },
            other => return Err(DecodeError::Band(other.into())),
        };
        body.end()?;
        Ok(band)
    }
}
