//! The broker's store: opened before anything is served, told to the shards, and
//! written by a thread of its own.
//!
//! Invariant: what a shard hands over reaches the writer in its order, and news
//! come back in that order; nothing on a shard's thread waits for the disk.

pub mod import;
mod trouble;

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use punctual_broker::{Operations, StoreTrouble, SysSource};
use punctual_net::{Handle, StoreDesk, StoreNews, StoreOptions};
use punctual_store::{
    Damage, Files, Log, LogConfig, Op, Outcome, Poster, Report, Start, Store as _, StoreError,
    Writer, WriterConfig, WriterEvent, WriterStats,
};

use self::trouble::{Line, Trouble};
use crate::config::Config;
use crate::error::Error;

/// A commit that takes so long is a disk that stands still.
const STALLED: Duration = Duration::from_secs(10);

/// The store of a running broker.
#[derive(Clone)]
pub(crate) struct Keeper(Arc<Shared>);

#[derive(Default)]
struct Shared {
    poster: OnceLock<Poster>,
    writer: Mutex<Option<Writer<Log<Files>>>>,
    /// Whom to tell of commits, once there is someone; `None` if there will be nobody.
    handle: OnceLock<Option<Handle>>,
    found: OnceLock<StartDamage>,
}

/// What the start found damaged, and left out.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartDamage {
    /// The first of it.
    pub(crate) damages: Vec<Damage>,
    /// How much it is.
    pub(crate) count: u64,
}

impl StartDamage {
    fn of(report: &Report) -> Self {
        Self {
            damages: report.damages.clone(),
            count: report.damages.len() as u64 + report.more_damages,
        }
    }

    /// How much it is, and the first of it; `None` if nothing is damaged.
    pub(crate) fn summary(&self) -> Option<String> {
        let first = self.damages.first()?;
        Some(match self.count {
            1 => first.to_string(),
            count => format!("{first}, and {} more", count - 1),
        })
    }
}

impl StoreDesk for Keeper {
    fn post(&self, shard: u16, operations: Operations) {
        if let Some(poster) = self.0.poster.get() {
            let Operations {
                ticket,
                batch,
                sync,
                waited,
            } = operations;
            let waited = Duration::from_nanos(waited.0);
            poster.post(shard, ticket, batch, waited, sync);
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl SysSource for Keeper {
    fn topics(&self) -> Vec<(String, String)> {
        let stats = self.stats();
        stats.map_or_else(Vec::new, |stats| topics(&stats, &self.found()))
    }
}

/// What `$SYS/broker/store/...` says, with the names of `/healthz` and `/api/v1/store`.
fn topics(stats: &WriterStats, found: &StartDamage) -> Vec<(String, String)> {
    let mut topics = Vec::new();
    let mut add = |name: &str, value: String| {
        topics.push((format!("$SYS/broker/store/{name}"), value));
    };
    let trouble = trouble_of(stats);
    let damage = found.summary();
    add(
        "status",
        status(trouble.is_some() || damage.is_some()).into(),
    );
    if let Some(trouble) = trouble {
        add("trouble", trouble);
    }
    if let Some(damage) = damage {
        add("damage", damage);
    }
    add("damages", found.count.to_string());
    let waited = stats.oldest_wait.unwrap_or_default();
    add("failures", stats.failures.to_string());
    add("commits", stats.store.commits.to_string());
    add("live_bytes", stats.store.live_bytes.to_string());
    add("disk_bytes", stats.store.disk_bytes.to_string());
    add("waiting_bytes", stats.waiting_bytes.to_string());
    add("waiting_seconds", waited.as_secs().to_string());
    topics
}

/// In the words of `/healthz`.
pub(crate) fn status(is_degraded: bool) -> &'static str {
    if is_degraded { "degraded" } else { "ok" }
}

/// Why what has to survive cannot be stored now; `None` if it can.
pub(crate) fn trouble_of(stats: &WriterStats) -> Option<String> {
    if let Some(error) = &stats.failing {
        return Some(error.to_string());
    }
    let waited = stats.oldest_wait.filter(|waited| *waited >= STALLED)?;
    let seconds = waited.as_secs();
    Some(format!("the disk has not answered for {seconds} seconds"))
}

impl Keeper {
    /// Opens the store in the directory of the configuration, if there is one.
    /// What it has is told when the server starts, which has so many shards.
    pub(crate) fn open(
        config: &Config,
        shards: u16,
    ) -> Result<Option<(Self, StoreOptions)>, Error> {
        let Some(place) = &config.server.data else {
            return Ok(None);
        };
        let keys = &config.store;
        // What each shard may have on its way, twice that if it is urgent, before it knows.
        let on_the_way = 2 * keys.group_bytes.0 * u64::from(shards);
        let usual = LogConfig::default();
        let files = Files::open(place).map_err(|error| wrong(place, &error))?;
        if import::finish(place).map_err(|error| format!("server.data = {place:?}: {error}"))? {
            tracing::info!(
                "{}: an import that was stopped is complete now",
                place.display()
            );
        }
        let log = Log::open(
            files,
            LogConfig {
                max_bytes: keys.max_bytes.0,
                overdraft: usual.overdraft + on_the_way,
                ..usual
            },
            log_start(),
        )
        .map_err(|error| wrong(place, &error))?;
        if log.medium().lacked_lock() {
            tracing::warn!(
                "{}: there are segments and no lock file: they were copied without it, or it was \
                 removed; what was confirmed after the last commit that is there is not known",
                place.display()
            );
        }
        if log.is_new() {
            tracing::warn!(
                "{}: nothing is there, and a new store is begun; if there should be one, stop the \
                 broker and see whether the file system is mounted",
                place.display()
            );
        }
        let writing = WriterConfig {
            group_delay: keys.group_delay,
            group_bytes: usize::try_from(keys.group_bytes.0).unwrap_or(usize::MAX),
            ..WriterConfig::default()
        };
        let keeper = Self(Arc::default());
        let (own, place) = (keeper.clone(), place.clone());
        let options = StoreOptions {
            recover: Box::new(move |tell| own.recover(&place, log, writing, tell)),
            desk: Arc::new(keeper.clone()),
            sys: Arc::new(keeper.clone()),
        };
        Ok(Some((keeper, options)))
    }

    /// Tells what is stored, and starts to write; why the store is full, if it is.
    fn recover(
        &self,
        place: &Path,
        mut log: Log<Files>,
        config: WriterConfig,
        tell: &mut dyn FnMut(&Op<'_>),
    ) -> Result<Option<StoreTrouble>, String> {
        let report = log
            .recover(&mut |op| tell(&op))
            .map_err(|error| format!("server.data = {place:?}: {error}"))?;
        tracing::info!(
            sessions = report.sessions,
            messages = report.messages,
            retained = report.retained,
            "restored from {}",
            place.display()
        );
        if let Some(tail) = &report.tail {
            tracing::warn!("{}: {tail}", place.display());
        }
        for damage in &report.damages {
            tracing::error!("{}: {damage}; it is left out", place.display());
        }
        if report.more_damages > 0 {
            tracing::error!("{}: {} more", place.display(), report.more_damages);
        }
        let _ = self.0.found.set(StartDamage::of(&report));
        let full = log.full();
        let why = full.as_ref().map(StoreTrouble::from);
        let shared = Arc::downgrade(&self.0);
        let mut trouble = Trouble::default();
        let line = trouble.full(full.as_ref(), Instant::now());
        line.iter().for_each(Line::log);
        let trouble = RefCell::new(trouble);
        let tell = move |told| {
            let now = Instant::now();
            let line = match &told {
                WriterEvent::Batch(_, Outcome::Committed(_)) => trouble.borrow_mut().committed(now),
                WriterEvent::Batch(_, Outcome::Failed { error, .. }) => {
                    trouble.borrow_mut().failed(error, now)
                }
                WriterEvent::Full(why) => trouble.borrow_mut().full(why.as_ref(), now),
            };
            line.iter().for_each(Line::log);
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let Some(handle) = shared.handle.wait() else {
                return;
            };
            match told {
                WriterEvent::Batch(shard, outcome) => handle.store(shard, news(outcome)),
                WriterEvent::Full(why) => {
                    let news = StoreNews::Full(why.as_ref().map(StoreTrouble::from));
                    (0..handle.shards() as u16).for_each(|shard| handle.store(shard, news));
                }
            }
        };
        let writer = Writer::spawn(log, full, config, tell).map_err(|error| error.to_string())?;
        let _ = self.0.poster.set(writer.poster());
        *self.0.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer);
        Ok(why)
    }

    /// Shards are told what becomes of what they hand over from now on.
    pub(crate) fn start(&self, handle: Handle) {
        let _ = self.0.handle.set(Some(handle));
    }

    /// What the writer has done.
    pub(crate) fn stats(&self) -> Option<WriterStats> {
        self.0.poster.get().map(Poster::stats)
    }

    /// What the start found damaged.
    pub(crate) fn found(&self) -> StartDamage {
        self.0.found.get().cloned().unwrap_or_default()
    }

    /// Writes what waits; nothing may be handed over any more.
    pub(crate) fn close(&self) {
        // Before the shards have started, the writer is not to wait for them.
        let _ = self.0.handle.set(None);
        let writer = self
            .0
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(writer) = writer {
            writer.close().close();
        }
    }
}

fn news(outcome: Outcome) -> StoreNews {
    match outcome {
        Outcome::Committed(ticket) => StoreNews::Committed(ticket),
        Outcome::Failed { error, .. } => StoreNews::Failed((&error).into()),
    }
}

fn wrong(place: &Path, error: &StoreError) -> Error {
    format!("server.data = {place:?}: {error}").into()
}

/// What a log starts with: a random number and the time.
pub fn log_start() -> Start {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let wall = now.map_or(0, |now| now.as_nanos() as u64);
    let mut bytes = [0; 8];
    let seed = match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => wall,
    };
    Start { seed, wall }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_stands_still_is_trouble() {
        let mut stats = WriterStats::default();
        assert_eq!(trouble_of(&stats), None);
        stats.oldest_wait = Some(STALLED.saturating_sub(Duration::from_millis(1)));
        assert_eq!(trouble_of(&stats), None);
        stats.oldest_wait = Some(STALLED);
        let trouble = trouble_of(&stats).unwrap();
        assert!(trouble.contains("for 10 seconds"), "{trouble}");
        let error = StoreError::Full {
            what: "the disk",
            needed: 1,
        };
        stats.failing = Some(error.clone());
        assert_eq!(trouble_of(&stats), Some(error.to_string()));
    }
}
