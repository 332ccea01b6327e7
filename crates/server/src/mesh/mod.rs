//! The broker as one of a mesh: a thread for its [`Member`], connections to neighbours, the log, and
//! answers to operators.
//!
//! Messages between clients never pass this thread: they go from shard to socket
//! like all others. What comes here are subscriptions, links and hellos.

mod added;
mod clock;
mod dial;
mod machine;
mod reached;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use punctual_auth::Secret;
use punctual_broker::{Directory, Federation, LinkLimits, Nanos, SECRET_USER, Service};
use punctual_federation::{
    DropCause, DroppedMessages, Member, Notice, Port, ShardEvent, ShardTask, Shards,
};
use punctual_mesh::tree::TreeChangeCause;
use punctual_mesh::wire::{Open, TraceReply};
use punctual_mesh::{
    BrokerId, Dialling, Event, ForgetError, Membership, Node, Settings, Status, Strategy,
};
use punctual_net::{Clock, Handle, Server, TlsConnector};
use tokio::sync::oneshot;

use self::added::AddedNeighbours;
use self::clock::wall_clock;
use self::dial::{Dialled, Dialler, Introduction, Retry};
use self::reached::Reached;
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

/// Something for the mesh's thread.
#[derive(Debug)]
enum Input {
    Shard(ShardEvent),
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
    port: Arc<Port>,
    inputs: Receiver<Input>,
    keeper: Sender<Input>,
    settings: Settings,
    introduction: Introduction,
    neighbours: Vec<Neighbour>,
    kept: AddedNeighbours,
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
        let events = keeper.clone();
        let report = move |event| {
            // The thread of the mesh ends after the shards.
            let _ = events.send(Input::Shard(event));
        };
        Ok(Some(Self {
            port: Arc::new(Port::new(&settings, origin, secret, wall_clock, report)),
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
            kept: AddedNeighbours::read(keys.neighbours_file.as_deref())?,
        }))
    }

    /// For the shards.
    pub(crate) fn federation(&self) -> Arc<dyn Federation> {
        self.port.clone()
    }

    /// Runs from now on.
    pub(crate) fn start(self, server: &Server) -> Result<Mesh, Error> {
        let clock = server.clock();
        let keeper = self.keeper.clone();
        let mut running = Keeper {
            member: Member::new(
                self.settings,
                self.port.clone(),
                server.directory().clone(),
                clock.now(),
            ),
            shards: Threads(server.handle()),
            directory: server.directory().clone(),
            clock,
            port: self.port,
            introduction: self.introduction,
            keeper: self.keeper,
            diallers: BTreeMap::new(),
            opened: BTreeMap::new(),
            missed: BTreeMap::new(),
            traces: HashMap::new(),
            kept: AddedNeighbours::default(),
            refused: HashMap::new(),
            misbehaved: HashMap::new(),
            starts: HashMap::new(),
            reached: Reached::default(),
            told_at: None,
        };
        for neighbour in self.neighbours.iter().chain(self.kept.neighbours()) {
            running.add(neighbour)?;
        }
        running.kept = self.kept;
        let status = running.member.node().status();
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

/// The threads of the shards.
struct Threads(Handle);

impl Shards for Threads {
    fn call(&mut self, shard: u16, task: ShardTask) {
        self.0.call(shard.into(), task);
    }
}

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
    member: Member,
    shards: Threads,
    directory: Arc<Directory>,
    clock: Clock,
    port: Arc<Port>,
    introduction: Introduction,
    keeper: Sender<Input>,
    diallers: BTreeMap<String, Dialler>,
    /// Which neighbour is at which address.
    opened: BTreeMap<String, BrokerId>,
    /// Why addresses lead to no neighbour.
    missed: BTreeMap<String, String>,
    traces: HashMap<u64, Waiting>,
    kept: AddedNeighbours,
    /// Brokers that may not be neighbours, and why, as the log said last.
    refused: HashMap<BrokerId, String>,
    /// Neighbours that broke the protocol, and how, as the log said last.
    misbehaved: HashMap<BrokerId, String>,
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
            let due = (self.member.next_timeout() - self.clock.now()).0;
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
            if let Some(input) = input {
                self.take(input, now);
            }
            if self.member.node().membership() == Membership::Joining {
                self.member.set_dialling(self.dialling(), now);
            }
            self.member.tick(now);
            self.member.act(&mut self.shards);
            self.note();
            self.end_traces();
            self.log_reached();
            self.notify_shards_of_status();
        }
    }

    /// Takes over what the first shard has stored for neighbours.
    fn remember(&mut self) {
        let (tell, told) = channel();
        self.shards.0.call(0, move |shard, _| {
            // The receiver waits.
            let _ = tell.send(shard.links());
        });
        let links = told.recv().unwrap_or_default();
        self.member.remember(links, self.clock.now());
    }

    fn take(&mut self, input: Input, now: Nanos) {
        match input {
            Input::Shard(event) => self.member.take(event, &mut self.shards, now),
            Input::Dialled(dialled) => self.dialled(*dialled, now),
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

    /// Takes the member's notices: for the log, for operators, and for connections to neighbours.
    fn note(&mut self) {
        for notice in self.member.take_notices() {
            match notice {
                Notice::Event(event) => {
                    self.told_at = None;
                    tell(&event);
                }
                Notice::TraceReply(reply) => {
                    if let Some(waiting) = self.traces.get_mut(&reply.number) {
                        waiting.answers.push(reply);
                    }
                }
                Notice::Linked(open) => {
                    self.refused.remove(&open.id);
                    self.started(&open);
                }
                Notice::Refused(peer, why) => {
                    if is_news(&mut self.refused, &peer, &why) {
                        tracing::warn!("mesh: {peer} is no neighbour: it {why}");
                    }
                }
                Notice::Misbehaved(peer, why) => {
                    if is_news(&mut self.misbehaved, &peer, &why) {
                        tracing::warn!("mesh: {peer} breaks the protocol: {why}");
                    }
                }
                Notice::Disconnected(peer) => {
                    for (_, dialler) in self.of(&peer) {
                        dialler.wake();
                    }
                }
                Notice::Dropped(dropped) => log_dropped(&dropped),
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

    fn of<'a>(&'a self, peer: &'a BrokerId) -> impl Iterator<Item = (&'a String, &'a Dialler)> {
        let addresses = self.opened.iter().filter(move |(_, id)| *id == peer);
        addresses.filter_map(|(address, _)| Some((address, self.diallers.get(address)?)))
    }

    /// A connection to a neighbour is open: it becomes the link, or is dropped where
    /// there is one that stays.
    fn dialled(&mut self, dialled: Dialled, now: Nanos) {
        let Dialled {
            address,
            peer,
            connection,
            unread,
            limits,
        } = dialled;
        let id = peer.id.clone();
        let Some(dialler) = self.diallers.get(&address) else {
            return;
        };
        let weight = dialler.weight;
        self.missed.remove(&address);
        self.is_at(address, &id, weight, now);
        if self.port.is_linked(&id) && self.introduction.open.id > id {
            // The neighbour's own connection stays; when it ends this is tried again.
            return;
        }
        self.member.expect(peer);
        let link = self.shards.0.link(connection, unread, id.as_str(), limits);
        if let Err(error) = link {
            self.member.unexpect(&id);
            tracing::warn!("mesh: the connection to {id} cannot be used: {error}");
        }
    }

    /// Addresses that lead to no link, and why, where that is known.
    fn unconnected(&self) -> BTreeMap<String, String> {
        let why = |address: &String| match self.opened.get(address) {
            Some(peer) if self.port.is_linked(peer) => None,
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
            let weight = dialler.weight;
            self.missed.remove(&address);
            self.is_at(address, &peer, weight, now);
        }
    }

    /// A neighbour is at an address, whose weight is its own.
    fn is_at(&mut self, address: String, peer: &BrokerId, weight: f64, now: Nanos) {
        let before = self.opened.insert(address, peer.clone());
        if let Some(before) = before.filter(|before| before != peer) {
            self.weigh_again(&before, now);
        }
        self.member.weigh(peer, weight, now);
    }

    /// One address less leads to a neighbour: it has the weight of another one, or none.
    fn weigh_again(&mut self, peer: &BrokerId, now: Nanos) {
        let mut others = self.of(peer);
        let weight = others.next().map_or(1.0, |(_, dialler)| dialler.weight);
        drop(others);
        self.member.weigh(peer, weight, now);
    }

    /// Which neighbours are named, and whether all were tried.
    fn dialling(&self) -> Dialling {
        let is_untried = |address: &String| match self.opened.get(address) {
            Some(peer) => !self.port.is_linked(peer) && !self.refused.contains_key(peer),
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
                self.member
                    .weigh(peer, neighbour.weight(), self.clock.now());
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
            self.port.clone(),
            self.keeper.clone(),
        )?;
        self.diallers.insert(neighbour.address.clone(), dialler);
        Ok(())
    }

    fn remove(&mut self, address: &str) -> bool {
        let found = self.diallers.remove(address).is_some();
        self.missed.remove(address);
        if let Some(peer) = self.opened.remove(address) {
            self.weigh_again(&peer, self.clock.now());
            let why = "the neighbour was removed";
            self.member.disconnect(&peer, why, &mut self.shards);
        }
        found
    }

    fn answer(&mut self, ask: Ask, now: Nanos) {
        // Who does not wait any more needs no answer.
        match ask {
            Ask::Status(reply) => {
                let stats = self.directory.stats();
                let _ = reply.send(Overview {
                    status: self.member.node().status(),
                    brokers: self.brokers(),
                    neighbours: self.diallers.keys().cloned().collect(),
                    unconnected: self.unconnected(),
                    service: self.port.service(),
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
                let forgotten = self.member.forget(&broker, &mut self.shards, now);
                let _ = reply.send(forgotten);
            }
            Ask::Trace(topic, reply) => {
                let number = self.member.trace(&topic, now);
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

    /// All that make up the tree, by names.
    fn brokers(&self) -> Vec<String> {
        let own = &self.introduction.open.id;
        let mut all: Vec<&BrokerId> = self.member.node().reached().iter().chain([own]).collect();
        all.sort_unstable();
        all.into_iter().map(ToString::to_string).collect()
    }

    /// The log says when the mesh has fallen apart, and when its parts are one again.
    fn log_reached(&mut self) {
        let [gone, came] = self
            .reached
            .news(self.member.node().reached(), self.clock.now());
        if let Some(gone) = gone {
            tracing::warn!("mesh: {gone}");
        }
        if let Some(came) = came {
            tracing::info!("mesh: {came}");
        }
    }

    /// Tells the shards how things stand, for `$SYS` topics: after events, and now and then.
    fn notify_shards_of_status(&mut self) {
        if self.told_at.is_some_and(|told| told.elapsed() < SYS) {
            return;
        }
        self.told_at = Some(Instant::now());
        let brokers = self.member.node().reached().len() + 1;
        self.port
            .set_topics(topics(&self.member.node().status(), brokers));
    }
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

/// Whether the log has not said that of a broker the last time. It would otherwise have a line each time
/// that the broker tries again.
fn is_news(said: &mut HashMap<BrokerId, String>, peer: &BrokerId, why: &str) -> bool {
    if said.get(peer).is_some_and(|last| last == why) {
        return false;
    }
    if said.len() >= REMEMBERED {
        said.clear();
    }
    said.insert(peer.clone(), why.to_owned());
    true
}

/// Logs that messages for a neighbour are dropped.
fn log_dropped(dropped: &DroppedMessages) {
    let DroppedMessages {
        peer,
        messages,
        cause,
    } = dropped;
    let why = match cause {
        DropCause::Unwanted => {
            return tracing::warn!(
                "mesh: {messages} messages that waited for {peer} are dropped, as no \
                 persistent session behind it is to get them"
            );
        }
        DropCause::Away => "away for longer than mesh.heal or mesh.keep".into(),
        DropCause::Forgotten(broker) => format!("as {broker} does not come back"),
    };
    tracing::warn!(
        "mesh: {peer} is given up, {why}: {messages} messages that waited for it are dropped"
    );
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
