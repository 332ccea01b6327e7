//! The network of the factory cell: Fig. 4 of the paper in network namespaces.
//!
//! ```text
//!   broker ── switch 1 ── switch 2 ── controller, S1, S3, S4 (and the bulk stations)
//!                 └── S2
//! ```
//!
//! Every cable carries 100 Mbit/s in each direction, including Ethernet overhead. The paper's text
//! does not describe Fig. 4, except that S2 is one hop closer to the broker than the other clients.
//! A shaped link delivers a frame when its transmission would *begin*: on an idle path, each hop is
//! faster than copper by one transmission time, for every broker alike.

use punctual_southbound::linux::queues;

use super::cell::{BROKER, Station};
use punctual_measure::Result;
use punctual_testbed::netns::{Namespace, Queue};

/// Rate of every cable, bit/s.
pub(crate) const RATE: u64 = 100_000_000;

/// Prefix length of the cell's IPv4 addresses.
const PREFIX: u8 = 24;

/// Cables between the broker and each station at switch 2.
pub(crate) const HOPS: u32 = 3;

/// Queueing discipline of the switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switches {
    /// One FIFO queue for each port, as in the paper.
    Fifo,
    /// Eight strict priorities by the upper three bits of the DiffServ code point; hosts order
    /// their own packets by `SO_PRIORITY`.
    Priority,
}

/// The connected network namespaces of the cell. They exist until this value and all programs in
/// them have ended.
pub(crate) struct Network {
    pub(crate) broker: Namespace,
    stations: Vec<(Station, Namespace)>,
    _switches: [Namespace; 2],
}

impl Network {
    /// Creates and connects the namespaces for `stations`.
    pub(crate) fn new(stations: &[Station], switches: Switches) -> Result<Self> {
        let near = Namespace::new("switch 1")?;
        let far = Namespace::new("switch 2")?;
        let mut near_ports = vec!["trunk".to_owned()];
        let mut far_ports = vec!["trunk".to_owned()];
        near.cable("trunk", &far, "trunk")?;

        let broker = Namespace::new("broker")?;
        broker.cable("eth0", &near, "broker")?;
        near_ports.push("broker".to_owned());
        broker.address("eth0", BROKER.ip(), PREFIX)?;
        let mut placed = Vec::new();
        for &station in stations {
            let name = station.name();
            let (switch, ports) = if station.is_near() {
                (&near, &mut near_ports)
            } else {
                (&far, &mut far_ports)
            };
            let namespace = Namespace::new(&name)?;
            namespace.cable("eth0", switch, &name)?;
            namespace.address("eth0", station.address(), PREFIX)?;
            ports.push(name);
            placed.push((station, namespace));
        }

        let devices = placed.iter().map(|(_, namespace)| namespace);
        for device in devices.chain([&broker]) {
            let queue = match switches {
                Switches::Fifo => Queue::Fifo,
                Switches::Priority => Queue::ByPriority,
            };
            device.shape("eth0", RATE, queue)?;
        }
        for (switch, ports) in [(&near, &near_ports), (&far, &far_ports)] {
            let names: Vec<&str> = ports.iter().map(String::as_str).collect();
            switch.bridge("bridge", &names)?;
            for port in names {
                match switches {
                    Switches::Fifo => switch.shape(port, RATE, Queue::Fifo)?,
                    Switches::Priority => {
                        switch
                            .feed("tc", &["-batch", "-"], &queues(port, RATE))
                            .map(drop)?;
                    }
                }
            }
        }
        Ok(Self {
            broker,
            stations: placed,
            _switches: [near, far],
        })
    }

    /// The stations with their namespaces.
    pub(crate) fn stations(&self) -> impl Iterator<Item = (Station, &Namespace)> {
        self.stations.iter().map(|(station, ns)| (*station, ns))
    }
}
