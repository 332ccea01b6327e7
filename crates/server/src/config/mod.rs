//! The configuration: typed, with every key documented once.
//!
//! Layers, each over the one before: defaults, the file, the files of its
//! `include` directory, environment variables (`PUNCTUAL__LIMITS__MAX_SESSIONS`),
//! command line arguments. Unknown keys and bad values are errors; all of them
//! are reported at once, each with its place and its remedy.

mod address;
mod arguments;
mod check;
mod document;
mod durability;
mod environment;
mod http;
mod import;
mod include;
mod keys;
mod neighbour;
mod origin;
mod overflow;
mod place;
mod problem;
mod reference;
#[cfg(test)]
mod replay;
mod rule;
mod schema;
pub(crate) mod secrecy;
mod units;
mod validate;
mod value;
mod wiring;

use std::path::Path;

pub use self::address::{ListenAddress, Transport};
pub use self::arguments::{Arguments, readable};
pub use self::check::check_files;
use self::document::{Content, Node, Table};
pub use self::durability::DurableRule;
pub use self::http::HttpAddress;
pub use self::import::{Imported, Note, import};
pub(crate) use self::import::{
    Line as MosquittoLine, is_known as is_mosquitto_option, read as mosquitto_lines,
    unknown as unknown_mosquitto_option,
};
pub use self::keys::{
    Admission, Anonymous, Auth, Brokers, Egress, HttpAuth, Limits, Listener, Log, LogFormat,
    LogLevel, Marking, Mesh, MeshStrategy, Mqtt, Queue, Realtime, Server, Store, Tcp,
};
pub use self::neighbour::Neighbour;
pub use self::origin::Origin;
pub use self::overflow::{QueueRule, SessionRule};
pub use self::problem::{Problem, Problems};
pub use self::reference::{key_names, markdown, toml};
pub use self::rule::Rule;
use self::schema::{Effect, Reader, Section};
pub use self::units::{Rate, Size};
pub use self::value::{Auto, Limit, Switch};
pub(crate) use self::wiring::nanos;

/// The whole configuration. Every value is within its documented range.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where clients connect; never empty.
    pub listeners: Vec<Listener>,
    /// The process as a whole.
    pub server: Server,
    /// Who may do what.
    pub auth: Auth,
    /// How much clients may use.
    pub limits: Limits,
    /// Which parts of MQTT clients may use.
    pub mqtt: Mqtt,
    /// Slow and absent clients.
    pub queue: Queue,
    /// Buffers of TCP connections.
    pub tcp: Tcp,
    /// Classes on the wire.
    pub marking: Marking,
    /// Predictable threads.
    pub realtime: Realtime,
    /// In which order messages are sent.
    pub egress: Egress,
    /// Which deadlines are promised.
    pub admission: Admission,
    /// What survives the process.
    pub store: Store,
    /// The broker among others.
    pub mesh: Mesh,
    /// The log.
    pub log: Log,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listeners: vec![Listener::default()],
            server: Server::default(),
            auth: Auth::default(),
            limits: Limits::default(),
            mqtt: Mqtt::default(),
            queue: Queue::default(),
            egress: Egress::default(),
            admission: Admission::default(),
            tcp: Tcp::default(),
            marking: Marking::default(),
            realtime: Realtime::default(),
            store: Store::default(),
            mesh: Mesh::default(),
            log: Log::default(),
        }
    }
}

impl Config {
    /// Loads all layers.
    ///
    /// # Errors
    ///
    /// Everything that is wrong in any layer, or with their combination. Whether
    /// the files that are named exist is not looked at here.
    pub fn load(
        file: Option<&Path>,
        variables: impl IntoIterator<Item = (String, String)>,
        arguments: &Arguments,
    ) -> Result<Self, Problems> {
        let mut reader = Reader::default();
        let mut table = match file {
            Some(path) => include::read_all(path, &mut reader.problems),
            None => Table::new(),
        };
        environment::lay_over(&mut table, variables, &mut reader.problems);
        arguments.lay_over(&mut table);
        let config = Self::read(table, &mut reader);
        validate::validate(&config, &mut reader);
        reader.problems.into_result()?;
        Ok(config)
    }

    /// Looks for combinations of values that cannot work.
    ///
    /// # Errors
    ///
    /// All of them. What [`Self::load`] returns has none.
    pub fn check(&self) -> Result<(), Problems> {
        let mut reader = Reader::default();
        validate::validate(self, &mut reader);
        reader.problems.into_result()
    }

    /// Whether brokers of the mesh may connect at some listener.
    pub(crate) fn admits_brokers(&self) -> bool {
        let open = |listener: &Listener| listener.brokers != Brokers::Deny;
        self.mesh.enabled && self.listeners.iter().any(open)
    }

    /// The values with their full names as TOML, absent ones left out.
    pub fn values(&self) -> Vec<(String, String)> {
        let entries = self.entries().into_iter();
        entries
            .filter_map(|(name, _, value)| Some((name, value?)))
            .collect()
    }

    /// The full names of the keys whose values differ in `new` and take effect
    /// only at the next start.
    pub(crate) fn restart_needed(&self, new: &Self) -> Vec<String> {
        let fixed = |config: &Self| -> Vec<(String, Option<String>)> {
            let entries = config.entries().into_iter();
            entries
                .filter(|(_, effect, _)| *effect == Effect::Restart)
                .map(|(name, _, value)| (name, value))
                .collect()
        };
        let (old, new) = (fixed(self), fixed(new));
        let changed = new.iter().filter(|entry| !old.contains(entry));
        let names = changed.map(|(name, _)| name);
        // A listener that is gone has no values any more.
        let gone = old.iter().map(|(name, _)| name);
        let gone = gone.filter(|name| new.iter().all(|(other, _)| other != *name));
        let has = |values: &[(String, _)], key: &str| values.iter().any(|(name, _)| name == key);
        // One that has come or gone is named by its address alone.
        let stays = |name: &&String| match name.rsplit_once('.') {
            Some((section, key)) if section.starts_with(Listener::NAME) && key != "address" => {
                let address = format!("{section}.address");
                has(&old, &address) && has(&new, &address)
            }
            _ => true,
        };
        names.chain(gone).filter(stays).cloned().collect()
    }

    /// What is in effect once `new` is read: its values, but those of this one
    /// where a change takes effect only at the next start. Listeners are those
    /// of `new`.
    pub(crate) fn reloaded(&self, new: &Self) -> Self {
        let mut config = new.clone();
        config.server.keep_fixed(&self.server);
        config.auth.keep_fixed(&self.auth);
        config.limits.keep_fixed(&self.limits);
        config.mqtt.keep_fixed(&self.mqtt);
        config.queue.keep_fixed(&self.queue);
        config.egress.keep_fixed(&self.egress);
        config.admission.keep_fixed(&self.admission);
        config.tcp.keep_fixed(&self.tcp);
        config.marking.keep_fixed(&self.marking);
        config.realtime.keep_fixed(&self.realtime);
        config.store.keep_fixed(&self.store);
        config.mesh.keep_fixed(&self.mesh);
        config.log.keep_fixed(&self.log);
        config
    }

    /// The listeners of this one with what `new` says of them; one that it has no more stays as it
    /// was.
    pub(crate) fn opened(&self, new: &Self) -> Vec<Listener> {
        let mut rest: Vec<&Listener> = new.listeners.iter().collect();
        let opened = self.listeners.iter().map(|opened| {
            let same = rest.iter().position(|it| it.address == opened.address);
            let mut listener = same.map_or(opened, |at| rest.remove(at)).clone();
            listener.keep_fixed(opened);
            listener
        });
        opened.collect()
    }

    /// Every key: its full name, when a change takes effect, its value.
    fn entries(&self) -> Vec<(String, Effect, Option<String>)> {
        fn of<S: Section>(section: &S, path: &str) -> Vec<(String, Effect, Option<String>)> {
            let values = S::keys().into_iter().zip(section.values());
            values
                .map(|(key, value)| (format!("{path}.{}", key.name), key.effect, value))
                .collect()
        }
        let listeners = self.listeners.iter().enumerate();
        let mut entries: Vec<_> = listeners
            .flat_map(|(i, listener)| of(listener, &format!("listener.{i}")))
            .collect();
        entries.extend(of(&self.server, Server::NAME));
        entries.extend(of(&self.auth, Auth::NAME));
        entries.extend(of(&self.limits, Limits::NAME));
        entries.extend(of(&self.mqtt, Mqtt::NAME));
        entries.extend(of(&self.queue, Queue::NAME));
        entries.extend(of(&self.egress, Egress::NAME));
        entries.extend(of(&self.admission, Admission::NAME));
        entries.extend(of(&self.tcp, Tcp::NAME));
        entries.extend(of(&self.marking, Marking::NAME));
        entries.extend(of(&self.realtime, Realtime::NAME));
        entries.extend(of(&self.store, Store::NAME));
        entries.extend(of(&self.mesh, Mesh::NAME));
        entries.extend(of(&self.log, Log::NAME));
        entries
    }

    /// Reads the merged tree. Problems go to `reader`.
    fn read(mut table: Table, reader: &mut Reader) -> Self {
        fn section<S: Section>(table: &mut Table, reader: &mut Reader) -> S {
            match table.remove(S::NAME) {
                Some(node) => S::read(node, S::NAME, reader),
                None => S::default(),
            }
        }
        let config = Self {
            listeners: read_listeners(table.remove(Listener::NAME), reader),
            server: section(&mut table, reader),
            auth: section(&mut table, reader),
            limits: section(&mut table, reader),
            mqtt: section(&mut table, reader),
            queue: section(&mut table, reader),
            egress: section(&mut table, reader),
            admission: section(&mut table, reader),
            tcp: section(&mut table, reader),
            marking: section(&mut table, reader),
            realtime: section(&mut table, reader),
            store: section(&mut table, reader),
            mesh: section(&mut table, reader),
            log: section(&mut table, reader),
        };
        for (key, node) in table {
            reader.unknown("", &key, &node, &reference::top_level());
        }
        config
    }
}

fn read_listeners(node: Option<Node>, reader: &mut Reader) -> Vec<Listener> {
    let Some(node) = node else {
        return vec![Listener::default()];
    };
    let Content::Tables(nodes) = node.content else {
        reader.problems.push(Problem {
            origin: Some(node.origin),
            key: Listener::NAME.into(),
            value: None,
            what: "there can be several listeners, this is a list".into(),
            remedy: "write [[listener]], with two brackets, before the keys of each".into(),
        });
        return vec![Listener::default()];
    };
    let nodes = nodes.into_iter().enumerate();
    nodes
        .map(|(i, node)| Listener::read(node, &format!("listener.{i}"), reader))
        .collect()
}

#[cfg(test)]
mod tests;
