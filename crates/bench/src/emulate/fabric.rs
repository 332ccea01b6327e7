//! The network of a [`Layout`] in network namespaces: one for each host and each switch, cables
//! between them with eight strict priorities at both ends, and static neighbour entries (ARP
//! broadcasts would need a bridge).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;

use clap::ValueEnum;
use punctual_southbound::linux::{self, DriverError, Shell, queues};

use super::flows::{Direction, Stream, hardware, plan};
use super::layout::{Layout, Place};
use super::openflow::Bridges;
use super::tree::Trees;
use crate::sys;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// The implementation of the switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// nftables and HTB: the timing of real switches, without transmission times
    Linux,
    /// Open vSwitch in userspace: for OpenFlow features; the timing is not that of real switches
    Openflow,
}

impl Driver {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Openflow => "openflow",
        }
    }
}

/// The switches, each in a namespace of its own or all in one.
enum Switches {
    Linux(Vec<linux::Driver<Inside>>),
    Openflow(Bridges),
}

/// The connected network namespaces. They exist until this value and all programs in them have
/// ended.
pub(super) struct Fabric {
    hosts: Vec<Namespace>,
    /// Namespaces of the switches, by switch.
    places: Vec<Namespace>,
    switches: Switches,
}

/// Runs the programs of the Linux driver in a namespace.
struct Inside(Namespace);

impl Shell for Inside {
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
        self.0
            .feed(program, arguments, input)
            .map_err(|error| io::Error::other(error.to_string()))
    }
}

impl Fabric {
    /// Builds the network without forwarding rules. `before_others` gives forwarding programs
    /// real-time priority.
    pub(super) fn new(layout: &Layout, driver: Driver, before_others: bool) -> Result<Self> {
        let named = |names: &mut dyn Iterator<Item = &String>| -> Result<Vec<Namespace>> {
            names.map(|name| Namespace::new(name)).collect()
        };
        let hosts = named(&mut layout.hosts.iter().map(|host| &host.name))?;
        let places = match driver {
            Driver::Linux => named(&mut layout.switches.iter())?,
            Driver::Openflow => vec![Namespace::new("switches")?; layout.switches.len()],
        };
        let at = |place: Place| match place {
            Place::Host(host) => &hosts[host],
            Place::Switch(switch) => &places[switch],
        };
        // Commands are run in few large batches: starting a program for each device would take
        // seconds.
        let mut commands = Batches::default();
        for cable in &layout.cables {
            let [near, far] = &cable.devices;
            commands.add(
                cable.ends[0],
                format_args!(
                    "link add name {near} type veth peer name {far} netns {}",
                    at(cable.ends[1]).path()
                ),
            );
        }
        for (place, text) in commands.take() {
            at(place).feed("ip", &["-batch", "-"], &text)?;
        }
        for cable in &layout.cables {
            for (end, device) in cable.ends.iter().zip(&cable.devices) {
                // Disable packets larger than a frame, and IPv6 link-local addresses, which send
                // packets by themselves.
                commands.add(
                    *end,
                    format_args!("link set dev {device} gso_max_segs 1 addrgenmode none"),
                );
                if let Place::Host(host) = *end {
                    let address = layout.hosts[host].address;
                    commands.add(
                        *end,
                        format_args!("link set dev {device} address {}", hardware(address)),
                    );
                    commands.add(*end, format_args!("address add {address}/32 dev {device}"));
                }
                commands.add(*end, format_args!("link set dev {device} up"));
            }
        }
        for (place, text) in commands.take() {
            at(place).feed("ip", &["-batch", "-"], &text)?;
        }
        for (host, namespace) in hosts.iter().enumerate() {
            let text: String = ports(layout, Place::Host(host))
                .map(|(device, rate)| queues(device, rate))
                .collect();
            namespace.feed("tc", &["-batch", "-"], &text)?;
            // Reno is available in every kernel and does not pace the frames of a message.
            namespace.set("net/ipv4/tcp_congestion_control", "reno")?;
        }
        let switches = match (driver, places.first()) {
            (Driver::Openflow, Some(all)) => {
                for (host, device) in devices_of_hosts(layout) {
                    // The userspace datapath does not compute check sums, so hosts have to send
                    // correct ones.
                    let switch_off = || sys::transmit_checksums(device, false);
                    hosts[host]
                        .enter(switch_off)?
                        .map_err(Error::io(format!("cannot set up {device}")))?;
                }
                Switches::Openflow(Bridges::start(all, before_others)?)
            }
            _ => Switches::Linux(
                places
                    .iter()
                    .cloned()
                    .map(Inside)
                    .map(linux::Driver::new)
                    .collect(),
            ),
        };
        Ok(Self {
            hosts,
            places,
            switches,
        })
    }

    /// Installs neighbour entries and routes on hosts, and forwarding rules for streams and
    /// multicast groups on switches.
    pub(super) fn connect(
        &mut self,
        layout: &Layout,
        streams: &[Stream],
        trees: &Trees,
    ) -> Result<()> {
        self.introduce(layout, streams)?;
        self.introduce_groups(layout, trees)?;
        let mut plan = plan(layout, streams);
        trees.enter(layout, &mut plan);
        match &mut self.switches {
            Switches::Linux(drivers) => {
                for (driver, name) in drivers.iter_mut().zip(&layout.switches) {
                    let plan = &plan.switches[name];
                    driver.apply(plan, &BTreeSet::new()).map_err(refused)?;
                }
            }
            Switches::Openflow(bridges) => {
                bridges.wire(&plan)?;
                bridges.tell(&plan)?;
            }
        }
        Ok(())
    }

    /// Installs routes and neighbour entries on hosts, so that both ends of each stream reach each
    /// other.
    pub(super) fn introduce(&self, layout: &Layout, streams: &[Stream]) -> Result<()> {
        let mut commands = Batches::default();
        for stream in streams {
            for Direction { from, to, path, .. } in stream.directions() {
                let Some(&first) = path.first() else { continue };
                let (place, device) = layout.sender(first);
                let (own, other) = (layout.hosts[from].address, layout.hosts[to].address);
                commands.add(
                    place,
                    format_args!("route replace {other}/32 dev {device} src {own}"),
                );
                commands.add(
                    place,
                    format_args!(
                        "neigh replace {other} lladdr {} dev {device} nud permanent",
                        hardware(other)
                    ),
                );
            }
        }
        for (place, text) in commands.take() {
            if let Place::Host(host) = place {
                self.hosts[host].feed("ip", &["-batch", "-"], &text)?;
            }
        }
        Ok(())
    }

    /// Installs routes to multicast groups on publishers, and routes back on members: a host may
    /// drop packets from a source to which it has no route.
    fn introduce_groups(&self, layout: &Layout, trees: &Trees) -> Result<()> {
        let mut commands = Batches::default();
        for tree in &trees.0 {
            let source = layout.hosts[tree.from].address;
            for up in &tree.ups {
                let (Some(&first), Some(&last)) = (up.path.first(), up.path.last()) else {
                    continue;
                };
                let (place, device) = layout.sender(first);
                let group = tree.group;
                // The route type must be multicast. Linux shares cached data of routes with equal
                // attributes, so with a unicast route, connections to hosts would sometimes be
                // refused as if to a group.
                commands.add(
                    place,
                    format_args!("route replace multicast {group}/32 dev {device} src {source}"),
                );
                let (place, device) = layout.receiver(last);
                let own = layout.hosts[up.broker].address;
                commands.add(
                    place,
                    format_args!("route replace {source}/32 dev {device} src {own}"),
                );
            }
        }
        for (place, text) in commands.take() {
            if let Place::Host(host) = place {
                self.hosts[host].feed("ip", &["-batch", "-"], &text)?;
            }
        }
        Ok(())
    }

    /// The bridges, if Open vSwitch forwards.
    pub(super) fn bridges(&self) -> Option<&Bridges> {
        match &self.switches {
            Switches::Linux(_) => None,
            Switches::Openflow(bridges) => Some(bridges),
        }
    }

    pub(super) fn switch(&self, index: usize) -> &Namespace {
        &self.places[index]
    }

    pub(super) fn host(&self, index: usize) -> &Namespace {
        &self.hosts[index]
    }
}

/// The devices of a host or switch with their sending rates, bit/s.
fn ports(layout: &Layout, place: Place) -> impl Iterator<Item = (&str, u64)> {
    let ends = layout.cables.iter().flat_map(|cable| {
        let rates = cable.rates.into_iter();
        cable.ends.into_iter().zip(&cable.devices).zip(rates)
    });
    ends.filter(move |((end, _), _)| *end == place)
        .map(|((_, device), rate)| (device.as_str(), rate))
}

/// Every device of every host, with the host's index.
fn devices_of_hosts(layout: &Layout) -> impl Iterator<Item = (usize, &str)> {
    let ends = layout
        .cables
        .iter()
        .flat_map(|cable| cable.ends.iter().zip(&cable.devices));
    ends.filter_map(|(end, device)| match *end {
        Place::Host(host) => Some((host, device.as_str())),
        Place::Switch(_) => None,
    })
}

fn refused(error: DriverError) -> Error {
    Error::io("the linux driver")(io::Error::other(error))
}

/// Commands for each host and switch.
#[derive(Default)]
struct Batches(BTreeMap<Place, String>);

impl Batches {
    fn add(&mut self, place: Place, command: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0.entry(place).or_default(), "{command}");
    }

    fn take(&mut self) -> BTreeMap<Place, String> {
        std::mem::take(&mut self.0)
    }
}
