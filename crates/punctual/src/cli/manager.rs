//! `punctual manager`: the network manager before a broker that knows nothing of
//! real time.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use punctual_server::config::{self, ListenAddress};
use punctual_server::proxy;
use punctual_server::{Logging, Source};

use super::Failure;
use super::serve::variables;

/// Arguments of `punctual manager`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The broker: host and port of its TCP listener.
    #[arg(short, long, value_name = "HOST:PORT")]
    upstream: String,
    /// Listen on URL: tcp://, tls://, ws:// or wss://, host, port. Can be given
    /// several times; takes the place of the configured listeners.
    #[arg(short, long, value_name = "URL", value_parser = ListenAddress::parse)]
    listen: Vec<ListenAddress>,
    /// Certificate (PEM) of the tls:// and wss:// addresses of --listen.
    #[arg(long, value_name = "FILE", requires_all = ["listen", "key"])]
    certificate: Option<PathBuf>,
    /// Key (PEM) of the certificate.
    #[arg(long, value_name = "FILE", requires_all = ["listen", "certificate"])]
    key: Option<PathBuf>,
    /// Read the configuration from FILE (TOML): its listeners, admission, limits,
    /// egress.rules, auth.acl_file, server.realtime and realtime.priority apply.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Let the controller of the network decide: servers of its table, separated
    /// by commas: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT (admission.srt; the
    /// certificates for ssl: are srt_ca, srt_certificate and srt_key).
    #[arg(long, value_name = "ENDPOINTS")]
    ovsdb: Option<String>,
    /// Name of this manager in the table (admission.srt_name).
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long an acknowledgement waits for a decision, at most, ms; 1000 if
    /// nothing else is configured (admission.decision_timeout).
    #[arg(long, value_name = "MS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60_000))]
    decision_timeout: Option<u64>,
    /// Run with real-time priority: the thread that serves clients with that of
    /// realtime.priority, those that decide with the one below (server.realtime).
    #[arg(long)]
    realtime: bool,
    /// Tell the broker the clients' addresses: PROXY protocol, version 2. Its
    /// listener must expect that (proxy_protocol).
    #[arg(long)]
    proxy_protocol: bool,
    /// Log more: -v is debug, -vv is trace.
    #[arg(short, action = ArgAction::Count)]
    verbose: u8,
}

/// Runs `punctual manager`.
pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    let level = match arguments.verbose {
        0 => None,
        1 => Some("debug"),
        _ => Some("trace"),
    };
    // Without promises there would be nothing to do.
    let mut values = vec![(
        "punctual manager",
        "admission",
        "enabled",
        "true".to_owned(),
    )];
    let timeout = arguments
        .decision_timeout
        .map(|millis| format!("{millis}ms"));
    for (option, key, text) in [
        ("--ovsdb", "srt", arguments.ovsdb),
        ("--name", "srt_name", arguments.name),
        ("--decision-timeout", "decision_timeout", timeout),
    ] {
        values.extend(text.map(|text| (option, "admission", key, text)));
    }
    if arguments.realtime {
        values.push(("--realtime", "server", "realtime", "true".to_owned()));
    }
    values.extend(level.map(|level| ("-v", "log", "level", level.to_owned())));
    let source = Source {
        file: arguments.config,
        arguments: config::Arguments {
            listen: arguments.listen,
            certificate: arguments.certificate,
            key: arguments.key,
            values,
        },
        variables: variables().collect(),
    };
    let config = source.load()?;
    let warnings = config::check_files(&config)?;
    let _logging = Logging::start(&config.log)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let options = proxy::Options {
        upstream: arguments.upstream,
        proxy_protocol: arguments.proxy_protocol,
    };
    Ok(proxy::run(&config, &options)?)
}
