//! Five brokers, each in a network namespace of its own. Each connection has a cable of its own.
//!
//! Byte counts are of the frames that leave by these cables, counted by the kernel. Clients use
//! their broker's loopback, so their bytes are not counted. Programs and namespaces end when
//! [`Brokers`] is dropped, or when this program ends in any other way.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::client::Client;
use super::{NAMES, PATIENCE, ROOT, rabbitmq};
use crate::process::Process;
use crate::sys;
use punctual_measure::http_get;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Secret with which the brokers authenticate each other.
const SECRET: &str = "known to the brokers of a benchmark";
/// Polling interval while brokers start.
const LOOK: Duration = Duration::from_millis(20);
/// Topic of the messages that check whether every broker hears every other one.
const PROBE: &str = "probe";
pub(super) const MQTT: u16 = 1883;
/// Prefix of the topic that each of Mosquitto's bridges carries alone. The filter `#` does not
/// match it, so messages below this prefix do not circulate where bridges form a loop.
const EDGE: &str = "$edge";
/// Bytes reserved for the text of a namespace's counters.
const COUNTERS: usize = 16 << 10;
const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Method of forwarding between the brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum System {
    SubscriptionTable,
    Flooding,
    RootRelay,
    MosquittoBridges,
    RabbitmqCluster,
}

impl System {
    /// The methods that forward along given connections, unlike a cluster.
    pub(super) const ALL: [Self; 4] = [
        Self::SubscriptionTable,
        Self::Flooding,
        Self::RootRelay,
        Self::MosquittoBridges,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SubscriptionTable => "subscription-table",
            Self::Flooding => "flooding",
            Self::RootRelay => "root-relay",
            Self::MosquittoBridges => "mosquitto bridges",
            Self::RabbitmqCluster => "rabbitmq cluster",
        }
    }

    /// Longest wait until every broker hears every other one. RabbitMQ's nodes take half a minute
    /// to start when they share two processors.
    fn patience(self) -> Duration {
        match self {
            Self::RabbitmqCluster => PATIENCE * 6,
            _ => PATIENCE,
        }
    }

    /// The methods of [`Self::ALL`] whose program is installed.
    pub(super) fn present() -> Vec<Self> {
        let mut present = Self::ALL.to_vec();
        if !has_mosquitto() {
            eprintln!("mosquitto is not installed (apt install mosquitto): left out");
            present.retain(|system| *system != Self::MosquittoBridges);
        }
        present
    }
}

/// The addresses of the two ends of a connection; first the end of the broker that connects.
fn addresses(number: usize) -> [Ipv4Addr; 2] {
    [1, 2].map(|end| Ipv4Addr::new(10, 9, number as u8, end))
}

/// The hardware addresses of the two ends. They are set in advance, so that no end sends ARP
/// requests: these would be among the bytes of some runs and not of others.
fn hardware_addresses(number: usize) -> [String; 2] {
    [1, 2].map(|end| format!("02:00:00:00:{number:02x}:{end:02x}"))
}

fn has_mosquitto() -> bool {
    let mut command = Command::new("mosquitto");
    command
        .arg("-h")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok()
}

/// The brokers of an experiment, and how they are run.
#[derive(Debug, Clone)]
pub(super) struct Plan<'a> {
    /// The program of the broker under test.
    pub(super) program: &'a Path,
    pub(super) system: System,
    /// Connections as pairs of brokers, of which the first connects.
    pub(super) links: &'a [(usize, usize)],
    /// Directory for configurations and logs.
    pub(super) directory: PathBuf,
    /// Interval between hello messages, if not the default.
    pub(super) hello: Option<Duration>,
    /// Whether cables carry segments of up to 64 KiB, as network cards with segmentation offload
    /// do. Otherwise they carry single frames, whose handling then dominates the cost of a byte.
    pub(super) joins_frames: bool,
}

/// The running brokers.
pub(super) struct Brokers {
    pub(super) system: System,
    links: Vec<(usize, usize)>,
    program: PathBuf,
    directory: PathBuf,
    /// Processes of the brokers, which end before their namespaces are removed.
    processes: Vec<Option<Process>>,
    /// The port mappers (epmd) of RabbitMQ's nodes.
    registers: Vec<Process>,
    /// Files with the counters of the devices of each namespace.
    counters: Vec<fs::File>,
    spaces: Vec<Namespace>,
}

impl Brokers {
    pub(super) fn start(plan: &Plan<'_>) -> Result<Self> {
        let directory = plan.directory.join(plan.system.name().replace(' ', "-"));
        let context = || format!("cannot write {}", directory.display());
        fs::create_dir_all(&directory).map_err(Error::io(context()))?;
        let spaces: Vec<Namespace> = NAMES
            .iter()
            .map(|name| Namespace::new(name))
            .collect::<Result<_>>()?;
        for space in &spaces {
            // IPv6 would send packets of its own from time to time.
            space.set("net/ipv6/conf/default/disable_ipv6", "1")?;
        }
        for number in 0..plan.links.len() {
            lay(plan, number, &spaces)?;
        }
        let secret = directory.join("mesh.secret");
        fs::write(&secret, SECRET).map_err(Error::io(context()))?;
        for (at, name) in NAMES.iter().enumerate() {
            let neighbours = neighbours(plan.links, at);
            let text = match plan.system {
                System::MosquittoBridges => mosquitto(&neighbours, at),
                System::RabbitmqCluster => rabbitmq::configuration(MQTT),
                system => punctual(system, &neighbours, at, plan.hello, &secret),
            };
            let path = directory.join(format!("{name}.conf"));
            fs::write(&path, text).map_err(Error::io(context()))?;
        }
        let counters = |space: &Namespace| {
            let open = || fs::File::open("/proc/thread-self/net/dev");
            space
                .enter(open)?
                .map_err(Error::io("cannot read counters"))
        };
        let mut brokers = Self {
            system: plan.system,
            links: plan.links.to_vec(),
            program: plan.program.to_owned(),
            directory,
            processes: NAMES.iter().map(|_| None).collect(),
            registers: Vec::new(),
            counters: spaces.iter().map(counters).collect::<Result<_>>()?,
            spaces,
        };
        if plan.system == System::RabbitmqCluster {
            brokers.start_cluster()?;
        } else {
            for at in 0..NAMES.len() {
                brokers.run(at)?;
            }
        }
        Ok(brokers)
    }

    /// Starts the nodes of a cluster: the others join the first one, which has to run before.
    fn start_cluster(&mut self) -> Result<()> {
        for at in 0..NAMES.len() {
            let own = format!("address add {}/32 dev lo", rabbitmq::address(at));
            self.spaces[at].ip(&own)?;
            rabbitmq::prepare(&self.directory, at)?;
            let mut names = rabbitmq::names();
            self.spaces[at].place(&mut names);
            sys::ends_with_thread(&mut names);
            let names = Process::spawn(&mut names);
            self.registers
                .push(names.map_err(Error::io("cannot start epmd"))?);
        }
        for (number, (from, to)) in self.links.iter().enumerate() {
            let [near, far] = addresses(number);
            for (at, other, gateway) in [(*from, *to, far), (*to, *from, near)] {
                let [own, other] = [at, other].map(rabbitmq::address);
                self.spaces[at].ip(&format!("route add {other}/32 via {gateway} src {own}"))?;
            }
        }
        self.run(0)?;
        self.connect(0, "probe", Instant::now() + self.system.patience())?;
        for at in 1..NAMES.len() {
            self.run(at)?;
        }
        Ok(())
    }

    /// Starts one broker.
    pub(super) fn run(&mut self, at: usize) -> Result<()> {
        let path = self.directory.join(format!("{}.conf", NAMES[at]));
        let log = self.directory.join(format!("{}.log", NAMES[at]));
        let context = || format!("cannot write {}", log.display());
        let log = fs::File::create(&log).map_err(Error::io(context()))?;
        let log_too = log.try_clone().map_err(Error::io("cannot share the log"))?;
        let mut command = match self.system {
            System::MosquittoBridges => {
                let mut command = Command::new("mosquitto");
                command.arg("-c").arg(&path);
                command
            }
            System::RabbitmqCluster => rabbitmq::node(&self.directory, &path, at)?,
            _ => {
                let mut command = Command::new(&self.program);
                command.args(["serve", "--config"]).arg(&path);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(log).stderr(log_too);
        self.spaces[at].place(&mut command);
        sys::ends_with_thread(&mut command);
        let process = Process::spawn(&mut command);
        let context = || format!("cannot start {command:?}");
        self.processes[at] = Some(process.map_err(Error::io(context()))?);
        Ok(())
    }

    /// Connects a client, and retries until its broker accepts it or `end` has passed.
    fn connect(&self, at: usize, name: &str, end: Instant) -> Result<Client> {
        loop {
            match Client::connect(self, at, name) {
                Ok(client) => return Ok(client),
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => thread::sleep(LOOK),
            }
        }
    }

    /// Kills one broker with SIGKILL; the kernel closes its connections.
    pub(super) fn kill(&mut self, at: usize) -> Result<Instant> {
        let when = Instant::now();
        if let Some(mut process) = self.processes[at].take() {
            let context = || format!("cannot kill {}", NAMES[at]);
            process.child().kill().map_err(Error::io(context()))?;
            process.child().wait().map_err(Error::io(context()))?;
        }
        Ok(when)
    }

    /// Makes a cable drop all frames, or restores it, without a sign to its ends.
    pub(super) fn plug(&self, from: usize, to: usize, plugged: bool) -> Result<()> {
        let state = if plugged { "up" } else { "down" };
        let device = device(to);
        self.spaces[from]
            .ip(&format!("link set {device} {state}"))
            .map(drop)
    }

    /// The address of broker `to` on the cable from broker `at`.
    pub(super) fn address_from(&self, at: usize, to: usize) -> Ipv4Addr {
        let mut ends = self.links.iter().enumerate().filter_map(|(number, link)| {
            let [near, far] = addresses(number);
            match *link {
                link if link == (to, at) => Some(near),
                link if link == (at, to) => Some(far),
                _ => None,
            }
        });
        ends.next().unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    /// A command that runs this program; the caller appends a bench subcommand.
    pub(super) fn own_command(&self) -> Result<Command> {
        let own = std::env::current_exe().map_err(Error::io("cannot find this program"))?;
        Ok(Command::new(own))
    }

    pub(super) fn space(&self, at: usize) -> &Namespace {
        &self.spaces[at]
    }

    /// Waits until every broker hears every other one.
    pub(super) fn become_one(&self) -> Result<()> {
        let end = Instant::now() + self.system.patience();
        let mut clients = Vec::new();
        for at in 0..NAMES.len() {
            let mut client = self.connect(at, "probe", end)?;
            client.subscribe(&format!("{PROBE}/#"), 1)?;
            clients.push(client);
        }
        for from in 0..clients.len() {
            let mut heard = vec![false; clients.len()];
            while heard.contains(&false) {
                if Instant::now() > end {
                    return Err(
                        self.not_ready(format!("{} is not heard by all: {heard:?}", NAMES[from]))
                    );
                }
                clients[from].publish(&format!("{PROBE}/{from}"), "?", 1)?;
                for (client, heard) in clients.iter_mut().zip(&mut heard) {
                    client.receive(LOOK, |topic, _| {
                        *heard |= topic == format!("{PROBE}/{from}").as_bytes();
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Waits until every connection carries messages in both directions, even where connections
    /// form a loop.
    pub(super) fn connect_all(&self) -> Result<()> {
        match self.system {
            // A probe would circulate for ever in a loop of bridges.
            System::MosquittoBridges => self.bridges_carry(),
            System::RabbitmqCluster => self.become_one(),
            _ => {
                self.links_are_joined()?;
                self.become_one()
            }
        }
    }

    /// Sends a message over each bridge alone, in both directions.
    fn bridges_carry(&self) -> Result<()> {
        let end = Instant::now() + self.system.patience();
        for (from, to) in &self.links {
            let topic = edge(*from, *to);
            for (at, other) in [(*from, *to), (*to, *from)] {
                let mut subscriber = self.connect(other, "hears", end)?;
                subscriber.subscribe(&format!("{topic}/#"), 1)?;
                let mut publisher = self.connect(at, "says", end)?;
                let said = format!("{topic}/{}", NAMES[at]);
                let mut heard = false;
                while !heard {
                    if Instant::now() > end {
                        let names = [at, other].map(|end| NAMES[end]);
                        return Err(self.not_ready(format!(
                            "nothing comes from {} to {} over their bridge",
                            names[0], names[1]
                        )));
                    }
                    publisher.publish(&said, "?", 1)?;
                    subscriber.receive(LOOK, |topic, _| heard |= topic == said.as_bytes())?;
                    publisher.acknowledged(Duration::from_millis(1))?;
                }
            }
        }
        Ok(())
    }

    /// Waits until each broker has a place in the spanning tree for all of its connections.
    fn links_are_joined(&self) -> Result<()> {
        let end = Instant::now() + self.system.patience();
        for (at, name) in NAMES.iter().enumerate() {
            let own = self.links.iter().filter(|(a, b)| [*a, *b].contains(&at));
            let wanted = own.count();
            loop {
                // The broker's HTTP server may not be up yet.
                let status = self.status(at).unwrap_or_default();
                let links = status["links"].as_array().cloned().unwrap_or_default();
                let joined = links.iter().filter(|link| link["state"] != "joining");
                let joined = joined.count();
                if joined == wanted {
                    break;
                }
                if Instant::now() > end {
                    let why = format!("{name} has {joined} of {wanted} connections");
                    return Err(self.not_ready(why));
                }
                thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    fn not_ready(&self, why: String) -> Error {
        let logs = self.directory.display();
        Error::Peer {
            peer: self.system.name().into(),
            why: format!("{why}; see {logs}"),
        }
    }

    /// Bytes that passed each connection so far, both directions.
    pub(super) fn bytes(&self) -> Result<Vec<u64>> {
        let read = |file: &fs::File| {
            let mut bytes = vec![0; COUNTERS];
            let length = file.read_at(&mut bytes, 0);
            bytes.truncate(length.map_err(Error::io("cannot read counters"))?);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let texts = self.counters.iter().map(read).collect::<Result<Vec<_>>>()?;
        let sent = |from: usize, to: usize| sent_by(&texts[from], &device(to));
        let links = self.links.iter();
        Ok(links
            .map(|(from, to)| sent(*from, *to) + sent(*to, *from))
            .collect())
    }

    /// Processor time of each broker so far, in seconds.
    pub(super) fn cpu(&self) -> Vec<f64> {
        let of_process = |process: &Option<Process>| -> f64 {
            let id = process.as_ref().map_or(0, Process::id);
            let tasks = fs::read_dir(format!("/proc/{id}/task"));
            let tasks = tasks.into_iter().flatten().flatten();
            let times = tasks.filter_map(|task| {
                let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
                text.split(' ').next()?.parse::<f64>().ok()
            });
            times.sum::<f64>() / 1e9
        };
        self.processes.iter().map(of_process).collect()
    }

    /// Binds a running broker to a processor.
    pub(super) fn pin(&self, at: usize, core: usize) -> Result<()> {
        let id = self.processes[at].as_ref().map_or(0, Process::id);
        let context = || format!("cannot pin {} to processor {core}", NAMES[at]);
        sys::pin_process(id, core).map_err(Error::io(context()))
    }

    /// The status of the mesh by a broker's HTTP API.
    pub(super) fn status(&self, at: usize) -> Result<Value> {
        let text = self.spaces[at].enter(|| http_get(HTTP, "/api/v1/mesh"))??;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Changes of subscriptions that the brokers advertised so far; `None` if nothing counts them.
    pub(super) fn advertised(&self) -> Result<Option<u64>> {
        if matches!(
            self.system,
            System::MosquittoBridges | System::RabbitmqCluster
        ) {
            return Ok(None);
        }
        let mut sum = 0;
        for at in 0..NAMES.len() {
            sum += self.status(at)?["advertised"].as_u64().unwrap_or(0);
        }
        Ok(Some(sum))
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        // RabbitMQ's nodes take seconds to end in order, and none of their data is needed.
        if self.system == System::RabbitmqCluster {
            self.processes.iter_mut().flatten().for_each(Process::kill);
        }
    }
}

/// Creates the cable of a connection.
fn lay(plan: &Plan<'_>, number: usize, spaces: &[Namespace]) -> Result<()> {
    let (from, to) = plan.links[number];
    let names = [device(to), device(from)];
    spaces[from].cable(&names[0], &spaces[to], &names[1])?;
    let (ends, addresses) = ([from, to], addresses(number));
    let hardware = hardware_addresses(number);
    for (here, there) in [(0, 1), (1, 0)] {
        let (space, name) = (&spaces[ends[here]], &names[here]);
        if plan.joins_frames {
            space.ip(&format!("link set {name} gso_max_segs 65535"))?;
        }
        space.ip(&format!("link set {name} address {}", hardware[here]))?;
        space.address(name, addresses[here].into(), 24)?;
        space.ip(&format!(
            "neighbour replace {} lladdr {} dev {name} nud permanent",
            addresses[there], hardware[there]
        ))?;
    }
    Ok(())
}

/// The brokers to which broker `at` connects, and their addresses.
fn neighbours(links: &[(usize, usize)], at: usize) -> Vec<(usize, Ipv4Addr)> {
    let links = links.iter().enumerate();
    let own = links.filter(|(_, (from, _))| *from == at);
    own.map(|(number, (_, to))| (*to, addresses(number)[1]))
        .collect()
}

/// The topic that only the bridge between two brokers carries.
fn edge(from: usize, to: usize) -> String {
    format!("{EDGE}/{}-{}", NAMES[from], NAMES[to])
}

/// Name of the device at a broker's end of the cable to another one.
fn device(to: usize) -> String {
    format!("to{}", NAMES[to])
}

/// Bytes that were sent by a device, from the text of /proc/net/dev.
fn sent_by(text: &str, device: &str) -> u64 {
    let rest = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
    let sent = rest.and_then(|rest| rest.split_whitespace().nth(8)?.parse().ok());
    sent.unwrap_or(0)
}

fn punctual(
    system: System,
    neighbours: &[(usize, Ipv4Addr)],
    at: usize,
    hello: Option<Duration>,
    secret: &Path,
) -> String {
    let neighbours: Vec<String> = neighbours
        .iter()
        .map(|(_, address)| format!("\"{address}:{MQTT}\""))
        .collect();
    let gamma = if at == ROOT { 1_000_000 } else { 0 };
    let hello = hello.map_or(String::new(), |hello| {
        format!("hello = \"{}ms\"\n", hello.as_millis())
    });
    format!(
        "[[listener]]\naddress = \"tcp://0.0.0.0:{MQTT}\"\nallow_anonymous = true\n\
         [server]\nhttp = \"{HTTP}\"\nshards = 1\n\
         [mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"{}\"\nstrategy = \"{}\"\ngamma = {gamma}\n{hello}\
         secret_file = {secret:?}\nclear_password = true\nneighbours = [{}]\n",
        NAMES[at],
        system.name(),
        neighbours.join(", ")
    )
}

/// The configuration of a Mosquitto with bridges. It stays root: with another user the kernel
/// forgets to end it when this program is killed (PR_SET_PDEATHSIG).
fn mosquitto(neighbours: &[(usize, Ipv4Addr)], at: usize) -> String {
    let mut text = format!(
        "user root\nlistener {MQTT}\nallow_anonymous true\nset_tcp_nodelay true\n\
         max_inflight_messages 0\nmax_queued_messages 0\n"
    );
    for (to, address) in neighbours {
        let _ = writeln!(
            text,
            "connection {}-{}\naddress {address}:{MQTT}\ntopic # both 1\ntopic {}/# both 1\n\
             bridge_protocol_version mqttv311\ntry_private true",
            NAMES[at],
            NAMES[*to],
            edge(at, *to)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "Inter-|   Receive   |  Transmit\n face |bytes packets errs\n   toAB:  1 2 3 4 5 6 7 8 77 1\n    toA: 1 2 3 4 5 6 7 8 900 10 0\n";
        assert_eq!(sent_by(text, "toA"), 900);
        assert_eq!(sent_by(text, "toAB"), 77);
        assert_eq!(sent_by(text, "toC"), 0);
    }
}
