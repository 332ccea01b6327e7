//! The running broker: from the configuration to threads, and what signals do.
//!
//! On SIGHUP, [`run`] reads the configuration and the files that it names again. If there is an error in
//! them, it logs the error and keeps the old settings. On SIGTERM and SIGINT it shuts down: it sends
//! DISCONNECT and the messages that wait to its clients, within `server.shutdown_timeout`. A second of
//! these signals ends the process at once.

pub(crate) mod auth;
mod events;
pub(crate) mod listeners;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

use punctual_broker::Admits;
use punctual_model::Condition;
use punctual_net::huge_pages;
use punctual_net::layer::{LayerConfig, Origins, WebSocketOptions};
use punctual_net::tls::TlsAcceptor;
use punctual_net::{
    AcceptPolicy, Anonymous as AnonymousPolicy, Identity, ListenerOptions, ListenerPolicy,
    ServerOptions, StoreOptions,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::listeners::Loaded;
use crate::admission;
use crate::bridge;
use crate::config::{Anonymous, Arguments, Auto, Brokers, Config, Limit, Listener, Switch, nanos};
use crate::error::Error;
use crate::http::{self, Http};
use crate::logging::Logging;
use crate::mesh;
use crate::realtime::Precedence;
use crate::store::Keeper;

/// Where the configuration came from, to read it again.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The file.
    pub file: Option<PathBuf>,
    /// What the command line says instead.
    pub arguments: Arguments,
    /// The environment: those that begin with `PUNCTUAL_` are keys.
    pub variables: Vec<(String, String)>,
}

impl Source {
    /// Loads all layers.
    ///
    /// # Errors
    ///
    /// All mistakes that are found, [`Error::Config`].
    pub fn load(&self) -> Result<Config, Error> {
        let variables = self.variables.iter().cloned();
        Ok(Config::load(
            self.file.as_deref(),
            variables,
            &self.arguments,
        )?)
    }
}

/// A broker that runs, with all that its configuration asks for: listeners, store, HTTP interface,
/// admission, mesh and bridges. Its threads go on until [`Self::stop`].
pub struct Server {
    /// What it was started with.
    started: Config,
    urls: Vec<String>,
    net: punctual_net::Server,
    loaded: Loaded,
    http: Option<Http>,
    keeper: Option<Keeper>,
    bridges: Option<bridge::Bridges>,
    mesh: Option<mesh::Mesh>,
    admission_thread: Option<JoinHandle<()>>,
    log: Option<JoinHandle<()>>,
}

/// What runs beside the listeners, opened and not started: dropped, it closes.
struct Parts {
    http: Option<http::Opened>,
    store: Option<(Keeper, StoreOptions)>,
    admission: Option<admission::ServiceBuilder>,
    authorizer: Option<Arc<http::authorization::Authorizer>>,
    mesh: Option<mesh::Opening>,
    bridges: Option<bridge::Opening>,
    /// The listener that bridges connect to.
    bridged: Option<SocketAddr>,
}

impl Parts {
    fn open(config: &Config) -> Result<Self, Error> {
        let schemes = config.listeners.iter().flat_map(|listener| {
            std::iter::repeat_n(listener.address.transport, listener.sockets())
        });
        let precedence = config.server.realtime.then_some(Precedence::Ordinary);
        Ok(Self {
            http: match &config.server.http {
                Switch::On(address) => http::Opened::open(address)?,
                Switch::Off => None,
            },
            // Before the flows are read: it ends an import that was stopped, which may bring them.
            store: Keeper::open(config, config.shards())?,
            admission: admission::ServiceBuilder::open(config, schemes, precedence)?,
            authorizer: http::authorization::Authorizer::open(config)?,
            mesh: mesh::Opening::open(config)?,
            bridges: bridge::Opening::open(config.mesh.bridges.as_deref())?,
            bridged: None,
        })
    }
}

impl Server {
    /// Opens what the configuration names, and serves from now on.
    ///
    /// # Errors
    ///
    /// What cannot be opened or read. All files and sockets are looked at before anybody is served, and
    /// what was started before a part that fails is stopped: no thread, socket or lock of it stays.
    pub fn start(config: Config) -> Result<Self, Error> {
        config.check()?;
        let (listeners, urls) = listeners(&config)?;
        let mut loaded = listeners::load(&config)?;
        let mut parts = Parts::open(&config)?;
        let (keeper, store) = parts.store.take().unzip();
        let net = punctual_net::Server::start(ServerOptions {
            listeners,
            broker: config.broker(),
            shards: config.shards(),
            realtime: config.realtime(),
            tcp: config.tcp(),
            marking: config.marking(),
            accept: accept_policy(&config),
            max_receive_bytes: config.max_receive_bytes(),
            slice: nanos(config.server.slice),
            shutdown_timeout: nanos(config.server.shutdown_timeout),
            authentication_threads: 2,
            authenticator: loaded.authenticator(),
            access: loaded.access.take(),
            admission: parts
                .admission
                .as_ref()
                .map(admission::ServiceBuilder::sender),
            store,
            federation: parts.mesh.as_ref().map(mesh::Opening::federation),
        });
        let net = net.inspect_err(|_| {
            if let Some(keeper) = &keeper {
                keeper.close();
            }
        })?;
        let bridged = urls.iter().position(|(scheme, _)| *scheme == "tcp");
        parts.bridged = bridged.and_then(|at| net.addresses().get(at).copied());
        let addresses = net.addresses().iter().zip(&urls);
        let urls = addresses
            .map(|(address, (scheme, path))| format!("{scheme}://{address}{path}"))
            .collect();
        let mut server = Self {
            started: config,
            urls,
            net,
            loaded,
            http: None,
            keeper,
            bridges: None,
            mesh: None,
            admission_thread: None,
            log: None,
        };
        match server.start_parts(parts) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.stop();
                Err(error)
            }
        }
    }

    /// Starts what runs beside the listeners. After an error the server is to be stopped.
    fn start_parts(&mut self, parts: Parts) -> Result<(), Error> {
        let (net, config) = (&mut self.net, &self.started);
        if net.realtime().is_some_and(|status| !status.is_complete()) {
            net.set_config(&Arc::new(broker_config(config, net)));
        }
        if let Some(keeper) = &self.keeper {
            keeper.start(net.handle());
        }
        let mut http = http::Parts {
            keeper: self.keeper.clone(),
            ..http::Parts::default()
        };
        if let Some(admission) = parts.admission {
            let (service, thread) = admission.start(net.handle())?;
            http.admission = Some(service);
            self.admission_thread = Some(thread);
        }
        if let Some(events) = net.take_events() {
            let thread = thread::Builder::new().name("log".into());
            self.log = Some(thread.spawn(move || events::log(events))?);
        }
        if let Some(mesh) = parts.mesh {
            let mesh = mesh.start(net)?;
            http.mesh = Some(mesh.asker());
            self.mesh = Some(mesh);
        }
        if let Some(bridges) = parts.bridges {
            let bridges = bridges.start(net, parts.bridged)?;
            http.bridges = Some(bridges.standings());
            self.bridges = Some(bridges);
        }
        for url in &self.urls {
            tracing::info!("listening on {url}");
        }
        if let Some((opened, authorizer)) = parts.http.zip(parts.authorizer) {
            self.http = Some(opened.start(net, self.urls.clone(), config, http, authorizer)?);
        }
        for listener in &config.listeners {
            if listener.anonymous(&config.auth) == Anonymous::Loopback {
                tracing::info!(
                    "{}: clients without a user name are let in from this machine only \
                     (listener.allow_anonymous, auth.password_file)",
                    listener.address
                );
            }
        }
        Ok(())
    }

    /// Where clients connect, a URL for each socket, with the ports that the system has chosen.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Where the HTTP interface is, with the port that the system has chosen; `None` if there is none.
    pub fn http_url(&self) -> Option<&str> {
        self.http.as_ref().map(Http::url)
    }

    /// Applies another configuration and the files that it names, if there is no error in them. Keys that
    /// take effect only at a start are logged if they differ from the configuration at the start.
    ///
    /// # Errors
    ///
    /// What is wrong; nothing has changed then.
    pub fn reload(&mut self, config: &Config) -> Result<(), Error> {
        config.check()?;
        for key in self.started.restart_needed(config) {
            tracing::warn!("{key} is changed, and takes effect at the next start");
        }
        let addresses = |config: &Config| -> Vec<String> {
            let listeners = config.listeners.iter();
            listeners.map(|l| l.address.to_string()).collect()
        };
        let (listeners, _) = listeners(config)?;
        let mut in_effect = self.started.reloaded(config);
        in_effect.listeners = self.started.opened(config);
        let mut new = listeners::load(&in_effect)?;
        if let Some(http) = &self.http {
            http.reload(&in_effect)?;
        }
        if addresses(config) == addresses(&self.started) {
            let policies = listeners.into_iter().map(|l| l.policy).collect();
            self.net.set_policies(policies, accept_policy(config));
        }
        self.loaded.succeeded_by(&new);
        self.net.set_authenticator(new.authenticator());
        // After what is revoked by now.
        self.net.set_access(new.access.take());
        self.loaded = new;
        let broker = broker_config(&in_effect, &self.net);
        self.net.set_config(&Arc::new(broker));
        if let Some(http) = &self.http {
            http.reloaded(&self.started, config);
        }
        Ok(())
    }

    /// Ends it: clients are told, what waits for them is written, within `server.shutdown_timeout`, and
    /// the store is closed. Returns once all of its threads have ended, but for those that check a password
    /// or connect to a neighbour: they end by themselves when that is done.
    pub fn stop(self) {
        if let Some(http) = &self.http {
            http.shutting_down();
        }
        if let Some(bridges) = self.bridges {
            bridges.stop();
        }
        self.net.shut_down();
        if let Some(keeper) = &self.keeper {
            keeper.close();
        }
        if let Some(http) = self.http {
            http.stop();
        }
        if let Some(mesh) = self.mesh {
            mesh.stop();
        }
        // They end when the last shard has.
        for thread in [self.admission_thread, self.log].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

/// Has the code in huge pages, as far as the system has some; says why not where that `is_asked_for`.
fn move_code(is_asked_for: bool) {
    match huge_pages::move_code() {
        Ok(bytes) => tracing::info!("{} MiB of code are in huge pages", bytes >> 20),
        Err(error) if is_asked_for => {
            tracing::warn!("the code stays in small pages (server.huge_pages): {error}");
        }
        Err(error) => tracing::debug!("the code stays in small pages: {error}"),
    }
}

/// Serves until a signal says to stop: what the process of a broker does. See the module.
///
/// # Errors
///
/// As for [`Server::start`].
pub fn run(source: &Source, config: Config, logging: &Logging) -> Result<(), Error> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    if config.huge_pages() {
        move_code(config.server.huge_pages != Auto::Auto);
    }
    let mut server = Server::start(config)?;
    // The second signal does not wait for anybody.
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stopping.clone())?;
        signal_hook::flag::register(signal, stopping.clone())?;
    }
    punctual_net::footprint::release_code();
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        match reload(source, &mut server, logging) {
            Ok(()) => tracing::info!("configuration reloaded"),
            Err(error) => {
                // One line of the log for each mistake.
                for line in error.to_string().lines() {
                    tracing::error!("the old configuration stays: {line}");
                }
            }
        }
    }
    tracing::info!("shutting down");
    server.stop();
    Ok(())
}

fn reload(source: &Source, server: &mut Server, logging: &Logging) -> Result<(), Error> {
    let config = source.load()?;
    server.reload(&config)?;
    logging.set_level(config.log.level);
    Ok(())
}

/// What the broker of a server that runs is configured with: clients are told where bounds count
/// with a real-time priority that the system has refused.
fn broker_config(config: &Config, server: &punctual_net::Server) -> punctual_broker::Config {
    let mut broker = config.broker();
    if let Some(admission) = &mut broker.admission
        && server
            .realtime()
            .is_some_and(|status| !status.is_complete())
    {
        admission.conditions = admission.conditions.with(Condition::NoRealtime);
    }
    broker
}

fn accept_policy(config: &Config) -> AcceptPolicy {
    AcceptPolicy {
        max_connections: match config.limits.max_connections {
            Limit::At(n) => n as usize,
            Limit::Unlimited => usize::MAX,
        },
        rate: match config.server.accept_rate {
            Limit::At(rate) => rate,
            Limit::Unlimited => 0,
        },
        max_drift: match config.server.max_drift {
            Limit::At(drift) => nanos(drift),
            Limit::Unlimited => punctual_broker::Nanos::MAX,
        },
    }
}

/// Sockets to open and, for each, scheme and path of its URL.
type Listeners = (Vec<ListenerOptions>, Vec<(String, String)>);

fn listeners(config: &Config) -> Result<Listeners, Error> {
    let (mut options, mut urls) = (Vec::new(), Vec::new());
    for listener in &config.listeners {
        let policy = policy(listener, config)?;
        let address = &listener.address;
        let resolved = address
            .resolve()
            .map_err(|error| format!("{address}: {error}; write an IP address or another name"))?;
        for address in resolved {
            options.push(ListenerOptions {
                address,
                policy: policy.clone(),
                udp: listener.udp(),
                quic: listener.quic(),
            });
            urls.push((
                listener.address.transport.to_string(),
                listener.address.path.clone(),
            ));
        }
    }
    Ok((options, urls))
}

/// What a listener lets in, and what lies between its sockets and MQTT.
pub(crate) fn policy(listener: &Listener, config: &Config) -> Result<ListenerPolicy, Error> {
    let tls = match listener.tls() {
        Some(options) if listener.address.transport.is_encrypted() => {
            Some(TlsAcceptor::load(&options)?)
        }
        _ => None,
    };
    let anonymous = match listener.anonymous(&config.auth) {
        Anonymous::Auto | Anonymous::Loopback => AnonymousPolicy::Local,
        Anonymous::Everybody => AnonymousPolicy::Everybody,
        Anonymous::Nobody => AnonymousPolicy::Nobody,
    };
    let path = &listener.address.path;
    let websocket = listener
        .address
        .transport
        .is_websocket()
        .then(|| WebSocketOptions {
            path: (!path.is_empty()).then(|| path.as_str().into()),
            origins: Origins {
                listed: listener
                    .websocket_origins
                    .clone()
                    .unwrap_or_default()
                    .into(),
                names: anonymous == AnonymousPolicy::Nobody,
            },
        });
    Ok(ListenerPolicy {
        layer: LayerConfig {
            proxy: listener.proxy_protocol,
            tls,
            websocket,
        },
        identity: if listener.use_identity_as_username {
            Identity::CommonName
        } else {
            Identity::None
        },
        anonymous,
        checks_passwords: listener.passwords(&config.auth).is_some(),
        unproven: Arc::default(),
        refuse: listener.refuses(),
        admits: match listener.brokers {
            Brokers::Allow => Admits::All,
            Brokers::Only => Admits::Brokers,
            Brokers::Deny => Admits::Clients,
        },
        max_connections: match listener.max_connections {
            Limit::At(n) => n as usize,
            Limit::Unlimited => usize::MAX,
        },
    })
}
