//! `punctual sidecar`: flags and file, and what the library makes of them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};
use punctual_client::sidecar::{Options, Rule, Rules, Sidecar};
use punctual_client::{Endpoint, Scheme, TlsOptions, Url};
use punctual_model::Requirements;
use punctual_server::Logging;
use punctual_server::config::{ListenAddress, Log, LogFormat, LogLevel, Transport};
use serde::Deserialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Failure;

/// Where it listens unless told otherwise: beside a broker on the same machine.
const LISTEN: &str = "tcp://127.0.0.1:1884";

/// Most clients at a time that can be asked for; each has a connection of its own.
const MOST_CLIENTS: usize = 100_000;

/// Arguments of `punctual sidecar`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Listen for local clients on URL; can be given several times [default:
    /// tcp://127.0.0.1:1884].
    #[arg(short, long, value_name = "URL", value_parser = ListenAddress::parse)]
    listen: Vec<ListenAddress>,
    /// The broker: udp://, quic://, mqtt://, mqtts://, ws:// or wss://, host, port.
    #[arg(short, long, value_name = "URL")]
    broker: Option<String>,
    /// With quic://, messages with QoS 0 travel in datagrams: nothing waits for
    /// what was lost.
    #[arg(long)]
    quic_datagrams: bool,
    /// Require this of messages that say nothing themselves, such as 'alarm/#:
    /// priority=0, deadline=5ms'. The first rule that matches counts; those
    /// given here come before those of the file.
    #[arg(short, long, value_name = "FILTER: KEY=VALUE, …")]
    #[arg(value_parser = |text: &str| text.parse::<Rule>().map_err(|error| error.to_string()))]
    rule: Vec<Rule>,
    /// Read listeners, broker and rules from FILE (TOML); arguments go before.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Local clients at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    #[arg(value_parser = count, allow_hyphen_values = true)]
    max_clients: usize,
    /// Log more: -v is debug, -vv is trace.
    #[arg(short, action = ArgAction::Count)]
    verbose: u8,

    /// PEM file with the certificates of trusted authorities.
    #[arg(long, value_name = "FILE", help_heading = "TLS towards the broker")]
    cafile: Option<PathBuf>,
    /// Directory with such files, named *.crt or *.pem.
    #[arg(long, value_name = "DIR", help_heading = "TLS towards the broker")]
    capath: Option<PathBuf>,
    /// PEM file with the certificate of this device.
    #[arg(long, value_name = "FILE", requires = "key")]
    #[arg(help_heading = "TLS towards the broker")]
    cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", requires = "cert")]
    #[arg(help_heading = "TLS towards the broker")]
    key: Option<PathBuf>,
    /// Accept a certificate that is made out to another host.
    #[arg(long, help_heading = "TLS towards the broker")]
    insecure: bool,
    /// Name to ask for and to find in the certificate. Default: the host.
    #[arg(long, value_name = "NAME", help_heading = "TLS towards the broker")]
    sni: Option<String>,
}

/// Reads a number of clients.
fn count(text: &str) -> Result<usize, String> {
    let count = text
        .parse()
        .ok()
        .filter(|count| (1..=MOST_CLIENTS).contains(count));
    count.ok_or_else(|| format!("must be 1 to {MOST_CLIENTS}"))
}

/// What a file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    listen: Vec<String>,
    broker: Option<String>,
    #[serde(default)]
    rule: Vec<toml::Table>,
}

/// Runs `punctual sidecar`.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let options = options(arguments)?;
    let level = match arguments.verbose {
        0 => LogLevel::Info,
        1 => LogLevel::Debug,
        _ => LogLevel::Trace,
    };
    let format = LogFormat::Text;
    Logging::start(&Log { level, format })?;
    for address in &options.listen {
        if !address.ip().is_loopback() {
            tracing::warn!(
                "{address} can be reached from other machines: for the broker their clients come \
                 from this one"
            );
        }
    }
    let broker = options.broker.to_string();
    let mut sidecar = Sidecar::bind(options)?;
    for address in sidecar.local_addrs()? {
        tracing::info!("listening on tcp://{address}, for the broker {broker}");
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let stopper = sidecar.stopper();
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(move || {
        for _ in signals.forever() {
            stopper.stop();
        }
    })?;
    sidecar.run(|notice| tracing::info!("{notice}"))?;
    tracing::info!("stopped");
    Ok(())
}

fn options(arguments: &Arguments) -> Result<Options, Failure> {
    let file = match &arguments.config {
        Some(path) => read(path)?,
        None => File::default(),
    };
    let named = |path: &Option<PathBuf>| match path {
        Some(path) => format!("{}: ", path.display()),
        None => String::new(),
    };
    let place = named(&arguments.config);
    let Some(url) = arguments.broker.as_ref().or(file.broker.as_ref()) else {
        return Err(format!(
            "{place}no broker: give one with --broker udp://HOST, or as broker = \"udp://HOST\" \
             in the file of --config"
        )
        .into());
    };
    let mut listen = arguments.listen.clone();
    if listen.is_empty() {
        for url in &file.listen {
            let address = ListenAddress::parse(url);
            listen.push(address.map_err(|why| format!("{place}listen = {url:?}: {why}"))?);
        }
    }
    if listen.is_empty() {
        listen.push(ListenAddress::parse(LISTEN)?);
    }
    let mut rules = arguments.rule.clone();
    for (at, table) in file.rule.into_iter().enumerate() {
        let rule = rule(table).map_err(|why| format!("{place}rule {}: {why}", at + 1))?;
        rules.push(rule);
    }
    Ok(Options {
        listen: addresses(&listen)?,
        rules: Rules::from(rules),
        max_clients: arguments.max_clients,
        ..Options::new(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            endpoint(url, arguments)?,
        )
    })
}

fn read(path: &Path) -> Result<File, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!(
            "the file {} of --config cannot be read: {error}",
            path.display()
        )
    })?;
    toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// A `[[rule]]`: `topic`, and requirements beside it.
fn rule(table: toml::Table) -> Result<Rule, Failure> {
    let mut requirements = Requirements::NONE;
    let mut topic = None;
    for (key, value) in table {
        let text = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(number) => number.to_string(),
            other => {
                return Err(format!("{key} = {other}: write a number or a text in quotes").into());
            }
        };
        match key.as_str() {
            "topic" => topic = Some(text),
            _ => requirements.set_named(&key, &text)?,
        }
    }
    let topic = topic.ok_or("the topic is missing; write topic = \"alarm/#\"")?;
    Ok(Rule::new(&topic, requirements)?)
}

fn addresses(listen: &[ListenAddress]) -> Result<Vec<SocketAddr>, Failure> {
    let mut all = Vec::new();
    for address in listen {
        if address.transport != Transport::Tcp {
            return Err(format!(
                "--listen {address}: local clients connect by TCP; write tcp://{}:{}",
                address.host, address.port
            )
            .into());
        }
        let resolved = address.resolve();
        all.extend(resolved.map_err(|error| format!("--listen {address}: {error}"))?);
    }
    Ok(all)
}

fn endpoint(url: &str, arguments: &Arguments) -> Result<Endpoint, Failure> {
    let parsed = Url::parse(url)?;
    if parsed.username.is_some() {
        return Err(format!(
            "the broker's URL {url:?} has a user name: leave it out, clients give their own"
        )
        .into());
    }
    let mut endpoint = parsed.endpoint;
    if let Some(path) = parsed.rest {
        if !endpoint.scheme.is_websocket() {
            return Err(format!("the broker's URL {url:?} has a path: leave it out").into());
        }
        endpoint.path = format!("/{path}");
    }
    let tls = TlsOptions {
        ca_file: arguments.cafile.clone(),
        ca_dir: arguments.capath.clone(),
        cert_file: arguments.cert.clone(),
        key_file: arguments.key.clone(),
        insecure: arguments.insecure,
        server_name: arguments.sni.clone(),
        ..TlsOptions::default()
    };
    if tls != TlsOptions::default() && !endpoint.scheme.is_tls() {
        return Err(format!(
            "the broker's URL {url:?} is not for TLS: write mqtts://, wss:// or quic://, or leave \
             out --cafile, --capath, --cert, --insecure and --sni"
        )
        .into());
    }
    if arguments.quic_datagrams && endpoint.scheme != Scheme::Quic {
        return Err(format!(
            "the broker's URL {url:?} is not for QUIC: write quic://, or leave out --quic-datagrams"
        )
        .into());
    }
    endpoint.datagrams = arguments.quic_datagrams;
    endpoint.tls = tls;
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &[&str]) -> Result<Options, String> {
        let words = std::iter::once(&"x").chain(words);
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        options(&command.arguments).map_err(|error| error.to_string())
    }

    fn file(text: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sidecar.toml");
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        (dir, path)
    }

    #[test]
    fn a_broker_is_all_it_needs() {
        let options = parse(&["--broker", "udp://127.0.0.2:1999"]).unwrap();
        assert_eq!(options.broker.scheme, Scheme::Udp);
        assert_eq!(options.broker.to_string(), "udp://127.0.0.2:1999");
        assert_eq!(options.listen, [SocketAddr::from(([127, 0, 0, 1], 1884))]);
    }

    #[test]
    fn arguments_go_before_the_file() {
        let (_dir, path) = file(
            r##"
            listen = ["tcp://127.0.0.1:1900"]
            broker = "mqtt://127.0.0.2"
            [[rule]]
            topic = "alarm/#"
            priority = 9
            [[rule]]
            topic = "axis/+"
            rt-priority = 7
            deadline = "1.5ms"
            late = "drop"
            "##,
        );
        let options = parse(&["--config", &path]).unwrap();
        assert_eq!(options.broker.to_string(), "127.0.0.2:1883");
        assert_eq!(options.listen, [SocketAddr::from(([127, 0, 0, 1], 1900))]);
        let axis = "axis/+: deadline=1.5ms, rt-priority=7, late=drop"
            .parse()
            .unwrap();
        let rules = vec!["alarm/#: priority=9".parse().unwrap(), axis];
        assert_eq!(options.rules, Rules::from(rules.clone()));

        let rule = "alarm/1: priority=0";
        let options = parse(&["-c", &path, "-b", "udp://127.0.0.3", "-r", rule]).unwrap();
        assert_eq!(options.broker.scheme, Scheme::Udp);
        let mut all = vec![rule.parse().unwrap()];
        all.extend(rules);
        assert_eq!(options.rules, Rules::from(all));
    }

    #[test]
    fn a_number_of_clients_admits_somebody() {
        for value in ["0", "x", "-1", "100001"] {
            let said = parse(&["-b", "udp://h", "--max-clients", value]).unwrap_err();
            let why =
                format!("invalid value '{value}' for '--max-clients <COUNT>': must be 1 to 100000");
            assert!(said.contains(&why), "{said}");
        }
        let options = parse(&["-b", "udp://h", "--max-clients", "1"]).unwrap();
        assert_eq!(options.max_clients, 1);
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, why) in [
            ("broker = 1", "invalid type"),
            ("brocker = \"udp://h\"", "unknown field `brocker`"),
            ("", "no broker: give one with --broker"),
            (
                "broker = \"udp://h\"\n[[rule]]\npriority = 1",
                "rule 1: the topic is missing",
            ),
            (
                "broker = \"udp://h\"\n[[rule]]\ntopic = \"a\"\npriority = -1",
                "rule 1: priority = \"-1\": must be 0",
            ),
            (
                "broker = \"udp://h\"\n[[rule]]\ntopic = \"a\"\ncolour = 1",
                "there is no such key; there are priority, rt-deadline",
            ),
            (
                "broker = \"udp://h\"\n[[rule]]\ntopic = \"a\"\npriority = true",
                "priority = true: write a number or a text in quotes",
            ),
        ] {
            let (_dir, path) = file(text);
            let said = parse(&["--config", &path]).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
        for (words, why) in [
            (&["-b", "udp://u:p@h"][..], "clients give their own"),
            (&["-b", "udp://h/topic"], "has a path"),
            (&["-b", "http://h"], "must begin with mqtt://"),
            (
                &["-b", "udp://h", "-l", "tls://127.0.0.1:1"],
                "connect by TCP",
            ),
            (&["-b", "udp://h", "--insecure"], "is not for TLS"),
            (&["-b", "udp://h", "--quic-datagrams"], "is not for QUIC"),
            (&["-b", "udp://h", "-r", "a"], "must be FILTER: KEY=VALUE"),
            (&["-c", "/nonexistent"], "cannot be read"),
        ] {
            let said = parse(words).unwrap_err();
            assert!(said.contains(why), "{words:?}: {said}");
        }
    }
}
