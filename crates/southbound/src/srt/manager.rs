//! The manager's side: requests and the decisions about them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual_model::srt::{Channel, Manager, Request, State};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::DATABASE;
use super::replica::Replica;
use super::rows::{
    CHANNEL, Key, MANAGER, REQUEST, key, of_manager, of_request, to_channel, to_request,
};
use super::step::{Party, SharedParty, keep_in_step};
use crate::ovsdb::cache::Change;
use crate::ovsdb::operation::{Condition, Operation, Outcome};
use crate::ovsdb::{Client, Endpoint, Error, Options, Table, TlsOptions};

/// Time between two signs of life in the database: rare, because clusters write
/// every one of them to disk.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

/// What a manager has to say of itself.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// Servers of the database.
    pub endpoints: Vec<Endpoint>,
    /// Certificates, for `ssl:`. The common name has to be the manager's name.
    pub tls: Option<TlsOptions>,
    /// Its name.
    pub name: String,
    /// Where it can be asked, for people.
    pub address: String,
    /// How long a decision is waited for.
    pub decision: Duration,
    /// How long requests of a former life stay without being asked for again.
    pub keep: Duration,
}

/// Asks for channels. Clones are the same manager; with the last one the
/// connection ends.
#[derive(Debug, Clone)]
pub struct ManagerSide {
    shared: Arc<SharedParty<Desk>>,
    client: Client,
    decision: Duration,
    news: Arc<Notify>,
    _life: Arc<Life>,
}

/// Ends the tasks when the last handle goes.
#[derive(Debug)]
struct Life(Arc<Notify>, tokio::task::AbortHandle);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.notify_one();
        self.1.abort();
    }
}

#[derive(Debug)]
struct Desk {
    name: String,
    replica: Replica,
    /// The last generation that was given.
    generation: u64,
    /// What was last decided, by flow.
    channels: BTreeMap<String, Channel>,
    /// What the controller says to requests that it cannot decide yet, by flow.
    pending: BTreeMap<String, Channel>,
    waiting: BTreeMap<String, Vec<(u64, oneshot::Sender<Channel>)>>,
    /// Decisions without a waiting caller.
    news: BTreeMap<String, Channel>,
    bell: Arc<Notify>,
    /// Rung when a sign of life is due before its time.
    pulse: Arc<Notify>,
    away: Option<String>,
}

impl ManagerSide {
    /// Begins to connect.
    ///
    /// # Errors
    /// The options are wrong.
    pub fn start(options: ManagerOptions) -> Result<Self, Error> {
        let own = |table: &str| Table {
            any: vec![Condition::equal("manager", options.name.as_str())],
            ..Table::all(table)
        };
        let tables = vec![own(REQUEST), own(CHANNEL)];
        let database = Options {
            tls: options.tls,
            ..Options::new(options.endpoints, DATABASE, tables)
        };
        let (client, events) = Client::start(database)?;
        let news = Arc::new(Notify::new());
        let pulse = Arc::new(Notify::new());
        let started = now_ms();
        let shared = SharedParty::new(Desk {
            name: options.name.clone(),
            replica: Replica::new(REQUEST),
            generation: started,
            channels: BTreeMap::new(),
            pending: BTreeMap::new(),
            waiting: BTreeMap::new(),
            news: BTreeMap::new(),
            bell: news.clone(),
            pulse: pulse.clone(),
            away: Some("it has not been reached yet".into()),
        });
        let stop = Arc::new(Notify::new());
        tokio::spawn(keep_in_step(
            shared.clone(),
            client.clone(),
            events,
            stop.clone(),
        ));
        let manager = Manager {
            name: options.name,
            address: options.address,
            generation: started,
            last_seen_ms: started,
        };
        let (weak, keep) = (shared.clone(), options.keep);
        let announcing = announce(client.clone(), manager, pulse);
        let settling = async move {
            tokio::time::sleep(keep).await;
            weak.lock().replica.be_strict();
            weak.wake();
        };
        let chores = tokio::spawn(async { tokio::join!(announcing, settling) });
        Ok(Self {
            shared,
            client,
            decision: options.decision,
            news,
            _life: Arc::new(Life(stop, chores.abort_handle())),
        })
    }

    /// Asks for a channel, or for another one in its place, and waits for the
    /// decision: [`begin`](Self::begin) and [`PendingRequest::decided`].
    pub async fn ask(&self, request: Request) -> Channel {
        self.begin(request).decided().await
    }

    /// Asks for a channel, or for another one in its place. The manager's name
    /// and the generation are filled in here.
    pub fn begin(&self, request: Request) -> PendingRequest {
        let asked = self.shared.lock().ask(request);
        self.shared.wake();
        PendingRequest {
            shared: self.shared.clone(),
            patience: self.decision,
            asked,
        }
    }

    /// Gives up a channel.
    pub fn withdraw(&self, flow: &str) {
        let mut desk = self.shared.lock();
        let key = desk.key(flow);
        desk.replica.want(key, None);
        desk.channels.remove(flow);
        desk.news.remove(flow);
        desk.pending.remove(flow);
        drop(desk);
        self.shared.wake();
    }

    /// The next decision without a waiting caller: a late one, or a changed one. For one reader.
    pub async fn next_change(&self) -> Channel {
        loop {
            let bell = self.news.notified();
            if let Some((_, channel)) = self.shared.lock().news.pop_first() {
                return channel;
            }
            bell.await;
        }
    }

    /// What was last decided about a flow.
    pub fn channel(&self, flow: &str) -> Option<Channel> {
        self.shared.lock().channels.get(flow).cloned()
    }

    /// Why the database is away; `None`: it is there.
    pub fn away(&self) -> Option<String> {
        self.shared.lock().away.clone()
    }

    /// Requests that are not in the database yet as they should be.
    pub fn unsettled(&self) -> usize {
        self.shared.lock().replica.unsettled()
    }

    /// Connections to the database that were made so far.
    pub fn connections(&self) -> u64 {
        self.client.connections()
    }
}

/// A request that is being decided.
#[derive(Debug)]
pub struct PendingRequest {
    shared: Arc<SharedParty<Desk>>,
    patience: Duration,
    asked: Result<PendingReply, Box<Channel>>,
}

impl PendingRequest {
    /// The generation of the request, which the decision names.
    pub fn generation(&self) -> u64 {
        match &self.asked {
            Ok((request, _)) => request.generation,
            Err(channel) => channel.generation,
        }
    }

    /// The decision. Without one in time the channel is `best-effort` and says
    /// why; the request stays, and the decision comes by
    /// [`ManagerSide::next_change`].
    pub async fn decided(self) -> Channel {
        let (request, decided) = match self.asked {
            Ok(asked) => asked,
            Err(channel) => return *channel,
        };
        if let Ok(Ok(channel)) = timeout(self.patience, decided).await {
            return channel;
        }
        let mut desk = self.shared.lock();
        desk.forget_waiter(&request.flow, request.generation);
        let pending = desk.pending.get(&request.flow);
        let pending = pending.filter(|channel| channel.answers(&request));
        let why = match (&desk.away, pending) {
            (Some(why), _) => format!("the database of requirements is away ({why})"),
            (None, Some(channel)) => format!("the controller waits: {}", channel.reason),
            (None, None) => {
                format!("the controller has not decided within {:?}", self.patience)
            }
        };
        let reason = format!("{why}; the request stays");
        Channel::of(&request, State::BestEffort, reason)
    }
}

type PendingReply = (Request, oneshot::Receiver<Channel>);

impl Desk {
    fn key(&self, flow: &str) -> Key {
        (self.name.clone(), flow.to_owned())
    }

    /// The request as it goes into the database; or the answer, if it is known.
    fn ask(&mut self, mut request: Request) -> Result<PendingReply, Box<Channel>> {
        request.manager.clone_from(&self.name);
        let key = self.key(&request.flow);
        let known = self.replica.wanted(&key).or(self.replica.actual(&key));
        let known = known.and_then(|row| to_request(row).ok());
        request.generation = match known {
            Some(known) if known.same_demand(&request) => known.generation,
            known => {
                let last = known.map_or(0, |known| known.generation);
                self.generation = self.generation.max(last) + 1;
                self.generation
            }
        };
        if let Err(error) = request.check() {
            let channel = Channel::of(&request, State::Rejected, error.to_string());
            return Err(Box::new(channel));
        }
        self.replica.want(key, Some(of_request(&request)));
        let decided = self.channels.get(&request.flow);
        if let Some(channel) = decided.filter(|c| c.answers(&request)) {
            return Err(Box::new(channel.clone()));
        }
        let (sender, receiver) = oneshot::channel();
        let waiting = self.waiting.entry(request.flow.clone()).or_default();
        waiting.push((request.generation, sender));
        Ok((request, receiver))
    }

    fn forget_waiter(&mut self, flow: &str, generation: u64) {
        if let Some(waiting) = self.waiting.get_mut(flow) {
            waiting.retain(|(other, sender)| *other != generation && !sender.is_closed());
            if waiting.is_empty() {
                self.waiting.remove(flow);
            }
        }
    }

    fn decided(&mut self, channel: Channel) {
        let wanted = self.replica.wanted(&self.key(&channel.flow));
        let current =
            wanted.is_some_and(|row| row.integer("generation") == channel.generation as i64);
        if wanted.is_some() && !current {
            return;
        }
        if channel.state == State::Pending {
            self.pending.insert(channel.flow.clone(), channel);
            return;
        }
        self.pending.remove(&channel.flow);
        let mut told = false;
        for (generation, sender) in self.waiting.remove(&channel.flow).into_iter().flatten() {
            let channel = match generation == channel.generation {
                true => channel.clone(),
                // Another request has taken its place.
                false => Channel {
                    generation,
                    state: State::BestEffort,
                    reason: "the requirement has been changed meanwhile".into(),
                    ..channel.clone()
                },
            };
            told |= sender.send(channel).is_ok();
        }
        if !told && wanted.is_some() {
            self.news.insert(channel.flow.clone(), channel.clone());
            self.bell.notify_one();
        }
        self.channels.insert(channel.flow.clone(), channel);
    }
}

impl Party for Desk {
    fn replica(&mut self) -> &mut Replica {
        &mut self.replica
    }

    fn changed(&mut self, change: Change) {
        match change.table.as_str() {
            REQUEST => {
                self.replica
                    .seen(change.uuid, change.old.as_ref(), change.new.as_ref());
                // It was removed because this manager was taken for dead.
                if change.new.is_none()
                    && let Some(old) = &change.old
                    && self.replica.wanted(&key(old)).is_some()
                {
                    self.pulse.notify_one();
                }
            }
            CHANNEL => match (change.new, change.old) {
                (Some(row), _) => match to_channel(&row) {
                    Ok(channel) => self.decided(channel),
                    Err(problem) => tracing::warn!("a channel makes no sense: {problem}"),
                },
                // Another one may have taken its place already.
                (None, Some(row)) => {
                    let flow = row.text("flow");
                    if self.channels.get(flow) == to_channel(&row).ok().as_ref() {
                        self.channels.remove(flow);
                    }
                }
                (None, None) => {}
            },
            _ => {}
        }
    }

    fn status(&mut self, status: Result<(), String>) {
        let away = status.err();
        match (&self.away, &away) {
            (Some(_), None) => {
                tracing::info!("the database of requirements is there");
                self.pulse.notify_one();
            }
            (None, Some(why)) => tracing::warn!("the database of requirements is away: {why}"),
            _ => {}
        }
        self.away = away;
    }

    fn refused(&mut self, key: &Key, why: &str) {
        tracing::warn!("a request for {:?} is not taken: {why}", key.1);
        let Some(request) = self
            .replica
            .wanted(key)
            .and_then(|row| to_request(row).ok())
        else {
            return;
        };
        self.decided(Channel::of(&request, State::BestEffort, why));
    }
}

/// Keeps the manager's own row.
async fn announce(client: Client, mut manager: Manager, pulse: Arc<Notify>) {
    loop {
        manager.last_seen_ms = now_ms();
        let row = of_manager(&manager);
        let update = Operation::Update {
            table: MANAGER.into(),
            conditions: vec![Condition::equal("name", manager.name.as_str())],
            row: row.clone(),
        };
        let written = match client.transact(vec![update], SIGN_OF_LIFE).await {
            Ok(outcomes) if outcomes == [Outcome::Count(0)] => {
                let insert = Operation::insert(MANAGER, row);
                client.transact(vec![insert], SIGN_OF_LIFE).await
            }
            other => other,
        };
        match written {
            Ok(_) => {
                let _ = timeout(SIGN_OF_LIFE, pulse.notified()).await;
            }
            Err(error) => {
                tracing::debug!("the row of manager {:?}: {error}", manager.name);
                tokio::time::sleep(SIGN_OF_LIFE / 60).await;
            }
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
