//! The flags that `pub` and `sub` share: where to connect to, and as whom.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use punctual_client::{
    Backoff, Config, Endpoint, Message, Options, PropertyBuf, PropertyId, QoS, Scheme, TlsOptions,
    TlsVersion, Url, Version,
};

use super::exit::Failed;
use super::property::PacketProperties;

/// Flags for the connection.
#[derive(Debug, Args)]
pub(super) struct Connection {
    /// Connect to this host.
    #[arg(short = 'h', long, value_name = "HOST", default_value = "localhost")]
    #[arg(help_heading = "Connection", conflicts_with = "url")]
    host: String,
    /// Connect to this port. Default: 1883, also with --udp; with TLS 8883,
    /// with --ws 8083, with both 8084; with --quic 14567.
    #[arg(short, long, help_heading = "Connection", conflicts_with = "url")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Host, port, user, password and topic in one:
    /// `mqtt(s)://[user[:password]@]host[:port]/topic`, or `ws(s)://…`,
    /// `udp://…`, `quic://…`
    #[arg(short = 'L', long, help_heading = "Connection")]
    url: Option<String>,
    /// Send datagrams (UDP), not encrypted: nothing waits for what was lost.
    /// A message has to fit into one.
    #[arg(long, help_heading = "Connection", conflicts_with_all = ["url", "ws"])]
    udp: bool,
    /// Connect by QUIC, which is always encrypted. Trusts the operating
    /// system's authorities unless told otherwise.
    #[arg(long, help_heading = "Connection", conflicts_with_all = ["url", "ws", "udp"])]
    quic: bool,
    /// Over QUIC, messages with QoS 0 travel in datagrams: nothing waits for
    /// what was lost.
    #[arg(long, help_heading = "Connection")]
    quic_datagrams: bool,
    /// Connect through a WebSocket.
    #[arg(long, help_heading = "Connection")]
    ws: bool,
    /// The WebSocket's path.
    #[arg(long, help_heading = "Connection", default_value = "/mqtt")]
    path: String,
    /// Connect from this local IP address.
    #[arg(short = 'A', long, value_name = "ADDRESS", help_heading = "Connection")]
    bind: Option<IpAddr>,
    /// Protocol version.
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "5")]
    #[arg(help_heading = "Connection", value_parser = parse_version, hide_possible_values = true)]
    protocol_version: Version,
    /// Seconds between signs of life; 0 for none.
    #[arg(short, long, default_value_t = 60, help_heading = "Connection")]
    keepalive: u16,
    /// Accepted for mosquitto's sake; Nagle's algorithm is always off.
    #[arg(long, help_heading = "Connection")]
    nodelay: bool,
    /// Print what happens to standard error.
    #[arg(short, long)]
    pub(super) debug: bool,
    /// Print no errors that occur at run time.
    #[arg(long)]
    pub(super) quiet: bool,

    /// Client identifier. Default: with MQTT 5 the server gives one, with
    /// earlier versions one is made up.
    #[arg(short, long, help_heading = "Session")]
    id: Option<String>,
    /// Have the client identifier be this and the process id.
    #[arg(short = 'I', long, value_name = "PREFIX", help_heading = "Session")]
    #[arg(conflicts_with = "id")]
    id_prefix: Option<String>,
    /// Keep the session: subscriptions and messages wait for the next
    /// connection. Needs --id.
    #[arg(short = 'c', long = "disable-clean-session", help_heading = "Session")]
    #[arg(requires = "id")]
    keep_session: bool,
    /// Seconds the server keeps the session; -1 or ∞ for ever. Default: 0, with
    /// -c for ever.
    #[arg(short = 'x', long, value_name = "SECONDS", help_heading = "Session")]
    #[arg(value_parser = parse_expiry, allow_negative_numbers = true)]
    session_expiry_interval: Option<u32>,
    /// User name.
    #[arg(short, long, help_heading = "Session", allow_hyphen_values = true)]
    username: Option<String>,
    /// Password. Other users of this machine may see it.
    #[arg(
        short = 'P',
        long = "pw",
        value_name = "PASSWORD",
        help_heading = "Session"
    )]
    #[arg(allow_hyphen_values = true)]
    password: Option<String>,
    /// Messages with QoS 1 and 2 under way at a time.
    #[arg(short = 'M', long, value_name = "COUNT", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..), help_heading = "Session")]
    max_inflight: u16,

    /// Topic that the server publishes to if this client vanishes.
    #[arg(long, value_name = "TOPIC", help_heading = "Will")]
    will_topic: Option<String>,
    /// What it publishes there. Default: nothing.
    #[arg(
        long,
        value_name = "MESSAGE",
        help_heading = "Will",
        requires = "will_topic"
    )]
    #[arg(allow_hyphen_values = true)]
    will_payload: Option<String>,
    /// With this QoS.
    #[arg(long, value_name = "QOS", default_value = "0", help_heading = "Will")]
    #[arg(value_parser = parse_qos, requires = "will_topic")]
    will_qos: QoS,
    /// As retained.
    #[arg(long, help_heading = "Will", requires = "will_topic")]
    will_retain: bool,

    /// PEM file with the certificates of trusted authorities; turns on TLS.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    cafile: Option<PathBuf>,
    /// Directory with such files, named *.crt or *.pem; turns on TLS.
    #[arg(long, value_name = "DIR", help_heading = "TLS")]
    capath: Option<PathBuf>,
    /// Trust the operating system's authorities; turns on TLS. So do
    /// -L mqtts://… and port 8883 without other authorities.
    #[arg(long, help_heading = "TLS")]
    tls_use_os_certs: bool,
    /// PEM file with the certificate of this client.
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "cert")]
    key: Option<PathBuf>,
    /// Accept a certificate that is made out to another host. Its signature
    /// is checked all the same.
    #[arg(long, help_heading = "TLS")]
    insecure: bool,
    /// Name to ask for and to find in the certificate. Default: the host.
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    sni: Option<String>,
    /// The only TLS version: tlsv1.2 or tlsv1.3. Default: the best of both.
    #[arg(long, value_name = "VERSION", help_heading = "TLS", value_parser = parse_tls_version)]
    tls_version: Option<TlsVersion>,
    /// Protocol name to offer in the TLS handshake.
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    tls_alpn: Option<String>,

    #[command(flatten)]
    pub(super) properties: PacketProperties,
}

impl Connection {
    /// The version that was asked for.
    pub(super) fn version(&self) -> Version {
        self.protocol_version
    }

    /// What the flags mean to the client, and the topic in the URL.
    pub(super) fn options(&self, reconnect: bool) -> Result<(Options, Option<String>), Failed> {
        let url = self.url.as_deref().map(Url::parse).transpose();
        let url = url.map_err(|error| Failed::usage(error.to_string()))?;
        let (topic, username, password) = match &url {
            Some(url) => (url.rest.clone(), url.username.clone(), url.password.clone()),
            None => (None, None, None),
        };
        let config = self.config(
            self.username.clone().or(username),
            self.password.clone().or(password),
        )?;
        config
            .validate()
            .map_err(|error| Failed::usage(error.to_string()))?;
        let options = Options {
            endpoint: self.endpoint(url)?,
            config,
            reconnect: reconnect.then(Backoff::default),
        };
        Ok((options, topic))
    }

    fn endpoint(&self, url: Option<Url>) -> Result<Endpoint, Failed> {
        let authorities = self.cafile.is_some() || self.capath.is_some();
        if self.udp && (authorities || self.tls_use_os_certs) {
            return Err(Failed::usage(
                "--udp has no TLS: leave --cafile, --capath and --tls-use-os-certs out, or --udp",
            ));
        }
        let mut endpoint = match url {
            Some(url) => url.endpoint,
            None => {
                let by_port = self.port == Some(Scheme::Tls.default_port()) && !self.ws;
                let scheme = match (authorities || self.tls_use_os_certs || by_port, self.ws) {
                    (false, false) => Scheme::Tcp,
                    (true, false) => Scheme::Tls,
                    (false, true) => Scheme::Ws,
                    (true, true) => Scheme::Wss,
                };
                let scheme = match (self.udp, self.quic) {
                    (true, _) => Scheme::Udp,
                    (_, true) => Scheme::Quic,
                    _ => scheme,
                };
                let host = self.host.trim_start_matches('[').trim_end_matches(']');
                if host.is_empty() {
                    return Err(Failed::usage("the host after -h is empty"));
                }
                let mut endpoint = Endpoint::new(scheme, host);
                endpoint.port = self.port.unwrap_or(endpoint.port);
                endpoint
            }
        };
        if !self.path.starts_with('/') {
            return Err(Failed::usage(format!(
                "--path {:?} must begin with a slash",
                self.path
            )));
        }
        if self.cert.is_some() && !endpoint.scheme.is_tls() {
            return Err(Failed::usage(
                "--cert needs TLS: give --cafile, --capath, --tls-use-os-certs or --quic",
            ));
        }
        if self.quic_datagrams && endpoint.scheme != Scheme::Quic {
            return Err(Failed::usage(
                "--quic-datagrams needs --quic or -L quic://…",
            ));
        }
        endpoint.datagrams = self.quic_datagrams;
        endpoint.path.clone_from(&self.path);
        endpoint.bind = self.bind;
        endpoint.timeout = Duration::from_secs(10);
        endpoint.tls = TlsOptions {
            ca_file: self.cafile.clone(),
            ca_dir: self.capath.clone(),
            os_authorities: self.tls_use_os_certs,
            cert_file: self.cert.clone(),
            key_file: self.key.clone(),
            insecure: self.insecure,
            server_name: self.sni.clone(),
            alpn: self.tls_alpn.iter().cloned().collect(),
            version: self.tls_version,
        };
        Ok(endpoint)
    }

    fn config(&self, username: Option<String>, password: Option<String>) -> Result<Config, Failed> {
        let version = self.protocol_version;
        if !version.is_v5() && !self.properties.is_empty() {
            return Err(Failed::usage("-D needs MQTT 5: leave -V out, or say -V 5"));
        }
        if !version.is_v5() && self.session_expiry_interval.is_some() {
            return Err(Failed::usage("-x needs MQTT 5: leave -V out, or say -V 5"));
        }
        let will = match &self.will_topic {
            None if !self.properties.will.as_properties().is_empty() => {
                return Err(Failed::usage("-D will needs --will-topic"));
            }
            None => None,
            Some(topic) => Some(Message {
                topic: topic.clone(),
                payload: self.will_payload.clone().unwrap_or_default().into_bytes(),
                qos: self.will_qos,
                retain: self.will_retain,
                properties: self.properties.will.clone(),
            }),
        };
        Ok(Config {
            version,
            client_id: self.client_id()?,
            clean_start: !self.keep_session,
            keep_alive: self.keepalive,
            username,
            password: password.map(String::into_bytes),
            will,
            properties: self.connect_properties()?,
            max_inflight: self.max_inflight,
            ..Config::default()
        })
    }

    fn connect_properties(&self) -> Result<PropertyBuf, Failed> {
        const EXPIRY: PropertyId = PropertyId::SessionExpiryInterval;
        let mut properties = self.properties.connect.clone();
        let given = properties.as_properties().contains(EXPIRY);
        let expiry = match (self.session_expiry_interval, self.keep_session) {
            (Some(_), _) if given => {
                return Err(Failed::usage(
                    "-x and -D connect session-expiry-interval say the same: leave one out",
                ));
            }
            (None, true) if !given && self.protocol_version.is_v5() => Some(u32::MAX),
            (expiry, _) => expiry,
        };
        if let Some(expiry) = expiry {
            properties.push_number(EXPIRY, expiry);
        }
        Ok(properties)
    }

    fn client_id(&self) -> Result<String, Failed> {
        let given = match (&self.id, &self.id_prefix) {
            (Some(id), _) => Some(id.clone()),
            (None, Some(prefix)) => Some(format!("{prefix}{}", std::process::id())),
            (None, None) => None,
        };
        match given {
            Some(id) => Ok(id),
            None if self.protocol_version.is_v5() => Ok(String::new()),
            None => {
                let random = getrandom::u64();
                let random = random.map_err(|error| Failed::usage(error.to_string()))?;
                // MQTT 3.1 allows 23 characters.
                Ok(format!("punctual-{:014x}", random >> 8))
            }
        }
    }
}

fn parse_version(text: &str) -> Result<Version, String> {
    match text {
        "5" | "mqttv5" => Ok(Version::V5),
        "311" | "mqttv311" => Ok(Version::V311),
        "31" | "mqttv31" => Ok(Version::V31),
        _ => Err("say 5, 311 or 31 (or mqttv5, mqttv311, mqttv31)".into()),
    }
}

fn parse_tls_version(text: &str) -> Result<TlsVersion, String> {
    match text {
        "tlsv1.3" => Ok(TlsVersion::V13),
        "tlsv1.2" => Ok(TlsVersion::V12),
        _ => Err("say tlsv1.3 or tlsv1.2; older ones are not secure".into()),
    }
}

fn parse_expiry(text: &str) -> Result<u32, String> {
    match text {
        "-1" | "∞" => Ok(u32::MAX),
        _ => text
            .parse()
            .map_err(|_| "say 0 to 4294967295 seconds, or -1 for ever".into()),
    }
}

/// A QoS from the command line.
pub(super) fn parse_qos(text: &str) -> Result<QoS, String> {
    let bits = text.parse().ok();
    bits.and_then(QoS::from_bits).ok_or("say 0, 1 or 2".into())
}
