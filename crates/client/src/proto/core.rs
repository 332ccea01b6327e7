//! The connection as its owner drives it: requests, output, time. What
//! packets from the server do is in `packets`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use punctual_codec::{
    Connect, Disconnect, Packet, PropertyBuf, PropertyId, PropertySet, Publish, QoS, ReasonCode,
    Subscribe, SubscribeOptions, Unsubscribe, Version, Will, topic,
};

use super::alias;
use super::config::{Config, check_properties, check_topic};
use super::event::{Event, Token};
use super::flight::{Flight, Next, StoredPublish, as_publish};
use super::inbound::Inbound;
use super::outbound::Outbound;
use crate::{Error, Message};

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No transport.
    Down,
    /// CONNECT is sent; CONNACK has to come until then.
    Connecting { deadline: Duration },
    /// CONNACK has come.
    Up,
    /// DISCONNECT is sent, or an error has ended the connection: nothing more
    /// is sent, nothing more is heard.
    Closing,
}

/// A SUBSCRIBE or UNSUBSCRIBE that awaits its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) token: Token,
    pub(super) filters: usize,
    pub(super) subscribe: bool,
}

/// One client session and its connection, if it has one.
#[derive(Debug)]
pub struct Core {
    pub(super) config: Config,
    pub(super) phase: Phase,
    pub(super) input: Vec<u8>,
    /// Bytes of `input` already handled.
    pub(super) handled: usize,
    /// When the last bytes came.
    pub(super) received: Duration,
    pub(super) output: Outbound,
    pub(super) flight: Flight,
    pub(super) inbound: Inbound,
    pub(super) aliases_in: alias::InboundAliases,
    pub(super) requests: BTreeMap<u16, Request>,
    pub(super) events: VecDeque<Event>,
    /// The identifier the server assigned.
    pub(super) assigned_id: Option<String>,
    /// Whether the server may hold a session that the next connection resumes.
    pub(super) resumable: bool,
    /// Whether the last CONNECT asked for a clean start.
    pub(super) clean_start_sent: bool,
    /// Keep Alive of the connection; zero if it is off.
    pub(super) keep_alive: Duration,
    pub(super) last_sent: Duration,
    /// Something has to come from the server until then.
    pub(super) ping_deadline: Option<Duration>,
    next_token: u64,
    scratch: PropertyBuf,
}

impl Core {
    /// A new session without connection.
    ///
    /// # Errors
    /// See [`Config::validate`].
    pub fn new(config: Config) -> Result<Self, Error> {
        config.validate()?;
        Ok(Self {
            phase: Phase::Down,
            input: Vec::new(),
            handled: 0,
            received: Duration::ZERO,
            output: Outbound::new(config.version),
            flight: Flight::default(),
            inbound: Inbound::default(),
            aliases_in: alias::InboundAliases::default(),
            requests: BTreeMap::new(),
            events: VecDeque::new(),
            assigned_id: None,
            resumable: false,
            clean_start_sent: false,
            keep_alive: Duration::ZERO,
            last_sent: Duration::ZERO,
            ping_deadline: None,
            next_token: 0,
            scratch: PropertyBuf::new(),
            config,
        })
    }

    /// The options it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether the server has accepted the connection and neither side has
    /// ended it.
    pub fn is_connected(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Messages given to [`publish`](Self::publish) that have not been sent
    /// or, with QoS 1 and 2, not been acknowledged to their end.
    pub fn unfinished(&self) -> usize {
        self.flight.len()
    }

    /// Whether [`publish`](Self::publish) would take a message now.
    pub fn has_room(&self) -> bool {
        self.flight.waiting() < self.config.max_queued.max(1)
    }

    /// A transport has been connected: puts CONNECT into the output. What an
    /// earlier connection left is thrown away.
    ///
    /// # Errors
    /// `ApiMisuse` if a field is too long for its packet.
    pub fn connect(&mut self, now: Duration) -> Result<(), Error> {
        self.connection_lost();
        let config = &self.config;
        let resume = self.resumable && config.version.is_v5();
        let connect = Connect {
            version: config.version,
            clean_start: config.clean_start && !resume,
            keep_alive: config.keep_alive,
            client_id: match &self.assigned_id {
                Some(id) if resume => id,
                _ => &config.client_id,
            },
            will: config.will.as_ref().map(|will| Will {
                topic: &will.topic,
                payload: &will.payload,
                qos: will.qos,
                retain: will.retain,
                properties: will.properties.as_properties(),
            }),
            username: config.username.as_deref(),
            password: config.password.as_deref(),
            properties: config.properties.as_properties(),
        };
        self.output.control(Packet::Connect(connect))?;
        self.clean_start_sent = connect.clean_start;
        self.phase = Phase::Connecting {
            deadline: now + Duration::from_secs(config.connack_timeout.into()),
        };
        self.last_sent = now;
        Ok(())
    }

    /// The transport carries no packets of more than that many bytes; they are
    /// refused like those that the server does not take. Without bound if it
    /// is never said.
    pub fn carry(&mut self, most: Option<usize>) {
        self.output.carry(most);
    }

    /// The transport is gone, or is being given up. Requests to subscribe and
    /// unsubscribe without answer are forgotten; unacknowledged messages are
    /// kept for the next connection.
    pub fn connection_lost(&mut self) {
        self.phase = Phase::Down;
        self.input.clear();
        self.handled = 0;
        self.output.reset();
        self.requests.clear();
        self.ping_deadline = None;
    }

    /// Adds bytes that came from the server, to be handled by
    /// [`poll`](Self::poll).
    pub fn receive(&mut self, bytes: &[u8], now: Duration) {
        self.input.drain(..self.handled);
        self.handled = 0;
        self.input.extend_from_slice(bytes);
        self.received = now;
        if self.ping_deadline.is_some() {
            self.ping_deadline = Some(now + self.keep_alive);
        }
    }

    /// Whether received bytes wait to be [polled](Self::poll).
    pub fn has_input(&self) -> bool {
        self.handled < self.input.len()
    }

    /// Bytes to send.
    pub fn output(&self) -> &[u8] {
        self.output.bytes()
    }

    /// The first `n` bytes of [`output`](Self::output) have been sent. Waiting
    /// messages may take their place.
    pub fn sent(&mut self, n: usize, now: Duration) {
        self.output.sent(n);
        if self.output().is_empty() {
            self.pump(now);
        }
    }

    /// When [`tick`](Self::tick) has something to do, if nothing happens
    /// before.
    pub fn timeout(&self) -> Option<Duration> {
        match self.phase {
            Phase::Connecting { deadline } => Some(deadline),
            Phase::Up if !self.keep_alive.is_zero() => {
                let ping = self.last_sent + self.keep_alive;
                Some(self.ping_deadline.map_or(ping, |pong| pong.min(ping)))
            }
            _ => None,
        }
    }

    /// Does timed work: sends PINGREQ [MQTT-3.1.2-20], and ends the connection to a
    /// silent server.
    ///
    /// # Errors
    /// `TimedOut`; the connection is to be closed then.
    pub fn tick(&mut self, now: Duration) -> Result<(), Error> {
        match self.phase {
            Phase::Connecting { deadline } if now >= deadline => {
                Err(self.fail(Error::TimedOut("the server did not answer CONNECT")))
            }
            Phase::Up if !self.keep_alive.is_zero() => {
                if self.ping_deadline.is_some_and(|deadline| now >= deadline) {
                    return Err(self.fail(Error::TimedOut("the server did not answer a ping")));
                }
                if now >= self.last_sent + self.keep_alive {
                    self.output.control(Packet::PingReq)?;
                    self.last_sent = now;
                    self.ping_deadline.get_or_insert(now + self.keep_alive);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Publishes a message: now, or when there is a connection and its turn.
    /// With QoS 1 and 2 an [`Event::Published`] will say how it went, with
    /// QoS 0 only if it could not be sent.
    ///
    /// # Errors
    /// `ApiMisuse` for an invalid message, `Unsupported` for one that this
    /// server does not take, `Full`; nothing is sent then.
    pub fn publish(&mut self, message: &Message, now: Duration) -> Result<Token, Error> {
        let version = self.config.version;
        check_topic("topic", &message.topic)?;
        check_properties(
            "PUBLISH",
            &message.properties,
            PropertySet::PUBLISH,
            version.is_v5(),
        )?;
        let given = message.properties.as_properties();
        if given.contains(PropertyId::SubscriptionIdentifier) {
            return Err(Error::misuse(
                "properties",
                "Subscription Identifier",
                "only servers send it in PUBLISH; leave it out",
            ));
        }
        let alias = given.number(PropertyId::TopicAlias);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        if alias.is_some() {
            for property in given.iter().filter(|p| p.id != PropertyId::TopicAlias) {
                scratch.push(property);
            }
        }
        let properties = match alias {
            Some(_) => scratch.as_properties(),
            None => given,
        };
        let result = self.submit(as_publish(message, properties), alias, now);
        self.scratch = scratch;
        result
    }

    fn submit(
        &mut self,
        publish: Publish<'_>,
        alias: Option<u32>,
        now: Duration,
    ) -> Result<Token, Error> {
        let alias = alias.map(|alias| alias as u16);
        if self.phase == Phase::Up
            && let Some(alias) = alias
            && let most = self.output.alias_limit()
            && alias > most
        {
            let remedy = match most {
                0 => "the server takes none on this connection: leave it out".into(),
                _ => format!("the server takes 1 to {most}: give one of these, or leave it out"),
            };
            return Err(Error::misuse("topic alias", alias.to_string(), remedy));
        }
        let direct = publish.qos == QoS::AtMostOnce
            && self.phase == Phase::Up
            && !self.output.is_full()
            && !self.flight.has_unsent();
        if direct {
            self.output.publish(publish, alias)?;
            self.last_sent = now;
            return Ok(self.token());
        }
        if !self.has_room() {
            return Err(Error::Full);
        }
        let mut stored = StoredPublish::new(publish, self.config.version)?;
        stored.alias = alias;
        if self.phase == Phase::Up {
            let limits = &self.output.limits;
            limits
                .publish(&publish)
                .and_then(|()| limits.packet(stored.bytes().len()))
                .map_err(Error::Unsupported)?;
        }
        let token = self.token();
        self.flight.enqueue(token, stored);
        self.pump(now);
        Ok(token)
    }

    /// Asks for subscriptions.
    ///
    /// # Errors
    /// `NotConnected`; `ApiMisuse` for no or invalid filters or properties;
    /// `Unsupported`.
    pub fn subscribe(
        &mut self,
        filters: &[(&str, SubscribeOptions)],
        properties: &PropertyBuf,
        now: Duration,
    ) -> Result<Token, Error> {
        let version = self.config.version;
        let names: Vec<&str> = filters.iter().map(|(filter, _)| *filter).collect();
        let id = self.request(&names, properties, PropertySet::SUBSCRIBE, "SUBSCRIBE")?;
        let properties = properties.as_properties();
        let with_id = properties.contains(PropertyId::SubscriptionIdentifier);
        for (filter, options) in filters {
            self.output
                .limits
                .filter(filter, with_id)
                .map_err(Error::Unsupported)?;
            if !version.is_v5() && options.byte() > 2 {
                return Err(Error::misuse(
                    "subscription options",
                    *filter,
                    "before MQTT 5 there is only a QoS; use MQTT 5, or leave them out",
                ));
            }
        }
        self.output
            .bounded(|version, out| Ok(Subscribe::put(id, properties, filters, version, out)?))?;
        Ok(self.requested(id, names.len(), true, now))
    }

    /// Asks for subscriptions to end.
    ///
    /// # Errors
    /// `NotConnected`; `ApiMisuse` for no or invalid filters or properties.
    pub fn unsubscribe(
        &mut self,
        filters: &[&str],
        properties: &PropertyBuf,
        now: Duration,
    ) -> Result<Token, Error> {
        let id = self.request(filters, properties, PropertySet::UNSUBSCRIBE, "UNSUBSCRIBE")?;
        let properties = properties.as_properties();
        self.output
            .bounded(|version, out| Ok(Unsubscribe::put(id, properties, filters, version, out)?))?;
        Ok(self.requested(id, filters.len(), false, now))
    }

    /// Checks a SUBSCRIBE or UNSUBSCRIBE and allots a packet identifier.
    fn request(
        &mut self,
        filters: &[&str],
        properties: &PropertyBuf,
        allowed: PropertySet,
        packet: &'static str,
    ) -> Result<u16, Error> {
        if self.phase != Phase::Up {
            return Err(Error::NotConnected);
        }
        if filters.is_empty() {
            return Err(Error::misuse("topic filter", "", "give at least one"));
        }
        for filter in filters {
            if filter.contains('\0') || topic::validate_filter(filter).is_err() {
                return Err(Error::misuse(
                    "topic filter",
                    *filter,
                    "+ and # must stand alone between slashes, # only at the end, \
                     and it must not be empty",
                ));
            }
        }
        check_properties(packet, properties, allowed, self.config.version.is_v5())?;
        let requests = &self.requests;
        self.flight
            .free_id(|id| requests.contains_key(&id))
            .ok_or(Error::Full)
    }

    /// Notes a request that is in the output.
    fn requested(&mut self, id: u16, filters: usize, subscribe: bool, now: Duration) -> Token {
        let token = self.token();
        let request = Request {
            token,
            filters,
            subscribe,
        };
        self.requests.insert(id, request);
        self.last_sent = now;
        token
    }

    /// Sends AUTH, to answer one or to authenticate again.
    ///
    /// # Errors
    /// `NotConnected` without transport, `ApiMisuse` for properties that AUTH
    /// does not have or before MQTT 5.
    pub fn auth(
        &mut self,
        reason: ReasonCode,
        properties: &PropertyBuf,
        now: Duration,
    ) -> Result<(), Error> {
        if matches!(self.phase, Phase::Down | Phase::Closing) {
            return Err(Error::NotConnected);
        }
        if !self.config.version.is_v5() {
            return Err(Error::misuse("AUTH", "", "only MQTT 5 has it"));
        }
        check_properties("AUTH", properties, PropertySet::AUTH, true)?;
        let auth = punctual_codec::Auth {
            reason,
            properties: properties.as_properties(),
        };
        self.output.control(Packet::Auth(auth))?;
        self.last_sent = now;
        Ok(())
    }

    /// Ends the connection in good order: the output ends with DISCONNECT, and
    /// nothing is heard from now on. The owner sends it and closes.
    ///
    /// # Errors
    /// `NotConnected`; `ApiMisuse` for properties that DISCONNECT does not
    /// have.
    pub fn disconnect(
        &mut self,
        reason: ReasonCode,
        properties: &PropertyBuf,
    ) -> Result<(), Error> {
        if self.phase != Phase::Up {
            return Err(Error::NotConnected);
        }
        let v5 = self.config.version.is_v5();
        check_properties("DISCONNECT", properties, PropertySet::DISCONNECT, v5)?;
        let disconnect = Disconnect {
            reason,
            properties: properties.as_properties(),
        };
        self.output.control(Packet::Disconnect(disconnect))?;
        self.phase = Phase::Closing;
        Ok(())
    }

    /// Ends the connection because of `error`; sends DISCONNECT where MQTT has a reason
    /// code for it.
    pub(super) fn fail(&mut self, error: Error) -> Error {
        if let Error::PeerMisbehaved { reason, .. } = &error
            && self.phase == Phase::Up
        {
            let _ = self.disconnect(*reason, &PropertyBuf::new());
        }
        self.phase = Phase::Closing;
        error
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Moves messages that wait into the output, as far as the server's
    /// Receive Maximum and the output limit allow.
    pub(super) fn pump(&mut self, now: Duration) {
        if self.phase != Phase::Up {
            return;
        }
        let maximum = self.output.limits.receive_maximum;
        let quota = maximum.min(self.config.max_inflight).max(1);
        while !self.output.is_full() {
            let requests = &self.requests;
            let next = self.flight.next(quota, |id| requests.contains_key(&id));
            let refused = match next {
                None => break,
                Some(Next::Once(token, stored)) => {
                    let sent = send(&mut self.output, self.config.version, &stored);
                    sent.err().map(|error| (token, error))
                }
                Some(Next::Flying(id)) => {
                    let stored = self.flight.stored(id);
                    let sent = stored.map_or(Ok(()), |stored| {
                        send(&mut self.output, self.config.version, stored)
                    });
                    let error = sent.err();
                    error.and_then(|error| Some((self.flight.finish(id)?, error)))
                }
            };
            match refused {
                None => self.last_sent = now,
                Some((token, error)) => self.events.push_back(Event::Published {
                    token,
                    reason: match error {
                        Error::Unsupported(reason) => reason,
                        _ => ReasonCode::ImplementationSpecificError,
                    },
                    properties: PropertyBuf::new(),
                }),
            }
        }
    }
}

fn send(output: &mut Outbound, version: Version, stored: &StoredPublish) -> Result<(), Error> {
    match stored.publish(version) {
        Some(publish) => output.publish(publish, stored.alias),
        None => Err(Error::Unsupported(ReasonCode::ImplementationSpecificError)),
    }
}
