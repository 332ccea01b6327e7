//! What there is: switches, their ports, the links between them, and hosts.
//!
//! A link exists once a probe came over it, in its direction; it is gone when a
//! port at one of its ends is down, when a lower layer reports so (BFD), or when
//! no more probes come. A port over which no probe ever came leads to hosts;
//! hosts are learned from the frames they send. Only changes are reported, so
//! that paths are computed once for each.

pub(crate) mod arp;
pub(crate) mod lldp;
mod map;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use punctual_model::Nanos;
use serde::{Deserialize, Serialize};

use crate::plan::{Mac, PortNumber};
use crate::settings::Settings;

pub(crate) use map::Map;

/// Addresses of a host that are remembered.
const MAX_ADDRESSES: usize = 16;
/// Ports of a switch that are remembered.
const MAX_PORTS: usize = 1024;

/// A port of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct End {
    /// Datapath identifier of the switch.
    pub datapath: u64,
    /// Number of the port.
    pub port: PortNumber,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.datapath, self.port)
    }
}

/// A port as its switch describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// Its number.
    pub number: PortNumber,
    /// Name of its device.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// It can send and receive.
    pub up: bool,
    /// Its rate, bit/s; 0 if it is not known.
    pub rate_bps: u64,
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Switch {
    pub(crate) name: String,
    /// Whether it is connected.
    pub(crate) connected: bool,
    pub(crate) ports: BTreeMap<PortNumber, Port>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) state: PortState,
    /// Something below says that nothing comes through, whatever the port says.
    pub(crate) silent: bool,
    /// When it came up.
    since: Nanos,
    /// It leads to no switch.
    pub(crate) edge: bool,
    /// What an earlier life used it for, since it is up.
    earlier: EarlierUse,
    /// A probe came through since it is up: it leads to a switch, also when no
    /// more come. Taken for the path to hosts, it would close a ring of frames
    /// for all when they come again.
    inner: bool,
}

/// The use of a port by an earlier run, according to its switch's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlierUse {
    /// That is not known, or hosts were there.
    Unknown,
    /// No hosts were there.
    Inner,
    /// Packets went by it to another switch.
    Link,
}

impl Port {
    pub(crate) fn works(&self) -> bool {
        self.state.up && !self.silent
    }
}

/// A link in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    to: End,
    seen: Nanos,
    /// Whether it was configured; it does not age then.
    stated: bool,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Its name: as stated beforehand, else its first address.
    pub name: String,
    /// Its IP addresses.
    pub addresses: Vec<IpAddr>,
    /// Where it is; `None` while unknown.
    pub at: Option<End>,
}

/// Something changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// A link came.
    LinkUp(End, End),
    /// A link went.
    LinkDown(End, End),
    /// A host came, moved or has another address.
    Host(Mac),
    /// A port is one where hosts are, or is no more.
    Edge,
}

/// What there is.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    pub(crate) switches: BTreeMap<u64, Switch>,
    links: BTreeMap<End, Link>,
    pub(crate) hosts: BTreeMap<Mac, Host>,
    by_address: BTreeMap<IpAddr, Mac>,
    names: BTreeMap<u64, String>,
    known_nodes: Vec<String>,
    settle: Nanos,
    recover: Nanos,
    timeout: Nanos,
    max_hosts: usize,
    max_switches: usize,
    /// Hosts whose Ethernet address is not stated, by their addresses.
    named: BTreeMap<IpAddr, String>,
}

impl Topology {
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut topology = Self {
            switches: BTreeMap::new(),
            links: BTreeMap::new(),
            hosts: BTreeMap::new(),
            by_address: BTreeMap::new(),
            names: settings.switches.iter().cloned().collect(),
            known_nodes: settings
                .network
                .nodes
                .iter()
                .map(|node| node.id.clone())
                .collect(),
            settle: settings.intervals.settle,
            recover: settings.intervals.recover,
            timeout: settings.intervals.probe_timeout,
            max_hosts: settings.max_hosts,
            max_switches: settings.max_switches,
            named: BTreeMap::new(),
        };
        for host in &settings.hosts {
            for address in &host.addresses {
                topology.named.insert(*address, host.name.clone());
            }
            if let Some(mac) = host.mac {
                topology
                    .by_address
                    .extend(host.addresses.iter().map(|address| (*address, mac)));
                let known = Host {
                    name: host.name.clone(),
                    addresses: host.addresses.clone(),
                    at: host.at,
                };
                topology.hosts.insert(mac, known);
            }
        }
        topology
    }

    /// The name of a switch.
    fn name(&self, datapath: u64) -> String {
        let number = datapath.to_string();
        let ends_so = |name: &&String| {
            let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
            name[name.len() - digits..] == number
        };
        let stated = self.names.get(&datapath);
        stated
            .or_else(|| self.known_nodes.iter().find(ends_so))
            .cloned()
            .unwrap_or_else(|| format!("s{number}"))
    }

    /// A switch has connected with these ports. False if there are too many.
    pub(crate) fn connected(
        &mut self,
        datapath: u64,
        ports: Vec<PortState>,
        now: Nanos,
        changes: &mut Vec<Change>,
    ) -> bool {
        if !self.switches.contains_key(&datapath) {
            if self.switches.len() >= self.max_switches {
                return false;
            }
            let switch = Switch {
                name: self.name(datapath),
                connected: true,
                ports: BTreeMap::new(),
            };
            self.switches.insert(datapath, switch);
        }
        let Some(switch) = self.switches.get_mut(&datapath) else {
            return false;
        };
        switch.connected = true;
        let gone: Vec<_> = switch.ports.keys().copied().collect();
        let gone = gone
            .into_iter()
            .filter(|number| !ports.iter().any(|port| port.number == *number));
        for number in gone.collect::<Vec<_>>() {
            self.port_gone(
                End {
                    datapath,
                    port: number,
                },
                changes,
            );
        }
        for port in ports {
            self.port(datapath, port, now, changes);
        }
        // Its links were not watched while it was away.
        for (from, link) in &mut self.links {
            if from.datapath == datapath || link.to.datapath == datapath {
                link.seen = now;
            }
        }
        true
    }

    /// A switch has disconnected. It continues to forward by its entries.
    pub(crate) fn disconnected(&mut self, datapath: u64) {
        if let Some(switch) = self.switches.get_mut(&datapath) {
            switch.connected = false;
        }
    }

    /// A port is there and in this state.
    pub(crate) fn port(
        &mut self,
        datapath: u64,
        state: PortState,
        now: Nanos,
        changes: &mut Vec<Change>,
    ) {
        let end = End {
            datapath,
            port: state.number,
        };
        let Some(switch) = self.switches.get_mut(&datapath) else {
            return;
        };
        let room = switch.ports.len() < MAX_PORTS;
        match switch.ports.get_mut(&state.number) {
            Some(port) => {
                if state.up && !port.state.up {
                    port.since = now;
                    port.inner = false;
                    port.earlier = EarlierUse::Unknown;
                }
                port.state = state;
            }
            None if room => {
                let port = Port {
                    state,
                    silent: false,
                    since: now,
                    edge: false,
                    earlier: EarlierUse::Unknown,
                    inner: false,
                };
                switch.ports.insert(end.port, port);
            }
            None => return,
        }
        self.check(end, changes);
    }

    /// Something below says whether anything comes through a port.
    pub(crate) fn liveness(&mut self, end: End, alive: bool, changes: &mut Vec<Change>) {
        if let Some(port) = self.port_mut(end) {
            port.silent = !alive;
            self.check(end, changes);
        }
    }

    pub(crate) fn port_gone(&mut self, end: End, changes: &mut Vec<Change>) {
        if let Some(switch) = self.switches.get_mut(&end.datapath)
            && let Some(port) = switch.ports.remove(&end.port)
        {
            if port.edge {
                changes.push(Change::Edge);
            }
            self.links_gone(end, changes);
        }
    }

    fn port_mut(&mut self, end: End) -> Option<&mut Port> {
        self.switches
            .get_mut(&end.datapath)?
            .ports
            .get_mut(&end.port)
    }

    fn port_of(&self, end: End) -> Option<&Port> {
        self.switches.get(&end.datapath)?.ports.get(&end.port)
    }

    /// A port that does not work has no links.
    fn check(&mut self, end: End, changes: &mut Vec<Change>) {
        if self.port_of(end).is_some_and(|port| !port.works()) {
            self.links_gone(end, changes);
        }
    }

    /// The links in both directions at a port are gone.
    fn links_gone(&mut self, end: End, changes: &mut Vec<Change>) {
        if let Some(link) = self.links.remove(&end) {
            changes.push(Change::LinkDown(end, link.to));
        }
        // By far most links lead both ways between the same ports.
        let from = self.links.iter().find(|(_, link)| link.to == end);
        if let Some(from) = from.map(|(from, _)| *from) {
            self.links.remove(&from);
            changes.push(Change::LinkDown(from, end));
        }
    }

    /// A probe of one port came to another.
    pub(crate) fn probed(&mut self, from: End, to: End, now: Nanos, changes: &mut Vec<Change>) {
        self.adjacent(from, to, now, false, changes);
    }

    /// Adds a configured link.
    pub(crate) fn stated(&mut self, from: End, to: End, now: Nanos, changes: &mut Vec<Change>) {
        self.adjacent(from, to, now, true, changes);
    }

    fn adjacent(
        &mut self,
        from: End,
        to: End,
        now: Nanos,
        stated: bool,
        changes: &mut Vec<Change>,
    ) {
        let works = |end| self.port_of(end).is_some_and(Port::works);
        if from == to || !works(from) || !works(to) {
            return;
        }
        let link = Link {
            to,
            seen: now,
            stated,
        };
        match self.links.get_mut(&from) {
            Some(known) if known.to == to => {
                known.seen = now;
                return;
            }
            Some(known) => {
                // The cable was plugged elsewhere.
                changes.push(Change::LinkDown(from, known.to));
                *known = link;
            }
            None => {
                self.links.insert(from, link);
            }
        }
        for end in [from, to] {
            let Some(port) = self.port_mut(end) else {
                continue;
            };
            port.inner = true;
            if std::mem::take(&mut port.edge) {
                changes.push(Change::Edge);
            }
        }
        // What seemed to be a host there is one further away.
        for host in self.hosts.values_mut() {
            if host.at.is_some_and(|at| at == from || at == to) {
                host.at = None;
            }
        }
        changes.push(Change::LinkUp(from, to));
    }

    /// Time has passed: links without probes go, ports without probes are those
    /// of hosts.
    pub(crate) fn tick(&mut self, now: Nanos, changes: &mut Vec<Change>) {
        let connected = |end: End| {
            self.switches
                .get(&end.datapath)
                .is_some_and(|switch| switch.connected)
        };
        let timeout = self.timeout;
        let old: Vec<_> = self
            .links
            .iter()
            // While one of the switches is disconnected, missing probes mean
            // nothing.
            .filter(|(from, link)| !link.stated && connected(**from) && connected(link.to))
            .filter(|(_, link)| now - link.seen > timeout)
            .map(|(from, link)| (*from, link.to))
            .collect();
        for (from, to) in old {
            self.links.remove(&from);
            changes.push(Change::LinkDown(from, to));
        }
        let linked: std::collections::BTreeSet<End> = self
            .links
            .iter()
            .flat_map(|(from, link)| [*from, link.to])
            .collect();
        let (settle, recover) = (self.settle, self.recover);
        let mut edges = 0;
        for (datapath, switch) in &mut self.switches {
            for (number, port) in &mut switch.ports {
                let end = End {
                    datapath: *datapath,
                    port: *number,
                };
                let is_inner = port.inner || linked.contains(&end);
                // Its neighbour may come back later than it did.
                let patience = match port.earlier {
                    EarlierUse::Unknown => settle,
                    EarlierUse::Inner | EarlierUse::Link => settle.max(recover),
                };
                let edge = port.state.up && !is_inner && now - port.since >= patience;
                if edge && !port.edge {
                    port.edge = true;
                    edges += 1;
                }
            }
        }
        if edges > 0 {
            changes.push(Change::Edge);
        }
    }

    /// What an earlier life used a port for.
    pub(crate) fn recall_port(&mut self, end: End, earlier: EarlierUse) {
        if let Some(port) = self.port_mut(end) {
            port.earlier = earlier;
        }
    }

    /// Whether a port by which packets went to another switch in an earlier life works and
    /// has no link yet.
    pub(crate) fn lacks_links(&self) -> bool {
        let connected = self.switches.iter().filter(|(_, switch)| switch.connected);
        let mut ports = connected.flat_map(|(datapath, switch)| {
            switch
                .ports
                .iter()
                .map(|(number, port)| (*datapath, *number, port))
        });
        ports.any(|(datapath, number, port)| {
            let end = End {
                datapath,
                port: number,
            };
            port.earlier == EarlierUse::Link
                && port.works()
                && !port.edge
                && self.far(end).is_none()
        })
    }

    /// Configures a port as one that leads to hosts.
    pub(crate) fn state_edge(&mut self, end: End, changes: &mut Vec<Change>) {
        if let Some(port) = self.port_mut(end)
            && !std::mem::replace(&mut port.edge, true)
        {
            changes.push(Change::Edge);
        }
    }

    /// A host sent a frame, with its IP address if the frame contained one.
    pub(crate) fn heard(
        &mut self,
        mac: Mac,
        address: Option<IpAddr>,
        at: End,
        changes: &mut Vec<Change>,
    ) {
        let address =
            address.filter(|address| !address.is_unspecified() && !address.is_multicast());
        if mac.is_group()
            || !self
                .port_of(at)
                .is_some_and(|port| port.edge && port.state.up)
        {
            return;
        }
        let full = self.hosts.len() >= self.max_hosts;
        let host = match self.hosts.entry(mac) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(_) if full => return,
            std::collections::btree_map::Entry::Vacant(entry) => {
                let named = address.and_then(|address| self.named.get(&address).cloned());
                let name = named
                    .or_else(|| address.map(|address| address.to_string()))
                    .unwrap_or_else(|| mac.to_string());
                entry.insert(Host {
                    name,
                    addresses: Vec::new(),
                    at: None,
                })
            }
        };
        let mut changed = host.at.replace(at) != Some(at);
        if let Some(address) = address
            && self.by_address.get(&address) != Some(&mac)
            && host.addresses.len() < MAX_ADDRESSES
        {
            host.addresses.push(address);
            if let Some(name) = self.named.get(&address) {
                host.name.clone_from(name);
            } else if host.name == mac.to_string() {
                host.name = address.to_string();
            }
            if let Some(other) = self.by_address.insert(address, mac)
                && let Some(other) = self.hosts.get_mut(&other)
            {
                other.addresses.retain(|known| *known != address);
            }
            changed = true;
        }
        if changed {
            changes.push(Change::Host(mac));
        }
    }

    /// Restores a host of an earlier run; newer information takes precedence.
    pub(crate) fn recall(&mut self, mac: Mac, address: Option<IpAddr>, at: End) {
        let elsewhere = self
            .hosts
            .get(&mac)
            .and_then(|host| host.at)
            .is_some_and(|known| known != at);
        let taken = address
            .and_then(|address| self.by_address.get(&address))
            .is_some_and(|owner| *owner != mac);
        if !elsewhere {
            self.heard(mac, address.filter(|_| !taken), at, &mut Vec::new());
        }
    }

    /// The host at a port, if there is one only.
    pub(crate) fn only_host_at(&self, at: End) -> Option<Mac> {
        let mut hosts = self.hosts.iter().filter(|(_, host)| host.at == Some(at));
        let (mac, _) = hosts.next()?;
        hosts.next().is_none().then_some(*mac)
    }

    /// The host with an address.
    pub(crate) fn host(&self, address: IpAddr) -> Option<(Mac, &Host)> {
        let mac = *self.by_address.get(&address)?;
        Some((mac, self.hosts.get(&mac)?))
    }

    /// The links, in both directions.
    pub(crate) fn links(&self) -> impl Iterator<Item = (End, End)> {
        self.links.iter().map(|(from, link)| (*from, link.to))
    }

    /// The other end of the link that leaves by a port.
    pub(crate) fn far(&self, from: End) -> Option<End> {
        self.links.get(&from).map(|link| link.to)
    }

    /// Ports that should be probed: those that work, of switches that listen.
    pub(crate) fn to_probe(&self) -> impl Iterator<Item = (End, Mac)> {
        let connected = self.switches.iter().filter(|(_, switch)| switch.connected);
        connected.flat_map(|(datapath, switch)| {
            let up = switch.ports.values().filter(|port| port.state.up);
            up.map(|port| {
                (
                    End {
                        datapath: *datapath,
                        port: port.state.number,
                    },
                    port.state.mac,
                )
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_led_to_a_switch_is_not_taken_for_one_of_hosts_until_it_was_down() {
        let mut topology = Topology::new(&Settings::default());
        let mut changes = Vec::new();
        let state = |up| PortState {
            number: 1,
            name: "p1".into(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            up,
            rate_bps: 0,
        };
        let ends = [1, 2].map(|datapath| End { datapath, port: 1 });
        for end in ends {
            topology.connected(end.datapath, vec![state(true)], Nanos(0), &mut changes);
        }
        let [a, b] = ends;
        topology.probed(a, b, Nanos(0), &mut changes);
        topology.probed(b, a, Nanos(0), &mut changes);
        topology.liveness(a, false, &mut changes);
        assert_eq!(topology.links().count(), 0);
        topology.tick(Nanos::from_secs(9), &mut changes);
        topology.liveness(a, true, &mut changes);
        let is_edge = |topology: &Topology| {
            ends.map(|end| topology.port_of(end).is_some_and(|port| port.edge))
        };
        assert_eq!(is_edge(&topology), [false, false]);
        // Somebody plugged in something else.
        for up in [false, true] {
            topology.port(b.datapath, state(up), Nanos::from_secs(10), &mut changes);
        }
        topology.tick(Nanos::from_secs(19), &mut changes);
        assert_eq!(is_edge(&topology), [false, true]);
    }
}
