//! The network of a [`Layout`] in network namespaces: one for each host and each switch, cables
//! between them with eight strict priorities at both ends, and addresses that are known without
//! asking (a broadcast would need a bridge).

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

/// What forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// nftables and HTB: with the timing of real switches, but for transmission
    Linux,
    /// Open vSwitch in userspace: what OpenFlow can do, with a timing of its own
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

/// The switches, each in its namespace or all in one.
enum Switches {
    Linux(Vec<linux::Driver<Inside>>),
    Openflow(Bridges),
}

/// The wired network. It is gone when it and all that runs in it are.
pub(super) struct Fabric {
    hosts: Vec<Namespace>,
    /// By switch.
    places: Vec<Namespace>,
    switches: Switches,
}

/// Runs the driver's programs in a namespace.
struct Inside(Namespace);

impl Shell for Inside {
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
        self.0
            .feed(program, arguments, input)
            .map_err(|error| io::Error::other(error.to_string()))
    }
}

impl Fabric {
    /// Builds everything; nothing is forwarded yet. Programs that forward are put before others
    /// if asked.
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
        // A few long batches: starting a program for each device would take seconds.
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
                // No packets larger than a frame, and none that nobody asked for.
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
            // One that is always there, and that does not spread a message's frames over time.
            namespace.set("net/ipv4/tcp_congestion_control", "reno")?;
        }
        let switches = match (driver, places.first()) {
            (Driver::Openflow, Some(all)) => {
                for (host, device) in devices_of_hosts(layout) {
                    // The datapath passes frames on as they are, so their sums have to be right.
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

    /// Makes hosts know how to reach each other and switches forward the streams and what is sent
    /// to groups.
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

    /// Makes hosts know how to reach each other.
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

    /// Makes hosts know where groups are, and their members where datagrams come from: what a host
    /// could not answer it may refuse.
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
                // Linux caches destinations by what routes have in common: were its type the usual
                // one, connections to hosts would now and then be refused as if to a group.
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

    /// The switches, if Open vSwitch is what forwards.
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

/// Devices of a place and what they send at most, bit/s.
fn ports(layout: &Layout, place: Place) -> impl Iterator<Item = (&str, u64)> {
    let ends = layout.cables.iter().flat_map(|cable| {
        let rates = cable.rates.into_iter();
        cable.ends.into_iter().zip(&cable.devices).zip(rates)
    });
    ends.filter(move |((end, _), _)| *end == place)
        .map(|((_, device), rate)| (device.as_str(), rate))
}

/// Every device of every host.
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

/// Commands for each place.
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
