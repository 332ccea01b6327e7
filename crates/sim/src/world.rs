//! The shell of a broker in virtual time: shards, network links, and the mail
//! between shards. Everything that may vary in a real network varies here by
//! the seed: latency, how a byte stream is cut into pieces, how much a
//! receiver takes, when a connection breaks and when its ends find out.
//!
//! Invariant: with equal seeds and equal calls, everything happens equally.
//! Bytes of one direction of one link, and messages from one shard to
//! another, never overtake each other.

use std::collections::VecDeque;
use std::sync::Arc;

use punctual_broker::{
    AdmissionRequest, AuthAnswer, AuthRequest, Budget, Config, ConnId, ConnMeta, Directory, Event,
    Nanos, Output, RemoteMessage, Shard, StoreTrouble,
};
use punctual_model::Rng;

use crate::broker::{ShardConn, ShardEffect, SimulatedBroker};
use crate::simulated_store::{CommitEnd, Commits, SimulatedStore, StoreNews};
use crate::virtual_network::{NetworkEvent, Socket, VirtualNetwork};

/// The greatest budget of [`Shard::work`], in units: some work fits into one call, other work needs several.
const MOST_UNITS: u64 = 100;

/// Identifies a network connection between a client and the broker: they are numbered as they are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub usize);

impl LinkId {
    /// The client's end.
    fn client(self) -> Socket {
        Socket {
            connection: self.0,
            side: 0,
        }
    }

    /// The broker's end.
    fn broker(self) -> Socket {
        self.client().peer()
    }
}

impl From<Socket> for LinkId {
    fn from(socket: Socket) -> Self {
        Self(socket.connection)
    }
}

/// How a link behaves.
#[derive(Debug, Clone, Copy)]
pub struct LinkProfile {
    /// Least latency of one direction.
    pub latency: Nanos,
    /// The greatest delay that is added to the latency at random, for each piece.
    pub jitter: Nanos,
    /// Longest piece the byte stream is cut into; 0 for no cuts.
    pub piece: usize,
    /// Bytes the client's receive buffer holds, those under way included.
    pub window: usize,
}

impl Default for LinkProfile {
    fn default() -> Self {
        Self {
            latency: Nanos(10_000),
            jitter: Nanos(0),
            piece: 0,
            window: usize::MAX,
        }
    }
}

/// What the broker did or noticed, in the order it happened.
#[derive(Debug)]
pub enum Trace {
    /// The broker consumed these bytes of a link: whole packets.
    Consumed {
        /// Which link.
        link: LinkId,
        /// The packets, encoded.
        packets: Vec<u8>,
        /// Whether the last packet ended the connection.
        closed: bool,
        /// How many of the packets were publications that the broker refused for lack of room.
        refused: u64,
    },
    /// The broker was told that the connection is gone.
    Lost(LinkId),
    /// The broker closed the connection: it sends nothing more on it.
    Closed(LinkId),
    /// The broker asked the authenticator whether a client may connect.
    Asked(LinkId, Box<AuthRequest>),
    /// The broker was given the answer of the authenticator.
    Answered(LinkId, AuthAnswer),
    /// The broker reported an event for its log.
    Event(Event),
}

/// Answers authentication requests; the World delivers the answer later.
pub type Authenticator = Box<dyn FnMut(&AuthRequest) -> AuthAnswer>;

/// Time between a request for admission and its answer.
const DECISION: Nanos = Nanos(300_000);

/// The function in a [`ShardCall`].
type Call = Box<dyn FnOnce(&mut Shard, Nanos)>;

/// A function that the simulation calls with a shard and the time.
pub struct ShardCall(Call);

impl ShardCall {
    /// Wraps a function that is called once, when the event of the call happens.
    pub fn new(call: impl FnOnce(&mut Shard, Nanos) + 'static) -> Self {
        Self(Box::new(call))
    }
}

impl std::fmt::Debug for ShardCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShardCall")
    }
}

type AdmissionHandler = dyn FnMut(u16, AdmissionRequest) -> Vec<(u16, ShardCall)>;

struct Desk(Box<AdmissionHandler>);

/// What a link carries from one end to the other.
#[derive(Debug)]
enum Piece {
    /// The request to open the connection, for this shard.
    Opening(u16, Box<ConnMeta>),
    Bytes(Vec<u8>),
}

#[derive(Debug)]
enum WorldEvent {
    /// This shard takes over a connection from another one.
    Accept(LinkId, u16, Box<ConnMeta>),
    /// The broker goes on reading from a link after a pause.
    Read(LinkId),
    BrokerNotices(LinkId),
    Post(u16, u16),
    Mail(u16, Vec<RemoteMessage>),
    Answer(LinkId, AuthAnswer),
    Call(u16, ShardCall),
    /// The commit of the store that began first ends.
    Commit,
    /// This shard is told of its store.
    News(u16, StoreNews),
}

/// The client's end of a link.
#[derive(Debug)]
struct Link {
    profile: LinkProfile,
    /// Bytes that the broker has written and the client has not read.
    outstanding: usize,
    /// Pieces that have arrived while the client does not read.
    unread: VecDeque<Vec<u8>>,
    reading: bool,
    ended_down: bool,
    /// Bytes that the client has read, until the test takes them.
    received: Vec<u8>,
}

/// A broker and its clients in virtual time.
pub struct World {
    network: VirtualNetwork<(), Piece, WorldEvent>,
    rng: Rng,
    /// Chooses the budget of each call of [`Shard::work`], apart from all other choices.
    slices: Rng,
    broker: SimulatedBroker,
    links: Vec<Link>,
    /// When the last mail between two shards arrives, by sender and receiver.
    last_mail: Vec<Nanos>,
    /// When the last news of the store for each shard arrives.
    last_news: Vec<Nanos>,
    posting: Vec<bool>,
    mail_delay: Nanos,
    one_at_a_time: bool,
    trace: Vec<Trace>,
    authenticator: Option<Authenticator>,
    desk: Option<Desk>,
    nonce: u128,
    config: Arc<Config>,
    store: Option<SimulatedStore>,
    crashes: u32,
}

/// The longest time for which work of a shard is put off in favour of other events.
const LONGEST_WAIT: Nanos = Nanos::from_millis(1);

impl World {
    /// Starts a broker with `shards` shards and no store at time 0.
    pub fn new(config: Config, shards: u16, seed: u64) -> Self {
        Self::start(config, Directory::new(shards), seed, None)
    }

    /// Starts a broker with a store, each commit of which takes up to `delay`.
    pub fn with_store(config: Config, shards: u16, seed: u64, delay: Nanos) -> Self {
        let directory = Directory::new(shards);
        let store = SimulatedStore::new(directory.shards(), Commits::Groups, [Nanos(0), delay]);
        Self::start(config, directory, seed, Some(store))
    }

    fn start(
        config: Config,
        directory: Arc<Directory>,
        seed: u64,
        mut store: Option<SimulatedStore>,
    ) -> Self {
        let (config, now) = (Arc::new(config), Nanos(0));
        let shards = usize::from(directory.shards());
        let broker = match &mut store {
            Some(store) => store.restore(directory, &config, now),
            None => SimulatedBroker::new(directory, &config, now),
        };
        Self {
            network: VirtualNetwork::new(now, Vec::new()),
            rng: Rng::new(seed),
            slices: Rng::new(!seed),
            broker,
            links: Vec::new(),
            last_mail: vec![now; shards * shards],
            last_news: vec![now; shards],
            posting: vec![false; shards * shards],
            mail_delay: Nanos(20_000),
            one_at_a_time: false,
            trace: Vec::new(),
            authenticator: None,
            desk: None,
            nonce: 0,
            config,
            store,
            crashes: 0,
        }
    }

    /// The broker's process ends without warning or its power fails, and another
    /// one starts after `down` with what the disk has. All connections break.
    ///
    /// # Panics
    /// Without a store; if what was confirmed of it cannot be read.
    pub fn crash(&mut self, down: Nanos) {
        let Some(store) = &mut self.store else {
            panic!("a broker without store crashes only once");
        };
        self.crashes += 1;
        store.crash(&mut self.rng);
        self.network.clear();
        self.network.advance(self.network.now() + down);
        self.posting.fill(false);
        self.last_news.fill(Nanos(0));
        for link in &mut self.links {
            link.unread.clear();
        }
        let directory = Directory::new(self.broker.directory().shards());
        self.broker = store.restore(directory, &self.config, self.network.now());
        for shard in 0..self.broker.shards.len() as u16 {
            self.settle(shard);
        }
    }

    /// The number of crashes so far.
    pub fn crashes(&self) -> u32 {
        self.crashes
    }

    /// Sets how the disk of the store fails from now on; `None` repairs it. Commits that fail are tried
    /// again. On a full disk they succeed until the store has used up the space that it had reserved.
    pub fn set_store_trouble(&mut self, trouble: Option<StoreTrouble>) {
        if let Some(store) = &mut self.store {
            let news = store.set_trouble(trouble);
            self.tell(news);
        }
    }

    /// Lets `calls` more calls of the disk succeed; with the next one the power fails and comes back.
    pub fn set_power_failure(&mut self, calls: u64) {
        if let Some(store) = &mut self.store {
            store.set_power(calls);
        }
    }

    /// Whether the failure of [`Self::set_power_failure`] is still to come.
    pub fn expects_power_failure(&self) -> bool {
        let store = self.store.as_ref();
        store.is_some_and(SimulatedStore::has_power_left)
    }

    /// The simulated time.
    pub fn now(&self) -> Nanos {
        self.network.now()
    }

    /// The directory that the shards of the broker share.
    pub fn directory(&self) -> &Arc<Directory> {
        self.broker.directory()
    }

    /// The shards of the broker, by their numbers.
    pub fn shards(&mut self) -> &mut [Shard] {
        &mut self.broker.shards
    }

    /// Sets the longest time until mail for another shard is collected, until it arrives then, and until
    /// connections that are handed over and news of the store arrive at a shard.
    pub fn set_mail_delay(&mut self, delay: Nanos) {
        self.mail_delay = delay;
    }

    /// Sets whether the broker is given one packet at a time, so that [`Trace::Consumed`] says which
    /// publications were refused.
    pub fn set_one_at_a_time(&mut self, on: bool) {
        self.one_at_a_time = on;
    }

    /// Sets the function that answers requests for admission, which brokers with [`Config::admission`] make. It
    /// returns calls of shards by their numbers.
    pub fn set_desk(
        &mut self,
        desk: impl FnMut(u16, AdmissionRequest) -> Vec<(u16, ShardCall)> + 'static,
    ) {
        self.desk = Some(Desk(Box::new(desk)));
    }

    /// Sets the function that answers authentication requests. Without one all clients are accepted.
    pub fn set_authenticator(&mut self, authenticator: Authenticator) {
        self.authenticator = Some(authenticator);
    }

    /// Calls a shard without a request for admission, after the answers to all earlier requests.
    pub fn call(&mut self, shard: u16, call: ShardCall) {
        let at = self.now() + DECISION;
        self.network.schedule(at, WorldEvent::Call(shard, call));
    }

    /// Opens a connection to a random shard.
    pub fn connect(&mut self, profile: LinkProfile) -> LinkId {
        let shard = self.rng.below(self.broker.shards.len() as u64) as u16;
        self.connect_to(shard, profile)
    }

    /// Opens a connection that `shard` accepts.
    pub fn connect_to(&mut self, shard: u16, profile: LinkProfile) -> LinkId {
        self.nonce += 1;
        let meta = ConnMeta {
            allow_anonymous: true,
            nonce: self.nonce.to_be_bytes(),
            ..ConnMeta::default()
        };
        self.connect_with(shard, profile, meta)
    }

    /// Opens a connection to `shard` with the facts about it that the shell of a broker states.
    pub fn connect_with(&mut self, shard: u16, profile: LinkProfile, meta: ConnMeta) -> LinkId {
        self.links.push(Link {
            profile,
            outstanding: 0,
            unread: VecDeque::new(),
            reading: true,
            ended_down: false,
            received: Vec::new(),
        });
        let id = LinkId(self.network.connect([(), ()], profile.latency));
        let late = self.late(id);
        let opening = Piece::Opening(shard, Box::new(meta));
        self.network.send(id.client(), opening, late);
        id
    }

    /// The client writes bytes.
    pub fn write(&mut self, id: LinkId, bytes: &[u8]) {
        if !self.network.is_silent(id.0) {
            self.send(id, id.client(), bytes);
        }
    }

    /// The client closes the connection after what it wrote.
    pub fn finish(&mut self, id: LinkId) {
        if !self.network.is_silent(id.0) {
            let late = self.late(id);
            self.network.finish(id.client(), late);
        }
    }

    /// Breaks the network of a link: nothing that is under way arrives, in neither direction. The broker
    /// notices after this time, or never.
    pub fn cut(&mut self, id: LinkId, noticed_after: Option<Nanos>) {
        if self.network.is_silent(id.0) {
            return;
        }
        self.network.silence(id.0);
        let link = &mut self.links[id.0];
        link.unread.clear();
        link.outstanding = link.outstanding.min(link.profile.window);
        if let Some(after) = noticed_after {
            let at = self.now() + after;
            self.network.schedule(at, WorldEvent::BrokerNotices(id));
        }
    }

    /// Sets whether the client reads what arrives.
    pub fn set_reading(&mut self, id: LinkId, reading: bool) {
        let link = &mut self.links[id.0];
        link.reading = reading;
        if reading {
            let mut freed = 0;
            while let Some(piece) = link.unread.pop_front() {
                freed += piece.len();
                link.received.extend_from_slice(&piece);
            }
            if freed > 0 {
                link.outstanding -= freed;
                self.flush(id);
                self.settle_link(id);
            }
        }
    }

    /// Moves the bytes that arrived at the client to the end of `bytes`.
    pub fn take_received(&mut self, id: LinkId, bytes: &mut Vec<u8>) {
        bytes.append(&mut self.links[id.0].received);
    }

    /// Whether the client has read everything the broker wrote before it
    /// closed the connection, or the network broke.
    pub fn is_ended(&self, id: LinkId) -> bool {
        let link = &self.links[id.0];
        self.network.is_silent(id.0) || (link.ended_down && link.unread.is_empty())
    }

    /// The shard that serves a link and the identity of the connection there, while a shard does.
    pub fn conn(&self, id: LinkId) -> Option<(u16, ConnId)> {
        let conn = self.broker.conn(id.broker())?;
        Some((conn.shard, conn.id))
    }

    /// Whether the broker has stopped reading from a link.
    pub fn is_paused(&self, id: LinkId) -> bool {
        self.broker.is_paused(id.broker())
    }

    /// When the broker last heard from the link's client; `None` before the first time since it started.
    pub fn last_heard(&self, id: LinkId) -> Option<Nanos> {
        self.broker.last_heard(id.broker())
    }

    /// Whether something arrived that the client has not taken.
    pub fn has_received(&self, id: LinkId) -> bool {
        !self.links[id.0].received.is_empty()
    }

    /// The longest time for which the broker has stopped reading from a link without a break.
    pub fn longest_pause(&self, id: LinkId) -> Nanos {
        self.broker.longest_pause(id.broker(), self.now())
    }

    /// Moves the trace since the last call to the end of `trace`.
    pub fn take_trace(&mut self, trace: &mut Vec<Trace>) {
        trace.append(&mut self.trace);
    }

    /// Lets the next event happen and returns true. If there is none until `until`, the time becomes that,
    /// and the result is false.
    pub fn step(&mut self, until: Nanos) -> bool {
        let timer = self.broker.next_timeout().unwrap_or(Nanos::MAX);
        let event = self.network.next_time().unwrap_or(Nanos::MAX);
        // Work that waits takes time: other things happen between its pieces. But no machine lets it wait
        // for seconds, in which timers would be late, too.
        let soon = until.min(self.now() + LONGEST_WAIT);
        let timer = match timer {
            Nanos(0) if event <= soon && self.slices.below(2) == 0 => Nanos::MAX,
            timer => timer,
        };
        let at = timer.min(event);
        if at > until {
            self.network.advance(until);
            return false;
        }
        if timer <= event {
            self.network.advance(at);
            let now = self.now();
            for shard in 0..self.broker.shards.len() as u16 {
                let due = self.broker.shard(shard).next_timeout();
                if due.is_some_and(|due| due <= now) {
                    let mut budget = Budget::new(1 + self.slices.below(MOST_UNITS));
                    self.broker.shard(shard).work(now, &mut budget);
                    self.settle(shard);
                }
            }
        } else if let Some(next) = self.network.next(at) {
            self.happen(next);
        }
        true
    }

    /// Whether no event is scheduled: no bytes, mail, commits or answers are under way.
    pub fn is_quiet(&self) -> bool {
        self.network.is_quiet()
    }

    /// Lets all events happen until a time.
    pub fn run_until(&mut self, until: Nanos) {
        while self.step(until) {}
    }

    fn happen(&mut self, what: NetworkEvent<Piece, WorldEvent>) {
        match what {
            NetworkEvent::Arrived(at, piece) if at == LinkId::from(at).broker() => match piece {
                Piece::Opening(shard, meta) => self.accept(at.into(), shard, *meta),
                Piece::Bytes(bytes) => {
                    self.broker.inbox(at).extend(bytes);
                    self.read(at.into());
                }
            },
            NetworkEvent::Arrived(at, Piece::Bytes(bytes)) => {
                let link = &mut self.links[at.connection];
                if link.reading {
                    link.outstanding -= bytes.len();
                    link.received.extend_from_slice(&bytes);
                    self.flush(at.into());
                    self.settle_link(at.into());
                } else {
                    link.unread.push_back(bytes);
                }
            }
            NetworkEvent::Ended(at) if at == LinkId::from(at).broker() => {
                self.broker.end(at);
                self.read(at.into());
            }
            NetworkEvent::Ended(at) => self.links[at.connection].ended_down = true,
            // Nobody opens connections but clients, and there are no edges.
            NetworkEvent::Arrived(_, Piece::Opening(..)) | NetworkEvent::Dial(_) => {}
            NetworkEvent::Other(event) => self.happen_inside(event),
        }
    }

    fn happen_inside(&mut self, what: WorldEvent) {
        let now = self.now();
        match what {
            WorldEvent::Accept(id, shard, meta) => self.accept(id, shard, *meta),
            WorldEvent::Read(id) => {
                if !self.network.is_silent(id.0) {
                    self.read(id);
                }
            }
            WorldEvent::BrokerNotices(id) => self.lose(id),
            WorldEvent::Post(from, to) => self.post(from, to),
            WorldEvent::Mail(to, messages) => {
                self.broker.shard(to).remote(messages.into_iter(), now);
                self.settle(to);
            }
            WorldEvent::Commit => self.commit(),
            WorldEvent::News(to, news) => {
                news.tell(self.broker.shard(to), now);
                self.settle(to);
            }
            WorldEvent::Call(shard, call) => {
                (call.0)(self.broker.shard(shard), now);
                self.settle(shard);
            }
            WorldEvent::Answer(id, answer) => {
                if let Some((shard, conn)) = self.conn(id) {
                    self.trace.push(Trace::Answered(id, answer.clone()));
                    self.broker.shard(shard).authenticated(conn, answer, now);
                    self.settle(shard);
                }
            }
        }
    }

    fn accept(&mut self, id: LinkId, shard: u16, meta: ConnMeta) {
        self.broker.accept(id.broker(), shard, meta, self.now());
        self.read(id);
    }

    /// Hands bytes that have arrived over a link to the broker, as far as it reads them.
    fn read(&mut self, id: LinkId) {
        let (at, single) = (id.broker(), self.one_at_a_time);
        while let Some(reading) = self.broker.read(at, single, self.now()) {
            if !reading.packets.is_empty() {
                self.trace.push(Trace::Consumed {
                    link: id,
                    packets: reading.packets,
                    closed: reading.is_closed,
                    refused: reading.refused,
                });
            }
            self.settle(reading.shard);
            if !reading.has_more {
                break;
            }
        }
        if self.broker.reads_end(at) {
            self.lose(id);
        }
    }

    fn lose(&mut self, id: LinkId) {
        if let Some((shard, _)) = self.conn(id) {
            self.trace.push(Trace::Lost(id));
            self.broker.lose(id.broker(), self.now());
            self.settle(shard);
        }
    }

    /// Does what the shard that serves a link asks for, if one serves it.
    fn settle_link(&mut self, id: LinkId) {
        if let Some((shard, _)) = self.conn(id) {
            self.settle(shard);
        }
    }

    /// Does what a shard asks for: writes its output, commits its operations, posts its mail.
    fn settle(&mut self, shard: u16) {
        loop {
            self.hear(shard);
            let now = self.now();
            let asking = self.broker.shard(shard);
            if let Some(store) = &mut self.store
                && let Some(operations) = asking.take_operations(now)
            {
                store.post(shard, operations);
                self.begin_commit();
            }
            // What need not be handed over may let answers go.
            let asking = self.broker.shard(shard);
            if !asking.has_dirty() && !asking.has_outputs() {
                break;
            }
        }
        for other in 0..self.broker.shards.len() as u16 {
            let pair = self.pair(shard, other);
            if other != shard && self.broker.shard(shard).has_outbox(other) && !self.posting[pair] {
                self.posting[pair] = true;
                let when = self.now() + self.any_mail_delay();
                self.network.schedule(when, WorldEvent::Post(shard, other));
            }
        }
    }

    /// Does what a shard asks for about connections, and no commits or mail.
    fn hear(&mut self, shard: u16) {
        loop {
            let effects = self.broker.effects(shard, self.now());
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                self.act(shard, effect);
            }
        }
    }

    /// Begins a commit of the operations that wait for one, unless another one is under way.
    fn begin_commit(&mut self) {
        if let Some(store) = &mut self.store
            && let Some(takes) = store.begin(&mut self.rng)
        {
            let at = self.now() + takes;
            self.network.schedule(at, WorldEvent::Commit);
        }
    }

    fn commit(&mut self) {
        let Some(store) = &mut self.store else {
            return;
        };
        match store.end(&mut self.rng) {
            CommitEnd::Told(news) => {
                self.tell(news);
                self.begin_commit();
            }
            CommitEnd::Power => self.crash(Nanos(0)),
        }
    }

    /// Schedules what shards are told of their store; each is told in this order.
    fn tell(&mut self, news: Vec<(u16, StoreNews)>) {
        for (shard, news) in news {
            let at = self.now() + self.any_mail_delay();
            let last = &mut self.last_news[usize::from(shard)];
            *last = at.max(*last);
            self.network.schedule(*last, WorldEvent::News(shard, news));
        }
    }

    fn act(&mut self, shard: u16, effect: ShardEffect) {
        let now = self.now();
        match effect {
            ShardEffect::Write(at) => self.flush(at.into()),
            ShardEffect::Close(at, tail) => {
                let id = at.into();
                self.trace.push(Trace::Closed(id));
                self.transmit(id, &tail);
                let late = self.late(id);
                self.network.finish(at, late);
            }
            ShardEffect::Resume(at) => self.network.schedule(now, WorldEvent::Read(at.into())),
            ShardEffect::HandOver(at, to, meta) => {
                let when = now + self.any_mail_delay();
                let event = WorldEvent::Accept(at.into(), to, meta);
                self.network.schedule(when, event);
            }
            ShardEffect::Other(output) => self.act_inside(shard, output),
        }
    }

    fn act_inside(&mut self, shard: u16, output: Output) {
        let now = self.now();
        match output {
            Output::Authenticate(request) => {
                let conn = ShardConn {
                    shard,
                    id: request.conn,
                };
                let Some(id) = self.broker.socket(conn).map(LinkId::from) else {
                    return;
                };
                let answer = match &mut self.authenticator {
                    Some(authenticator) => authenticator(&request),
                    None => AuthAnswer::Accept {
                        username: None,
                        data: None,
                        credential: None,
                    },
                };
                self.trace.push(Trace::Asked(id, request));
                let at = now + Nanos(self.rng.within(1..=1_000_000));
                self.network.schedule(at, WorldEvent::Answer(id, answer));
            }
            Output::Admission(request) => {
                let Some(desk) = &mut self.desk else {
                    return;
                };
                let calls = (desk.0)(shard, *request);
                // The same for all, for answers keep their order.
                let at = now + DECISION;
                for (shard, call) in calls {
                    self.network.schedule(at, WorldEvent::Call(shard, call));
                }
            }
            Output::Event(event) => self.trace.push(Trace::Event(event)),
            // These are effects of their own.
            Output::Close { .. } | Output::Resume(_) | Output::Handover { .. } => {}
        }
    }

    /// Writes output of the broker to a link, as far as the client's window allows.
    fn flush(&mut self, id: LinkId) {
        loop {
            let Link {
                profile,
                outstanding,
                ..
            } = &self.links[id.0];
            let room = profile.window.saturating_sub(*outstanding);
            if room == 0 {
                return;
            }
            let (is_cut, rng) = (profile.piece > 0, &mut self.rng);
            let now = self.network.now();
            let bytes = self.broker.take_output(id.broker(), now, |all| {
                let fits = all.min(room);
                // A partial write.
                match is_cut && rng.chance(20) {
                    true => rng.within(1..=fits as u64) as usize,
                    false => fits,
                }
            });
            if bytes.is_empty() {
                return;
            }
            self.transmit(id, &bytes);
        }
    }

    /// Sends bytes from the broker to the client of a link.
    fn transmit(&mut self, id: LinkId, bytes: &[u8]) {
        self.links[id.0].outstanding += bytes.len();
        self.send(id, id.broker(), bytes);
    }

    fn send(&mut self, id: LinkId, from: Socket, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = self.piece(id, rest.len());
            let late = self.late(id);
            let piece = Piece::Bytes(rest[..n].to_vec());
            self.network.send(from, piece, late);
            rest = &rest[n..];
        }
    }

    fn post(&mut self, from: u16, to: u16) {
        let pair = self.pair(from, to);
        if self.rng.chance(10) {
            // The other shard's mailbox is full for now.
            let when = self.now() + Nanos(self.rng.within(1..=self.mail_delay.0.max(1)));
            self.network.schedule(when, WorldEvent::Post(from, to));
            return;
        }
        self.posting[pair] = false;
        let mut messages = Vec::new();
        self.broker.shard(from).take_outbox(to, &mut messages);
        let at = (self.now() + self.any_mail_delay()).max(self.last_mail[pair]);
        self.last_mail[pair] = at;
        self.network.schedule(at, WorldEvent::Mail(to, messages));
        self.settle(from);
    }

    fn any_mail_delay(&mut self) -> Nanos {
        Nanos(self.rng.below(self.mail_delay.0 + 1))
    }

    fn pair(&self, from: u16, to: u16) -> usize {
        usize::from(from) * self.broker.shards.len() + usize::from(to)
    }

    fn piece(&mut self, id: LinkId, len: usize) -> usize {
        match self.links[id.0].profile.piece {
            0 => len,
            // Mostly large pieces, now and then single bytes.
            _ if self.rng.chance(80) => len,
            longest => (self.rng.within(1..=longest as u64) as usize).min(len),
        }
    }

    /// Draws the jitter of what is sent over a link now.
    fn late(&mut self, id: LinkId) -> Nanos {
        let profile = self.links[id.0].profile;
        Nanos(self.rng.below(profile.jitter.0 + 1))
    }
}
