//! One broker of the mesh: the real core with one shard, the real member of the mesh, and a store in
//! memory. What the shell of a process does with threads happens at once here.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use punctual_auth::Secret;
use punctual_broker::{
    Budget, Config, ConnId, ConnMeta, Directory, LinkLimits, Message, Output, Received, Restorer,
    RetainedCursor, ScanPosition, Shard, StoreTrouble,
};
use punctual_federation::{Member, Notice, Port, ShardEvent, ShardTask, Shards};
use punctual_mesh::Settings;
use punctual_mesh::transfer::Record;
use punctual_mesh::wire::Open;
use punctual_model::Nanos;
use punctual_sim::take_pending;
use punctual_store::{Batch, Memory, Store};

/// Wall clock's time at the zero of the world's.
const WALL: u64 = 1_700_000_000_000_000_000;
/// The secret of the mesh.
pub const SECRET: &str = "the secret of all brokers";

/// The only shard, which does at once what it is to do.
struct AtOnce<'a> {
    shard: &'a mut Shard,
    now: Nanos,
}

impl Shards for AtOnce<'_> {
    fn call(&mut self, shard: u16, task: ShardTask) {
        assert_eq!(shard, 0);
        task(self.shard, self.now);
    }
}

/// What the world has to do for a broker.
pub enum Effect {
    Write(ConnId, Vec<u8>),
    Close(ConnId),
    Resume(ConnId),
    /// Something is to be committed.
    Commit,
}

pub struct Site {
    pub settings: Settings,
    config: Arc<Config>,
    /// Kept over crashes; without, nothing is.
    store: Option<Memory>,
    /// It cannot write.
    pub is_full: bool,
    /// It has room only for what is on its way.
    is_short: bool,
    /// Its neighbours are named: it waits for them when it starts.
    pub named: bool,
    pub running: Option<Running>,
}

pub struct Running {
    pub shard: Shard,
    pub directory: Arc<Directory>,
    pub member: Member,
    /// What the shard has reported to the member.
    events: Arc<Mutex<VecDeque<ShardEvent>>>,
    /// The world's time, for the wall clock.
    clock: Arc<AtomicU64>,
    /// What the store is writing.
    uncommitted: VecDeque<(u64, Batch)>,
    effects: Vec<Effect>,
}

pub fn meta(nonce: u128) -> ConnMeta {
    ConnMeta {
        allow_anonymous: true,
        nonce: nonce.to_be_bytes(),
        ..ConnMeta::default()
    }
}

impl Site {
    pub fn new(settings: Settings, config: Config, store: bool) -> Self {
        Self {
            settings,
            config: Arc::new(config),
            store: store.then(Memory::default),
            is_full: false,
            is_short: false,
            named: false,
            running: None,
        }
    }

    /// Starts with what the store has.
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
        let directory = Directory::new(1);
        directory.set_federation(port.clone());
        let mut shard = Shard::new(directory.clone(), 0, self.config.clone(), now);
        if let Some(store) = &mut self.store {
            shard.attach_store(WALL);
            let mut restorer = Restorer::new(directory.clone(), WALL);
            let recovered = store.recover(&mut |op| {
                if let Some(session) = restorer.take(&op) {
                    assert!(shard.restore(session, now));
                }
            });
            recovered.unwrap();
            if let Some(session) = restorer.finish() {
                assert!(shard.restore(session, now));
            }
            shard.store_full(self.is_short.then_some(StoreTrouble::Full), now);
        }
        let mut member = Member::new(self.settings.clone(), port, directory.clone(), now);
        member.remember(shard.links(), now);
        self.running = Some(Running {
            shard,
            directory,
            member,
            events,
            clock,
            uncommitted: VecDeque::new(),
            effects: Vec::new(),
        });
    }

    /// Nothing is left of what it had stored.
    pub fn replace_store(&mut self) {
        self.store = self.store.take().map(|_| Memory::default());
    }

    /// Ends without a word; of what was being written the first `survive` batches are
    /// on disk.
    pub fn crash(&mut self, survive: usize) {
        let Some(running) = self.running.take() else {
            return;
        };
        if let (Some(store), false) = (&mut self.store, self.is_full) {
            for (_, batch) in running.uncommitted.iter().take(survive) {
                store.commit(batch).unwrap();
            }
        }
    }

    /// Whether there is room only for what is on its way; whether that is new.
    pub fn set_short(&mut self, short: bool, now: Nanos) -> bool {
        let changed = self.store.is_some() && self.is_short != short;
        if changed {
            self.is_short = short;
            if let Some(running) = &mut self.running {
                let why = short.then_some(StoreTrouble::Full);
                running.shard.store_full(why, now);
            }
        }
        changed
    }

    /// Batches that are being written.
    pub fn uncommitted(&self) -> usize {
        self.running
            .as_ref()
            .map_or(0, |running| running.uncommitted.len())
    }

    /// The store has written the first batch, or cannot.
    pub fn commit(&mut self, now: Nanos) {
        let (Some(running), Some(store)) = (&mut self.running, &mut self.store) else {
            return;
        };
        if self.is_full {
            running.shard.store_failed(StoreTrouble::Full, now);
        } else if let Some((ticket, batch)) = running.uncommitted.pop_front() {
            store.commit(&batch).unwrap();
            running.shard.committed(ticket, now);
        }
    }
}

impl Running {
    /// What it says first on a connection.
    pub fn open(&self, dialled: bool) -> Open {
        self.member.node().open(dialled)
    }

    /// A connection to a neighbour is open, and it has said who it is.
    pub fn dialled(&mut self, peer: Open, window: u16, nonce: u128, now: Nanos) -> ConnId {
        let limits = LinkLimits {
            receive_maximum: window,
            max_packet: 1 << 20,
            topic_aliases: 4,
        };
        let id = peer.id.clone();
        self.member.expect(peer);
        self.shard.open_link(meta(nonce), id.as_str(), limits, now)
    }

    pub fn receive(&mut self, conn: ConnId, bytes: &[u8], now: Nanos) -> Received {
        self.clock.store(now.0, Ordering::Relaxed);
        self.shard.receive(conn, bytes, now)
    }

    /// What it retains: topics and payloads.
    pub fn retains(&self, now: Nanos) -> Vec<(String, String)> {
        let (from, mut budget) = (RetainedCursor::default(), Budget::unlimited());
        let (messages, more) =
            (self.directory).retained_page("#", &from, usize::MAX, &mut budget, now);
        assert_eq!(more, None);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let both = |message: &Arc<Message>| (message.topic().into(), text(message.payload()));
        messages.iter().map(both).collect()
    }

    /// Whose messages wait here, how many bytes, and in what: a session, a copy, a stub or (`None`) the
    /// queue of a link.
    pub fn waiting(&self) -> Vec<(Arc<str>, usize, Option<Record>)> {
        let mut waiting = Vec::new();
        let all = ScanPosition::default();
        self.shard.scan_clients(all, u32::MAX, |client| {
            let info = client.info();
            if info.queued_bytes > 0 {
                let record = client.record().cloned();
                waiting.push((info.client_id, info.queued_bytes, record));
            }
        });
        waiting
    }

    /// Does all that there is to do now.
    pub fn settle(&mut self, now: Nanos) -> Vec<Effect> {
        let (mut outputs, mut dirty) = (Vec::new(), Vec::new());
        loop {
            let event = self.events.lock().unwrap().pop_front();
            let mut busy = event.is_some();
            let mut shards = AtOnce {
                shard: &mut self.shard,
                now,
            };
            if let Some(event) = event {
                self.member.take(event, &mut shards, now);
            }
            busy |= self.member.act(&mut shards);
            for notice in self.member.take_notices() {
                if let Notice::Misbehaved(peer, why) = notice {
                    panic!("{peer} breaks the protocol: {why}");
                }
            }
            if let Some(operations) = self.shard.take_operations(now) {
                self.uncommitted
                    .push_back((operations.ticket, operations.batch));
                self.effects.push(Effect::Commit);
            }
            self.shard.take_dirty(&mut dirty);
            self.shard.take_urgent(&mut dirty);
            for conn in dirty.drain(..) {
                let bytes = take_pending(&mut self.shard, conn, now);
                if !bytes.is_empty() {
                    self.effects.push(Effect::Write(conn, bytes));
                    busy = true;
                }
            }
            self.shard.take_outputs(&mut outputs);
            for output in outputs.drain(..) {
                busy = true;
                match output {
                    Output::Close { conn, tail } => {
                        self.effects.push(Effect::Write(conn, tail));
                        self.effects.push(Effect::Close(conn));
                    }
                    Output::Resume(conn) => self.effects.push(Effect::Resume(conn)),
                    _ => {}
                }
            }
            if !busy && self.events.lock().unwrap().is_empty() {
                return std::mem::take(&mut self.effects);
            }
        }
    }

    /// When time matters next.
    pub fn next_timeout(&self) -> Nanos {
        let shard = self.shard.next_timeout().unwrap_or(Nanos::MAX);
        self.member.next_timeout().min(shard)
    }

    pub fn tick(&mut self, now: Nanos) {
        self.clock.store(now.0, Ordering::Relaxed);
        self.member.tick(now);
        self.shard.tick(now);
    }
}
