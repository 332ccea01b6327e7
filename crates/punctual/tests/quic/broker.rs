//! A broker with certificates that were made for it, and clients of it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use punctual_client::{
    Client, Config, Delivery, Endpoint, Error, Event, Message, Options, PropertyBuf, QoS, Scheme,
    SubscribeOptions,
};

#[path = "../support/log.rs"]
#[allow(dead_code, reason = "no test here looks at all of it")]
mod log;

use log::Log;

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const PUNCTUAL: &str = env!("CARGO_BIN_EXE_punctual");

/// A running broker; it ends when this is dropped.
pub(crate) struct Broker {
    process: Child,
    log: Log,
    dir: tempfile::TempDir,
    pub(crate) quic: SocketAddr,
    pub(crate) tcp: SocketAddr,
    http: SocketAddr,
    /// Scheme and address of all listeners, in the order of the file.
    listeners: Vec<(String, SocketAddr)>,
}

impl Broker {
    /// With these further lines for the QUIC listener, and these for the file.
    pub(crate) fn start(listener: &str, more: &str) -> Self {
        Self::start_with(listener, more, &[])
    }

    /// The same, with further files. `DIR` stands for where they are.
    pub(crate) fn start_with(listener: &str, more: &str, files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        make_certificates(&dir);
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let text = format!(
            "{more}\n[server]\nhttp = \"127.0.0.1:0\"\nshards = 2\nsys_interval = \"off\"\n\
             [[listener]]\naddress = \"quic://127.0.0.1:0\"\ncertificate = \"DIR/server.pem\"\n\
             key = \"DIR/server.key\"\nclient_ca = \"DIR/ca.pem\"\n{listener}\n\
             [[listener]]\naddress = \"tcp://127.0.0.1:0\"\n"
        );
        let text = text.replace("DIR", &dir.path().display().to_string());
        let file = dir.path().join("punctual.toml");
        std::fs::write(&file, text).unwrap();
        let (process, log) = serve(&file);
        let nowhere = ([127, 0, 0, 1], 0).into();
        let mut broker = Self {
            process,
            log,
            dir,
            quic: nowhere,
            tcp: nowhere,
            http: nowhere,
            listeners: Vec::new(),
        };
        // The HTTP interface is the last that is opened.
        while broker.http == nowhere {
            let line = broker.logged("listening on ");
            let (scheme, address) = line.split_once("://").unwrap();
            let address = address.parse().unwrap();
            match scheme {
                "http" => broker.http = address,
                "quic" => broker.quic = address,
                "tcp" => broker.tcp = address,
                _ => {}
            }
            broker.listeners.push((scheme.to_owned(), address));
        }
        broker
    }

    /// Waits for a line of the log; what follows the text in it.
    #[track_caller]
    pub(crate) fn logged(&self, text: &str) -> String {
        self.log.logged(text)
    }

    /// Kills it, and starts another that is reached by QUIC at the same address.
    pub(crate) fn replace(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let file = self.file("punctual.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("quic://127.0.0.1:0", &format!("quic://{}", self.quic));
        std::fs::write(&file, text).unwrap();
        (self.process, self.log) = serve(&file);
        self.logged("listening on http://");
    }

    /// A file that was made for this broker.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The port by which a transport can be had.
    pub(crate) fn port(&self, scheme: Scheme) -> u16 {
        let scheme = match scheme {
            Scheme::Tcp => "tcp",
            Scheme::Tls => "tls",
            Scheme::Udp => "udp",
            Scheme::Quic => "quic",
            Scheme::Ws | Scheme::Wss => panic!("no test needs {scheme:?}"),
        };
        let mut listeners = self.listeners.iter();
        let found = listeners.find(|(name, _)| name == scheme);
        found.expect("a listener").1.port()
    }

    /// Memory of the broker's that is resident, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.process.id());
        let text = std::fs::read_to_string(path).unwrap();
        let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    }

    /// Processor time that the broker has used.
    pub(crate) fn processor_time(&self) -> Duration {
        let mut clock = 0;
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let id = self.process.id() as libc::pid_t;
        // SAFETY: both pointers are to live values of the types that are written.
        let told = unsafe {
            libc::clock_getcpuclockid(id, &raw mut clock)
                | libc::clock_gettime(clock, &raw mut time)
        };
        assert_eq!(told, 0, "the processor time of the broker");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// A metric, with its labels if it has some.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        let value = value.unwrap_or_else(|| panic!("no {name} in {text}"));
        value.trim().parse().unwrap()
    }

    /// Clients connected by QUIC.
    pub(crate) fn connections(&self) -> u64 {
        let label = format!("{{listener=\"quic://{}\"}}", self.quic);
        self.metric(&format!("punctual_listener_connections{label}"))
    }

    /// Waits until a metric is what it is to be.
    pub(crate) fn wait_for(&self, what: &str, mut is: impl FnMut() -> bool) {
        let started = std::time::Instant::now();
        while !is() {
            assert!(started.elapsed() < PATIENCE, "{what}");
            std::thread::yield_now();
        }
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        let id = self.process.id() as libc::pid_t;
        // SAFETY: the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    }

    /// Waits for its end; whether it ended well.
    pub(crate) fn ended_well(&mut self) -> bool {
        self.process.wait().unwrap().success()
    }

    /// How to connect by QUIC.
    pub(crate) fn options(&self, client_id: &str) -> Options {
        let mut endpoint = Endpoint::new(Scheme::Quic, "127.0.0.1");
        endpoint.port = self.quic.port();
        endpoint.tls.ca_file = Some(self.file("ca.pem"));
        Options {
            endpoint,
            config: Config {
                client_id: client_id.into(),
                ..Config::default()
            },
            reconnect: None,
        }
    }

    /// A client by QUIC.
    pub(crate) fn client(&self, client_id: &str) -> Client {
        connect(self.options(client_id)).unwrap()
    }

    /// A client by QUIC that asks for datagrams.
    pub(crate) fn datagram_client(&self, client_id: &str) -> Client {
        let mut options = self.options(client_id);
        options.endpoint.datagrams = true;
        connect(options).unwrap()
    }

    /// A client by TCP.
    pub(crate) fn tcp_client(&self, client_id: &str) -> Client {
        let mut options = self.options(client_id);
        options.endpoint = Endpoint::new(Scheme::Tcp, "127.0.0.1");
        options.endpoint.port = self.tcp.port();
        connect(options).unwrap()
    }
}

/// Runs the binary.
fn serve(file: &Path) -> (Child, Log) {
    let mut process = Command::new(PUNCTUAL)
        .args(["serve", "--config"])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = Log::of(process.stderr.take().unwrap());
    (process, log)
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn connect(options: Options) -> Result<Client, Error> {
    Client::connect(options).map(|(client, _)| client)
}

/// Subscribes and waits for the answer.
pub(crate) fn subscribe(client: &mut Client, filter: &str, qos: QoS) {
    let options = SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    };
    let filters = [(filter, options)];
    client.subscribe(&filters, &PropertyBuf::new()).unwrap();
    while !matches!(next(client), Event::Subscribed { .. }) {}
}

/// Publishes; with QoS 1 and 2 waits for the acknowledgement.
pub(crate) fn publish(client: &mut Client, topic: &str, payload: &[u8], qos: QoS) {
    client
        .publish(&Message::new(topic, payload.to_vec()).qos(qos))
        .unwrap();
    while client.unfinished() > 0 {
        next(client);
    }
}

/// The next message.
pub(crate) fn message(client: &mut Client) -> Delivery {
    loop {
        if let Event::Message(delivery) = next(client) {
            return delivery;
        }
    }
}

/// The next event.
pub(crate) fn next(client: &mut Client) -> Event {
    client.next(Some(PATIENCE)).unwrap().expect("an event")
}

/// An authority, a server's certificate and a client's.
fn make_certificates(dir: &tempfile::TempDir) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let named = |name: &str, hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    for (authority, server) in [("ca", "server"), ("other", "other-server")] {
        let mut params = named(authority, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        write(&format!("{authority}.pem"), certificate);
        let ca = Issuer::new(params, key);
        for (file, name, hosts) in [
            (server, "server", &["localhost", "127.0.0.1"][..]),
            ("client", "tester", &[][..]),
        ] {
            if authority == "other" && file == "client" {
                continue;
            }
            let key = KeyPair::generate().unwrap();
            let certificate = named(name, hosts).signed_by(&key, &ca).unwrap();
            write(&format!("{file}.pem"), certificate.pem());
            write(&format!("{file}.key"), key.serialize_pem());
        }
    }
}
