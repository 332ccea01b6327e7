//! Loads of a noisy neighbour: each repeats one operation as fast as it can.

mod broker;
mod files;
mod sessions;

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use punctual_measure::wire::{self, PublishTemplate, Version, kind};
use punctual_measure::{Api, Error, Result};

use self::broker::{MESH, filter_changes};
pub(super) use self::files::write as write_files;
use self::files::{LOGINS, TLS, handshake};
use self::sessions::{STORE, admissions, crowd, ends, logins, publish_to_crowd, store, wills};
use crate::blocking::Connection;
use crate::sys;

/// Filters in a packet with many filters.
const MANY: usize = 10_000;
/// Retained messages: number of values of two levels in topics of four levels.
const RETAINED: [usize; 2] = [300, 1000];
/// Retained messages of the kind `million`: values of these two levels.
const MILLION: [usize; 2] = [1000, 1000];
/// Longest wait for an answer: a broker that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two requests for metrics.
const PAUSE: Duration = Duration::from_millis(2);

/// The broker under test, and the flag that ends the disturbance.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) mqtt: SocketAddr,
    /// Address of the TLS listener, for the kinds that configure one.
    pub(super) tls: SocketAddr,
    pub(super) http: &'a Api,
    /// Directory of the files that [`write_files`] creates.
    pub(super) directory: &'a Path,
    pub(super) pid: u32,
    pub(super) stop: &'a AtomicBool,
    /// Divisor of the numbers of filters and messages: 1 in timed runs.
    pub(super) part: usize,
}

impl Place<'_> {
    /// The share of `count` operations that this run performs, at least 1.
    fn of(&self, count: usize) -> usize {
        (count / self.part).max(1)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// One kind of neighbour, which repeats one operation.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Prepares the broker before the measurement.
    pub(super) prepare: fn(&Place<'_>) -> Result<()>,
    /// Performs the operation once.
    pub(super) once: fn(&Place<'_>, u64) -> Result<()>,
    /// Additions to the broker's configuration, beginning inside its section `server`.
    pub(super) config: &'static str,
    /// Whether preparation takes so long that the kind runs only with `--full` or by name.
    pub(super) is_long: bool,
}

/// All kinds.
pub(super) const KINDS: &[Kind] = &[
    kind(
        "subscribe",
        "SUBSCRIBE with 10 000 filters, by a new client each time",
        nothing,
        subscribe,
    ),
    kind(
        "unsubscribe",
        "the same, and UNSUBSCRIBE of all",
        nothing,
        unsubscribe,
    ),
    kind(
        "reconnect",
        "connects, subscribes to 20 filters, goes",
        nothing,
        reconnect,
    ),
    kind(
        "takeover",
        "connects to one persistent session with 1000 subscriptions",
        nothing,
        takeover,
    ),
    kind(
        "retained",
        "filters with + over 300 000 retained messages that match nothing",
        retain,
        look_up,
    ),
    kind("replay", "# over 300 000 retained messages", retain, replay),
    kind(
        "mixed",
        "64 KiB of 5-byte messages at once, to a subscriber of the other version",
        nothing,
        mixed,
    ),
    kind(
        "shared",
        "64 KiB of 5-byte messages at once, to a shared subscription",
        nothing,
        shared,
    ),
    kind(
        "listing",
        "lists of clients and subscriptions over HTTP",
        subscriptions,
        listing,
    ),
    kind("scrape", "metrics over HTTP", nothing, scrape),
    kind(
        "reload",
        "the configuration is read again (SIGHUP)",
        subscriptions,
        reload,
    ),
    kind(
        "garbage",
        "connections that send what is no MQTT",
        nothing,
        garbage,
    ),
    kind(
        "reconnect-retained",
        "connects, subscribes to a filter with + that 300 of 300 000 retained messages match, goes",
        retain,
        fetch,
    ),
    kind(
        "ends",
        "sessions end: one with 10 000 subscriptions, one with 10 000 messages that wait",
        nothing,
        ends,
    ),
    kind(
        "wills",
        "100 clients vanish whose wills 100 others have subscribed to",
        nothing,
        wills,
    ),
    kind("tls", "handshakes of TLS", nothing, handshake).with(TLS),
    kind("logins", "CONNECT with a wrong password", nothing, logins).with(LOGINS),
    kind(
        "mesh",
        "a neighbour broker wants 10 000 filters, and does not, again and again",
        nothing,
        filter_changes,
    )
    .with(MESH),
    kind(
        "store",
        "messages of 1 KiB with QoS 1 are stored for 10 sessions that are away, and given up",
        nothing,
        store,
    )
    .with(STORE),
    kind(
        "crowd",
        "messages with QoS 1 for 10 000 sessions that are away",
        crowd,
        publish_to_crowd,
    ),
    kind(
        "admissions",
        "asks for 1000 flows, goes",
        nothing,
        admissions,
    ),
    kind(
        "million",
        "filters with + over 1 000 000 retained messages that match nothing",
        retain_million,
        look_up,
    )
    .long(),
];

const fn kind(
    name: &'static str,
    what: &'static str,
    prepare: fn(&Place<'_>) -> Result<()>,
    once: fn(&Place<'_>, u64) -> Result<()>,
) -> Kind {
    Kind {
        name,
        what,
        prepare,
        once,
        config: "",
        is_long: false,
    }
}

impl Kind {
    const fn with(self, config: &'static str) -> Self {
        Self { config, ..self }
    }

    const fn long(self) -> Self {
        Self {
            is_long: true,
            ..self
        }
    }

    /// Repeats the operation until the end; returns the number of repetitions.
    pub(super) fn disturb(&self, place: &Place<'_>) -> Result<u64> {
        let mut count = 0;
        while !place.is_over() {
            (self.once)(place, count)?;
            count += 1;
        }
        Ok(count)
    }
}

fn nothing(_: &Place<'_>) -> Result<()> {
    Ok(())
}

/// Connects a client of version 3.1.1.
fn client(place: &Place<'_>, id: &str, persistent: bool) -> Result<Connection> {
    let mut connection = Connection::new(id.to_owned(), TcpStream::connect(place.mqtt))?;
    let mut bytes = Vec::new();
    wire::put_connect_with(&mut bytes, Version::V311, id, persistent);
    connection.send(&bytes)?;
    await_kind(&mut connection, kind::CONNACK)?;
    Ok(connection)
}

/// Waits for a packet of the type `wanted`.
fn await_kind(connection: &mut Connection, wanted: u8) -> Result<()> {
    await_packets(connection, 1, |first, _| first >> 4 == wanted)
}

/// Waits for `count` packets for which `wanted` is true. `wanted` gets the first byte and the body
/// of a packet.
fn await_packets(
    connection: &mut Connection,
    count: usize,
    wanted: impl Fn(u8, &[u8]) -> bool,
) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut come = 0;
    while come < count {
        connection.read(PATIENCE, |first, body| {
            come += usize::from(wanted(first, body));
        })?;
        if come < count && Instant::now() >= deadline {
            return Err(connection.failure("did not answer"));
        }
    }
    Ok(())
}

fn ask(connection: &mut Connection, filters: &[String]) -> Result<()> {
    ask_with(connection, filters, 0)
}

fn ask_with(connection: &mut Connection, filters: &[String], qos: u8) -> Result<()> {
    let mut bytes = Vec::new();
    wire::put_subscribe(&mut bytes, Version::V311, 1, filters, qos);
    connection.send(&bytes)?;
    await_kind(connection, kind::SUBACK)
}

fn filters(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}/{n}/+")).collect()
}

fn subscribe(place: &Place<'_>, n: u64) -> Result<()> {
    let mut client = client(place, &format!("storm-{n}"), false)?;
    ask(&mut client, &filters("storm", place.of(MANY)))
}

fn unsubscribe(place: &Place<'_>, n: u64) -> Result<()> {
    let mut client = client(place, &format!("storm-{n}"), false)?;
    let filters = filters("storm", place.of(MANY));
    ask(&mut client, &filters)?;
    let mut body = vec![0, 2];
    for filter in &filters {
        wire::put_string(&mut body, filter);
    }
    let mut bytes = Vec::new();
    wire::put_header(&mut bytes, kind::UNSUBSCRIBE << 4 | 2, body.len());
    bytes.extend_from_slice(&body);
    client.send(&bytes)?;
    await_kind(&mut client, kind::UNSUBACK)
}

fn reconnect(place: &Place<'_>, n: u64) -> Result<()> {
    let mut client = client(place, &format!("comer-{}", n % 1000), false)?;
    ask(&mut client, &filters("comer", 20))
}

fn takeover(place: &Place<'_>, n: u64) -> Result<()> {
    let mut client = client(place, "taken", true)?;
    match n {
        0 => ask(&mut client, &filters("taken", place.of(1000))),
        _ => Ok(()),
    }
}

fn retain(place: &Place<'_>) -> Result<()> {
    retain_all(place, RETAINED)
}

fn retain_million(place: &Place<'_>) -> Result<()> {
    retain_all(place, MILLION)
}

fn retain_all(place: &Place<'_>, [first, second]: [usize; 2]) -> Result<()> {
    let mut client = client(place, "retainer", false)?;
    for a in 0..first {
        let mut bytes = Vec::new();
        for b in 0..place.of(second) {
            let topic = format!("ret/{a}/{b}/v");
            let publish = PublishTemplate::new(Version::V311, &topic, 0, b"21.5");
            let from = bytes.len();
            bytes.extend_from_slice(&publish.bytes);
            // The retain flag.
            bytes[from] |= 1;
        }
        client.send(&bytes)?;
    }
    // The broker answers this after it has handled all packets before.
    ask(&mut client, &["nothing".to_owned()])
}

fn look_up(place: &Place<'_>, n: u64) -> Result<()> {
    let mut client = client(place, &format!("seeker-{n}"), false)?;
    let filters: Vec<String> = (0..100).map(|n| format!("+/+/+/n{n}")).collect();
    ask(&mut client, &filters)
}

fn replay(place: &Place<'_>, n: u64) -> Result<()> {
    let mut client = client(place, &format!("reader-{n}"), false)?;
    let [first, second] = RETAINED;
    take(place, &mut client, "#".to_owned(), first * place.of(second))
}

fn fetch(place: &Place<'_>, n: u64) -> Result<()> {
    let mut client = client(place, &format!("fetcher-{n}"), false)?;
    let [first, second] = RETAINED;
    let filter = format!("ret/+/{}/v", n % place.of(second) as u64);
    take(place, &mut client, filter, first)
}

/// Subscribes, and waits for the retained messages.
fn take(place: &Place<'_>, client: &mut Connection, filter: String, all: usize) -> Result<()> {
    let mut bytes = Vec::new();
    wire::put_subscribe(&mut bytes, Version::V311, 1, &[filter], 0);
    client.send(&bytes)?;
    let mut came = 0;
    while came < all && !place.is_over() {
        client.read(Duration::from_millis(100), |first, _| {
            came += usize::from(first >> 4 == kind::PUBLISH);
        })?;
    }
    Ok(())
}

/// Publishes as many messages of 5 bytes as fit into 64 KiB, again and again, with version 3.1.1.
fn burst(place: &Place<'_>, topic: &str) -> Result<()> {
    let mut client = client(place, &format!("burst-{topic}"), false)?;
    let publish = PublishTemplate::new(Version::V311, topic, 0, b"");
    let bytes = publish.bytes.repeat((64 << 10) / publish.bytes.len());
    for _ in 0..10 {
        client.send(&bytes)?;
    }
    ask(&mut client, &["nothing".to_owned()])
}

fn mixed(place: &Place<'_>, n: u64) -> Result<()> {
    let id = format!("five-{n}");
    let mut five = Connection::new(id.clone(), TcpStream::connect(place.mqtt))?;
    let mut bytes = Vec::new();
    wire::put_connect(&mut bytes, Version::V5, &id);
    wire::put_subscribe(&mut bytes, Version::V5, 1, &["m".to_owned()], 0);
    five.send(&bytes)?;
    await_kind(&mut five, kind::SUBACK)?;
    burst(place, "m")
}

fn shared(place: &Place<'_>, n: u64) -> Result<()> {
    let mut member = client(place, &format!("member-{n}"), false)?;
    ask(&mut member, &["$share/g/s".to_owned()])?;
    burst(place, "s")
}

/// Creates sessions that outlive their connections, with subscriptions.
fn subscriptions(place: &Place<'_>) -> Result<()> {
    for n in 0..200 {
        let mut client = client(place, &format!("listed-{n}"), true)?;
        ask(&mut client, &filters("listed", place.of(100)))?;
    }
    Ok(())
}

fn listing(place: &Place<'_>, _: u64) -> Result<()> {
    for path in [
        "/api/v1/clients?limit=1000",
        "/api/v1/subscriptions?limit=1000",
    ] {
        place.http.get(path)?;
    }
    Ok(())
}

fn scrape(place: &Place<'_>, _: u64) -> Result<()> {
    place.http.get("/metrics")?;
    std::thread::sleep(PAUSE);
    Ok(())
}

fn reload(place: &Place<'_>, _: u64) -> Result<()> {
    sys::signal(place.pid, libc::SIGHUP).map_err(Error::io("cannot signal the broker"))?;
    std::thread::sleep(Duration::from_millis(20));
    Ok(())
}

fn garbage(place: &Place<'_>, n: u64) -> Result<()> {
    let mut client = Connection::new(format!("garbage-{n}"), TcpStream::connect(place.mqtt))?;
    client.send(&[0xFF; 1000])?;
    // The broker closes the connection, which is expected here.
    let _ = client.read(PATIENCE, |_, _| {});
    Ok(())
}
