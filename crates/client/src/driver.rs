//! What every shell around a [`Core`] does alike: one transport after another,
//! subscriptions that are renewed, the moves between core and transport. It
//! never waits; it says what to wait for.

use std::io;
use std::time::{Duration, Instant};

use punctual_codec::{PropertyBuf, ReasonCode, SubscribeOptions};

use crate::client::Options;
use crate::endpoint::Scheme;
use crate::marking::Class;
use crate::transport::{self, Transport};
use crate::{Core, Error, Event, Message, RealTimeProperties as _, Token};

/// Bytes read at a time.
const READ: usize = 64 * 1024;

/// Time for DISCONNECT to leave, and again for the server to close.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// Time that acknowledgements may wait for others to join them while more
/// packets are at hand.
const BATCH: Duration = Duration::from_millis(1);

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

/// Result of a [`Driver::turn`].
#[derive(Debug)]
pub(crate) enum Turn {
    Event(Event),
    /// A publish that failed as [`Error::Full`] has room now.
    Room,
    /// Something was done and more may be.
    Again,
    /// Nothing can be done before the transport is ready or that moment.
    Wait(Option<Instant>),
}

pub(crate) struct Driver {
    pub(crate) options: Options,
    pub(crate) core: Core,
    transport: Option<Box<dyn Transport>>,
    /// The last publish found no room.
    wants_room: bool,
    epoch: Instant,
    buffer: Box<[u8]>,
    subscriptions: Vec<Subscription>,
    /// Attempts to connect since the last success.
    attempts: u32,
    retry_at: Instant,
    last_flush: Duration,
    /// The class of publications that say nothing else.
    default_class: Class,
}

impl Driver {
    pub(crate) fn new(options: Options) -> Result<Self, Error> {
        let core = Core::new(options.config.clone())?;
        let now = Instant::now();
        Ok(Self {
            default_class: class(&options.config.properties),
            options,
            core,
            transport: None,
            wants_room: false,
            epoch: now,
            buffer: vec![0; READ].into_boxed_slice(),
            subscriptions: Vec::new(),
            attempts: 0,
            retry_at: now,
            last_flush: Duration::ZERO,
        })
    }

    /// The moment that the core's times count from.
    pub(crate) fn epoch(&self) -> Instant {
        self.epoch
    }

    /// Time for the core.
    pub(crate) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Takes a transport that was opened for it.
    pub(crate) fn attach(&mut self, transport: Box<dyn Transport>) -> Result<(), Error> {
        self.core.carry(transport.max_packet());
        self.transport = Some(transport);
        self.core.connect(self.epoch.elapsed())
    }

    pub(crate) fn transport(&self) -> Option<&dyn Transport> {
        self.transport.as_deref()
    }

    /// Gives up the connection.
    pub(crate) fn detach(&mut self) {
        self.transport = None;
        self.core.connection_lost();
    }

    /// When to connect again, if at all; counts the attempt.
    pub(crate) fn retry(&mut self) -> Option<Retry> {
        let backoff = self.options.reconnect?;
        let now = Instant::now();
        if now < self.retry_at {
            return Some(Retry::At(self.retry_at));
        }
        self.retry_at = now + backoff.pause(self.attempts);
        self.attempts += 1;
        Some(Retry::Now)
    }

    /// See [`Core::publish`].
    pub(crate) fn publish(&mut self, message: &Message) -> Result<Token, Error> {
        let now = self.now();
        let class = class(&message.properties).min(self.default_class);
        if let Some(transport) = &mut self.transport {
            transport.mark(class);
        }
        let result = self.core.publish(message, now);
        self.wants_room = matches!(result, Err(Error::Full));
        self.try_flush();
        if let Some(transport) = &mut self.transport {
            transport.mark(Class::Normal);
        }
        result
    }

    /// See [`Core::subscribe`]; it is renewed when the server forgets it.
    pub(crate) fn subscribe(
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

    /// See [`Core::unsubscribe`].
    pub(crate) fn unsubscribe(
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

    /// See [`Core::auth`].
    pub(crate) fn auth(
        &mut self,
        reason: ReasonCode,
        properties: &PropertyBuf,
    ) -> Result<(), Error> {
        let now = self.now();
        self.core.auth(reason, properties, now)?;
        self.try_flush();
        Ok(())
    }

    /// One round: events, time, output, input. An error is the end of the
    /// connection.
    pub(crate) fn turn(&mut self) -> Result<Turn, Error> {
        if self.wants_room && self.core.has_room() {
            self.wants_room = false;
            return Ok(Turn::Room);
        }
        let result = self.step();
        if result.is_err() {
            self.detach();
            if let Some(backoff) = self.options.reconnect {
                self.retry_at = Instant::now() + backoff.pause(self.attempts);
            }
        }
        result
    }

    fn step(&mut self) -> Result<Turn, Error> {
        let now = self.now();
        match self.core.poll(now) {
            Ok(Some(event)) => {
                if now.saturating_sub(self.last_flush) >= BATCH || !self.core.has_input() {
                    self.try_flush();
                }
                return Ok(self.note(event).map_or(Turn::Again, Turn::Event));
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
            return Err(Error::NotConnected);
        };
        if let Err(error) = transport.tick() {
            return Err(self.explain(error));
        }
        let Some(transport) = &mut self.transport else {
            return Err(Error::NotConnected);
        };
        match transport.read(&mut self.buffer) {
            Ok(0) => {
                let end = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed it");
                Err(self.explain(end))
            }
            Ok(n) => {
                let waited = transport.waited().unwrap_or_default();
                let now = self.epoch.elapsed().saturating_sub(waited);
                self.core.receive(&self.buffer[..n], now);
                Ok(Turn::Again)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Acknowledgements of the transport may have given room; where they
                // were the last ones nothing else would come and say so.
                if !self.core.output().is_empty()
                    && matches!(self.flush(), Ok(FlushOutcome::All | FlushOutcome::Some))
                {
                    return Ok(Turn::Again);
                }
                let core = self.core.timeout().map(|at| self.epoch + at);
                let transport = self.transport.as_ref().and_then(|t| t.timeout());
                Ok(Turn::Wait(match (core, transport) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                }))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Turn::Again),
            Err(error) => Err(self.explain(error)),
        }
    }

    /// What an end of the connection without a last word may mean.
    fn explain(&self, error: io::Error) -> Error {
        let endpoint = &self.options.endpoint;
        if self.core.is_connected() || error.get_ref().is_some_and(|e| e.is::<rustls::Error>()) {
            return transport::explain_io(error, endpoint);
        }
        if endpoint.scheme == Scheme::Udp {
            return Error::Unreachable {
                endpoint: endpoint.to_string(),
                source: error,
            };
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

    /// Writes as much output as the transport takes; what became of it.
    fn flush(&mut self) -> io::Result<FlushOutcome> {
        let now = self.epoch.elapsed();
        self.last_flush = now;
        let Some(transport) = &mut self.transport else {
            return Ok(FlushOutcome::All);
        };
        let mut flushed = FlushOutcome::Nothing;
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
                        return Ok(FlushOutcome::All);
                    }
                    flushed = FlushOutcome::Some;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(flushed),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the buffered output before closing; false if the transport takes no more for
    /// now. Incoming packets are read meanwhile, as acknowledgements make space.
    pub(crate) fn send_off(&mut self) -> io::Result<bool> {
        loop {
            if let FlushOutcome::All = self.flush()? {
                return Ok(true);
            }
            let open = self.drain();
            match self.flush()? {
                FlushOutcome::All => return Ok(true),
                FlushOutcome::Some => {}
                FlushOutcome::Nothing if open => return Ok(false),
                FlushOutcome::Nothing => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// Writes what can be written. A connection that fails to be written to
    /// fails to be read from soon, and by then the server's last words, which
    /// may say why, have been read.
    fn try_flush(&mut self) {
        let _ = self.flush();
    }

    /// After DISCONNECT was sent: tells the transport that this is the end.
    pub(crate) fn finish(&mut self) {
        if let Some(transport) = &mut self.transport {
            // The packets are sent; how the transport itself ends is a
            // courtesy.
            let _ = transport.finish();
        }
    }

    /// When to look at the connection again while it ends.
    pub(crate) fn until(&self, deadline: Instant) -> Instant {
        let timeout = self.transport.as_ref().and_then(|t| t.timeout());
        timeout.map_or(deadline, |timeout| timeout.min(deadline))
    }

    /// Reads what the server still sends, so that closing is no reset, which
    /// might overtake the DISCONNECT. False when the server has closed, too.
    pub(crate) fn drain(&mut self) -> bool {
        let Some(transport) = &mut self.transport else {
            return false;
        };
        if transport.tick().is_err() {
            return false;
        }
        loop {
            match transport.read(&mut self.buffer) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
    }
}

/// Result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlushOutcome {
    /// All was sent.
    All,
    /// A part was sent.
    Some,
    /// The transport took nothing.
    Nothing,
}

/// What to do without a connection.
pub(crate) enum Retry {
    Now,
    At(Instant),
}

/// The class of a message with these properties. A message that the server will refuse
/// has the normal one.
fn class(properties: &PropertyBuf) -> Class {
    properties
        .requirements()
        .map_or(Class::Normal, |requirements| Class::of(&requirements))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Takes as many bytes as there is room; acknowledgements, which are read,
    /// give more.
    struct Window {
        socket: UnixStream,
        room: usize,
        acknowledged: Vec<usize>,
        taken: Arc<Mutex<usize>>,
    }

    impl AsFd for Window {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
    }

    impl Transport for Window {
        fn read(&mut self, _buf: &mut [u8]) -> io::Result<usize> {
            self.room += self.acknowledged.pop().unwrap_or_default();
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.room);
            if n == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.room -= n;
            *self.taken.lock().unwrap() += n;
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn finish(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn mark(&mut self, _class: Class) {}
    }

    /// A driver whose transport has room for 5 bytes of a CONNECT of 15 bytes.
    fn driver(acknowledged: Vec<usize>) -> (Driver, Arc<Mutex<usize>>) {
        let taken = Arc::new(Mutex::new(0));
        let mut options = Options::default();
        options.config.client_id = "c".to_owned();
        let mut driver = Driver::new(options).unwrap();
        let transport = Window {
            socket: UnixStream::pair().unwrap().0,
            room: 5,
            acknowledged,
            taken: taken.clone(),
        };
        driver.attach(Box::new(transport)).unwrap();
        (driver, taken)
    }

    /// Nothing comes after the last acknowledgement that would wake whoever waits.
    #[test]
    fn room_that_reading_gives_is_used_before_it_waits() {
        let (mut driver, taken) = driver(vec![100]);
        let size = driver.core.output().len();
        assert!(size > 5);
        assert!(matches!(driver.turn(), Ok(Turn::Again)));
        assert_eq!(*taken.lock().unwrap(), size);
        assert!(matches!(driver.turn(), Ok(Turn::Wait(_))));
    }

    #[test]
    fn what_is_sent_at_the_end_goes_on_as_acknowledgements_come() {
        let (mut driver, taken) = driver(vec![100, 3, 1]);
        let size = driver.core.output().len();
        assert!(driver.send_off().unwrap());
        assert_eq!(*taken.lock().unwrap(), size);
    }

    #[test]
    fn what_the_transport_does_not_take_waits() {
        let (mut driver, taken) = driver(Vec::new());
        assert!(matches!(driver.turn(), Ok(Turn::Wait(_))));
        assert!(!driver.send_off().unwrap());
        assert_eq!(*taken.lock().unwrap(), 5);
    }
}
