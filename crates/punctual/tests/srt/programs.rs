//! The programs of a network: Mosquitto, the table, the manager, the controller,
//! and a flood.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use punctual_measure::http_get;
use punctual_southbound::srt::SCHEMA;
use punctual_testbed::netns::Namespace;
use serde_json::{Value, json};

use crate::network::{BROKER, Network, PORT, PUBLISHER, SUBSCRIBER};
use crate::until;

/// A process that ends with its value.
pub(crate) struct Program(Child);

impl Program {
    pub(crate) fn start(host: &Namespace, command: &mut Command, ready: Option<&str>) -> Self {
        Self::start_heard(host, command, ready, drop)
    }

    /// The same; `hear` gets what it says once it is ready.
    fn start_heard(
        host: &Namespace,
        command: &mut Command,
        ready: Option<&str>,
        hear: impl FnMut(String) + Send + 'static,
    ) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        host.place(command);
        let mut child = command.spawn().unwrap();
        let log = child.stderr.take().unwrap();
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        if let Some(ready) = ready {
            let mut said = String::new();
            let found = lines.any(|line| {
                said.push_str(&line);
                line.contains(ready)
            });
            assert!(found, "{command:?} ended: {said}");
        }
        // Whoever writes to a pipe that nobody reads is stopped.
        thread::spawn(move || lines.for_each(hear));
        Self(child)
    }
}

/// Gives a process real-time priority (SCHED_FIFO).
pub(crate) fn put_first(process: u32, priority: u8) {
    let done = Command::new("chrt")
        .args(["--fifo", "--all-tasks", "--pid"])
        .args([priority.to_string(), process.to_string()])
        .status();
    assert!(done.unwrap().success(), "chrt (apt install util-linux)");
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running controller.
pub(crate) struct Controller {
    program: Option<Program>,
    /// Switches whose entries were compared with the plan.
    compared: Arc<AtomicUsize>,
}

impl Controller {
    const HTTP: &str = "127.0.0.1:8081";
    const SWITCHES: &str = "127.0.0.1:6653";

    /// Starts one and waits until it decides and has all switches and hosts.
    pub(crate) fn start(network: &Network, table: &Table, more: &[&str]) -> Self {
        let document = table.directory.path().join("network.toml");
        fs::write(&document, network.document()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        command
            .args(["controller", "--listen", Self::SWITCHES])
            .args(["--http", Self::HTTP])
            .arg("--ovsdb")
            .arg(format!("unix:{}", table.socket().display()))
            .arg("--network")
            .arg(&document)
            .args(more);
        for (name, address) in [("p", PUBLISHER), ("b", BROKER), ("s", SUBSCRIBER)] {
            command.arg("--host").arg(format!("{name}={address}"));
        }
        let compared = Arc::new(AtomicUsize::new(0));
        let counted = compared.clone();
        let program = Program::start_heard(
            &network.switches,
            &mut command,
            Some("may connect"),
            move |line| {
                let ends = ["has been brought up to date", "is as it should be"];
                if ends.iter().any(|end| line.contains(end)) {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            },
        );
        for number in 1..=network.count {
            let target = format!("tcp:{}", Self::SWITCHES);
            let bridge = format!("s{number}");
            network
                .ovs
                .vsctl(["set-controller", &bridge, &target])
                .unwrap();
        }
        let links = usize::try_from(2 * (network.count - 1)).unwrap();
        until("the controller to know the network", || {
            let status = get(network, "/api/v1/controller")?;
            let between = status["links"].as_array()?.iter().filter(|link| {
                let (_, to) = link["name"].as_str().unwrap().split_once('>').unwrap();
                link["up"] == true && to.starts_with('s') && to.len() > 1
            });
            (status["deciding"] == true && between.count() >= links).then_some(())
        });
        Self {
            program: Some(program),
            compared,
        }
    }

    pub(crate) fn stop(&mut self) {
        self.program = None;
    }

    /// How many switches were compared with the plan.
    pub(crate) fn compared(&self) -> usize {
        self.compared.load(Ordering::Relaxed)
    }
}

fn get(network: &Network, path: &str) -> Option<Value> {
    let address = Controller::HTTP.parse().unwrap();
    let text = network
        .switches
        .enter(|| http_get(address, path).ok())
        .unwrap()?;
    serde_json::from_str(&text).ok()
}

/// The database of requirements.
pub(crate) struct Table {
    directory: tempfile::TempDir,
    server: Program,
}

impl Table {
    /// Starts it in the namespace of the one who uses it.
    pub(crate) fn start(host: &Namespace) -> Self {
        let directory = tempfile::Builder::new().prefix("srt").tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("schema"), SCHEMA).unwrap();
        let made = Command::new("ovsdb-tool")
            .arg("create")
            .args([at("db"), at("schema")])
            .status()
            .unwrap();
        assert!(made.success());
        let mut command = Command::new("ovsdb-server");
        command
            .arg(format!("--remote=punix:{}", at("socket").display()))
            .arg(format!("--unixctl={}", at("control").display()))
            .arg(at("db"))
            .env("OVS_RUNDIR", directory.path());
        let server = Program::start(host, &mut command, None);
        until("the table", || at("socket").exists().then_some(()));
        Self { directory, server }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// Requests, as a manager does, a flow of datagrams from one peer to others.
    pub(crate) fn request(&self, publisher: &str, subscribers: [&str; 2]) {
        let row = json!({
            "manager": "me", "flow": "axis", "generation": 1, "topic": "axis", "qos": 0,
            "publisher": publisher, "subscribers": ["set", subscribers],
            "deadline_ns": 50_000_000, "period_ns": 100_000_000, "jitter_ns": 0,
            "size": 100, "wire_bytes": 202, "frames": 1,
        });
        let operation = json!(["Punctual", {"op": "insert", "table": "Request", "row": row}]);
        let done = self.client("transact", &[&operation.to_string()]);
        assert!(done.contains("uuid"), "{done}");
    }

    /// Columns of a table's rows, comma-separated.
    pub(crate) fn dump(&self, table: &str, columns: &[&str]) -> String {
        let named = ["Punctual", table].into_iter();
        let arguments: Vec<&str> = named.chain(columns.iter().copied()).collect();
        self.client("dump", &arguments)
    }

    /// The multicast address of the only flow, once it has one.
    pub(crate) fn group(&self) -> Option<String> {
        let text = self.dump("Channel", &["group_address"]);
        let mut words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
        words
            .find(|word| word.starts_with("239."))
            .map(str::to_owned)
    }

    fn client(&self, command: &str, arguments: &[&str]) -> String {
        let socket = format!("unix:{}", self.socket().display());
        let output = Command::new("ovsdb-client")
            .args(["-f", "csv", "--no-headings", command, &socket])
            .args(arguments)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    /// A file beside the database's.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Everything that runs.
pub(crate) struct Programs<'a> {
    network: &'a Network,
    pub(crate) controller: Controller,
    pub(crate) table: Table,
    _manager: Program,
    broker: Program,
    _directory: tempfile::TempDir,
}

impl<'a> Programs<'a> {
    /// Starts all; `None` if Mosquitto is not installed.
    pub(crate) fn start(network: &'a Network, manager: &[&str]) -> Option<Self> {
        Self::start_with(network, manager, &[])
    }

    /// The same, with arguments for the controller, too.
    pub(crate) fn start_with(
        network: &'a Network,
        manager: &[&str],
        controller: &[&str],
    ) -> Option<Self> {
        let mosquitto = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        assert!(
            mosquitto.is_some() || std::env::var_os("PUNCTUAL_REQUIRE_MOSQUITTO").is_none(),
            "mosquitto is not installed (apt install mosquitto)"
        );
        let Some(mosquitto) = mosquitto else {
            eprintln!("skipped: mosquitto is not installed (apt install mosquitto)");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("mosquitto.conf");
        fs::write(
            &config,
            "listener 1884 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nuser root\n",
        )
        .unwrap();
        let mut command = Command::new(mosquitto);
        command.arg("-c").arg(&config);
        let broker = Program::start(&network.broker, &mut command, Some("running"));
        let table = Table::start(&network.switches);
        let controller = Controller::start(network, &table, controller);
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        command
            .args(["manager", "--upstream", "127.0.0.1:1884", "--listen"])
            .arg(format!("tcp://{BROKER}:{PORT}"))
            .args(["--name", "m", "--ovsdb"])
            .arg(format!("unix:{}", table.socket().display()))
            .args(manager);
        let ready = Some("requirements is there");
        let manager = Program::start(&network.broker, &mut command, ready);
        Some(Self {
            network,
            controller,
            table,
            _manager: manager,
            broker,
            _directory: directory,
        })
    }

    /// Gives the programs that are not ours real-time priority.
    pub(crate) fn put_others_first(&self, priority: u8) {
        for program in [&self.broker, &self.table.server] {
            put_first(program.0.id(), priority);
        }
    }

    /// What the controller has answered.
    pub(crate) fn channel(&self, flow: &str) -> Option<Value> {
        let flow = flow.replace('/', "%2F").replace('@', "%40");
        let path = format!("/api/v1/controller/explain?manager=m&flow={flow}");
        let mut explained = get(self.network, &path)?;
        let channel = explained["channel"].take();
        (!channel.is_null()).then_some(channel)
    }
}

/// Datagrams from the publisher's host to the subscriber's.
pub(crate) struct Flood {
    stop: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Flood {
    const PAYLOAD: usize = 1400;
    const PAUSE: Duration = Duration::from_millis(1);

    /// So many bits per second.
    pub(crate) fn start(network: &Network, rate: u64) -> Self {
        let open = || UdpSocket::bind((PUBLISHER, 0)).unwrap();
        let socket = network.publisher.enter(open).unwrap();
        socket.connect((SUBSCRIBER, 9)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let sender = thread::spawn(move || {
            let began = Instant::now();
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                let due = began.elapsed().as_micros() as u64 * rate / 8_000_000;
                while sent < due {
                    // Nobody listens there, and tells so.
                    let _ = socket.send(&[0; Self::PAYLOAD]);
                    sent += Self::PAYLOAD as u64;
                }
                thread::sleep(Self::PAUSE);
            }
        });
        Self {
            stop,
            sender: Some(sender),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(sender) = self.sender.take() {
            let _ = sender.join();
        }
    }
}

/// A datagram each millisecond from the publisher's host to the subscriber's, in which nothing
/// was asked for.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicUsize>,
    sender: JoinHandle<usize>,
    receiver: JoinHandle<()>,
}

impl Traffic {
    const PORT: u16 = 4711;
    const PAUSE: Duration = Duration::from_millis(1);

    pub(crate) fn start(network: &Network) -> Self {
        let open = |address| UdpSocket::bind(address).unwrap();
        let from = network.publisher.enter(|| open((PUBLISHER, 0))).unwrap();
        let to = (SUBSCRIBER, Self::PORT);
        let receiving = network.subscriber.enter(|| open(to)).unwrap();
        receiving
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let arrived = Arc::new(AtomicUsize::new(0));
        let (stopped, counted) = (stop.clone(), arrived.clone());
        let sender = thread::spawn(move || {
            let mut sent: usize = 0;
            while !stopped.load(Ordering::Relaxed) {
                from.send_to(&sent.to_be_bytes(), to).unwrap();
                sent += 1;
                thread::sleep(Self::PAUSE);
            }
            sent
        });
        let stopped = stop.clone();
        let receiver = thread::spawn(move || {
            let mut datagram = [0; 8];
            loop {
                match receiving.recv(&mut datagram) {
                    Ok(_) => {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    // Nothing has come for long after the last was sent.
                    Err(_) if stopped.load(Ordering::Relaxed) => return,
                    Err(_) => {}
                }
            }
        });
        Self {
            stop,
            arrived,
            sender,
            receiver,
        }
    }

    /// How many datagrams have come.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::Relaxed)
    }

    /// How many were sent, and how many of them have come.
    pub(crate) fn stop(self) -> (usize, usize) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        self.receiver.join().unwrap();
        (sent, self.arrived.load(Ordering::Relaxed))
    }
}
