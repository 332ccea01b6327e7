//! `punctual serve`: the arguments, and the configuration that they lead to.

use std::env;
use std::path::PathBuf;

use clap::{ArgAction, Args};
use punctual_server::config::{self, Auto, HttpAddress, ListenAddress, LogLevel, Switch, readable};
use punctual_server::{self as server, Logging, Source};

use super::Failure;

/// Arguments of `punctual serve`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Listen on URL: tcp://, tls://, ws://, wss://, udp:// or quic://, host,
    /// port. Can be given several times; takes the place of the configured
    /// listeners.
    #[arg(short, long, value_name = "URL", value_parser = ListenAddress::parse)]
    listen: Vec<ListenAddress>,
    /// Certificate (PEM) of the tls://, wss:// and quic:// addresses of --listen.
    #[arg(long, value_name = "FILE", requires_all = ["listen", "key"])]
    certificate: Option<PathBuf>,
    /// Key (PEM) of the certificate.
    #[arg(long, value_name = "FILE", requires_all = ["listen", "certificate"])]
    key: Option<PathBuf>,
    /// Address of the HTTP interface, unix:PATH, or off [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS|off", value_parser = readable::<Switch<HttpAddress>>)]
    http: Option<String>,
    /// Keep sessions, the messages that wait for them, and retained messages in
    /// DIR, over restarts and crashes.
    #[arg(long, value_name = "DIR", value_parser = readable::<PathBuf>)]
    data: Option<String>,
    /// Read the configuration from FILE (TOML).
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number of threads that serve clients, or auto: one for each CPU.
    #[arg(long, value_name = "N|auto", value_parser = readable::<Auto<u16>>)]
    shards: Option<String>,
    /// Run these threads with real-time priority, a CPU each and locked memory.
    #[arg(long)]
    realtime: bool,
    /// How much is logged: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", value_parser = readable::<LogLevel>)]
    log_level: Option<String>,
    /// Log more: -v is --log-level debug, -vv is trace.
    #[arg(short, action = ArgAction::Count, conflicts_with = "log_level")]
    verbose: u8,
}

impl Arguments {
    /// The file and what is laid over it.
    fn split(self) -> (Option<PathBuf>, config::Arguments) {
        let log_level = match self.verbose {
            0 => self.log_level,
            1 => Some("debug".into()),
            _ => Some("trace".into()),
        };
        let values = [
            ("--http", "server", "http", self.http),
            ("--data", "server", "data", self.data),
            ("--shards", "server", "shards", self.shards),
            (
                "--realtime",
                "server",
                "realtime",
                self.realtime.then(|| "true".into()),
            ),
            ("--log-level", "log", "level", log_level),
        ];
        let given = values
            .into_iter()
            .filter_map(|(option, section, key, text)| Some((option, section, key, text?)));
        let arguments = config::Arguments {
            listen: self.listen,
            certificate: self.certificate,
            key: self.key,
            values: given.collect(),
        };
        (self.config, arguments)
    }
}

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    let (file, arguments) = arguments.split();
    let source = Source {
        file,
        arguments,
        variables: variables().collect(),
    };
    let config = source.load()?;
    let warnings = config::check_files(&config)?;
    let logging = Logging::start(&config.log)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(server::run(&source, config, &logging)?)
}

/// The environment, names and values that are not text left out.
pub(super) fn variables() -> impl Iterator<Item = (String, String)> {
    env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}
