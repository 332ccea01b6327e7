//! `punctual controller`: the controller of a network of OpenFlow switches; and
//! what it says of itself.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use punctual_controller::{KnownHost, Policing, Routing, Settings};
use punctual_model::network::LinkEntry;
use punctual_server::Logging;
use punctual_server::config::{Auto, HttpAddress, HttpAuth, Log, Switch};
use punctual_server::escape::visible_json;
use punctual_server::http::authorization::{Authorizer, AuthorizerOptions, token_path};
use punctual_server::http::controller as http;
use punctual_server::realtime::{self, Precedence};
use punctual_southbound::local::{Carrier, Local, Machine, Nobody, PlanFile};
use punctual_southbound::openflow::{ListenOptions, Switches};
use punctual_southbound::ovsdb::{Endpoint, TlsOptions};
use punctual_southbound::service::{self, Service};
use punctual_southbound::srt::{ControllerOptions, ControllerSide, Letter};
use punctual_southbound::tls;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::watch;

use super::access::Access;
use super::input::Input;
use super::{Failure, print};

/// How long what was decided may take to be written at the end.
const GRACE: Duration = Duration::from_secs(3);
/// How long a dry run waits for the database.
const PATIENCE: Duration = Duration::from_secs(10);
/// Silence after which a switch is asked for a sign of life.
const PROBE: Duration = Duration::from_secs(2);

/// Arguments of `punctual controller`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    ask: Option<Ask>,
    #[command(flatten)]
    run: Run,
}

impl Arguments {
    /// Whether the controller itself is run, and not one asked that runs.
    pub(super) fn serves(&self) -> bool {
        self.ask.is_none()
    }
}

#[derive(Debug, Subcommand)]
enum Ask {
    /// Print what a running controller knows and does.
    Status(Where),
    /// Print the answer to a request, and what its bounds are made of.
    Explain {
        /// Name of the flow.
        flow: String,
        /// Who asked for it.
        #[arg(long, value_name = "NAME")]
        manager: String,
        #[command(flatten)]
        controller: Where,
    },
}

#[derive(Debug, Args)]
struct Where {
    /// HTTP address of the controller.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8081")]
    controller: String,
    #[command(flatten)]
    access: Access,
}

#[derive(Debug, Args)]
struct Run {
    /// Servers of the database of requirements: unix:PATH, tcp:HOST:PORT or
    /// ssl:HOST:PORT, separated by commas.
    #[arg(
        long,
        value_name = "ENDPOINTS",
        default_value = "unix:/run/punctual/srt.sock"
    )]
    ovsdb: String,
    /// Listen there for switches.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6653")]
    listen: SocketAddr,
    /// Rates and delays of links and switches (JSON or TOML).
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,
    /// A host that is known beforehand; its name is that of its node. With
    /// --driver linux its Ethernet address belongs to it: NAME=ADDRESS@MAC. Can be
    /// given several times.
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = known_host)]
    host: Vec<KnownHost>,
    /// Name of a switch that connects, by its datapath identifier (hexadecimal).
    /// Otherwise it is the node whose name ends in that number, such as s4 for 4. Can
    /// be given several times.
    #[arg(long, value_name = "NAME=DATAPATH", value_parser = known_switch)]
    switch: Vec<(u64, String)>,
    /// How paths are found.
    #[arg(long, value_enum, default_value_t = RoutingName::Admission)]
    routing: RoutingName,
    /// Paths that are tried for a flow before it is refused.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    paths: u16,
    /// Which flows are held to what they declared, where they enter the network.
    #[arg(long, value_enum, default_value_t = PolicingName::Datagrams)]
    policing: PolicingName,
    /// Between switches, carry priorities in 802.1Q tags, too.
    #[arg(long)]
    tags: bool,
    /// What a message costs at a broker, as `punctual calibrate` measures it: for
    /// each message, for each of its receivers, and what is not urgent and holds it.
    #[arg(long, value_name = "RECEIVE,SEND,BLOCKING", value_parser = broker_costs)]
    #[arg(default_value = "100us,50us,500us")]
    broker_times: BrokerTimes,
    /// Name of this controller.
    #[arg(long, value_name = "NAME", default_value = "punctual")]
    name: String,
    /// Address of the HTTP interface, unix:PATH, or off.
    #[arg(
        long,
        value_name = "ADDRESS|off",
        default_value = "127.0.0.1:8081",
        value_parser = http_address
    )]
    http: Switch<HttpAddress>,
    /// File with the tokens of the HTTP interface, made with random ones if there is
    /// none [default: punctual/controller-tokens in $XDG_RUNTIME_DIR, for root in /run].
    #[arg(long, value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// Ask nobody for a token; only on a loopback address or a Unix socket.
    #[arg(long)]
    http_without_tokens: bool,
    /// Authority (PEM) that signed the certificates of database and switches.
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "key"])]
    ca: Option<PathBuf>,
    /// Own certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "ca")]
    certificate: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(long, value_name = "FILE", requires = "ca")]
    key: Option<PathBuf>,
    /// Take certificates of database servers whose name is another one, such as
    /// those of ovs-pki.
    #[arg(long, requires = "ca")]
    any_name: bool,
    /// Switches have to use TLS, with a certificate.
    #[arg(long, requires = "ca")]
    tls: bool,
    /// Who carries out what is decided.
    #[arg(long, value_enum, default_value_t = DriverName::Openflow)]
    driver: DriverName,
    /// With --driver linux: each switch is the network namespace of its name (ip
    /// netns). Otherwise the network has one switch, and it is this machine.
    #[arg(long)]
    namespaces: bool,
    /// With --driver file: where the plans of all switches are written, as JSON.
    #[arg(long, value_name = "FILE", required_if_eq("driver", "file"))]
    output: Option<PathBuf>,
    /// Print what would be decided about the requests in the table, and what the
    /// switches of --network would do, as JSON; change nothing.
    #[arg(long, requires = "network")]
    dry_run: bool,
    /// Run with real-time priority (SCHED_FIFO), 1 to 98; 40 unless PRIORITY is
    /// given; and keep the CPUs of this machine from sleeping.
    #[arg(long, value_name = "PRIORITY", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "40")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=98))]
    realtime: Option<u8>,
    /// Remove the requests of managers from which nothing has been heard for so
    /// many seconds; they say every minute that they are there.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u64).range(120..=31_536_000))]
    silence: u64,
}

/// Who carries out what is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DriverName {
    /// Switches that connect and speak OpenFlow 1.3.
    Openflow,
    /// Switches of this machine: nftables forwards, HTB queues. The network is
    /// that of --network; a link's device is FROM-TO, as in s1-h1.
    Linux,
    /// Nobody: requests are decided for the network of --network.
    Sim,
    /// A file: the plans of the switches of --network.
    File,
}

/// [`Routing`] on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoutingName {
    /// Of the shortest paths the first with which all flows keep their deadlines,
    /// those with the most time left first.
    Admission,
    /// The best of all ways by equation (1) of the MRT-MQTT paper, which is admitted
    /// or refused.
    Paper,
}

impl From<RoutingName> for Routing {
    fn from(name: RoutingName) -> Self {
        match name {
            RoutingName::Admission => Self::Admission,
            RoutingName::Paper => Self::Paper,
        }
    }
}

/// [`Policing`] on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PolicingName {
    /// None.
    Nothing,
    /// Those in datagrams: a packet that is dropped on a TCP connection stops all
    /// that follow, those that were not declared, too.
    Datagrams,
    /// All.
    Everything,
}

impl From<PolicingName> for Policing {
    fn from(name: PolicingName) -> Self {
        match name {
            PolicingName::Nothing => Self::Nothing,
            PolicingName::Datagrams => Self::Datagrams,
            PolicingName::Everything => Self::Everything,
        }
    }
}

/// What a message costs at a broker.
type BrokerTimes = punctual_controller::Service;

fn broker_costs(text: &str) -> Result<BrokerTimes, String> {
    let times: Vec<_> = text.split(',').collect();
    let [receive, send, blocking] = times[..] else {
        return Err("must be three durations, such as 100us,50us,500us".into());
    };
    let read = |text: &str| {
        let time = punctual_model::parse_duration(text.as_bytes());
        time.map_err(|remedy| format!("{text:?} {remedy}"))
            .and_then(|time| {
                u64::try_from(time.as_nanos()).map_err(|_| format!("{text:?} is too long"))
            })
    };
    Ok(BrokerTimes {
        receive_ns: read(receive)?,
        send_ns: read(send)?,
        blocking_ns: read(blocking)?,
    })
}

fn known_switch(text: &str) -> Result<(u64, String), String> {
    let wrong = || format!("{text:?} must be NAME=DATAPATH, such as core=00000000000000a1");
    let (name, datapath) = text.split_once('=').ok_or_else(wrong)?;
    let datapath = u64::from_str_radix(datapath.trim_start_matches("0x"), 16);
    match (name.is_empty(), datapath) {
        (false, Ok(datapath)) => Ok((datapath, name.to_owned())),
        _ => Err(wrong()),
    }
}

fn http_address(text: &str) -> Result<Switch<HttpAddress>, String> {
    if text == "off" {
        return Ok(Switch::Off);
    }
    text.parse().map(Switch::On).map_err(|_| {
        "must be an address and a port, such as 127.0.0.1:8081, unix:PATH, or off".into()
    })
}

/// Who may ask the interface there.
fn authorizer(run: &Run, address: &HttpAddress) -> Result<Arc<Authorizer>, Failure> {
    let named = run.http_token_file.clone();
    Ok(Authorizer::new(AuthorizerOptions {
        address,
        auth: match run.http_without_tokens {
            true => HttpAuth::Off,
            false => HttpAuth::Required,
        },
        open: Auto::Auto,
        is_named: named.is_some(),
        token_file: named.or_else(|| token_path(None, "controller-tokens")),
        users: None,
    })?)
}

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    match arguments.ask {
        None => serve(&arguments.run),
        Some(Ask::Status(at)) => show(&at, "/api/v1/controller"),
        Some(Ask::Explain {
            flow,
            manager,
            controller,
        }) => {
            let mut query = form_urlencoded::Serializer::new(String::new());
            let query = query
                .append_pair("manager", &manager)
                .append_pair("flow", &flow)
                .finish();
            show(&controller, &format!("/api/v1/controller/explain?{query}"))
        }
    }
}

fn show(at: &Where, path: &str) -> Result<(), Failure> {
    let wrong = |remedy| format!("{}: {remedy}, as --http has it", at.controller);
    let text = at
        .access
        .api(at.controller.parse().map_err(wrong)?)
        .get(path)?;
    let value: Value = serde_json::from_str(&text)?;
    print(&visible_json(&format!("{value:#}\n")))
}

fn serve(run: &Run) -> Result<(), Failure> {
    let endpoints =
        Endpoint::parse_list(&run.ovsdb).map_err(|error| format!("--ovsdb: {error}"))?;
    let files = match (&run.ca, &run.certificate, &run.key) {
        (Some(ca), Some(certificate), Some(key)) => Some(TlsOptions {
            ca: ca.clone(),
            certificate: certificate.clone(),
            key: key.clone(),
            check_name: !run.any_name,
        }),
        _ => None,
    };
    let network = match &run.network {
        Some(file) => Input::read(file)?.document()?,
        None => Settings::default().network,
    };
    let mut settings = Settings {
        network,
        switches: run.switch.clone(),
        hosts: run.host.clone(),
        service: run.broker_times,
        routing: run.routing.into(),
        paths: run.paths.into(),
        tags: run.tags,
        police: run.policing.into(),
        ..Settings::default()
    };
    if run.tags && run.driver == DriverName::Linux {
        return Err("--tags: the linux driver carries none; priorities are in DSCP there".into());
    }
    let local = local(run, &mut settings)?;
    if run.dry_run {
        return rehearse(run, settings, local, endpoints, files);
    }
    // What switches and managers do is not in the controller's hands: it does not fill the disk.
    Logging::bounded(&Log::default())?;
    // Switches obey the newest controller.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let options = ListenOptions {
        address: run.listen,
        tls: match &files {
            Some(files) if run.tls => Some(tls::server(files)?),
            _ => None,
        },
        generation: since.map_or(0, |since| since.as_millis() as u64),
        probe_interval: PROBE,
    };
    let table = ControllerOptions {
        endpoints,
        tls: files,
        name: run.name.clone(),
        silence: Duration::from_secs(run.silence),
        read_only: false,
    };
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (stop, stopped) = watch::channel(false);
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(move || {
        if signals.forever().next().is_some() {
            tracing::info!("shutting down; what was admitted stays on the switches");
            stop.send_replace(true);
        }
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let table = ControllerSide::start(table)?;
        let side = table.0.clone();
        let service = match local {
            Some(local) => Service::local(&settings, table, local),
            None => Service::new(&settings, table, listen(run, options).await?),
        };
        let preparing = tokio::spawn(prepare(side, run.name.clone()));
        realtime::put_first(run.realtime.map(Precedence::Fifo), "the controller");
        let _awake = realtime::stay_awake(run.realtime.map(|_| Duration::ZERO));
        let http = match &run.http {
            Switch::On(address) => Some(
                http::open(
                    address,
                    &authorizer(run, address)?,
                    service.observer(),
                    stopped.clone(),
                )
                .await
                .map_err(|error| format!("--http {address}: cannot listen there: {error}"))?,
            ),
            Switch::Off => None,
        };
        service.run(stopped, GRACE).await;
        preparing.abort();
        if let Some(http) = http {
            // It panicked if this fails, which the log has.
            let _ = http.await;
        }
        Ok(())
    })
}

async fn listen(run: &Run, options: ListenOptions) -> Result<Switches, Failure> {
    let switches = Switches::listen(options).await.map_err(|error| {
        let at = run.listen;
        format!("--listen {at}: cannot listen there: {error}; choose another address")
    })?;
    tracing::info!("switches may connect to {}", switches.address());
    Ok(switches)
}

/// The network as it is stated, and who carries plans out in it; `None` if
/// switches connect.
fn local(run: &Run, settings: &mut Settings) -> Result<Option<Local>, Failure> {
    let carrier: Box<dyn Carrier> = match (run.driver, &run.output) {
        _ if run.dry_run => Box::new(Nobody),
        (DriverName::Openflow, _) => return Ok(None),
        (DriverName::Linux, _) => Box::new(Machine::new(run.namespaces)),
        (DriverName::File, Some(path)) => Box::new(PlanFile::new(path.clone())),
        (DriverName::Sim | DriverName::File, _) => Box::new(Nobody),
    };
    let device = |link: &LinkEntry| format!("{}-{}", link.from, link.to);
    let local =
        Local::new(settings, carrier, device).map_err(|error| format!("--network: {error}"))?;
    Ok(Some(local))
}

/// Prints what would be decided.
fn rehearse(
    run: &Run,
    settings: Settings,
    local: Option<Local>,
    endpoints: Vec<Endpoint>,
    tls: Option<TlsOptions>,
) -> Result<(), Failure> {
    let Some(local) = local else {
        return Ok(());
    };
    let table = ControllerOptions {
        endpoints,
        tls,
        name: run.name.clone(),
        silence: PATIENCE,
        read_only: true,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (known, requests) = runtime.block_on(async {
        let (side, mut inbox) = ControllerSide::start(table)?;
        let mut why = "nobody answers".to_owned();
        let reached = async {
            loop {
                match inbox.next().await {
                    Letter::Reached => return,
                    Letter::Away(reason) => why = reason,
                    Letter::Asked(_) | Letter::Withdrawn { .. } => {}
                }
            }
        };
        if tokio::time::timeout(PATIENCE, reached).await.is_err() {
            return Err(Failure::from(format!("--ovsdb {}: {why}", run.ovsdb)));
        }
        Ok((side.channels(), side.requests()))
    })?;
    let (channels, plan) = service::rehearse(&settings, local, known, requests);
    print(&format!(
        "{:#}\n",
        json!({"channels": channels, "plan": plan})
    ))
}

/// Prepares the database as soon as it is there.
async fn prepare(side: ControllerSide, name: String) {
    while let Err(error) = side.prepare(&name).await {
        tracing::warn!("the database of requirements is not prepared yet: {error}");
        tokio::time::sleep(PROBE).await;
    }
}

fn known_host(text: &str) -> Result<KnownHost, String> {
    let wrong = || {
        format!(
            "{text:?} must be NAME=ADDRESS or NAME=ADDRESS@MAC, such as h1=10.0.0.1 or \
             h1=10.0.0.1@02:00:00:00:00:01"
        )
    };
    let (name, address) = text.split_once('=').ok_or_else(wrong)?;
    let (address, mac) = match address.split_once('@') {
        Some((address, mac)) => (address, Some(mac.parse().map_err(|_| wrong())?)),
        None => (address, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    if name.is_empty() {
        return Err(wrong());
    }
    Ok(KnownHost {
        name: name.to_owned(),
        mac,
        addresses: vec![address],
        ..KnownHost::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read() {
        let host = known_host("h1=10.0.0.1").unwrap();
        assert_eq!(http_address("off"), Ok(Switch::Off));
        assert!(http_address("8081").unwrap_err().contains("off"));
        assert_eq!((host.name.as_str(), host.addresses.len()), ("h1", 1));
        let host = known_host("h1=fd00::1@02:00:00:00:00:01").unwrap();
        assert!(host.mac.is_some());
        for text in ["h1", "=10.0.0.1", "h1=x", "h1=10.0.0.1@x"] {
            assert!(known_host(text).unwrap_err().contains("NAME=ADDRESS"));
        }
    }

    #[test]
    fn switches_and_costs_are_read() {
        assert_eq!(known_switch("core=0xa1"), Ok((0xa1, "core".to_owned())));
        for text in ["core", "=1", "core=x"] {
            assert!(known_switch(text).unwrap_err().contains("NAME=DATAPATH"));
        }
        assert_eq!(
            broker_costs("100us,50us,500us").unwrap(),
            Settings::default().service
        );
        assert!(broker_costs("1us,2us").unwrap_err().contains("three"));
        assert!(broker_costs("1us,2us,x").unwrap_err().contains("\"x\""));
    }
}
