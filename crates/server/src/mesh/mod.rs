//! The broker as one of a mesh: a thread that keeps the tree and the tables
//! ([`punctual_mesh::Node`]), connects to neighbours, and directs the sessions of
//! neighbours on the first shard.
//!
//! Messages between clients never pass this thread: they go from shard to socket
//! like all others. What comes here are subscriptions, links and hellos.

mod dial;
mod kept;
mod machine;
mod reached;
mod seam;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use punctual_auth::Secret;
use punctual_broker::{
    ConnId, Directory, Federation, LinkLimits, MessageNames, Nanos, SECRET_USER, Service, Shard,
    WillTurn,
};
use punctual_mesh::transfer::{FenceAnswer, HomeId, Located, Stamp, Stub};
use punctual_mesh::tree::TreeChangeCause;
use punctual_mesh::wire::{
    Arrival, ClientStub, ClientWill, Message, Open, SessionAddress, TOPIC, TraceReply,
};
use punctual_mesh::{
    BrokerId, Dialling, Event, ForgetError, LinkId, Membership, Node, Output, Settings, Status,
    Strategy,
};
use punctual_net::{Clock, Handle, Server, TlsConnector};
use tokio::sync::oneshot;

use self::dial::{Dialled, Dialler, Introduction, Retry};
use self::kept::Kept;
use self::reached::Reached;
use self::seam::Seam;
use crate::config::{Config, Mesh as Keys, MeshStrategy, Neighbour, nanos};
use crate::error::Error;

/// How long answers to a trace are waited for at most.
const TRACE: Duration = Duration::from_millis(1500);
/// Between two looks at how things stand, for `$SYS` topics.
const SYS: Duration = Duration::from_secs(5);
/// Brokers of which it is remembered what the log said of them.
const REMEMBERED: usize = 256;
/// Longest sleep, so that a step of the clock does no harm.
const NAP: Duration = Duration::from_secs(1);
/// Filters of a neighbour that a shard is told at a time.
const PIECE: usize = 32;

/// News of a link.
#[derive(Debug)]
enum News {
    Up {
        /// Whether this broker opened the connection.
        dialled: bool,
    },
    Message(Box<[u8]>),
    Waits(bool),
    Down(String),
}

/// Something for the mesh's thread.
#[derive(Debug)]
enum Input {
    Subscribed(Box<str>, bool),
    Unsubscribed(Box<str>, bool),
    Arrived(Arrival),
    LeftBehind(Box<str>, Option<ClientWill>),
    /// What do other brokers know of a client that connects?
    LookUp {
        at: Stamp,
        client: Box<str>,
        user: Option<Box<str>>,
        clean: bool,
    },
    /// A shard is asked for that by another broker, and answers.
    Found {
        by: HomeId,
        at: Stamp,
        client: Box<str>,
        located: Located,
    },
    /// A neighbour has forwarded a message for a client's session to the first shard,
    Forward {
        number: u64,
        address: Box<SessionAddress>,
        message: Arc<[u8]>,
    },
    /// and it is safe where that is.
    Forwarded(u64),
    /// Something for another broker's shards.
    Letter {
        to: BrokerId,
        client: Box<str>,
        body: Arc<[u8]>,
    },
    /// So many changes of what neighbours want are kept.
    Kept(u64),
    /// A stub is left of a client's session: has all come that was on its way to it?
    FenceStub {
        client: Box<str>,
        stub: Stub,
    },
    /// The shards are asked that by another broker, and answer.
    FenceAnswered {
        by: HomeId,
        number: u64,
        blocked: Vec<u32>,
    },
    /// A neighbour has acknowledged what was queued for it.
    Flushed(u64),
    Link {
        conn: ConnId,
        peer: BrokerId,
        news: News,
    },
    Dialled(Box<Dialled>),
    /// The neighbour at an address has a connection to this broker, which it opened itself.
    There {
        address: String,
        peer: BrokerId,
    },
    /// An address leads to no neighbour.
    Missed {
        address: String,
        why: String,
    },
    Ask(Ask),
    Stop,
}

/// A question or order of an operator.
#[derive(Debug)]
enum Ask {
    Status(oneshot::Sender<Overview>),
    Add(Neighbour, oneshot::Sender<Result<(), NotAdded>>),
    Remove(String, oneshot::Sender<Result<(), NotRemoved>>),
    Forget(BrokerId, oneshot::Sender<Result<(), ForgetError>>),
    Trace(String, oneshot::Sender<Vec<TraceReply>>),
}

/// Why a neighbour is not added, or not for good.
#[derive(Debug)]
pub(crate) enum NotAdded {
    /// It is to be connected by TLS, and no authority is named.
    NoAuthority,
    /// It is connected, but is not in `mesh.neighbours_file`, and why.
    NotKept(String),
    /// Something that may be well the next time.
    Failed(String),
}

/// Why a neighbour is not given up, or not for good.
#[derive(Debug)]
pub(crate) enum NotRemoved {
    /// There is none of that address.
    Unknown,
    /// It is given up, but is still in `mesh.neighbours_file`, and why.
    StillKept(String),
}

/// How things stand.
#[derive(Debug)]
pub(crate) struct Overview {
    /// The broker in the mesh.
    pub(crate) status: Status,
    /// Brokers of the tree, this one among them.
    pub(crate) brokers: Vec<String>,
    /// Neighbours that are to be connected.
    pub(crate) neighbours: Vec<String>,
    /// Those of them that are not, and why.
    pub(crate) unconnected: BTreeMap<String, String>,
    /// What the shards may promise clients.
    pub(crate) service: Service,
    /// Sessions that came from other brokers, and that went there, with their clients.
    pub(crate) moved: (u64, u64),
}

/// The mesh before the broker runs.
pub(crate) struct Opening {
    seam: Arc<Seam>,
    inputs: Receiver<Input>,
    keeper: Sender<Input>,
    settings: Settings,
    introduction: Introduction,
    neighbours: Vec<Neighbour>,
    kept: Kept,
}

impl Opening {
    /// Prepares it, if the configuration wants one.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, Error> {
        let keys = &config.mesh;
        if !keys.enabled {
            return Ok(None);
        }
        let id = own_id(keys)?;
        let mut random = [0; 12];
        getrandom::fill(&mut random)
            .map_err(|error| format!("the system has no random numbers: {error}"))?;
        let [a, b, c, d, instance @ ..] = random;
        let origin = NonZeroU32::new(u32::from_be_bytes([a, b, c, d])).unwrap_or(NonZeroU32::MIN);
        let mut settings = Settings::new(
            id.clone(),
            u64::from_be_bytes(instance),
            machine::capacity(keys),
        );
        settings.strategy = match keys.strategy {
            MeshStrategy::SubscriptionTable => Strategy::SubscriptionTable,
            MeshStrategy::Flooding => Strategy::Flooding,
            MeshStrategy::RootRelay => Strategy::RootRelay,
        };
        settings.tree.hello = nanos(keys.hello);
        settings.tree.hysteresis = u32::from(keys.hysteresis);
        settings.heal = nanos(keys.heal);
        settings.keep = nanos(keys.keep);
        settings.max_filters = keys.max_filters as usize;
        settings.will_wait = nanos(keys.will_wait);
        settings.session_wait = nanos(keys.session_wait);
        settings.join_wait = nanos(keys.join_wait);
        settings.max_will_bytes = usize::try_from(keys.max_will_bytes.0).unwrap_or(usize::MAX);
        let secret = keys.secret_file.as_deref().map(read_secret).transpose()?;
        let (user, password) = credentials(keys, secret.as_ref())?;
        let broker = config.broker().limits;
        let (keeper, inputs) = channel();
        let open = Node::new(settings.clone(), Nanos(0)).open(true);
        Ok(Some(Self {
            seam: Arc::new(Seam::new(id, origin, &settings, secret, keeper.clone())),
            inputs,
            keeper,
            settings,
            introduction: Introduction {
                open,
                user,
                password,
                clear_password: keys.clear_password,
                limits: LinkLimits {
                    receive_maximum: broker.receive_maximum,
                    max_packet: broker.max_packet_size,
                    topic_aliases: broker.topic_alias_maximum,
                },
                tls: connector(keys)?,
                retry: Retry::new(keys.heal),
            },
            neighbours: keys.neighbours.clone(),
            kept: Kept::read(keys.neighbours_file.as_deref())?,
        }))
    }

    /// For the shards.
    pub(crate) fn federation(&self) -> Arc<dyn Federation> {
        self.seam.clone()
    }

    /// Runs from now on.
    pub(crate) fn start(self, server: &Server) -> Result<Mesh, Error> {
        let clock = server.clock();
        let keeper = self.keeper.clone();
        let mut running = Keeper {
            node: Node::new(self.settings, clock.now()),
            handle: server.handle(),
            directory: server.directory().clone(),
            clock,
            seam: self.seam,
            introduction: self.introduction,
            keeper: self.keeper,
            links: HashMap::new(),
            conns: HashMap::new(),
            waiting: HashMap::new(),
            expected: BTreeMap::new(),
            diallers: BTreeMap::new(),
            opened: BTreeMap::new(),
            missed: BTreeMap::new(),
            traces: HashMap::new(),
            kept: Kept::default(),
            refused: HashMap::new(),
            starts: HashMap::new(),
            reached: Reached::default(),
            told_at: None,
        };
        for neighbour in self.neighbours.iter().chain(self.kept.neighbours()) {
            running.add(neighbour)?;
        }
        running.kept = self.kept;
        let status = running.node.status();
        tracing::info!(
            "mesh: {} of capacity {}, {} neighbours",
            status.id,
            status.capacity,
            running.diallers.len()
        );
        if server.directory().lower_versions() {
            tracing::error!(
                "mesh: retained messages in the store have versions that are more than a day in the future, and \
                 newer ones on their topics will be lost with the next start; if the clock is right, stop the broker \
                 and give it another store: `punctual store export --lower-versions OLD | punctual store import NEW -`"
            );
        }
        let inputs = self.inputs;
        let thread = thread::Builder::new()
            .name("mesh".into())
            .spawn(move || running.run(&inputs))?;
        Ok(Mesh {
            asker: Asker { keeper },
            thread,
        })
    }
}

/// The secret by which brokers of a mesh know each other.
fn read_secret(path: &Path) -> Result<Secret, Error> {
    let failed = |error: String| format!("mesh.secret_file = {}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    Ok(Secret::parse(&text).map_err(|error| failed(error.to_string()))?)
}

/// User name and password with which this broker connects to neighbours.
type Credentials = (Option<String>, Option<Vec<u8>>);

/// Those of its own user, or the secret.
fn credentials(keys: &Keys, secret: Option<&Secret>) -> Result<Credentials, Error> {
    let password = match &keys.password_file {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("mesh.password_file = {}: {error}", path.display()))?;
            Some(text.lines().next().unwrap_or_default().into())
        }
    };
    Ok(match (&keys.user, secret) {
        (None, Some(secret)) => (Some(SECRET_USER.into()), Some(secret.as_bytes().into())),
        (user, _) => (user.clone(), password),
    })
}

/// How neighbours are connected by TLS, if an authority is named.
fn connector(keys: &Keys) -> Result<Option<TlsConnector>, Error> {
    let identity = match (&keys.cert_file, &keys.key_file) {
        (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
        (None, None) => None,
        _ => return Err("mesh.cert_file and mesh.key_file: give both, or none".into()),
    };
    match &keys.ca_file {
        Some(ca) => Ok(Some(TlsConnector::load(ca, identity)?)),
        None if identity.is_some() => Err(
            "mesh.cert_file is for TLS connections to neighbours: name their authority with \
             mesh.ca_file"
                .into(),
        ),
        None => Ok(None),
    }
}

/// The name of this broker.
fn own_id(keys: &Keys) -> Result<BrokerId, Error> {
    let name = match &keys.id {
        Some(id) => id.clone(),
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_err(|error| format!("mesh.id is not set and the host has no name: {error}"))?,
    };
    BrokerId::new(name.trim()).ok_or_else(|| {
        format!(
            "mesh.id = \"{}\": a name has 1 to {} bytes, without space, '/', '+' and '#'",
            name.trim(),
            punctual_mesh::MAX_NAME
        )
        .into()
    })
}

/// The running mesh.
pub(crate) struct Mesh {
    asker: Asker,
    thread: JoinHandle<()>,
}

impl Mesh {
    /// Who answers questions about it.
    pub(crate) fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// Ends it, after the shards.
    pub(crate) fn stop(self) {
        let _ = self.asker.keeper.send(Input::Stop);
        let _ = self.thread.join();
    }
}

/// Asks the mesh's thread.
#[derive(Clone)]
pub(crate) struct Asker {
    keeper: Sender<Input>,
}

impl Asker {
    /// How things stand; `None` if the mesh has ended.
    pub(crate) async fn status(&self) -> Option<Overview> {
        let (reply, answer) = oneshot::channel();
        self.keeper.send(Input::Ask(Ask::Status(reply))).ok()?;
        answer.await.ok()
    }

    /// Connects to another neighbour.
    pub(crate) async fn add(&self, neighbour: Neighbour) -> Option<Result<(), NotAdded>> {
        let (reply, answer) = oneshot::channel();
        self.keeper
            .send(Input::Ask(Ask::Add(neighbour, reply)))
            .ok()?;
        answer.await.ok()
    }

    /// Gives a neighbour up.
    pub(crate) async fn remove(&self, address: String) -> Option<Result<(), NotRemoved>> {
        let (reply, answer) = oneshot::channel();
        self.keeper
            .send(Input::Ask(Ask::Remove(address, reply)))
            .ok()?;
        answer.await.ok()
    }

    /// Keeps nothing any more for a broker that is away.
    pub(crate) async fn forget(&self, broker: BrokerId) -> Option<Result<(), ForgetError>> {
        let (reply, answer) = oneshot::channel();
        self.keeper
            .send(Input::Ask(Ask::Forget(broker, reply)))
            .ok()?;
        answer.await.ok()
    }

    /// Who gets a topic, and on which way. Takes a while where somebody does not answer.
    pub(crate) async fn trace(&self, topic: String) -> Option<Vec<TraceReply>> {
        let (reply, answer) = oneshot::channel();
        self.keeper
            .send(Input::Ask(Ask::Trace(topic, reply)))
            .ok()?;
        answer.await.ok()
    }
}

/// Something for the first shard to do.
type Order = Box<dyn FnOnce(&mut Shard, Nanos) + Send>;

/// A broker as it introduced itself last, and who had its name before. A broker that starts again is
/// another instance, and the old one never comes back.
struct Starts {
    last: u64,
    before: Option<u64>,
    /// Whether the log has said that there are two.
    told: bool,
}

struct Waiting {
    until: Instant,
    answers: Vec<TraceReply>,
    reply: oneshot::Sender<Vec<TraceReply>>,
}

struct Keeper {
    node: Node,
    handle: Handle,
    directory: Arc<Directory>,
    clock: Clock,
    seam: Arc<Seam>,
    introduction: Introduction,
    keeper: Sender<Input>,
    links: HashMap<LinkId, (BrokerId, ConnId)>,
    conns: HashMap<ConnId, LinkId>,
    /// Connections of neighbours that have not said who they are.
    waiting: HashMap<ConnId, BrokerId>,
    /// Connections handed over to the shard, by neighbour: who is there, and how
    /// its time is scaled.
    expected: BTreeMap<BrokerId, (Open, f64)>,
    diallers: BTreeMap<String, Dialler>,
    /// Which neighbour is at which address.
    opened: BTreeMap<String, BrokerId>,
    /// Why addresses lead to no neighbour.
    missed: BTreeMap<String, String>,
    traces: HashMap<u64, Waiting>,
    kept: Kept,
    /// Brokers that may not be neighbours, and why, as the log said last.
    refused: HashMap<BrokerId, String>,
    /// The last two starts of each neighbour.
    starts: HashMap<BrokerId, Starts>,
    reached: Reached,
    /// When the shards were told last how things stand.
    told_at: Option<Instant>,
}

impl Keeper {
    fn run(mut self, inputs: &Receiver<Input>) {
        self.remember();
        loop {
            let due = (self.node.next_timeout() - self.clock.now()).0;
            let nap = Duration::from_nanos(due).min(NAP);
            let nap = match self.traces.is_empty() {
                true => nap,
                false => nap.min(Duration::from_millis(20)),
            };
            let input = match inputs.recv_timeout(nap) {
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(input) => Some(input),
                Err(RecvTimeoutError::Timeout) => None,
            };
            let now = self.clock.now();
            self.node.set_clock(self.seam.clock());
            if let Some(input) = input {
                self.take(input, now);
            }
            if self.node.membership() == Membership::Joining {
                self.node.set_dialling(self.dialling(), now);
            }
            if self.node.next_timeout() <= now {
                self.node.tick(now);
            }
            self.act();
            self.end_traces();
            self.tell_reached();
            self.tell_shards();
        }
    }

    /// Goes on with what was kept for neighbours before a restart.
    fn remember(&mut self) {
        let (tell, told) = channel();
        self.handle.call(0, move |shard, _| {
            // Who asked waits.
            let _ = tell.send(shard.links());
        });
        let now = self.clock.now();
        for kept in told.recv().unwrap_or_default() {
            if let Some(peer) = BrokerId::new(&kept.peer).filter(|_| !kept.filters.is_empty()) {
                let members = kept.members.into_iter();
                let members =
                    members.filter_map(|(broker, filter)| Some((BrokerId::new(&broker)?, filter)));
                let behind = kept.behind.iter().filter_map(|id| BrokerId::new(id));
                let (members, behind) = (members.collect(), behind.collect());
                self.node
                    .remember(&peer, kept.filters, members, behind, now);
            }
        }
    }

    fn take(&mut self, input: Input, now: Nanos) {
        match input {
            Input::Subscribed(filter, persistent) => self.node.subscribe(&filter, persistent, now),
            Input::Unsubscribed(filter, persistent) => {
                self.node.unsubscribe(&filter, persistent, now);
            }
            Input::Arrived(arrival) => self.node.arrived(arrival, now),
            Input::LeftBehind(client, will) => self.node.set_will(&client, will, now),
            Input::LookUp {
                at,
                client,
                user,
                clean,
            } => {
                self.node.look_up(&at, &client, user.as_deref(), clean, now);
            }
            Input::Found {
                by,
                at,
                client,
                located,
            } => self.node.found(&by, &at, &client, located, now),
            Input::Forward {
                number,
                address,
                message,
            } => self.at_home_of(address.client.clone(), move |shard, _, now| {
                shard.take_forwarded(number, &address, &message, now);
            }),
            Input::Forwarded(number) => {
                self.handle.call(0, move |shard, _| shard.forwarded(number));
            }
            Input::Letter { to, client, body } => self.node.letter(&to, &client, body, now),
            Input::Kept(number) => self.node.interest_committed(number, now),
            Input::FenceStub { client, stub } => self.node.fence_stub(&client, &stub, now),
            Input::FenceAnswered {
                by,
                number,
                blocked,
            } => self.node.fence_answered(&by, number, blocked, now),
            Input::Flushed(number) => self.node.flushed(number),
            Input::Link { conn, peer, news } => match news {
                News::Up { dialled } => self.up(conn, peer, dialled, now),
                News::Message(bytes) => self.message(conn, &bytes, now),
                News::Waits(waits) => {
                    if let Some(link) = self.conns.get(&conn) {
                        self.node.waits(*link, waits, now);
                    }
                }
                News::Down(why) => self.down(conn, &peer, &why, now),
            },
            Input::Dialled(dialled) => self.dialled(*dialled),
            Input::There { address, peer } => self.there(address, peer, now),
            Input::Missed { address, why } => {
                if self.diallers.contains_key(&address) {
                    self.missed.insert(address, why);
                }
            }
            Input::Ask(ask) => self.answer(ask, now),
            Input::Stop => {}
        }
    }

    /// A neighbour's connection is on the shard.
    fn up(&mut self, conn: ConnId, peer: BrokerId, dialled: bool, now: Nanos) {
        let expected = dialled.then(|| self.expected.remove(&peer));
        match expected.flatten() {
            Some((open, weight)) => self.link_up(conn, &open, weight, now),
            None => {
                self.waiting.insert(conn, peer);
            }
        }
    }

    fn link_up(&mut self, conn: ConnId, open: &Open, weight: f64, now: Nanos) {
        match self.node.link_up(open, weight, now) {
            Ok(link) => {
                if let Some((_, old)) = self.links.insert(link, (open.id.clone(), conn)) {
                    self.conns.remove(&old);
                    self.close(old, "replaced by a newer connection".into());
                }
                self.conns.insert(conn, link);
                self.seam.linked(&open.id, !open.dialled);
                self.refused.remove(&open.id);
                self.started(open);
            }
            Err(refusal) => {
                let why = refusal.to_string();
                // It tries again and again; a line each time would hide all others.
                if self.refused.get(&open.id) != Some(&why) {
                    tracing::warn!("mesh: {} is no neighbour: it {why}", open.id);
                    if self.refused.len() >= REMEMBERED {
                        self.refused.clear();
                    }
                    self.refused.insert(open.id.clone(), why.clone());
                }
                self.close(conn, why);
            }
        }
    }

    /// Tells of two brokers with one name, which take the connection over from each other.
    fn started(&mut self, open: &Open) {
        if self.starts.len() >= REMEMBERED && !self.starts.contains_key(&open.id) {
            self.starts.clear();
        }
        let starts = self.starts.entry(open.id.clone()).or_insert(Starts {
            last: open.instance,
            before: None,
            told: false,
        });
        if starts.last == open.instance {
            return;
        }
        if starts.before == Some(open.instance) && !starts.told {
            tracing::warn!(
                "mesh: two brokers are called {}: give each its own name (mesh.id); until then \
                 messages for them may be lost",
                open.id
            );
            starts.told = true;
        }
        starts.before = Some(starts.last);
        starts.last = open.instance;
    }

    fn message(&mut self, conn: ConnId, bytes: &[u8], now: Nanos) {
        if let Some(link) = self.conns.get(&conn) {
            if let Err(error) = self.node.receive(*link, bytes, now) {
                self.close(conn, error.to_string());
            }
            return;
        }
        let Some(peer) = self.waiting.remove(&conn) else {
            return;
        };
        match Message::decode(bytes) {
            Ok(Message::Open(open)) if open.id == peer && open.dialled => {
                let answer = Message::Open(self.node.open(false)).encode();
                self.send(conn, answer);
                let weights = self.opened.iter().filter(|(_, id)| **id == peer);
                let weight = weights
                    .filter_map(|(address, _)| self.diallers.get(address))
                    .next();
                let weight = weight.map_or(1.0, |dialler| dialler.weight);
                self.link_up(conn, &open, weight, now);
            }
            _ => self.close(conn, "the first words are not understood".into()),
        }
    }

    fn down(&mut self, conn: ConnId, peer: &BrokerId, why: &str, now: Nanos) {
        self.waiting.remove(&conn);
        if let Some(link) = self.conns.remove(&conn)
            && self
                .links
                .get(&link)
                .is_some_and(|(_, current)| *current == conn)
        {
            self.links.remove(&link);
            self.seam.unlinked(peer);
            self.node.link_down(link, why, now);
        }
        for (_, dialler) in self.of(peer) {
            dialler.wake();
        }
    }

    fn of<'a>(&'a self, peer: &'a BrokerId) -> impl Iterator<Item = (&'a String, &'a Dialler)> {
        let addresses = self.opened.iter().filter(move |(_, id)| *id == peer);
        addresses.filter_map(|(address, _)| Some((address, self.diallers.get(address)?)))
    }

    /// A connection to a neighbour is open: it becomes the link, or is dropped where
    /// there is one that stays.
    fn dialled(&mut self, dialled: Dialled) {
        let Dialled {
            address,
            peer,
            connection,
            unread,
            limits,
        } = dialled;
        let id = peer.id.clone();
        let Some(weight) = self.diallers.get(&address).map(|dialler| dialler.weight) else {
            return;
        };
        self.missed.remove(&address);
        self.opened.insert(address, id.clone());
        let exists = self.links.values().any(|(other, _)| *other == id);
        let own = &self.introduction.open.id;
        if exists && *own > id {
            // The neighbour's own connection stays; when it ends this is tried again.
            return;
        }
        self.expected.insert(id.clone(), (peer, weight));
        if let Err(error) = self.handle.link(connection, unread, id.as_str(), limits) {
            self.expected.remove(&id);
            tracing::warn!("mesh: the connection to {id} cannot be used: {error}");
        }
    }

    /// Addresses that lead to no link, and why, where that is known.
    fn unconnected(&self) -> BTreeMap<String, String> {
        let why = |address: &String| match self.opened.get(address) {
            Some(peer) if self.seam.is_linked(peer) => None,
            Some(peer) if self.refused.contains_key(peer) => {
                Some(format!("{peer} {}", self.refused[peer]))
            }
            _ => self.missed.get(address).cloned(),
        };
        let addresses = self.diallers.keys();
        addresses
            .filter_map(|address| Some((address.clone(), why(address)?)))
            .collect()
    }

    /// Who is at an address is known without a connection from here: its weight counts for the
    /// one that there is.
    fn there(&mut self, address: String, peer: BrokerId, now: Nanos) {
        if let Some(dialler) = self.diallers.get(&address) {
            self.node.weigh(&peer, dialler.weight, now);
            self.missed.remove(&address);
            self.opened.insert(address, peer);
        }
    }

    /// Which neighbours are named, and whether all were tried.
    fn dialling(&self) -> Dialling {
        let is_untried = |address: &String| match self.opened.get(address) {
            Some(peer) => !self.seam.is_linked(peer) && !self.refused.contains_key(peer),
            None => !self.missed.contains_key(address),
        };
        Dialling {
            named: !self.diallers.is_empty(),
            untried: self.diallers.keys().any(is_untried),
        }
    }

    fn add(&mut self, neighbour: &Neighbour) -> Result<(), Error> {
        if let Some(dialler) = self.diallers.get_mut(&neighbour.address) {
            dialler.weight = neighbour.weight();
            if let Some(peer) = self.opened.get(&neighbour.address) {
                self.node.weigh(peer, neighbour.weight(), self.clock.now());
            }
            return Ok(());
        }
        let is_sent = self.introduction.password.is_some() && self.introduction.clear_password;
        if is_sent && neighbour.is_exposed() {
            tracing::warn!(
                "mesh: {} is connected without TLS: whoever is on the way there reads this broker's password \
                 and all messages; write tls://{} where the network is not trusted",
                neighbour.address,
                neighbour.target()
            );
        }
        let dialler = Dialler::start(
            neighbour,
            self.introduction.clone(),
            self.seam.clone(),
            self.keeper.clone(),
        )?;
        self.diallers.insert(neighbour.address.clone(), dialler);
        Ok(())
    }

    fn remove(&mut self, address: &str) -> bool {
        let found = self.diallers.remove(address).is_some();
        self.missed.remove(address);
        if let Some(peer) = self.opened.remove(address) {
            let conns: Vec<ConnId> = self
                .links
                .values()
                .filter(|(id, _)| *id == peer)
                .map(|(_, conn)| *conn)
                .collect();
            for conn in conns {
                self.close(conn, "the neighbour was removed".into());
            }
        }
        found
    }

    fn answer(&mut self, ask: Ask, now: Nanos) {
        // Who does not wait any more needs no answer.
        match ask {
            Ask::Status(reply) => {
                let stats = self.directory.stats();
                let _ = reply.send(Overview {
                    status: self.node.status(),
                    brokers: self.brokers(),
                    neighbours: self.diallers.keys().cloned().collect(),
                    unconnected: self.unconnected(),
                    service: self.seam.service(),
                    moved: (stats.sessions_moved_in, stats.sessions_moved_out),
                });
            }
            Ask::Add(neighbour, reply) => {
                if neighbour.is_tls() && self.introduction.tls.is_none() {
                    let _ = reply.send(Err(NotAdded::NoAuthority));
                    return;
                }
                let added = self.add(&neighbour);
                let added = added.map_err(|error| NotAdded::Failed(error.to_string()));
                let keep = |()| self.kept.add(neighbour).map_err(NotAdded::NotKept);
                let _ = reply.send(added.and_then(keep));
            }
            Ask::Remove(address, reply) => {
                let was_connected = self.remove(&address);
                let removed = match self.kept.remove(&address) {
                    // Also one that could not be taken out of the file the last time.
                    Ok(was_kept) if was_connected || was_kept => Ok(()),
                    Ok(_) => Err(NotRemoved::Unknown),
                    Err(error) => Err(NotRemoved::StillKept(error)),
                };
                let _ = reply.send(removed);
            }
            Ask::Forget(broker, reply) => {
                let forgotten = self.node.forget(&broker, now);
                if forgotten.is_ok() {
                    let name = broker.as_str().to_owned();
                    self.all_shards(move |shard, now| shard.forget_broker(&name, now));
                }
                let _ = reply.send(forgotten);
            }
            Ask::Trace(topic, reply) => {
                let number = self.node.trace(&topic, now);
                let waiting = Waiting {
                    until: Instant::now() + TRACE,
                    answers: Vec::new(),
                    reply,
                };
                self.traces.insert(number, waiting);
            }
        }
    }

    fn end_traces(&mut self) {
        let now = Instant::now();
        let over: Vec<u64> = self
            .traces
            .iter()
            .filter(|(_, w)| w.until <= now || TraceReply::are_all(&w.answers))
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            if let Some(waiting) = self.traces.remove(&number) {
                let _ = waiting.reply.send(waiting.answers);
            }
        }
    }

    fn send(&self, conn: ConnId, bytes: Vec<u8>) {
        self.handle
            .call(0, move |shard, _| shard.link_send(conn, TOPIC, &bytes));
    }

    fn close(&self, conn: ConnId, why: String) {
        self.handle
            .call(0, move |shard, now| shard.link_close(conn, &why, now));
    }

    /// All that make up the tree, by names.
    fn brokers(&self) -> Vec<String> {
        let own = &self.introduction.open.id;
        let mut all: Vec<&BrokerId> = self.node.reached().iter().chain([own]).collect();
        all.sort_unstable();
        all.into_iter().map(ToString::to_string).collect()
    }

    /// The log says when the mesh has fallen apart, and when its parts are one again.
    fn tell_reached(&mut self) {
        let [gone, came] = self.reached.news(self.node.reached(), self.clock.now());
        if let Some(gone) = gone {
            tracing::warn!("mesh: {gone}");
        }
        if let Some(came) = came {
            tracing::info!("mesh: {came}");
        }
    }

    /// Tells the shards how things stand, for `$SYS` topics: after events, and now and then.
    fn tell_shards(&mut self) {
        if self.told_at.is_some_and(|told| told.elapsed() < SYS) {
            return;
        }
        self.told_at = Some(Instant::now());
        let brokers = self.node.reached().len() + 1;
        self.seam.set_topics(topics(&self.node.status(), brokers));
    }

    /// Tells the shards the way to the root. While a new parent has not accepted, they
    /// go on with the old one: what is meant for it waits, and is copied.
    fn note_parent(&self) {
        match self.node.tree().parent() {
            None => self.seam.set_parent(None),
            Some((link, true)) => self.seam.set_parent(self.node.peer(link)),
            Some((_, false)) => {}
        }
    }

    fn all_shards(&self, call: impl Fn(&mut Shard, Nanos) + Send + Sync + 'static) {
        let call = Arc::new(call);
        for shard in 0..self.directory.shards() {
            let call = call.clone();
            self.handle
                .call(shard.into(), move |shard, now| call(shard, now));
        }
    }

    fn arrived_elsewhere(&self, arrivals: Vec<Arrival>) {
        if let Some(last) = arrivals.iter().map(|arrival| arrival.at).max() {
            self.seam.heard_arrival(last);
        }
        self.all_shards(move |shard, now| {
            for arrival in &arrivals {
                let (user, at) = (arrival.user.as_deref(), arrival.at);
                shard.user_arrived_elsewhere(&arrival.client, user, at, now);
            }
        });
    }

    /// Does something with a will on the shard that has, or would have, its client's session.
    fn at_home(
        &self,
        will: ClientWill,
        call: impl FnOnce(&mut Shard, &ClientWill, Nanos) + Send + 'static,
    ) {
        let shard = self.directory.home(&will.client, 0);
        self.handle
            .call(shard.into(), move |shard, now| call(shard, &will, now));
    }

    /// Does something about a client's session on the shard that has it, or would.
    fn at_home_of(
        &self,
        client: Box<str>,
        call: impl FnOnce(&mut Shard, &str, Nanos) + Send + 'static,
    ) {
        let shard = self.directory.home(&client, 0);
        self.handle
            .call(shard.into(), move |shard, now| call(shard, &client, now));
    }

    /// Another broker asks which of its stubs are to stay: each is asked for on the shard of its client,
    /// and the last of these answers.
    fn ask_of_stubs(&self, by: &HomeId, number: u64, stubs: &Arc<[ClientStub]>) {
        let mut places: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (place, (client, _)) in (0..).zip(&**stubs) {
            let shard = self.directory.home(client, 0);
            places.entry(shard.into()).or_default().push(place);
        }
        // How many have not answered, and what the others have.
        let answers = Arc::new(Mutex::new((places.len(), Vec::new())));
        for (shard, places) in places {
            let (answers, keeper) = (answers.clone(), self.keeper.clone());
            let (by, stubs) = (by.clone(), stubs.clone());
            self.handle.call(shard, move |shard, now| {
                let mut stays = |place: &u32| {
                    let (client, stub) = &stubs[*place as usize];
                    shard.fence_asked(&by, client, stub, now) != FenceAnswer::Clear
                };
                let stay: Vec<u32> = places.into_iter().filter(|it| stays(it)).collect();
                let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.0 -= 1;
                answers.1.extend(stay);
                if answers.0 == 0 {
                    let blocked = std::mem::take(&mut answers.1);
                    let answered = Input::FenceAnswered {
                        by,
                        number,
                        blocked,
                    };
                    // It ends after the shards.
                    let _ = keeper.send(answered);
                }
            });
        }
    }

    /// Does what the node asks. All of it is done between two messages where something is copied to a
    /// neighbour, so that this and what it is sent from then on leave no gap; long lists of filters
    /// are otherwise worked off in pieces, with others served between them.
    #[expect(
        clippy::too_many_lines,
        reason = "one arm for each order, done in one piece"
    )]
    fn act(&mut self) {
        let mut orders: Vec<Order> = Vec::new();
        let outputs = self.node.take_outputs();
        let piece = match outputs.iter().any(|it| matches!(it, Output::Copy { .. })) {
            true => usize::MAX,
            false => PIECE,
        };
        for output in outputs {
            match output {
                Output::Send(link, bytes) => {
                    if let Some((_, conn)) = self.links.get(&link) {
                        let conn = *conn;
                        orders.push(Box::new(move |shard, _| {
                            shard.link_send(conn, TOPIC, &bytes);
                        }));
                    }
                }
                Output::Close(link, why) => {
                    if let Some((id, conn)) = self.links.remove(&link) {
                        self.conns.remove(&conn);
                        self.seam.unlinked(&id);
                        orders.push(Box::new(move |shard, now| {
                            shard.link_close(conn, &why, now);
                        }));
                    }
                }
                Output::Carry { .. }
                | Output::Hold { .. }
                | Output::Leads { .. }
                | Output::CommitInterest(_)
                | Output::Reached
                | Output::Copy { .. }
                | Output::Members { .. }
                | Output::Behind { .. }
                | Output::Narrow(_)
                | Output::Trim(_)
                | Output::Forget { .. }
                | Output::Flush { .. } => orders.extend(self.order_for_link(output)),
                Output::Interest { link, add, remove } => {
                    let Some(peer) = self.peer_name(link) else {
                        continue;
                    };
                    for (add, remove) in pieces(add, remove, piece) {
                        let peer = peer.clone();
                        if add.len() + remove.len() >= piece {
                            self.order(&mut orders);
                        }
                        orders.push(Box::new(move |shard, _| {
                            shard.link_interest(&peer, &add, &remove);
                        }));
                    }
                }
                Output::PersistentInterest {
                    link,
                    broker,
                    add,
                    remove,
                } => {
                    let Some(peer) = self.peer_name(link) else {
                        continue;
                    };
                    for (add, remove) in pieces(add, remove, piece) {
                        let (peer, broker) = (peer.clone(), broker.clone());
                        if add.len() + remove.len() >= piece {
                            self.order(&mut orders);
                        }
                        orders.push(Box::new(move |shard, _| {
                            shard.link_lasting(&peer, broker.as_str(), &add, &remove);
                        }));
                    }
                }
                Output::Arrived(arrivals) => self.arrived_elsewhere(arrivals),
                Output::Will { will, turn } => self.at_home(will, move |shard, will, now| {
                    shard.link_will(&will.client, &will.message, broker_turn(turn), now);
                }),
                Output::Published { wills, same } => {
                    for will in wills {
                        self.at_home(will, move |shard, will, now| {
                            shard.will_was_published(&will.client, &will.message, same, now);
                        });
                    }
                }
                Output::LookUp {
                    by,
                    at,
                    client,
                    user,
                    clean,
                } => {
                    self.seam.heard_arrival(at.micros);
                    self.at_home_of(client, move |shard, client, now| {
                        shard.look_up(&by, client, user.as_deref(), (&at, clean), now);
                    });
                }
                Output::Located {
                    at,
                    client,
                    answers,
                    extent,
                } => self.at_home_of(client, move |shard, client, now| {
                    shard.located(client, &at, answers, extent, now);
                }),
                Output::Reach { reached, away } => {
                    let reached = reached.into_iter().map(HomeId::from).collect();
                    self.all_shards(move |shard, now| shard.set_reach(&reached, away, now));
                }
                Output::Letter { from, client, body } if client.is_empty() => {
                    self.all_shards(move |shard, now| {
                        shard.letter(from.as_str(), "", &body, now);
                    });
                }
                Output::Letter { from, client, body } => {
                    self.at_home_of(client, move |shard, client, now| {
                        shard.letter(from.as_str(), client, &body, now);
                    });
                }
                Output::FenceAsked { by, number, stubs } => {
                    self.ask_of_stubs(&by, number, &stubs);
                }
                Output::FencePassed { client, epoch } => {
                    self.at_home_of(client, move |shard, client, now| {
                        shard.fence_passed(client, &epoch, now);
                    });
                }
                Output::TraceReply(traced) => {
                    if let Some(waiting) = self.traces.get_mut(&traced.number) {
                        waiting.answers.push(traced);
                    }
                }
                Output::Membership(membership) => {
                    let seam = self.seam.clone();
                    orders.push(Box::new(move |_, _| seam.set_service(service(membership))));
                }
                Output::Event(event) => {
                    self.told_at = None;
                    if let Event::Edge(..) | Event::Parent { .. } = event {
                        self.note_parent();
                    }
                    tell(&event);
                }
            }
        }
        self.order(&mut orders);
    }

    /// What shards are asked to do about a link or a neighbour's session; `None` if its neighbour is gone.
    fn order_for_link(&self, output: Output) -> Option<Order> {
        let order: Order = match output {
            Output::Carry { link, carries } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, now| {
                    shard.link_carry(&peer, carries, now);
                })
            }
            Output::Hold { link, holds } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, now| {
                    shard.link_hold(&peer, holds, now);
                })
            }
            Output::Leads { link, brokers } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, _| {
                    let brokers: Vec<&str> = brokers.iter().map(BrokerId::as_str).collect();
                    shard.link_leads(&peer, &brokers);
                })
            }
            Output::CommitInterest(number) => Box::new(move |shard, _| shard.link_keep(number)),
            Output::Reached => Box::new(|shard, _| shard.link_reached()),
            Output::Copy { from, to, moves } => Box::new(move |shard, now| {
                shard.link_copy(from.as_str(), to.as_str(), moves, now);
            }),
            Output::Members { filter, brokers } => Box::new(move |shard, _| {
                let brokers: Vec<&str> = brokers.iter().map(BrokerId::as_str).collect();
                shard.link_members(&filter, &brokers);
            }),
            Output::Behind {
                link,
                filter,
                brokers,
            } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, _| {
                    let brokers: Vec<&str> = brokers.iter().map(BrokerId::as_str).collect();
                    shard.link_behind(&peer, &filter, &brokers);
                })
            }
            Output::Narrow(peer) => Box::new(move |shard, _| shard.link_narrow(peer.as_str())),
            Output::Trim(peer) => Box::new(move |shard, _| {
                let dropped = shard.link_trim(peer.as_str());
                if dropped > 0 {
                    tracing::warn!(
                        "mesh: {dropped} messages that waited for {peer} are dropped, as no \
                         persistent session behind it is to get them"
                    );
                }
            }),
            Output::Forget { peer, forgotten } => Box::new(move |shard, now| {
                let waited = shard.link_forget(peer.as_str(), now);
                if waited > 0 {
                    let why = match forgotten {
                        None => "away for longer than mesh.heal or mesh.keep".into(),
                        Some(broker) => format!("as {broker} does not come back"),
                    };
                    tracing::warn!(
                        "mesh: {peer} is given up, {why}: {waited} messages that waited for it are dropped"
                    );
                }
            }),
            Output::Flush { link, number } => {
                let peer = self.peer_name(link)?;
                Box::new(move |shard, now| {
                    shard.link_flush(&peer, number, now);
                })
            }
            _ => return None,
        };
        Some(order)
    }

    fn peer_name(&self, link: LinkId) -> Option<String> {
        self.node.peer(link).map(|id| id.as_str().to_owned())
    }

    /// Has these orders carried out between two messages.
    fn order(&self, orders: &mut Vec<Order>) {
        let orders = std::mem::take(orders);
        if !orders.is_empty() {
            self.handle.call(0, move |shard, now| {
                orders.into_iter().for_each(|order| order(shard, now));
            });
        }
    }
}

/// Filters that are added and removed, at most `most` at a time.
fn pieces(
    add: Vec<Box<str>>,
    remove: Vec<Box<str>>,
    most: usize,
) -> impl Iterator<Item = (Vec<Box<str>>, Vec<Box<str>>)> {
    let (mut add, mut remove) = (add.into_iter(), remove.into_iter());
    std::iter::from_fn(move || {
        let added: Vec<_> = add.by_ref().take(most).collect();
        let removed: Vec<_> = remove.by_ref().take(most - added.len()).collect();
        (!added.is_empty() || !removed.is_empty()).then_some((added, removed))
    })
}

/// What `$SYS/federation/...` says.
fn topics(status: &Status, brokers: usize) -> Vec<(String, String)> {
    let mut topics = Vec::new();
    let mut add = |name: &str, value: String| {
        topics.push((format!("$SYS/federation/{name}"), value));
    };
    add("id", status.id.to_string());
    add("strategy", status.strategy.to_string());
    add("capacity", status.capacity.to_string());
    add("root", status.root.id.to_string());
    let parent = status.parent.as_ref().map(ToString::to_string);
    add("parent", parent.unwrap_or_else(|| "-".into()));
    add("attached", u8::from(status.attached).to_string());
    add("hops", status.hops.to_string());
    add("brokers", brokers.to_string());
    add("cost", status.cost.to_string());
    add("filters", status.filters.to_string());
    add("advertised", status.advertised.to_string());
    add("wills", status.wills.to_string());
    add("wills/kept", status.wills_kept.to_string());
    for link in &status.links {
        let name = |what: &str| format!("links/{}/{what}", link.peer);
        add(&name("state"), link.edge.name().into());
        let rtt = link.rtt.map_or(0, |rtt| rtt.0 / 1000);
        add(&name("rtt"), rtt.to_string());
        add(&name("filters"), link.filters.to_string());
    }
    topics
}

/// A line in the log.
fn tell(event: &Event) {
    match event {
        Event::LinkUp(peer) => tracing::info!("mesh: link to {peer} is up"),
        Event::LinkDown(peer, why) => tracing::warn!("mesh: link to {peer} is down: {why}"),
        Event::Root { old, new, why } => match why {
            TreeChangeCause::ParentLost | TreeChangeCause::PathLost => {
                tracing::warn!("mesh: root {} lost ({why}), electing: {}", old.id, new.id);
            }
            TreeChangeCause::BetterRoot | TreeChangeCause::ShorterPath => {
                tracing::info!("mesh: new root {} instead of {}: {why}", new.id, old.id);
            }
        },
        Event::Parent { parent, cost, why } => match parent {
            Some(parent) => tracing::info!(
                "mesh: new parent {parent}, cost {:.1} ms: {why}",
                *cost as f64 / 1e3
            ),
            None => tracing::info!("mesh: this broker is root: {why}"),
        },
        Event::Edge(peer, edge) => tracing::debug!("mesh: link to {peer} is {edge:?}"),
        Event::Away {
            peer,
            brokers,
            filters,
        } => tracing::warn!(
            "mesh: {}: away for longer than mesh.heal: what persistent sessions there await ({filters} \
             filters) is kept for {peer}, for mesh.keep at most, and nothing else",
            reached::names(brokers.iter()).unwrap_or_default()
        ),
        Event::Forgotten(broker) => tracing::warn!(
            "mesh: {broker} does not come back, an operator says: what its persistent sessions await is \
             not kept for it here any more"
        ),
        Event::Clock(Some(ahead)) => tracing::warn!(
            "mesh: this broker's clock is wrong, or those of most neighbours are: it is {:.1} s {} them; retained \
             messages and sessions follow clocks, so set it right (NTP)",
            ahead.unsigned_abs() as f64 / 1e6,
            if *ahead > 0 { "behind" } else { "ahead of" },
        ),
        Event::Membership(Membership::Stranded) => tracing::warn!(
            "mesh: none of the neighbours is reached (mesh.join_wait), and nothing is known of them: \
             publications with QoS 1 and 2 are refused until one is"
        ),
        Event::Membership(Membership::Joined) => tracing::info!("mesh: clients are let in"),
        Event::Membership(Membership::Joining) => {}
        Event::Clock(None) => {
            tracing::info!("mesh: this broker's clock agrees with its neighbours'");
        }
        Event::WillsFull(peer) => tracing::warn!(
            "mesh: the wills of {peer}'s clients do not all fit (mesh.max_will_bytes); those that do \
             not are lost with it"
        ),
        Event::TableFull(peer) => tracing::warn!(
            "mesh: {peer} wants more topics than there is room for (mesh.max_filters); it is sent \
             everything"
        ),
    }
}

/// Whose will it is, in the broker's words.
fn broker_turn(turn: punctual_mesh::WillTurn) -> WillTurn {
    match turn {
        punctual_mesh::WillTurn::Own => WillTurn::Own,
        punctual_mesh::WillTurn::Guarded => WillTurn::Guarded,
        punctual_mesh::WillTurn::Again => WillTurn::Again,
    }
}

/// What may be promised to clients by how far the broker is a member.
fn service(membership: Membership) -> Service {
    match membership {
        Membership::Joining => Service::None,
        Membership::Stranded => Service::Deliveries,
        Membership::Joined => Service::Full,
    }
}
