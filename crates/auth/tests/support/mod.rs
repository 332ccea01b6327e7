//! A real mosquitto on Unix sockets in a temporary directory, and just enough of an MQTT 5 client to
//! ask it what it allows.
//!
//! Nothing here waits for time to pass: the broker is up when its log says so, and a PINGRESP tells
//! that everything sent before it has arrived.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// The releases whose behaviour this crate follows.
const KNOWN_VERSION: &str = "mosquitto version 2.0.";
/// Set in CI to make a missing mosquitto an error.
const REQUIRE: &str = "PUNCTUAL_REQUIRE_MOSQUITTO";

/// An installed program of mosquitto's, or `None` with a loud note that the test does nothing.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file());
    if found.is_none() {
        skip(&format!("{name} is not installed"));
    }
    found
}

fn mosquitto() -> Option<PathBuf> {
    let program = installed("mosquitto")?;
    let help = Command::new(&program)
        .arg("-h")
        .output()
        .expect("mosquitto runs");
    if String::from_utf8_lossy(&help.stdout).starts_with(KNOWN_VERSION) {
        return Some(program);
    }
    skip(&format!("this is not {KNOWN_VERSION}x"));
    None
}

fn skip(reason: &str) {
    assert!(
        env::var_os(REQUIRE).is_none(),
        "{REQUIRE} is set, but {reason}"
    );
    // Not eprintln!, which the test harness keeps to itself when a test passes.
    let note = format!("SKIPPED, nothing was compared with mosquitto: {reason}\n");
    std::io::stderr()
        .write_all(note.as_bytes())
        .expect("standard error is open");
}

/// What a listener of the broker is given.
#[derive(Default, Clone, Copy)]
pub(crate) struct Listener<'a> {
    pub(crate) acl: Option<&'a str>,
    pub(crate) passwords: Option<&'a str>,
}

pub(crate) struct Broker {
    process: Child,
    dir: TempDir,
}

pub(crate) enum Start {
    Running(Broker),
    /// Mosquitto does not accept its files.
    Refused,
    /// No mosquitto to ask.
    Missing,
}

impl Broker {
    pub(crate) fn start(listeners: &[Listener<'_>]) -> Start {
        let Some(program) = mosquitto() else {
            return Start::Missing;
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: String| dir.path().join(name).display().to_string();
        // Mosquitto leaves root otherwise and could not enter the directory.
        let mut config = "per_listener_settings true\nuser root\nlog_dest stderr\n".to_owned();
        for (index, Listener { acl, passwords }) in listeners.iter().enumerate() {
            config += &format!("listener 0 {}\n", path(format!("{index}.sock")));
            config += &format!("allow_anonymous {}\n", passwords.is_none());
            for (option, text) in [("acl_file", acl), ("password_file", passwords)] {
                if let Some(text) = text {
                    let file = path(format!("{index}.{option}"));
                    fs::write(&file, text).expect("the temporary directory is writable");
                    config += &format!("{option} {file}\n");
                }
            }
        }
        let file = path("mosquitto.conf".to_owned());
        fs::write(&file, config).expect("the temporary directory is writable");
        let process = Command::new(program)
            .args(["-c", &file])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("mosquitto starts");
        let mut broker = Self { process, dir };
        let log = broker.process.stderr.take().expect("stderr is piped");
        let mut lines = BufReader::new(log).lines();
        let running = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.ends_with(" running"));
        if !running {
            return Start::Refused;
        }
        // Mosquitto must not block on a full pipe. The thread ends with the process.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Start::Running(broker)
    }

    /// Connects to the listener of this index; the error is the reason code.
    pub(crate) fn connect(
        &self,
        listener: usize,
        client_id: &str,
        user: Option<&str>,
        password: Option<&[u8]>,
    ) -> Result<Client, u8> {
        let socket = self.dir.path().join(format!("{listener}.sock"));
        let stream = UnixStream::connect(socket).expect("the listener is up");
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a valid time-out");
        let flags = 2 | u8::from(user.is_some()) << 7 | u8::from(password.is_some()) << 6;
        let mut body = [0, 4, b'M', b'Q', b'T', b'T', 5, flags, 0, 0, 0].to_vec();
        put(&mut body, client_id.as_bytes());
        user.into_iter()
            .for_each(|user| put(&mut body, user.as_bytes()));
        password
            .into_iter()
            .for_each(|password| put(&mut body, password));
        let mut client = Client {
            stream,
            next_id: 0,
            delivered: Vec::new(),
        };
        client.send(0x10, &body);
        let (kind, body) = client.receive();
        assert_eq!(kind, 0x20, "CONNACK");
        if body[1] == 0 {
            Ok(client)
        } else {
            Err(body[1])
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) struct Client {
    stream: UnixStream,
    next_id: u16,
    /// Topics of the PUBLISH packets received and not yet asked for.
    delivered: Vec<String>,
}

impl Client {
    /// Subscribes at QoS 0 and returns the reason code.
    pub(crate) fn subscribe(&mut self, filter: &str) -> u8 {
        let mut body = self.packet_id().to_vec();
        body.push(0);
        put(&mut body, filter.as_bytes());
        body.push(0);
        self.send(0x82, &body);
        let codes = self.receive_until(0x90);
        *codes.last().expect("SUBACK has a reason code")
    }

    /// Publishes at QoS 1; says whether the broker took the message.
    pub(crate) fn publish(&mut self, topic: &str) -> bool {
        let mut body = Vec::new();
        put(&mut body, topic.as_bytes());
        body.extend(self.packet_id());
        body.push(0);
        self.send(0x32, &body);
        let ack = self.receive_until(0x40);
        match ack.get(2) {
            // Success, and success without subscribers.
            None | Some(0x00 | 0x10) => true,
            Some(0x87) => false,
            Some(code) => panic!("PUBACK with {code:#x} for {topic:?}"),
        }
    }

    /// The topics of the messages that were delivered since the last call.
    pub(crate) fn delivered(&mut self) -> Vec<String> {
        self.send(0xc0, &[]);
        self.receive_until(0xd0);
        mem::take(&mut self.delivered)
    }

    fn packet_id(&mut self) -> [u8; 2] {
        self.next_id += 1;
        self.next_id.to_be_bytes()
    }

    fn send(&mut self, kind: u8, body: &[u8]) {
        let mut packet = vec![kind];
        let mut length = body.len();
        while length > 127 {
            packet.push(length as u8 | 0x80);
            length >>= 7;
        }
        packet.push(length as u8);
        packet.extend(body);
        self.stream.write_all(&packet).expect("the broker reads");
    }

    /// The body of the next packet of this kind; takes note of the messages before it.
    fn receive_until(&mut self, wanted: u8) -> Vec<u8> {
        loop {
            let (kind, body) = self.receive();
            if kind == wanted {
                return body;
            }
            assert_eq!(kind & 0xf0, 0x30, "only PUBLISH comes unasked");
            let end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
            let topic = String::from_utf8(body[2..end].to_vec()).expect("topics are UTF-8");
            self.delivered.push(topic);
        }
    }

    fn receive(&mut self) -> (u8, Vec<u8>) {
        let kind = self.byte();
        let (mut length, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream
            .read_exact(&mut body)
            .expect("the broker sends whole packets");
        (kind, body)
    }

    fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.stream
            .read_exact(&mut byte)
            .expect("the broker answers");
        byte[0]
    }
}

fn put(out: &mut Vec<u8>, text: &[u8]) {
    out.extend(
        u16::try_from(text.len())
            .expect("a short text")
            .to_be_bytes(),
    );
    out.extend(text);
}
