//! The brokers of the experiment: Punctual with one feature after another disabled, and Mosquitto.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::compare::peers::{self, PEERS};
use crate::process::Process;
use crate::sys;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Port of every broker, which has a network namespace of its own.
pub(super) const PORT: u16 = 1883;

/// Longest wait for a broker to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Polling interval while waiting for a broker to listen.
const POLL: Duration = Duration::from_millis(20);

/// A broker with a configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    /// Explanation of the configuration for readers of the report.
    pub(super) note: &'static str,
    /// Name of the broker's program in `compare::peers::PEERS`.
    peer: &'static str,
    arguments: &'static [&'static str],
    file: &'static str,
    /// Configuration lines in addition to the common ones.
    own: &'static str,
}

/// A Punctual configuration that admits anonymous clients, on a port of every address.
pub(crate) fn punctual_common(port: u16) -> String {
    format!(
        "[[listener]]\naddress = \"tcp://*:{port}\"\nallow_anonymous = true\n\
         [server]\nhttp = \"off\"\nsys_interval = \"off\"\nshards = 1\n\
         [log]\nlevel = \"warn\"\n"
    )
}

/// A Mosquitto configuration that admits anonymous clients, on a port of every address.
pub(crate) fn mosquitto_common(port: u16) -> String {
    format!(
        "listener {port} 0.0.0.0\nallow_anonymous true\npersistence false\n\
         set_tcp_nodelay true\nmax_queued_messages 1000000\nmax_queued_bytes 0\n\
         max_inflight_messages 0\nlog_dest stderr\nlog_type error\n"
    )
}

const fn punctual(
    name: &'static str,
    note: &'static str,
    file: &'static str,
    own: &'static str,
) -> Variant {
    Variant {
        name,
        note,
        peer: "punctual",
        arguments: &["serve", "--config", "{config}"],
        file,
        own,
    }
}

/// Every configuration: Punctual's default, a smaller send buffer, fewer features, and Mosquitto's.
pub(super) const VARIANTS: [Variant; 7] = [
    punctual("punctual", "as it comes", "link.toml", ""),
    punctual(
        "small-buffer",
        "and the kernel holds less that is on its way (tcp.urgent_send_buffer = \"16KiB\")",
        "link-small-buffer.toml",
        "[tcp]\nurgent_send_buffer = \"16KiB\"\n",
    ),
    punctual(
        "no-marking",
        "all packets look alike to the device (marking.enabled = false)",
        "link-no-marking.toml",
        "[marking]\nenabled = false\n",
    ),
    punctual(
        "no-lowat",
        "the kernel takes as much as it has room for (tcp.notsent_lowat and \
         tcp.urgent_notsent_lowat = \"off\")",
        "link-no-lowat.toml",
        "[tcp]\nnotsent_lowat = \"off\"\nurgent_notsent_lowat = \"off\"\n",
    ),
    punctual(
        "no-lanes",
        "the broker sends in the order of arrival (egress.policy = \"fifo\")",
        "link-no-lanes.toml",
        "[egress]\npolicy = \"fifo\"\n",
    ),
    punctual(
        "nothing",
        "none of the three",
        "link-nothing.toml",
        "[marking]\nenabled = false\n\
         [tcp]\nnotsent_lowat = \"off\"\nurgent_notsent_lowat = \"off\"\n\
         [egress]\npolicy = \"fifo\"\n",
    ),
    Variant {
        name: "mosquitto",
        note: "set_tcp_nodelay true",
        peer: "mosquitto",
        arguments: &["-c", "{config}"],
        file: "link-mosquitto.conf",
        own: "",
    },
];

/// A broker whose executable was found.
#[derive(Clone, Debug)]
pub(super) struct BrokerProgram {
    pub(super) variant: Variant,
    program: PathBuf,
    pub(super) version: String,
}

impl Variant {
    fn configuration(&self) -> String {
        let common = match self.peer {
            "punctual" => punctual_common(PORT),
            _ => mosquitto_common(PORT),
        };
        format!("{common}{}", self.own)
    }

    /// Searches for the broker's executable as `bench compare` does.
    pub(super) fn find(&self, directory: &Path) -> Option<BrokerProgram> {
        let peer = PEERS.iter().find(|peer| peer.name == self.peer)?;
        let program = peer.find_program(directory)?;
        Some(BrokerProgram {
            variant: *self,
            version: peers::version_of(&program, peer.version_argument),
            program,
        })
    }
}

impl BrokerProgram {
    /// Starts the broker in `host`, pinned to a core, and waits until it listens. Writes its
    /// configuration and log to `directory`.
    pub(super) fn start(
        &self,
        host: &Namespace,
        directory: &Path,
        core: usize,
        fifo: u8,
    ) -> Result<Process> {
        let config = directory.join(self.variant.file);
        fs::write(&config, self.variant.configuration())
            .map_err(Error::io(format!("cannot write {}", config.display())))?;
        let log_path = config.with_extension("log");
        let log = fs::File::create(&log_path)
            .map_err(Error::io(format!("cannot write {}", log_path.display())))?;
        let log_too = log.try_clone().map_err(Error::io("cannot share the log"))?;
        let config = config.to_string_lossy();
        let arguments = self.variant.arguments.iter();
        let mut command = Command::new(&self.program);
        command
            .args(arguments.map(|argument| argument.replace("{config}", &config)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too);
        sys::prepare_child(&mut command, Some(core), fifo);
        host.place(&mut command);
        let failure = |why: String| Error::Peer {
            peer: self.variant.name.to_owned(),
            why: format!("{why}; see {}", log_path.display()),
        };
        let mut process = Process::spawn(&mut command)
            .map_err(|e| failure(format!("{}: {e}", self.program.display())))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let deadline = Instant::now() + START_TIMEOUT;
        while host.enter(|| TcpStream::connect(address))?.is_err() {
            if let Some(status) = process.ended() {
                return Err(failure(format!("it ended with {status}")));
            }
            if Instant::now() > deadline {
                return Err(failure(format!("nothing listens on {address}")));
            }
            thread::sleep(POLL);
        }
        Ok(process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_files_are_unique_and_peers_known() {
        let names: HashSet<_> = VARIANTS.iter().map(|variant| variant.name).collect();
        let files: HashSet<_> = VARIANTS.iter().map(|variant| variant.file).collect();
        assert_eq!((names.len(), files.len()), (VARIANTS.len(), VARIANTS.len()));
        for variant in VARIANTS {
            assert!(PEERS.iter().any(|peer| peer.name == variant.peer));
        }
    }

    #[test]
    fn each_of_ours_leaves_out_one_thing_and_the_last_all_of_them() {
        let own = |name| VARIANTS.iter().find(|v| v.name == name).unwrap().own;
        assert_eq!(own("punctual"), "");
        for name in ["no-marking", "no-lowat", "no-lanes"] {
            assert!(own("nothing").contains(own(name)), "{name}");
        }
    }
}
