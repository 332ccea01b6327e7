//! The HTTP interface: health, metrics, and management of a running broker.
//!
//! It has a thread of its own with everything on it, and touches a shard only
//! by posting short questions that the shard's thread answers between two
//! messages (`shards`). [`authorization`] asks who somebody is and what that allows, and `guard` keeps web
//! pages of other sites out. Every bound (time, connections, sizes of answers) is a named constant.

mod alarms;
pub mod authorization;
mod body;
mod clients;
mod config;
pub mod controller;
mod error;
mod flows;
mod guard;
mod health;
mod json;
mod mesh;
mod metrics;
mod openapi;
mod page;
mod process;
mod query;
#[cfg(test)]
mod replay;
mod retained;
mod role;
mod routes;
mod server;
mod shards;
mod stats;
mod store;
mod subscriptions;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use punctual_broker::{Directory, Stats};
use punctual_net::realtime::{self, RealtimeStatus};
use punctual_net::{Clock, Counters, Server};
use tokio::sync::watch;

use self::authorization::Authorizer;
use self::config::Values;
use self::guard::Hosts;
use self::server::{Bound, Bounds};
use self::shards::Shards;
use crate::admission::AdmissionService;
use crate::bridge::Standings;
use crate::config::{Config, HttpAddress, Switch};
use crate::error::Error;
use crate::mesh::Asker;
use crate::store::Keeper;

pub use self::openapi::DOCUMENT as OPENAPI;

/// What requests are answered from.
struct App {
    shards: Shards,
    directory: Arc<Directory>,
    counters: Arc<Counters>,
    clock: Clock,
    started: Instant,
    /// What the shards obtained, if real time was asked for.
    realtime: Option<RealtimeStatus>,
    /// URL of each listener, in the order of the counters.
    listeners: Vec<String>,
    parts: Parts,
    /// What each shard counted when it was last asked: what is shown of a
    /// shard that does not answer, so that counters never step back.
    counted: RwLock<Vec<Stats>>,
    config: RwLock<Values>,
    hosts: Arc<Hosts>,
    authorizer: Arc<Authorizer>,
    stopping: AtomicBool,
}

/// What not every broker has.
#[derive(Default)]
pub(crate) struct Parts {
    /// Where flows are admitted.
    pub(crate) admission: Option<AdmissionService>,
    /// The store.
    pub(crate) keeper: Option<Keeper>,
    /// The broker among others.
    pub(crate) mesh: Option<Asker>,
    /// To brokers that are not of the mesh.
    pub(crate) bridges: Option<Standings>,
}

impl App {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// URL of the listener with that number.
    fn listener(&self, number: u16) -> Option<String> {
        self.listeners.get(usize::from(number)).cloned()
    }
}

/// The opened address, before the broker runs.
pub(crate) struct Opened {
    bound: Bound,
    address: HttpAddress,
    bounds: Bounds,
}

/// The running interface.
pub(crate) struct Http {
    app: Arc<App>,
    url: String,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Opened {
    /// Opens the address, so that a wrong one shows before anything is served. `None`, with a
    /// warning, if it is the one of the default configuration and something else has it: nobody
    /// asked for it.
    pub(crate) fn open(address: &HttpAddress) -> Result<Option<Self>, Error> {
        let opened = Bound::open(address).map(|(bound, address)| Self {
            bound,
            address,
            bounds: Bounds::default(),
        });
        opened.map(Some).or_else(|error: io::Error| {
            let why = format!(
                "server.http = \"{address}\": cannot listen there: {error}; choose another \
                 address or write \"off\" (--http ADDRESS|off)"
            );
            let is_default = Config::default().server.http == Switch::On(address.clone());
            if is_default && error.kind() == io::ErrorKind::AddrInUse {
                tracing::warn!("there is no HTTP interface: {why}");
                return Ok(None);
            }
            Err(why.into())
        })
    }

    /// Answers requests from now on. `listeners` are the URLs of the server's
    /// listeners, in their order.
    pub(crate) fn start(
        self,
        server: &Server,
        listeners: Vec<String>,
        config: &Config,
        parts: Parts,
        authorizer: Arc<Authorizer>,
    ) -> Result<Http, Error> {
        let shards = Shards::new(server.handle());
        let app = Arc::new(App {
            counted: RwLock::new(vec![Stats::default(); shards.len()]),
            shards,
            directory: server.directory().clone(),
            counters: server.counters().clone(),
            clock: server.clock(),
            started: Instant::now(),
            realtime: server.realtime().cloned(),
            listeners,
            parts,
            config: RwLock::new(Values::started(config)),
            hosts: Arc::new(Hosts::new(
                config.server.http_names.as_deref().unwrap_or_default(),
            )),
            authorizer,
            stopping: AtomicBool::new(false),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // Where passwords are checked, one at a time, and after all other work.
            .max_blocking_threads(1)
            .thread_name("http-auth")
            .on_thread_start(|| {
                if let Err(error) = realtime::set_nice() {
                    tracing::warn!(%error, "passwords are checked with the priority of all else");
                }
            })
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            self.bound.listen()?
        };
        let (stop, stopped) = watch::channel(false);
        let router = routes::router(&app);
        let thread = thread::Builder::new().name("http".into()).spawn(move || {
            runtime.block_on(server::serve(listener, router, self.bounds, stopped));
        })?;
        let url = self.address.url();
        tracing::info!("listening on {url}");
        Ok(Http {
            app,
            url,
            stop,
            thread,
        })
    }
}

impl Http {
    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Reads again who may ask.
    pub(crate) fn reload(&self, config: &Config) -> Result<(), Error> {
        self.app.authorizer.reload(&config.auth)
    }

    /// Shows the values of a configuration that was reloaded.
    pub(crate) fn reloaded(&self, started: &Config, config: &Config) {
        *self
            .app
            .config
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Values::reloaded(started, config);
    }

    /// Says from now on that the broker shuts down.
    pub(crate) fn shutting_down(&self) {
        self.app.stopping.store(true, Ordering::Release);
    }

    /// Ends the answers that are under way, in bounded time, and the thread.
    pub(crate) fn stop(self) {
        self.stop.send_replace(true);
        // It panicked if this fails, which the log has.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests;
