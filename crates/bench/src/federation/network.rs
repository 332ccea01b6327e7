//! Five brokers, each in a network namespace, each connection between two a cable of its own.
//!
//! Bytes are those of the frames that leave by these cables, counted by the kernel. Clients talk
//! over their broker's loopback, so they do not count. Programs and namespaces end with the
//! value, however this program ends.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::client::Client;
use super::{NAMES, PATIENCE, ROOT};
use crate::process::Process;
use crate::sys;
use punctual_measure::http_get;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// By which the brokers know each other.
const SECRET: &str = "known to the brokers of a benchmark";
/// Topic with which is found out whether everybody hears everybody.
const PROBE: &str = "probe";
pub(super) const MQTT: u16 = 1883;
const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// What forwards between the brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum System {
    SubscriptionTable,
    Flooding,
    RootRelay,
    MosquittoBridges,
}

impl System {
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
        }
    }

    /// All that can be had here.
    pub(super) fn present() -> Vec<Self> {
        let mut present = Self::ALL.to_vec();
        if !has_mosquitto() {
            eprintln!("mosquitto is not installed (apt install mosquitto): left out");
            present.retain(|system| *system != Self::MosquittoBridges);
        }
        present
    }
}

/// The two ends of a connection: first that of the broker that connects.
fn addresses(number: usize) -> [Ipv4Addr; 2] {
    [1, 2].map(|end| Ipv4Addr::new(10, 9, number as u8, end))
}

fn has_mosquitto() -> bool {
    let mut command = Command::new("mosquitto");
    command
        .arg("-h")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok()
}

/// Which brokers, and how they are run.
#[derive(Debug, Clone)]
pub(super) struct Plan<'a> {
    /// The broker under test.
    pub(super) program: &'a Path,
    pub(super) system: System,
    /// Connections, by brokers; the first one connects.
    pub(super) links: &'a [(usize, usize)],
    /// For configurations and logs.
    pub(super) directory: PathBuf,
    /// Time between two hellos, if not the default.
    pub(super) hello: Option<Duration>,
    /// Whether cables take up to 64 KiB at once, as network cards do that cut and join frames
    /// themselves. Otherwise they take single frames, which then costs most of what a byte costs.
    pub(super) joins_frames: bool,
}

/// The brokers while they run.
pub(super) struct Brokers {
    pub(super) system: System,
    links: Vec<(usize, usize)>,
    program: PathBuf,
    directory: PathBuf,
    /// They end before their namespaces do.
    processes: Vec<Option<Process>>,
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
        let mut neighbours = vec![Vec::new(); NAMES.len()];
        for (number, (from, to)) in plan.links.iter().enumerate() {
            let names = [device(*to), device(*from)];
            spaces[*from].cable(&names[0], &spaces[*to], &names[1])?;
            if plan.joins_frames {
                for (end, name) in [*from, *to].into_iter().zip(&names) {
                    spaces[end].ip(&format!("link set {name} gso_max_segs 65535"))?;
                }
            }
            let [near, far] = addresses(number);
            spaces[*from].address(&names[0], near.into(), 24)?;
            spaces[*to].address(&names[1], far.into(), 24)?;
            neighbours[*from].push((*to, far));
        }
        let secret = directory.join("mesh.secret");
        fs::write(&secret, SECRET).map_err(Error::io(context()))?;
        for (at, neighbours) in neighbours.iter().enumerate() {
            let text = match plan.system {
                System::MosquittoBridges => mosquitto(neighbours, at),
                system => punctual(system, neighbours, at, plan.hello, &secret),
            };
            let path = directory.join(format!("{}.conf", NAMES[at]));
            fs::write(&path, text).map_err(Error::io(context()))?;
        }
        let mut brokers = Self {
            system: plan.system,
            links: plan.links.to_vec(),
            program: plan.program.to_owned(),
            directory,
            processes: NAMES.iter().map(|_| None).collect(),
            spaces,
        };
        for at in 0..NAMES.len() {
            brokers.run(at)?;
        }
        Ok(brokers)
    }

    /// Starts one broker.
    pub(super) fn run(&mut self, at: usize) -> Result<()> {
        let path = self.directory.join(format!("{}.conf", NAMES[at]));
        let log = self.directory.join(format!("{}.log", NAMES[at]));
        let log =
            fs::File::create(&log).map_err(Error::io(format!("cannot write {}", log.display())))?;
        let mut command = match self.system {
            System::MosquittoBridges => {
                let mut command = Command::new("mosquitto");
                command.arg("-c").arg(&path);
                command
            }
            _ => {
                let mut command = Command::new(&self.program);
                command.args(["serve", "--config"]).arg(&path);
                command
            }
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.spaces[at].place(&mut command);
        sys::ends_with_thread(&mut command);
        let process = Process::spawn(&mut command);
        let context = || format!("cannot start {command:?}");
        self.processes[at] = Some(process.map_err(Error::io(context()))?);
        Ok(())
    }

    /// Kills one broker: no farewell, its connections are closed by the kernel.
    pub(super) fn kill(&mut self, at: usize) -> Result<Instant> {
        let when = Instant::now();
        if let Some(mut process) = self.processes[at].take() {
            let context = || format!("cannot kill {}", NAMES[at]);
            process.child().kill().map_err(Error::io(context()))?;
            process.child().wait().map_err(Error::io(context()))?;
        }
        Ok(when)
    }

    /// Takes a cable away without a word, or puts it back.
    pub(super) fn plug(&self, from: usize, to: usize, plugged: bool) -> Result<()> {
        let state = if plugged { "up" } else { "down" };
        let device = device(to);
        self.spaces[from]
            .ip(&format!("link set {device} {state}"))
            .map(drop)
    }

    /// The address of a broker on the cable from another one to it.
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

    /// This program as far as its bench subcommands.
    pub(super) fn own_command(&self) -> Result<Command> {
        let own = std::env::current_exe().map_err(Error::io("cannot find this program"))?;
        Ok(Command::new(own))
    }

    pub(super) fn space(&self, at: usize) -> &Namespace {
        &self.spaces[at]
    }

    /// Waits until everybody hears everybody.
    pub(super) fn become_one(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let mut clients = Vec::new();
        for at in 0..NAMES.len() {
            let mut client = loop {
                match Client::connect(self, at, "probe") {
                    Ok(client) => break client,
                    Err(error) if Instant::now() > end => return Err(error),
                    Err(_) => thread::sleep(Duration::from_millis(20)),
                }
            };
            client.subscribe(&format!("{PROBE}/#"), 1)?;
            clients.push(client);
        }
        for from in 0..clients.len() {
            let mut heard = vec![false; clients.len()];
            while heard.contains(&false) {
                if Instant::now() > end {
                    return Err(Error::Peer {
                        peer: self.system.name().into(),
                        why: format!("{} is not heard by all: {heard:?}", NAMES[from]),
                    });
                }
                clients[from].publish(&format!("{PROBE}/{from}"), "?", 1)?;
                for (client, heard) in clients.iter_mut().zip(&mut heard) {
                    client.receive(Duration::from_millis(20), |topic, _| {
                        *heard |= topic == format!("{PROBE}/{from}").as_bytes();
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Bytes that passed each connection so far, both ways.
    pub(super) fn bytes(&self) -> Result<Vec<u64>> {
        let counters = |space: &Namespace| {
            let read = || fs::read_to_string("/proc/thread-self/net/dev");
            space
                .enter(read)?
                .map_err(Error::io("cannot read counters"))
        };
        let texts = self
            .spaces
            .iter()
            .map(counters)
            .collect::<Result<Vec<_>>>()?;
        let sent = |from: usize, to: usize| sent_by(&texts[from], &device(to));
        let links = self.links.iter();
        Ok(links
            .map(|(from, to)| sent(*from, *to) + sent(*to, *from))
            .collect())
    }

    /// Seconds of processor time of each broker so far.
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

    /// Binds a broker that runs to a processor.
    pub(super) fn pin(&self, at: usize, core: usize) -> Result<()> {
        let id = self.processes[at].as_ref().map_or(0, Process::id);
        let context = || format!("cannot pin {} to processor {core}", NAMES[at]);
        sys::pin_process(id, core).map_err(Error::io(context()))
    }

    /// What a broker says of the mesh.
    pub(super) fn status(&self, at: usize) -> Result<Value> {
        let text = self.spaces[at].enter(|| http_get(HTTP, "/api/v1/mesh"))??;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Changes of subscriptions told so far, where that is counted.
    pub(super) fn advertised(&self) -> Result<Option<u64>> {
        if self.system == System::MosquittoBridges {
            return Ok(None);
        }
        let mut sum = 0;
        for at in 0..NAMES.len() {
            sum += self.status(at)?["advertised"].as_u64().unwrap_or(0);
        }
        Ok(Some(sum))
    }
}

/// A broker's end of the cable to another one.
fn device(to: usize) -> String {
    format!("to{}", NAMES[to])
}

/// Bytes that left by a device, from /proc/net/dev.
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

fn mosquitto(neighbours: &[(usize, Ipv4Addr)], at: usize) -> String {
    let mut text = format!(
        "listener {MQTT}\nallow_anonymous true\nset_tcp_nodelay true\nmax_inflight_messages 0\n\
         max_queued_messages 0\n"
    );
    for (to, address) in neighbours {
        let _ = writeln!(
            text,
            "connection {}-{}\naddress {address}:{MQTT}\ntopic # both 1\nbridge_protocol_version \
             mqttv311\ntry_private true",
            NAMES[at], NAMES[*to]
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
