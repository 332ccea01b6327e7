//! Starts the Mosquitto of this machine on free ports of the loopback, with
//! every transport, for as long as the value lives.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running Mosquitto.
pub(crate) struct Broker {
    process: Child,
    dir: tempfile::TempDir,
    pub(crate) tcp: u16,
    pub(crate) ws: u16,
    pub(crate) tls: u16,
    pub(crate) wss: u16,
}

/// Where Mosquitto is, if it is installed. Says so loudly if it is not.
fn installed() -> Option<&'static str> {
    let found = [
        "/usr/sbin/mosquitto",
        "/usr/local/sbin/mosquitto",
        "/usr/bin/mosquitto",
    ]
    .into_iter()
    .find(|path| Path::new(path).exists());
    if found.is_none() {
        eprintln!("SKIPPED: mosquitto is not installed (apt install mosquitto)");
    }
    found
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

impl Broker {
    /// Starts one; `None` if Mosquitto is not installed. `extra` are further
    /// lines of its configuration.
    pub(crate) fn start(extra: &str) -> Option<Self> {
        let program = installed()?;
        // Another process may take a port before Mosquitto does.
        for _ in 0..10 {
            let dir = tempfile::tempdir().unwrap();
            make_certificates(dir.path());
            let [tcp, ws, tls, wss] = free_ports();
            let path = dir.path().display();
            let config = format!(
                "per_listener_settings false\nallow_anonymous true\nlog_dest stderr\n\
                 sys_interval 1\nmax_queued_messages 0\nuser root\n{extra}\n\
                 listener {tcp} 127.0.0.1\n\
                 listener {ws} 127.0.0.1\nprotocol websockets\n\
                 listener {tls} 127.0.0.1\n\
                 cafile {path}/ca.pem\ncertfile {path}/server.pem\nkeyfile {path}/server.key\n\
                 require_certificate true\nuse_identity_as_username true\n\
                 listener {wss} 127.0.0.1\nprotocol websockets\n\
                 cafile {path}/ca.pem\ncertfile {path}/server.pem\nkeyfile {path}/server.key\n"
            );
            std::fs::write(dir.path().join("mosquitto.conf"), config).unwrap();
            if let Some(process) = run(program, dir.path()) {
                return Some(Self {
                    process,
                    dir,
                    tcp,
                    ws,
                    tls,
                    wss,
                });
            }
        }
        panic!("mosquitto does not start");
    }

    /// A file made for this broker: `ca.pem`, `client.pem`, `client.key`, ….
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Ends the process and starts it again on the same ports.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub(crate) fn restart(&mut self) {
        self.stop();
        let program = installed().unwrap();
        self.process = run(program, self.dir.path()).expect("mosquitto does not start again");
    }

    fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs Mosquitto until it says that it runs; `None` if it ends before.
fn run(program: &str, dir: &Path) -> Option<Child> {
    let mut process = Command::new(program)
        .arg("-c")
        .arg(dir.join("mosquitto.conf"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let runs = lines
        .by_ref()
        .map_while(Result::ok)
        .any(|line| line.ends_with(" running"));
    if !runs {
        let _ = process.wait();
        return None;
    }
    // Keeps the pipe empty; ends with the process.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    Some(process)
}

/// `ca.pem`, a server's certificate for `localhost` only, and a client's for
/// "tester".
fn make_certificates(dir: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let named = |name: &str, hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let write = |name: &str, text: String| std::fs::write(dir.join(name), text).unwrap();
    let mut params = named("Test CA", &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    write("ca.pem", params.self_signed(&key).unwrap().pem());
    let ca = Issuer::new(params, key);
    for (file, name, hosts) in [
        ("server", "server", &["localhost"][..]),
        ("client", "tester", &[][..]),
    ] {
        let key = KeyPair::generate().unwrap();
        let certificate = named(name, hosts).signed_by(&key, &ca).unwrap();
        write(&format!("{file}.pem"), certificate.pem());
        write(&format!("{file}.key"), key.serialize_pem());
    }
}
