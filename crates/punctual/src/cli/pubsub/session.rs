//! What `pub` and `sub` do alike with a client: interrupts, and what they
//! print about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use punctual_client::{
    Answer, Client, Error, Event, Options, PropertyBuf, ReasonCode, Status, Version,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::super::complain;
use super::exit::{self, Failed};

/// A client that SIGINT and SIGTERM can stop, and its voice.
pub(super) struct Session {
    pub(super) client: Client,
    stop: Arc<AtomicBool>,
    version: Version,
    reconnect: bool,
    debug: bool,
    quiet: bool,
    /// Whether the server has ever accepted a connection.
    pub(super) established: bool,
}

impl Session {
    /// Connects; the server's answer is the first event.
    pub(super) fn open(options: Options, debug: bool, quiet: bool) -> Result<Self, Failed> {
        let version = options.config.version;
        let reconnect = options.reconnect.is_some();
        let endpoint = options.endpoint.to_string();
        let failed = |error: Error| Failed::from_client(&error, version);
        let client = Client::new(options).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        stop_on_signals(&client, Arc::clone(&stop))?;
        let mut session = Self {
            client,
            stop,
            version,
            reconnect,
            debug,
            quiet,
            established: false,
        };
        session.debug(|| format!("connecting to {endpoint}"));
        session.client.open().map_err(failed)?;
        Ok(session)
    }

    /// Whether the user has had enough.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Looks at what [`Client::next`] returned. An error after which the
    /// client connects again is printed and passes as no event.
    pub(super) fn check(
        &mut self,
        result: Result<Option<Event>, Error>,
    ) -> Result<Option<Event>, Failed> {
        match result {
            Ok(event) => {
                if let Some(event) = &event {
                    self.established |= matches!(event, Event::Connected(_));
                    self.debug(|| summary(event));
                    if let Some(answer) = event.answer() {
                        self.answered(&answer);
                    }
                }
                Ok(event)
            }
            Err(error) if self.reconnect && self.established && error.is_transient() => {
                self.warn(&format!("{}; connecting again", exit::describe(&error)));
                Ok(None)
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Says what the broker says to requirements: what it does not promise
    /// always, what it does for `-d`.
    fn answered(&self, answer: &Answer) {
        let reason = answer.reason.as_deref().unwrap_or("it does not say why");
        match (answer.status, answer.bound) {
            (Some(Status::Rejected), _) => {
                self.warn(&format!("the requirements were rejected: {reason}"));
            }
            (Some(Status::BestEffort), _) => {
                self.warn(&format!("the requirements are best effort: {reason}"));
            }
            (_, Some(bound)) => {
                self.debug(|| {
                    let conditions = answer.conditions.iter().map(|it| it.name());
                    let conditions: Vec<_> = conditions.collect();
                    let but = match conditions.is_empty() {
                        true => String::new(),
                        false => format!(" (not guaranteed: {})", conditions.join(", ")),
                    };
                    format!("requirements admitted, bound {bound:?}{but}")
                });
            }
            (Some(Status::Admitted), None) => {
                self.debug(|| "requirements admitted, without a bound yet".into());
            }
            (None, None) => self.debug(|| format!("requirements: {reason}")),
        }
    }

    pub(super) fn failed(&self, error: &Error) -> Failed {
        Failed::from_client(error, self.version)
    }

    /// Prints something that went wrong and is no end.
    pub(super) fn warn(&self, text: &str) {
        if !self.quiet {
            complain(&format_args!("Warning: {text}"));
        }
    }

    /// Prints something that was asked for and is no message.
    pub(super) fn say(&self, text: &str) {
        if !self.quiet {
            complain(&text);
        }
    }

    /// Prints something for `-d`.
    pub(super) fn debug(&self, text: impl FnOnce() -> String) {
        if self.debug {
            complain(&text());
        }
    }

    /// Says DISCONNECT if there is somebody to say it to.
    pub(super) fn close(&mut self, properties: &PropertyBuf) -> Result<(), Failed> {
        if !self.client.is_connected() {
            return Ok(());
        }
        self.debug(|| "disconnecting".into());
        let result = self.client.disconnect(ReasonCode::Success, properties);
        result.map_err(|error| self.failed(&error))
    }
}

fn stop_on_signals(client: &Client, stop: Arc<AtomicBool>) -> Result<(), Failed> {
    let wrong = |error: std::io::Error| Failed::usage(format!("signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(wrong)?;
    let waker = client.waker();
    let name = std::thread::Builder::new().name("signals".into());
    let thread = name.spawn(move || {
        for _ in signals.forever() {
            // Connecting cannot be interrupted; who asks twice does not want
            // to wait for it.
            if stop.swap(true, Ordering::Relaxed) {
                std::process::exit(exit::INTERRUPTED);
            }
            waker.wake();
        }
    });
    thread.map(drop).map_err(wrong)
}

fn summary(event: &Event) -> String {
    match event {
        Event::Connected(connected) => format!(
            "connected as {:?}{}",
            connected.client_id,
            match connected.session_present {
                true => ", the session goes on",
                false => "",
            }
        ),
        Event::Message(delivery) => format!(
            "received PUBLISH (q{}, r{}, d{}, m{}, '{}', {} bytes)",
            delivery.message.qos as u8,
            u8::from(delivery.message.retain),
            u8::from(delivery.dup),
            delivery.packet_id,
            delivery.message.topic,
            delivery.message.payload.len()
        ),
        Event::Published { reason, .. } => format!("published: {reason}"),
        Event::Subscribed { reasons, .. } => {
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            format!("subscribed: {}", reasons.join(", "))
        }
        Event::Unsubscribed { .. } => "unsubscribed".into(),
        other => format!("{other:?}"),
    }
}
