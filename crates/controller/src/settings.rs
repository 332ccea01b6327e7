//! Settings of a controller.

use std::net::IpAddr;

use punctual_model::Nanos;
use punctual_model::network::Document;
use serde::{Deserialize, Serialize};

use crate::plan::Mac;
use crate::topology::End;

/// How paths for flows are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// Of the shortest paths the first with which every flow keeps its deadline,
    /// those with the most time left first.
    #[default]
    Admission,
    /// As the paper does: the best of all ways by depth-first search and
    /// equation (1); it is admitted or refused.
    Paper,
}

/// Which flows are policed where they enter the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policing {
    /// None: brokers and publishers are trusted.
    Nothing,
    /// Flows of datagrams. A TCP connection also carries undeclared traffic, and
    /// a dropped packet there delays all that follow.
    #[default]
    Datagrams,
    /// All.
    Everything,
}

/// A host that is known beforehand.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KnownHost {
    /// Its name, that of its node in the network document.
    pub name: String,
    /// Its Ethernet address; `None`: learned.
    #[serde(default)]
    pub mac: Option<Mac>,
    /// Its IP addresses.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Where it is; `None`: learned.
    #[serde(default)]
    pub at: Option<End>,
}

/// Settings of a controller. Every limit is at least 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Nodes and links with their rates and delays. Discovered nodes and links
    /// are looked up here by the names of their ends; those that are not found
    /// get [`defaults`](Self::defaults). Flows of the document are ignored.
    pub network: Document,
    /// Names of switches by their datapath identifiers. One that is not here is
    /// the node of the document whose name ends in that number (`s4` for 4),
    /// else `s` and the number.
    pub switches: Vec<(u64, String)>,
    /// Hosts that are known beforehand.
    pub hosts: Vec<KnownHost>,
    /// Defaults for links and switches that the document does not name.
    pub defaults: Defaults,
    /// What a message costs at a broker.
    pub service: Service,
    /// How paths are found.
    pub routing: Routing,
    /// Paths that are tried for a flow before it is refused.
    pub paths: usize,
    /// A priority is carried in an 802.1Q tag, too.
    pub tags: bool,
    /// Which flows are policed where they enter.
    pub police: Policing,
    /// Detours are laid for links that may fail.
    pub protect: bool,
    /// The first of the multicast addresses that are given to groups, IPv4.
    pub groups_from: std::net::Ipv4Addr,
    /// Flows that may be requested at the same time.
    pub max_flows: usize,
    /// Hosts that are learned.
    pub max_hosts: usize,
    /// Switches that may connect.
    pub max_switches: usize,
    /// Times between this and that.
    pub intervals: Intervals,
}

/// Defaults for links and switches that the network document does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// Rate of a link whose port says nothing, bit/s.
    pub rate_bps: u64,
    /// Longest frame of other traffic, bytes on the wire.
    pub be_bytes: u64,
    /// Least and greatest switching delay, ns.
    pub switching_ns: (u64, u64),
    /// What replicating adds to the greatest, ns.
    pub copy_ns: u64,
}

/// What a message costs at a broker (`punctual calibrate` measures it), ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// For each message.
    pub receive_ns: u64,
    /// And for each receiver.
    pub send_ns: u64,
    /// Longest time for which something that is not urgent holds it.
    pub blocking_ns: u64,
}

/// Times between this and that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intervals {
    /// Between two probes of a link.
    pub probe: Nanos,
    /// Without a probe for so long, a link is down.
    pub probe_timeout: Nanos,
    /// A port at which no probe came for so long leads to hosts.
    pub settle: Nanos,
    /// Between two looks at counters.
    pub statistics: Nanos,
    /// Window of the average of a port's load.
    pub window: Nanos,
    /// Packets may be on their path for so long after the place where they enter
    /// was changed.
    pub drain: Nanos,
    /// A switch has to confirm a change within this time.
    pub confirm: Nanos,
    /// After a restart decisions wait at most so long for the switches, links and
    /// hosts of guaranteed flows. Has to be longer than switches wait between two
    /// attempts to connect.
    pub recover: Nanos,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            network: Document::default(),
            switches: Vec::new(),
            hosts: Vec::new(),
            defaults: Defaults {
                rate_bps: 100_000_000,
                be_bytes: 1538,
                switching_ns: (0, 30_000),
                copy_ns: 20_000,
            },
            service: Service {
                receive_ns: 100_000,
                send_ns: 50_000,
                blocking_ns: 500_000,
            },
            routing: Routing::Admission,
            paths: 4,
            tags: false,
            police: Policing::Datagrams,
            protect: true,
            groups_from: std::net::Ipv4Addr::new(239, 192, 0, 0),
            max_flows: 20_000,
            max_hosts: 10_000,
            max_switches: 1_000,
            intervals: Intervals {
                probe: Nanos::from_millis(500),
                probe_timeout: Nanos::from_millis(1_600),
                settle: Nanos::from_millis(1_200),
                statistics: Nanos::from_secs(1),
                window: Nanos::from_secs(5),
                drain: Nanos::from_millis(100),
                confirm: Nanos::from_secs(2),
                recover: Nanos::from_secs(15),
            },
        }
    }
}
