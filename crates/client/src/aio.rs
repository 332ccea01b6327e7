//! An asynchronous client for tokio: the same core and transports as
//! [`crate::Client`].
//!
//! Awaiting [`Client::next`] drives the connection; no task runs in the background, so a
//! caller that does not await slows the server down. Every future may be dropped at any
//! time; the next one continues its work. To do something else while messages are
//! awaited, use `select!`:
//!
//! ```no_run
//! use punctual_client::aio::Client;
//! use punctual_client::{Event, Message, Options, SubscribeOptions};
//!
//! # async fn run(mut work: tokio::sync::mpsc::Receiver<Message>)
//! # -> Result<(), punctual_client::Error> {
//! let (mut client, _) = Client::connect(Options::default()).await?;
//! client.subscribe(&[("in/#", SubscribeOptions::default())], &Default::default())?;
//! loop {
//!     tokio::select! {
//!         event = client.next() => if let Event::Message(delivery) = event? {
//!             println!("{}", delivery.message.topic);
//!         },
//!         Some(message) = work.recv() => {
//!             client.publish(&message).await?;
//!         }
//!     }
//! }
//! # }
//! ```

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use punctual_codec::{PropertyBuf, ReasonCode, SubscribeOptions};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout_at};

use crate::driver::{Driver, LINGER, Retry, Turn};
use crate::transport::{self, Transport};
use crate::{Connected, Error, Event, Message, Options, Token};

type Opening = JoinHandle<Result<Box<dyn Transport>, Error>>;

/// Events that a waiting [`Client::publish`] may leave for
/// [`Client::next`]; at the bound it waits without reading on.
const MAX_HELD: usize = 1000;

/// An MQTT client for tokio, to be used in a runtime with its I/O and time
/// drivers.
pub struct Client {
    driver: Driver,
    /// Tells when the transport is ready: a second descriptor of its socket.
    readiness: Option<AsyncFd<OwnedFd>>,
    /// A transport being opened.
    opening: Option<Opening>,
    /// Events that came while something else was awaited.
    held: VecDeque<Event>,
}

impl Client {
    /// Connects and awaits the server's answer.
    ///
    /// # Errors
    /// All but `Full` and `NotConnected`.
    pub async fn connect(options: Options) -> Result<(Self, Connected), Error> {
        let mut client = Self::new(options)?;
        client.open().await?;
        loop {
            if let Event::Connected(connected) = client.next().await? {
                return Ok((client, connected));
            }
        }
    }

    /// A client without connection; [`open`](Self::open) makes one, and so does
    /// [`next`](Self::next) if [`Options::reconnect`] is set.
    ///
    /// # Errors
    /// See [`Config::validate`](crate::Config::validate).
    pub fn new(options: Options) -> Result<Self, Error> {
        Ok(Self {
            driver: Driver::new(options)?,
            readiness: None,
            opening: None,
            held: VecDeque::new(),
        })
    }

    /// Makes a connection; [`next`](Self::next) will report the server's
    /// answer. A connection that exists is given up. Name look-up and
    /// handshakes run on a thread of the runtime's pool, for at most
    /// [`Endpoint::timeout`](crate::Endpoint::timeout).
    ///
    /// # Errors
    /// `Unreachable`, `Tls`, `TimedOut`, `ApiMisuse`, `Lost`.
    pub async fn open(&mut self) -> Result<(), Error> {
        self.close();
        let opening = self.opening.get_or_insert_with(|| {
            let endpoint = self.driver.options.endpoint.clone();
            let version = self.driver.options.config.version;
            tokio::task::spawn_blocking(move || transport::open(&endpoint, version))
        });
        let opened = opening.await;
        self.opening = None;
        let transport = opened.map_err(|error| Error::Lost(io::Error::other(error)))??;
        // The core writes to and reads from the socket; the second descriptor
        // only waits.
        let descriptor = transport.as_fd().try_clone_to_owned();
        let descriptor = descriptor.map_err(Error::Lost)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        // SAFETY: an `OwnedFd` is the same open descriptor as long as it lives.
        let readiness = unsafe { AsyncFd::register_with_interest(descriptor, interest) };
        let readiness = readiness.map_err(|error| Error::Lost(error.into()))?;
        self.readiness = Some(readiness);
        self.driver.attach(transport)
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

    /// Publishes; see [`Core::publish`](crate::Core::publish). Awaits room if
    /// there is none, and drives the connection meanwhile. Dropped before it
    /// is ready, it has not published.
    ///
    /// # Errors
    /// `ApiMisuse`, `Unsupported`; `Full` if 1000 events wait to be taken by
    /// [`next`](Self::next); while it awaits room, also the errors of `next`.
    pub async fn publish(&mut self, message: &Message) -> Result<Token, Error> {
        loop {
            match self.driver.publish(message) {
                Err(Error::Full) if self.held.len() < MAX_HELD => {}
                result => return result,
            }
            if let Some(event) = self.advance().await? {
                self.held.push_back(event);
            }
        }
    }

    /// Publishes if there is room.
    ///
    /// # Errors
    /// `ApiMisuse`, `Unsupported`, `Full`.
    pub fn try_publish(&mut self, message: &Message) -> Result<Token, Error> {
        self.driver.publish(message)
    }

    /// Asks for subscriptions; [`Event::Subscribed`] will be the answer. They
    /// are asked for again, under the same token, whenever the server turns
    /// out to have forgotten them.
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

    /// Awaits the next event. No event is lost if the future is dropped.
    ///
    /// # Errors
    /// The connection could not be made or has ended. If
    /// [`Options::reconnect`] is set, the next call makes another after a
    /// pause, which it is for the caller to decide; see
    /// [`Error::is_transient`]. If not, `NotConnected` from then on.
    pub async fn next(&mut self) -> Result<Event, Error> {
        if let Some(event) = self.held.pop_front() {
            return Ok(event);
        }
        loop {
            if let Some(event) = self.advance().await? {
                return Ok(event);
            }
        }
    }

    /// Closes the connection gracefully: sends the buffered output and DISCONNECT, and
    /// awaits for up to a second that the server closes. It does not wait for
    /// acknowledgements of messages with QoS 1 and 2. A future that is dropped before it
    /// is ready leaves the connection half-closed, as dropping the client would.
    ///
    /// # Errors
    /// `NotConnected`, `ApiMisuse`; `Lost` or `TimedOut` if the DISCONNECT
    /// could not be sent.
    pub async fn disconnect(
        &mut self,
        reason: ReasonCode,
        properties: &PropertyBuf,
    ) -> Result<(), Error> {
        self.driver.core.disconnect(reason, properties)?;
        let result = self.hang_up().await;
        self.close();
        result
    }

    async fn hang_up(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + LINGER;
        while !self.driver.send_off().map_err(Error::Lost)? {
            if Instant::now() >= deadline {
                return Err(Error::TimedOut("the server does not take what is sent"));
            }
            self.wait(Some(self.driver.until(deadline))).await?;
        }
        self.driver.finish();
        let deadline = Instant::now() + LINGER;
        while Instant::now() < deadline && self.driver.drain() {
            self.wait(Some(self.driver.until(deadline))).await?;
        }
        Ok(())
    }

    /// Does something; `None` if that was no event, or if there is room for
    /// a publish that found none. Between two awaits everything is in
    /// `self`, so that nothing is lost when the future is dropped.
    async fn advance(&mut self) -> Result<Option<Event>, Error> {
        if self.driver.transport().is_none() {
            // One may be opening already, when a future before was dropped.
            if self.opening.is_some() {
                self.open().await?;
                return Ok(None);
            }
            match self.driver.retry() {
                None => return Err(Error::NotConnected),
                Some(Retry::At(moment)) => sleep_until(moment.into()).await,
                Some(Retry::Now) => self.open().await?,
            }
            return Ok(None);
        }
        match self.driver.turn() {
            Ok(Turn::Event(event)) => Ok(Some(event)),
            Ok(Turn::Room | Turn::Again) => {
                // A busy server must not keep the runtime from other tasks.
                tokio::task::coop::consume_budget().await;
                Ok(None)
            }
            Ok(Turn::Wait(until)) => self.wait(until).await.map(|()| None),
            Err(error) => {
                self.readiness = None;
                Err(error)
            }
        }
    }

    /// Awaits that the transport is ready, or the moment.
    async fn wait(&mut self, until: Option<Instant>) -> Result<(), Error> {
        let Some(readiness) = &mut self.readiness else {
            return Err(Error::NotConnected);
        };
        let ready = async {
            let mut guard = readiness
                .ready_mut(Interest::READABLE | Interest::WRITABLE)
                .await?;
            // Whatever made it ready, the next turn tries both until each
            // would block.
            guard.clear_ready();
            Ok(())
        };
        let result = match until {
            Some(until) => timeout_at(until.into(), ready).await.unwrap_or(Ok(())),
            None => ready.await,
        };
        result.map_err(Error::Lost)
    }

    fn close(&mut self) {
        self.readiness = None;
        self.driver.detach();
    }
}
