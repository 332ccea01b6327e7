//! The broker in its host: a real one, told what to do on standard input, so that it leaves no
//! file behind.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::compare::peers::{self, PEERS};
use crate::error::{Error, Result};
use crate::link::brokers::{MOSQUITTO_COMMON, PUNCTUAL_COMMON};
use crate::netns::Namespace;
use crate::process::Process;
use crate::sys;

/// Where every broker listens: its host is its own.
pub(super) const PORT: u16 = 1883;

/// Longest wait for a broker to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between looks at a broker that starts.
const POLL: Duration = Duration::from_millis(10);

/// Which program is the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// This one.
    Punctual,
    /// Mosquitto, from PATH.
    Mosquitto,
}

/// A broker whose program was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) name: &'static str,
    pub(super) version: String,
    program: PathBuf,
    arguments: &'static [&'static str],
    configuration: &'static str,
}

impl Kind {
    /// Looks for its program.
    pub(super) fn find(self, is_broker: bool) -> Result<Found> {
        let (name, arguments, configuration): (_, &[&str], _) = match self {
            Self::Punctual => (
                "punctual",
                &["serve", "--config", "/dev/stdin"],
                PUNCTUAL_COMMON,
            ),
            Self::Mosquitto => ("mosquitto", &["-c", "/dev/stdin"], MOSQUITTO_COMMON),
        };
        let missing = || Error::Config {
            field: "--broker",
            value: name.to_owned(),
            remedy: "it is not found; install it in PATH".to_owned(),
        };
        let peer = PEERS.iter().find(|peer| peer.name == name);
        let peer = peer.ok_or_else(missing)?;
        let own = self == Self::Punctual && is_broker && std::env::var_os(peer.variable).is_none();
        let program = if own {
            std::env::current_exe().map_err(Error::io("cannot find this program"))?
        } else {
            peer.find_program(Path::new("target/bench/bin"))
                .ok_or_else(missing)?
        };
        Ok(Found {
            name,
            version: peers::version_of(&program, peer.version_argument),
            program,
            arguments,
            configuration,
        })
    }
}

impl Found {
    /// Starts it in `host` on a core (`None`: any) under `SCHED_FIFO` (0: not), and waits until
    /// it listens. It ends with the calling thread at the latest.
    pub(super) fn start(&self, host: &Namespace, core: Option<usize>, fifo: u8) -> Result<Process> {
        let failed = |why: String| Error::Peer {
            peer: self.name.to_owned(),
            why,
        };
        let context = "cannot make a file in memory";
        let configuration = sys::memory_file("configuration", self.configuration.as_bytes())
            .map_err(Error::io(context))?;
        let mut log = sys::memory_file("log", &[]).map_err(Error::io(context))?;
        let [out, err] = [log.try_clone(), log.try_clone()];
        let mut command = Command::new(&self.program);
        command
            .args(self.arguments)
            .stdin(configuration)
            .stdout(out.map_err(Error::io(context))?)
            .stderr(err.map_err(Error::io(context))?);
        sys::prepare_child(&mut command, core, fifo);
        host.place(&mut command);
        let mut process = Process::spawn(&mut command)
            .map_err(|error| failed(format!("{}: {error}", self.program.display())))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
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
}

/// What was written to a log; nothing if it cannot be read.
fn read(log: &mut File) -> String {
    let mut text = String::new();
    match log.rewind().and_then(|()| log.read_to_string(&mut text)) {
        Ok(_) => text.trim().to_owned(),
        Err(_) => String::new(),
    }
}
