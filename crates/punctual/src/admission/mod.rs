//! The office where flows are admitted: between those who ask, the shards of the
//! broker or the proxy before another one, and who decides, the manager here or
//! through the requirements table the controller of the network.
//!
//! Who asks posts questions and news into a channel and never waits. One thread
//! takes them in order, as many as there are at once, asks the manager, writes
//! what is to outlive a restart, and only then posts the answers: what a client
//! has been promised is on disk. The HTTP interface does its work under the same
//! lock. The channel is bounded by what may be in it: a question for each
//! connection, one for each flow that QoS 0 messages ask for, an end for each
//! session.

mod desk;
mod file;
mod shards;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use punctual_broker::AdmissionRequest;
use punctual_manager::{Change, Client, Envoy, FlowView, Manager, Reply, State};
use punctual_model::srt::Channel;
use punctual_model::wire::Transport;
use punctual_net::AdmissionDesk;

use self::desk::Desk;
pub(crate) use self::file::{FLOWS, Kept};
use crate::cli::Failure;
use crate::config::{Config, Transport as Scheme};
use crate::realtime;

/// Questions that are answered together, with one write to the file.
const BATCH: usize = 256;
/// Time between two looks at what was rejected.
const TICK: Duration = Duration::from_millis(500);
/// Rejected flows that are looked at again at once.
const RECONSIDERED: usize = 16;

/// What the office's thread is brought.
enum Post {
    /// A shard asks.
    Asked(u16, AdmissionRequest),
    /// The table has an answer.
    Decided(Channel),
    /// Nobody is left who could ask.
    Closed,
}

/// Where shards post.
struct Letterbox(Sender<Post>);

impl Drop for Letterbox {
    fn drop(&mut self) {
        let _ = self.0.send(Post::Closed);
    }
}

impl AdmissionDesk for Letterbox {
    fn ask(&self, shard: u16, request: AdmissionRequest) {
        // Without a reader the broker is about to stop.
        let _ = self.0.send(Post::Asked(shard, request));
    }
}

/// The office before the broker runs.
pub(crate) struct Opening {
    desk: Desk,
    kept: Option<Kept>,
    keep: Duration,
    transports: Vec<Transport>,
    posts: Receiver<Post>,
    letterbox: Arc<Letterbox>,
    timing: Arc<Timing>,
    /// SCHED_FIFO of its threads.
    priority: Option<u8>,
}

/// How long decisions took, and how many there were.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    /// Questions answered.
    pub(crate) decisions: AtomicU64,
    /// Sum of the times of all, from when it was taken up or, if the network is
    /// asked, from when it was to the answer, ns.
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
    desk: Mutex<Desk>,
    kept: Option<Kept>,
    /// What could not be written, to be tried again. Held from a decision until
    /// everyone is told of it, for that is to be in the order of the decisions.
    unwritten: Mutex<Option<State>>,
    counter: Box<dyn Counter>,
    transports: Vec<Transport>,
    timing: Arc<Timing>,
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
        let (sender, posts) = channel();
        let timing = Arc::<Timing>::default();
        let data = config.server.data.as_ref();
        let file = config.admission.file.clone();
        let file = file.or_else(|| Some(data?.join(FLOWS)));
        let kept = file.map(Kept::new);
        let priority = config.deciding_priority();
        let desk = match config.srt()? {
            Some(options) => {
                let table = table::open(options, priority, sender.clone(), timing.clone())?;
                let envoy = Envoy::new(config.manager(None), table);
                Desk::Network(Box::new(envoy))
            }
            None => Desk::Own(Box::new(manager(config, kept.as_ref())?)),
        };
        Ok(Some(Self {
            desk,
            kept,
            keep: config.admission.keep,
            transports: listeners.map(carrier).collect(),
            posts,
            letterbox: Arc::new(Letterbox(sender)),
            timing,
            priority,
        }))
    }

    /// What shards ask.
    pub(crate) fn desk(&self) -> Arc<dyn AdmissionDesk> {
        self.letterbox.clone()
    }

    /// Answers from now on, until nobody is left who could ask.
    pub(crate) fn start(self, counter: impl Counter) -> Result<(Office, JoinHandle<()>), Failure> {
        let office = Office {
            shared: Arc::new(Shared {
                desk: Mutex::new(self.desk),
                kept: self.kept,
                unwritten: Mutex::default(),
                counter: Box::new(counter),
                transports: self.transports,
                timing: self.timing,
            }),
        };
        let (posts, keep, clerk) = (self.posts, self.keep, office.clone());
        let priority = self.priority;
        let thread = thread::Builder::new()
            .name("admission".into())
            .spawn(move || {
                realtime::put_first(priority, "admission");
                clerk.run(&posts, keep);
            })?;
        Ok((office, thread))
    }
}

/// The manager of this process, with what was kept.
fn manager(config: &Config, kept: Option<&Kept>) -> Result<Manager, Failure> {
    let network = match &config.admission.network {
        Some(path) => Some(file::network(path)?),
        None => None,
    };
    let mut manager = Manager::new(config.manager(network)).map_err(|error| {
        let path = config.admission.network.as_deref();
        let place = path.map_or("admission".into(), |path| path.display().to_string());
        format!("{place}: {error}")
    })?;
    if let Some(kept) = kept
        && let Some(state) = kept.read()?
    {
        for lost in manager.restore(&state) {
            tracing::warn!("not admitted again: {lost}");
        }
        tracing::info!("{} flows are kept for their publishers", manager.len());
    }
    Ok(manager)
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
    /// Looks at the manager; `None` if the controller of the network decides.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Manager) -> T) -> Option<T> {
        match &*self.desk() {
            Desk::Own(manager) => Some(look(manager)),
            Desk::Network(_) => None,
        }
    }

    /// Does something with the manager; what follows is kept and told. `None` if
    /// the controller of the network decides.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Manager) -> T) -> Option<T> {
        let mut desk = self.desk();
        let Desk::Own(manager) = &mut *desk else {
            return None;
        };
        let result = change(manager);
        self.conclude(desk, Vec::new());
        Some(result)
    }

    /// At most `most` admitted flows after the name `after`, by name.
    pub(crate) fn views(&self, after: Option<&str>, most: usize) -> Vec<FlowView> {
        self.desk().views(after, most)
    }

    /// An admitted flow by its name.
    pub(crate) fn view(&self, id: &str) -> Option<FlowView> {
        self.desk().view(id)
    }

    /// Flows that are admitted, that wait for room, and requests that were
    /// rejected so far.
    pub(crate) fn numbers(&self) -> (u64, u64, u64) {
        self.desk().numbers()
    }

    /// Filters that were decided about and are not subscribed to after all. Does
    /// not wait for the desk: threads that serve clients may call it.
    pub(crate) fn give_up(&self, client: Client, filters: Vec<Box<str>>) {
        let office = self.clone();
        let _ = thread::Builder::new().spawn(move || {
            let mut desk = office.desk();
            desk.unsubscribe(&client, &filters);
            office.conclude(desk, Vec::new());
        });
    }

    /// How long decisions take.
    pub(crate) fn timing(&self) -> &Timing {
        &self.shared.timing
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // A panic in between leaves no promise that is not analysed.
        let desk = self.shared.desk.lock();
        desk.unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, posts: &Receiver<Post>, keep: Duration) {
        let started = Instant::now();
        let mut restored = true;
        let mut next_look = started + TICK;
        loop {
            let wait = next_look.saturating_duration_since(Instant::now());
            let first = match posts.recv_timeout(wait) {
                Ok(post) => Some(post),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut letters = Vec::new();
            let mut desk = self.desk();
            if let Some(first) = first {
                let more = std::iter::from_fn(|| posts.try_recv().ok());
                for post in std::iter::once(first).chain(more).take(BATCH) {
                    match post {
                        Post::Asked(shard, request) => {
                            self.ask(&mut desk, shard, request, &mut letters);
                        }
                        Post::Decided(channel) => {
                            if let Desk::Network(envoy) = &mut *desk {
                                envoy.decided(channel);
                            }
                        }
                        Post::Closed => return,
                    }
                }
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + TICK;
                if let Desk::Own(manager) = &mut *desk {
                    manager.reconsider(RECONSIDERED);
                    if restored && started.elapsed() >= keep {
                        restored = false;
                        manager.give_up_restored();
                    }
                }
            }
            self.conclude(desk, letters);
        }
    }

    fn ask(
        &self,
        desk: &mut Desk,
        shard: u16,
        request: AdmissionRequest,
        letters: &mut Vec<Letter>,
    ) {
        let began = Instant::now();
        let transport = self.transport(request.asker.listener);
        desk.ask(shard, request, transport, letters);
        if let Desk::Own(_) = desk {
            self.shared.timing.add(began.elapsed());
        }
    }

    /// Keeps what has changed, and then tells everyone.
    fn conclude(&self, mut desk: MutexGuard<'_, Desk>, mut letters: Vec<Letter>) {
        let changes = desk.take_changes();
        letters.extend(desk.late_letters());
        let state = match (&self.shared.kept, &mut *desk) {
            (Some(_), Desk::Own(manager)) => manager.changed_state(),
            _ => None,
        };
        // Taken with the desk, so that no older state is written over a newer one, and
        // that nobody is told last of what was decided before.
        let unwritten = self.shared.unwritten.lock();
        let mut unwritten = unwritten.unwrap_or_else(PoisonError::into_inner);
        drop(desk);
        if let Some(kept) = &self.shared.kept {
            let is_new = state.is_some();
            *unwritten = state.or_else(|| unwritten.take());
            match unwritten.as_ref().map(|state| kept.write(state)) {
                Some(Err(error)) if is_new => tracing::error!("{error}"),
                Some(Err(_)) => {}
                Some(Ok(())) | None => *unwritten = None,
            }
        }
        // Before the answers: who has connected goes on when it has its flows.
        for change in changes {
            self.shared.counter.tell(change);
        }
        for letter in letters {
            self.shared.counter.answer(self, letter);
        }
        drop(unwritten);
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

#[cfg(test)]
mod tests {
    use punctual_broker::{Ask, Asker};
    use punctual_model::Status;

    use super::*;

    /// Sends what becomes of each question, and whether another decision could be
    /// told before.
    struct Notes(Sender<(Option<Status>, bool)>);

    impl Counter for Notes {
        fn answer(&self, office: &Office, letter: Letter) {
            let Reply::Flow { decision, .. } = letter.reply else {
                return;
            };
            let free = office.shared.unwritten.try_lock().is_ok();
            let _ = self.0.send((decision.answer.status, free));
        }

        fn tell(&self, _: Change) {}
    }

    /// Else a flow that is removed over the API while its publisher's answer is under
    /// way would be carried as admitted from then on.
    #[test]
    fn nobody_is_told_of_a_decision_before_the_one_that_was_made_before() {
        let mut config = Config::default();
        config.admission.enabled = true;
        let Ok(Some(opening)) = Opening::open(&config, std::iter::empty()) else {
            panic!("there is an office")
        };
        let desk = opening.desk();
        let (notes, answers) = channel();
        let Ok((office, thread)) = opening.start(Notes(notes)) else {
            panic!("it opens")
        };
        let asker = Asker {
            client_id: "p".into(),
            session: 1,
            username: None,
            peer: Some(([10, 0, 0, 1], 1).into()),
            local: None,
            listener: None,
            quota: Default::default(),
        };
        let ask = Ask::Publish {
            topic: "t".into(),
            requirements: "deadline=50ms, period=100ms".parse().unwrap(),
            payload: 20,
            properties: 0,
            qos: punctual_codec::QoS::AtLeastOnce,
        };
        desk.ask(0, AdmissionRequest { asker, ask });
        let (status, free) = answers.recv().unwrap();
        assert_eq!(status, Some(Status::Admitted));
        assert!(!free, "another decision can be told before");
        assert_eq!(office.change(|manager| manager.remove("t@p")), Some(true));
        drop(desk);
        thread.join().unwrap();
    }
}
