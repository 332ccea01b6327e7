//! Admission of flows: a service between the parties that ask (the shards of the broker, or the proxy
//! before another broker) and the party that decides (the manager in this process, or the network's
//! controller, which is asked through the requirements table).
//!
//! Askers send requests and news into a channel and never wait. One thread takes them in their order and
//! owns the manager: there is no lock. A long question is worked on in slices (`agenda`), with short ones
//! in between. A decision that outlives a restart is written before it is answered (`outbox`): what a
//! client has been guaranteed is on disk. The HTTP interface sends its calls too, and analyses a copy on
//! another thread. The channel is bounded by its possible entries: a question for each connection, one
//! for each flow that QoS 0 messages ask for, an end for each session, and the requests of the interface.

mod agenda;
mod backend;
mod file;
mod outbox;
mod shards;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use punctual_broker::AdmissionRequest;
use punctual_manager::{Change, Client, FlowView, Manager, RemoteManager, Reply, SLICE};
use punctual_model::srt::Channel;
use punctual_model::wire::Transport;
use punctual_net::AdmissionDesk;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

use self::agenda::Agenda;
use self::backend::{Backend, Job};
pub use self::file::{FLOWS, FlowFile};
use self::outbox::{Item, Outbox, Write};
use crate::config::{Config, Transport as Scheme};
use crate::error::Error;
use crate::realtime::{self, Precedence};

/// Units of work in one turn, after which its answers go: some decisions, or
/// thousands of filters without flows.
const TURN: u64 = 8 * SLICE;
/// Events that are taken in one turn.
const BATCH: usize = 256;
/// Time between two looks at what was rejected.
const TICK: Duration = Duration::from_millis(500);
/// Rejected flows that are looked at again at once.
const RECONSIDERED: usize = 16;
/// Calls of the HTTP interface that wait at the same time; others wait there.
const CALLS: usize = 4;

/// What the thread of the service is sent.
enum Event {
    /// A shard asks.
    Request(u16, AdmissionRequest),
    /// A client is not subscribed to filters after all that were decided about.
    Unsubscribe(Client, Vec<Box<str>>),
    /// The table has an answer.
    Decided(Channel),
    /// The HTTP interface looks at something, or changes it; who is told when that
    /// has been written.
    Call(Call),
    /// Something has been written, and told.
    Written,
    /// Nobody is left who could ask.
    Closed,
}

type Call = Box<dyn FnOnce(&mut Backend) -> Option<Item> + Send>;

/// Where shards send their requests.
struct EventSender(Sender<Event>);

impl Drop for EventSender {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Closed);
    }
}

impl AdmissionDesk for EventSender {
    fn ask(&self, shard: u16, request: AdmissionRequest) {
        // Without a reader the broker is about to stop.
        let _ = self.0.send(Event::Request(shard, request));
    }
}

/// The admission service before the broker runs.
pub(crate) struct ServiceBuilder {
    backend: Backend,
    /// Replaces what is kept.
    write: Option<Write>,
    keep: Duration,
    transports: Vec<Transport>,
    events: (Sender<Event>, Receiver<Event>),
    sender: Arc<EventSender>,
    timing: Arc<Timing>,
    /// Of its threads.
    precedence: Option<Precedence>,
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

/// The running service.
#[derive(Clone)]
pub(crate) struct AdmissionService {
    shared: Arc<Shared>,
}

struct Shared {
    events: Sender<Event>,
    sink: Box<dyn ReplySink>,
    timing: Arc<Timing>,
    /// Flows that are admitted, that wait for room, and requests that were
    /// rejected so far.
    numbers: [AtomicU64; 3],
    calls: Arc<Semaphore>,
    /// One analysis is made at a time.
    analyses: Semaphore,
}

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// The controller of the network decides, and there is no manager here.
    Remote,
    /// The service has stopped.
    Stopped,
}

impl ServiceBuilder {
    /// Reads the network and what was kept; `None` if nothing is to be
    /// admitted. `listeners` are the schemes of the listeners, in their order, and
    /// `precedence` is that of its threads.
    pub(crate) fn open(
        config: &Config,
        listeners: impl Iterator<Item = Scheme>,
        precedence: Option<Precedence>,
    ) -> Result<Option<Self>, Error> {
        if !config.admission.enabled {
            return Ok(None);
        }
        let (sender, events) = channel();
        let timing = Arc::<Timing>::default();
        let data = config.server.data.as_ref();
        let file = config.admission.file.clone();
        let file = file.or_else(|| Some(data?.join(FLOWS)));
        let kept = file.map(FlowFile::new);
        let backend = match config.srt().map_err(|error| error.to_string())? {
            Some(options) => {
                let table = table::open(options, precedence, sender.clone(), timing.clone())?;
                let manager = RemoteManager::new(config.manager(None), table);
                Backend::Remote(Box::new(manager))
            }
            None => Backend::Local(Box::new(manager(config, kept.as_ref())?)),
        };
        Ok(Some(Self {
            backend,
            write: kept.map(|kept| -> Write { Box::new(move |state| kept.write(state)) }),
            keep: config.admission.keep,
            transports: listeners.map(carrier).collect(),
            sender: Arc::new(EventSender(sender.clone())),
            events: (sender, events),
            timing,
            precedence,
        }))
    }

    /// Where shards send their requests.
    pub(crate) fn sender(&self) -> Arc<dyn AdmissionDesk> {
        self.sender.clone()
    }

    /// Answers from now on, until nobody is left who could ask.
    pub(crate) fn start(
        self,
        sink: impl ReplySink,
    ) -> Result<(AdmissionService, JoinHandle<()>), Error> {
        let (sender, events) = self.events;
        let service = AdmissionService {
            shared: Arc::new(Shared {
                events: sender,
                sink: Box::new(sink),
                timing: self.timing,
                numbers: Default::default(),
                calls: Arc::new(Semaphore::new(CALLS)),
                analyses: Semaphore::new(1),
            }),
        };
        let worker = Worker {
            outbox: Outbox::open(&service, self.write, self.precedence)?,
            shared: service.shared.clone(),
            backend: self.backend,
            transports: self.transports,
            agenda: Agenda::default(),
            restored: Restored::FlowFile,
            reached: None,
        };
        worker.count();
        let (keep, precedence) = (self.keep, self.precedence);
        let thread = thread::Builder::new()
            .name("admission".into())
            .spawn(move || {
                realtime::put_first(precedence, "admission");
                worker.run(&events, keep);
            })?;
        Ok((service, thread))
    }
}

/// The manager of this process, with what was kept.
fn manager(config: &Config, kept: Option<&FlowFile>) -> Result<Manager, Error> {
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

/// Where replies and changes go.
pub(crate) trait ReplySink: Send + Sync + 'static {
    /// Brings a reply to the asker. One that nobody takes any more, and that
    /// made a difference to the manager, is to be undone at the `service`.
    fn reply(&self, service: &AdmissionService, reply: ShardReply);

    /// Tells what has changed for somebody who did not ask.
    fn notify(&self, change: Change);
}

impl AdmissionService {
    /// Runs a call on the thread of the service.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Backend, oneshot::Sender<T>) -> Option<Item> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let places = self.shared.calls.clone();
        let place = places
            .acquire_owned()
            .await
            .map_err(|_| Unavailable::Stopped)?;
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |backend| {
            drop(place);
            call(backend, answer)
        });
        let posted = self.shared.events.send(Event::Call(call));
        posted.map_err(|_| Unavailable::Stopped)?;
        answered.await.map_err(|_| Unavailable::Stopped)
    }

    /// Looks at the manager, which waits meanwhile: for an analysis a
    /// [copy](Self::analyse) is to be taken.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Manager) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let seen = self.call(|backend, answer| {
            // Whoever asked may be gone by now.
            let _ = answer.send(match backend {
                Backend::Local(manager) => Ok(look(manager)),
                Backend::Remote(_) => Err(Unavailable::Remote),
            });
            None
        });
        seen.await?
    }

    /// Copies what is needed for an analysis, and makes it while the manager goes
    /// on.
    pub(crate) async fn analyse<C: Send + 'static, T: Send + 'static>(
        &self,
        copy: impl FnOnce(&Manager) -> C + Send + 'static,
        analyse: impl FnOnce(C) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let analyses = &self.shared.analyses;
        let _turn = analyses.acquire().await.map_err(|_| Unavailable::Stopped)?;
        let copied = self.look(copy).await?;
        let analysed = spawn_blocking(move || analyse(copied)).await;
        analysed.map_err(|_| Unavailable::Stopped)
    }

    /// Does something with the manager; what follows is kept and told before this
    /// returns.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Manager) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let changed = self.call(|backend, answer| {
            let result = match backend {
                Backend::Local(manager) => Ok(change(manager)),
                Backend::Remote(_) => Err(Unavailable::Remote),
            };
            Some(Item::Caller(Box::new(move || {
                let _ = answer.send(result);
            })))
        });
        changed.await?
    }

    /// A page of at most `most` admitted flows after the name `after`, by name, and
    /// whether more follow.
    pub(crate) async fn page(
        &self,
        after: Option<String>,
        most: usize,
    ) -> Result<(Vec<FlowView>, bool), Unavailable> {
        let page = self.call(move |backend, answer| {
            let _ = answer.send(backend.page(after.as_deref(), most));
            None
        });
        page.await
    }

    /// An admitted flow by its name.
    pub(crate) async fn view(&self, id: String) -> Result<Option<FlowView>, Unavailable> {
        let view = self.call(move |backend, answer| {
            let _ = answer.send(backend.view(&id));
            None
        });
        view.await
    }

    /// Flows that are admitted, that wait for room, and requests that were
    /// rejected so far.
    pub(crate) fn numbers(&self) -> (u64, u64, u64) {
        let numbers = &self.shared.numbers;
        let [admitted, waiting, rejected] =
            [0, 1, 2].map(|at: usize| numbers[at].load(Ordering::Relaxed));
        (admitted, waiting, rejected)
    }

    /// Filters that were decided about and are not subscribed to after all. Does
    /// not wait: threads that serve clients may call it.
    pub(crate) fn give_up(&self, client: Client, filters: Vec<Box<str>>) {
        // Without a reader the broker is about to stop.
        let _ = self.shared.events.send(Event::Unsubscribe(client, filters));
    }

    /// How long decisions take.
    pub(crate) fn timing(&self) -> &Timing {
        &self.shared.timing
    }
}

/// What becomes of what was restored after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restored {
    /// Who has it may come back.
    FlowFile,
    /// It is being ended.
    Ending,
    Ended,
}

/// The thread of the service.
struct Worker {
    shared: Arc<Shared>,
    backend: Backend,
    transports: Vec<Transport>,
    agenda: Agenda<Job>,
    outbox: Outbox,
    restored: Restored,
    /// How far what was restored has been ended.
    reached: Option<Arc<str>>,
}

impl Worker {
    fn run(mut self, events: &Receiver<Event>, keep: Duration) {
        let started = Instant::now();
        let mut next_look = started + TICK;
        loop {
            let wait = match self.agenda.is_empty() && self.restored != Restored::Ending {
                true => next_look.saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
            let first = match events.recv_timeout(wait) {
                Ok(post) => Some(post),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Event::Closed),
            };
            let is_closed = self.turn(first, events);
            if Instant::now() >= next_look {
                next_look = Instant::now() + TICK;
                if let Backend::Local(manager) = &mut self.backend {
                    manager.reconsider(RECONSIDERED);
                }
                if self.restored == Restored::FlowFile && started.elapsed() >= keep {
                    self.restored = Restored::Ending;
                }
            }
            self.end_restored();
            self.gather();
            if is_closed {
                return self.outbox.close(|| self.backend.changed_state());
            }
            self.outbox.send(|| self.backend.changed_state());
        }
    }

    /// Works on the events that have come, and for one slice on what is left of before.
    /// True if nobody is left who could ask.
    fn turn(&mut self, first: Option<Event>, events: &Receiver<Event>) -> bool {
        let mut units = TURN;
        let mut next = first;
        for _ in 0..BATCH {
            let Some(post) = next else {
                break;
            };
            match post {
                Event::Request(shard, request) => {
                    let transport = self.transport(request.asker.listener);
                    if let Some(job) = self.backend.ask(shard, request, transport) {
                        self.begin(job, &mut units);
                    }
                }
                Event::Unsubscribe(client, filters) => {
                    if let Some(job) = self.backend.give_up(client, filters) {
                        self.begin(job, &mut units);
                    }
                }
                Event::Decided(channel) => {
                    if let Backend::Remote(manager) = &mut self.backend {
                        manager.decided(channel);
                    }
                }
                Event::Call(call) => {
                    let told = call(&mut self.backend);
                    self.gather();
                    self.outbox.add(told);
                }
                Event::Written => {}
                Event::Closed => return true,
            }
            next = match units {
                0 => None,
                _ => events.try_recv().ok(),
            };
        }
        if let Some((client, job)) = self.agenda.take() {
            match self.slice(job, &mut SLICE.clone()) {
                Some(left) => self.agenda.put_last(client, left),
                None => self.agenda.done(client),
            }
        }
        false
    }

    /// Begins with a question, unless its client is busy with another.
    fn begin(&mut self, job: Job, units: &mut u64) {
        let client = job.client().clone();
        if let Some(job) = self.agenda.put_behind(&client, job) {
            let before = SLICE.min(*units);
            let mut slice = before;
            if let Some(left) = self.slice(job, &mut slice) {
                self.agenda.put_last(client, left);
            }
            *units -= before - slice;
        }
    }

    /// Works on a question for a slice; what is left of it.
    fn slice(&mut self, job: Job, units: &mut u64) -> Option<Job> {
        let (left, reply) = self.backend.work(job, units, &self.shared.timing);
        if let Some(reply) = reply {
            self.gather();
            self.outbox.add([Item::Reply(reply)]);
        }
        left
    }

    fn end_restored(&mut self) {
        if self.restored == Restored::Ending {
            let is_all = match &mut self.backend {
                Backend::Local(manager) => {
                    manager.give_up_some(&mut self.reached, &mut SLICE.clone())
                }
                Backend::Remote(_) => true,
            };
            if is_all {
                self.restored = Restored::Ended;
            }
        }
    }

    /// Notes what is to be told of what has been decided: changes before answers, for
    /// who has connected goes on when it has its flows.
    fn gather(&mut self) {
        let changes = self.backend.take_changes().into_iter().map(Item::Change);
        self.outbox.add(changes);
        let replies = self.backend.late_replies().into_iter().map(Item::Reply);
        self.outbox.add(replies);
        self.count();
    }

    fn count(&self) {
        let (admitted, waiting, rejected) = self.backend.numbers();
        let numbers = self.shared.numbers.iter();
        for (number, now) in numbers.zip([admitted, waiting, rejected]) {
            number.store(now, Ordering::Relaxed);
        }
    }

    /// What carries the packets of whoever has connected to that listener.
    fn transport(&self, listener: Option<u16>) -> Transport {
        let transport = listener.and_then(|at| self.transports.get(usize::from(at)));
        transport.copied().unwrap_or_default()
    }
}

/// A reply on its way to a shard.
pub(crate) struct ShardReply {
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

    /// Notes what is told.
    struct Notes(Sender<String>);

    impl ReplySink for Notes {
        fn reply(&self, _: &AdmissionService, reply: ShardReply) {
            let _ = self.0.send(match reply.reply {
                Reply::Flow {
                    client, decision, ..
                } => {
                    assert_eq!(decision.answer.status, Some(Status::Admitted));
                    format!("flow of {}", client.id)
                }
                Reply::Subscription {
                    client, decision, ..
                } => {
                    let count = decision.verdicts.len();
                    format!("{count} filters of {}", client.id)
                }
                Reply::GoOn { .. } => "go on".into(),
            });
        }

        fn notify(&self, change: Change) {
            if let Change::Flow {
                client,
                decision: None,
                ..
            } = change
            {
                let _ = self.0.send(format!("no flow of {client}"));
            }
        }
    }

    fn builder() -> ServiceBuilder {
        let mut config = Config::default();
        config.admission.enabled = true;
        match ServiceBuilder::open(&config, std::iter::empty(), None) {
            Ok(Some(builder)) => builder,
            _ => panic!("there is no service"),
        }
    }

    fn started(builder: ServiceBuilder) -> (AdmissionService, JoinHandle<()>, Receiver<String>) {
        let (notes, told) = channel();
        let Ok((service, thread)) = builder.start(Notes(notes)) else {
            panic!("it opens")
        };
        (service, thread, told)
    }

    fn request(client: &str, ask: Ask) -> AdmissionRequest {
        let asker = Asker {
            client_id: client.into(),
            session: 1,
            username: None,
            is_proven: false,
            peer: Some(([10, 0, 0, 1], 1).into()),
            local: None,
            listener: None,
            quota: Default::default(),
        };
        AdmissionRequest { asker, ask }
    }

    fn publishing(client: &str) -> AdmissionRequest {
        let ask = Ask::Publish {
            topic: "t".into(),
            requirements: "deadline=50ms, period=100ms".parse().unwrap(),
            payload: 20,
            properties: 0,
            qos: punctual_codec::QoS::AtLeastOnce,
        };
        request(client, ask)
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    /// Else a flow that is removed over the API while its publisher's answer is under
    /// way would be carried as admitted from then on; and one that is not on disk
    /// would be promised.
    #[test]
    fn what_is_decided_while_the_disk_is_busy_is_told_in_order_after_it_is_written() {
        let mut builder = builder();
        let (begin, begun) = channel();
        let (go_on, may_go_on) = channel::<()>();
        builder.write = Some(Box::new(move |state| {
            let _ = begin.send(state.clients.len());
            let _ = may_go_on.recv();
            Ok(())
        }));
        let sender = builder.sender();
        let (service, thread, told) = started(builder);
        sender.ask(0, publishing("p"));
        assert_eq!(begun.recv(), Ok(1));
        // The disk has not answered; decisions and looks at them go on.
        sender.ask(0, publishing("q"));
        assert_eq!(wait(service.look(Manager::len)), Ok(2));
        assert_eq!(service.numbers().0, 2);
        let page = wait(service.page(None, 10)).unwrap();
        assert_eq!((page.0.len(), page.1), (2, false));
        let changing = service.clone();
        let change = thread::spawn(move || wait(changing.change(|m| m.remove("t@p"))));
        while wait(service.look(Manager::len)) != Ok(1) {
            thread::yield_now();
        }
        assert!(told.try_recv().is_err(), "told before it was written");
        assert!(!change.is_finished(), "answered before it was written");
        go_on.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), "flow of p");
        // All of that with one write.
        assert_eq!(begun.recv(), Ok(1));
        assert!(told.try_recv().is_err());
        go_on.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), "flow of q");
        assert_eq!(told.recv().unwrap(), "no flow of p");
        assert_eq!(change.join().unwrap(), Ok(true));
        drop((sender, go_on));
        thread.join().unwrap();
        assert_eq!(wait(service.look(Manager::len)), Err(Unavailable::Stopped));
    }

    #[test]
    fn what_cannot_be_written_is_told_all_the_same_and_tried_again() {
        let mut builder = builder();
        let (begin, begun) = channel();
        builder.write = Some(Box::new(move |state| {
            let _ = begin.send(state.clone());
            Err("it is broken".into())
        }));
        let sender = builder.sender();
        let (service, thread, told) = started(builder);
        sender.ask(0, publishing("p"));
        assert_eq!(told.recv().unwrap(), "flow of p");
        let first = begun.recv().unwrap();
        assert_eq!(begun.recv().unwrap(), first);
        drop((sender, service));
        thread.join().unwrap();
    }

    #[test]
    fn others_are_answered_between_slices_of_a_long_question_and_its_client_after_it() {
        let builder = builder();
        let sender = builder.sender();
        let filters = (0..20_000).map(|n| format!("many/{n}").into());
        let ask = Ask::Subscribe {
            conn: punctual_broker::ConnId {
                slot: 1,
                generation: 1,
            },
            filters: filters.collect(),
            requirements: Default::default(),
        };
        sender.ask(0, request("s", ask));
        sender.ask(0, publishing("s"));
        sender.ask(0, request("s", Ask::Ended));
        sender.ask(0, publishing("p"));
        let (service, thread, told) = started(builder);
        let expected = ["flow of p", "20000 filters of s", "flow of s"];
        assert_eq!(expected.map(|_| told.recv().unwrap()), expected);
        while wait(service.look(Manager::len)) != Ok(1) {
            thread::yield_now();
        }
        drop(sender);
        thread.join().unwrap();
    }
}
