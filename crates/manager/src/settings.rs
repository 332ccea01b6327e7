//! What a manager knows of the network and the broker.

use punctual_model::network::Document;
use punctual_model::wire::ETHERNET_MTU;

use crate::place::PlaceRule;

/// What has to be known before anything can be guaranteed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Nodes and links, and flows that are there anyway. Without it the
    /// network is [`star`](Self::star).
    pub network: Option<Document>,
    /// The broker's node in it.
    pub broker: String,
    /// Where clients are; the first that matches counts. A client without one
    /// is at the node that has its identifier or its address as a name.
    pub places: Vec<PlaceRule>,
    /// The network that is assumed where none is given.
    pub star: Star,
    /// The broker's own part.
    pub service: Service,
    /// Threads that serve clients: with more than one a message may be handed over.
    pub threads: u16,
    /// Payload of a frame, bytes.
    pub mtu: u32,
    /// Rate that `rt-transmission-time` refers to, bit/s.
    pub reference_rate: u64,
    /// How far the clocks of publishers may be wrong, parts per million: their
    /// periods count as that much shorter.
    pub clock_error_ppm: u32,
    /// Least and greatest priority that is given to flows that state none.
    pub priorities: (u8, u8),
    /// Flows that may be admitted at the same time.
    pub max_flows: usize,
    /// Flows that all clients of one user may have, unless its own rights say otherwise.
    pub max_user_flows: u32,
    /// Per cent of the time of a thread that the flows of one user may need of the broker, unless it
    /// has rights of its own.
    pub max_user_load: u8,
    /// Hosts that a star may have; further clients have no place.
    pub max_hosts: usize,
}

/// Every host and the broker have a link of their own, in each direction, to
/// one switch. Clients of one address are one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Star {
    /// Rate of the hosts' links, bit/s.
    pub access_rate: u64,
    /// Rate of the broker's link, bit/s.
    pub broker_rate: u64,
    /// Greatest delay of the switch, ns.
    pub switch_delay_ns: u64,
}

/// What a message costs at the broker (`punctual calibrate` measures it), ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// For each message.
    pub receive_ns: u64,
    /// And for each receiver.
    pub send_ns: u64,
    /// Longest time for which something that is not urgent holds it.
    pub blocking_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            network: None,
            broker: "broker".into(),
            places: Vec::new(),
            star: Star {
                access_rate: 100_000_000,
                broker_rate: 1_000_000_000,
                switch_delay_ns: 10_000,
            },
            service: Service {
                receive_ns: 100_000,
                send_ns: 50_000,
                blocking_ns: 500_000,
            },
            threads: 1,
            mtu: ETHERNET_MTU,
            reference_rate: 100_000_000,
            clock_error_ppm: 200,
            priorities: (0, 7),
            max_flows: 10_000,
            max_user_flows: 1_000,
            max_user_load: 50,
            max_hosts: 10_000,
        }
    }
}
