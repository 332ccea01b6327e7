//! The system under test of a run: a fresh broker, or a forwarder in its place.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use punctual_measure::watch::Watch;
use punctual_measure::wire::Version;
use punctual_measure::{Error, Result};

use super::crowd::Crowd;
use crate::compare::peers::{BrokerProgram, FLOOR, PEERS, PUNCTUAL, Peer, Running, Setup};
use crate::federation::relay::RELAY_COMMAND;
use crate::process::Process;
use crate::sys;

/// Names in tables.
pub(super) const MOSQUITTO: &str = "mosquitto";
pub(super) const RELAY: &str = "relay";

/// Our broker on one shard. No case reaches a limit; the cache of topics, which refuses no client,
/// has its default size.
const CONFIG: &str = "[[listener]]\n\
    address = \"tcp://127.0.0.1:{port}\"\n\
    allow_anonymous = true\n\
    [log]\n\
    level = \"warn\"\n\
    [server]\n\
    http = \"off\"\n\
    sys_interval = \"off\"\n\
    shards = 1\n\
    connect_timeout = \"600s\"\n\
    max_half_open = 1000000\n\
    accept_rate = \"unlimited\"\n\
    max_drift = \"unlimited\"\n\
    [limits]\n\
    max_packet_size = \"255MiB\"\n\
    max_receive_bytes = \"16GiB\"\n\
    max_connections = \"unlimited\"\n\
    max_sessions = \"unlimited\"\n\
    max_subscriptions = \"unlimited\"\n\
    max_subscriptions_per_session = \"unlimited\"\n\
    max_queued_messages = \"unlimited\"\n\
    max_queued_bytes = \"unlimited\"\n\
    max_total_queued_bytes = \"unlimited\"\n\
    max_retained_messages = \"unlimited\"\n\
    max_retained_bytes = \"unlimited\"\n\
    [queue]\n\
    max_publisher_pause = \"60s\"\n";

/// Mosquitto, which has no limits on sessions, subscriptions and retained messages.
const MOSQUITTO_CONFIG: &str = "listener {port} 127.0.0.1\n\
    max_connections -1\n\
    allow_anonymous true\n\
    persistence false\n\
    set_tcp_nodelay true\n\
    max_queued_messages 0\n\
    max_queued_bytes 0\n\
    max_inflight_messages 0\n\
    sys_interval 0\n\
    log_dest stderr\n\
    log_type error\n";

/// A system that is measured, or that others are compared with.
pub(super) enum System {
    Broker(BrokerProgram),
    /// A process that copies bytes from one connection to another, without MQTT.
    Relay,
}

impl System {
    /// A broker from the table of peers, configured for these cases; `None` if its program is not
    /// found.
    pub(super) fn find(name: &'static str, directory: &std::path::Path) -> Option<Self> {
        if name == RELAY {
            return Some(Self::Relay);
        }
        let peer = PEERS.iter().find(|peer| peer.name == name)?;
        let peer = match name {
            PUNCTUAL => Peer {
                arguments: &["serve", "--config", "{config}"],
                config: Some(("scale.toml", CONFIG)),
                ..*peer
            },
            MOSQUITTO => Peer {
                config: Some(("scale-mosquitto.conf", MOSQUITTO_CONFIG)),
                ..*peer
            },
            _ => *peer,
        };
        peer.find(&directory.join("bin")).map(Self::Broker)
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Broker(found) => found.peer.name,
            Self::Relay => RELAY,
        }
    }

    /// Its name and version.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Broker(found) => format!("{} {}", found.peer.name, found.version),
            Self::Relay => RELAY.to_owned(),
        }
    }

    fn start(&self, setup: &Setup) -> Result<Started> {
        match self {
            Self::Broker(found) => found.start(setup, 0).map(Started::Broker),
            Self::Relay => Relay::start(setup.core).map(Started::Relay),
        }
    }
}

enum Started {
    Broker(Running),
    Relay(Relay),
}

/// Limits and sizes of the cases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Measured time of cases that send messages continuously.
    pub(super) duration: Duration,
    /// Longest time of one step of a case; a longer step fails.
    pub(super) patience: Duration,
    /// Clients that reconnect at once.
    pub(super) clients: u64,
}

/// A running system.
pub(super) struct Ground {
    started: Started,
    watch: Watch,
    pub(super) name: &'static str,
    pub(super) extent: Extent,
}

impl Ground {
    pub(super) fn start(system: &System, setup: &Setup, extent: Extent) -> Result<Self> {
        let started = system.start(setup)?;
        let pid = match &started {
            Started::Broker(running) => running.pid(),
            Started::Relay(relay) => relay.process.id(),
        };
        Ok(Self {
            watch: Watch::new(pid)?,
            started,
            name: system.name(),
            extent,
        })
    }

    /// The broker's address; a relay has none.
    pub(super) fn address(&self) -> SocketAddr {
        let port = match &self.started {
            Started::Broker(running) => running.port(Version::V311),
            Started::Relay(_) => 0,
        };
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    pub(super) fn crowd(&self) -> Result<Crowd> {
        Crowd::new(self.address(), self.extent.patience)
    }

    /// Connects a subscriber to `filters`, or to each of `topics` if the system does not know
    /// filters, and a publisher of version 3.1.1; returns the publisher's index.
    pub(super) fn pair(
        &self,
        version: Version,
        filter: &str,
        topics: &[String],
    ) -> Result<(Crowd, usize)> {
        let mut crowd = self.crowd()?;
        if let Started::Relay(relay) = &self.started {
            let end = |stream: &TcpStream| stream.try_clone().map_err(Error::io("cannot relay"));
            crowd.adopt("subscriber", version, end(&relay.out)?)?;
            let publisher = crowd.adopt("publisher", version, end(&relay.into)?)?;
            return Ok((crowd, publisher));
        }
        let filters = match self.name {
            FLOOR => topics,
            _ => &[filter.to_owned()],
        };
        crowd.client("subscriber", version, filters)?;
        let publisher = crowd.client("publisher", Version::V311, &[])?;
        Ok((crowd, publisher))
    }

    /// User and system CPU time of the broker so far. The kernel may count the last 4 ms later.
    pub(super) fn cpu(&self) -> Result<Duration> {
        self.watch.cpu_ns().map(Duration::from_nanos)
    }

    /// Exact CPU time of the broker, read when it has been idle for a while.
    pub(super) fn cpu_at_rest(&self) -> Result<Duration> {
        self.settle()?;
        self.cpu()
    }

    /// Anonymous memory of the broker (`RssAnon`) in bytes, read when the broker is idle.
    pub(super) fn memory(&self) -> Result<f64> {
        self.settle()?;
        Ok(self.watch.memory()?.anonymous as f64)
    }

    /// Waits until the broker has used less than a tenth of its core for some time.
    fn settle(&self) -> Result<()> {
        const LOOK: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + self.extent.patience;
        let (mut quiet, mut before) = (0, (Instant::now(), self.cpu()?));
        while quiet < 5 {
            thread::sleep(LOOK);
            let now = (Instant::now(), self.cpu()?);
            quiet = match (now.1 - before.1) * 10 < now.0 - before.0 {
                true => quiet + 1,
                false => 0,
            };
            before = now;
            if now.0 >= deadline {
                return Err(Error::Broker {
                    client: "none".to_owned(),
                    what: format!("was busy for {:?}", self.extent.patience),
                });
            }
        }
        Ok(())
    }
}

/// A relay between two connections.
struct Relay {
    into: TcpStream,
    out: TcpStream,
    process: Process,
}

impl Relay {
    fn start(core: usize) -> Result<Self> {
        let connections = connection().and_then(|first| Ok((first, connection()?)));
        let ((into, from), (to, out)) = connections.map_err(Error::io("cannot relay"))?;
        let own = std::env::current_exe().map_err(Error::io("cannot find this program"))?;
        let mut command = Command::new(own);
        command
            .args([RELAY_COMMAND, "--waits", "in-epoll"])
            .stdin(OwnedFd::from(from))
            .stdout(OwnedFd::from(to));
        sys::prepare_child(&mut command, Some(core), 0);
        let process = Process::spawn(&mut command).map_err(Error::io("cannot start a relay"))?;
        Ok(Self { into, out, process })
    }
}

/// The two ends of a connection.
fn connection() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    far.set_nodelay(true)?;
    Ok((near, far))
}
