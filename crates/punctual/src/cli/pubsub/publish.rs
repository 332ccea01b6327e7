//! `punctual pub`: publishes and ends when all is acknowledged.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use punctual_client::{Error, Event, Message, PropertyBuf, PropertyId, QoS, Stamp, Token};

use super::connection::{Connection, parse_qos};
use super::exit::{self, Failed};
use super::latency;
use super::lines::Lines;
use super::requirements::RequirementFlags;
use super::session::Session;

/// Arguments of `punctual pub`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
#[command(group = clap::ArgGroup::new("payload").required(true))]
pub(in crate::cli) struct Arguments {
    /// Topic to publish to.
    #[arg(short, long)]
    topic: Option<String>,
    /// Publish this.
    #[arg(short, long, group = "payload", allow_hyphen_values = true)]
    message: Option<String>,
    /// Publish the contents of a file.
    #[arg(short, long, value_name = "FILE", group = "payload")]
    file: Option<PathBuf>,
    /// Publish each line of standard input as a message.
    #[arg(short = 'l', long, group = "payload")]
    stdin_line: bool,
    /// Publish all of standard input as one message.
    #[arg(short, long, group = "payload")]
    stdin_file: bool,
    /// Publish an empty message.
    #[arg(short, long, group = "payload")]
    null_message: bool,
    /// Quality of service: 0, 1 or 2.
    #[arg(short, long, default_value = "0", value_parser = parse_qos)]
    qos: QoS,
    /// Have the server retain the message.
    #[arg(short, long)]
    retain: bool,
    /// Publish the message that many times.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        conflicts_with = "stdin_line"
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Seconds between repetitions; may have a fraction.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    repeat_delay: Duration,
    /// Add the time of sending, for `punctual sub --latency`.
    #[arg(long)]
    latency: bool,
    /// Number the messages, so that `punctual sub --latency` sees loss and
    /// reordering.
    #[arg(long)]
    sequence: bool,
    /// With -l, do not connect again when the connection is lost.
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

/// Runs `punctual pub`.
pub(in crate::cli) fn run(arguments: &Arguments) -> ExitCode {
    exit::exit(publish(arguments), arguments.connection.quiet)
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64);
    match seconds {
        Some(Ok(duration)) => Ok(duration),
        _ => Err("say a number of seconds, such as 0.5".into()),
    }
}

/// Where payloads come from.
enum Source {
    Lines(Lines),
    /// The same again, some times, from some time on.
    Same {
        payload: Vec<u8>,
        left: u64,
        due: Instant,
    },
}

/// What a source has.
enum Supply {
    Payload(Vec<u8>),
    /// Nothing for that time, or until a waker is used.
    Later(Option<Duration>),
    Ended,
}

/// What became of an attempt to publish the next payload.
enum Step {
    Published,
    NoRoom,
    /// As [`Supply::Later`].
    Later(Option<Duration>),
    Ended,
}

impl Source {
    fn next(&mut self, delay: Duration) -> Result<Supply, Failed> {
        match self {
            Self::Lines(lines) => match lines.next() {
                Ok(Some(line)) => Ok(Supply::Payload(line)),
                Ok(None) if lines.has_ended() => Ok(Supply::Ended),
                Ok(None) => Ok(Supply::Later(None)),
                Err(error) => Err(Failed::usage(format!("standard input: {error}"))),
            },
            Self::Same { left: 0, .. } => Ok(Supply::Ended),
            Self::Same { payload, left, due } => {
                let now = Instant::now();
                if now < *due {
                    return Ok(Supply::Later(Some(*due - now)));
                }
                *left -= 1;
                *due = now + delay;
                Ok(Supply::Payload(payload.clone()))
            }
        }
    }
}

fn publish(arguments: &Arguments) -> Result<(), Failed> {
    let connection = &arguments.connection;
    let reconnect = arguments.stdin_line && !arguments.no_reconnect;
    let (options, url_topic) = connection.options(reconnect)?;
    let Some(topic) = arguments.topic.clone().or(url_topic) else {
        return Err(Failed::usage(
            "no topic: give one with -t, or in the URL of -L",
        ));
    };
    if punctual_codec::topic::validate_name(topic.as_bytes()).is_err() {
        return Err(Failed::usage(format!(
            "cannot publish to the topic {topic:?}: it must not be empty nor have + or # in it"
        )));
    }
    for (flag, given) in [
        ("--latency", arguments.latency),
        ("--sequence", arguments.sequence),
    ] {
        if given && !connection.version().is_v5() {
            return Err(Failed::usage(format!(
                "{flag} needs MQTT 5: leave -V out, or say -V 5"
            )));
        }
    }
    let source = match arguments.sequence {
        true => Some(getrandom::u32().map_err(|error| Failed::usage(error.to_string()))?),
        false => None,
    };
    let properties = arguments.requirements.add(
        &connection.properties.publish,
        "publish",
        connection.version().is_v5(),
    )?;
    let payload = payload(arguments)?;
    let mut session = Session::open(options, connection.debug, connection.quiet)?;
    let payloads = match payload {
        Some(payload) => Source::Same {
            payload,
            left: arguments.repeat,
            due: Instant::now(),
        },
        None => {
            let lines = Lines::start(session.client.waker());
            Source::Lines(lines.map_err(|error| Failed::usage(error.to_string()))?)
        }
    };
    let mut publisher = Publisher {
        template: Message {
            topic,
            payload: Vec::new(),
            qos: arguments.qos,
            retain: arguments.retain,
            properties,
        },
        latency: arguments.latency,
        numbers: source,
        source: payloads,
        delay: arguments.repeat_delay,
        held: None,
        pending: HashMap::new(),
        count: 0,
        refused: None,
    };
    publisher.run(&mut session)?;
    session.close(&connection.properties.disconnect)?;
    match publisher.refused {
        // What was refused has been printed.
        Some(code) => Err(Failed::new(code, "")),
        None => Ok(()),
    }
}

/// The payload that is known from the start; `None` for lines.
fn payload(arguments: &Arguments) -> Result<Option<Vec<u8>>, Failed> {
    if let Some(message) = &arguments.message {
        return Ok(Some(message.clone().into_bytes()));
    }
    if arguments.null_message {
        return Ok(Some(Vec::new()));
    }
    if let Some(file) = &arguments.file {
        return match std::fs::read(file) {
            Ok(payload) => Ok(Some(payload)),
            Err(error) => Err(Failed::usage(format!(
                "the file {} of -f cannot be read: {error}",
                file.display()
            ))),
        };
    }
    if arguments.stdin_file {
        let mut payload = Vec::new();
        return match std::io::stdin().lock().read_to_end(&mut payload) {
            Ok(_) => Ok(Some(payload)),
            Err(error) => Err(Failed::usage(format!("standard input: {error}"))),
        };
    }
    Ok(None)
}

struct Publisher {
    template: Message,
    latency: bool,
    /// What the numbers of messages are told apart from others' by.
    numbers: Option<u32>,
    source: Source,
    delay: Duration,
    /// A payload that there was no room for.
    held: Option<Vec<u8>>,
    /// Number of each message whose acknowledgement has not come.
    pending: HashMap<Token, u64>,
    count: u64,
    /// Reason code of the last message that was refused.
    refused: Option<u8>,
}

impl Publisher {
    /// Publishes everything and waits until all is acknowledged.
    fn run(&mut self, session: &mut Session) -> Result<(), Failed> {
        let mut ended = false;
        loop {
            let mut timeout = None;
            // Before the first CONNACK there is nothing to be gained, and the
            // server's limits are not known.
            if session.established && !ended && !session.stopped() {
                match self.step(session)? {
                    Step::Published => continue,
                    Step::NoRoom => {}
                    Step::Later(until) => timeout = until,
                    Step::Ended => ended = true,
                }
            }
            if session.stopped() || (ended && session.client.unfinished() == 0) {
                return Ok(());
            }
            let result = session.client.next(timeout);
            if let Some(Event::Published {
                token,
                reason,
                properties,
            }) = session.check(result)?
            {
                let number = self.pending.remove(&token);
                if reason.is_error() {
                    let which = number.map(|n| format!(" {n}")).unwrap_or_default();
                    let words = properties.as_properties().text(PropertyId::ReasonString);
                    let words = words.map(|words| format!(" ({words})")).unwrap_or_default();
                    session.warn(&format!("message{which} was refused: {reason}{words}"));
                    self.refused = Some(reason.byte());
                }
            }
        }
    }

    /// Publishes one message if there is one.
    fn step(&mut self, session: &mut Session) -> Result<Step, Failed> {
        let payload = match self.held.take() {
            Some(payload) => payload,
            None => match self.source.next(self.delay)? {
                Supply::Payload(payload) => payload,
                Supply::Later(time) => return Ok(Step::Later(time)),
                Supply::Ended => return Ok(Step::Ended),
            },
        };
        let mut message = Message {
            payload,
            ..self.template.clone()
        };
        if self.latency {
            message.properties = self.stamped();
        }
        if let Some(source) = self.numbers {
            let number = self.count;
            message = message.sequence(Stamp { source, number });
        }
        match session.client.publish(&message) {
            Ok(token) => {
                self.count += 1;
                if message.qos != QoS::AtMostOnce {
                    self.pending.insert(token, self.count);
                }
                Ok(Step::Published)
            }
            Err(Error::Full) => {
                self.held = Some(message.payload);
                Ok(Step::NoRoom)
            }
            Err(error) => Err(session.failed(&error)),
        }
    }

    fn stamped(&self) -> PropertyBuf {
        let mut properties = self.template.properties.clone();
        // A number is never too long for a user property.
        let _ = properties.push_user(latency::PROPERTY, &latency::now().to_string());
        properties
    }
}
