//! Keeps a database in step with what is wanted: one task that listens, and
//! writes what is due, one transaction at a time.
//!
//! All that is due goes into one transaction, so the more there is to write, the
//! fewer transactions a row costs. If the server refuses one of the rows, the
//! others are written without it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::select;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::replica::Replica;
use super::rows::Key;
use crate::ovsdb::cache::Change;
use crate::ovsdb::operation::{Operation, Outcome};
use crate::ovsdb::{Client, Error, Event, Events};

/// Rows of a transaction.
const BATCH: usize = 256;
/// How long a transaction may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after one that was not done, for other reasons than that the
/// connection broke.
const PAUSE: Duration = Duration::from_millis(100);

/// A party that writes rows to the database.
pub(super) trait Party: Send + 'static {
    /// The rows it is responsible for.
    fn replica(&mut self) -> &mut Replica;
    /// A row has changed.
    fn changed(&mut self, change: Change);
    /// The database has been reached, and all changes until then were reported; or it is
    /// unreachable, for this reason.
    fn status(&mut self, status: Result<(), String>);
    /// The server does not take a row.
    fn refused(&mut self, key: &Key, why: &str);
}

/// A party that is shared with those who use it.
#[derive(Debug)]
pub(super) struct SharedParty<P> {
    party: Mutex<P>,
    due: Notify,
}

impl<P> SharedParty<P> {
    pub(super) fn new(party: P) -> Arc<Self> {
        Arc::new(Self {
            party: Mutex::new(party),
            due: Notify::new(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, P> {
        self.party.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There may be something to write.
    pub(super) fn wake(&self) {
        self.due.notify_one();
    }
}

type PendingWrite = (
    Vec<(Key, Operation)>,
    JoinHandle<Result<Vec<Outcome>, Error>>,
);

/// Runs until it is stopped.
pub(super) async fn keep_in_step<P: Party>(
    shared: Arc<SharedParty<P>>,
    client: Client,
    mut events: Events,
    stop: Arc<Notify>,
) {
    let mut connected = false;
    let mut batch = BATCH;
    let mut writing: Option<PendingWrite> = None;
    let mut not_before = Instant::now();
    loop {
        let paused = not_before > Instant::now();
        if connected && writing.is_none() && !paused {
            let plan = shared.lock().replica().plan(batch);
            if !plan.is_empty() {
                let operations = plan
                    .iter()
                    .map(|(_, operation)| operation.clone())
                    .collect();
                let client = client.clone();
                let write = async move { client.transact(operations, PATIENCE).await };
                writing = Some((plan, tokio::spawn(write)));
            }
        }
        let written = async {
            match &mut writing {
                Some((_, handle)) => handle.await,
                None => std::future::pending().await,
            }
        };
        select! {
            event = events.next() => match event {
                None => return,
                Some(Event::Changed(changes)) => {
                    let mut party = shared.lock();
                    for change in changes {
                        party.changed(change);
                    }
                }
                Some(Event::Connected { .. }) => {
                    connected = true;
                    shared.lock().status(Ok(()));
                }
                Some(Event::Disconnected { why }) => {
                    connected = false;
                    shared.lock().status(Err(why));
                }
            },
            result = written => {
                let Some((plan, _)) = writing.take() else { continue };
                let result = result.unwrap_or_else(|error| Err(Error::Lost(error.to_string())));
                if conclude(&shared, plan, result, &mut batch) {
                    not_before = Instant::now() + PAUSE;
                }
            }
            () = shared.due.notified() => {}
            () = sleep_until(not_before), if paused => {}
            () = stop.notified() => return,
        }
    }
}

/// Takes the result of a transaction; whether to wait before the next one.
fn conclude<P: Party>(
    shared: &SharedParty<P>,
    plan: Vec<(Key, Operation)>,
    result: Result<Vec<Outcome>, Error>,
    batch: &mut usize,
) -> bool {
    let mut party = shared.lock();
    match result {
        Ok(outcomes) => {
            *batch = BATCH;
            for ((key, operation), outcome) in plan.iter().zip(outcomes) {
                let inserted = match outcome {
                    Outcome::Inserted(uuid) => Some(uuid),
                    _ => None,
                };
                party.replica().written(key, operation, inserted);
            }
            false
        }
        Err(Error::Refused(failure)) => {
            let culprit = failure.operation.and_then(|at| plan.get(at));
            for pair in &plan {
                let hopeless = culprit == Some(pair);
                party.replica().failed(&pair.0, hopeless);
            }
            match culprit {
                Some((key, _)) => party.refused(key, &failure.to_string()),
                // A row is there already and has not been seen yet: an earlier
                // transaction was done although its reply was lost. One by one,
                // the others do not suffer.
                None => {
                    tracing::debug!("{} rows are to be written again: {failure}", plan.len());
                    *batch = 1;
                }
            }
            culprit.is_none()
        }
        Err(error) => {
            tracing::debug!("{} rows are to be written again: {error}", plan.len());
            for (key, _) in &plan {
                party.replica().failed(key, false);
            }
            true
        }
    }
}
