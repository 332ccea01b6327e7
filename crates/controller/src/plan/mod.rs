//! What every switch is to do, as data: which packets of which flow leave by
//! which ports, in which queue, with which mark.
//!
//! A plan is independent of protocols and devices: a driver renders it (OpenFlow,
//! nftables and HTB, the simulator, a file). It is complete in itself: ports name
//! their other end, so [`Plan::deliver`] can follow a packet.
//!
//! A packet of a flow is known by its header where it enters the network, and
//! is given a mark there: its class in the upper three bits of DSCP, and in the
//! lower three a *tag*. Further on it is known by the header, the mark and the
//! port by which it comes. The tag names one version of the flow's path, so that
//! a packet follows one version from end to end (Reitblatt et al., "Abstractions
//! for network update", SIGCOMM 2012): a new version is laid beside the old
//! one, then the entry where packets enter is replaced at once.

mod address;
mod deliver;

use std::collections::BTreeMap;
use std::net::IpAddr;

use punctual_model::srt::Protocol;
use serde::{Deserialize, Serialize};

pub use address::Mac;
pub use deliver::{Delivery, Fault, Packet};

/// Number of a port on its switch, from 1.
pub type PortNumber = u32;

/// Queues of a port: strict, 7 is served first.
pub const QUEUES: u8 = 8;
/// The queue of traffic that reserved nothing.
pub const BEST_EFFORT: u8 = 0;

/// What every switch is to do, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The switches.
    pub switches: BTreeMap<String, SwitchPlan>,
}

/// What a switch is to do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SwitchPlan {
    /// Its datapath identifier, if it speaks OpenFlow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datapath: Option<u64>,
    /// Its ports.
    pub ports: BTreeMap<PortNumber, Port>,
    /// Entries for packets of flows; every match exists once.
    #[serde(with = "as_list")]
    pub entries: BTreeMap<Match, Entry>,
    /// Handling of all other packets.
    pub base: Base,
}

/// A port: a transmitter with [`QUEUES`] strict queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The name of its device, or of the link that leaves by it.
    pub name: String,
    /// The link of the network that leaves by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Its rate, bit/s; 0 if it is not known.
    pub rate_bps: u64,
    /// The other end.
    pub to: FarEnd,
}

/// The other end of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FarEnd {
    /// Hosts, or nothing that is known: packets enter the network here.
    Edge(Vec<String>),
    /// A port of another switch.
    Switch {
        /// Its name.
        name: String,
        /// The port there.
        port: PortNumber,
    },
}

/// Which packets an entry is about. All fields have to agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Match {
    /// The port by which they come.
    pub in_port: PortNumber,
    /// Their header.
    pub header: Header,
    /// Their mark; `None` where they enter the network, where any mark is that
    /// of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
    /// They have an 802.1Q tag, put on where they entered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tagged: bool,
}

impl Match {
    /// It is about packets that enter the network.
    pub(crate) fn is_ingress(&self) -> bool {
        self.dscp.is_none()
    }
}

/// The header by which packets of a flow are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Header {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Source address.
    pub source: IpAddr,
    /// Source port; `None` is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// Destination address, of the same version.
    pub destination: IpAddr,
    /// Destination port; `None` is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
}

impl Header {
    /// How exact it is: of two entries that both match, the more exact counts.
    pub fn precision(&self) -> u8 {
        u8::from(self.source_port.is_some()) + u8::from(self.destination_port.is_some())
    }
}

/// Actions for matching packets, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Whose entry it is: a stream of the controller, by a name that is the
    /// same after a restart.
    pub owner: String,
    /// What exceeds this is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub police: Option<Police>,
    /// The mark that they get; `None`: they keep theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    /// Where they go; one copy for each, at least one, by different ports.
    pub legs: Vec<Leg>,
}

/// A limit that a flow's packets are held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Police {
    /// Bits per second.
    pub rate_bps: u64,
    /// Bytes that may come at once.
    pub burst_bytes: u64,
}

/// A mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// Code point of differentiated services, 0 to 63.
    pub dscp: u8,
    /// Priority code point of an 802.1Q tag that is put on; `None`: no tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcp: Option<u8>,
}

impl Mark {
    /// The code point of a class, 1 to 7, and a tag, 0 to 7.
    pub fn code_point(class: u8, tag: u8) -> u8 {
        (class & 7) << 3 | (tag & 7)
    }
}

/// A copy of a packet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Leg {
    /// The port by which it leaves; it may be the one by which it came.
    pub port: PortNumber,
    /// The queue there.
    pub queue: u8,
    /// Rewriting on the last hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hand_over: Option<HandOver>,
    /// Where it goes as long as that port is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detour: Option<Detour>,
}

/// Rewriting of a copy before it is sent to a host.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct HandOver {
    /// The mark that is left on it.
    pub dscp: u8,
    /// The 802.1Q tag is taken off.
    pub untag: bool,
    /// The receiver's own addresses, where it was sent to a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Rewrite>,
}

/// Addresses that a copy gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rewrite {
    /// Destination of the Ethernet header.
    pub mac: Mac,
    /// Destination of the IP header.
    pub ip: IpAddr,
    /// Destination port; `None`: as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Another path for a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Detour {
    /// The port by which it leaves; it may be the one by which it came.
    pub port: PortNumber,
    /// The queue there.
    pub queue: u8,
    /// Code point that it gets, by which it is known on the detour.
    pub dscp: u8,
}

/// What a switch does with packets that belong to no flow: they lose their
/// mark where they enter, wait in queue [`BEST_EFFORT`], and take the shortest
/// paths to the hosts that are known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Base {
    /// The port towards each host.
    pub hosts: BTreeMap<Mac, PortNumber>,
    /// Ports by which packets for all, and for IP groups whose scope is a link,
    /// go: those of a tree that spans the network, and those of hosts; never the
    /// one by which they came. Packets for other groups are dropped, as nobody
    /// has said who receives them.
    pub flood: Vec<PortNumber>,
    /// Ports at which packets enter the network.
    pub edge: Vec<PortNumber>,
}

impl Plan {
    /// All entries, with the names of their switches.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Match, &Entry)> {
        self.switches.iter().flat_map(|(name, switch)| {
            let entries = switch.entries.iter();
            entries.map(move |(matching, entry)| (name.as_str(), matching, entry))
        })
    }
}

/// A map whose keys are no texts, as a list of pairs.
mod as_list {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Entry, Match};

    #[derive(Deserialize)]
    struct Owned {
        #[serde(rename = "match")]
        matching: Match,
        #[serde(flatten)]
        entry: Entry,
    }

    #[derive(Serialize)]
    struct Borrowed<'a> {
        #[serde(rename = "match")]
        matching: &'a Match,
        #[serde(flatten)]
        entry: &'a Entry,
    }

    pub(super) fn serialize<S: Serializer>(
        entries: &BTreeMap<Match, Entry>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let entries = entries.iter();
        serializer.collect_seq(entries.map(|(matching, entry)| Borrowed { matching, entry }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Match, Entry>, D::Error> {
        let entries = Vec::<Owned>::deserialize(deserializer)?.into_iter();
        Ok(entries.map(|each| (each.matching, each.entry)).collect())
    }
}

#[cfg(test)]
mod tests;
