//! The office where flows are admitted: between those who ask, the shards of the
//! broker or the proxy before another one, and the manager, which decides.
//!
//! Who asks posts questions and news into a channel and never waits. One thread
//! takes them in order, as many as there are at once, asks the manager, writes
//! what is to outlive a restart, and only then posts the answers: what a client
//! has been promised is on disk. The HTTP interface does its work under the same
//! lock. The channel is bounded by what may be in it: a question for each
//! connection, one for each flow that QoS 0 messages ask for, an end for each
//! session.

mod file;
mod shards;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use punctual_broker::AdmissionRequest;
use punctual_manager::{Change, Client, Manager, Reply};
use punctual_model::wire::Transport;
use punctual_net::AdmissionDesk;

use self::file::Kept;
use crate::cli::Failure;
use crate::config::{Config, Transport as Scheme};

/// Questions that are answered together, with one write to the file.
const BATCH: usize = 256;
/// Time between two looks at what was rejected.
const TICK: Duration = Duration::from_millis(500);
/// Rejected flows that are looked at again at once.
const RECONSIDERED: usize = 16;

/// Where shards post.
struct Letterbox(Sender<(u16, AdmissionRequest)>);

impl AdmissionDesk for Letterbox {
    fn ask(&self, shard: u16, request: AdmissionRequest) {
        // Without a reader the broker is about to stop.
        let _ = self.0.send((shard, request));
    }
}

/// The office before the broker runs.
pub(crate) struct Opening {
    manager: Manager,
    kept: Option<Kept>,
    keep: Duration,
    transports: Vec<Transport>,
    letters: Receiver<(u16, AdmissionRequest)>,
    sender: Sender<(u16, AdmissionRequest)>,
}

/// How long decisions took, and how many there were.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    /// Questions answered.
    pub(crate) decisions: AtomicU64,
    /// Sum of the times of all, from when it was taken up, ns.
    pub(crate) total_ns: AtomicU64,
    /// The longest, ns.
    pub(crate) longest_ns: AtomicU64,
}

/// The running office.
#[derive(Clone)]
pub(crate) struct Office {
    shared: Arc<Shared>,
}

struct Shared {
    manager: Mutex<Manager>,
    kept: Option<Kept>,
    counter: Box<dyn Counter>,
    transports: Vec<Transport>,
    timing: Timing,
}

impl Opening {
    /// Reads the network and what was kept; `None` if nothing is to be
    /// admitted. `listeners` are the schemes of the listeners, in their order.
    pub(crate) fn open(
        config: &Config,
        listeners: impl Iterator<Item = Scheme>,
    ) -> Result<Option<Self>, Failure> {
        if !config.admission.enabled {
            return Ok(None);
        }
        let network = match &config.admission.network {
            Some(path) => Some(file::network(path)?),
            None => None,
        };
        let mut manager = Manager::new(config.manager(network)).map_err(|error| {
            let path = config.admission.network.as_deref();
            let place = path.map_or("admission".into(), |path| path.display().to_string());
            format!("{place}: {error}")
        })?;
        let kept = config.admission.file.clone().map(Kept::new);
        if let Some(kept) = &kept
            && let Some(state) = kept.read()?
        {
            for lost in manager.restore(&state) {
                tracing::warn!("not admitted again: {lost}");
            }
            tracing::info!("{} flows are kept for their publishers", manager.len());
        }
        let (sender, letters) = channel();
        Ok(Some(Self {
            manager,
            kept,
            keep: config.admission.keep,
            transports: listeners.map(carrier).collect(),
            letters,
            sender,
        }))
    }

    /// What shards ask.
    pub(crate) fn desk(&self) -> Arc<dyn AdmissionDesk> {
        Arc::new(Letterbox(self.sender.clone()))
    }

    /// Answers from now on, until nobody is left who could ask.
    pub(crate) fn start(self, counter: impl Counter) -> Result<(Office, JoinHandle<()>), Failure> {
        let office = Office {
            shared: Arc::new(Shared {
                manager: Mutex::new(self.manager),
                kept: self.kept,
                counter: Box::new(counter),
                transports: self.transports,
                timing: Timing::default(),
            }),
        };
        drop(self.sender);
        let (letters, keep, clerk) = (self.letters, self.keep, office.clone());
        let thread = thread::Builder::new()
            .name("admission".into())
            .spawn(move || clerk.run(&letters, keep))?;
        Ok((office, thread))
    }
}

/// Where answers are handed out.
pub(crate) trait Counter: Send + Sync + 'static {
    /// Brings an answer to who asked. One that nobody takes any more, and that
    /// made a difference to the manager, is to be undone at the `office`.
    fn answer(&self, office: &Office, letter: Letter);

    /// Tells what has changed for somebody who did not ask.
    fn tell(&self, change: Change);
}

impl Office {
    /// Looks at the manager.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Manager) -> T) -> T {
        look(&self.manager())
    }

    /// Does something with the manager; what follows is kept and told.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Manager) -> T) -> T {
        let mut manager = self.manager();
        let result = change(&mut manager);
        self.conclude(manager, Vec::new());
        result
    }

    /// Filters that were decided about and are not subscribed to after all. Does
    /// not wait for the manager: threads that serve clients may call it.
    pub(crate) fn give_up(&self, client: Client, filters: Vec<Box<str>>) {
        let office = self.clone();
        let _ = thread::Builder::new().spawn(move || {
            office.change(|m| m.unsubscribe(&client.id, client.session, &filters));
        });
    }

    /// How long decisions take.
    pub(crate) fn timing(&self) -> &Timing {
        &self.shared.timing
    }

    fn manager(&self) -> MutexGuard<'_, Manager> {
        // A panic in between leaves no promise that is not analysed.
        self.shared
            .manager
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, letters: &Receiver<(u16, AdmissionRequest)>, keep: Duration) {
        let started = Instant::now();
        let mut restored = true;
        let mut next_look = started + TICK;
        loop {
            let wait = next_look.saturating_duration_since(Instant::now());
            let first = match letters.recv_timeout(wait) {
                Ok(letter) => Some(letter),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut answers = Vec::new();
            let mut manager = self.manager();
            if let Some(first) = first {
                let more = std::iter::from_fn(|| letters.try_recv().ok());
                for (shard, request) in std::iter::once(first).chain(more).take(BATCH) {
                    let began = Instant::now();
                    let transport = self.transport(request.asker.listener);
                    let reply = manager.answer(request, transport);
                    answers.extend(reply.map(|reply| Letter { shard, reply }));
                    self.shared.timing.add(began.elapsed());
                }
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + TICK;
                manager.reconsider(RECONSIDERED);
                if restored && started.elapsed() >= keep {
                    restored = false;
                    manager.give_up_restored();
                }
            }
            self.conclude(manager, answers);
        }
    }

    /// Keeps what has changed, and then tells everyone.
    fn conclude(&self, mut manager: MutexGuard<'_, Manager>, answers: Vec<Letter>) {
        let changes = manager.take_changes();
        let state = match &self.shared.kept {
            Some(_) => manager.changed_state(),
            None => None,
        };
        drop(manager);
        if let (Some(kept), Some(state)) = (&self.shared.kept, state)
            && let Err(error) = kept.write(&state)
        {
            tracing::error!("{error}");
        }
        // Before the answers: who has connected goes on when it has its flows.
        for change in changes {
            self.shared.counter.tell(change);
        }
        for letter in answers {
            self.shared.counter.answer(self, letter);
        }
    }

    /// What carries the packets of whoever has connected to that listener.
    fn transport(&self, listener: Option<u16>) -> Transport {
        let transports = &self.shared.transports;
        let transport = listener.and_then(|at| transports.get(usize::from(at)));
        transport.copied().unwrap_or_default()
    }
}

/// An answer on its way.
pub(crate) struct Letter {
    /// Who asked: a shard of the broker; for the proxy 0.
    pub(crate) shard: u16,
    /// The answer.
    pub(crate) reply: Reply,
}

impl Timing {
    fn add(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(nanos, Ordering::Relaxed);
        self.longest_ns.fetch_max(nanos, Ordering::Relaxed);
    }
}

fn carrier(scheme: Scheme) -> Transport {
    match scheme {
        Scheme::Tcp => Transport::Tcp,
        Scheme::Tls => Transport::Tls,
        Scheme::Ws => Transport::WebSocket,
        Scheme::Wss => Transport::SecureWebSocket,
        Scheme::Udp => Transport::Udp,
        Scheme::Quic => Transport::Quic,
    }
}
