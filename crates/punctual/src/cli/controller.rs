//! `punctual controller`: the controller of a network of OpenFlow switches; and
//! what it says of itself.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use punctual_bench::http_get;
use punctual_controller::{KnownHost, Settings};
use punctual_southbound::openflow::{ListenOptions, Switches};
use punctual_southbound::ovsdb::{Endpoint, TlsOptions};
use punctual_southbound::service::Service;
use punctual_southbound::srt::{ControllerOptions, ControllerSide};
use punctual_southbound::tls;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::watch;

use super::input::Input;
use super::{Failure, print};
use crate::config::Log;
use crate::http::controller as http;
use crate::logging::Logging;

/// How long what was decided may take to be written at the end.
const GRACE: Duration = Duration::from_secs(3);
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
    /// A host that is known beforehand; its name is that of its node. Can be
    /// given several times.
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = known_host)]
    host: Vec<KnownHost>,
    /// Name of this controller.
    #[arg(long, value_name = "NAME", default_value = "punctual")]
    name: String,
    /// Address of the HTTP interface, or off.
    #[arg(
        long,
        value_name = "ADDRESS|off",
        default_value = "127.0.0.1:8081",
        value_parser = http_address
    )]
    http: Http,
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
}

/// Where the HTTP interface is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Http {
    Off,
    On(SocketAddr),
}

fn http_address(text: &str) -> Result<Http, String> {
    if text == "off" {
        return Ok(Http::Off);
    }
    text.parse()
        .map(Http::On)
        .map_err(|_| "must be an address and a port, such as 127.0.0.1:8081, or off".into())
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
    let wrong = || format!("{}: give the host and port of --http", at.controller);
    let address = at.controller.to_socket_addrs().map_err(|_| wrong())?.next();
    let text = http_get(address.ok_or_else(wrong)?, path)?;
    let value: Value = serde_json::from_str(&text)?;
    print(&format!("{value:#}\n"))
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
    let settings = Settings {
        network,
        hosts: run.host.clone(),
        ..Settings::default()
    };
    Logging::start(&Log::default())?;
    // Switches obey the newest controller.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let listen = ListenOptions {
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
    };
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (stop, stopped) = watch::channel(false);
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            tracing::info!("shutting down; what was admitted stays on the switches");
            stop.send_replace(true);
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let switches = Switches::listen(listen).await.map_err(|error| {
            let at = run.listen;
            format!("--listen {at}: cannot listen there: {error}; choose another address")
        })?;
        tracing::info!("switches may connect to {}", switches.address());
        let (side, inbox) = ControllerSide::start(table)?;
        let preparing = tokio::spawn(prepare(side.clone(), run.name.clone()));
        let service = Service::new(&settings, (side, inbox), switches);
        let http = match run.http {
            Http::On(address) => Some(
                http::open(address, service.observer(), stopped.clone())
                    .await
                    .map_err(|error| format!("--http {address}: cannot listen there: {error}"))?,
            ),
            Http::Off => None,
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

/// Prepares the database as soon as it is there.
async fn prepare(side: ControllerSide, name: String) {
    while let Err(error) = side.prepare(&name).await {
        tracing::warn!("the database of requirements is not prepared yet: {error}");
        tokio::time::sleep(PROBE).await;
    }
}

fn known_host(text: &str) -> Result<KnownHost, String> {
    let wrong = || format!("{text:?} must be NAME=ADDRESS, such as h1=10.0.0.1");
    let (name, address) = text.split_once('=').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    if name.is_empty() {
        return Err(wrong());
    }
    Ok(KnownHost {
        name: name.to_owned(),
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
        assert_eq!(http_address("off"), Ok(Http::Off));
        assert!(http_address("8081").unwrap_err().contains("off"));
        assert_eq!((host.name.as_str(), host.addresses.len()), ("h1", 1));
        for text in ["h1", "=10.0.0.1", "h1=x"] {
            assert!(known_host(text).unwrap_err().contains("NAME=ADDRESS"));
        }
    }
}
