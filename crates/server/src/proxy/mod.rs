//! `punctual manager`: sockets around the proxy, and the service that decides.
//!
//! One thread serves all connections with one epoll. A side is read only while
//! the other keeps up, so a slow receiver makes its sender slow and nothing
//! grows. Decisions come from the service's thread through a mailbox; what waits
//! for them are single acknowledgements, never this thread.

mod conn;
mod mailbox;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use punctual_broker::{AdmissionRequest, ConnId, Nanos};
use punctual_manager::proxy::Proxy;
use punctual_net::layer::LayerConfig;
use punctual_net::{AdmissionDesk, Clock};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::conn::{Conn, Progress};
use self::mailbox::{Delivery, Mailbox};
use crate::admission::{AdmissionService, ServiceBuilder};
use crate::config::{Config, Limit};
use crate::error::Error;
use crate::realtime::{self, Precedence};
use crate::serve;

const WAKER: Token = Token(0);
const FIRST_LISTENER: usize = 1;
/// Bytes that are read at once.
const READ: usize = 64 * 1024;
/// How long what is left for one side is still sent after the other has gone.
const LINGER: Nanos = Nanos::from_secs(10);
/// From when the network is overdue to when its being late has been told.
const GRACE: Nanos = Nanos::from_millis(100);
/// Between two attempts to accept, should there be no descriptors left.
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);

/// What `punctual manager` is told beside the configuration.
pub struct Options {
    /// Host and port of the broker.
    pub upstream: String,
    /// Whether the broker is told the clients' addresses by PROXY headers.
    pub proxy_protocol: bool,
}

/// Runs until told to stop.
pub fn run(config: &Config, options: &Options) -> Result<(), Error> {
    let upstream = resolve(&options.upstream)?;
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
    let (mut listeners, mut transports) = (Vec::new(), Vec::new());
    for listener in &config.listeners {
        let address = &listener.address;
        if address.transport.is_over_udp() {
            return Err(format!(
                "listener {address}: the proxy serves TCP only; use tcp://, tls://, ws:// or wss://"
            )
            .into());
        }
        let policy = serve::policy(listener, config)?;
        let resolved = address
            .resolve()
            .map_err(|error| format!("{address}: {error}; write an IP address or another name"))?;
        for at in resolved {
            let mut socket = TcpListener::bind(at)
                .map_err(|error| format!("{address}: {at} cannot be listened on: {error}"))?;
            let token = Token(FIRST_LISTENER + listeners.len());
            poll.registry()
                .register(&mut socket, token, Interest::READABLE)?;
            tracing::info!(
                "listening on {}://{}, for the broker {}",
                address.transport,
                socket.local_addr()?,
                options.upstream
            );
            transports.push(address.transport);
            listeners.push(Listener {
                socket,
                layer: policy.layer.clone(),
                refuse: policy.refuse,
            });
        }
    }
    let precedence = config.deciding_priority().map(Precedence::Fifo);
    let service = ServiceBuilder::open(config, transports.into_iter(), precedence)?
        .ok_or("admission.enabled is false: the manager would have nothing to do")?;
    let sender = service.sender();
    let mailbox = Mailbox::new(waker.clone());
    let (service, worker) = service.start(mailbox.sink())?;

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let stopper = mailbox.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for _ in signals.forever() {
                stopper.post(Delivery::Stop);
            }
        })?;
    let first = FIRST_LISTENER + listeners.len();
    let shell = Shell {
        poll,
        proxy: Proxy::new(proxy_config(config, &listeners)?),
        listeners,
        upstream,
        proxy_protocol: options.proxy_protocol,
        max_connections: match config.limits.max_connections {
            Limit::At(most) => most as usize,
            Limit::Unlimited => usize::MAX,
        },
        first,
        conns: HashMap::new(),
        ends: BTreeSet::new(),
        accept_again: None,
        clock: Clock::new(),
        sender,
        service,
        mailbox,
    };
    let realtime = config.realtime();
    let _awake = realtime::stay_awake(realtime.and_then(|it| it.cpu_latency));
    let precedence = realtime.map(|realtime| Precedence::Fifo(realtime.priority));
    realtime::put_first(precedence, "the thread that serves clients");
    shell.run()?;
    tracing::info!("stopped");
    // The service stops when nobody is left who could ask.
    let _ = worker.join();
    Ok(())
}

/// How long the proxy waits. If the network is asked, the answer that it is late
/// has a reason, which the proxy does not know.
fn decision_timeout(config: &Config) -> Nanos {
    let grace = match config.admission.srt {
        Some(_) => GRACE,
        None => Nanos(0),
    };
    crate::config::nanos(config.admission.decision_timeout) + grace
}

fn proxy_config(
    config: &Config,
    listeners: &[Listener],
) -> Result<punctual_manager::proxy::Config, Error> {
    let broker = config.broker();
    let admission = broker
        .admission
        .ok_or("admission.enabled is false: the manager would have nothing to do")?;
    let access = serve::listeners::load(config)?.access;
    Ok(punctual_manager::proxy::Config {
        rules: broker.rules,
        access,
        refuse: admission.refuse,
        refuse_at: listeners.iter().map(|listener| listener.refuse).collect(),
        policing: admission.policing,
        max_flows: admission.max_flows_per_session,
        conditions: admission.conditions,
        decision_timeout: decision_timeout(config),
        max_sessions: broker.limits.max_sessions,
        max_session: Nanos::from_secs(broker.limits.max_session_expiry.into()),
    })
}

fn resolve(upstream: &str) -> Result<Vec<SocketAddr>, Error> {
    let remedy = "write HOST:PORT of the broker, such as 127.0.0.1:1884";
    let wrong = |why: String| format!("--upstream {upstream:?}: {why}; {remedy}");
    let addresses: Vec<_> = upstream
        .to_socket_addrs()
        .map_err(|error| wrong(error.to_string()))?
        .collect();
    match addresses.is_empty() {
        true => Err(wrong("the name has no address".into()).into()),
        false => Ok(addresses),
    }
}

struct Listener {
    socket: TcpListener,
    layer: LayerConfig,
    /// Whether its clients' messages are refused if what they ask for is
    /// rejected.
    refuse: Option<bool>,
}

struct Shell {
    poll: Poll,
    proxy: Proxy,
    listeners: Vec<Listener>,
    upstream: Vec<SocketAddr>,
    proxy_protocol: bool,
    max_connections: usize,
    /// Tokens below are not those of connections.
    first: usize,
    conns: HashMap<ConnId, Conn>,
    /// Connections of which one side has gone, and until when they are kept.
    ends: BTreeSet<(Nanos, u64)>,
    accept_again: Option<Nanos>,
    clock: Clock,
    sender: Arc<dyn AdmissionDesk>,
    service: AdmissionService,
    mailbox: Mailbox,
}

impl Shell {
    fn run(mut self) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; READ];
        let mut again: Vec<ConnId> = Vec::new();
        loop {
            let now = self.clock.now();
            let deadlines = [
                self.proxy.next_tick(),
                self.ends.first().map(|(at, _)| *at),
                self.accept_again,
            ];
            let timeout = match again.is_empty() {
                false => Some(Duration::ZERO),
                // Rounded up, so that it is due when the thread wakes.
                true => (deadlines.into_iter().flatten().min())
                    .map(|at| Duration::from_nanos((at - now).0).max(Duration::from_micros(1))),
            };
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            let now = self.clock.now();
            let mut todo = std::mem::take(&mut again);
            for event in &events {
                match event.token() {
                    WAKER => {
                        for delivery in self.mailbox.take() {
                            if let Delivery::Stop = delivery {
                                return Ok(());
                            }
                            self.deliver(delivery, now);
                        }
                    }
                    Token(at) if at < self.first => self.accept(at - FIRST_LISTENER, now),
                    Token(at) => {
                        let at = (at - self.first) as u64;
                        let id = ConnId::from_number(at / 2);
                        if let Some(conn) = self.conns.get_mut(&id) {
                            conn.is_ready(at.is_multiple_of(2), event);
                            todo.push(id);
                        }
                    }
                }
            }
            if self.accept_again.is_some_and(|at| at <= now) {
                self.accept_again = None;
                for at in 0..self.listeners.len() {
                    self.accept(at, now);
                }
            }
            self.proxy.tick(now);
            while let Some((at, conn)) = self.ends.first().copied() {
                if at > now {
                    break;
                }
                self.close(ConnId::from_number(conn), now);
            }
            todo.extend(self.proxy.take_dirty());
            todo.sort_unstable_by_key(|id| id.number());
            todo.dedup();
            for id in todo {
                self.serve(id, &mut buffer, now, &mut again);
            }
            // What a decision or the turn of another one has caused.
            again.extend(self.proxy.take_dirty());
            self.ask();
        }
    }

    fn ask(&mut self) {
        for request in self.proxy.take_asks() {
            let AdmissionRequest { asker, ask } = request;
            self.sender.ask(0, AdmissionRequest { asker, ask });
        }
    }

    fn accept(&mut self, at: usize, now: Nanos) {
        loop {
            let accepted = self.listeners[at].socket.accept();
            let (client, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    tracing::warn!("no client can be accepted: {error}");
                    self.accept_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            if self.conns.len() >= self.max_connections {
                tracing::warn!(
                    "{address} is turned away: there are {} connections, as many as there may be \
                     (limits.max_connections)",
                    self.conns.len()
                );
                continue;
            }
            if let Err(error) = self.begin(client, address, at) {
                tracing::warn!("{address}: {error}");
            }
        }
    }

    fn begin(&mut self, client: TcpStream, address: SocketAddr, at: usize) -> io::Result<()> {
        let layer = self.listeners[at].layer.accept();
        let layer = layer.map_err(io::Error::other)?;
        let upstream = self.connect()?;
        let to = client.local_addr()?;
        let listener = u16::try_from(at).unwrap_or(u16::MAX);
        let id = self.proxy.open(Some(address), Some(to), listener);
        let mut conn = Conn::new(client, upstream, layer);
        let tokens = self.first + 2 * id.number() as usize;
        if let Err(error) = conn.register(self.poll.registry(), tokens) {
            self.proxy.closed(id, self.clock.now());
            return Err(error);
        }
        if self.proxy_protocol {
            conn.introduce(address, to);
        }
        self.conns.insert(id, conn);
        Ok(())
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the broker has no address");
        for address in &self.upstream {
            match TcpStream::connect(*address) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(io::Error::other(format!(
            "the broker cannot be reached: {last}"
        )))
    }

    fn serve(&mut self, id: ConnId, buffer: &mut [u8], now: Nanos, again: &mut Vec<ConnId>) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        match conn.serve(id, &mut self.proxy, buffer, now) {
            Progress::Waits => {}
            Progress::Again => again.push(id),
            Progress::Ending => {
                if conn.until.is_none() {
                    let until = now + LINGER;
                    conn.until = Some(until);
                    self.ends.insert((until, id.number()));
                }
            }
            Progress::Ended(why) => {
                if let Some(why) = why {
                    tracing::debug!("{}: {why}", conn.name());
                }
                self.close(id, now);
            }
        }
    }

    fn close(&mut self, id: ConnId, now: Nanos) {
        if let Some(mut conn) = self.conns.remove(&id) {
            if let Some(until) = conn.until {
                self.ends.remove(&(until, id.number()));
            }
            conn.deregister(self.poll.registry());
        }
        self.proxy.closed(id, now);
    }

    fn deliver(&mut self, delivery: Delivery, now: Nanos) {
        mailbox::deliver(delivery, &mut self.proxy, &self.service, now);
    }
}
