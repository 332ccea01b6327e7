//! Undeclared traffic: bulk over TCP, a media stream over UDP, file transfers, and plain MQTT.
//!
//! The papers generate this traffic with D-ITG, VLC, vsftpd and ordinary publishers; [`tools`] can
//! do so too. For the network only the arrival pattern matters: a steady TCP stream, a burst of
//! datagrams for each video frame, or a TCP connection for each file.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use punctual_model::network::Network;
use punctual_model::srt::Protocol;
use punctual_model::{format_bandwidth, parse_bandwidth};

use super::flows::Stream;
use super::layout::Layout;
use super::tools::{self, Running, Tool};
use crate::sys;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Port of the first generator's sink.
const FIRST_PORT: u16 = 5001;

/// Bytes of bulk per write.
pub(super) const CHUNK: usize = 16 * 1024;

/// Size of a file, bytes.
pub(super) const FILE: usize = 512 * 1024;

/// Size of a media datagram, bytes: seven packets of an MPEG transport stream.
const DATAGRAM: usize = 7 * 188;

/// Interval of video frames.
const PICTURE: Duration = Duration::from_millis(40);

/// Size of a full frame on the wire, bytes.
pub(super) const FULL_FRAME: u64 = 1538;

/// Timeout of blocking socket calls, after which a thread checks whether it has to end.
const LOOK: Duration = Duration::from_millis(100);

/// Kinds of undeclared traffic, by their arrival pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A TCP connection that sends at a fixed rate.
    Bulk,
    /// UDP datagrams in a burst every 40 ms.
    Media,
    /// A TCP connection for each file of 512 KiB, limited by TCP's congestion control.
    Files,
    /// Plain MQTT messages to a broker, each of a full frame.
    Mqtt,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bulk => "bulk",
            Self::Media => "media",
            Self::Files => "files",
            Self::Mqtt => "mqtt",
        })
    }
}

/// One stream of undeclared traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Background {
    pub(crate) kind: Kind,
    /// Name of the switch to which a new host of the generator is attached, or of its host.
    pub(crate) from: String,
    /// Name of the switch or host of the sink; for MQTT the broker's host.
    pub(crate) to: String,
    /// Payload rate, bit/s; for MQTT the rate on the wire.
    pub(crate) rate: u64,
    /// File transfers are limited to the rate; otherwise only TCP's congestion control limits them.
    pub(crate) limited: bool,
    /// The tool that generates the traffic; `None`: this program.
    pub(crate) tool: Option<Tool>,
}

impl FromStr for Background {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let remedy = || "write KIND:FROM>TO:RATE, such as bulk:s2>s7:38Mbit".to_owned();
        let (kind, rest) = text.split_once(':').ok_or_else(remedy)?;
        let kind = match kind {
            "bulk" => Kind::Bulk,
            "media" => Kind::Media,
            "files" => Kind::Files,
            "mqtt" => Kind::Mqtt,
            _ => return Err("the kind is bulk, media, files or mqtt".to_owned()),
        };
        let (ends, rate) = rest.rsplit_once(':').ok_or_else(remedy)?;
        let (from, to) = ends.split_once('>').ok_or_else(remedy)?;
        let rate =
            parse_bandwidth(rate.as_bytes()).map_err(|remedy| format!("the rate {remedy}"))?;
        if rate == 0 {
            return Err("the rate is at least 1 bit/s".to_owned());
        }
        Ok(Self {
            kind,
            from: from.to_owned(),
            to: to.to_owned(),
            rate,
            limited: false,
            tool: None,
        })
    }
}

impl fmt::Display for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = format_bandwidth(self.rate);
        write!(f, "{}:{}>{}:{rate}", self.kind, self.from, self.to)
    }
}

/// The undeclared traffic of the RT-MQTT paper (section V.A), for any network: 38 Mbit/s of bulk,
/// 1.2 Mbit/s of media and 3.2 Mbit/s of files from the switches farthest from each broker to the
/// switch next to it, and 6 Mbit/s of plain MQTT from all switches to the broker.
pub(super) fn usual(layout: &Layout) -> Vec<Background> {
    let mut all = Vec::new();
    let brokers = layout
        .hosts
        .iter()
        .enumerate()
        .filter(|(_, host)| host.broker);
    for (broker, host) in brokers {
        let Some(before) = layout.switch_of(broker) else {
            continue;
        };
        let mut entries = layout.entries(broker);
        entries.retain(|(switch, _)| *switch != before);
        if entries.is_empty() {
            entries.push((before, 0));
        }
        entries.sort_by_key(|(switch, distance)| (std::cmp::Reverse(*distance), *switch));
        let kinds = [
            (Kind::Bulk, 38_000_000),
            (Kind::Media, 1_200_000),
            (Kind::Files, 3_200_000),
        ];
        for ((kind, rate), (switch, _)) in kinds.into_iter().zip(entries.iter().cycle()) {
            all.push(Background {
                kind,
                from: layout.switches[*switch].clone(),
                to: layout.switches[before].clone(),
                rate,
                limited: false,
                tool: None,
            });
        }
        for (switch, _) in &entries {
            all.push(Background {
                kind: Kind::Mqtt,
                from: layout.switches[*switch].clone(),
                to: host.name.clone(),
                rate: 6_000_000 / entries.len() as u64,
                limited: false,
                tool: None,
            });
        }
    }
    all
}

/// A generator and its place in the network.
#[derive(Debug)]
pub(super) struct Generator {
    pub(super) background: Background,
    pub(super) stream: Stream,
    source: Ipv4Addr,
    sink: Ipv4Addr,
}

impl Generator {
    /// Attaches the hosts of the generator and its sink.
    pub(super) fn place(
        background: &Background,
        index: usize,
        layout: &mut Layout,
    ) -> Result<Self> {
        let unknown = |end: &str| Error::Config {
            field: "--background",
            value: background.to_string(),
            remedy: format!("{end:?} is not among the network's switches and hosts"),
        };
        let end = |layout: &mut Layout, name: &str, what: &str| {
            if let Some(host) = layout.hosts.iter().position(|host| host.name == name) {
                return Ok(host);
            }
            let at = layout.switches.iter().position(|switch| switch == name);
            let at = at.ok_or_else(|| unknown(name))?;
            layout.attach_host(&format!("{what}{background}"), at)
        };
        let number = u16::try_from(index).map_err(|_| unknown("so many"))?;
        let from = end(layout, &background.from, "")?;
        let to = match background.kind {
            Kind::Mqtt => {
                let mut hosts = layout.hosts.iter();
                hosts
                    .position(|host| host.broker && host.name == background.to)
                    .ok_or_else(|| unknown(&background.to))?
            }
            _ => end(layout, &background.to, "sink of ")?,
        };
        let path = layout
            .path(from, to)
            .ok_or_else(|| unknown(&background.to))?;
        let port = FIRST_PORT + number;
        Ok(Self {
            background: background.clone(),
            source: layout.hosts[from].address,
            sink: layout.hosts[to].address,
            stream: Stream {
                from,
                to,
                protocol: match background.kind {
                    Kind::Media => Protocol::Udp,
                    _ => Protocol::Tcp,
                },
                ports: [port, port],
                path,
                levels: [0, 0],
            },
        })
    }

    /// Starts the servers that the tools of generators need, at most one of each tool per host, and
    /// waits until they listen.
    pub(super) fn prepare<'a>(
        generators: &[Self],
        hosts: impl Fn(usize) -> &'a Namespace,
    ) -> Result<Vec<Running>> {
        let (mut receivers, mut servers) = (BTreeSet::new(), BTreeSet::new());
        let mut running = Vec::new();
        for Self {
            background,
            stream,
            sink,
            ..
        } in generators
        {
            match background.tool {
                Some(Tool::DItg) if receivers.insert(stream.to) => {
                    running.push(Running::itg_receive(hosts(stream.to), *sink)?);
                }
                Some(Tool::Vsftpd) if servers.insert(stream.from) => {
                    let most = background.limited.then_some(background.rate);
                    running.push(Running::vsftpd(hosts(stream.from), most)?);
                }
                _ => {}
            }
        }
        Ok(running)
    }

    /// Starts threads in `scope` that generate and receive traffic until told to end, and the
    /// generating tool, if there is one. Received bytes are added to `arrived`.
    pub(super) fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        hosts: impl Fn(usize) -> &'scope Namespace,
        end: &'scope AtomicBool,
        arrived: &'scope AtomicU64,
    ) -> Result<Option<Running>> {
        let [_, port] = self.stream.ports;
        let (source, sink) = (hosts(self.stream.from), hosts(self.stream.to));
        let address = SocketAddr::from((self.sink, port));
        let rate = self.background.rate;
        let most = self.background.limited.then_some(rate);
        let failed = || Error::io(format!("background {}", self.background));
        match (self.background.kind, self.background.tool) {
            (Kind::Mqtt, _) => {}
            (Kind::Media, tool) => {
                let receiver = sink.enter(|| UdpSocket::bind(address))?.map_err(failed())?;
                receiver.set_read_timeout(Some(LOOK)).map_err(failed())?;
                scope.spawn(move || receive_datagrams(&receiver, end, arrived));
                if tool.is_some() {
                    return Running::vlc(source, self.sink, port, rate).map(Some);
                }
                let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                let sender = source.enter(|| UdpSocket::bind(any))?.map_err(failed())?;
                sender.connect(address).map_err(failed())?;
                scope.spawn(move || send_media(&sender, rate, end));
            }
            (Kind::Bulk, Some(_)) => {
                return Running::itg_send(source, self.sink, port, rate).map(Some);
            }
            (Kind::Files, Some(_)) => {
                scope.spawn(move || {
                    // The thread starts its programs in its own namespace. Failures are visible as
                    // missing received bytes.
                    let _ = sink.enter(|| fetch_files(self.source, rate, end));
                });
            }
            (kind @ (Kind::Bulk | Kind::Files), None) => {
                let listener = sink
                    .enter(|| TcpListener::bind(address))?
                    .map_err(failed())?;
                listener.set_nonblocking(true).map_err(failed())?;
                scope.spawn(move || receive_connections(&listener, end, arrived));
                scope.spawn(move || {
                    // The thread stays in the namespace because it opens a connection for each
                    // file. A failed connection is visible as missing received bytes.
                    let _ = source.enter(|| {
                        if kind == Kind::Files {
                            send_files(address, rate, most, end);
                        } else {
                            send_bulk(address, rate, end);
                        }
                    });
                });
            }
        }
        Ok(None)
    }

    /// Received bytes: those that the threads counted or, where a tool receives, those that its
    /// host received.
    pub(super) fn arrived<'a>(
        &self,
        hosts: impl Fn(usize) -> &'a Namespace,
        counted: &AtomicU64,
    ) -> Result<u64> {
        match self.background.tool {
            Some(Tool::DItg | Tool::Vsftpd) => tools::received(hosts(self.stream.to)),
            Some(Tool::Vlc) | None => Ok(counted.load(Ordering::Relaxed)),
        }
    }
}

/// When `bytes` bytes are due at a rate of `rate` bit/s.
fn due(begin: Instant, bytes: u64, rate: u64) -> Instant {
    begin + Duration::from_secs_f64(bytes as f64 * 8.0 / rate as f64)
}

fn pause_until(due: Instant, end: &AtomicBool) {
    while !end.load(Ordering::Relaxed) {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(LOOK));
    }
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, LOOK * 10).ok()?;
    stream.set_write_timeout(Some(LOOK)).ok()?;
    Some(stream)
}

/// Writes all bytes in parts; returns false if `end` is set or the connection breaks.
fn write(stream: &mut TcpStream, mut bytes: &[u8], end: &AtomicBool) -> bool {
    while !bytes.is_empty() && !end.load(Ordering::Relaxed) {
        match stream.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if would_wait(&error) => {}
            Err(_) => return false,
        }
    }
    true
}

fn would_wait(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

fn send_bulk(address: SocketAddr, rate: u64, end: &AtomicBool) {
    let Some(mut stream) = connect(address) else {
        return;
    };
    let chunk = [b'b'; CHUNK];
    let begin = Instant::now();
    let mut sent = 0;
    while !end.load(Ordering::Relaxed) && write(&mut stream, &chunk, end) {
        sent += CHUNK as u64;
        pause_until(due(begin, sent, rate), end);
    }
}

/// `most` is the limit of the rate of each transfer, bit/s.
fn send_files(address: SocketAddr, rate: u64, most: Option<u64>, end: &AtomicBool) {
    let file = vec![b'f'; FILE];
    let begin = Instant::now();
    let mut sent = 0;
    while !end.load(Ordering::Relaxed) {
        let Some(mut stream) = connect(address) else {
            return;
        };
        if most.is_some_and(|most| sys::pace(&stream, most).is_err()) {
            return;
        }
        write(&mut stream, &file, end);
        drop(stream);
        sent += FILE as u64;
        pause_until(due(begin, sent, rate), end);
    }
}

fn fetch_files(server: Ipv4Addr, rate: u64, end: &AtomicBool) {
    let begin = Instant::now();
    let mut asked = 0;
    while !end.load(Ordering::Relaxed) {
        tools::fetch(server, || end.load(Ordering::Relaxed));
        asked += FILE as u64;
        pause_until(due(begin, asked, rate), end);
    }
}

fn send_media(socket: &UdpSocket, rate: u64, end: &AtomicBool) {
    let datagram = [b'm'; DATAGRAM];
    let begin = Instant::now();
    let mut sent: u64 = 0;
    for picture in 1.. {
        let until = begin + PICTURE * picture;
        while due(begin, sent, rate) < until && !end.load(Ordering::Relaxed) {
            // UDP does not retransmit, so a failed send counts as a lost datagram.
            let _ = socket.send(&datagram);
            sent += DATAGRAM as u64;
        }
        pause_until(until, end);
        if end.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn receive_datagrams(socket: &UdpSocket, end: &AtomicBool, arrived: &AtomicU64) {
    let mut buffer = [0; 2048];
    while !end.load(Ordering::Relaxed) {
        if let Ok(length) = socket.recv(&mut buffer) {
            arrived.fetch_add(length as u64, Ordering::Relaxed);
        }
    }
}

fn receive_connections(listener: &TcpListener, end: &AtomicBool, arrived: &AtomicU64) {
    let mut buffer = vec![0; 256 * 1024];
    while !end.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(2));
            continue;
        };
        let prepared = stream.set_nonblocking(false);
        if prepared
            .and_then(|()| stream.set_read_timeout(Some(LOOK)))
            .is_err()
        {
            continue;
        }
        while !end.load(Ordering::Relaxed) {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    arrived.fetch_add(length as u64, Ordering::Relaxed);
                }
                Err(error) if would_wait(&error) => {}
                Err(_) => break,
            }
        }
    }
}

/// Whether any link of the network declares undeclared traffic in full frames.
pub(super) fn is_expected(network: &Network) -> bool {
    let full = |rate: u64| FULL_FRAME * 8 * 1_000_000_000 / rate;
    let links = network.topology.links.iter().filter(|link| link.rate > 0);
    links
        .into_iter()
        .any(|link| link.best_effort >= full(link.rate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_sim::network::families::{self, Load};

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "bulk:s2>s7:38Mbit",
            "mqtt:s1>h49:6Mbit",
            "media:a>b:1200kbit",
        ] {
            let background: Background = text.parse().unwrap();
            assert_eq!(background.to_string().parse(), Ok(background));
        }
        for text in [
            "bulk",
            "tape:a>b:1Mbit",
            "bulk:ab:1Mbit",
            "bulk:a>b:0",
            "bulk:a>b:x",
        ] {
            assert!(text.parse::<Background>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_usual_comes_from_far_and_ends_before_the_broker() {
        let mut layout = Layout::new(&Network::new(&families::fig2(Load::Low)).unwrap()).unwrap();
        let usual = usual(&layout);
        assert_eq!(usual[0].to_string(), "bulk:s2>s7:38Mbit");
        assert_eq!(usual.iter().filter(|of| of.kind == Kind::Mqtt).count(), 6);
        let generator = Generator::place(&usual[0], 0, &mut layout).unwrap();
        // The cable of the generator's host, s2>s3, s3>s10, s10>s7, and the cable of the sink's
        // host.
        assert_eq!(generator.stream.path.len(), 5);
        let is_expected = |document| is_expected(&Network::new(&document).unwrap());
        assert!(is_expected(families::fig2(Load::Low)));
        // Only acknowledgements are undeclared there.
        assert!(!is_expected(families::factory_cell()));
        let error = Generator::place(&"bulk:s2>x:1Mbit".parse().unwrap(), 0, &mut layout);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("\"x\" is not among")
        );
    }
}
