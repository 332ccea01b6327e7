//! Networks that are configured, not discovered: switches that take plans, and the carriers that
//! apply these.
//!
//! A [`Local`] knows from a network document which switches there are and what
//! is at their ports; nobody probes them. Carriers: [`Nobody`] (plans are made and
//! kept, and that is all), [`PlanFile`] (a file), [`Machine`] (switches of this
//! machine, with nftables and HTB).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use punctual_controller::plan::{Mac, Plan, PortNumber, SwitchPlan};
use punctual_controller::{End, Event, KnownHost, PortState, Settings, SwitchProtocol};
use punctual_model::network::{Document, LinkEntry};

use crate::linux::{Driver, Shell};

/// Applies plans.
pub trait Carrier: fmt::Debug + Send {
    /// Makes a switch do what its plan says.
    ///
    /// # Errors
    /// Why it does not; then it does what it did.
    fn apply(&mut self, switch: &str, plan: &SwitchPlan) -> Result<(), String>;
}

/// A network that is stated.
#[derive(Debug)]
pub struct Local {
    switches: BTreeMap<u64, String>,
    begin: Vec<Event>,
    carrier: Box<dyn Carrier>,
}

impl Local {
    /// The network of `settings.network`, in which the known hosts are hosts and
    /// all other nodes are switches. Names of switches and places of hosts are
    /// filled into the settings; a host without an Ethernet address gets one made
    /// of its first IP address. Ports have the names that `device` gives the links
    /// that leave by them.
    ///
    /// # Errors
    /// What of the document cannot be wired: the place, and the remedy.
    pub fn new(
        settings: &mut Settings,
        carrier: Box<dyn Carrier>,
        device: impl Fn(&LinkEntry) -> String,
    ) -> Result<Self, String> {
        let document = &settings.network;
        let is_host = |name: &str| settings.hosts.iter().any(|host| host.name == name);
        let nodes = document.nodes.iter().map(|node| node.id.as_str());
        let names: Vec<&str> = nodes.filter(|name| !is_host(name)).collect();
        if names.is_empty() {
            return Err("the network has no switches: give it with --network".into());
        }
        let numbers: BTreeMap<&str, u64> = names.iter().copied().zip(1..).collect();
        let ends = ends(document, &numbers)?;
        let mut begin = Vec::new();
        for (name, datapath) in &numbers {
            let ports = ends.iter().filter(|(_, end)| end.datapath == *datapath);
            let ports = ports.map(|(link, end)| {
                let link = &document.links[*link];
                PortState {
                    number: end.port,
                    name: device(link),
                    mac: Mac([2, 0x70, 0, *datapath as u8, 0, end.port as u8]),
                    up: true,
                    rate_bps: link.rate_bps.unwrap_or(0),
                }
            });
            let mut ports: Vec<PortState> = ports.collect();
            ports.sort_by_key(|port| port.number);
            if ports.is_empty() {
                return Err(format!(
                    "switch {name:?} has no links; connect it, or name it as a --host"
                ));
            }
            begin.push(Event::Connected {
                datapath: *datapath,
                speaks: SwitchProtocol::Plans,
                meters: 0,
                ports,
            });
        }
        let mut places: BTreeMap<&str, End> = BTreeMap::new();
        for (link, from) in &ends {
            let entry = &document.links[*link];
            match ends.get(&back(document, *link)?) {
                Some(to) => begin.push(Event::Link {
                    from: *from,
                    to: *to,
                }),
                None => {
                    places.insert(&entry.to, *from);
                }
            }
        }
        let places: BTreeMap<String, End> = places
            .into_iter()
            .map(|(name, end)| (name.to_owned(), end))
            .collect();
        let switches = numbers
            .iter()
            .map(|(name, number)| (*number, (*name).to_owned()));
        let switches: BTreeMap<u64, String> = switches.collect();
        for host in &mut settings.hosts {
            let at = places.get(&host.name).ok_or_else(|| {
                format!(
                    "--host {}: no link of the network leads there from a switch",
                    host.name
                )
            })?;
            host.at = Some(*at);
            host.mac = host.mac.or_else(|| made_up(host));
        }
        settings.switches = switches
            .iter()
            .map(|(n, name)| (*n, name.clone()))
            .collect();
        Ok(Self {
            switches,
            begin,
            carrier,
        })
    }

    /// What is to be told first.
    pub fn begin(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.begin)
    }

    /// Carries out a step of the plan.
    pub(crate) fn apply(&mut self, plan: &Plan, datapath: u64, step: u64) -> Event {
        let name = self.switches.get(&datapath);
        let of = name.and_then(|name| Some((name, plan.switches.get(name)?)));
        let result = of.map_or(Ok(()), |(name, plan)| self.carrier.apply(name, plan));
        Event::Applied {
            datapath,
            step,
            problem: result.err(),
        }
    }
}

/// The ports by which links leave switches, by the number of the link. The ports
/// of a switch are in the order of its links.
fn ends(
    document: &Document,
    numbers: &BTreeMap<&str, u64>,
) -> Result<BTreeMap<usize, End>, String> {
    let mut last: BTreeMap<u64, PortNumber> = BTreeMap::new();
    let mut ends = BTreeMap::new();
    for (index, link) in document.links.iter().enumerate() {
        let Some(datapath) = numbers.get(link.from.as_str()) else {
            if !numbers.contains_key(link.to.as_str()) {
                return Err(format!(
                    "link {:?} leads from a host to a host; put a switch in between",
                    link.id
                ));
            }
            continue;
        };
        let port = last.entry(*datapath).or_default();
        *port += 1;
        let end = End {
            datapath: *datapath,
            port: *port,
        };
        ends.insert(index, end);
    }
    Ok(ends)
}

/// The link beside another one in the other direction: of several between the same
/// nodes the one in the same place.
fn back(document: &Document, link: usize) -> Result<usize, String> {
    let LinkEntry { id, from, to, .. } = &document.links[link];
    let between = |a: &str, b: &str| -> Vec<usize> {
        let links = document.links.iter().enumerate();
        let found = links.filter(|(_, link)| link.from == a && link.to == b);
        found.map(|(index, _)| index).collect()
    };
    let place = between(from, to).iter().position(|other| *other == link);
    place
        .and_then(|place| between(to, from).get(place).copied())
        .ok_or_else(|| {
            format!("link {id:?} has none beside it from {to} to {from}; cables have both")
        })
}

/// Locally administered, of the address.
fn made_up(host: &KnownHost) -> Option<Mac> {
    let address = host.addresses.first()?;
    let [.., a, b, c, d] = match address {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(address) => address.octets(),
    };
    Some(Mac([2, 0, a, b, c, d]))
}

/// Does nothing: the controller keeps the plans, and everyone can look.
#[derive(Debug, Default)]
pub struct Nobody;

impl Carrier for Nobody {
    fn apply(&mut self, _: &str, _: &SwitchPlan) -> Result<(), String> {
        Ok(())
    }
}

/// Writes all plans into a file, as JSON.
#[derive(Debug)]
pub struct PlanFile {
    path: PathBuf,
    plan: Plan,
}

impl PlanFile {
    /// Into that file, which is replaced at every change.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            plan: Plan::default(),
        }
    }

    fn write(&self) -> io::Result<()> {
        let directory = match self.path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        // No other process can have prepared a file of that name.
        let mut new = tempfile::NamedTempFile::new_in(directory)?;
        serde_json::to_writer_pretty(&mut new, &self.plan)?;
        new.write_all(b"\n")?;
        // It is the owner's alone, unless somebody has said otherwise of the last one.
        if let Ok(old) = fs::metadata(&self.path) {
            new.as_file().set_permissions(old.permissions())?;
        }
        new.persist(&self.path)?;
        Ok(())
    }
}

impl Carrier for PlanFile {
    fn apply(&mut self, switch: &str, plan: &SwitchPlan) -> Result<(), String> {
        self.plan.switches.insert(switch.to_owned(), plan.clone());
        self.write()
            .map_err(|error| format!("{} cannot be written: {error}", self.path.display()))
    }
}

/// Switches of this machine.
#[derive(Debug)]
pub struct Machine {
    /// Each switch is the network namespace of its name (`ip netns`).
    namespaces: bool,
    drivers: BTreeMap<String, Driver<LocalShell>>,
}

impl Machine {
    /// Switches in namespaces of their names, or one that is this very machine.
    pub fn new(namespaces: bool) -> Self {
        Self {
            namespaces,
            drivers: BTreeMap::new(),
        }
    }
}

impl Carrier for Machine {
    fn apply(&mut self, switch: &str, plan: &SwitchPlan) -> Result<(), String> {
        let namespace = self.namespaces.then(|| switch.to_owned());
        let driver = self.drivers.entry(switch.to_owned());
        let driver = driver.or_insert_with(|| Driver::new(LocalShell { namespace }));
        let applied = driver.apply(plan, &BTreeSet::new());
        applied.map(drop).map_err(|error| error.to_string())
    }
}

/// Runs programs here, or in a namespace.
#[derive(Debug)]
struct LocalShell {
    namespace: Option<String>,
}

impl Shell for LocalShell {
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
        let mut command = match &self.namespace {
            None => Command::new(program),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, program]);
                command
            }
        };
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // One that ends early says why.
        let fed = child
            .stdin
            .take()
            .map(|mut to| to.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(io::Error::other(said));
        }
        fed.transpose()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"
        nodes = [{ id = "a" }, { id = "left" }, { id = "right" }, { id = "b" }]
        links = [
          { id = "a>left", from = "a", to = "left", rate = "100Mbit" },
          { id = "left>a", from = "left", to = "a", rate = "100Mbit" },
          { id = "left>right", from = "left", to = "right", rate = "100Mbit" },
          { id = "right>left", from = "right", to = "left", rate = "100Mbit" },
          { id = "right>b", from = "right", to = "b", rate = "10Mbit" },
          { id = "b>right", from = "b", to = "right", rate = "10Mbit" },
        ]
    "#;

    fn settings(document: &str) -> Settings {
        let host = |name: &str, last: u8| KnownHost {
            name: name.into(),
            addresses: vec![[10, 0, 0, last].into()],
            ..KnownHost::default()
        };
        Settings {
            network: Document::from_toml(document).unwrap(),
            hosts: vec![host("a", 1), host("b", 2)],
            ..Settings::default()
        }
    }

    fn local(document: &str) -> Result<(Settings, Local), String> {
        let mut settings = settings(document);
        let name = |link: &LinkEntry| format!("{}-{}", link.from, link.to);
        let local = Local::new(&mut settings, Box::new(Nobody), name)?;
        Ok((settings, local))
    }

    #[test]
    fn a_document_is_wired() {
        let (settings, mut local) = local(LINE).unwrap();
        assert_eq!(
            settings.switches,
            [(1, "left".to_owned()), (2, "right".to_owned())]
        );
        let at = |host: usize| settings.hosts[host].at.unwrap();
        assert_eq!((at(0).datapath, at(0).port), (1, 1));
        assert_eq!((at(1).datapath, at(1).port), (2, 2));
        assert_eq!(settings.hosts[1].mac, Some(Mac([2, 0, 10, 0, 0, 2])));
        let events = local.begin();
        let Event::Connected { ports, .. } = &events[1] else {
            panic!("{events:?}")
        };
        let ports: Vec<_> = ports
            .iter()
            .map(|p| (p.name.as_str(), p.rate_bps))
            .collect();
        assert_eq!(
            ports,
            [("right-left", 100_000_000), ("right-b", 10_000_000)]
        );
        let links = events.iter().filter(|e| matches!(e, Event::Link { .. }));
        assert_eq!(links.count(), 2);
        assert_eq!(local.begin(), []);
    }

    #[test]
    fn what_cannot_be_wired_is_named() {
        let lonely = LINE.replace("nodes = [", "nodes = [{ id = \"lonely\" }, ");
        assert!(local(&lonely).unwrap_err().contains("has no links"));
        let one_way = LINE.replace(
            "{ id = \"b>right\", from = \"b\", to = \"right\", rate = \"10Mbit\" },",
            "",
        );
        assert!(local(&one_way).unwrap_err().contains("beside it"));
    }

    #[test]
    fn plans_are_written_as_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.json");
        let mut written = PlanFile::new(path.clone());
        written.apply("s1", &SwitchPlan::default()).unwrap();
        written.apply("s2", &SwitchPlan::default()).unwrap();
        let read: Plan = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read.switches.len(), 2);
        let mut nowhere = PlanFile::new(directory.path().join("no/plan.json"));
        let error = nowhere.apply("s1", &SwitchPlan::default()).unwrap_err();
        assert!(error.contains("cannot be written"), "{error}");
    }
}
