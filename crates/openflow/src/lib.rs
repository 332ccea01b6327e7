//! OpenFlow 1.3 messages to and from bytes, and a switch that obeys them.
//!
//! [`split`] finds messages in a stream, [`Envelope`] reads and writes them, and [`fake::Switch`]
//! is a switch to test controllers against. Nothing here has a socket or a clock.
//!
//! Invariants: no input makes the decoder panic or allocate more than a few times the bytes it
//! was given; what it takes is written again bit for bit, except that padding becomes 0; what a
//! newer switch may add (actions, fields, errors without a name here) is kept.
//!
//! Source: OpenFlow Switch Specification 1.3.5 (ONF TS-023), whose section numbers these docs
//! name; bundles are those of ONF extension 230, as Open vSwitch takes them.
#![forbid(unsafe_code)]

mod action;
mod bundle;
mod control;
mod error;
pub mod error_code;
pub mod fake;
mod flow;
mod group;
mod id;
mod matching;
mod message;
mod meter;
pub mod multipart;
mod oxm;
mod packet;
mod port;
mod wire;

pub use action::{Action, Instruction, WHOLE_PACKET};
pub use bundle::{BundleAdd, BundleControl, BundleControlType, BundleFlags};
pub use control::{
    AsyncConfig, Capabilities, ErrorReport, Experimenter, Features, Hello, HelloElement,
    QueueConfigReply, QueueConfigRequest, QueueDesc, QueueProperty, Role, RoleMessage,
    SwitchConfig, TableMod, VERSION,
};
pub use error::{DecodeError, EncodeError};
pub use error_code::ErrorCode;
pub use flow::{Elapsed, FlowCommand, FlowFlags, FlowMod, FlowRemoved, FlowRemovedReason, apply};
pub use group::{Bucket, GroupCommand, GroupMod, GroupType};
pub use id::{
    BufferId, BundleId, Cookie, DatapathId, GroupId, Mac, MeterId, ParseIdError, PortNo, QueueId,
    TableId, Text, Xid,
};
pub use matching::{
    ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_LLDP, ETH_VLAN, IP_ICMP, IP_ICMPV6, IP_SCTP, IP_TCP, IP_UDP,
    Match, MatchError,
};
pub use message::{Envelope, HEADER, Message, split, xid_of};
pub use meter::{MeterBand, MeterCommand, MeterFlags, MeterMod};
pub use multipart::{MultipartBody, MultipartReply, MultipartRequest};
pub use oxm::{FieldKind, Masked, OtherField, OxmField, VLAN_PRESENT};
pub use packet::{PacketIn, PacketInReason, PacketOut};
pub use port::{PortConfig, PortDesc, PortFeatures, PortMod, PortReason, PortState, PortStatus};
