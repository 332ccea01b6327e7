//! A blocking client: a [`Core`] on one connection after another.
//!
//! One thread, no locks: calls of [`Client::next`] drive the connection. Nothing is read
//! between them, so a slow caller slows the server down and never makes memory grow.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token as Source};
use punctual_codec::{PropertyBuf, ReasonCode, SubscribeOptions};

use crate::driver::{Driver, LINGER, Retry, Turn};
use crate::endpoint::Endpoint;
use crate::transport;
use crate::{Config, Connected, Error, Event, Message, Token};

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
    pub(crate) fn pause(&self, attempt: u32) -> Duration {
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
        // It fails only if the client was dropped, and then nothing waits.
        let _ = self.0.wake();
    }
}

/// A blocking MQTT client.
pub struct Client {
    driver: Driver,
    poll: Poll,
    events: Events,
    waker: Waker,
    woken: bool,
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
        let driver = Driver::new(options)?;
        let poll = Poll::new().map_err(Error::Lost)?;
        let waker = mio::Waker::new(poll.registry(), WAKER).map_err(Error::Lost)?;
        Ok(Self {
            driver,
            poll,
            events: Events::with_capacity(8),
            waker: Waker(Arc::new(waker)),
            woken: false,
        })
    }

    /// Makes a connection now; [`next`](Self::next) will report the server's
    /// answer. A connection that exists is given up.
    ///
    /// # Errors
    /// `Unreachable`, `Tls`, `TimedOut`, `ApiMisuse`, `Lost`.
    pub fn open(&mut self) -> Result<(), Error> {
        // Closing a descriptor ends its registration.
        self.driver.detach();
        let Options {
            endpoint, config, ..
        } = &self.driver.options;
        let transport = transport::open(endpoint, config.version)?;
        let descriptor = transport.as_fd().as_raw_fd();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        registry
            .register(&mut SourceFd(&descriptor), TRANSPORT, interest)
            .map_err(Error::Lost)?;
        self.driver.attach(transport)
    }

    /// Something to end waits with.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The moment that [`Delivery::received`](crate::Delivery::received)
    /// counts from.
    pub fn epoch(&self) -> Instant {
        self.driver.epoch()
    }

    /// Whether a CONNACK has accepted the connection, and no end of it was noticed since.
    pub fn is_connected(&self) -> bool {
        self.driver.core.is_connected()
    }

    /// See [`Core::unfinished`](crate::Core::unfinished).
    pub fn unfinished(&self) -> usize {
        self.driver.core.unfinished()
    }

    /// Publishes without waiting; see [`Core::publish`](crate::Core::publish).
    /// On [`Error::Full`], call [`next`](Self::next) and try again.
    ///
    /// # Errors
    /// `ApiMisuse`, `Unsupported`, `Full`. That the connection is gone is
    /// reported by the next call of `next`.
    pub fn publish(&mut self, message: &Message) -> Result<Token, Error> {
        self.driver.publish(message)
    }

    /// Asks for subscriptions; [`Event::Subscribed`] will be the answer. They
    /// are asked for again, under the same token, whenever the server turns
    /// out to have forgotten them. A receiver's own requirements go into
    /// `properties`, by
    /// [`require`](crate::RealTimeProperties::require).
    ///
    /// # Errors
    /// See [`Core::subscribe`](crate::Core::subscribe).
    pub fn subscribe(
        &mut self,
        filters: &[(&str, SubscribeOptions)],
        properties: &PropertyBuf,
    ) -> Result<Token, Error> {
        self.driver.subscribe(filters, properties)
    }

    /// Asks for subscriptions to end; [`Event::Unsubscribed`] will be the
    /// answer.
    ///
    /// # Errors
    /// See [`Core::unsubscribe`](crate::Core::unsubscribe).
    pub fn unsubscribe(
        &mut self,
        filters: &[&str],
        properties: &PropertyBuf,
    ) -> Result<Token, Error> {
        self.driver.unsubscribe(filters, properties)
    }

    /// Sends AUTH; see [`Core::auth`](crate::Core::auth).
    ///
    /// # Errors
    /// See [`Core::auth`](crate::Core::auth).
    pub fn auth(&mut self, reason: ReasonCode, properties: &PropertyBuf) -> Result<(), Error> {
        self.driver.auth(reason, properties)
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
            let until = match self.driver.transport() {
                Some(_) => match self.driver.turn()? {
                    Turn::Event(event) => return Ok(Some(event)),
                    Turn::Room => return Ok(None),
                    Turn::Again => None,
                    Turn::Wait(until) => Some(until),
                },
                None => match self.driver.retry() {
                    None => return Err(Error::NotConnected),
                    Some(Retry::At(moment)) => Some(Some(moment)),
                    Some(Retry::Now) => {
                        self.open()?;
                        None
                    }
                },
            };
            if let Some(until) = until {
                self.wait(match (until, deadline) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                })?;
            }
            if deadline.is_some_and(|end| Instant::now() >= end) {
                return Ok(None);
            }
        }
    }

    /// Closes the connection gracefully: sends the buffered output and DISCONNECT, and
    /// waits up to a second for the server to close. It does not wait for
    /// acknowledgements of messages with QoS 1 and 2.
    ///
    /// # Errors
    /// `NotConnected`, `ApiMisuse`; `Lost` or `TimedOut` if the DISCONNECT
    /// could not be sent.
    pub fn disconnect(
        &mut self,
        reason: ReasonCode,
        properties: &PropertyBuf,
    ) -> Result<(), Error> {
        self.driver.core.disconnect(reason, properties)?;
        let result = self.hang_up();
        self.driver.detach();
        result
    }

    fn hang_up(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + LINGER;
        while !self.driver.send_off().map_err(Error::Lost)? {
            if Instant::now() >= deadline {
                return Err(Error::TimedOut("the server does not take what is sent"));
            }
            self.wait(Some(self.driver.until(deadline)))?;
        }
        self.driver.finish();
        let deadline = Instant::now() + LINGER;
        while Instant::now() < deadline && self.driver.drain() {
            self.wait(Some(self.driver.until(deadline)))?;
        }
        Ok(())
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
}
