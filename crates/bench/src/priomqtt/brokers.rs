//! The brokers that serve the cell: where each executable is found, how it is configured and
//! started.
//!
//! All brokers run on equal terms: identical network, core and scheduling class, no persistence,
//! logging of errors only. They differ in the properties that the experiment compares.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::cell::{BROKER, Urgency};
use super::link::Transport;
use crate::compare::peers::{self, PEERS};
use crate::process::Process;
use crate::sys;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Longest wait for a broker to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Polling interval while waiting for a broker to listen.
const POLL: Duration = Duration::from_millis(20);

/// Address of Punctual's HTTP server in the broker's namespace.
pub(crate) const HTTP: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// One broker with one configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    /// Explanation of the configuration for readers of the report.
    pub(crate) note: &'static str,
    /// Name of the broker's program in `compare::peers::PEERS`.
    peer: &'static str,
    /// Arguments of the executable.
    arguments: &'static [&'static str],
    /// File name and text of its configuration.
    config: Option<(&'static str, &'static str)>,
    pub(crate) transport: Transport,
    pub(crate) urgency: Urgency,
    /// The broker reports statistics of its queue over HTTP.
    pub(crate) has_metrics: bool,
    /// The broker is measured unless the command line names others.
    pub(crate) by_default: bool,
}

/// Name of the configuration that is compared with Mosquitto.
pub(crate) const PUNCTUAL: &str = "punctual";

/// Name of Mosquitto's configuration in comparisons: without Nagle's algorithm.
pub(crate) const MOSQUITTO: &str = "mosquitto";

const PUNCTUAL_COMMON: &str = "[[listener]]\naddress = \"tcp://*:1883\"\nallow_anonymous = true\n\
    [server]\nhttp = \"127.0.0.1:8080\"\nsys_interval = \"off\"\n\
    [log]\nlevel = \"warn\"\n";

/// The rate is just below that of the links, so that messages queue in the broker and not in the
/// links.
const UDP: &str = "[[listener]]\naddress = \"udp://*:1883\"\nallow_anonymous = true\n\
    rate = \"99Mbit\"\n";

const MOSQUITTO_COMMON: &str = "listener 1883 0.0.0.0\nallow_anonymous true\npersistence false\n\
    max_queued_messages 1000000\nmax_queued_bytes 0\nmax_inflight_messages 0\n\
    log_dest stderr\nlog_type error\n";

/// Every broker configuration that can be measured.
pub(crate) const VARIANTS: [Variant; 7] = [
    Variant {
        name: "punctual-udp",
        note: "fixed priorities, UDP paced at the rate of the link",
        peer: "punctual",
        arguments: &["serve", "--config", "{config}"],
        config: Some(("punctual-udp.toml", UDP)),
        transport: Transport::Udp,
        urgency: Urgency::Priority,
        has_metrics: true,
        by_default: true,
    },
    Variant {
        name: PUNCTUAL,
        note: "fixed priorities, TCP",
        peer: "punctual",
        arguments: &["serve", "--config", "{config}"],
        config: Some(("punctual.toml", "")),
        transport: Transport::Tcp,
        urgency: Urgency::Priority,
        has_metrics: true,
        by_default: true,
    },
    Variant {
        name: "punctual-edf",
        note: "earliest deadline first (the period), TCP",
        peer: "punctual",
        arguments: &["serve", "--config", "{config}"],
        config: Some(("punctual-edf.toml", "[egress]\npolicy = \"edf\"\n")),
        transport: Transport::Tcp,
        urgency: Urgency::Deadline,
        has_metrics: true,
        by_default: false,
    },
    Variant {
        name: "punctual-fifo",
        note: "first in, first out: priorities ignored, TCP",
        peer: "punctual",
        arguments: &["serve", "--config", "{config}"],
        config: Some(("punctual-fifo.toml", "[egress]\npolicy = \"fifo\"\n")),
        transport: Transport::Tcp,
        urgency: Urgency::Priority,
        has_metrics: true,
        by_default: false,
    },
    Variant {
        name: MOSQUITTO,
        note: "set_tcp_nodelay true",
        peer: "mosquitto",
        arguments: &["-c", "{config}"],
        config: Some(("mosquitto.conf", "set_tcp_nodelay true\n")),
        transport: Transport::Tcp,
        urgency: Urgency::Priority,
        has_metrics: false,
        by_default: true,
    },
    Variant {
        name: "mosquitto-nagle",
        note: "set_tcp_nodelay false, its default",
        peer: "mosquitto",
        arguments: &["-c", "{config}"],
        config: Some(("mosquitto-nagle.conf", "set_tcp_nodelay false\n")),
        transport: Transport::Tcp,
        urgency: Urgency::Priority,
        has_metrics: false,
        by_default: true,
    },
    Variant {
        name: "floor",
        note: "no broker: a forwarder that marks what one thread can reach here",
        peer: "floor",
        arguments: &["floor", "--listen", "0.0.0.0:1883"],
        config: None,
        transport: Transport::Tcp,
        urgency: Urgency::Priority,
        has_metrics: false,
        by_default: false,
    },
];

/// A broker whose executable was found.
#[derive(Clone, Debug)]
pub(crate) struct BrokerProgram {
    pub(crate) variant: Variant,
    program: PathBuf,
    pub(crate) version: String,
}

/// Namespace, core and scheduling of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) core: Option<usize>,
    /// `SCHED_FIFO` priority; 0 is the normal class.
    pub(crate) fifo: u8,
}

impl Variant {
    /// Name and text of its configuration file, if it has one.
    fn config_text(&self) -> Option<(&'static str, String)> {
        let (file, own) = self.config?;
        let common = match self.peer {
            "punctual" => PUNCTUAL_COMMON,
            _ => MOSQUITTO_COMMON,
        };
        Some((file, format!("{common}{own}")))
    }

    /// Searches for the executable: this program if it is the broker or the floor itself, else as
    /// `bench compare` does.
    pub(crate) fn find(&self, directory: &Path) -> Option<BrokerProgram> {
        let peer = PEERS.iter().find(|peer| peer.name == self.peer)?;
        let (program, version) = match self.peer {
            "floor" => (
                env::current_exe().ok()?,
                env!("CARGO_PKG_VERSION").to_owned(),
            ),
            _ => {
                let program = peer.find_program(directory)?;
                let version = peers::version_of(&program, peer.version_argument);
                (program, version)
            }
        };
        Some(BrokerProgram {
            variant: *self,
            program,
            version,
        })
    }
}

impl BrokerProgram {
    /// Starts the broker in `namespace` and waits until it listens. Writes its configuration and
    /// log to `directory`.
    pub(crate) fn start(
        &self,
        namespace: &Namespace,
        directory: &Path,
        placement: Placement,
    ) -> Result<Process> {
        let name = self.variant.name;
        let mut config_path = PathBuf::new();
        if let Some((file, text)) = self.variant.config_text() {
            config_path = directory.join(file);
            fs::write(&config_path, text)
                .map_err(Error::io(format!("cannot write {}", config_path.display())))?;
        }
        let log_path = directory.join(format!("{name}.log"));
        let log = fs::File::create(&log_path)
            .map_err(Error::io(format!("cannot write {}", log_path.display())))?;
        let log_too = log.try_clone().map_err(Error::io("cannot share the log"))?;

        let config = config_path.to_string_lossy();
        let arguments = self.variant.arguments.iter();
        let mut command = Command::new(&self.program);
        command
            .args(arguments.map(|argument| argument.replace("{config}", &config)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too);
        sys::prepare_child(&mut command, placement.core, placement.fifo);
        namespace.place(&mut command);
        let failure = |why: String| Error::Peer {
            peer: name.to_owned(),
            why: format!("{why}; see {}", log_path.display()),
        };
        let mut process = Process::spawn(&mut command)
            .map_err(|e| failure(format!("{}: {e}", self.program.display())))?;
        let deadline = Instant::now() + START_TIMEOUT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, BROKER.port()));
        loop {
            if let Some(status) = process.ended() {
                return Err(failure(format!("it ended with {status}")));
            }
            if namespace.enter(|| TcpStream::connect(address))?.is_ok() {
                return Ok(process);
            }
            if Instant::now() > deadline {
                return Err(failure(format!("nothing listens on {address}")));
            }
            thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_files_are_unique_and_peers_known() {
        let names: HashSet<_> = VARIANTS.iter().map(|variant| variant.name).collect();
        assert_eq!(names.len(), VARIANTS.len());
        let files: Vec<_> = VARIANTS.iter().filter_map(|v| Some(v.config?.0)).collect();
        assert_eq!(files.iter().collect::<HashSet<_>>().len(), files.len());
        for variant in VARIANTS {
            assert!(PEERS.iter().any(|peer| peer.name == variant.peer));
        }
        for name in [PUNCTUAL, MOSQUITTO] {
            assert!(names.contains(name));
        }
    }

    #[test]
    fn brokers_of_one_kind_differ_only_in_what_is_compared() {
        let text = |name: &str| {
            let variant = VARIANTS.iter().find(|v| v.name == name).unwrap();
            variant.config_text().unwrap().1
        };
        assert_eq!(
            text("mosquitto").replace("nodelay true", "nodelay false"),
            text("mosquitto-nagle")
        );
        assert_eq!(
            text("punctual-edf").replace("edf", "fifo"),
            text("punctual-fifo")
        );
        assert!(text("punctual-fifo").starts_with(&text(PUNCTUAL)));
    }
}
