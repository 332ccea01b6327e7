//! Questions whose answers may take several messages.
//!
//! Source: OpenFlow 1.3.5, section 7.3.5. [`Assembly`] puts answers together again.

mod assembly;
mod group;
mod meter;
mod stats;

pub use assembly::{Assembly, AssemblyError};
pub use group::{BucketStats, GroupCapabilities, GroupDesc, GroupFeatures, GroupStats};
pub use meter::{BandStats, MeterConfig, MeterFeatures, MeterStats};
pub use stats::{
    AggregateStats, FlowStats, FlowStatsRequest, PortStats, QueueStats, QueueStatsRequest,
    SwitchDesc, TableStats,
};

use crate::wire::{Reader, Result, Wire, layout, pad};
use crate::{DecodeError, GroupId, MeterId, PortDesc, PortNo};

const MORE: u16 = 1;

/// Asks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MultipartRequest {
    /// Manufacturer of the switch.
    Desc,
    /// Flow entries.
    Flow(FlowStatsRequest),
    /// Sums over flow entries.
    Aggregate(FlowStatsRequest),
    /// Tables.
    Table,
    /// Counters of a port, or of all ([`PortNo::ANY`]).
    PortStats(PortNo),
    /// Counters of queues.
    Queue(QueueStatsRequest),
    /// Counters of a group, or of all.
    Group(GroupId),
    /// What groups do.
    GroupDesc,
    /// What groups can do.
    GroupFeatures,
    /// Counters of a meter, or of all.
    Meter(MeterId),
    /// What a meter does, or all of them.
    MeterConfig(MeterId),
    /// What meters can do.
    MeterFeatures,
    /// What tables can do, or shall do; as bytes.
    TableFeatures(Vec<u8>),
    /// Ports.
    PortDesc,
    /// Beyond the standard.
    Experimenter(MultipartExperimenter),
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultipartReply {
    /// Whether more parts follow.
    pub more: bool,
    /// What it says.
    pub body: MultipartBody,
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MultipartBody {
    /// Manufacturer of the switch.
    Desc(Box<SwitchDesc>),
    /// Flow entries.
    Flow(Vec<FlowStats>),
    /// Sums over flow entries.
    Aggregate(AggregateStats),
    /// Tables.
    Table(Vec<TableStats>),
    /// Counters of ports.
    PortStats(Vec<PortStats>),
    /// Counters of queues.
    Queue(Vec<QueueStats>),
    /// Counters of groups.
    Group(Vec<GroupStats>),
    /// What groups do.
    GroupDesc(Vec<GroupDesc>),
    /// What groups can do.
    GroupFeatures(GroupFeatures),
    /// Counters of meters.
    Meter(Vec<MeterStats>),
    /// What meters do.
    MeterConfig(Vec<MeterConfig>),
    /// What meters can do.
    MeterFeatures(MeterFeatures),
    /// What tables can do, as bytes.
    TableFeatures(Vec<u8>),
    /// Ports.
    PortDesc(Vec<PortDesc>),
    /// Beyond the standard.
    Experimenter(MultipartExperimenter),
}

layout! {
    /// A question or answer beyond the standard.
    pub struct MultipartExperimenter {
        /// Whose.
        pub experimenter: u32,
        /// Which.
        pub kind: u32,
        /// What it says.
        pub data: Vec<u8>,
    }
}

/// Number, variant of request and of answer.
mod number {
    pub(super) const DESC: u16 = 0;
    pub(super) const FLOW: u16 = 1;
    pub(super) const AGGREGATE: u16 = 2;
    pub(super) const TABLE: u16 = 3;
    pub(super) const PORT_STATS: u16 = 4;
    pub(super) const QUEUE: u16 = 5;
    pub(super) const GROUP: u16 = 6;
    pub(super) const GROUP_DESC: u16 = 7;
    pub(super) const GROUP_FEATURES: u16 = 8;
    pub(super) const METER: u16 = 9;
    pub(super) const METER_CONFIG: u16 = 10;
    pub(super) const METER_FEATURES: u16 = 11;
    pub(super) const TABLE_FEATURES: u16 = 12;
    pub(super) const PORT_DESC: u16 = 13;
    pub(super) const EXPERIMENTER: u16 = 0xffff;
}

impl MultipartRequest {
    fn number(&self) -> u16 {
        match self {
            Self::Desc => number::DESC,
            Self::Flow(_) => number::FLOW,
            Self::Aggregate(_) => number::AGGREGATE,
            Self::Table => number::TABLE,
            Self::PortStats(_) => number::PORT_STATS,
            Self::Queue(_) => number::QUEUE,
            Self::Group(_) => number::GROUP,
            Self::GroupDesc => number::GROUP_DESC,
            Self::GroupFeatures => number::GROUP_FEATURES,
            Self::Meter(_) => number::METER,
            Self::MeterConfig(_) => number::METER_CONFIG,
            Self::MeterFeatures => number::METER_FEATURES,
            Self::TableFeatures(_) => number::TABLE_FEATURES,
            Self::PortDesc => number::PORT_DESC,
            Self::Experimenter(_) => number::EXPERIMENTER,
        }
    }
}

impl Wire for MultipartRequest {
    fn put(&self, out: &mut Vec<u8>) {
        self.number().put(out);
        pad(out, 6);
        let padded = |number: u32, out: &mut Vec<u8>| {
            number.put(out);
            pad(out, 4);
        };
        match self {
            Self::Flow(request) | Self::Aggregate(request) => request.put(out),
            Self::PortStats(port) => padded(port.0, out),
            Self::Queue(request) => request.put(out),
            Self::Group(group) => padded(group.0, out),
            Self::Meter(meter) | Self::MeterConfig(meter) => padded(meter.0, out),
            Self::TableFeatures(data) => data.put(out),
            Self::Experimenter(message) => message.put(out),
            Self::Desc
            | Self::Table
            | Self::GroupDesc
            | Self::GroupFeatures
            | Self::MeterFeatures
            | Self::PortDesc => {}
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (number, flags): (u16, u16) = (from.get()?, from.get()?);
        from.skip(4)?;
        // Only a description of tables could need several parts; we take it in one.
        if flags & MORE != 0 {
            return Err(DecodeError::MoreRequests);
        }
        let padded = |from: &mut Reader<'_>| {
            let number: u32 = from.get()?;
            from.skip(4)?;
            Ok(number)
        };
        Ok(match number {
            number::DESC => Self::Desc,
            number::FLOW => Self::Flow(from.get()?),
            number::AGGREGATE => Self::Aggregate(from.get()?),
            number::TABLE => Self::Table,
            number::PORT_STATS => Self::PortStats(PortNo(padded(from)?)),
            number::QUEUE => Self::Queue(from.get()?),
            number::GROUP => Self::Group(GroupId(padded(from)?)),
            number::GROUP_DESC => Self::GroupDesc,
            number::GROUP_FEATURES => Self::GroupFeatures,
            number::METER => Self::Meter(MeterId(padded(from)?)),
            number::METER_CONFIG => Self::MeterConfig(MeterId(padded(from)?)),
            number::METER_FEATURES => Self::MeterFeatures,
            number::TABLE_FEATURES => Self::TableFeatures(from.get()?),
            number::PORT_DESC => Self::PortDesc,
            number::EXPERIMENTER => Self::Experimenter(from.get()?),
            other => return Err(DecodeError::Multipart(other.into())),
        })
    }
}

impl MultipartBody {
    fn number(&self) -> u16 {
        match self {
            Self::Desc(_) => number::DESC,
            Self::Flow(_) => number::FLOW,
            Self::Aggregate(_) => number::AGGREGATE,
            Self::Table(_) => number::TABLE,
            Self::PortStats(_) => number::PORT_STATS,
            Self::Queue(_) => number::QUEUE,
            Self::Group(_) => number::GROUP,
            Self::GroupDesc(_) => number::GROUP_DESC,
            Self::GroupFeatures(_) => number::GROUP_FEATURES,
            Self::Meter(_) => number::METER,
            Self::MeterConfig(_) => number::METER_CONFIG,
            Self::MeterFeatures(_) => number::METER_FEATURES,
            Self::TableFeatures(_) => number::TABLE_FEATURES,
            Self::PortDesc(_) => number::PORT_DESC,
            Self::Experimenter(_) => number::EXPERIMENTER,
        }
    }
}

impl Wire for MultipartReply {
    fn put(&self, out: &mut Vec<u8>) {
        self.body.number().put(out);
        u16::from(self.more).put(out);
        pad(out, 4);
        match &self.body {
            MultipartBody::Desc(desc) => desc.put(out),
            MultipartBody::Flow(list) => list.put(out),
            MultipartBody::Aggregate(sums) => sums.put(out),
            MultipartBody::Table(list) => list.put(out),
            MultipartBody::PortStats(list) => list.put(out),
            MultipartBody::Queue(list) => list.put(out),
            MultipartBody::Group(list) => list.put(out),
            MultipartBody::GroupDesc(list) => list.put(out),
            MultipartBody::GroupFeatures(features) => features.put(out),
            MultipartBody::Meter(list) => list.put(out),
            MultipartBody::MeterConfig(list) => list.put(out),
            MultipartBody::MeterFeatures(features) => features.put(out),
            MultipartBody::TableFeatures(data) => data.put(out),
            MultipartBody::PortDesc(list) => list.put(out),
            MultipartBody::Experimenter(message) => message.put(out),
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (number, flags): (u16, u16) = (from.get()?, from.get()?);
        from.skip(4)?;
        let body = match number {
            number::DESC => MultipartBody::Desc(Box::new(from.get()?)),
            number::FLOW => MultipartBody::Flow(from.get()?),
            number::AGGREGATE => MultipartBody::Aggregate(from.get()?),
            number::TABLE => MultipartBody::Table(from.get()?),
            number::PORT_STATS => MultipartBody::PortStats(from.get()?),
            number::QUEUE => MultipartBody::Queue(from.get()?),
            number::GROUP => MultipartBody::Group(from.get()?),
            number::GROUP_DESC => MultipartBody::GroupDesc(from.get()?),
            number::GROUP_FEATURES => MultipartBody::GroupFeatures(from.get()?),
            number::METER => MultipartBody::Meter(from.get()?),
            number::METER_CONFIG => MultipartBody::MeterConfig(from.get()?),
            number::METER_FEATURES => MultipartBody::MeterFeatures(from.get()?),
            number::TABLE_FEATURES => MultipartBody::TableFeatures(from.get()?),
            number::PORT_DESC => MultipartBody::PortDesc(from.get()?),
            number::EXPERIMENTER => MultipartBody::Experimenter(from.get()?),
            other => return Err(DecodeError::Multipart(other.into())),
        };
        let more = flags & MORE != 0;
        Ok(Self { more, body })
    }
}
