//! Threads and sockets of a broker, and the handle that manages them.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mio::net::TcpListener;
use mio::{Poll, Waker};
use punctual_broker::lock::write;
use punctual_broker::{
    AccessControl, Class, Config, ConnMeta, Directory, Event, Federation, LinkLimits, Nanos,
    RestoredSession, Restorer, Shard,
};

use crate::certificates::Certificates;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::logins::{self, Authenticators};
use crate::mailbox::{Mail, Mailbox, WAKE};
use crate::marking::{Mark, Marking};
use crate::outgoing::Outgoing;
use crate::policy::{AcceptPolicy, HandshakeLimits, ListenerPolicy, Policies};
use crate::quic::{Opened as OpenedQuic, Quic, QuicOptions, UnderWay};
use crate::realtime::{self, Awake, RealtimeOptions, RealtimeStatus, Refused, ShardStatus};
use crate::rest::Rest;
use crate::services::{AdmissionDesk, Authenticator, Recover, StoreNews, StoreOptions};
use crate::shared::Shared;
use crate::tcp::acceptor::{Acceptor, Descriptors, Nonces, fixed_address, register};
use crate::tcp::handshake::{self, HandshakeContext};
use crate::tcp::{Connection, Tcp, TcpMail, TcpOptions};
use crate::transport::{Connections, Context};
use crate::udp::{Credit, Opened as OpenedUdp, Udp, UdpOptions};
use crate::worker::{State, Transports, Worker};

/// Events that may wait for the log; further ones are counted as lost.
const EVENTS: usize = 8192;
/// Connections the kernel holds ready for a listener.
const BACKLOG: i32 = 4096;

/// A listener to open.
#[derive(Debug, Clone)]
pub struct ListenerOptions {
    /// Address to bind; port 0 takes any free one.
    pub address: SocketAddr,
    /// How its connections are treated.
    pub policy: ListenerPolicy,
    /// MQTT over UDP; `None` for TCP and what goes over it.
    pub udp: Option<UdpOptions>,
    /// MQTT over QUIC, with the TLS of the policy; `None` for all others.
    pub quic: Option<QuicOptions>,
}

/// What a server is started with.
pub struct ServerOptions {
    /// Listeners; at least one.
    pub listeners: Vec<ListenerOptions>,
    /// Settings of the broker.
    pub broker: Config,
    /// Shard threads, 1..=256.
    pub shards: u16,
    /// What the shard threads get to be predictable; `None`: they are ordinary
    /// threads.
    pub realtime: Option<RealtimeOptions>,
    /// Options of clients' sockets.
    pub tcp: TcpOptions,
    /// What the packets of each class carry.
    pub marking: Marking,
    /// Bounds on accepting.
    pub accept: AcceptPolicy,
    /// Bytes of incomplete packets of all connections.
    pub max_receive_bytes: usize,
    /// How long a shard's thread does other work before it looks whether clients that send
    /// something urgent have done so.
    pub slice: Nanos,
    /// How long shutting down may take.
    pub shutdown_timeout: Nanos,
    /// Threads that check passwords.
    pub authentication_threads: usize,
    /// Checks passwords, if `broker.check_passwords`.
    pub authenticator: Option<Arc<dyn Authenticator>>,
    /// Rights of clients.
    pub access: Option<Arc<dyn AccessControl>>,
    /// Who admits flows; needed where the broker's settings have admission.
    pub admission: Option<Arc<dyn AdmissionDesk>>,
    /// What survives the process; `None`: nothing.
    pub store: Option<StoreOptions>,
    /// What joins the broker to others, if anything does.
    pub federation: Option<Arc<dyn Federation>>,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}; {remedy}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// What is stored cannot be read.
    #[error("{0}")]
    Store(String),
    /// The system refused a thread, or epoll.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// A running server.
pub struct Server {
    directory: Arc<Directory>,
    mailboxes: Arc<[Mailbox]>,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    connected: Arc<[AtomicU64]>,
    clock: Clock,
    addresses: Vec<SocketAddr>,
    acceptor_waker: Waker,
    acceptor: Option<JoinHandle<()>>,
    handshakes: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    shutdown_timeout: Duration,
    authenticator: Authenticators,
    events: Option<Receiver<Event>>,
    realtime: Option<RealtimeStatus>,
    /// As long as the server runs.
    _awake: Option<Awake>,
}

impl Server {
    /// Opens the listeners and starts the threads.
    ///
    /// # Errors
    /// See [`StartError`].
    #[expect(
        clippy::too_many_lines,
        reason = "each part is made of those that were started before it"
    )]
    pub fn start(options: ServerOptions) -> Result<Self, StartError> {
        let descriptors = Descriptors::new(realtime::raise_file_limit());
        let (marking, less) = options.marking.allowed();
        if let Some(why) = less {
            tracing::warn!("{why}");
        }
        let Opened {
            mut listeners,
            mut datagrams,
            quic,
            addresses,
        } = Opened::open(&options, &marking)?;
        let shards = options.shards.clamp(1, 256);
        let clock = Clock::new();
        let directory = Directory::new(shards);
        directory.set_access_control(options.access);
        let policies = options.listeners.iter().map(|listener| &listener.policy);
        directory.set_admits(policies.map(|policy| policy.admits).collect());
        if let Some(federation) = options.federation {
            directory.set_federation(federation);
        }
        if let Some(store) = &options.store {
            directory.add_sys_source(store.sys.clone());
        }
        let counters = Arc::new(Counters {
            per_listener: listeners.iter().map(|_| AtomicUsize::new(0)).collect(),
            ..Counters::default()
        });
        let connected: Arc<[AtomicU64]> = (0..shards).map(|_| AtomicU64::new(0)).collect();
        let mut polls = Vec::new();
        let mut mailboxes = Vec::new();
        for _ in 0..shards {
            let poll = Poll::new()?;
            mailboxes.push(Mailbox::new(Waker::new(poll.registry(), WAKE)?));
            polls.push(poll);
        }
        let mailboxes: Arc<[Mailbox]> = mailboxes.into();
        let config = Arc::new(options.broker);
        let (event_sender, events) = sync_channel(EVENTS);
        let authenticator: Authenticators = Arc::new(RwLock::new(options.authenticator));
        let threads = options.authentication_threads.max(1);
        let logins = logins::start(threads, &authenticator, &mailboxes, clock)?;
        let prepared = options.realtime.as_ref().map(prepare_process);
        let (mut realtime, awake) =
            prepared.map_or((None, None), |(status, awake)| (Some(status), awake));
        let busy_poll = options.realtime.map_or(Duration::ZERO, |it| it.busy_poll);

        let shared = Arc::new(Shared {
            policies: Policies::new(options.listeners.into_iter().map(|it| it.policy)),
            accept: RwLock::new(options.accept),
            handshakes: HandshakeLimits::new(&config),
            certificates: Certificates::default(),
            stop: false.into(),
        });
        let credit = Credit::new(shards);
        let under_way = UnderWay::new(shards);

        let mut states: Vec<Shard> = (0..shards)
            .map(|index| Shard::new(directory.clone(), index, config.clone(), clock.now()))
            .collect();
        let store = match options.store {
            Some(store) => {
                restore(&mut states, &directory, &clock, store.recover)
                    .map_err(StartError::Store)?;
                Some(store.desk)
            }
            None => None,
        };
        let (prepared, preparations) = sync_channel(usize::from(shards));
        let mut workers = Vec::new();
        for (index, (poll, shard)) in polls.into_iter().zip(states).enumerate() {
            let index = index as u16;
            let transports = Transports {
                // The first shard takes all of them.
                udp: Udp::new(
                    std::mem::take(&mut datagrams),
                    poll.registry(),
                    credit.clone(),
                    counters.udp.clone(),
                    clock.now(),
                )?,
                quic: Quic::new(
                    &quic,
                    index,
                    shards,
                    poll.registry(),
                    under_way.clone(),
                    counters.quic.clone(),
                )?,
                tcp: Tcp::new(options.tcp, marking, shard.promises()),
            };
            let cx = Context {
                index,
                promises: shard.promises(),
                shard,
                connections: Connections::default(),
                registry: poll.registry().try_clone()?,
                clock,
                mailboxes: mailboxes.clone(),
                counters: counters.clone(),
                shared: shared.clone(),
                unread: 0,
                max_unread: options.max_receive_bytes / usize::from(shards),
                slice: options.slice,
                asked: Nanos(0),
                asked_before: Nanos(0),
                urgent_until: Nanos(0),
            };
            let rest = options.realtime.map(|_| Rest::new(clock.now()));
            let worker = Worker {
                cx,
                transports,
                poll,
                connected: connected.clone(),
                directory: directory.clone(),
                logins: logins.clone(),
                events: event_sender.clone(),
                admission: options.admission.clone(),
                store: store.clone(),
                shutdown_timeout: options.shutdown_timeout,
                busy_poll: Nanos(u64::try_from(busy_poll.as_nanos()).unwrap_or(u64::MAX)),
                state: State::new(rest),
            };
            workers.push(spawn(worker, options.realtime, prepared.clone())?);
        }
        drop(prepared);
        if let Some(status) = &mut realtime {
            gather(status, shards, preparations);
        }

        let poll = Poll::new()?;
        let acceptor_waker = Waker::new(poll.registry(), WAKE)?;
        register(&poll, &mut listeners)?;
        let around = HandshakeContext {
            shared: shared.clone(),
            mailboxes: mailboxes.clone(),
            counters: counters.clone(),
            events: event_sender,
            clock,
        };
        let mut receptions = Vec::new();
        let mut handshakes = Vec::new();
        for number in 0..usize::from(shards).div_ceil(2) {
            let (reception, thread) = handshake::start(number, around.clone())?;
            receptions.push(reception);
            handshakes.push(thread);
        }
        drop(around);
        let locals = listeners
            .iter()
            .map(|it| fixed_address(it.as_ref()))
            .collect();
        let acceptor = Acceptor {
            poll,
            listeners,
            shared: shared.clone(),
            mailboxes: mailboxes.clone(),
            receptions,
            counters: counters.clone(),
            clock,
            locals,
            nonces: Nonces::default(),
            posted: Vec::new(),
            descriptors,
            held: None,
        };
        let acceptor = thread::Builder::new()
            .name("acceptor".into())
            .spawn(move || acceptor.run())?;
        Ok(Self {
            directory,
            mailboxes,
            shared,
            counters,
            connected,
            clock,
            addresses,
            acceptor_waker,
            acceptor: Some(acceptor),
            handshakes,
            workers,
            shutdown_timeout: Duration::from_nanos(options.shutdown_timeout.0),
            authenticator,
            events: Some(events),
            realtime,
            _awake: awake,
        })
    }

    /// The addresses that were bound, in the order of the listeners.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What the shards share.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Counters of the shell.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The clock of the broker's times.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// What the shard threads obtained, if real time was asked for.
    pub fn realtime(&self) -> Option<&RealtimeStatus> {
        self.realtime.as_ref()
    }

    /// Clients connected now.
    pub fn clients_connected(&self) -> u64 {
        self.connected
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// The stream of events, once; it ends when the server does.
    pub fn take_events(&mut self) -> Option<Receiver<Event>> {
        self.events.take()
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle {
        Handle {
            mailboxes: self.mailboxes.clone(),
            counters: self.counters.clone(),
        }
    }

    /// Applies new settings of the broker.
    pub fn set_config(&self, config: &Arc<Config>) {
        self.shared.handshakes.set(config);
        for mailbox in self.mailboxes.iter() {
            let config = config.clone();
            mailbox.post(Mail::Call(Box::new(move |shard, _| {
                shard.set_config(config);
            })));
        }
    }

    /// Replaces how passwords are checked.
    pub fn set_authenticator(&self, authenticator: Option<Arc<dyn Authenticator>>) {
        *write(&self.authenticator) = authenticator;
    }

    /// Replaces the rights of clients, connected ones included, and disconnects those that have
    /// proven who they are by what was revoked.
    pub fn set_access(&self, access: Option<Arc<dyn AccessControl>>) {
        self.directory.set_access_control(access);
        for mailbox in self.mailboxes.iter() {
            mailbox.post(Mail::Call(Box::new(|shard, _| shard.access_changed())));
        }
    }

    /// Replaces how new connections of the listeners are treated; in the order
    /// of [`Self::addresses`], as many. Certificates that are not let in any more are revoked, and
    /// so is what clients have that prove nothing where fewer of them are let in. That, and whether
    /// brokers and clients are let in, takes effect for those that are connected with
    /// [`Self::set_access`].
    pub fn set_policies(&self, policies: Vec<ListenerPolicy>, accept: AcceptPolicy) {
        self.directory
            .set_admits(policies.iter().map(|policy| policy.admits).collect());
        self.shared.policies.replace(policies);
        *write(&self.shared.accept) = accept;
        self.shared.certificates.check(&self.shared.policies);
    }

    /// Stops accepting, tells clients, flushes, and waits for the threads.
    pub fn shut_down(mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.acceptor_waker.wake();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // The acceptor has woken them as it ended.
        for thread in self.handshakes.drain(..) {
            let _ = thread.join();
        }
        let (ending, ended) = channel();
        for mailbox in self.mailboxes.iter() {
            mailbox.post(Mail::ShutDown(ending.clone()));
        }
        drop(ending);
        // A shard may have the last words to clients of another one.
        let _ = ended.recv_timeout(self.shutdown_timeout);
        for mailbox in self.mailboxes.iter() {
            mailbox.post(Mail::Return);
        }
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// Asks the shards things.
#[derive(Clone)]
pub struct Handle {
    mailboxes: Arc<[Mailbox]>,
    counters: Arc<Counters>,
}

impl Handle {
    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.mailboxes.len()
    }

    /// Tells a shard what has become of operations that it handed to the store;
    /// commits in their order.
    pub fn store(&self, shard: u16, news: StoreNews) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(shard)) {
            mailbox.post(Mail::Stored(news));
        }
    }

    /// Hands over a connection that was opened to another broker, after its CONNACK;
    /// `unread` are bytes that came behind. It counts with the first listener.
    ///
    /// # Errors
    /// What the system says about the socket.
    pub fn link(
        &self,
        connection: Outgoing,
        mut unread: Vec<u8>,
        peer: &str,
        limits: LinkLimits,
    ) -> io::Result<()> {
        let (stream, layer) = connection.into_parts(&mut unread);
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let meta = ConnMeta {
            peer: stream.peer_addr().ok(),
            local: stream.local_addr().ok(),
            listener: 0,
            allow_anonymous: true,
            identity: None,
            credential: None,
            unproven: None,
            nonce: [0; 16],
            refuse: None,
        };
        let connection = Connection::new(stream, Box::new(meta), layer).with_unread(unread);
        self.counters.opened(0);
        let mail = TcpMail::Link(Box::new(connection), peer.into(), limits);
        self.mailboxes[0].post(mail.into());
        Ok(())
    }

    /// Runs `call` on a shard's thread. It has to be short: messages wait.
    pub fn call(&self, shard: usize, call: impl FnOnce(&mut Shard, Nanos) + Send + 'static) {
        if let Some(mailbox) = self.mailboxes.get(shard) {
            mailbox.post(Mail::Call(Box::new(call)));
        }
    }
}

/// The sockets of the listeners.
#[derive(Default)]
struct Opened {
    /// By number of the listener; `None` for those that are not TCP.
    listeners: Vec<Option<TcpListener>>,
    datagrams: Vec<OpenedUdp>,
    quic: Vec<OpenedQuic>,
    /// By number of the listener.
    addresses: Vec<SocketAddr>,
}

impl Opened {
    fn open(options: &ServerOptions, marking: &Marking) -> Result<Self, StartError> {
        let mut this = Self::default();
        for (index, listener) in options.listeners.iter().enumerate() {
            let fail = |source: io::Error| StartError::Listen {
                address: listener.address,
                remedy: match source.kind() {
                    io::ErrorKind::AddrInUse => {
                        "another program listens there: stop it or choose another port"
                    }
                    io::ErrorKind::PermissionDenied => {
                        "ports below 1024 need the capability CAP_NET_BIND_SERVICE"
                    }
                    io::ErrorKind::AddrNotAvailable => "the address is not one of this machine",
                    _ => "choose another address",
                },
                source,
            };
            if let Some(udp) = &listener.udp {
                let max = listener.policy.max_connections;
                let opened = OpenedUdp::open(listener.address, udp, index as u16, max, marking);
                let opened = opened.map_err(fail)?;
                this.addresses.push(opened.local_addr()?);
                this.datagrams.push(opened);
                this.listeners.push(None);
            } else if let Some(quic) = &listener.quic {
                let (policy, index) = (&listener.policy, index as u16);
                let opened = OpenedQuic::open(listener.address, quic, policy, index, marking);
                let opened = opened.map_err(fail)?;
                this.addresses.push(opened.local_addr()?);
                this.quic.push(opened);
                this.listeners.push(None);
            } else {
                let socket = listen(listener.address, marking, &options.tcp).map_err(fail)?;
                this.addresses.push(socket.local_addr()?);
                this.listeners.push(Some(socket));
            }
        }
        Ok(this)
    }
}

/// Has the process be predictable: its memory stays, and its processors wake within the time that
/// is wanted, as far as the system allows it. What was obtained, and what has to live for it.
fn prepare_process(options: &RealtimeOptions) -> (RealtimeStatus, Option<Awake>) {
    let (mut status, mut awake) = (RealtimeStatus::default(), None);
    match realtime::prepare_process() {
        Ok(()) => status.memory_locked = true,
        Err(refused) => tracing::warn!("{refused}"),
    }
    if let Some(most) = options.cpu_latency {
        match realtime::keep_awake(most) {
            Ok(kept) => (awake, status.cpu_latency) = (Some(kept), Some(most)),
            Err(refused) => tracing::warn!("{refused}"),
        }
    }
    (status, awake)
}

/// What a shard's thread has obtained.
type Prepared = (usize, (ShardStatus, Vec<Refused>));

/// Starts a shard's thread, which first says what it has obtained.
fn spawn(
    worker: Worker,
    realtime: Option<RealtimeOptions>,
    prepared: SyncSender<Prepared>,
) -> io::Result<JoinHandle<()>> {
    let index = usize::from(worker.cx.index);
    let thread = thread::Builder::new().name(format!("shard-{index}"));
    thread.spawn(move || {
        if let Some(realtime) = realtime {
            // There is room for every shard, and the one who
            // asks waits for all of them.
            let _ = prepared.send((index, realtime::prepare_thread(&realtime, index)));
        }
        drop(prepared);
        worker.run();
    })
}

/// Waits for what the threads of so many shards have obtained, and says what they have not.
fn gather(status: &mut RealtimeStatus, shards: u16, prepared: Receiver<Prepared>) {
    let threads = &mut status.shards;
    threads.resize_with(usize::from(shards), Default::default);
    let mut said = Vec::new();
    for (index, (shard, refused)) in prepared {
        threads[index] = shard;
        said.extend(refused.iter().map(ToString::to_string));
    }
    said.sort();
    said.dedup();
    said.iter().for_each(|refused| tracing::warn!("{refused}"));
    tracing::info!("real time: {status}");
}

/// Makes sessions and retained messages what they were.
fn restore(
    shards: &mut [Shard],
    directory: &Arc<Directory>,
    clock: &Clock,
    recover: Recover,
) -> Result<(), String> {
    let now = clock.now();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    let wall = wall.map_or(0, |wall| u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX));
    let wall = wall.saturating_sub(now.0);
    for shard in shards.iter_mut() {
        shard.attach_store(wall);
    }
    let mut restorer = Restorer::new(directory.clone(), wall);
    let mut place = |session: RestoredSession| {
        let home = session.home(directory.shards());
        if !shards[usize::from(home)].restore(session, now) {
            tracing::error!("the store has two sessions of one client: one is left out");
        }
    };
    let full = recover(&mut |op| restorer.take(op).into_iter().for_each(&mut place))?;
    restorer.finish().into_iter().for_each(&mut place);
    // Before anybody can publish.
    for shard in shards {
        shard.store_full(full, now);
    }
    Ok(())
}

/// Opens a listener. Its answers to connections (SYN/ACK), and the connections
/// until they are sent something urgent, have the mark of class `Normal`.
fn listen(address: SocketAddr, marking: &Marking, tcp: &TcpOptions) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // The unspecified address stands for IPv4 too, whatever the system's
        // default is.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    if marking.mark(Class::Normal) != Mark::NONE {
        marking.apply(&socket, Class::Normal)?;
    }
    tcp.listening(&socket);
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}
