//! Bridges: connections to brokers that are not of the mesh, each a client here and a client there.
//!
//! They stand at the edge of the tree: what comes in by one spreads over the mesh as if a client
//! had published it. Nothing goes back where it came from: both ends subscribe with No Local, and
//! every message carries in a user property which bridges it has passed. What left a mesh of
//! Punctual brokers does not come into one again, by whatever bridge of theirs, and nothing goes
//! out to a broker, or comes in from it, that was there before. So circles of bridges end after
//! one round, also where a part of the circle is a bridge of the other broker, or this one is
//! its own neighbour.

mod sections;
mod standing;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use punctual_client::aio::Client;
use punctual_client::{
    Backoff, Config as ClientConfig, Endpoint, Error as ClientError, Event, Message, Options,
    PropertyBuf, QoS, Scheme, SubscribeOptions,
};
use punctual_codec::PropertyId;
use punctual_net::Server;
use tokio::sync::oneshot;

use self::sections::{Account, Section};
use self::standing::EndState;
pub(crate) use self::standing::{Standing, Standings};
use crate::config::mosquitto_lines;
use crate::error::Error;

/// Key of the user property with the bridges that a message has passed.
const PASSED: &str = "punctual-bridged";
/// What it has of a message that left a mesh.
const MESH: &str = "mesh";
/// Messages on their way to one end, above which the other is not read.
const WINDOW: usize = 500;

/// Bridges before they run.
pub(crate) struct Opening(Vec<Section>);

impl Opening {
    /// Reads the sections of a file.
    pub(crate) fn open(file: Option<&Path>) -> Result<Option<Self>, Error> {
        let Some(file) = file else {
            return Ok(None);
        };
        let lines = mosquitto_lines(file).map_err(|why| format!("mesh.bridges: {why}"))?;
        let wrong = |problems: Vec<String>| {
            let problems = problems.join("\n  ");
            format!("mesh.bridges = {}:\n  {problems}", file.display())
        };
        let sections = sections::read(&lines).map_err(wrong)?;
        let unreadable: Vec<String> = sections
            .iter()
            .filter_map(|section| section.unreadable())
            .collect();
        match unreadable.is_empty() {
            true => Ok(Some(Self(sections))),
            false => Err(wrong(unreadable).into()),
        }
    }

    /// Runs them; `listener` is one of the server's.
    pub(crate) fn start(
        self,
        server: &Server,
        listener: Option<SocketAddr>,
    ) -> Result<Bridges, Error> {
        let listener = listener.ok_or("mesh.bridges: a bridge needs a listener with tcp://")?;
        let standings = Standings::new(&self.0);
        server
            .directory()
            .add_sys_source(Arc::new(standings.clone()));
        let each = standings.each();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("bridges".into())
            .spawn(move || {
                runtime.block_on(async {
                    for (section, standing) in self.0.into_iter().zip(each) {
                        tokio::spawn(keep(section, listener, standing));
                    }
                    // Dropped or sent: either way it is over.
                    let _ = stopped.await;
                });
                runtime.shutdown_background();
            })?;
        Ok(Bridges {
            thread,
            stop,
            standings,
        })
    }
}

/// The running bridges.
pub(crate) struct Bridges {
    thread: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    standings: Standings,
}

impl Bridges {
    /// How they stand, at any time.
    pub(crate) fn standings(&self) -> Standings {
        self.standings.clone()
    }

    /// Ends them.
    pub(crate) fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

/// One end of a bridge.
struct End {
    client: Client,
    /// In words.
    place: String,
    filters: Vec<(String, QoS)>,
    /// What could not be handed over yet.
    held: VecDeque<Message>,
    /// The last trouble that was logged.
    said: String,
}

impl End {
    fn new(
        place: String,
        endpoint: Endpoint,
        config: ClientConfig,
        longest: Duration,
        filters: Vec<(String, QoS)>,
    ) -> Result<Self, ClientError> {
        let reconnect = Backoff {
            first: Duration::from_millis(500).min(longest),
            longest,
        };
        let options = Options {
            endpoint,
            config,
            reconnect: Some(reconnect),
        };
        Ok(Self {
            client: Client::new(options)?,
            place,
            filters,
            held: VecDeque::new(),
            said: String::new(),
        })
    }

    /// Whether it can take more messages.
    fn has_room(&self) -> bool {
        self.client.is_connected() && self.held.is_empty() && self.client.unfinished() < WINDOW
    }

    /// Whether it has to be read, whatever becomes of messages from there.
    fn has_duties(&self) -> bool {
        !self.client.is_connected() || self.client.unfinished() > 0 || !self.held.is_empty()
    }

    fn publish(&mut self, message: Message) {
        self.held.push_back(message);
        self.hand_over();
    }

    fn hand_over(&mut self) {
        while let Some(message) = self.held.front() {
            match self.client.try_publish(message) {
                Err(ClientError::Full) => return,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!("{}: {} cannot go there: {error}", self.place, message.topic);
                }
            }
            self.held.pop_front();
        }
    }

    /// Takes an event in, and notes how it stands then; returns a message.
    fn take(&mut self, event: Result<Event, ClientError>, state: &EndState) -> Option<Message> {
        match event {
            Ok(Event::Message(delivery)) => return Some(delivery.message),
            Ok(Event::Connected(_)) => {
                tracing::info!("{}: connected", self.place);
                state.connected();
                self.said.clear();
                let options = |qos| SubscribeOptions {
                    qos,
                    no_local: true,
                    retain_as_published: true,
                    ..SubscribeOptions::default()
                };
                let filters = std::mem::take(&mut self.filters);
                let wanted: Vec<(&str, SubscribeOptions)> = filters
                    .iter()
                    .map(|(filter, qos)| (filter.as_str(), options(*qos)))
                    .collect();
                // After another connection the client asks for them again by itself.
                if !wanted.is_empty()
                    && let Err(error) = self.client.subscribe(&wanted, &PropertyBuf::new())
                {
                    tracing::warn!("{}: {error}", self.place);
                }
            }
            Ok(Event::Subscribed { reasons, .. }) => {
                for reason in reasons.iter().filter(|reason| reason.is_error()) {
                    tracing::warn!(
                        "{}: a subscription is refused: {}",
                        self.place,
                        reason.name()
                    );
                }
            }
            Ok(_) => {}
            Err(error) => {
                let why = error.to_string();
                if !self.client.is_connected() {
                    state.unconnected(why.clone());
                }
                if why != self.said {
                    tracing::warn!("{}: {why}", self.place);
                    self.said = why;
                }
            }
        }
        self.hand_over();
        None
    }
}

/// Keeps a bridge up until it is dropped.
async fn keep(section: Section, listener: SocketAddr, standing: Arc<Standing>) {
    if let Err(error) = run(section, listener, &standing).await {
        tracing::error!("bridge {} cannot be: {error}", standing.name);
        standing.far.unconnected(format!("it cannot be: {error}"));
    }
}

async fn run(
    section: Section,
    listener: SocketAddr,
    standing: &Standing,
) -> Result<(), ClientError> {
    let Section { name, topics, .. } = &section;
    let there = section
        .address
        .as_ref()
        .map_or("", |address| address.target());
    let mut near = End::new(
        format!("bridge {name}, here"),
        Endpoint {
            port: listener.port(),
            ..Endpoint::new(Scheme::Tcp, local(listener).to_string())
        },
        config(&section.local, format!("bridge.{name}"), &section, 0),
        Duration::from_secs(5),
        topics
            .iter()
            .filter(|t| t.out)
            .map(|t| (t.local_filter(), t.qos))
            .collect(),
    )?;
    let mut far = End::new(
        format!("bridge {name}, {there}"),
        remote(&section),
        config(
            &section.remote,
            format!("punctual.{name}"),
            &section,
            section.keep_alive,
        ),
        section.restart,
        topics
            .iter()
            .filter(|t| t.inward)
            .map(|t| (t.remote_filter(), t.qos))
            .collect(),
    )?;
    loop {
        let (to_far, to_near) = (far.has_room(), near.has_room());
        tokio::select! {
            event = near.client.next(), if to_far || near.has_duties() => {
                if let Some(message) = near.take(event, &standing.near)
                    && let Some(name) = topics.iter().find_map(|t| t.to_remote(&message.topic))
                    && let Some(message) = passed(message, name, &[there], &[MESH, there])
                {
                    far.publish(message);
                }
            }
            event = far.client.next(), if to_near || far.has_duties() => {
                if let Some(message) = far.take(event, &standing.far)
                    && let Some(name) = topics.iter().find_map(|t| t.to_local(&message.topic))
                    && let Some(message) = passed(message, name, &[MESH, there], &[there])
                {
                    near.publish(message);
                }
            }
        }
    }
}

/// The message as it goes on, unless it has been at one of `not`; what is missing of `by` is added.
fn passed(message: Message, topic: String, not: &[&str], by: &[&str]) -> Option<Message> {
    let old = message.properties.as_properties();
    let mut list = old.user_value(PASSED).unwrap_or_default().to_owned();
    if list.split(' ').any(|place| not.contains(&place)) {
        return None;
    }
    for by in by {
        if !list.split(' ').any(|place| place == *by) {
            if !list.is_empty() {
                list.push(' ');
            }
            list.push_str(by);
        }
    }
    let mut properties = PropertyBuf::new();
    for property in old.iter() {
        let of_connection = matches!(
            property.id,
            PropertyId::TopicAlias | PropertyId::SubscriptionIdentifier
        );
        let mark = property.id == PropertyId::UserProperty && property.pair().0 == PASSED;
        if !of_connection && !mark {
            properties.push(property);
        }
    }
    properties.push_user(PASSED, &list).ok()?;
    Some(Message {
        topic,
        properties,
        ..message
    })
}

fn config(account: &Account, id: String, section: &Section, keep_alive: u16) -> ClientConfig {
    let mut properties = PropertyBuf::new();
    if !section.clean {
        properties.push_number(PropertyId::SessionExpiryInterval, u32::MAX);
    }
    ClientConfig {
        client_id: account.client_id.clone().unwrap_or(id),
        clean_start: section.clean,
        keep_alive,
        username: account.user.clone(),
        password: account.password.clone().map(String::into_bytes),
        properties,
        max_queued: 2 * WINDOW,
        ..ClientConfig::default()
    }
}

fn remote(section: &Section) -> Endpoint {
    let address = section.address.as_ref();
    let target = address.map_or("", |address| address.target());
    let port = target
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok());
    let scheme = match section.tls.is_some() || address.is_some_and(|a| a.is_tls()) {
        true => Scheme::Tls,
        false => Scheme::Tcp,
    };
    Endpoint {
        port: port.unwrap_or(1883),
        tls: section.tls.clone().unwrap_or_default(),
        ..Endpoint::new(scheme, address.map_or("", |address| address.host()))
    }
}

/// Where a listener is reached from this machine.
fn local(listener: SocketAddr) -> std::net::IpAddr {
    match listener.ip() {
        std::net::IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(message: Message, there: &str) -> Option<Message> {
        passed(message, "x".into(), &[there], &[MESH, there])
    }

    fn inward(message: Message, there: &str) -> Option<Message> {
        passed(message, "x".into(), &[MESH, there], &[there])
    }

    fn places(message: &Message) -> &str {
        let properties = message.properties.as_properties();
        assert_eq!(properties.user_count(), 1);
        properties.user_value(PASSED).unwrap()
    }

    #[test]
    fn messages_remember_where_they_were() {
        // Out to r, there to another bridge, and not in again; nor out to r once more.
        let left = out(Message::new("a", "x"), "r:1").unwrap();
        assert_eq!(left.topic, "x");
        assert_eq!(places(&left), "mesh r:1");
        assert_eq!(inward(left, "s:1"), None);
        // In from r, out to s, and not to r.
        let entered = inward(Message::new("a", "x"), "r:1").unwrap();
        assert_eq!(out(entered.clone(), "r:1"), None);
        let on = out(entered, "s:1").unwrap();
        assert_eq!(places(&on), "r:1 mesh s:1");
    }

    /// The other half of the circle is a bridge of r's own, or r is this broker itself.
    #[test]
    fn a_circle_closed_elsewhere_ends_after_one_round() {
        let back = out(Message::new("a", "x"), "r:1").unwrap();
        assert_eq!(out(back.clone(), "r:1"), None);
        assert!(out(back, "s:1").is_some());
        let there_again = inward(Message::new("a", "x"), "r:1").unwrap();
        assert_eq!(inward(there_again, "r:1"), None);
    }

    #[test]
    fn certificates_that_cannot_be_read_are_told_before_the_start() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "connection site\naddress h:8883\ntopic #\nbridge_cafile /no/such/ca.pem\n";
        std::fs::write(file.path(), text).unwrap();
        let error = Opening::open(Some(file.path())).err().unwrap().to_string();
        for part in ["mesh.bridges = ", "connection site", "/no/such/ca.pem"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
