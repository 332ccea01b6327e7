//! The command line of `punctual-bench`, the program behind `punctual bench` and `punctual
//! emulate`.

use std::error::Error as _;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use punctual_net::realtime::keep_awake;

use crate::arguments::seconds;
use crate::compare::CompareArgs;
use crate::durability::DurabilityArgs;
use crate::emulate::{EmulateArgs, MrtArgs, PapersArgs, RecoveryArgs};
use crate::federation::FederationArgs;
use crate::federation::relay::{RELAY_COMMAND, RelayArgs};
use crate::link::LinkArgs;
use crate::neighbours::NeighboursArgs;
use crate::priomqtt::{self, PriomqttArgs};
use crate::scale::ScaleArgs;
use crate::sys;
use punctual_measure::Floor;
use punctual_measure::load::{self, Options, Pace, Report, Scenario};
use punctual_measure::wire::Version;
use punctual_measure::{Error, Result};

/// Benchmarks of MQTT brokers, experiments of published papers, and emulated networks.
///
/// The broker under test is the program named by PUNCTUAL_BIN, else `punctual` beside this program
/// or in PATH.
#[derive(Debug, Parser)]
#[command(name = "punctual-bench", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Keep the CPUs of this machine out of idle states during the run, as a broker with --realtime
    /// does. Waking a CPU may take longer than the measured delays. Requires write access to
    /// /dev/cpu_dma_latency
    #[arg(long, global = true)]
    awake: bool,
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Load a broker with one scenario and report throughput, delays and losses
    Load(Box<LoadArgs>),
    /// Run the floor: a plain forwarder without broker logic, as the reference for brokers
    Floor(FloorArgs),
    /// Emulate a network with a broker and clients on this machine (Linux, root), and compare
    /// measured delays with the analytical bounds. Exits with 1 if a bound was exceeded, and with 2
    /// if the network could not be emulated
    Emulate(Box<EmulateArgs>),
    /// Compare brokers with each other and with the floor, and write the tables
    Compare(CompareArgs),
    /// Repeat the experiments of the PrioMQTT paper: a factory cell on a 100 Mbit/s network, with
    /// Mosquitto for comparison. Requires root, for network namespaces
    Priomqtt(Box<PriomqttArgs>),
    /// Repeat Fig. 3 of the RT-MQTT paper: delays from publisher to broker at three loads, with and
    /// without priorities, beside their bounds. Requires root, for network namespaces
    RtMqtt(PapersArgs),
    /// Repeat Figs. 16 to 18 of the MRT-MQTT paper: messages to the brokers of three edge networks
    /// by standard MQTT, by DM-MQTT and by MRT-MQTT, beside their bounds. Requires root, for
    /// network namespaces. Exits with 1 if a claim of the paper was not reproduced
    MrtMqtt(Box<MrtArgs>),
    /// Measure how long a flow is interrupted when a link of its path fails, with Open vSwitch and
    /// this project's controller. Requires root, for network namespaces
    Recovery(RecoveryArgs),
    /// Measure how long an urgent message waits behind bulk data on a slow link, with and without
    /// the means that shorten the wait, and with Mosquitto. Requires root, for network namespaces
    Link(LinkArgs),
    /// Measure the traffic between five brokers for identical publications, by topology, locality
    /// and forwarding mode, beside Mosquitto's bridges. Requires root, for network namespaces
    Federation(FederationArgs),
    /// Measure how clients affect each other: an admitted, an urgent and a plain flow beside
    /// misbehaving or heavy clients of each kind
    Neighbours(NeighboursArgs),
    /// Measure how the cost of operations grows with the number of subscriptions, retained
    /// messages, topics, group members and connections and with payload size, beside Mosquitto and
    /// the floor
    Scale(ScaleArgs),
    /// Measure the cost and the effect of durability: throughput, acknowledgement delays, plain
    /// traffic beside durable bulk, restart time, and messages lost by kill -9, beside Mosquitto's
    /// persistence
    Durability(DurabilityArgs),
    /// Run a station of the factory cell, controlled over standard input
    #[command(name = priomqtt::STATION_COMMAND, hide = true)]
    PriomqttStation,
    /// Run a relay: it copies bytes between connections in place of a broker, as the reference for
    /// a federation
    #[command(name = RELAY_COMMAND, hide = true)]
    FederationRelay(RelayArgs),
}

/// Exit code if a bound was exceeded in an emulated network, or if a benchmark failed.
const FAILED: u8 = 1;
/// Exit code if the network could not be emulated.
const NOT_EMULATED: u8 = 2;

impl Cli {
    /// Runs the command. The result goes to `out`, errors go to standard error.
    pub(crate) fn run(&self, out: &mut dyn Write) -> ExitCode {
        let failed = match self.command {
            BenchCommand::Emulate(_) => NOT_EMULATED,
            _ => FAILED,
        };
        match self.result(out) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => FAILED.into(),
            Err(error) => {
                eprintln!("punctual-bench: {error}");
                failed.into()
            }
        }
    }

    /// Runs the subcommand. Returns false if a bound was exceeded or a check failed.
    fn result(&self, out: &mut dyn Write) -> Result<bool> {
        let awake = self.awake.then(|| keep_awake(Duration::ZERO)).transpose();
        let _awake = awake.map_err(|refused| Error::Config {
            field: "--awake",
            value: "given".to_owned(),
            remedy: format!(
                "leave it out, or give the right to write to /dev/cpu_dma_latency ({})",
                refused
                    .source()
                    .map(ToString::to_string)
                    .unwrap_or_default()
            ),
        })?;
        self.command.run(out)
    }
}

impl BenchCommand {
    fn run(&self, out: &mut dyn Write) -> Result<bool> {
        match self {
            Self::Emulate(args) => return args.run(out),
            Self::Neighbours(args) => return args.run(out),
            Self::MrtMqtt(args) => return args.run(out),
            Self::Load(args) => args.run(out),
            Self::Floor(args) => args.run(out),
            Self::Compare(args) => args.run(out),
            Self::Priomqtt(args) => args.run(out),
            Self::RtMqtt(args) => args.run(out),
            Self::Recovery(args) => args.run(out),
            Self::Link(args) => args.run(out),
            Self::Federation(args) => args.run(out),
            Self::Scale(args) => args.run(out),
            Self::Durability(args) => args.run(out),
            Self::FederationRelay(args) => args.run(),
            Self::PriomqttStation => priomqtt::serve_station(&mut std::io::stdin().lock(), out),
        }?;
        Ok(true)
    }
}

/// Options of `bench load`.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    /// P-S (P publishers to S subscribers of one topic: 1-1, 50-1, 1-100), Npairs (50pairs),
    /// rate (20 pairs at 5000 msg/s), factory, or idle
    #[arg(value_name = "SCENARIO")]
    scenario: Scenario,
    /// Host of the broker
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port of the broker
    #[arg(long, short, default_value_t = 1883)]
    port: u16,
    /// Port of the broker that subscribers (factory: the controller) connect to, if it is another
    /// broker of the same federation; after subscribing, publishers wait half a second for the
    /// subscriptions to propagate
    #[arg(long, value_name = "PORT")]
    subscribers_port: Option<u16>,
    /// MQTT version of all clients: 3.1.1 or 5
    #[arg(long, short = 'V', default_value = "3.1.1")]
    proto: Version,
    /// QoS of publications and subscriptions
    #[arg(long, short, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Most undelivered messages per publisher [default: 1000 for 1-1, 100 for P-S, 20 for Npairs]
    #[arg(long, value_name = "N", group = "pace")]
    window: Option<u32>,
    /// Send as fast as the sockets accept data, regardless of undelivered messages
    #[arg(long, group = "pace")]
    flat_out: bool,
    /// Send this many messages per second in total over all publishers, on a fixed schedule
    #[arg(long, value_name = "MSG/S", group = "pace")]
    rate: Option<f64>,
    /// Payload bytes [default: 64; factory: 500]
    #[arg(long, value_name = "BYTES")]
    payload: Option<usize>,
    /// Duration of the measurement, seconds
    #[arg(long, short, value_name = "S", default_value = "5", value_parser = seconds)]
    duration: Duration,
    /// Duration of traffic before the measurement, seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// End after this many messages per publisher instead of after a duration; without warm-up
    #[arg(long, value_name = "N")]
    messages: Option<u64>,
    /// Number of idle connections
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    connections: u32,
    /// Process (the broker) whose CPU time, memory and system calls are reported
    #[arg(long, value_name = "PID")]
    broker_pid: Option<u32>,
    /// Count the broker's system calls for this many seconds after the measurement
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds, requires = "broker_pid")]
    syscalls: Duration,
    /// CPU core for the generator's thread
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
    /// SCHED_FIFO priority for the generator's thread (paced scenarios)
    #[arg(long, value_name = "PRIORITY", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=99))]
    fifo: u8,
    /// Poll for events without ever blocking
    #[arg(long)]
    spin: bool,
    /// Factory clients do not receive their own publications
    #[arg(long)]
    no_echo: bool,
    /// Sessions of subscribers persist after their connections end
    #[arg(long)]
    persistent: bool,
    /// Also measure the time from each publication to its acknowledgement (QoS 1 and 2)
    #[arg(long)]
    acks: bool,
    /// Milliseconds by which receivers delay acknowledgements (QoS 1 and 2)
    #[arg(long, value_name = "MS", default_value_t = 0)]
    ack_delay: u64,
    /// Fail if a message is lost, duplicated or out of order
    #[arg(long)]
    strict: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl LoadArgs {
    /// Runs the scenario and writes its report to `out`.
    ///
    /// # Errors
    /// See [`Error`]; with `--strict` also a lost, duplicated or reordered message.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let report = load::run(&self.options()?)?;
        self.write(&report, out)
            .map_err(Error::io("cannot write the report"))?;
        if self.strict && !report.is_clean() {
            return Err(Error::Strict {
                what: report.faults(),
            });
        }
        Ok(())
    }

    fn options(&self) -> Result<Options> {
        let address = resolve(&self.host, self.port)?;
        let usual = Options::new(self.scenario, address);
        let pace = match (self.window, self.flat_out, self.rate) {
            (Some(window), _, _) => Pace::Window(window),
            (_, true, _) => Pace::FlatOut,
            (_, _, Some(rate)) => Pace::Rate(rate),
            _ => usual.pace,
        };
        Ok(Options {
            receivers: self
                .subscribers_port
                .map(|port| resolve(&self.host, port))
                .transpose()?,
            version: self.proto,
            qos: self.qos,
            pace,
            payload: self.payload.unwrap_or(usual.payload),
            warm_up: self.warm_up,
            duration: self.duration,
            messages: self.messages,
            connections: self.connections,
            broker_pid: self.broker_pid,
            syscalls: self.syscalls,
            core: self.core,
            fifo: self.fifo,
            spin: self.spin,
            echo: !self.no_echo,
            persistent: self.persistent,
            acks: self.acks,
            ack_delay: Duration::from_millis(self.ack_delay),
            ..usual
        })
    }

    fn write(&self, report: &Report, out: &mut dyn Write) -> std::io::Result<()> {
        if self.json {
            serde_json::to_writer_pretty(&mut *out, report)?;
            writeln!(out)
        } else {
            writeln!(out, "{report}")
        }
    }
}

/// Options of `bench floor`.
#[derive(Args, Debug)]
pub(crate) struct FloorArgs {
    /// Address to listen on; port 0 lets the system choose
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:1883")]
    listen: SocketAddr,
    /// CPU core for the forwarder's thread
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
}

impl FloorArgs {
    /// Writes the address to `out`, then serves until the process is killed.
    ///
    /// # Errors
    /// See [`Floor::bind`] and [`Floor::run`].
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        if let Some(core) = self.core {
            sys::pin_to_core(core).map_err(Error::io(format!("cannot pin to core {core}")))?;
        }
        sys::raise_file_limit().map_err(Error::io("cannot raise the limit of open files"))?;
        let mut floor = Floor::bind(self.listen)?;
        let address = floor.local_addr()?;
        writeln!(out, "the floor listens on {address}")
            .and_then(|()| out.flush())
            .map_err(Error::io("cannot write"))?;
        floor.run()
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let unknown = || Error::Config {
        field: "--host",
        value: host.to_owned(),
        remedy: "give a host name or an address that resolves".to_owned(),
    };
    (host, port)
        .to_socket_addrs()
        .map_err(|_| unknown())?
        .next()
        .ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn public_names_are_those_that_are_listed() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/public-names.txt");
        let names = punctual_testbed::command_names(&Cli::command());
        punctual_testbed::assert_names(file.as_ref(), names);
    }
}
