//! The brokers and durability levels that are compared, each with a data directory of its own.
//!
//! Queues are large and limits on messages in flight are high, as in `bench compare`, so that
//! messages are lost by the kill only, and not by a limit.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::compare::peers::{BrokerProgram, Peer, Running, Setup};
use punctual_measure::http_get;
use punctual_measure::wire::Version;
use punctual_measure::{Distribution, Samples};
use punctual_measure::{Error, Result};

/// Our broker without a store.
pub(super) const NO_STORE: &str = "no-store";
/// Our broker with a store that promises no durability.
pub(super) const NONE: &str = "none";
/// Our broker with the default durability level of its store.
pub(super) const BATCHED: &str = "batched";

/// Rest between the start of a broker and its first client.
const SETTLE: Duration = Duration::from_millis(200);

/// Time that Mosquitto may take to write its database when it ends.
const PATIENCE: Duration = Duration::from_secs(60);

const PUNCTUAL_COMMON: &str = "[[listener]]\n\
     address = \"tcp://127.0.0.1:{port}\"\n\
     allow_anonymous = true\n\
     [log]\n\
     level = \"warn\"\n\
     [limits]\n\
     max_queued_messages = 1000000\n\
     max_queued_bytes = \"1GiB\"\n\
     max_total_queued_bytes = \"4GiB\"\n\
     max_inflight = 1000\n\
     [server]\n\
     http = \"127.0.0.1:{port5}\"\n\
     sys_interval = \"off\"\n\
     shards = 1\n";

macro_rules! punctual {
    ($name:literal, $level:literal, $note:expr) => {
        Peer {
            name: $name,
            variable: "PUNCTUAL_BIN",
            program: "punctual",
            arguments: &["serve", "--config", "{config}"],
            config: Some((
                concat!("durability-", $name, ".toml"),
                concat!(
                    "{common}",
                    "data = \"{data}\"\n[store]\ndurability = \"",
                    $level,
                    "\"\n{store}"
                ),
            )),
            files: &[],
            version_argument: "--version",
            v5_on_second_port: false,
            most_qos: 2,
            all_cores: false,
            note: $note,
        }
    };
}

macro_rules! mosquitto {
    ($name:literal, $own:literal, $note:expr) => {
        Peer {
            name: $name,
            variable: "MOSQUITTO_BIN",
            program: "mosquitto",
            arguments: &["-c", "{config}"],
            config: Some((
                concat!("durability-", $name, ".conf"),
                concat!(
                    "listener {port} 127.0.0.1\n\
                     allow_anonymous true\n\
                     set_tcp_nodelay true\n\
                     max_queued_messages 1000000\n\
                     max_queued_bytes 0\n\
                     max_inflight_messages 0\n\
                     log_dest stderr\n\
                     log_type error\n",
                    $own
                ),
            )),
            files: &[],
            version_argument: "-h",
            v5_on_second_port: false,
            most_qos: 2,
            all_cores: false,
            note: $note,
        }
    };
}

/// RMQTT with its plugin for sessions, which needs a configuration file and a directory.
const RMQTT: Peer = Peer {
    name: "rmqtt-sessions",
    variable: "RMQTTD_BIN",
    program: "rmqttd",
    arguments: &["-f", "{config}"],
    config: Some((
        "durability-rmqtt.toml",
        "node.id = 1\n\
         rpc.server_addr = \"127.0.0.1:{port5}\"\n\
         log.to = \"console\"\n\
         log.level = \"error\"\n\
         plugins.dir = \"{directory}/durability-rmqtt/\"\n\
         plugins.default_startups = [\"rmqtt-session-storage\"]\n\
         listener.tcp.external.addr = \"127.0.0.1:{port}\"\n\
         listener.tcp.external.allow_anonymous = true\n\
         listener.tcp.external.nodelay = true\n\
         listener.tcp.external.min_keepalive = 0\n\
         listener.tcp.external.allow_zero_keepalive = true\n\
         listener.tcp.external.max_inflight = 1000\n\
         listener.tcp.external.max_mqueue_len = 1000000\n\
         listener.tcp.external.mqueue_rate_limit = \"4000000000,1s\"\n\
         listener.tcp.external.message_expiry_interval = \"0s\"\n\
         listener.tcp.external.message_retry_interval = \"0s\"\n",
    )),
    files: &[(
        "durability-rmqtt/rmqtt-session-storage.toml",
        "storage.type = \"sled\"\n\
         storage.sled.path = \"{data}/sessions\"\n\
         storage.sled.cache_capacity = \"1G\"\n",
    )],
    version_argument: "--version",
    v5_on_second_port: false,
    most_qos: 2,
    all_cores: false,
    note: Some("plugin rmqtt-session-storage with sled"),
};

/// All systems, in the order of the tables.
pub(super) const SYSTEMS: [Peer; 8] = [
    Peer {
        config: Some(("durability-no-store.toml", "{common}")),
        ..punctual!("no-store", "none", Some("started without a directory"))
    },
    punctual!("none", "none", Some("durability = \"none\"")),
    punctual!(
        "batched",
        "batched",
        Some("durability = \"batched\", the default")
    ),
    punctual!("sync", "sync", Some("durability = \"sync\"")),
    mosquitto!(
        "mosquitto",
        "persistence false\n",
        Some("persistence false")
    ),
    mosquitto!(
        "mosquitto-default",
        "persistence true\npersistence_location {data}/\n",
        Some("persistence true: a file every half hour and at an orderly end")
    ),
    mosquitto!(
        "mosquitto-autosave",
        "persistence true\npersistence_location {data}/\n\
         autosave_on_changes true\nautosave_interval 1\n",
        Some("autosave_on_changes true, autosave_interval 1")
    ),
    RMQTT,
];

/// A system whose program was found.
#[derive(Clone, Debug)]
pub(super) struct System {
    pub(super) found: BrokerProgram,
    setup: Setup,
    data: PathBuf,
}

impl System {
    /// Looks for the program of `peer`. Configurations and logs go to `directory`, data to a
    /// directory below `data`. `store` has additional lines for our section `store`.
    pub(super) fn find(
        peer: &Peer,
        directory: &Path,
        data: &Path,
        core: usize,
        store: &str,
    ) -> Option<Self> {
        let found = peer.find(&directory.join("bin"))?;
        let data = data.join(peer.name);
        Some(Self {
            found,
            setup: Setup {
                core,
                directory: directory.to_owned(),
                further: vec![
                    ("{common}", PUNCTUAL_COMMON.to_owned()),
                    ("{data}", data.to_string_lossy().into_owned()),
                    ("{store}", store.to_owned()),
                ],
            },
            data,
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.found.peer.name
    }

    /// Whether it is our broker.
    pub(super) fn is_ours(&self) -> bool {
        self.found.peer.program == "punctual"
    }

    /// The data directory.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Starts the broker with an empty data directory.
    pub(super) fn start_empty(&self) -> Result<Broker> {
        self.remove_data()?;
        if !self.is_ours() {
            // Mosquitto does not create its directory, and drops root privileges before it writes.
            fs::create_dir_all(&self.data)
                .and_then(|()| fs::set_permissions(&self.data, Permissions::from_mode(0o777)))
                .map_err(Error::io(format!("cannot create {}", self.data.display())))?;
        }
        let broker = self.start()?;
        thread::sleep(SETTLE);
        Ok(broker)
    }

    /// Starts the broker with its stored data.
    pub(super) fn start(&self) -> Result<Broker> {
        let running = self.found.start(&self.setup, 0)?;
        let port = running.port(Version::V311);
        Ok(Broker {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            metrics: self
                .is_ours()
                .then(|| SocketAddr::from(([127, 0, 0, 1], running.second_port()))),
            running,
        })
    }

    /// Removes the stored data.
    pub(super) fn remove_data(&self) -> Result<()> {
        match fs::remove_dir_all(&self.data) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(format!(
                "cannot remove {}",
                self.data.display()
            ))(error)),
            _ => Ok(()),
        }
    }
}

/// A running broker.
pub(super) struct Broker {
    pub(super) address: SocketAddr,
    metrics: Option<SocketAddr>,
    running: Running,
}

impl Broker {
    pub(super) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Kills the broker with SIGKILL, as in a crash.
    pub(super) fn kill(self) {
        self.running.kill();
    }

    /// Ends the broker in order, and waits as long as it needs.
    pub(super) fn stop(self) {
        self.running.stop(PATIENCE);
    }

    /// Statistics of the broker's store; `None` if it has none.
    pub(super) fn commits(&self) -> Result<Option<Commits>> {
        let Some(metrics) = self.metrics else {
            return Ok(None);
        };
        let samples = Samples::parse(&http_get(metrics, "/metrics")?);
        let distribution = |name| samples.distribution(name, &[]);
        let (Some(commits), Some(groups)) = (
            distribution("punctual_store_commit_seconds"),
            distribution("punctual_store_group_bytes"),
        ) else {
            return Ok(None);
        };
        let sum = |name| samples.sum(name, &[]).unwrap_or(0.0);
        let ms = |commits: &Distribution, q| commits.quantile(q).unwrap_or(0.0) * 1e3;
        Ok((commits.count > 0.0).then(|| Commits {
            count: commits.count as u64,
            p50_ms: ms(&commits, 0.5),
            p99_ms: ms(&commits, 0.99),
            group_bytes: groups.mean().unwrap_or(0.0),
            written_bytes: sum("punctual_store_written_bytes_total") as u64,
            pauses: sum("punctual_store_pauses_total") as u64,
        }))
    }
}

/// Commits in a run, by the broker's metrics.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Commits {
    pub(super) count: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Mean bytes that were submitted for a commit.
    pub(super) group_bytes: f64,
    /// Bytes that all commits wrote: other submitted data was obsolete before its commit.
    pub(super) written_bytes: u64,
    /// Times that the broker stopped reading from a publisher because of the disk.
    pub(super) pauses: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_files_are_unique() {
        let names: HashSet<_> = SYSTEMS.iter().map(|system| system.name).collect();
        let files: HashSet<_> = SYSTEMS.iter().map(|system| system.config).collect();
        assert_eq!((names.len(), files.len()), (SYSTEMS.len(), SYSTEMS.len()));
        for name in [NO_STORE, NONE, BATCHED] {
            assert!(names.contains(name), "{name}");
        }
    }
}
