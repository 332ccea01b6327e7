//! One broker of the mesh: the real core with one shard, the real node, and between
//! them what the shell of a process does, with a store in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use punctual_broker::{
    Budget, Config, ConnId, ConnMeta, Directory, Federation, Interest, LinkLimits, LinkNews,
    Message, MessageName, MessageNames, MoveTimes, Newcomer, Output, Received, Restorer,
    RetainedCursor, ScanPosition, Service, SessionTransfers, Shard, StoreTrouble, Unwelcome,
    WillRecord, WillTurn,
};
use punctual_mesh::seen::{Name, SeenMessages, Verdict};
use punctual_mesh::transfer::{FenceAnswer, HomeId, Located, Record, Stamp, Stub, Times};
use punctual_mesh::wire::{self, Arrival, Open, SessionAddress, TOPIC};
use punctual_mesh::{BrokerId, LinkId, Membership, Node, Settings};
use punctual_model::Nanos;
use punctual_sim::take_pending;
use punctual_store::{Batch, Memory, Store};

/// Wall clock's time at the zero of the world's.
const WALL: u64 = 1_700_000_000_000_000_000;

#[derive(Debug)]
enum Input {
    Subscribed(Box<str>, bool),
    Unsubscribed(Box<str>, bool),
    Arrived(Arrival),
    LeftBehind(Box<str>, Option<wire::ClientWill>),
    LookUp {
        at: Stamp,
        client: Box<str>,
        user: Option<Box<str>>,
        clean: bool,
    },
    Found {
        by: HomeId,
        at: Stamp,
        client: Box<str>,
        located: Located,
    },
    Letter(BrokerId, Box<str>, Arc<[u8]>),
    Forward(u64, SessionAddress, Arc<[u8]>),
    Forwarded(u64),
    Kept(u64),
    FenceStub(Box<str>, Stub),
    Flushed(u64),
    Up(ConnId, BrokerId, bool),
    Told(ConnId, Vec<u8>),
    Waits(ConnId, bool),
    Down(ConnId, String),
}

/// What the core says to the mesh.
#[derive(Debug)]
struct Seam {
    own: BrokerId,
    origin: NonZeroU32,
    before: Mutex<BTreeSet<NonZeroU32>>,
    seen: Mutex<SeenMessages>,
    inputs: Mutex<VecDeque<Input>>,
    /// What the world's clock says.
    now: AtomicU64,
    /// When the last client arrived anywhere.
    arrived: AtomicU64,
    will_wait: Nanos,
    /// A [`Service`].
    service: AtomicU8,
    times: MoveTimes,
    transfer_times: Times,
}

impl Seam {
    fn heard_arrival(&self, at: u64) {
        self.arrived.fetch_max(at, Ordering::Relaxed);
    }

    /// Later than all that was heard of.
    fn next_arrival(&self) -> u64 {
        let at = self.clock().max(self.arrived.load(Ordering::Relaxed) + 1);
        self.arrived.store(at, Ordering::Relaxed);
        at
    }

    fn tell(&self, input: Input) {
        self.inputs.lock().unwrap().push_back(input);
    }
}

fn called(name: MessageName) -> Name {
    Name {
        origin: name.origin.get(),
        number: name.number,
    }
}

impl Interest for Seam {
    fn subscribed(&self, filter: &str, persistent: bool) {
        self.tell(Input::Subscribed(filter.into(), persistent));
    }
    fn unsubscribed(&self, filter: &str, persistent: bool) {
        self.tell(Input::Unsubscribed(filter.into(), persistent));
    }
    fn wishes_kept(&self, number: u64) {
        self.tell(Input::Kept(number));
    }
    fn flushed(&self, number: u64) {
        self.tell(Input::Flushed(number));
    }
}

impl MessageNames for Seam {
    fn origin(&self) -> NonZeroU32 {
        self.origin
    }
    fn is_new(&self, name: MessageName, at_most_once: bool) -> bool {
        if name.origin == self.origin || self.before.lock().unwrap().contains(&name.origin) {
            return false;
        }
        match self.seen.lock().unwrap().judge(called(name), name.again) {
            Verdict::New => true,
            Verdict::Seen => false,
            Verdict::Unknown => !at_most_once,
        }
    }
    fn clock(&self) -> u64 {
        (WALL + self.now.load(Ordering::Relaxed)) / 1000
    }
    fn mark_passed(&self) -> u64 {
        self.seen.lock().unwrap().mark()
    }
    fn passed(&self, mark: u64) -> (Vec<MessageName>, usize) {
        let seen = self.seen.lock().unwrap();
        let since = usize::try_from(seen.since(mark)).unwrap();
        let names = seen.latest(4096).map(|name| MessageName {
            origin: NonZeroU32::new(name.origin).unwrap(),
            number: name.number,
            again: false,
            back: 0,
        });
        (names.collect(), since)
    }
    fn note(&self, name: MessageName) {
        self.seen.lock().unwrap().note(called(name));
    }
    fn was_here(&self, name: MessageName) -> bool {
        !self.is_new(name, true)
    }
    fn was_origin(&self, origin: NonZeroU32) {
        self.before.lock().unwrap().insert(origin);
    }
}

impl SessionTransfers for Seam {
    fn arrived(&self, client_id: &str, user: Option<&str>, clean: bool, since: Option<u64>) -> u64 {
        let at = since.unwrap_or_else(|| self.next_arrival());
        self.tell(Input::Arrived(Arrival {
            client: client_id.into(),
            user: user.map(Into::into),
            at,
            clean,
        }));
        at
    }
    fn left_behind(&self, client_id: &str, will: Option<WillRecord>) {
        let will = will.map(|WillRecord { at, delay, message }| wire::ClientWill {
            client: client_id.into(),
            at,
            delay,
            message,
        });
        self.tell(Input::LeftBehind(client_id.into(), will));
    }
    fn will_wait(&self) -> Nanos {
        self.will_wait
    }
    fn letter(&self, to: &str, client_id: &str, body: Arc<[u8]>) {
        let to = BrokerId::new(to).unwrap();
        self.tell(Input::Letter(to, client_id.into(), body));
    }
    fn move_times(&self) -> MoveTimes {
        self.times
    }
    fn transfer_times(&self) -> Times {
        self.transfer_times
    }
    fn next_stamp(&self) -> u64 {
        self.next_arrival()
    }
    fn look_up(&self, client_id: &str, user: Option<&str>, at: &Stamp, clean: bool) {
        self.tell(Input::LookUp {
            at: at.clone(),
            client: client_id.into(),
            user: user.map(Into::into),
            clean,
        });
    }
    fn found(&self, by: &HomeId, client_id: &str, at: &Stamp, located: Located) {
        self.tell(Input::Found {
            by: by.clone(),
            at: at.clone(),
            client: client_id.into(),
            located,
        });
    }
    fn fence_stub(&self, client_id: &str, stub: &Stub) {
        self.tell(Input::FenceStub(client_id.into(), stub.clone()));
    }
    fn forward(&self, number: u64, address: &SessionAddress, message: Arc<[u8]>) {
        self.tell(Input::Forward(number, address.clone(), message));
    }
    fn forwarded(&self, number: u64) {
        self.tell(Input::Forwarded(number));
    }
}

impl Federation for Seam {
    fn admit(&self, _: Newcomer<'_>) -> Result<(), Unwelcome> {
        Ok(())
    }
    fn link(&self, conn: ConnId, peer: &str, news: LinkNews<'_>) {
        let peer = BrokerId::new(peer).unwrap();
        self.tell(match news {
            LinkNews::Up { dialled } => Input::Up(conn, peer, dialled),
            LinkNews::Message(bytes) => Input::Told(conn, bytes.into()),
            LinkNews::Waits(waits) => Input::Waits(conn, waits),
            LinkNews::Down(why) => Input::Down(conn, why.into()),
        });
    }
    fn service(&self) -> Service {
        Service::from_byte(self.service.load(Ordering::Relaxed))
    }
    fn name(&self) -> &str {
        self.own.as_str()
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
    pub node: Node,
    seam: Arc<Seam>,
    /// What the store is writing.
    uncommitted: VecDeque<(u64, Batch)>,
    links: BTreeMap<LinkId, (BrokerId, ConnId)>,
    conns: BTreeMap<u64, LinkId>,
    /// Connections of neighbours that have not said who they are.
    waiting: BTreeMap<u64, BrokerId>,
    expected: BTreeMap<BrokerId, Open>,
    effects: Vec<Effect>,
    /// Whether brokers of the mesh are not reached, as was said last.
    pub are_away: bool,
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
        let mut node = Node::new(self.settings.clone(), now);
        let seam = Arc::new(Seam {
            own: self.settings.id.clone(),
            origin: NonZeroU32::new(origin).unwrap(),
            before: Mutex::default(),
            seen: Mutex::new(SeenMessages::new(1 << 17)),
            inputs: Mutex::default(),
            now: AtomicU64::new(now.0),
            arrived: AtomicU64::new(0),
            will_wait: self.settings.will_wait,
            service: AtomicU8::new(service(node.membership()) as u8),
            times: MoveTimes {
                linger: self.settings.linger,
                heal: self.settings.heal,
            },
            transfer_times: Times {
                session_wait: self.settings.session_wait,
                heal: self.settings.heal,
                keep: self.settings.keep,
            },
        });
        let directory = Directory::new(1);
        directory.set_federation(seam.clone());
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
        for kept in shard.links() {
            let peer = BrokerId::new(&kept.peer).unwrap();
            let members = kept.members.into_iter();
            let members = members.map(|(broker, filter)| (BrokerId::new(&broker).unwrap(), filter));
            let behind = kept.behind.iter().map(|id| BrokerId::new(id).unwrap());
            let (members, behind) = (members.collect(), behind.collect());
            node.remember(&peer, kept.filters, members, behind, now);
        }
        self.running = Some(Running {
            shard,
            directory,
            node,
            seam,
            uncommitted: VecDeque::new(),
            links: BTreeMap::new(),
            conns: BTreeMap::new(),
            waiting: BTreeMap::new(),
            expected: BTreeMap::new(),
            effects: Vec::new(),
            are_away: false,
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
        self.node.open(dialled)
    }

    /// A connection to a neighbour is open, and it has said who it is.
    pub fn dialled(&mut self, peer: Open, window: u16, nonce: u128, now: Nanos) -> ConnId {
        let limits = LinkLimits {
            receive_maximum: window,
            max_packet: 1 << 20,
            topic_aliases: 4,
        };
        let id = peer.id.clone();
        self.expected.insert(id.clone(), peer);
        self.shard.open_link(meta(nonce), id.as_str(), limits, now)
    }

    pub fn receive(&mut self, conn: ConnId, bytes: &[u8], now: Nanos) -> Received {
        self.seam.now.store(now.0, Ordering::Relaxed);
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
            Input::Forward(number, address, message) => {
                self.shard.take_forwarded(number, &address, &message, now);
            }
            Input::Forwarded(number) => self.shard.forwarded(number),
            Input::Letter(to, client, body) => self.node.letter(&to, &client, body, now),
            Input::Kept(number) => self.node.interest_committed(number, now),
            Input::FenceStub(client, stub) => self.node.fence_stub(&client, &stub, now),
            Input::Flushed(number) => self.node.flushed(number),
            Input::Up(conn, peer, dialled) => match self.expected.remove(&peer).filter(|_| dialled)
            {
                Some(open) => self.link_up(conn, &open, now),
                None => {
                    self.waiting.insert(conn.number(), peer);
                }
            },
            Input::Told(conn, bytes) => {
                if let Some(link) = self.conns.get(&conn.number()) {
                    self.node
                        .receive(*link, &bytes, now)
                        .expect("neighbours speak well");
                } else if self.waiting.remove(&conn.number()).is_some() {
                    let Ok(wire::Message::Open(open)) = wire::Message::decode(&bytes) else {
                        panic!("not who it is, but {bytes:?}");
                    };
                    let answer = wire::Message::Open(self.open(false)).encode();
                    self.shard.link_send(conn, TOPIC, &answer);
                    self.link_up(conn, &open, now);
                }
            }
            Input::Waits(conn, waits) => {
                if let Some(link) = self.conns.get(&conn.number()) {
                    self.node.waits(*link, waits, now);
                }
            }
            Input::Down(conn, why) => {
                self.waiting.remove(&conn.number());
                if let Some(link) = self.conns.remove(&conn.number())
                    && self
                        .links
                        .get(&link)
                        .is_some_and(|(_, current)| *current == conn)
                {
                    self.links.remove(&link);
                    self.node.link_down(link, &why, now);
                }
            }
        }
    }

    fn link_up(&mut self, conn: ConnId, open: &Open, now: Nanos) {
        match self.node.link_up(open, 1.0, now) {
            Ok(link) => {
                if let Some((_, old)) = self.links.insert(link, (open.id.clone(), conn)) {
                    self.conns.remove(&old.number());
                    self.shard.link_close(old, "replaced", now);
                }
                self.conns.insert(conn.number(), link);
            }
            Err(refusal) => self.shard.link_close(conn, &refusal.to_string(), now),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each order")]
    fn act(&mut self, output: punctual_mesh::Output, now: Nanos) {
        use punctual_mesh::Output as Order;
        let peer = |link| self.node.peer(link).map(|id| id.as_str().to_owned());
        match output {
            Order::Send(link, bytes) => {
                if let Some((_, conn)) = self.links.get(&link) {
                    self.shard.link_send(*conn, TOPIC, &bytes);
                }
            }
            Order::Close(link, why) => {
                if let Some((_, conn)) = self.links.remove(&link) {
                    self.conns.remove(&conn.number());
                    self.shard.link_close(conn, &why, now);
                }
            }
            Order::Carry { link, carries } => {
                if let Some(peer) = peer(link) {
                    self.shard.link_carry(&peer, carries, now);
                }
            }
            Order::Hold { link, holds } => {
                if let Some(peer) = peer(link) {
                    self.shard.link_hold(&peer, holds, now);
                }
            }
            Order::Interest { link, add, remove } => {
                if let Some(peer) = peer(link) {
                    self.shard.link_interest(&peer, &add, &remove);
                }
            }
            Order::Leads { link, brokers } => {
                if let Some(peer) = peer(link) {
                    let brokers: Vec<&str> = brokers.iter().map(BrokerId::as_str).collect();
                    self.shard.link_leads(&peer, &brokers);
                }
            }
            Order::CommitInterest(number) => self.shard.link_keep(number),
            Order::Reached => self.shard.link_reached(),
            Order::Copy { from, to, moves } => {
                let (from, to) = (from.as_str(), to.as_str());
                self.shard.link_copy(from, to, moves, now);
            }
            Order::Members { filter, brokers } => {
                let brokers: Vec<&str> = brokers.iter().map(BrokerId::as_str).collect();
                self.shard.link_members(&filter, &brokers);
            }
            Order::Behind {
                link,
                filter,
                brokers,
            } => {
                if let Some(peer) = peer(link) {
                    let brokers: Vec<&str> = brokers.iter().map(BrokerId::as_str).collect();
                    self.shard.link_behind(&peer, &filter, &brokers);
                }
            }
            Order::PersistentInterest {
                link,
                broker,
                add,
                remove,
            } => {
                if let Some(peer) = peer(link) {
                    let broker = broker.as_str();
                    self.shard.link_lasting(&peer, broker, &add, &remove);
                }
            }
            Order::Narrow(peer) => self.shard.link_narrow(peer.as_str()),
            Order::Trim(peer) => drop(self.shard.link_trim(peer.as_str())),
            Order::Forget { peer, .. } => {
                self.shard.link_forget(peer.as_str(), now);
            }
            Order::Arrived(arrivals) => {
                for Arrival {
                    client, user, at, ..
                } in arrivals
                {
                    self.seam.heard_arrival(at);
                    self.shard
                        .user_arrived_elsewhere(&client, user.as_deref(), at, now);
                }
            }
            Order::Will { will, turn } => {
                let turn = match turn {
                    punctual_mesh::WillTurn::Own => WillTurn::Own,
                    punctual_mesh::WillTurn::Guarded => WillTurn::Guarded,
                    punctual_mesh::WillTurn::Again => WillTurn::Again,
                };
                self.shard.link_will(&will.client, &will.message, turn, now);
            }
            Order::Published { wills, same } => {
                for wire::ClientWill {
                    client, message, ..
                } in wills
                {
                    self.shard.will_was_published(&client, &message, same, now);
                }
            }
            Order::LookUp {
                by,
                at,
                client,
                user,
                clean,
            } => {
                self.seam.heard_arrival(at.micros);
                let user = user.as_deref();
                self.shard.look_up(&by, &client, user, (&at, clean), now);
            }
            Order::Located {
                at,
                client,
                answers,
                extent,
            } => self.shard.located(&client, &at, answers, extent, now),
            Order::Reach { reached, away } => {
                let reached = reached.into_iter().map(HomeId::from).collect();
                self.are_away = away;
                self.shard.set_reach(&reached, away, now);
            }
            Order::Letter { from, client, body } => {
                self.shard.letter(from.as_str(), &client, &body, now);
            }
            Order::Flush { link, number } => {
                if let Some(peer) = peer(link) {
                    self.shard.link_flush(&peer, number, now);
                }
            }
            Order::FenceAsked { by, number, stubs } => {
                let mut blocked = Vec::new();
                for (place, (client, stub)) in (0..).zip(&*stubs) {
                    if self.shard.fence_asked(&by, client, stub, now) != FenceAnswer::Clear {
                        blocked.push(place);
                    }
                }
                self.node.fence_answered(&by, number, blocked, now);
            }
            Order::FencePassed { client, epoch } => {
                self.shard.fence_passed(&client, &epoch, now);
            }
            Order::Membership(membership) => {
                let service = service(membership) as u8;
                self.seam.service.store(service, Ordering::Relaxed);
            }
            Order::TraceReply(_) | Order::Event(_) => {}
        }
    }

    /// Does all that there is to do now.
    pub fn settle(&mut self, now: Nanos) -> Vec<Effect> {
        let (mut outputs, mut dirty) = (Vec::new(), Vec::new());
        loop {
            let input = self.seam.inputs.lock().unwrap().pop_front();
            if let Some(input) = input {
                self.take(input, now);
            }
            let orders = self.node.take_outputs();
            let mut busy = !orders.is_empty();
            orders.into_iter().for_each(|order| self.act(order, now));
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
            if !busy && self.seam.inputs.lock().unwrap().is_empty() {
                return std::mem::take(&mut self.effects);
            }
        }
    }

    /// When time matters next.
    pub fn next_timeout(&self) -> Nanos {
        let shard = self.shard.next_timeout().unwrap_or(Nanos::MAX);
        self.node.next_timeout().min(shard)
    }

    pub fn tick(&mut self, now: Nanos) {
        self.seam.now.store(now.0, Ordering::Relaxed);
        if self.node.next_timeout() <= now {
            self.node.tick(now);
        }
        self.shard.tick(now);
    }
}

/// What clients may be promised, as the shell of a process has it.
fn service(membership: Membership) -> Service {
    match membership {
        Membership::Joining => Service::None,
        Membership::Stranded => Service::Deliveries,
        Membership::Joined => Service::Full,
    }
}
