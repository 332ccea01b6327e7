//! How long an urgent message waits behind bulk data on a slow link: bulk for the same client, or
//! for another client behind the same link.
//!
//! Three network namespaces: publishers, broker, receivers. Only the cable from the broker to the
//! receivers is slow, so queues build up only in the broker and in the kernel of its host. One
//! publisher sends all the bulk at once; when a tenth of the bulk has arrived, another publisher
//! sends the urgent message. Each configuration leaves out one mechanism that keeps the queue where
//! an urgent message can overtake bulk.

pub(crate) mod brokers;
mod report;
mod round;

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

use self::brokers::{BrokerProgram, PORT, VARIANTS};
use self::report::{Report, Waits};
use self::round::{Case, Rounds};
use crate::compare::document;
use crate::compare::machine::Machine;
use crate::results_file::ResultsFile;
use crate::sys;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::{Namespace, Queue};

/// Addresses of the broker's host, towards the publishers and towards the receivers.
const BROKER: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 71, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(10, 72, 0, 1)),
];

/// Addresses of the hosts of publishers and receivers.
const CLIENTS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 71, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(10, 72, 0, 2)),
];

/// Rounds of each case before the measured ones: connections have to learn the link's rate.
const WARM_UP: u32 = 3;

/// Fewest bulk messages of a round: a message in transmission cannot be overtaken.
const FEWEST: u32 = 20;

/// `SCHED_FIFO` priorities of broker and clients, which keep other programs from disturbing them.
const BROKER_FIFO: u8 = 40;
const CLIENTS_FIFO: u8 = 30;

/// Options of `bench link`.
#[derive(Args, Debug)]
pub(crate) struct LinkArgs {
    /// Configurations to measure [default: all whose executable is found]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    brokers: Vec<String>,
    /// Measured rounds of each case
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Rate of the link, Mbit/s
    #[arg(long, value_name = "MBIT/S", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Bytes of bulk payload in front of the urgent message
    #[arg(long, value_name = "BYTES", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(10_000..=100_000_000))]
    bulk: u32,
    /// Payload bytes of each bulk message
    #[arg(long, value_name = "BYTES", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(16..=60_000))]
    message: u32,
    /// Give the broker's network device one queue instead of Linux's three queues by priority
    #[arg(long)]
    one_queue: bool,
    /// Let the device take TCP super-packets of up to 64 KiB and segment them itself, as network
    /// cards do
    #[arg(long)]
    super_packets: bool,
    /// TCP congestion control of the broker's host: reno, or another one of
    /// net.ipv4.tcp_allowed_congestion_control [default: the system's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// CPU core for the broker
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    broker_core: usize,
    /// CPU core for the clients
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    clients_core: usize,
    /// Directory for configurations and logs; executables are searched for in its bin/
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    /// Markdown file whose generated part is replaced
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// File for all samples as JSON, written after each case [default: DIR/link.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl LinkArgs {
    /// Runs the experiment; progress goes to standard error, the table to `out`.
    ///
    /// # Errors
    /// If the privilege to create namespaces is missing, a named broker is not found, or a round
    /// does not end in time.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        fs::create_dir_all(&self.directory).map_err(Error::io(format!(
            "cannot create {}",
            self.directory.display()
        )))?;
        let messages = self.bulk.div_ceil(self.message);
        if messages < FEWEST {
            return Err(Error::Config {
                field: "--bulk",
                value: self.bulk.to_string(),
                remedy: format!(
                    "give at least {} bytes: {FEWEST} messages of --message {}",
                    FEWEST * self.message,
                    self.message
                ),
            });
        }
        let brokers = self.find_brokers()?;
        let mut machine = Machine::read();
        if let Some(name) = &self.congestion {
            machine.congestion_control.clone_from(name);
        }
        let context = "cannot give the clients their core and priority";
        sys::pin_to_core(self.clients_core).map_err(Error::io(context))?;
        sys::set_fifo(CLIENTS_FIFO).map_err(Error::io(context))?;
        let file = ResultsFile::new(self.json.as_deref(), &self.directory, "link.json")?;
        let mut results: Vec<(&BrokerProgram, Vec<(Case, Waits)>)> = Vec::new();
        for (at, broker) in brokers.iter().enumerate() {
            results.push((broker, Vec::new()));
            // Each case gets a broker process and connections of its own.
            for case in Case::ALL {
                let waits = self.measure_case(broker, case)?;
                eprintln!("{} | {} | {waits}", broker.variant.name, case.title());
                results[at].1.push((case, waits));
                file.write(&self.report(&machine, &results).json(), false)?;
            }
        }
        let report = self.report(&machine, &results);
        file.write(&report.json(), true)?;
        let markdown = report.markdown();
        document::publish(self.document.as_deref(), &markdown, out)?;
        Ok(())
    }

    fn report<'a>(
        &self,
        machine: &'a Machine,
        results: &'a [(&'a BrokerProgram, Vec<(Case, Waits)>)],
    ) -> Report<'a> {
        Report {
            machine,
            rounds: self.rounds,
            rate: self.rate,
            bulk: self.bulk,
            message: self.message,
            one_queue: self.one_queue,
            super_packets: self.super_packets,
            results,
        }
    }

    fn find_brokers(&self) -> Result<Vec<BrokerProgram>> {
        let known = || VARIANTS.map(|variant| variant.name).join(", ");
        let missing = |name: &str, remedy: String| Error::Config {
            field: "--brokers",
            value: name.to_owned(),
            remedy,
        };
        let named = |name: &str| self.brokers.iter().any(|asked| asked == name);
        if let Some(unknown) = self
            .brokers
            .iter()
            .find(|name| VARIANTS.iter().all(|variant| variant.name != name.as_str()))
        {
            return Err(missing(unknown, format!("choose from {}", known())));
        }
        let bin = self.directory.join("bin");
        let mut found = Vec::new();
        for variant in VARIANTS {
            if !self.brokers.is_empty() && !named(variant.name) {
                continue;
            }
            match variant.find(&bin) {
                Some(broker) => found.push(broker),
                None if named(variant.name) => {
                    let remedy = format!("install it in PATH or {}", bin.display());
                    return Err(missing(variant.name, remedy));
                }
                None => eprintln!("{}: not found, left out", variant.name),
            }
        }
        Ok(found)
    }

    fn measure_case(&self, broker: &BrokerProgram, case: Case) -> Result<Waits> {
        let host = Namespace::new("broker")?;
        let publishers = Namespace::new("publishers")?;
        let receivers = Namespace::new("receivers")?;
        host.cable("fast", &publishers, "eth0")?;
        host.cable("slow", &receivers, "eth0")?;
        let ends = [("fast", &publishers), ("slow", &receivers)];
        for (i, (device, clients)) in ends.into_iter().enumerate() {
            host.address(device, BROKER[i], 24)?;
            clients.address("eth0", CLIENTS[i], 24)?;
        }
        let queue = if self.one_queue {
            Queue::Fifo
        } else {
            Queue::ByPriority
        };
        host.shape("slow", u64::from(self.rate) * 1_000_000, queue)?;
        if self.super_packets {
            host.ip("link set slow gso_max_segs 65535")?;
        }
        if let Some(name) = &self.congestion {
            host.set("net/ipv4/tcp_congestion_control", name)?;
        }
        let _running = broker.start(&host, &self.directory, self.broker_core, BROKER_FIFO)?;

        let mut rounds = Rounds::connect(
            case,
            (&publishers, SocketAddr::new(BROKER[0], PORT)),
            (&receivers, SocketAddr::new(BROKER[1], PORT)),
            self.bulk.div_ceil(self.message),
            self.message as usize,
        )?;
        let mut waits = Waits::default();
        for round in 0..WARM_UP + self.rounds {
            let measured = rounds.run(round)?;
            if round >= WARM_UP {
                waits.add(measured);
            }
        }
        Ok(waits)
    }
}
