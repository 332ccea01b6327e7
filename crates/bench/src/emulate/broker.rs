//! The broker on its emulated host: a real program, configured over standard input, so that it
//! leaves no file behind; and optionally the manager in front of it.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::compare::peers::{self, PEERS};
use crate::link::brokers::{mosquitto_common, punctual_common};
use crate::process::Process;
use crate::sys;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::{Namespace, memory_file};

/// Port of every broker, or of the manager in front of it; each host has its own namespace.
pub(super) const PORT: u16 = 1883;

/// Port of a broker behind a manager.
const BEHIND: u16 = 1884;

/// Configuration of the manager in addition to its command line.
const MANAGER: &str = "[server]\nhttp = \"off\"\n[log]\nlevel = \"warn\"\n";

/// Longest wait for a program to listen.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Polling interval while waiting for a program to listen.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// The program that serves as broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Punctual, the broker of this project
    Punctual,
    /// Mosquitto, from PATH
    Mosquitto,
}

/// A broker whose executable was found.
#[derive(Clone, Debug)]
pub(super) struct BrokerProgram {
    pub(super) name: &'static str,
    pub(super) version: String,
    program: PathBuf,
    arguments: &'static [&'static str],
    /// Returns the configuration for a port.
    configuration: fn(u16) -> String,
    /// Executable of the manager, if one is to run in front of the broker.
    manager: Option<PathBuf>,
}

impl Kind {
    /// Searches for the broker's executable.
    pub(super) fn find(self) -> Result<BrokerProgram> {
        let (name, arguments, configuration): (_, &[&str], fn(u16) -> String) = match self {
            Self::Punctual => (
                "punctual",
                &["serve", "--config", "/dev/stdin"],
                punctual_common as _,
            ),
            Self::Mosquitto => ("mosquitto", &["-c", "/dev/stdin"], mosquitto_common as _),
        };
        let missing = || Error::Config {
            field: "--broker",
            value: name.to_owned(),
            remedy: "it is not found; install it in PATH".to_owned(),
        };
        let peer = PEERS.iter().find(|peer| peer.name == name);
        let peer = peer.ok_or_else(missing)?;
        let program = peer
            .find_program(Path::new("target/bench/bin"))
            .ok_or_else(missing)?;
        Ok(BrokerProgram {
            name,
            version: peers::version_of(&program, peer.version_argument),
            program,
            arguments,
            configuration,
            manager: None,
        })
    }
}

impl BrokerProgram {
    /// Adds `punctual manager` in front of the broker.
    pub(super) fn behind_manager(self) -> Result<Self> {
        let manager = Kind::Punctual.find()?.program;
        Ok(Self {
            manager: Some(manager),
            ..self
        })
    }

    pub(super) fn has_manager(&self) -> bool {
        self.manager.is_some()
    }

    /// Starts the broker in `host` on a core (`None`: any) under `SCHED_FIFO` (0: the normal
    /// class), and waits until it listens. The kernel ends the broker with the calling thread at
    /// the latest.
    pub(super) fn start(
        &self,
        host: &Namespace,
        core: Option<usize>,
        fifo: u8,
    ) -> Result<Vec<Process>> {
        let serve = |port| {
            let mut command = Command::new(&self.program);
            command.args(self.arguments);
            let configuration = (self.configuration)(port);
            start(
                host,
                self.name,
                &mut command,
                &configuration,
                port,
                core,
                fifo,
            )
        };
        let Some(manager) = &self.manager else {
            return Ok(vec![serve(PORT)?]);
        };
        let broker = serve(BEHIND)?;
        let mut command = Command::new(manager);
        command.args(["manager", "--config", "/dev/stdin"]);
        command.args(["--upstream", &format!("{}:{BEHIND}", Ipv4Addr::LOCALHOST)]);
        command.args([
            "--listen",
            &format!("tcp://{}:{PORT}", Ipv4Addr::UNSPECIFIED),
        ]);
        let manager = start(host, "manager", &mut command, MANAGER, PORT, core, fifo)?;
        // The manager is dropped, and so ended, before the broker.
        Ok(vec![manager, broker])
    }
}

/// Starts a program that listens on a port, with its configuration on standard input.
fn start(
    host: &Namespace,
    name: &str,
    command: &mut Command,
    configuration: &str,
    port: u16,
    core: Option<usize>,
    fifo: u8,
) -> Result<Process> {
    let failed = |why: String| Error::Peer {
        peer: name.to_owned(),
        why,
    };
    let context = "cannot make a file in memory";
    let configuration =
        memory_file("configuration", configuration.as_bytes()).map_err(Error::io(context))?;
    let mut log = memory_file("log", &[]).map_err(Error::io(context))?;
    let [out, err] = [log.try_clone(), log.try_clone()];
    command
        .stdin(configuration)
        .stdout(out.map_err(Error::io(context))?)
        .stderr(err.map_err(Error::io(context))?);
    sys::prepare_child(command, core, fifo);
    host.place(command);
    let mut process = Process::spawn(command)
        .map_err(|error| failed(format!("{}: {error}", command.get_program().display())))?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let deadline = Instant::now() + START_TIMEOUT;
    while host.enter(|| TcpStream::connect(address))?.is_err() {
        if let Some(status) = process.ended() {
            let said = read(&mut log);
            return Err(failed(format!("it ended with {status}: {said}")));
        }
        if Instant::now() > deadline {
            let said = read(&mut log);
            return Err(failed(format!("nothing listens on {address}: {said}")));
        }
        thread::sleep(POLL);
    }
    Ok(process)
}

/// The content of a log; empty if it cannot be read.
pub(super) fn read(log: &mut File) -> String {
    let mut text = String::new();
    match log.rewind().and_then(|()| log.read_to_string(&mut text)) {
        Ok(_) => text.trim().to_owned(),
        Err(_) => String::new(),
    }
}
