//! `punctual sub`: subscribes and prints what comes.

use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use chrono::Local;
use clap::Args;
use punctual_client::{
    Delivery, Error, Event, Message, PropertyBuf, QoS, RealTimeProperties as _, ReasonCode,
    SubscribeOptions, Token,
};
use punctual_codec::topic;

use super::connection::{Connection, parse_qos};
use super::exit::{self, Failed};
use super::format::Format;
use super::latency::{self, Latencies};
use super::requirements::RequirementFlags;
use super::sequences::Sequences;
use super::session::Session;

/// Time between two lines of `--latency`.
const LATENCY_INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of `punctual sub`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(in crate::cli) struct Arguments {
    /// Topic filter to subscribe to; may be repeated.
    #[arg(short, long, value_name = "FILTER")]
    topic: Vec<String>,
    /// Leave out topics that match this filter; may be repeated.
    #[arg(short = 'T', long, value_name = "FILTER")]
    filter_out: Vec<String>,
    /// Unsubscribe from this filter of a kept session; may be repeated.
    #[arg(short = 'U', long, value_name = "FILTER")]
    unsubscribe: Vec<String>,
    /// Greatest quality of service to receive with: 0, 1 or 2.
    #[arg(short, long, default_value = "0", value_parser = parse_qos)]
    qos: QoS,
    /// Print topics too.
    #[arg(short, long)]
    verbose: bool,
    /// Print messages in this format; docs/pub-sub.md lists the specifiers.
    #[arg(short = 'F', long, allow_hyphen_values = true)]
    format: Option<String>,
    /// Print JSON (%j and %J of -F) on several lines.
    #[arg(long)]
    pretty: bool,
    /// Print no end of line after a message.
    #[arg(short = 'N')]
    no_newline: bool,
    /// End after that many messages.
    #[arg(short = 'C', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End, with exit code 27, that many seconds after connecting.
    #[arg(short = 'W', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// End when the subscriptions are acknowledged.
    #[arg(short = 'E')]
    exit_after_subscribing: bool,
    /// Leave out retained messages.
    #[arg(short = 'R')]
    no_retained: bool,
    /// Print retained messages, and end with the first that is not.
    #[arg(long, conflicts_with = "no_retained")]
    retained_only: bool,
    /// Clear every retained message that comes, printed or not, unless -T
    /// leaves it out.
    #[arg(long)]
    remove_retained: bool,
    /// Have messages keep the retain flag that they were published with.
    #[arg(long)]
    retain_as_published: bool,
    /// Instead of messages, print a line each second with percentiles of the
    /// time since `punctual pub --latency` sent them.
    #[arg(long, conflicts_with_all = ["format", "verbose"])]
    latency: bool,
    /// Have the broker number what it sends, say on standard error what is
    /// missing, and at the end what was lost, reordered or doubled.
    #[arg(long)]
    sequence: bool,
    /// Do not connect again when the connection is lost.
    #[arg(long)]
    no_reconnect: bool,
    #[command(flatten)]
    requirements: RequirementFlags,
    #[command(flatten)]
    connection: Connection,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Runs `punctual sub`.
pub(in crate::cli) fn run(arguments: &Arguments) -> ExitCode {
    exit::exit(subscribe(arguments), arguments.connection.quiet)
}

fn subscribe(arguments: &Arguments) -> Result<(), Failed> {
    let connection = &arguments.connection;
    let (options, url_topic) = connection.options(!arguments.no_reconnect)?;
    let mut topics = arguments.topic.clone();
    topics.extend(url_topic);
    if topics.is_empty() && arguments.unsubscribe.is_empty() {
        return Err(Failed::usage(
            "no topic: give one with -t, or in the URL of -L",
        ));
    }
    for filter in topics
        .iter()
        .chain(&arguments.unsubscribe)
        .chain(&arguments.filter_out)
    {
        if topic::validate_filter(filter).is_err() {
            return Err(Failed::usage(format!(
                "{filter:?} is no topic filter: + and # stand alone between slashes, \
                 and # only at the end"
            )));
        }
    }
    if arguments.retain_as_published && !connection.version().is_v5() {
        return Err(Failed::usage(
            "--retain-as-published needs MQTT 5: leave -V out, or say -V 5",
        ));
    }
    if arguments.sequence && !connection.version().is_v5() {
        return Err(Failed::usage(
            "--sequence needs MQTT 5: leave -V out, or say -V 5",
        ));
    }
    let mut properties = arguments.requirements.add(
        &connection.properties.subscribe,
        "subscribe",
        connection.version().is_v5(),
    )?;
    if arguments.sequence {
        properties.number_deliveries();
    }
    let format = match (&arguments.format, arguments.verbose) {
        (Some(format), _) => Format::parse(format, arguments.pretty).map_err(Failed::usage)?,
        (None, true) => Format::verbose(),
        (None, false) => Format::payload(),
    };
    let format = match io::stdout().is_terminal() {
        true => format.for_terminal(),
        false => format,
    };
    let output = match arguments.latency {
        true => Output::Latencies(Meter::new()?),
        false => Output::Messages(Printer {
            format,
            newline: !arguments.no_newline,
            buffer: Vec::new(),
        }),
    };
    let mut session = Session::open(options, connection.debug, connection.quiet)?;
    let mut subscriber = Subscriber {
        arguments,
        topics,
        properties,
        output,
        sequences: Sequences::default(),
        has_asked: false,
        asked: HashSet::new(),
        removing: HashSet::new(),
        count: 0,
        deadline: None,
        done: false,
    };
    let result = subscriber.run(&mut session);
    // What was received has been acknowledged, so it is printed whatever
    // happened after.
    let printed = subscriber.output.finish();
    subscriber.report(&session);
    result?;
    printed?;
    session.close(&connection.properties.disconnect)?;
    match subscriber.timed_out() && !subscriber.done {
        true => Err(Failed::new(exit::TIMED_OUT, "timed out")),
        false => Ok(()),
    }
}

struct Subscriber<'a> {
    arguments: &'a Arguments,
    topics: Vec<String>,
    /// Of SUBSCRIBE.
    properties: PropertyBuf,
    output: Output,
    /// Of `--sequence`.
    sequences: Sequences,
    has_asked: bool,
    /// Requests that have not been answered.
    asked: HashSet<Token>,
    /// Retained messages being cleared.
    removing: HashSet<Token>,
    count: u64,
    /// Of `-W`.
    deadline: Option<Instant>,
    /// All that was asked for has come.
    done: bool,
}

impl Subscriber<'_> {
    fn run(&mut self, session: &mut Session) -> Result<(), Failed> {
        loop {
            if session.stopped() || self.timed_out() || (self.done && self.removing.is_empty()) {
                return Ok(());
            }
            // Takes what is at hand before it prints.
            let result = session.client.next(Some(Duration::ZERO));
            let event = match session.check(result)? {
                Some(event) => event,
                None => {
                    if !self.output.flush()? {
                        return Ok(());
                    }
                    let result = session.client.next(self.patience());
                    match session.check(result)? {
                        Some(event) => event,
                        None => continue,
                    }
                }
            };
            self.on_event(event, session)?;
        }
    }

    fn timed_out(&self) -> bool {
        self.deadline.is_some_and(|end| Instant::now() >= end)
    }

    /// How long to wait for an event.
    fn patience(&self) -> Option<Duration> {
        let left = self
            .deadline
            .map(|end| end.saturating_duration_since(Instant::now()));
        match (left, self.output.interval()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn on_event(&mut self, event: Event, session: &mut Session) -> Result<(), Failed> {
        match event {
            // The client renews subscriptions on later connections itself.
            Event::Connected(_) if !std::mem::replace(&mut self.has_asked, true) => {
                self.deadline = self
                    .arguments
                    .timeout
                    .and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
                self.ask(session).map_err(|error| session.failed(&error))
            }
            Event::Subscribed { token, reasons, .. } => {
                self.asked.remove(&token);
                self.on_subscribed(&reasons, session)
            }
            Event::Unsubscribed { token, .. } => {
                self.asked.remove(&token);
                self.on_answered();
                Ok(())
            }
            Event::Message(delivery) => self.on_message(&delivery, session),
            Event::Published { token, reason, .. } => {
                self.removing.remove(&token);
                if reason.is_error() {
                    session.warn(&format!("a retained message was not cleared: {reason}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Subscribes and unsubscribes.
    fn ask(&mut self, session: &mut Session) -> Result<(), Error> {
        let Arguments {
            connection,
            unsubscribe,
            ..
        } = self.arguments;
        let options = SubscribeOptions {
            qos: self.arguments.qos,
            retain_as_published: self.arguments.retain_as_published,
            ..SubscribeOptions::default()
        };
        if !self.topics.is_empty() {
            let filters: Vec<(&str, SubscribeOptions)> = self
                .topics
                .iter()
                .map(|topic| (topic.as_str(), options))
                .collect();
            let token = session.client.subscribe(&filters, &self.properties)?;
            self.asked.insert(token);
        }
        if !unsubscribe.is_empty() {
            let filters: Vec<&str> = unsubscribe.iter().map(String::as_str).collect();
            let properties = &connection.properties.unsubscribe;
            self.asked
                .insert(session.client.unsubscribe(&filters, properties)?);
        }
        Ok(())
    }

    fn on_subscribed(&mut self, reasons: &[ReasonCode], session: &Session) -> Result<(), Failed> {
        for (reason, topic) in reasons.iter().zip(&self.topics) {
            if reason.is_error() {
                session.warn(&format!(
                    "the subscription to {topic:?} was refused: {reason}"
                ));
            }
        }
        match reasons.first() {
            Some(first) if reasons.iter().all(|reason| reason.is_error()) => Err(Failed::new(
                first.byte(),
                "all subscriptions were refused; may this user (-u, -P) read these topics?",
            )),
            _ => {
                self.on_answered();
                Ok(())
            }
        }
    }

    fn on_answered(&mut self) {
        self.done |= self.arguments.exit_after_subscribing && self.asked.is_empty();
    }

    /// Says what was missing, if that is asked for.
    fn report(&self, session: &Session) {
        if !self.arguments.sequence {
            return;
        }
        session.say(&match self.sequences.report() {
            Some(report) => format!(
                "{} received, {} lost, {} reordered, {} doubled",
                report.received, report.lost, report.reordered, report.doubled
            ),
            None => "no message had a number: either none came, or the broker gives none".into(),
        });
    }

    fn on_message(&mut self, delivery: &Delivery, session: &mut Session) -> Result<(), Failed> {
        let message = &delivery.message;
        let arguments = self.arguments;
        if let Some(stamp) = delivery.number().filter(|_| arguments.sequence) {
            let missing = self.sequences.record(&message.topic, stamp);
            if missing > 0 {
                session.warn(&format!(
                    "{missing} missing on topic {:?} before number {}",
                    message.topic, stamp.number
                ));
            }
        }
        if self.done || is_left_out(&arguments.filter_out, &message.topic) {
            return Ok(());
        }
        if arguments.remove_retained && message.retain {
            let empty = Message::new(&*message.topic, "")
                .qos(QoS::AtLeastOnce)
                .retained();
            let token = session.client.publish(&empty);
            self.removing
                .insert(token.map_err(|error| session.failed(&error))?);
        }
        if arguments.retained_only && !message.retain {
            self.done = true;
            return Ok(());
        }
        if arguments.no_retained && message.retain {
            return Ok(());
        }
        self.output.print(delivery, session);
        self.count += 1;
        self.done |= arguments.count == Some(self.count);
        Ok(())
    }
}

fn is_left_out(filters: &[String], name: &str) -> bool {
    filters.iter().any(|filter| topic::matches(filter, name))
}

/// Where messages go.
enum Output {
    Messages(Printer),
    Latencies(Meter),
}

impl Output {
    fn print(&mut self, delivery: &Delivery, session: &Session) {
        match self {
            Self::Messages(printer) => printer.print(delivery, session),
            Self::Latencies(meter) => meter.latencies.record(delivery, latency::now()),
        }
    }

    /// Prints what is ready; false if nobody reads it any more.
    fn flush(&mut self) -> Result<bool, Failed> {
        match self {
            Self::Messages(printer) => printer.flush(),
            Self::Latencies(meter) => meter.flush(),
        }
    }

    fn finish(&mut self) -> Result<(), Failed> {
        match self {
            Self::Messages(printer) => printer.flush().map(drop),
            Self::Latencies(meter) => meter.finish().map(drop),
        }
    }

    /// Time after which to flush though no message comes.
    fn interval(&self) -> Option<Duration> {
        match self {
            Self::Messages(_) => None,
            Self::Latencies(meter) => Some(meter.due.saturating_duration_since(Instant::now())),
        }
    }
}

struct Printer {
    format: Format,
    newline: bool,
    buffer: Vec<u8>,
}

impl Printer {
    /// Bytes above which it does not wait for more.
    const FULL: usize = 64 * 1024;

    fn print(&mut self, delivery: &Delivery, session: &Session) {
        let start = self.buffer.len();
        let printed = self.format.print(delivery, Local::now(), &mut self.buffer);
        if printed.is_err() {
            self.buffer.truncate(start);
            session.warn(&format!(
                "the message on topic {:?} is not JSON, as %J needs it",
                delivery.message.topic
            ));
        } else if self.newline {
            self.buffer.push(b'\n');
        }
        if self.buffer.len() >= Self::FULL {
            // An error comes again with the next flush.
            let _ = self.flush();
        }
    }

    fn flush(&mut self) -> Result<bool, Failed> {
        write_out(&std::mem::take(&mut self.buffer))
    }
}

/// The live line of `--latency`.
struct Meter {
    latencies: Latencies,
    due: Instant,
    /// On a terminal the line is written over.
    terminal: bool,
    printed: usize,
}

impl Meter {
    fn new() -> Result<Self, Failed> {
        Ok(Self {
            latencies: Latencies::new().map_err(Failed::usage)?,
            due: Instant::now() + LATENCY_INTERVAL,
            terminal: io::stdout().is_terminal(),
            printed: 0,
        })
    }

    fn flush(&mut self) -> Result<bool, Failed> {
        if Instant::now() < self.due {
            return Ok(true);
        }
        self.due = Instant::now() + LATENCY_INTERVAL;
        self.print(if self.terminal { '\r' } else { '\n' })
    }

    fn finish(&mut self) -> Result<bool, Failed> {
        self.print('\n')
    }

    fn print(&mut self, end: char) -> Result<bool, Failed> {
        let line = self.latencies.line();
        // Covers a longer line from before.
        let width = self.printed;
        self.printed = if self.terminal { line.len() } else { 0 };
        write_out(format!("{line:width$}{end}").as_bytes())
    }
}

/// Writes to standard output; false if its reader has gone.
fn write_out(bytes: &[u8]) -> Result<bool, Failed> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failed::usage(format!(
            "standard output cannot be written: {error}"
        ))),
    }
}
