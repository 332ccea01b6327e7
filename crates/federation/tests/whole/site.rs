//! One broker of the mesh: the real core with one or more shards, the real member of the mesh, and
//! the real log on a simulated disk. With several shards, these and the member run in random order,
//! possibly late: mail for one of them is handled in order, and mail for different ones in any
//! order.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use punctual_auth::Secret;
use punctual_broker::{
    Budget, ClientView, Config, ConnMeta, Directory, LinkLimits, Message, Operations,
    RemoteMessage, RetainedCursor, ScanPosition, Stats, StoreTrouble,
};
use punctual_federation::{Member, Notice, Port, ShardEvent, ShardTask, Shards};
use punctual_mesh::transfer::Record;
use punctual_mesh::wire::Open;
use punctual_mesh::{BrokerId, Settings};
use punctual_model::{Nanos, Rng};
use punctual_sim::{
    CommitEnd, Commits, Reading, ShardConn, ShardEffect, SimulatedBroker, SimulatedStore, Socket,
    StoreNews, WALL,
};

/// The shortest and the longest duration of a commit.
const COMMIT: [Nanos; 2] = [Nanos(1), Nanos::from_millis(3)];
/// Longest time for which a shard or the member does not run although its mailbox is not empty.
const MOST_LATE: Nanos = Nanos(300_000);
/// The shared secret of the mesh.
pub const SECRET: &str = "the secret of all brokers";

/// A piece of mail for a shard.
enum Mail {
    Task(ShardTask),
    Messages(Vec<RemoteMessage>),
}

/// The mailbox of each shard: tasks from the member, and messages from other shards.
struct Mailboxes(Vec<VecDeque<Mail>>);

impl Shards for Mailboxes {
    fn call(&mut self, shard: u16, task: ShardTask) {
        self.0[usize::from(shard)].push_back(Mail::Task(task));
    }
}

/// An action that the world performs for a broker.
pub enum Effect {
    Write(Socket, Vec<u8>),
    Close(Socket),
    Resume(Socket),
    /// Hands a connection over to another shard.
    HandOver(Socket, u16, Box<ConnMeta>),
    /// Commits operations of a shard.
    Store(u16, Operations),
}

pub struct Site {
    pub settings: Settings,
    config: Arc<Config>,
    /// The store, which survives crashes; without a store, nothing survives.
    pub store: Option<SimulatedStore>,
    /// Whether the configuration names the neighbours, for which the broker waits when it starts.
    pub named: bool,
    shards: u16,
    pub running: Option<Running>,
}

pub struct Running {
    pub broker: SimulatedBroker,
    mailboxes: Mailboxes,
    /// Random order in which shards and the member run.
    turns: Rng,
    /// The time at which the next shard or the member runs, if it is late.
    next_turn: Option<Nanos>,
    port: Arc<Port>,
    pub member: Member,
    /// Neighbours whose link the member has refused.
    refused: BTreeSet<BrokerId>,
    /// Events that shards have reported to the member.
    events: Arc<Mutex<VecDeque<ShardEvent>>>,
    /// The time of the world, which the wall clock returns.
    clock: Arc<AtomicU64>,
    effects: Vec<Effect>,
}

fn meta(nonce: u128) -> ConnMeta {
    ConnMeta {
        allow_anonymous: true,
        nonce: nonce.to_be_bytes(),
        ..ConnMeta::default()
    }
}

impl Site {
    pub fn new(settings: Settings, config: Config, store: bool, shards: u16) -> Self {
        Self {
            settings,
            config: Arc::new(config),
            store: store.then(|| SimulatedStore::new(shards, Commits::Batches, COMMIT)),
            named: false,
            shards,
            running: None,
        }
    }

    /// Starts the broker with the contents of its store.
    pub fn start(&mut self, now: Nanos) {
        self.settings.instance += 1;
        let id = self.settings.id.as_str().as_bytes();
        let origin = id
            .iter()
            .fold(self.settings.instance as u32, |n, b| n * 31 + u32::from(*b));
        let events: Arc<Mutex<VecDeque<ShardEvent>>> = Arc::default();
        let clock = Arc::new(AtomicU64::new(now.0));
        let (reports, wall) = (events.clone(), clock.clone());
        let port = Arc::new(Port::new(
            &self.settings,
            NonZeroU32::new(origin).unwrap(),
            Some(Secret::parse(SECRET).unwrap()),
            move || (WALL + wall.load(Ordering::Relaxed)) / 1000,
            move |event| reports.lock().unwrap().push_back(event),
        ));
        let directory = Directory::new(self.shards);
        directory.set_federation(port.clone());
        let broker = match &mut self.store {
            Some(store) => store.restore(directory.clone(), &self.config, now),
            None => SimulatedBroker::new(directory.clone(), &self.config, now),
        };
        let settings = self.settings.clone();
        let mut member = Member::new(settings, port.clone(), directory, now);
        member.remember(broker.shards[0].links(), now);
        let mailboxes = broker.shards.iter().map(|_| VecDeque::new()).collect();
        self.running = Some(Running {
            broker,
            mailboxes: Mailboxes(mailboxes),
            turns: Rng::new(u64::from(origin)),
            next_turn: None,
            port,
            member,
            refused: BTreeSet::new(),
            events,
            clock,
            effects: Vec::new(),
        });
        let news = self.store.as_mut().map(SimulatedStore::look);
        self.tell(news.unwrap_or_default(), now);
    }

    /// Replaces the store by an empty one.
    pub fn replace_store(&mut self) {
        let store = self.store.is_some();
        self.store = store.then(|| SimulatedStore::new(self.shards, Commits::Batches, COMMIT));
    }

    /// Crashes the broker.
    pub fn crash(&mut self, rng: &mut Rng) {
        if let (Some(_), Some(store)) = (self.running.take(), &mut self.store) {
            store.crash(rng);
        }
    }

    /// Sets how the disk fails; returns whether that is a change.
    pub fn set_trouble(&mut self, trouble: Option<StoreTrouble>, now: Nanos) -> bool {
        let Some(store) = &mut self.store else {
            return false;
        };
        let changed = store.has_trouble() != trouble.is_some();
        let news = store.set_trouble(trouble);
        self.tell(news, now);
        changed
    }

    /// Completes the commit in progress.
    pub fn commit(&mut self, rng: &mut Rng, now: Nanos) {
        let end = self.store.as_mut().map(|store| store.end(rng));
        if let Some(CommitEnd::Told(news)) = end {
            self.tell(news, now);
        }
    }

    /// Passes news of the store to the shards.
    fn tell(&mut self, news: Vec<(u16, StoreNews)>, now: Nanos) {
        if let Some(running) = &mut self.running {
            for (shard, news) in news {
                news.tell(running.broker.shard(shard), now);
            }
        }
    }
}

impl Running {
    /// The first message of the broker on a connection.
    pub fn open(&self, dialled: bool) -> Open {
        self.member.node().open(dialled)
    }

    /// Handles an open connection to a neighbour that has identified itself.
    pub fn dialled(&mut self, at: Socket, peer: Open, window: u16, nonce: u128, now: Nanos) {
        let limits = LinkLimits {
            receive_maximum: window,
            max_packet: 1 << 20,
            topic_aliases: 4,
        };
        let name = peer.id.clone();
        self.member.expect(peer);
        let shard = self.broker.shard(0);
        let id = shard.open_link(meta(nonce), name.as_str(), limits, now);
        self.broker.adopt(at, ShardConn { shard: 0, id });
    }

    /// Whether the member has a link to a neighbour, or has refused it.
    pub fn has_answered(&self, peer: &BrokerId) -> bool {
        self.port.is_linked(peer) || self.refused.contains(peer)
    }

    /// Accepts a connection.
    pub fn accept(&mut self, at: Socket, nonce: u128, now: Nanos) {
        let shards = self.broker.shards.len() as u64;
        let shard = self.turns.below(shards) as u16;
        // The broker places new sessions by load.
        let busy = self.turns.below(shards + 1);
        for shard in 0..shards {
            let load = if shard == busy { 1000 } else { 0 };
            self.directory().set_load(shard as u16, load);
        }
        self.broker.accept(at, shard, meta(nonce), now);
    }

    pub fn directory(&self) -> &Arc<Directory> {
        self.broker.directory()
    }

    pub fn read(&mut self, at: Socket, now: Nanos) -> Option<Reading> {
        self.clock.store(now.0, Ordering::Relaxed);
        self.broker.read(at, false, now)
    }

    /// The state of a client's session at this broker.
    pub fn client(&self, name: &str) -> Option<ClientView<'_>> {
        self.broker
            .shards
            .iter()
            .find_map(|shard| shard.client(name))
    }

    /// The sum of a counter over all shards.
    pub fn count(&mut self, counter: impl Fn(&Stats) -> u64) -> u64 {
        let shards = self.broker.shards.iter_mut();
        shards.map(|shard| counter(shard.stats())).sum()
    }

    /// Topics and payloads of the retained messages.
    pub fn retains(&self, now: Nanos) -> Vec<(String, String)> {
        let (from, mut budget) = (RetainedCursor::default(), Budget::unlimited());
        let (messages, more) =
            (self.directory()).retained_page("#", &from, usize::MAX, &mut budget, now);
        assert_eq!(more, None);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let both = |message: &Arc<Message>| (message.topic().into(), text(message.payload()));
        messages.iter().map(both).collect()
    }

    /// Messages that wait at this broker: client, bytes, and where: a session, a copy, a stub or
    /// (`None`) the queue of a link.
    pub fn waiting(&self) -> Vec<(Arc<str>, usize, Option<Record>)> {
        let mut waiting = Vec::new();
        let all = ScanPosition::default();
        for shard in &self.broker.shards {
            shard.scan_clients(all, u32::MAX, |client| {
                let info = client.info();
                if info.queued_bytes > 0 {
                    let record = client.record().cloned();
                    waiting.push((info.client_id, info.queued_bytes, record));
                }
            });
        }
        waiting
    }

    /// Runs shards and the member until their mailboxes are empty, or one of them is late; returns
    /// the effects.
    pub fn settle(&mut self, now: Nanos) -> Vec<Effect> {
        loop {
            let mut busy = self.hear(now);
            let member = self.broker.shards.len();
            let is_waiting = |at: usize| match self.mailboxes.0.get(at) {
                Some(mailbox) => !mailbox.is_empty(),
                None => !self.events.lock().unwrap().is_empty(),
            };
            let waiting: Vec<usize> = (0..=member).filter(|at| is_waiting(*at)).collect();
            let was_late = self.next_turn.is_some_and(|at| at <= now);
            if was_late {
                self.next_turn = None;
            } else if self.next_turn.is_none()
                && member > 1
                && !waiting.is_empty()
                && self.turns.chance(5)
            {
                let delay = self.turns.below(MOST_LATE.0);
                self.next_turn = Some(now + Nanos(1 + delay));
            }
            if !waiting.is_empty() && self.next_turn.is_none() {
                let turn = waiting[self.turns.below(waiting.len() as u64) as usize];
                match self.mailboxes.0.get_mut(turn).and_then(VecDeque::pop_front) {
                    Some(Mail::Task(task)) => task(&mut self.broker.shards[turn], now),
                    Some(Mail::Messages(all)) => {
                        self.broker.shards[turn].remote(all.into_iter(), now);
                    }
                    None => {
                        let event = self.events.lock().unwrap().pop_front();
                        if let Some(event) = event {
                            self.member.take(event, &mut self.mailboxes, now);
                        }
                    }
                }
                busy = true;
            }
            busy |= self.member.act(&mut self.mailboxes);
            for notice in self.member.take_notices() {
                match notice {
                    Notice::Misbehaved(peer, why) => panic!("{peer} breaks the protocol: {why}"),
                    Notice::Refused(peer, _) => _ = self.refused.insert(peer),
                    _ => {}
                }
            }
            if !busy {
                return std::mem::take(&mut self.effects);
            }
        }
    }

    /// Collects the shards' outputs for the store, for each other and for the world; returns
    /// whether there were any outputs.
    fn hear(&mut self, now: Nanos) -> bool {
        let mut busy = false;
        let shards = self.directory().shards();
        for index in 0..shards {
            if let Some(operations) = self.broker.shard(index).take_operations(now) {
                self.effects.push(Effect::Store(index, operations));
            }
            for effect in self.broker.effects(index, now) {
                match effect {
                    ShardEffect::Write(at) => {
                        let bytes = self.broker.take_all_output(at, now);
                        if bytes.is_empty() {
                            continue;
                        }
                        self.effects.push(Effect::Write(at, bytes));
                    }
                    ShardEffect::Close(at, tail) => {
                        self.effects.push(Effect::Write(at, tail));
                        self.effects.push(Effect::Close(at));
                    }
                    ShardEffect::Resume(at) => self.effects.push(Effect::Resume(at)),
                    ShardEffect::HandOver(at, to, meta) => {
                        self.effects.push(Effect::HandOver(at, to, meta));
                    }
                    ShardEffect::Other(_) => {}
                }
                busy = true;
            }
            let shard = self.broker.shard(index);
            for to in (0..shards).filter(|to| *to != index) {
                if shard.has_outbox(to) {
                    let mut messages = Vec::new();
                    shard.take_outbox(to, &mut messages);
                    self.mailboxes.0[usize::from(to)].push_back(Mail::Messages(messages));
                    busy = true;
                }
            }
        }
        busy
    }

    /// The next time at which a timer is due.
    pub fn next_timeout(&self) -> Nanos {
        let shards = self.broker.next_timeout().unwrap_or(Nanos::MAX);
        let turn = self.next_turn.unwrap_or(Nanos::MAX);
        shards.min(turn).min(self.member.next_timeout())
    }

    pub fn tick(&mut self, now: Nanos) {
        self.clock.store(now.0, Ordering::Relaxed);
        self.member.tick(now);
        for shard in &mut self.broker.shards {
            shard.tick(now);
        }
    }
}
