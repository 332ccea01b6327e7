//! Measures how much one client delays others: an admitted flow, an urgent one and a plain one run
//! beside a neighbour that repeats one operation, kind by kind. The baselines are the same broker
//! without a neighbour, and a forwarder on the same core, which shows the delays of the machine
//! itself.

mod kinds;
mod units;

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use punctual_measure::load::meter::Recorder;
use punctual_measure::load::{self, Latency, Options, Pace, Report, Scenario};
use punctual_measure::noise::{Gaps, Watcher};
use punctual_measure::wire::Version;
use punctual_measure::{Api, Error, HttpPlace, Result, Samples};
use serde::Serialize;

use self::kinds::{KINDS, Kind, Place};
use crate::arguments::seconds;
use crate::compare::machine::Machine;
use crate::compare::peers::{self, BrokerProgram, FLOOR, PEERS, Peer, Running, Setup};
use crate::results_file::ResultsFile;

/// Messages per second of each of the three timed flows.
const RATE: f64 = 500.0;
/// `SCHED_FIFO` priority of the clients that are timed: the neighbour shares their core.
const FIFO: u8 = 30;

/// Limit for the time of one piece of work in timed runs: the default of `server.slice`.
const SLICE: &str = "100us";
/// Prefix of the topics of the admitted flow.
const ADMITTED: &str = "admitted";
/// Name of the row without a neighbour.
const IDLE: &str = "idle";
/// Duration of the traffic before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);

/// Our broker with admission control, one shard, and limits that neighbours do not reach.
/// Configuration that a kind adds begins inside the section `server`.
const BROKER: Peer = Peer {
    name: "punctual",
    variable: "PUNCTUAL_BIN",
    program: "punctual",
    arguments: &["serve", "--config", "{config}"],
    config: Some((
        "neighbours.toml",
        "[[listener]]\n\
         address = \"tcp://127.0.0.1:{port}\"\n\
         allow_anonymous = true\n\
         [log]\n\
         level = \"warn\"\n\
         [limits]\n\
         max_subscriptions_per_session = 100000\n\
         max_queued_messages = 100000\n\
         max_retained_messages = 2000000\n\
         [admission]\n\
         enabled = true\n\
         max_user_load = 100\n\
         [server]\n\
         http = \"127.0.0.1:{port5}\"\n\
         sys_interval = \"off\"\n\
         shards = 1\n\
         realtime = {realtime}\n\
         slice = \"{slice}\"\n\
         {kind}",
    )),
    files: &[],
    version_argument: "--version",
    v5_on_second_port: false,
    most_qos: 2,
    all_cores: false,
    note: None,
};

/// Options of `neighbours`.
#[derive(Args, Debug)]
pub(crate) struct NeighboursArgs {
    /// Kinds of neighbours, several with commas [default: all but those of --full]
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        conflicts_with = "full"
    )]
    only: Vec<String>,
    /// Include kinds that take long to prepare: million
    #[arg(long)]
    full: bool,
    /// Measure no times, but the most units of work that the broker does in one piece, at a tenth
    /// of the load; exit with 1 if one kind exceeds the limit
    #[arg(long, conflicts_with_all = ["duration", "realtime", "json"])]
    units: bool,
    /// Seconds measured for each kind
    #[arg(long, short, value_name = "S", default_value = "4", value_parser = seconds)]
    duration: Duration,
    /// Give the broker's thread real-time priority
    #[arg(long)]
    realtime: bool,
    /// Core of the broker
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    broker_core: usize,
    /// Core of the clients, including the noisy one
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    clients_core: usize,
    /// Directory for configuration and logs
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    /// File for the results as JSON, written after each kind [default: DIR/neighbours.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Delays of the timed flows beside one kind of neighbour.
#[derive(Debug, Serialize)]
struct Row {
    kind: &'static str,
    what: &'static str,
    /// How often the neighbour performed its operation.
    times: u64,
    admitted: Lateness,
    urgent: Lateness,
    plain: Lateness,
    /// Number of gaps, in which one of the two cores did not run its most urgent thread, and the
    /// longest, µs.
    gaps: u64,
    longest_gap_us: f64,
    broker: Option<Seen>,
}

/// Latency of the messages of one timed flow.
#[derive(Debug, Serialize)]
struct Lateness {
    /// Statistics of all messages.
    report: Report,
    /// Latency of the messages that were not in transit during a gap.
    clean: Latency,
    /// Messages not in transit during a gap whose latency exceeded the bound that the broker
    /// promised.
    beyond_bound: u64,
}

impl Lateness {
    fn new(report: Report, gaps: &Gaps, bound_us: f64) -> Self {
        let mut clean = Recorder::default();
        let mut beyond_bound = 0;
        for (from, to) in report
            .times
            .iter()
            .filter(|(from, to)| !gaps.met(*from, *to))
        {
            let took = to.saturating_sub(*from);
            clean.record(took);
            beyond_bound += u64::from(took as f64 / 1e3 > bound_us);
        }
        Self {
            clean: clean.summary().unwrap_or_default(),
            report,
            beyond_bound,
        }
    }
}

/// Pieces of one kind of work that exceeded the limit of time.
#[derive(Debug, Serialize)]
struct Overruns {
    work: String,
    count: f64,
    longest_us: f64,
}

/// Metrics of the broker.
#[derive(Debug, Default, Serialize)]
struct Seen {
    /// Latency bound of the admitted flow, µs.
    bound_us: f64,
    /// Longest time of a message of the admitted flow in the broker, from arrival to writing, µs.
    broker_max_us: f64,
    misses: f64,
    /// Pieces of work that exceeded the limit of time, by kind of work.
    overruns: Vec<Overruns>,
}

impl NeighboursArgs {
    /// Runs all kinds; progress goes to standard error, the table to `out`. Returns false if
    /// `--units` found a piece of work above the limit.
    ///
    /// # Errors
    /// A kind is not known, the broker is not found, or a client fails.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<bool> {
        let kinds = self.kinds()?;
        fs::create_dir_all(&self.directory).map_err(Error::io(format!(
            "cannot create {}",
            self.directory.display()
        )))?;
        kinds::write_files(&self.directory)?;
        let done = match self.units {
            true => self.check_units(&kinds, out),
            false => self.measure(&kinds, out).map(|()| true),
        };
        done.and_then(|done| forget(&self.store()).map(|()| done))
    }

    /// The kinds that the user chose.
    fn kinds(&self) -> Result<Vec<&'static Kind>> {
        let names = || KINDS.iter().map(|kind| kind.name);
        if let Some(unknown) = self.only.iter().find(|it| names().all(|name| name != **it)) {
            return Err(Error::Config {
                field: "--only",
                value: unknown.clone(),
                remedy: format!("choose from {}", names().collect::<Vec<_>>().join(", ")),
            });
        }
        let is_chosen = |kind: &&Kind| match self.only.is_empty() {
            true => self.full || !kind.is_long,
            false => self.only.iter().any(|name| name == kind.name),
        };
        Ok(KINDS.iter().filter(is_chosen).collect())
    }

    fn measure(&self, kinds: &[&'static Kind], out: &mut dyn Write) -> Result<()> {
        let machine = Machine::read();
        let file = ResultsFile::new(self.json.as_deref(), &self.directory, "neighbours.json")?;
        let json = |rows: &[Row]| serde_json::json!({"machine": machine, "rows": rows});
        let mut rows = vec![self.floor()?, self.row(None)?];
        for kind in kinds {
            eprintln!("{}: {}", kind.name, kind.what);
            rows.push(self.row(Some(kind))?);
            file.write(&json(&rows), false)?;
        }
        file.write(&json(&rows), true)?;
        self.write(&machine, &rows, out)
            .map_err(Error::io("cannot write the table"))
    }

    /// Data directory of brokers with a store.
    fn store(&self) -> PathBuf {
        self.directory.join("neighbours-store")
    }

    fn find(&self, peer: &Peer) -> Result<(BrokerProgram, Setup)> {
        let found = peer.find(&self.directory.join("bin"));
        let found = found.ok_or_else(peers::punctual_is_missing)?;
        let setup = Setup {
            core: self.broker_core,
            directory: self.directory.clone(),
            further: Vec::new(),
        };
        Ok((found, setup))
    }

    /// Starts our broker with the configuration of a kind and a limit for the time of one piece of
    /// work. The broker may use any core if nothing is timed.
    fn start(&self, kind: Option<&Kind>, slice: &str) -> Result<Started> {
        let all_cores = self.units;
        let (found, mut setup) = self.find(&Peer {
            all_cores,
            ..BROKER
        })?;
        forget(&self.store())?;
        let tls = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let tls = tls.map_err(Error::io("cannot find a free port"))?;
        setup.further = vec![
            ("{kind}", kind.map_or("", |kind| kind.config).to_owned()),
            ("{store}", self.store().to_string_lossy().into_owned()),
            ("{tls}", tls.port().to_string()),
            ("{slice}", slice.to_owned()),
            ("{realtime}", self.realtime.to_string()),
        ];
        let running = found.start(&setup, 0)?;
        let http = Api::new(HttpPlace::Tcp(address(running.second_port())), None);
        http.authenticate()?;
        Ok(Started { running, tls, http })
    }

    /// Runs the timed clients with a forwarder in the broker's place.
    fn floor(&self) -> Result<Row> {
        let floor = PEERS
            .iter()
            .find(|peer| peer.name == FLOOR)
            .unwrap_or(&BROKER);
        let (found, setup) = self.find(floor)?;
        let running = found.start(&setup, if self.realtime { FIFO } else { 0 })?;
        let run = self.probes(address(running.port(Version::V5)), || Ok(0))?;
        let what = "a forwarder in the broker's place: what the machine does";
        Ok(run.row("floor", what, None))
    }

    fn row(&self, kind: Option<&'static Kind>) -> Result<Row> {
        let started = self.start(kind, SLICE)?;
        let stop = AtomicBool::new(false);
        let place = started.place(&self.directory, &stop, 1);
        if let Some(kind) = kind {
            (kind.prepare)(&place)?;
        }
        let (run, seen) = thread::scope(|scope| {
            // The broker discards the metrics of a flow when its client disconnects, so they are
            // read shortly before the run ends.
            let seen = scope.spawn(|| {
                thread::sleep(WARM_UP + self.duration.mul_f64(0.9));
                seen(place.http)
            });
            let noise = kind.map(|kind| {
                scope.spawn(move || {
                    // On the clients' core, but without their real-time priority.
                    crate::sys::pin_to_core(self.clients_core)
                        .map_err(Error::io("cannot pin the neighbour"))?;
                    kind.disturb(&place)
                })
            });
            let end = || {
                stop.store(true, Ordering::Relaxed);
                noise.map_or(Ok(0), |noise| noise.join().unwrap_or(Ok(0)))
            };
            let run = self.probes(place.mqtt, end)?;
            let ended = |_| Error::io("the watcher ended")(std::io::ErrorKind::Other.into());
            Ok::<_, Error>((run, seen.join().map_err(ended)??))
        })?;
        drop(started);
        let (name, what) = kind.map_or((IDLE, "nobody else"), |kind| (kind.name, kind.what));
        Ok(run.row(name, what, Some(seen)))
    }

    /// Runs the three timed flows, and then `end`, which returns the neighbour's number of
    /// operations.
    fn probes(&self, address: SocketAddr, end: impl FnOnce() -> Result<u64>) -> Result<Run> {
        let usual = Options {
            pace: Pace::Rate(RATE),
            version: Version::V5,
            warm_up: WARM_UP,
            duration: self.duration,
            core: Some(self.clients_core),
            fifo: FIFO,
            keep: (self.duration.as_secs_f64() * RATE) as usize + 1,
            ..Options::new(Scenario::Pairs(1), address)
        };
        let period = format!("{}us", (1e6 / RATE) as u64);
        let property = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let probes = [
            (
                ADMITTED,
                vec![
                    property("rt-deadline", "10ms"),
                    property("rt-period", &period),
                ],
            ),
            ("urgent", vec![property("priority", "0")]),
            ("plain", Vec::new()),
        ];
        let watcher = Watcher::start(&[self.broker_core, self.clients_core]);
        let reports = thread::scope(|scope| {
            let running = probes.map(|(name, user_properties)| {
                let options = Options {
                    user_properties,
                    topic_prefix: format!("{name}/"),
                    client_prefix: format!("{name}-"),
                    ..usual.clone()
                };
                scope.spawn(move || load::run(&options))
            });
            let ended = |_| Error::io("a generator ended")(std::io::ErrorKind::Other.into());
            running.map(|thread| thread.join().map_err(ended).flatten())
        });
        let gaps = watcher.end();
        let times = end()?;
        let [admitted, urgent, plain] = reports;
        Ok(Run {
            times,
            reports: [admitted?, urgent?, plain?],
            gaps: gaps?,
        })
    }

    fn write(&self, machine: &Machine, rows: &[Row], out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(
            out,
            "`punctual bench neighbours{}` on {}: {}, {} cores, Linux {}, load average {}. Times in µs, p99.9 and \
             maximum from the intended time of sending to receipt, of messages that met no gap: a time at which a \
             core did not run its most urgent thread; {RATE} messages/s each for {:?}.\n",
            if self.realtime { " --realtime" } else { "" },
            machine.date,
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.load_average,
            self.duration,
        )?;
        writeln!(
            out,
            "| neighbour | times | urgent | admitted | beyond bound | plain | gaps, longest | with gaps: in the broker, \
             bound, misses | too long |"
        )?;
        writeln!(out, "|---|--:|--:|--:|--:|--:|--:|--:|---|")?;
        for row in rows {
            let cell =
                |late: &Lateness| format!("{:.0}, {:.0}", late.clean.p999_us, late.clean.max_us);
            let seen = row.broker.as_ref();
            let overruns = seen.map_or_else(String::new, |seen| {
                let each = seen.overruns.iter().map(|it| {
                    let Overruns {
                        work,
                        count,
                        longest_us,
                    } = it;
                    format!("{work} {count} ({longest_us:.0})")
                });
                each.collect::<Vec<_>>().join(", ")
            });
            let bound = seen.map_or_else(String::new, |seen| {
                format!(
                    "{:.0}, {:.0}, {}",
                    seen.broker_max_us, seen.bound_us, seen.misses
                )
            });
            writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {}, {:.0} | {bound} | {overruns} |",
                row.kind,
                row.times,
                cell(&row.urgent),
                cell(&row.admitted),
                row.admitted.beyond_bound,
                cell(&row.plain),
                row.gaps,
                row.longest_gap_us,
            )?;
        }
        summary(rows, out)
    }
}

/// Prints the worst delay over all kinds, compared with the broker without a neighbour.
fn summary(rows: &[Row], out: &mut dyn Write) -> std::io::Result<()> {
    let Some(idle) = rows.iter().find(|row| row.kind == IDLE) else {
        return Ok(());
    };
    let of_kinds = || {
        rows.iter()
            .filter(|row| row.broker.is_some() && row.kind != IDLE)
    };
    let worst =
        |late: fn(&Row) -> f64| of_kinds().max_by(|one, two| late(one).total_cmp(&late(two)));
    let urgent = |row: &Row| row.urgent.clean.max_us;
    let plain = |row: &Row| row.plain.clean.max_us;
    let (Some(slowest), Some(plainest)) = (worst(urgent), worst(plain)) else {
        return Ok(());
    };
    let beyond: u64 = of_kinds().map(|row| row.admitted.beyond_bound).sum();
    writeln!(
        out,
        "\nOf messages that met no gap: an urgent one was late by at most {:.0} µs more than without a neighbour ({}), \
         a plain one by {:.0} µs ({}), and {beyond} of the admitted flow took longer than the bound from client to client.",
        urgent(slowest) - urgent(idle),
        slowest.kind,
        plain(plainest),
        plainest.kind,
    )
}

/// A running broker, and the address of its TLS listener, if it has one.
struct Started {
    running: Running,
    tls: SocketAddr,
    http: Api,
}

impl Started {
    fn place<'a>(&'a self, directory: &'a Path, stop: &'a AtomicBool, part: usize) -> Place<'a> {
        Place {
            mqtt: address(self.running.port(Version::V5)),
            tls: self.tls,
            http: &self.http,
            directory,
            pid: self.running.pid(),
            stop,
            part,
        }
    }
}

/// Removes a directory, if it exists.
fn forget(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let context = format!("cannot remove {}", directory.display());
            Err(Error::io(context)(error))
        }
        _ => Ok(()),
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Measurements of the three timed flows.
struct Run {
    /// How often the neighbour performed its operation.
    times: u64,
    /// Reports of the admitted flow, the urgent one and the plain one.
    reports: [Report; 3],
    gaps: Gaps,
}

impl Run {
    fn row(self, kind: &'static str, what: &'static str, broker: Option<Seen>) -> Row {
        let bound = broker.as_ref().map_or(f64::INFINITY, |seen| seen.bound_us);
        let lateness = |report| Lateness::new(report, &self.gaps, bound);
        let [admitted, urgent, plain] = self.reports.map(lateness);
        Row {
            kind,
            what,
            times: self.times,
            admitted,
            urgent,
            plain,
            gaps: self.gaps.count(),
            longest_gap_us: self.gaps.longest() as f64 / 1e3,
            broker,
        }
    }
}

/// Reads the broker's metrics of the admitted flow and of its pieces of work.
fn seen(http: &Api) -> Result<Seen> {
    let samples = Samples::parse(&http.get("/metrics")?);
    // Neighbours may have admitted flows, too.
    let flow = samples.label_values("punctual_flow_bound_seconds", "flow");
    let flow = flow.into_iter().find(|flow| flow.starts_with(ADMITTED));
    let of_flow = |name| samples.sum(name, &[("flow", flow?)]);
    let sum = |name| of_flow(name).unwrap_or(0.0);
    const OVERRUNS: &str = "punctual_turn_overrun_total";
    let overruns = samples
        .label_values(OVERRUNS, "work")
        .into_iter()
        .filter_map(|work| {
            let count = samples.sum(OVERRUNS, &[("work", work)])?;
            let longest = samples.sum("punctual_turn_longest_seconds", &[("work", work)])?;
            (count > 0.0).then(|| Overruns {
                work: work.to_owned(),
                count,
                longest_us: longest * 1e6,
            })
        });
    Ok(Seen {
        bound_us: sum("punctual_flow_bound_seconds") * 1e6,
        broker_max_us: sum("punctual_flow_broker_seconds_max") * 1e6,
        misses: sum("punctual_flow_misses_total"),
        overruns: overruns.collect(),
    })
}
