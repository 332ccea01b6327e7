//! When rows appear in the requirements table: between them lie the stages of a
//! decision.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use punctual_southbound::ovsdb::cache::Change;
use punctual_southbound::ovsdb::{Client, Endpoint, Event, Options, Table};
use tokio::sync::oneshot;

use crate::LONG;

/// When a flow was asked for, and when that was answered.
#[derive(Clone, Copy, Default)]
struct Seen {
    asked: Option<Instant>,
    answered: Option<Instant>,
}

type Log = Arc<(Mutex<BTreeMap<String, Seen>>, Condvar)>;

/// Looks at the table until it is dropped.
pub(crate) struct Stages {
    log: Log,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Stages {
    pub(crate) fn watch(endpoint: Endpoint) -> Self {
        let log = Log::default();
        let (stop, stopped) = oneshot::channel();
        let seen = log.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = look(endpoint, &seen) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            log,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// When the request of a flow was in the table, and when its answer.
    pub(crate) fn of(&self, flow: &str) -> (Instant, Instant) {
        let (log, bell) = &*self.log;
        let whole = |log: &mut BTreeMap<String, Seen>| {
            log.get(flow).is_none_or(|seen| seen.answered.is_none())
        };
        let waited = bell.wait_timeout_while(log.lock().unwrap(), LONG, whole);
        let seen = waited.unwrap().0[flow];
        (seen.asked.unwrap(), seen.answered.unwrap())
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn look(endpoint: Endpoint, log: &Log) {
    let tables = vec![Table::all("Request"), Table::all("Channel")];
    let options = Options::new(vec![endpoint], "Punctual", tables);
    let (_client, mut events) = Client::start(options).unwrap();
    while let Some(event) = events.next().await {
        let now = Instant::now();
        if let Event::Changed(changes) = event {
            let (log, bell) = &**log;
            let mut log = log.lock().unwrap();
            for Change { table, new, .. } in changes {
                let Some(row) = new else { continue };
                let seen = log.entry(row.text("flow").to_owned()).or_default();
                match table.as_str() {
                    "Request" => seen.asked = seen.asked.or(Some(now)),
                    _ if row.text("state") != "pending" => {
                        seen.answered = seen.answered.or(Some(now));
                    }
                    _ => {}
                }
            }
            bell.notify_all();
        }
    }
}
