//! The connection: it connects, finds the leader, monitors, transacts, probes,
//! and begins anew when something breaks.
//!
//! One task owns everything. Transactions wait in a bounded channel until there is a connection,
//! each as long as its caller is patient; one that was sent when the connection broke is
//! [`Error::Lost`]: it may have been done. Changes of rows wait in the cache, merged by row, so a
//! slow reader costs no memory and delays nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::select;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::cache::{Cache, Change};
use super::connect::{Stream, connect};
use super::endpoint::{Endpoint, TlsOptions};
use super::operation::{self, Condition, Failure, Operation, Outcome};
use super::schema::Schema;
use super::session::{Incoming, Session};
use crate::tls;

/// Largest message of a server, bytes.
const MAX_MESSAGE: usize = 64 << 20;
/// Transactions that wait to be sent; further callers wait for room.
const MAX_WAITING: usize = 256;
/// Transactions that wait for a reply.
const MAX_IN_FLIGHT: usize = 64;
/// Bytes that wait to be sent, above which no transaction is taken up.
const MAX_UNSENT: usize = 1 << 20;
/// How long servers are refused that are behind what was seen of their cluster.
/// A new leader may be so until it is written to.
const STALE: Duration = Duration::from_millis(300);
/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// What a client is to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// Servers of the database, in the order in which they are tried.
    pub endpoints: Vec<Endpoint>,
    /// Certificates, if one of them is `ssl:`.
    pub tls: Option<TlsOptions>,
    /// Name of the database.
    pub database: String,
    /// What is monitored.
    pub tables: Vec<Table>,
    /// Whether only the leader of a cluster will do: what it says is current.
    pub leader_only: bool,
    /// How long a server may take from the connection to the first rows.
    pub connect_timeout: Duration,
    /// Silence after which a server is asked for a sign of life, and after
    /// twice of which it counts as gone.
    pub probe_interval: Duration,
    /// First and longest pause after all servers were tried in vain; it doubles
    /// from one to the other.
    pub backoff: (Duration, Duration),
}

impl Options {
    /// With the usual times.
    pub fn new(endpoints: Vec<Endpoint>, database: &str, tables: Vec<Table>) -> Self {
        Self {
            endpoints,
            tls: None,
            database: database.to_owned(),
            tables,
            leader_only: false,
            connect_timeout: Duration::from_secs(3),
            probe_interval: Duration::from_secs(2),
            backoff: (Duration::from_millis(10), Duration::from_millis(250)),
        }
    }
}

/// A table that is monitored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its columns; empty: all.
    pub columns: Vec<String>,
    /// Rows for which one of these holds; empty: all.
    pub any: Vec<Condition>,
}

impl Table {
    /// All columns of all rows.
    pub fn all(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            columns: Vec::new(),
            any: Vec::new(),
        }
    }
}

/// What has happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Rows are not what they were.
    Changed(Vec<Change>),
    /// The rows are those of the database from now on, which has been reached.
    Connected {
        /// The server.
        endpoint: Endpoint,
    },
    /// The rows are those of the past.
    Disconnected {
        /// Why, in plain words.
        why: String,
    },
}

/// Whether there is a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// To that server.
    Connected(Endpoint),
    /// None, and why.
    Away(String),
}

/// Why a transaction was not done, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No server could be reached in time.
    #[error("the database is away: {0}")]
    Away(String),
    /// The connection ended before the reply: it may have been done.
    #[error("the database went away before it replied: {0}")]
    Lost(String),
    /// The server does not do it.
    #[error("the database refused: {0}")]
    Refused(Failure),
    /// A file or an option is wrong.
    #[error("{0}")]
    Options(String),
}

/// A handle; clones share the connection, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct Client {
    orders: mpsc::Sender<Order>,
    shared: Arc<ClientCore>,
}

/// What happens, for one reader.
#[derive(Debug)]
pub struct Events {
    shared: Arc<ClientCore>,
}

#[derive(Debug)]
struct Order {
    operations: Vec<Operation>,
    reply: oneshot::Sender<Result<Vec<Outcome>, Error>>,
}

#[derive(Debug)]
struct ClientCore {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug)]
struct State {
    cache: Cache,
    status: Status,
    /// Whether the reader has not received the present status.
    untold: bool,
    ended: bool,
    connections: u64,
}

impl ClientCore {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_status(&self, status: Status) {
        let mut state = self.state();
        let was = matches!(state.status, Status::Connected(_));
        let is = matches!(status, Status::Connected(_));
        state.connections += u64::from(is);
        // One that never was there has not gone.
        state.untold |= was || is;
        state.status = status;
        drop(state);
        self.news.notify_one();
    }
}

impl Client {
    /// Begins to connect, on the caller's Tokio runtime.
    ///
    /// # Errors
    /// A certificate cannot be used, or there is no server to connect to.
    pub fn start(options: Options) -> Result<(Self, Events), Error> {
        if options.endpoints.is_empty() {
            return Err(Error::Options("there is no server to connect to".into()));
        }
        let tls = match (&options.tls, options.endpoints.iter().any(Endpoint::is_tls)) {
            (Some(files), true) => {
                let config = tls::client(files);
                Some(config.map_err(|error| Error::Options(error.to_string()))?)
            }
            (None, true) => {
                return Err(Error::Options(
                    "ssl: needs a certificate, its key and an authority".into(),
                ));
            }
            (_, false) => None,
        };
        let (orders, receiver) = mpsc::channel(MAX_WAITING);
        let shared = Arc::new(ClientCore {
            state: Mutex::new(State {
                cache: Cache::default(),
                status: Status::Away("not connected yet".into()),
                untold: false,
                ended: false,
                connections: 0,
            }),
            news: Notify::new(),
        });
        let task = Task {
            options,
            tls,
            orders: receiver,
            shared: shared.clone(),
            least_index: 0,
            stale_since: None,
        };
        tokio::spawn(task.run());
        let events = Events {
            shared: shared.clone(),
        };
        Ok((Self { orders, shared }, events))
    }

    /// Does all of it or nothing, within a time, waits for a connection
    /// included.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn transact(
        &self,
        operations: Vec<Operation>,
        patience: Duration,
    ) -> Result<Vec<Outcome>, Error> {
        let (reply, answer) = oneshot::channel();
        let mut sent = false;
        let whole = async {
            let gone = || Error::Away("the connection has ended".into());
            let order = Order { operations, reply };
            self.orders.send(order).await.map_err(|_| gone())?;
            sent = true;
            answer.await.map_err(|_| gone())?
        };
        match timeout(patience, whole).await {
            Ok(result) => result,
            Err(_) => Err(match (self.status(), sent) {
                (Status::Away(why), _) => Error::Away(why),
                (Status::Connected(endpoint), true) => {
                    Error::Lost(format!("{endpoint} has not replied within {patience:?}"))
                }
                (Status::Connected(endpoint), false) => {
                    Error::Away(format!("too much waits for {endpoint}"))
                }
            }),
        }
    }

    /// Whether there is a connection.
    pub fn status(&self) -> Status {
        self.shared.state().status.clone()
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> u64 {
        self.shared.state().connections
    }

    /// Looks at the rows.
    pub fn look<T>(&self, look: impl FnOnce(&Cache) -> T) -> T {
        look(&self.shared.state().cache)
    }
}

impl Events {
    /// What happens next; `None` when the last handle is gone.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            {
                let mut state = self.shared.state();
                let changes = state.cache.take_changes();
                if !changes.is_empty() {
                    return Some(Event::Changed(changes));
                }
                if std::mem::take(&mut state.untold) {
                    return Some(match state.status.clone() {
                        Status::Connected(endpoint) => Event::Connected { endpoint },
                        Status::Away(why) => Event::Disconnected { why },
                    });
                }
                if state.ended {
                    return None;
                }
            }
            self.shared.news.notified().await;
        }
    }
}

struct Task {
    options: Options,
    tls: Option<Arc<rustls::ClientConfig>>,
    orders: mpsc::Receiver<Order>,
    shared: Arc<ClientCore>,
    /// Index of the newest state of a cluster that was seen.
    least_index: i64,
    /// Since when only older ones are found.
    stale_since: Option<Instant>,
}

/// What a request was for.
enum RequestPurpose {
    Schema,
    Server,
    Rows,
    Transaction(usize, oneshot::Sender<Result<Vec<Outcome>, Error>>),
}

/// How far the beginning of a connection is.
#[derive(Default)]
struct Progress {
    schema: bool,
    server: bool,
    rows: bool,
}

impl Task {
    async fn run(mut self) {
        let endpoints = self.options.endpoints.clone();
        let (first, longest) = self.options.backoff;
        let mut pause = first;
        'ever: loop {
            let mut reached = false;
            let mut reasons: Vec<String> = Vec::new();
            for endpoint in &endpoints {
                if self.orders.is_closed() {
                    break 'ever;
                }
                let (connected, why) = self.attempt(endpoint).await;
                reached |= connected;
                let Some(why) = why else {
                    break 'ever;
                };
                tracing::debug!("{endpoint}: {why}");
                if connected {
                    // Perhaps another one leads now.
                    pause = first;
                    reasons.clear();
                }
                reasons.push(format!("{endpoint}: {why}"));
                self.shared.set_status(Status::Away(reasons.join("; ")));
            }
            if !reached {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        }
        self.shared.state().ended = true;
        self.shared.news.notify_one();
    }

    /// Connects and stays; whether it was ever connected, and why not any more.
    /// `None`: nobody needs it.
    async fn attempt(&mut self, endpoint: &Endpoint) -> (bool, Option<String>) {
        let opening = connect(endpoint, self.tls.as_ref());
        let stream = match timeout(self.options.connect_timeout, opening).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return (false, Some(error.to_string())),
            Err(_) => return (false, Some("it does not answer".into())),
        };
        let mut asked = HashMap::new();
        let mut progress = Progress::default();
        let why = self
            .converse(endpoint, stream, &mut asked, &mut progress)
            .await;
        for request in asked.into_values() {
            if let RequestPurpose::Transaction(_, reply) = request {
                let why = why.clone().unwrap_or_default();
                // The caller may have given up.
                let _ = reply.send(Err(Error::Lost(why)));
            }
        }
        (progress.rows, why)
    }

    async fn converse(
        &mut self,
        endpoint: &Endpoint,
        stream: Box<dyn Stream>,
        asked: &mut HashMap<u64, RequestPurpose>,
        progress: &mut Progress,
    ) -> Option<String> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut session = Session::new(MAX_MESSAGE);
        let mut server = Cache::default();
        let schema = session.request("get_schema", &json!([self.options.database]));
        asked.insert(schema, RequestPurpose::Schema);
        let of_server = json!({"Database": [{
            "columns": ["name", "model", "connected", "leader", "index"],
            "where": [["name", "==", self.options.database]],
        }]});
        let about = session.request("monitor_cond_since", &server.monitor("_Server", &of_server));
        asked.insert(about, RequestPurpose::Server);
        let begin_by = Instant::now() + self.options.connect_timeout;
        let mut probe_at = Instant::now() + self.options.probe_interval;
        let mut probed = false;
        let mut buffer = vec![0; READ];
        let mut incoming = Vec::new();
        loop {
            let alarm = if progress.rows { probe_at } else { begin_by };
            let unsent = session.output().len();
            let room = progress.rows && asked.len() < MAX_IN_FLIGHT && unsent < MAX_UNSENT;
            select! {
                read = reader.read(&mut buffer) => {
                    let bytes = match read {
                        Ok(0) => return Some("it closed the connection".into()),
                        Ok(count) => &buffer[..count],
                        Err(error) => return Some(error.to_string()),
                    };
                    probe_at = Instant::now() + self.options.probe_interval;
                    probed = false;
                    if let Err(error) = session.receive(bytes, &mut incoming) {
                        return Some(error.to_string());
                    }
                    for message in incoming.drain(..) {
                        let taken = self.take(message, asked, &mut server, &mut session, progress);
                        if let Err(why) = taken {
                            return Some(why);
                        }
                    }
                    if progress.rows
                        && !matches!(self.shared.state().status, Status::Connected(_))
                    {
                        self.shared.set_status(Status::Connected(endpoint.clone()));
                    }
                    self.shared.news.notify_one();
                }
                written = writer.write(session.output()), if unsent > 0 => {
                    match written {
                        Ok(count) => drop(session.output().drain(..count)),
                        Err(error) => return Some(error.to_string()),
                    }
                    // TLS keeps what it has not sent.
                    if session.output().is_empty()
                        && let Err(error) = writer.flush().await
                    {
                        return Some(error.to_string());
                    }
                }
                order = self.orders.recv(), if room => {
                    let Order { operations, reply } = order?;
                    if !reply.is_closed() {
                        let params = operation::transact(&self.options.database, &operations);
                        let id = session.request("transact", &params);
                        asked.insert(id, RequestPurpose::Transaction(operations.len(), reply));
                    }
                }
                () = sleep_until(alarm) => {
                    if !progress.rows {
                        return Some("it has not told its rows in time".into());
                    }
                    if probed {
                        return Some("it gives no sign of life".into());
                    }
                    probed = true;
                    session.probe();
                    probe_at = Instant::now() + self.options.probe_interval;
                }
            }
        }
    }

    fn take(
        &mut self,
        message: Incoming,
        asked: &mut HashMap<u64, RequestPurpose>,
        server: &mut Cache,
        session: &mut Session,
        progress: &mut Progress,
    ) -> Result<(), String> {
        let text = |error: super::value::MalformedValue| error.to_string();
        let said = |error: &Value| Failure::from_json(None, error).to_string();
        match message {
            Incoming::Alive => return Ok(()),
            Incoming::Notification { method, params } if method == "update3" => {
                if params[0] == "_Server" {
                    server.updated(&params).map_err(text)?;
                    self.judge(server)?;
                } else {
                    self.shared.state().cache.updated(&params).map_err(text)?;
                }
                return Ok(());
            }
            Incoming::Notification { .. } => return Ok(()),
            Incoming::Reply { id, result } => match (asked.remove(&id), result) {
                (None, _) => return Ok(()),
                (Some(RequestPurpose::Transaction(count, reply)), result) => {
                    let result = match result {
                        Ok(value) => match operation::outcomes(count, &value) {
                            Ok(result) => result.map_err(Error::Refused),
                            Err(error) => {
                                let why = error.to_string();
                                let _ = reply.send(Err(Error::Lost(why.clone())));
                                return Err(why);
                            }
                        },
                        Err(error) => Err(Error::Refused(Failure::from_json(None, &error))),
                    };
                    // The caller may have given up.
                    let _ = reply.send(result);
                    return Ok(());
                }
                (Some(RequestPurpose::Schema), result) => {
                    let database = &self.options.database;
                    let value = result.map_err(|error| {
                        format!("it has no database {database}: {}", said(&error))
                    })?;
                    let schema = Schema::from_json(&value).map_err(text)?;
                    self.shared.state().cache.set_schema(schema);
                    progress.schema = true;
                }
                (Some(RequestPurpose::Server), Ok(value)) => {
                    server.replied(&value).map_err(text)?;
                    self.judge(server)?;
                    progress.server = true;
                }
                // A server that knows nothing of clusters is none.
                (Some(RequestPurpose::Server), Err(_)) => progress.server = true,
                (Some(RequestPurpose::Rows), result) => {
                    let value = result.map_err(|error| said(&error))?;
                    self.shared.state().cache.replied(&value).map_err(text)?;
                    progress.rows = true;
                    return Ok(());
                }
            },
        }
        if progress.schema && progress.server {
            let tables = tables(&self.options.tables);
            let params = self
                .shared
                .state()
                .cache
                .monitor(&self.options.database, &tables);
            let rows = session.request("monitor_cond_since", &params);
            asked.insert(rows, RequestPurpose::Rows);
        }
        Ok(())
    }

    /// Whether a server will do, by what `_Server` says of the database.
    fn judge(&mut self, server: &Cache) -> Result<(), String> {
        let Some((_, row)) = server.rows("Database").next() else {
            return Err(format!("it has no database {}", self.options.database));
        };
        if row.text("model") != "clustered" {
            return Ok(());
        }
        if !row.boolean("connected") {
            return Err("it has lost its cluster".into());
        }
        if self.options.leader_only && !row.boolean("leader") {
            return Err("it does not lead its cluster".into());
        }
        let index = row.integer("index");
        let now = Instant::now();
        if index < self.least_index && now < *self.stale_since.get_or_insert(now) + STALE {
            return Err("it is behind what was seen of its cluster".into());
        }
        self.stale_since = None;
        self.least_index = index;
        Ok(())
    }
}

fn tables(tables: &[Table]) -> Value {
    let tables = tables.iter().map(|table| {
        let mut request = Map::new();
        if !table.columns.is_empty() {
            request.insert("columns".into(), json!(table.columns));
        }
        if !table.any.is_empty() {
            request.insert(
                "where".into(),
                table.any.iter().map(Condition::to_json).collect(),
            );
        }
        (table.name.clone(), json!([request]))
    });
    Value::Object(tables.collect())
}
