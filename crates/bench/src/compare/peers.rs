//! The table of brokers, with how each is found, configured and started.
//!
//! Fair settings: Nagle's algorithm is off wherever a broker has the option, persistence is off,
//! queues are large enough that the generator's windows fill before a broker drops messages, limits
//! on messages in flight are above those windows, and only errors are logged.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use super::cases::{Case, Subject};
use crate::process::Process;
use crate::sys;
use punctual_measure::wire::Version;
use punctual_measure::{Error, Result};

/// Longest wait for a broker to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Polling interval while a broker starts.
const POLL: Duration = Duration::from_millis(20);

/// One broker. `arguments` and `config` may contain placeholders: `{port}`, `{port5}` (the second
/// port, for brokers that serve version 5 or another protocol there), `{config}` (path of the
/// configuration), `{directory}` (its directory), and those of [`Setup::further`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// Environment variable with the path of the program.
    pub(crate) variable: &'static str,
    /// Name of the program, which is searched for in the directory of peers and in PATH.
    pub(crate) program: &'static str,
    pub(crate) arguments: &'static [&'static str],
    /// File name and text of the configuration.
    pub(crate) config: Option<(&'static str, &'static str)>,
    /// File names and texts of further files, in the same directory or below it.
    pub(crate) files: &'static [(&'static str, &'static str)],
    pub(crate) version_argument: &'static str,
    pub(crate) v5_on_second_port: bool,
    pub(crate) most_qos: u8,
    /// Whether the broker may use every core; then only its throughput is measured.
    pub(crate) all_cores: bool,
    /// Remark for readers of the results.
    pub(crate) note: Option<&'static str>,
}

/// Name of the floor in tables and options.
pub(crate) const FLOOR: &str = "floor";

/// Name of our broker in tables and options.
pub(crate) const PUNCTUAL: &str = "punctual";

/// Every broker that can be compared.
pub(crate) const PEERS: [Peer; 6] = [
    Peer {
        name: FLOOR,
        variable: "FLOOR_BIN",
        program: "",
        arguments: &["floor", "--listen", "127.0.0.1:{port}"],
        config: None,
        files: &[],
        version_argument: "--version",
        v5_on_second_port: false,
        most_qos: 1,
        all_cores: false,
        note: Some("forwards only: exact topics, QoS 0 and 1, no sessions"),
    },
    Peer {
        name: PUNCTUAL,
        variable: "PUNCTUAL_BIN",
        program: "punctual",
        arguments: &[
            "serve",
            "--listen",
            "tcp://127.0.0.1:{port}",
            "--http",
            "off",
        ],
        config: None,
        files: &[],
        version_argument: "--version",
        v5_on_second_port: false,
        most_qos: 2,
        all_cores: false,
        note: None,
    },
    Peer {
        name: "punctual-2",
        variable: "PUNCTUAL_BIN",
        program: "punctual",
        arguments: &[
            "serve",
            "--listen",
            "tcp://127.0.0.1:{port}",
            "--http",
            "off",
            "--shards",
            "2",
        ],
        config: None,
        files: &[],
        version_argument: "--version",
        v5_on_second_port: false,
        most_qos: 2,
        all_cores: true,
        note: Some("two shards on all cores, one of them the generator's"),
    },
    Peer {
        name: "mosquitto",
        variable: "MOSQUITTO_BIN",
        program: "mosquitto",
        arguments: &["-c", "{config}"],
        config: Some((
            "mosquitto.conf",
            "listener {port} 127.0.0.1\n\
             allow_anonymous true\n\
             persistence false\n\
             set_tcp_nodelay true\n\
             max_queued_messages 1000000\n\
             max_queued_bytes 0\n\
             max_inflight_messages 0\n\
             log_dest stderr\n\
             log_type error\n",
        )),
        files: &[],
        version_argument: "-h",
        v5_on_second_port: false,
        most_qos: 2,
        all_cores: false,
        note: None,
    },
    Peer {
        name: "rumqttd",
        variable: "RUMQTTD_BIN",
        program: "rumqttd",
        arguments: &["-q", "-c", "{config}"],
        config: Some((
            "rumqttd.toml",
            "id = 0\n\
             [router]\n\
             id = 0\n\
             max_connections = 10100\n\
             max_outgoing_packet_count = 200\n\
             max_segment_size = 104857600\n\
             max_segment_count = 10\n\
             [v4.1]\n\
             name = \"v4\"\n\
             listen = \"127.0.0.1:{port}\"\n\
             next_connection_delay_ms = 0\n\
             [v4.1.connections]\n\
             connection_timeout_ms = 60000\n\
             max_payload_size = 1048576\n\
             max_inflight_count = 1000\n\
             dynamic_filters = true\n\
             [v5.1]\n\
             name = \"v5\"\n\
             listen = \"127.0.0.1:{port5}\"\n\
             next_connection_delay_ms = 0\n\
             [v5.1.connections]\n\
             connection_timeout_ms = 60000\n\
             max_payload_size = 1048576\n\
             max_inflight_count = 1000\n\
             dynamic_filters = true\n",
        )),
        files: &[],
        version_argument: "--version",
        v5_on_second_port: true,
        most_qos: 2,
        all_cores: false,
        note: Some("cannot switch Nagle's algorithm off"),
    },
    Peer {
        name: "mochi",
        variable: "MOCHI_BIN",
        program: "mochi",
        arguments: &["-listen", "127.0.0.1:{port}"],
        config: None,
        files: &[],
        version_argument: "-version",
        v5_on_second_port: false,
        most_qos: 2,
        all_cores: false,
        note: None,
    },
];

/// A broker whose program was found.
#[derive(Clone, Debug)]
pub(crate) struct BrokerProgram {
    pub(crate) peer: Peer,
    program: PathBuf,
    pub(crate) version: String,
}

/// Settings with which brokers are run.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Core to which a broker is pinned.
    pub(crate) core: usize,
    /// Directory for configurations and logs.
    pub(crate) directory: PathBuf,
    /// Further placeholders and their values, which may contain placeholders.
    pub(crate) further: Vec<(&'static str, String)>,
}

impl Peer {
    /// Whether the broker supports this case, and the case is meaningful for it.
    pub(crate) fn takes_part(&self, case: &Case) -> bool {
        case.qos <= self.most_qos && (!self.all_cores || case.subject == Subject::Throughput)
    }

    /// Looks for the broker's program: environment variable, `directory`, PATH.
    pub(crate) fn find(&self, directory: &Path) -> Option<BrokerProgram> {
        let (program, version) = if self.name == FLOOR {
            (
                env::current_exe().ok()?,
                env!("CARGO_PKG_VERSION").to_owned(),
            )
        } else {
            let program = self.find_program(directory)?;
            let version = version_of(&program, self.version_argument);
            (program, version)
        };
        Some(BrokerProgram {
            peer: *self,
            program,
            version,
        })
    }

    /// Looks for the program: environment variable, the directory of this program (`punctual`
    /// only), `directory`, PATH.
    pub(crate) fn find_program(&self, directory: &Path) -> Option<PathBuf> {
        if let Some(path) = env::var_os(self.variable) {
            return Some(path.into());
        }
        let beside = match self.program == PUNCTUAL {
            true => env::current_exe().ok(),
            false => None,
        };
        let beside = beside.as_deref().and_then(Path::parent);
        let path = env::var_os("PATH").unwrap_or_default();
        beside
            .into_iter()
            .chain([directory])
            .map(Path::to_owned)
            .chain(env::split_paths(&path))
            // Debian installs servers in a directory that may not be in PATH.
            .chain(std::iter::once("/usr/sbin".into()))
            .map(|directory| directory.join(self.program))
            .find(|candidate| candidate.is_file())
    }
}

/// The program of our broker.
///
/// # Errors
/// The program is not found.
pub(crate) fn punctual() -> Result<PathBuf> {
    let peer = PEERS.iter().find(|peer| peer.name == PUNCTUAL);
    // Our own broker is built by Cargo, and not into a directory of peers.
    let found = peer.and_then(|peer| peer.find_program(Path::new("target/bench/bin")));
    found.ok_or_else(punctual_is_missing)
}

/// The error where our broker is not found.
pub(crate) fn punctual_is_missing() -> Error {
    Error::Config {
        field: "PUNCTUAL_BIN",
        value: "not set".to_owned(),
        remedy: "put punctual beside punctual-bench or into PATH, or name it there".to_owned(),
    }
}

/// The first word in a program's answer that looks like a version.
pub(crate) fn version_of(program: &Path, argument: &str) -> String {
    let output = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .output();
    let text = output.map_or_else(
        |_| Vec::new(),
        |output| [output.stdout, output.stderr].concat(),
    );
    version_in(&String::from_utf8_lossy(&text)).unwrap_or_else(|| "unknown version".to_owned())
}

fn version_in(text: &str) -> Option<String> {
    text.split(|c: char| c.is_whitespace() || c == ',')
        .map(|word| word.trim_start_matches('v'))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
        .map(str::to_owned)
}

/// A broker that listens. Dropping the value ends the process.
pub(crate) struct Running {
    process: Process,
    port: u16,
    port5: u16,
    v5_on_second_port: bool,
}

impl BrokerProgram {
    /// Starts the broker on free ports, pinned to a core, and waits until it listens. `fifo` is a
    /// `SCHED_FIFO` priority, 0 for the normal class.
    pub(crate) fn start(&self, setup: &Setup, fifo: u8) -> Result<Running> {
        let name = self.peer.name;
        let (port, port5) = free_ports().map_err(Error::io("cannot find free ports"))?;
        let file = self.peer.config.map_or("", |(file, _)| file);
        let config = setup.directory.join(file);
        let fill = |text: &str| {
            let further = setup.further.iter();
            further
                .fold(text.to_owned(), |text, (name, value)| {
                    text.replace(name, value)
                })
                .replace("{port}", &port.to_string())
                .replace("{port5}", &port5.to_string())
                .replace("{config}", &config.to_string_lossy())
                .replace("{directory}", &setup.directory.to_string_lossy())
        };
        for (file, template) in self.peer.config.iter().chain(self.peer.files) {
            let path = setup.directory.join(file);
            path.parent()
                .map_or(Ok(()), fs::create_dir_all)
                .and_then(|()| fs::write(&path, fill(template)))
                .map_err(Error::io(format!("cannot write {}", path.display())))?;
        }
        let log_path = setup.directory.join(format!("{name}.log"));
        let log = fs::File::create(&log_path)
            .map_err(Error::io(format!("cannot write {}", log_path.display())))?;
        let log_too = log.try_clone().map_err(Error::io("cannot share the log"))?;

        let program = &self.program;
        let mut command = Command::new(program);
        command
            .args(self.peer.arguments.iter().map(|argument| fill(argument)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too);
        let core = (!self.peer.all_cores).then_some(setup.core);
        sys::prepare_child(&mut command, core, fifo);
        let process = Process::spawn(&mut command)
            .map_err(|e| self.failure(&format!("{}: {e}", program.display())))?;
        let mut running = Running {
            process,
            port,
            port5,
            v5_on_second_port: self.peer.v5_on_second_port,
        };
        running
            .wait_until_it_listens()
            .map_err(|why| self.failure(&format!("{why}; see {}", log_path.display())))?;
        Ok(running)
    }

    #[cfg(test)]
    pub(crate) fn for_test(peer: Peer) -> Self {
        Self {
            peer,
            program: "/bin/true".into(),
            version: "0.0".to_owned(),
        }
    }

    fn failure(&self, why: &str) -> Error {
        Error::Peer {
            peer: self.peer.name.to_owned(),
            why: why.to_owned(),
        }
    }
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The port for clients of `version`.
    pub(crate) fn port(&self, version: Version) -> u16 {
        if self.v5_on_second_port && version == Version::V5 {
            self.port5
        } else {
            self.port
        }
    }

    /// The second port, which serves MQTT 5 or another protocol.
    pub(crate) fn second_port(&self) -> u16 {
        self.port5
    }

    /// Kills the process with SIGKILL, as in a crash.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }

    /// Sends SIGTERM, and kills the process if it is still there after `patience`.
    pub(crate) fn stop(mut self, patience: Duration) {
        self.process.stop(patience);
    }

    fn wait_until_it_listens(&mut self) -> std::result::Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut ports = vec![self.port];
        if self.v5_on_second_port {
            ports.push(self.port5);
        }
        while Instant::now() < deadline {
            if let Some(status) = self.process.ended() {
                return Err(format!("it ended with {status}"));
            }
            ports.retain(|&port| std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
            if ports.is_empty() {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        Err(format!("nothing listens on port {}", ports[0]))
    }
}

/// Two ports on which no process listens at the moment.
fn free_ports() -> io::Result<(u16, u16)> {
    let one = TcpListener::bind("127.0.0.1:0")?;
    let two = TcpListener::bind("127.0.0.1:0")?;
    Ok((one.local_addr()?.port(), two.local_addr()?.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, version) in [
            ("mosquitto version 2.0.11\n\nmosquitto is an MQTT", "2.0.11"),
            ("rumqttd 0.20.0", "0.20.0"),
            ("punctual v0.1.0 (abc)", "0.1.0"),
        ] {
            assert_eq!(version_in(text).as_deref(), Some(version));
        }
        assert_eq!(version_in("no such option -h"), None);
    }

    #[test]
    fn a_program_that_ends_at_once_is_reported() {
        let found = BrokerProgram::for_test(PEERS[1]);
        let directory = tempdir();
        let setup = Setup {
            core: 0,
            directory: directory.clone(),
            further: Vec::new(),
        };
        let error = found.start(&setup, 0).err().map(|e| e.to_string());
        fs::remove_dir_all(directory).unwrap();
        assert!(error.unwrap().contains("it ended with"));
    }

    fn tempdir() -> PathBuf {
        let directory = env::temp_dir().join(format!("punctual-bench-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }
}
