//! A blocking client: a [`Core`] on one connection after another.
//!
//! One thread, no locks: whoever calls [`Client::next`] drives everything.
//! Nothing is read while nobody calls it, so a slow caller slows the server
//! down and never makes memory grow.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token as Source};
use punctual_codec::{PropertyBuf, ReasonCode, SubscribeOptions};

use crate::endpoint::Endpoint;
use crate::transport::{self, Transport};
use crate::{Config, Connected, Core, Error, Event, Message, Token};

/// Bytes read at a time.
const READ: usize = 64 * 1024;

/// Time for DISCONNECT to leave, and again for the server to close.
const LINGER: Duration = Duration::from_secs(1);

/// Time that acknowledgements may wait for others to join them while more
/// packets are at hand.
const BATCH: Duration = Duration::from_millis(1);

const TRANSPORT: Source = Source(0);
const WAKER: Source = Source(1);

/// How to connect, and what to do when the connection breaks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Where to connect to.
    pub endpoint: Endpoint,
    /// What to say there.
    pub config: Config,
    /// When to connect again; `None` for never.
    pub reconnect: Option<Backoff>,
}

/// Pauses between attempts to connect: each twice the one before, less up to
/// a half at random so that many clients do not return at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    fn pause(&self, attempt: u32) -> Duration {
        let full = self.first.saturating_mul(1 << attempt.min(16));
        let full = full.min(self.longest);
        let random = getrandom::u32().unwrap_or(0);
        full - (full / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

/// Ends a wait in [`Client::next`] from another thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<mio::Waker>);

impl Waker {
    /// Has the present or the next [`Client::next`] return `None` at once.
    pub fn wake(&self) {
        // It fails only if the client is gone, and then nobody waits.
        let _ = self.0.wake();
    }
}

/// A subscription to be made again when the server has forgotten it.
#[derive(Debug)]
struct Subscription {
    /// As its owner knows it.
    token: Token,
    /// The SUBSCRIBE on this connection.
    current: Token,
    filters: Vec<(String, SubscribeOptions)>,
    properties: PropertyBuf,
    answered: bool,
}

/// A blocking MQTT client.
pub struct Client {
    options: Options,
    core: Core,
    transport: Option<Box<dyn Transport>>,
    poll: Poll,
    events: Events,
    waker: Waker,
    woken: bool,
    /// The last publish found no room.
    wants_room: bool,
    epoch: Instant,
    buffer: Box<[u8]>,
    subscriptions: Vec<Subscription>,
    /// Attempts to connect since the last success.
    attempts: u32,
    retry_at: Instant,
    last_flush: Duration,
}

impl Client {
    /// Connects and waits for the server's answer.
    ///
    /// # Errors
    /// All but `Full` and `NotConnected`.
    pub fn connect(options: Options) -> Result<(Self, Connected), Error> {
        let mut client = Self::new(options)?;
        client.open()?;
        loop {
            if let Some(Event::Connected(connected)) = client.next(None)? {
                return Ok((client, connected));
            }
        }
    }

    /// A client without connection; [`open`](Self::open) makes one, and so does
    /// [`next`](Self::next) if [`Options::reconnect`] is set.
    ///
    /// # Errors
    /// See [`Config::validate`]; `Lost` if the system gives no more file
    /// descriptors.
    pub fn new(options: Options) -> Result<Self, Error> {
        let core = Core::new(options.config.clone())?;
        let poll = Poll::new().map_err(Error::Lost)?;
        let waker = mio::Waker::new(poll.registry(), WAKER).map_err(Error::Lost)?;
        let now = Instant::now();
        Ok(Self {
            options,
            core,
            transport: None,
            poll,
            events: Events::with_capacity(8),
            waker: Waker(Arc::new(waker)),
            woken: false,
            wants_room: false,
            epoch: now,
            buffer: vec![0; READ].into_boxed_slice(),
            subscriptions: Vec::new(),
            attempts: 0,
            retry_at: now,
            last_flush: Duration::ZERO,
        })
    }

    /// Makes a connection now; [`next`](Self::next) will report the server's
    /// answer. A connection that exists is given up.
    ///
    /// # Errors
    /// `Unreachable`, `Tls`, `TimedOut`, `ApiMisuse`, `Lost`.
    pub fn open(&mut self) -> Result<(), Error> {
        self.drop_transport();
        let Options {
            endpoint, config, ..
        } = &self.options;
        let mut transport = transport::open(endpoint, config.version)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        transport
            .register(self.poll.registry(), TRANSPORT, interest)
            .map_err(Error::Lost)?;
        self.transport = Some(transport);
        self.core.connect(self.epoch.elapsed())
    }

    /// Something to end waits with.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Whether the server has accepted the connection, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.core.is_connected()
    }

    /// See [`Core::unfinished`].
    pub fn unfinished(&self) -> usize {
        self.core.unfinished()
    }

    /// Publishes without waiting; see [`Core::publish`]. On [`Error::Full`],
    /// call [`next`](Self::next) and try again.
    ///
    /// # Errors
    /// `ApiMisuse`, `Unsupported`, `Full`. That the connection is gone is
    /// reported by the next call of `next`.
    pub fn publish(&mut self, message: &Message) -> Result<Token, Error> {
        let now = self.now();
        let result = self.core.publish(message, now);
        self.wants_room = matches!(result, Err(Error::Full));
        self.try_flush();
        result
    }

    /// Asks for subscriptions; [`Event::Subscribed`] will be the answer. They
    /// are asked for again, under the same token, whenever the server turns
    /// out to have forgotten them.
    ///
    /// # Errors
    /// See [`Core::subscribe`].
    pub fn subscribe(
        &mut self,
        filters: &[(&str, SubscribeOptions)],
        properties: &PropertyBuf,
    ) -> Result<Token, Error> {
        let now = self.now();
        let token = self.core.subscribe(filters, properties, now)?;
        let filters = filters.iter().map(|(f, o)| ((*f).to_owned(), *o));
        self.subscriptions.push(Subscription {
            token,
            current: token,
            filters: filters.collect(),
            properties: properties.clone(),
            answered: false,
        });
        self.try_flush();
        Ok(token)
    }

    /// Asks for subscriptions to end; [`Event::Unsubscribed`] will be the
    /// answer.
    ///
    /// # Errors
    /// See [`Core::unsubscribe`].
    pub fn unsubscribe(
        &mut self,
        filters: &[&str],
        properties: &PropertyBuf,
    ) -> Result<Token, Error> {
        let now = self.now();
        let token = self.core.unsubscribe(filters, properties, now)?;
        for subscription in &mut self.subscriptions {
            subscription
                .filters
                .retain(|(filter, _)| !filters.contains(&filter.as_str()));
        }
        self.subscriptions.retain(|s| !s.filters.is_empty());
        self.try_flush();
        Ok(token)
    }

    /// Sends AUTH; see [`Core::auth`].
    ///
    /// # Errors
    /// See [`Core::auth`].
    pub fn auth(&mut self, reason: ReasonCode, properties: &PropertyBuf) -> Result<(), Error> {
        let now = self.now();
        self.core.auth(reason, properties, now)?;
        self.try_flush();
        Ok(())
    }

    /// Waits for the next event, but not longer than `timeout`. `None` when
    /// that is over, a [`Waker`] was used, or a publish that failed as
    /// [`Error::Full`] has room now.
    ///
    /// # Errors
    /// The connection could not be made or has ended. If
    /// [`Options::reconnect`] is set, the next call tries to make another
    /// after a pause (an attempt itself can take [`Endpoint::timeout`],
    /// whatever `timeout` is), which it is for the caller to decide; see
    /// [`Error::is_transient`]. If not, `NotConnected` from then on.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if std::mem::take(&mut self.woken) {
                return Ok(None);
            }
            if self.wants_room && self.core.has_room() {
                self.wants_room = false;
                return Ok(None);
            }
            if self.transport.is_none() {
                let Some(backoff) = self.options.reconnect else {
                    return Err(Error::NotConnected);
                };
                if Instant::now() >= self.retry_at {
                    self.retry_at = Instant::now() + backoff.pause(self.attempts);
                    self.attempts += 1;
                    self.open()?;
                    continue;
                }
                let until = deadline.map_or(self.retry_at, |end| end.min(self.retry_at));
                self.wait(Some(until))?;
            } else if let Some(event) = self.turn(deadline).map_err(|error| self.lost(error))? {
                return Ok(Some(event));
            }
            if deadline.is_some_and(|end| Instant::now() >= end) {
                return Ok(None);
            }
        }
    }

    /// Ends the connection in good order: sends what is in the output and
    /// DISCONNECT, and waits up to a second for the server to close. Messages
    /// with QoS 1 and 2 that are not acknowledged yet are not waited for.
    ///
    /// # Errors
    /// `NotConnected`, `ApiMisuse`; `Lost` or `TimedOut` if the DISCONNECT
    /// could not be sent.
    pub fn disconnect(
        &mut self,
        reason: ReasonCode,
        properties: &PropertyBuf,
    ) -> Result<(), Error> {
        self.core.disconnect(reason, properties)?;
        let result = self.hang_up();
        self.drop_transport();
        result
    }

    fn hang_up(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + LINGER;
        while !self.flush().map_err(Error::Lost)? {
            if Instant::now() >= deadline {
                return Err(Error::TimedOut("the server does not take what is sent"));
            }
            self.wait(Some(deadline))?;
        }
        let Some(transport) = &mut self.transport else {
            return Ok(());
        };
        // The packets are sent; how the transport itself ends is a courtesy.
        // To close with unread input would be a reset, though, which may
        // overtake the DISCONNECT, so input is read until the server closes.
        let _ = transport.finish();
        let deadline = Instant::now() + LINGER;
        while Instant::now() < deadline {
            let Some(transport) = &mut self.transport else {
                break;
            };
            match transport.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(Some(deadline))?;
                }
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Time for the core.
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// One round: output, input, events; waits if there is nothing to do.
    fn turn(&mut self, deadline: Option<Instant>) -> Result<Option<Event>, Error> {
        let now = self.now();
        match self.core.poll(now) {
            Ok(Some(event)) => {
                if now.saturating_sub(self.last_flush) >= BATCH || !self.core.has_input() {
                    self.try_flush();
                }
                return Ok(self.note(event));
            }
            Ok(None) => {}
            Err(error) => {
                // Tells the server why, if it listens.
                self.try_flush();
                return Err(error);
            }
        }
        self.core.tick(now)?;
        self.try_flush();
        let Some(transport) = &mut self.transport else {
            return Ok(None);
        };
        match transport.read(&mut self.buffer) {
            Ok(0) => {
                let end = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed it");
                Err(self.explain(end))
            }
            Ok(n) => {
                let now = self.epoch.elapsed();
                self.core.receive(&self.buffer[..n], now);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let timeout = self.core.timeout().map(|at| self.epoch + at);
                let until = match (timeout, deadline) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
                self.wait(until)?;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(self.explain(error)),
        }
    }

    /// What an end of the connection without a last word may mean.
    fn explain(&self, error: io::Error) -> Error {
        let endpoint = &self.options.endpoint;
        if self.core.is_connected() || error.get_ref().is_some_and(|e| e.is::<rustls::Error>()) {
            return transport::explain_io(error, endpoint);
        }
        let hint = match endpoint.scheme.is_tls() {
            true if endpoint.tls.cert_file.is_none() => "does it want a client certificate?",
            true => "is it an MQTT port?",
            false => "is it an MQTT port without TLS?",
        };
        let text = format!("{error}, before {endpoint} answered CONNECT; {hint}");
        Error::Lost(io::Error::new(error.kind(), text))
    }

    /// Keeps the books about an event on its way to the caller.
    fn note(&mut self, mut event: Event) -> Option<Event> {
        match &mut event {
            Event::Connected(connected) => {
                self.attempts = 0;
                self.resubscribe(connected.session_present);
            }
            Event::Subscribed { token, .. } => {
                let mut all = self.subscriptions.iter_mut();
                if let Some(subscription) = all.find(|s| s.current == *token) {
                    let again = subscription.answered;
                    subscription.answered = true;
                    *token = subscription.token;
                    if again {
                        return None;
                    }
                }
            }
            _ => {}
        }
        Some(event)
    }

    fn resubscribe(&mut self, session_present: bool) {
        let now = self.now();
        for subscription in &mut self.subscriptions {
            if session_present && subscription.answered {
                continue;
            }
            let filters: Vec<(&str, SubscribeOptions)> = subscription
                .filters
                .iter()
                .map(|(filter, options)| (filter.as_str(), *options))
                .collect();
            // They were valid when they were first asked for; a server that
            // now supports less has no place to say so.
            if let Ok(token) = self.core.subscribe(&filters, &subscription.properties, now) {
                subscription.current = token;
            }
        }
    }

    /// Writes as much output as the transport takes; whether that is all.
    fn flush(&mut self) -> io::Result<bool> {
        let now = self.epoch.elapsed();
        self.last_flush = now;
        let Some(transport) = &mut self.transport else {
            return Ok(true);
        };
        loop {
            let output = self.core.output();
            let result = match output.is_empty() {
                true => transport.flush().map(|()| 0),
                false => transport.write(output),
            };
            match result {
                Ok(n) => {
                    let finished = self.core.output().is_empty();
                    self.core.sent(n, now);
                    if finished && self.core.output().is_empty() {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes what can be written. A connection that fails to be written to
    /// fails to be read from soon, and by then the server's last words, which
    /// may say why, have been read.
    fn try_flush(&mut self) {
        let _ = self.flush();
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error> {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                return Err(Error::Lost(error));
            }
            _ => {}
        }
        self.woken |= self.events.iter().any(|event| event.token() == WAKER);
        Ok(())
    }

    /// The connection has ended because of `error`.
    fn lost(&mut self, error: Error) -> Error {
        self.drop_transport();
        if let Some(backoff) = self.options.reconnect {
            self.retry_at = Instant::now() + backoff.pause(self.attempts);
        }
        error
    }

    fn drop_transport(&mut self) {
        if let Some(mut transport) = self.transport.take() {
            // Closing the descriptor would do the same.
            let _ = transport.deregister(self.poll.registry());
        }
        self.core.connection_lost();
    }
}
