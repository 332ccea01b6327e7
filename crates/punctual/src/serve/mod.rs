//! The running broker: from the configuration to threads, and what signals do.
//!
//! SIGHUP reads the configuration and all files it names again; what is wrong
//! with them is logged, and the old settings stay. SIGTERM and SIGINT shut
//! down: clients are told, what is left for them is written, within
//! `server.shutdown_timeout`; a second signal ends the process at once.

pub(crate) mod auth;
mod events;
pub(crate) mod listeners;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use punctual_broker::Admits;
use punctual_model::Condition;
use punctual_net::huge_pages;
use punctual_net::layer::{LayerConfig, Origins, WebSocketOptions};
use punctual_net::tls::TlsAcceptor;
use punctual_net::{
    AcceptPolicy, Anonymous as AnonymousPolicy, Identity, ListenerOptions, ListenerPolicy, Server,
    ServerOptions,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::listeners::Loaded;
use crate::admission;
use crate::bridge;
use crate::cli::Failure;
use crate::config::{Anonymous, Arguments, Auto, Brokers, Config, Limit, Listener, Switch, nanos};
use crate::http::gate::Gate;
use crate::http::{Http, Opened, Parts};
use crate::logging::Logging;
use crate::mesh;
use crate::realtime::Precedence;
use crate::store::Keeper;

/// Where the configuration came from, to read it again.
pub(crate) struct Source {
    /// The file.
    pub(crate) file: Option<PathBuf>,
    /// The command line.
    pub(crate) arguments: Arguments,
    /// The environment.
    pub(crate) variables: Vec<(String, String)>,
}

impl Source {
    /// Loads all layers.
    pub(crate) fn load(&self) -> Result<Config, Failure> {
        let variables = self.variables.iter().cloned();
        Ok(Config::load(
            self.file.as_deref(),
            variables,
            &self.arguments,
        )?)
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

/// Serves until told to stop.
pub(crate) fn run(source: &Source, config: Config, logging: &Logging) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    if config.huge_pages() {
        move_code(config.server.huge_pages != Auto::Auto);
    }
    let (listeners, urls) = listeners(&config)?;
    let mut loaded = listeners::load(&config)?;
    let shards = config.shards();
    let http = match &config.server.http {
        Switch::On(address) => Opened::open(address)?,
        Switch::Off => None,
    };
    let schemes = config
        .listeners
        .iter()
        .flat_map(|listener| std::iter::repeat_n(listener.address.transport, listener.sockets()));
    let precedence = config.server.realtime.then_some(Precedence::Ordinary);
    let office = admission::Opening::open(&config, schemes, precedence)?;
    let (keeper, store) = Keeper::open(&config, shards)?.unzip();
    let gate = Gate::open(&config)?;
    let mesh = mesh::Opening::open(&config)?;
    let bridges = bridge::Opening::open(config.mesh.bridges.as_deref())?;
    let mut server = Server::start(ServerOptions {
        listeners,
        broker: config.broker(),
        shards,
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
        admission: office.as_ref().map(admission::Opening::desk),
        store,
        federation: mesh.as_ref().map(mesh::Opening::federation),
    })?;
    if server
        .realtime()
        .is_some_and(|status| !status.is_complete())
    {
        server.set_config(&Arc::new(broker_config(&config, &server)));
    }
    if let Some(keeper) = &keeper {
        keeper.start(server.handle());
    }
    let office = office
        .map(|office| office.start(server.handle()))
        .transpose()?;
    let log = server
        .take_events()
        .map(|events| {
            let thread = thread::Builder::new().name("log".into());
            thread.spawn(move || events::log(events))
        })
        .transpose()?;
    let mesh = mesh.map(|mesh| mesh.start(&server)).transpose()?;
    let plain = urls.iter().position(|(scheme, _)| *scheme == "tcp");
    let plain = plain.and_then(|at| server.addresses().get(at).copied());
    let bridges = bridges
        .map(|bridges| bridges.start(&server, plain))
        .transpose()?;
    let addresses = server.addresses().iter().zip(&urls);
    let urls: Vec<String> = addresses
        .map(|(address, (scheme, path))| format!("{scheme}://{address}{path}"))
        .collect();
    for url in &urls {
        tracing::info!("listening on {url}");
    }
    let http = http
        .zip(gate)
        .map(|(http, gate)| {
            let parts = Parts {
                office: office.as_ref().map(|(office, _)| office.clone()),
                keeper: keeper.clone(),
                mesh: mesh.as_ref().map(mesh::Mesh::asker),
                bridges: bridges.as_ref().map(bridge::Bridges::standings),
            };
            http.start(&server, urls, &config, parts, gate)
        })
        .transpose()?;
    for listener in &config.listeners {
        if listener.anonymous(&config.auth) == Anonymous::Loopback {
            tracing::info!(
                "{}: clients without a user name are let in from this machine only \
                 (listener.allow_anonymous, auth.password_file)",
                listener.address
            );
        }
    }

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
        match reload(
            source,
            &server,
            http.as_ref(),
            logging,
            &config,
            &mut loaded,
        ) {
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
    if let Some(http) = &http {
        http.shutting_down();
    }
    if let Some(bridges) = bridges {
        bridges.stop();
    }
    server.shut_down();
    if let Some(keeper) = &keeper {
        keeper.close();
    }
    if let Some(http) = http {
        http.stop();
    }
    if let Some(mesh) = mesh {
        mesh.stop();
    }
    if let Some((_, clerk)) = office {
        // It ends when the last shard has.
        let _ = clerk.join();
    }
    if let Some(log) = log {
        let _ = log.join();
    }
    Ok(())
}

/// Reads everything again and applies it if all of it is right. What needs a
/// restart is compared with what was `started`, however many reloads ago.
fn reload(
    source: &Source,
    server: &Server,
    http: Option<&Http>,
    logging: &Logging,
    started: &Config,
    loaded: &mut Loaded,
) -> Result<(), Failure> {
    let config = source.load()?;
    for key in started.restart_needed(&config) {
        tracing::warn!("{key} is changed, and takes effect at the next start");
    }
    let addresses = |config: &Config| -> Vec<String> {
        let listeners = config.listeners.iter();
        listeners.map(|l| l.address.to_string()).collect()
    };
    let (listeners, _) = listeners(&config)?;
    let mut in_effect = started.reloaded(&config);
    in_effect.listeners = started.opened(&config);
    let mut new = listeners::load(&in_effect)?;
    if let Some(http) = http {
        http.reload(&in_effect)?;
    }
    if addresses(&config) == addresses(started) {
        let policies = listeners.into_iter().map(|l| l.policy).collect();
        server.set_policies(policies, accept_policy(&config));
    }
    loaded.succeeded_by(&new);
    server.set_authenticator(new.authenticator());
    // After what is revoked by now.
    server.set_access(new.access.take());
    *loaded = new;
    server.set_config(&Arc::new(broker_config(&in_effect, server)));
    logging.set_level(config.log.level);
    if let Some(http) = http {
        http.reloaded(started, &config);
    }
    Ok(())
}

/// What the broker of a server that runs is configured with: clients are told where bounds count
/// with a real-time priority that the system has refused.
fn broker_config(config: &Config, server: &Server) -> punctual_broker::Config {
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

fn listeners(config: &Config) -> Result<Listeners, Failure> {
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
pub(crate) fn policy(listener: &Listener, config: &Config) -> Result<ListenerPolicy, Failure> {
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
