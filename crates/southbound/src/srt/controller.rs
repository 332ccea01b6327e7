//! The controller's side: requests and what is answered to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use punctual_model::srt::{Channel, Request, State};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::replica::Replica;
use super::rights::rights;
use super::rows::{CHANNEL, Key, MANAGER, REQUEST, key, of_channel, to_channel, to_request};
use super::step::{Party, SharedParty, keep_in_step};
use super::{DATABASE, MANAGER_ROLE};
use crate::ovsdb::cache::Change;
use crate::ovsdb::operation::{Condition, Mutation, Mutator, Operation, Outcome};
use crate::ovsdb::value::{Row, Uuid};
use crate::ovsdb::{Client, Endpoint, Error, Options, Status, Table, TlsOptions};

/// How long the preparation of the database may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The database, and the name of this controller.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// Servers of the database.
    pub endpoints: Vec<Endpoint>,
    /// Certificates, for `ssl:`.
    pub tls: Option<TlsOptions>,
    /// Name of the controller, 1 to 64 characters.
    pub name: String,
    /// A manager that has not updated its row for so long is taken for dead, and its requests are
    /// removed. Managers that never wrote a row are not affected.
    pub silence: Duration,
    /// Reads only, and writes nothing.
    pub read_only: bool,
}

/// Writes channels. Clones are the same controller; with the last one the
/// connection ends.
#[derive(Debug, Clone)]
pub struct ControllerSide {
    shared: Arc<SharedParty<Desk>>,
    client: Client,
    _life: Arc<Life>,
}

/// Requests of managers, for one reader.
#[derive(Debug)]
pub struct Inbox {
    shared: Arc<SharedParty<Desk>>,
    bell: Arc<Notify>,
}

/// An event of the requirements table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Letter {
    /// A request is new, or has changed.
    Asked(Request),
    /// A request was withdrawn.
    Withdrawn {
        /// The manager that withdrew it.
        manager: String,
        /// The flow of the request.
        flow: String,
    },
    /// The database has been reached: all its requests have been reported.
    Reached,
    /// The database is unreachable, for this reason.
    Away(String),
}

/// Ends the tasks when the last handle goes.
#[derive(Debug)]
struct Life(Arc<Notify>, Option<AbortHandle>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.notify_one();
        if let Some(ageing) = &self.1 {
            ageing.abort();
        }
    }
}

/// The last sign of life of a manager.
#[derive(Debug, Clone, Copy)]
struct LastSign {
    /// The time that it gave, by its own clock; `None` once its row is gone.
    said: Option<i64>,
    /// When that was heard here.
    heard: Instant,
}

impl LastSign {
    fn now(said: Option<i64>) -> Self {
        let heard = Instant::now();
        Self { said, heard }
    }
}

#[derive(Debug)]
struct Desk {
    replica: Replica,
    /// With the rows that they are in.
    requests: BTreeMap<Key, (Uuid, Request)>,
    /// Changed requests that were not reported yet; merged by key.
    changed: BTreeMap<Key, Option<Request>>,
    /// A status that was not reported yet.
    status: Option<Result<(), String>>,
    /// Managers that have said that they are there.
    managers: BTreeMap<String, LastSign>,
    connected: bool,
    read_only: bool,
    bell: Arc<Notify>,
}

impl ControllerSide {
    /// Begins to connect.
    ///
    /// # Errors
    /// The options are wrong.
    pub fn start(options: ControllerOptions) -> Result<(Self, Inbox), Error> {
        let tables = vec![
            Table::all(REQUEST),
            Table::all(CHANNEL),
            Table::all(MANAGER),
        ];
        let database = Options {
            tls: options.tls,
            leader_only: true,
            ..Options::new(options.endpoints, DATABASE, tables)
        };
        let (client, events) = Client::start(database)?;
        let bell = Arc::new(Notify::new());
        let shared = SharedParty::new(Desk {
            replica: Replica::new(CHANNEL),
            requests: BTreeMap::new(),
            changed: BTreeMap::new(),
            status: None,
            managers: BTreeMap::new(),
            connected: false,
            read_only: options.read_only,
            bell: bell.clone(),
        });
        let stop = Arc::new(Notify::new());
        tokio::spawn(keep_in_step(
            shared.clone(),
            client.clone(),
            events,
            stop.clone(),
        ));
        let ageing = match options.read_only {
            true => None,
            false => {
                let ageing = age(shared.clone(), client.clone(), options.silence);
                Some(tokio::spawn(ageing).abort_handle())
            }
        };
        let side = Self {
            shared: shared.clone(),
            client,
            _life: Arc::new(Life(stop, ageing)),
        };
        Ok((side, Inbox { shared, bell }))
    }

    /// Ensures that the role of managers exists, and writes the name of the controller.
    ///
    /// # Errors
    /// The database is away or refuses.
    pub async fn prepare(&self, name: &str) -> Result<(), Error> {
        let of_role = vec![Condition::equal("name", MANAGER_ROLE)];
        let look = Operation::Select {
            table: "RBAC_Role".into(),
            conditions: of_role,
            columns: Some(vec!["name".into()]),
        };
        let found = self.client.transact(vec![look], PATIENCE).await?;
        if found == [Outcome::Rows(Vec::new())] {
            self.client.transact(rights(), PATIENCE).await?;
        }
        let row = Row::default().with("controller", name);
        let begin = vec![
            Operation::Update {
                table: "Global".into(),
                conditions: Vec::new(),
                row: row.clone(),
            },
            Operation::Mutate {
                table: "Global".into(),
                conditions: Vec::new(),
                mutations: vec![Mutation {
                    column: "generation".into(),
                    mutator: Mutator::Add,
                    value: 1.into(),
                }],
            },
        ];
        let changed = self.client.transact(begin, PATIENCE).await?;
        if changed.first() == Some(&Outcome::Count(0)) {
            let insert = Operation::insert("Global", row.with("generation", 1));
            self.client.transact(vec![insert], PATIENCE).await?;
        }
        Ok(())
    }

    /// Answers a request. An answer to what is not asked any more is dropped.
    pub fn answer(&self, channel: &Channel) {
        let key = (channel.manager.clone(), channel.flow.clone());
        let mut desk = self.shared.lock();
        let asked = desk.requests.get(&key);
        if asked.is_none_or(|(_, request)| request.generation != channel.generation) {
            return;
        }
        let row = of_channel(channel);
        if desk.replica.wanted(&key) != Some(&row) {
            desk.replica.want(key, Some(row));
            drop(desk);
            self.shared.wake();
        }
    }

    /// Removes the answer to a request that was withdrawn.
    pub fn retract(&self, manager: &str, flow: &str) {
        let key = (manager.to_owned(), flow.to_owned());
        self.shared.lock().replica.want(key, None);
        self.shared.wake();
    }

    /// Every request that was found has been answered: answers without one are
    /// removed from now on.
    pub fn settled(&self) {
        self.shared.lock().replica.be_strict();
        self.shared.wake();
    }

    /// The valid channels in the database: after a restart, the flows admitted before.
    pub fn channels(&self) -> Vec<Channel> {
        self.client.look(|cache| {
            let rows = cache.rows(CHANNEL);
            rows.filter_map(|(_, row)| to_channel(row).ok()).collect()
        })
    }

    /// The requests that are in the database.
    pub fn requests(&self) -> Vec<Request> {
        let desk = self.shared.lock();
        desk.requests
            .values()
            .map(|(_, request)| request.clone())
            .collect()
    }

    /// Whether there is a connection.
    pub fn status(&self) -> Status {
        self.client.status()
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> u64 {
        self.client.connections()
    }

    /// Answers that are not in the database yet as they should be.
    pub fn unsettled(&self) -> usize {
        self.shared.lock().replica.unsettled()
    }
}

impl Inbox {
    /// What happens next.
    pub async fn next(&mut self) -> Letter {
        loop {
            let bell = self.bell.notified();
            if let Some(letter) = self.shared.lock().next() {
                return letter;
            }
            bell.await;
        }
    }

    /// What happens next, if it has happened already.
    pub fn try_next(&mut self) -> Option<Letter> {
        self.shared.lock().next()
    }
}

impl Desk {
    fn next(&mut self) -> Option<Letter> {
        if let Some(((manager, flow), request)) = self.changed.pop_first() {
            return Some(match request {
                Some(request) => Letter::Asked(request),
                None => Letter::Withdrawn { manager, flow },
            });
        }
        let status = self.status.take()?;
        Some(match status {
            Ok(()) => Letter::Reached,
            Err(why) => Letter::Away(why),
        })
    }

    fn asked(&mut self, uuid: Uuid, row: &Row) {
        match to_request(row) {
            Ok(request) => {
                let key = key(row);
                self.requests.insert(key.clone(), (uuid, request.clone()));
                self.changed.insert(key, Some(request));
            }
            Err(problem) => self.makes_no_sense(row, problem),
        }
    }

    /// A row was removed. Another one may have replaced it already: the order of the two
    /// notifications is not defined.
    fn gone(&mut self, uuid: Uuid, key: Key) {
        if self
            .requests
            .get(&key)
            .is_some_and(|(known, _)| *known == uuid)
        {
            self.requests.remove(&key);
            self.changed.insert(key, None);
        }
    }

    /// Managers that have given no sign of life for `silence`, with the last
    /// one. Those without a row and without requests are forgotten.
    fn silent(&mut self, silence: Duration) -> Vec<(String, Option<i64>)> {
        if !self.connected {
            return Vec::new();
        }
        let requests = &self.requests;
        let asks = |name: &String| {
            let from = (name.clone(), String::new());
            let first = requests.range(from..).next();
            first.is_some_and(|((manager, _), _)| manager == name)
        };
        let mut silent = Vec::new();
        self.managers.retain(|name, sign| {
            if sign.heard.elapsed() <= silence {
                return true;
            }
            let known = sign.said.is_some() || asks(name);
            if known {
                silent.push((name.clone(), sign.said));
            }
            known
        });
        silent
    }

    /// Answers what nobody else is to be bothered with.
    fn makes_no_sense(&mut self, row: &Row, problem: String) {
        let key = key(row);
        tracing::warn!("a request of {:?} makes no sense: {problem}", key.0);
        if self.requests.remove(&key).is_some() {
            self.changed.insert(key.clone(), None);
        }
        if self.read_only {
            return;
        }
        let channel = Channel {
            manager: key.0.clone(),
            flow: key.1.clone(),
            generation: u64::try_from(row.integer("generation")).unwrap_or(0),
            state: State::Rejected,
            reason: problem,
            ..Channel::default()
        };
        self.replica.want(key, Some(of_channel(&channel)));
    }
}

impl Party for Desk {
    fn replica(&mut self) -> &mut Replica {
        &mut self.replica
    }

    fn changed(&mut self, change: Change) {
        match change.table.as_str() {
            CHANNEL => self
                .replica
                .seen(change.uuid, change.old.as_ref(), change.new.as_ref()),
            REQUEST => {
                if let Some(old) = &change.old
                    && change.new.as_ref().map(key) != Some(key(old))
                {
                    self.gone(change.uuid, key(old));
                }
                if let Some(new) = &change.new {
                    self.asked(change.uuid, new);
                }
            }
            MANAGER => {
                // A manager that wrote its requests again, because they had
                // been removed, and died before its next sign of life is not
                // one that never gave any.
                if let Some(old) = &change.old {
                    let name = old.text("name").to_owned();
                    self.managers.insert(name, LastSign::now(None));
                }
                if let Some(new) = &change.new {
                    let sign = LastSign::now(Some(new.integer("last_seen_ms")));
                    self.managers.insert(new.text("name").to_owned(), sign);
                }
            }
            _ => {}
        }
        self.bell.notify_one();
    }

    fn status(&mut self, status: Result<(), String>) {
        self.connected = status.is_ok();
        // A manager that could not be heard does not count as silent.
        for sign in self.managers.values_mut() {
            sign.heard = Instant::now();
        }
        self.status = Some(status);
        self.bell.notify_one();
    }

    fn refused(&mut self, key: &Key, why: &str) {
        tracing::error!("the answer to {key:?} is not taken: {why}");
    }
}

/// Removes the requests of managers that have been silent for too long. Clocks of
/// other machines do not count: only when a sign of life was heard here.
async fn age(shared: Arc<SharedParty<Desk>>, client: Client, silence: Duration) {
    loop {
        tokio::time::sleep(silence / 8).await;
        let silent = shared.lock().silent(silence);
        for (name, said) in silent {
            tracing::warn!(
                "manager {name:?} has been silent for {silence:?}: its requests are removed"
            );
            let of = |column: &str| Condition::equal(column, name.as_str());
            let delete = vec![
                // Unless it has just spoken.
                Operation::Wait {
                    table: MANAGER.into(),
                    conditions: vec![of("name")],
                    columns: vec!["last_seen_ms".into()],
                    equal: true,
                    rows: said
                        .map(|said| Row::default().with("last_seen_ms", said))
                        .into_iter()
                        .collect(),
                    timeout_ms: 0,
                },
                Operation::Delete {
                    table: REQUEST.into(),
                    conditions: vec![of("manager")],
                },
                Operation::Delete {
                    table: MANAGER.into(),
                    conditions: vec![of("name")],
                },
            ];
            if let Err(error) = client.transact(delete, PATIENCE).await {
                tracing::debug!("manager {name:?} is looked at again: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_model::srt::Peer;

    use super::*;
    use crate::srt::rows::of_request;

    #[test]
    fn a_row_that_takes_anothers_place_stays() {
        let request = Request {
            manager: "m".into(),
            flow: "f".into(),
            generation: 2,
            topic: "t".into(),
            qos: 0,
            publisher: Peer::udp([10, 0, 0, 1], 1),
            subscribers: [].into(),
            broker: None,
            deadline_ns: 1,
            period_ns: 1,
            jitter_ns: 0,
            size: 1,
            wire_bytes: 84,
            frames: 1,
            priority: None,
            bandwidth: None,
        };
        let row = of_request(&request);
        let mut desk = Desk {
            replica: Replica::new(CHANNEL),
            requests: BTreeMap::new(),
            changed: BTreeMap::new(),
            status: None,
            managers: BTreeMap::new(),
            connected: true,
            read_only: false,
            bell: Arc::new(Notify::new()),
        };
        let mut change = |number, old: Option<&Row>, new: Option<&Row>| {
            desk.changed(Change {
                table: REQUEST.into(),
                uuid: Uuid(number),
                old: old.cloned(),
                new: new.cloned(),
            });
            desk.next()
        };
        assert_eq!(
            change(1, None, Some(&row)),
            Some(Letter::Asked(request.clone()))
        );
        // The old row was another one.
        assert_eq!(change(2, Some(&row), None), None);
        let gone = Letter::Withdrawn {
            manager: "m".into(),
            flow: "f".into(),
        };
        assert_eq!(change(1, Some(&row), None), Some(gone));
    }
}
