//! Sockets: a listener, a task for each connection, and the connected switches.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_controller::{Event, SwitchProtocol, port_state};
use punctual_openflow::{Envelope, Message, PortDesc, Xid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::session::{Session, SessionEvent};

/// Connections at the same time, handshakes included; further ones wait.
const MAX_CONNECTIONS: usize = 1024;
/// Bytes that wait to be sent to a switch, above which it is disconnected.
const MAX_UNSENT: usize = 16 << 20;
/// Bound on waiting events, above which no connection is read.
const MAX_EVENTS: usize = 4096;
/// Bytes that are read at once.
const READ: usize = 64 << 10;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Where switches connect.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// The address.
    pub address: SocketAddr,
    /// With TLS, where switches need a certificate, too.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Grows with every start of a controller: switches obey the newest.
    pub generation: u64,
    /// Silence after which a switch is asked for a sign of life, and after twice
    /// of which it counts as gone.
    pub probe_interval: Duration,
}

/// What switches do.
#[derive(Debug)]
pub enum SwitchEvent {
    /// A switch has completed the handshake.
    Up {
        /// Its datapath identifier.
        datapath: u64,
        /// Meters that it has.
        meters: u32,
        /// Its ports.
        ports: Vec<PortDesc>,
    },
    /// One sent a message.
    Message {
        /// Its datapath identifier.
        datapath: u64,
        /// The number that the message carries.
        xid: u32,
        /// The message.
        message: Message,
    },
    /// One is gone.
    Down {
        /// Its datapath identifier.
        datapath: u64,
        /// Why, in plain words.
        why: String,
    },
}

impl From<SwitchEvent> for Event {
    /// The same as an event for a controller.
    fn from(event: SwitchEvent) -> Self {
        match event {
            SwitchEvent::Up {
                datapath,
                meters,
                ports,
            } => Self::Connected {
                datapath,
                speaks: SwitchProtocol::OpenFlow,
                meters,
                ports: ports.iter().filter_map(port_state).collect(),
            },
            SwitchEvent::Message {
                datapath,
                xid,
                message,
            } => Self::Message {
                datapath,
                xid,
                message,
            },
            SwitchEvent::Down { datapath, .. } => Self::Disconnected { datapath },
        }
    }
}

/// Sends to switches. Clones are the same.
#[derive(Debug, Clone)]
pub struct Sender {
    outboxes: Arc<Mutex<HashMap<u64, Arc<Outbox>>>>,
}

/// Switches that connect. When it goes, so do all connections.
#[derive(Debug)]
pub struct Switches {
    address: SocketAddr,
    events: mpsc::Receiver<SwitchEvent>,
    sender: Sender,
    task: tokio::task::AbortHandle,
    stop: Arc<Notify>,
}

/// Output for one switch.
#[derive(Debug)]
struct Outbox {
    peer: SocketAddr,
    unsent: Mutex<Vec<u8>>,
    more: Notify,
    /// It is to be ended: it takes nothing, or another one took its place.
    end: Notify,
}

impl Sender {
    fn outboxes(&self) -> MutexGuard<'_, HashMap<u64, Arc<Outbox>>> {
        self.outboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, in order. False if the switch is not connected; [`SwitchEvent::Down`]
    /// follows.
    pub fn send(&self, datapath: u64, xid: u32, message: Message) -> bool {
        let Some(outbox) = self.outboxes().get(&datapath).cloned() else {
            return false;
        };
        let mut unsent = outbox.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = Envelope::new(Xid(xid), message).encode(&mut unsent) {
            tracing::error!("a message for switch {datapath:016x} cannot be said: {error}");
            return false;
        }
        let full = unsent.len() > MAX_UNSENT;
        drop(unsent);
        match full {
            true => outbox.end.notify_one(),
            false => outbox.more.notify_one(),
        }
        !full
    }

    /// The switches that are there, and where they are.
    pub fn connected(&self) -> Vec<(u64, SocketAddr)> {
        let outboxes = self.outboxes();
        let mut all: Vec<_> = outboxes
            .iter()
            .map(|(id, outbox)| (*id, outbox.peer))
            .collect();
        all.sort_unstable();
        all
    }

    /// Ends a switch's connection, so that it comes anew.
    pub fn disconnect(&self, datapath: u64) {
        if let Some(outbox) = self.outboxes().get(&datapath) {
            outbox.end.notify_one();
        }
    }
}

impl Switches {
    /// Listens, on the runtime that this is called on.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn listen(options: ListenOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(options.address).await?;
        let address = listener.local_addr()?;
        let (events, receiver) = mpsc::channel(MAX_EVENTS);
        let sender = Sender {
            outboxes: Arc::default(),
        };
        let stop = Arc::new(Notify::new());
        let accepting = accept(listener, options, sender.clone(), events, stop.clone());
        Ok(Self {
            address,
            events: receiver,
            sender,
            task: tokio::spawn(accepting).abort_handle(),
            stop,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends to them.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// What happens next.
    pub async fn next(&mut self) -> Option<SwitchEvent> {
        self.events.recv().await
    }

    /// What has happened already.
    pub fn try_next(&mut self) -> Option<SwitchEvent> {
        self.events.try_recv().ok()
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        self.task.abort();
        self.stop.notify_waiters();
        for outbox in self.sender.outboxes().values() {
            outbox.end.notify_one();
        }
    }
}

async fn accept(
    listener: TcpListener,
    options: ListenOptions,
    sender: Sender,
    events: mpsc::Sender<SwitchEvent>,
    stop: Arc<Notify>,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let tls = options.tls.clone().map(TlsAcceptor::from);
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("a switch cannot be accepted: {error}");
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            }
        };
        let connection = Connection {
            session: Session::new(options.generation),
            sender: sender.clone(),
            events: events.clone(),
            peer,
            probe_interval: options.probe_interval,
            _place: place,
        };
        let (tls, stop) = (tls.clone(), stop.clone());
        tokio::spawn(async move {
            select! {
                () = serve(connection, stream, tls) => {}
                () = stop.notified() => {}
            }
        });
    }
}

async fn serve(connection: Connection, stream: TcpStream, tls: Option<TlsAcceptor>) {
    let peer = connection.peer;
    // Without it answers are only slower.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return connection.run(stream).await;
    };
    match timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => connection.run(stream).await,
        Ok(Err(error)) => tracing::warn!("{peer} is no switch of ours: {error}"),
        Err(_) => tracing::warn!("{peer} is no switch of ours: its TLS handshake takes too long"),
    }
}

struct Connection {
    session: Session,
    sender: Sender,
    events: mpsc::Sender<SwitchEvent>,
    peer: SocketAddr,
    probe_interval: Duration,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(mut self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let outbox = Arc::new(Outbox {
            peer: self.peer,
            unsent: Mutex::default(),
            more: Notify::new(),
            end: Notify::new(),
        });
        let mut datapath = None;
        let why = self.converse(stream, &outbox, &mut datapath).await;
        let Some(datapath) = datapath else {
            tracing::warn!("{} is no switch of ours: {why}", self.peer);
            return;
        };
        {
            let mut outboxes = self.sender.outboxes();
            let own = outboxes
                .get(&datapath)
                .is_some_and(|now| Arc::ptr_eq(now, &outbox));
            // Else another connection of the same switch has taken its place.
            if !own {
                return;
            }
            outboxes.remove(&datapath);
        }
        // The receiver was dropped: the process is about to end.
        let _ = self.events.send(SwitchEvent::Down { datapath, why }).await;
    }

    async fn converse(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        outbox: &Arc<Outbox>,
        datapath: &mut Option<u64>,
    ) -> String {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut buffer = vec![0; READ];
        let mut told = Vec::new();
        let mut output: Vec<u8> = Vec::new();
        let mut sent = 0;
        let ready_by = Instant::now() + HANDSHAKE;
        let mut probe_at = Instant::now() + self.probe_interval;
        let mut probed = false;
        loop {
            if sent == output.len() {
                output.clear();
                sent = 0;
                output.append(self.session.output());
                let mut unsent = outbox.unsent.lock().unwrap_or_else(PoisonError::into_inner);
                output.append(&mut unsent);
            }
            let alarm = if self.session.is_ready() {
                probe_at
            } else {
                ready_by
            };
            select! {
                read = reader.read(&mut buffer) => {
                    let bytes = match read {
                        Ok(0) => return "it closed the connection".into(),
                        Ok(count) => &buffer[..count],
                        Err(error) => return error.to_string(),
                    };
                    probe_at = Instant::now() + self.probe_interval;
                    probed = false;
                    let received = self.session.receive(bytes, &mut told);
                    for told in told.drain(..) {
                        let event = match (told, *datapath) {
                            (SessionEvent::Ready { datapath: id, meters, ports }, _) => {
                                *datapath = Some(id);
                                if let Some(old) = self.sender.outboxes().insert(id, outbox.clone()) {
                                    old.end.notify_one();
                                }
                                SwitchEvent::Up { datapath: id, meters, ports }
                            }
                            (SessionEvent::Message(xid, message), Some(datapath)) => {
                                SwitchEvent::Message { datapath, xid: xid.0, message }
                            }
                            (SessionEvent::Message(..), None) => continue,
                        };
                        if self.events.send(event).await.is_err() {
                            return "the controller ends".into();
                        }
                    }
                    if let Err(error) = received {
                        // So that it knows why.
                        let _ = timeout(self.probe_interval, writer.write_all(self.session.output())).await;
                        return error.to_string();
                    }
                }
                written = writer.write(&output[sent..]), if sent < output.len() => match written {
                    Ok(count) => {
                        sent += count;
                        // TLS keeps what it has not sent.
                        if sent == output.len() && let Err(error) = writer.flush().await {
                            return error.to_string();
                        }
                    }
                    Err(error) => return error.to_string(),
                },
                () = outbox.more.notified(), if sent == output.len() => {}
                () = outbox.end.notified() => {
                    return "it does not take what is sent to it, or has connected again".into();
                }
                () = sleep_until(alarm) => {
                    if !self.session.is_ready() {
                        return "its handshake takes too long".into();
                    }
                    if probed {
                        return "it gives no sign of life".into();
                    }
                    probed = true;
                    self.session.probe();
                    probe_at = Instant::now() + self.probe_interval;
                }
            }
        }
    }
}
