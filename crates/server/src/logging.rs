//! The log: events to standard error, as text with the time or as JSON.
//!
//! Everything is written by the thread that logs it, so nothing that handles
//! messages may log; it counts instead. The level can change while running.
//!
//! What clients, neighbours and switches have chosen is in many events: no value and no message
//! reaches the log with a character that would begin a line or command a terminal ([`Fields`]).

use std::collections::HashMap;
use std::env;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{Layer as _, Registry, reload};

use crate::config::{Log, LogFormat, LogLevel};
use crate::escape::{Visible, visible_json};

/// Lines of one kind in a minute, where the log is bounded.
const LINES: u32 = 60;
/// For how long lines are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Changes the level of the running log.
#[derive(Clone, Debug)]
pub struct Logging(reload::Handle<LevelFilter, Registry>);

impl Logging {
    /// Starts the log.
    ///
    /// # Errors
    ///
    /// It was started before.
    pub fn start(log: &Log) -> Result<Self, TryInitError> {
        Self::with(log, None)
    }

    /// Starts a log with at most 60 lines a minute from each place of the program; the first one
    /// after others were left out says how many. For a program whose events others cause.
    ///
    /// # Errors
    ///
    /// It was started before.
    pub fn bounded(log: &Log) -> Result<Self, TryInitError> {
        Self::with(log, Some(LINES))
    }

    fn with(log: &Log, lines: Option<u32>) -> Result<Self, TryInitError> {
        let (filter, handle) = reload::Layer::new(filter(log.level));
        let colour = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none();
        let output = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(colour);
        let layer = match log.format {
            LogFormat::Text => {
                let format = tracing_subscriber::fmt::format().with_target(false);
                let format = Paced::new(format.with_ansi(colour), lines, LogFormat::Text);
                output.fmt_fields(Fields).event_format(format).boxed()
            }
            LogFormat::Json => {
                let output = output.json().flatten_event(true);
                let format = tracing_subscriber::fmt::format().json().flatten_event(true);
                output
                    .event_format(Paced::new(format, lines, LogFormat::Json))
                    .boxed()
            }
        };
        tracing_subscriber::registry()
            .with(filter)
            .with(layer)
            .try_init()?;
        Ok(Self(handle))
    }

    /// Sets the level from now on, for all threads.
    pub fn set_level(&self, level: LogLevel) {
        // This fails only when the subscriber is gone, and with it the log.
        let _ = self.0.reload(filter(level));
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// How many lines of a kind there may be in a minute.
#[derive(Debug)]
pub(crate) struct Budget {
    lines: u32,
    since: Option<Instant>,
    count: u32,
}

impl Budget {
    /// That many in a minute.
    pub(crate) fn new(lines: u32) -> Self {
        Self {
            lines,
            since: None,
            count: 0,
        }
    }

    /// How many were left out before this one, which may be written; `None` if it may not.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u32> {
        let over = |since| now.saturating_duration_since(since) >= WINDOW;
        let mut left_out = 0;
        if self.since.is_none_or(over) {
            left_out = self.count.saturating_sub(self.lines);
            self.since = Some(now);
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        (self.count <= self.lines).then_some(left_out)
    }
}

/// Writes events in a format, and no more of one place of the program than it may have.
struct Paced<F> {
    format: F,
    kind: LogFormat,
    lines: Option<u32>,
    /// By place of the program, of which there are only so many.
    budgets: Mutex<HashMap<Identifier, Budget>>,
}

impl<F> Paced<F> {
    fn new(format: F, lines: Option<u32>, kind: LogFormat) -> Self {
        Self {
            format,
            kind,
            lines,
            budgets: Mutex::default(),
        }
    }

    fn take(&self, event: &Event<'_>) -> Option<u32> {
        let Some(lines) = self.lines else {
            return Some(0);
        };
        let mut budgets = self.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        let budget = budgets.entry(event.metadata().callsite());
        let budget = budget.or_insert_with(|| Budget::new(lines));
        budget.take(Instant::now())
    }
}

impl<S, N, F> FormatEvent<S, N> for Paced<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match (self.take(event), self.kind) {
            (None, _) => return Ok(()),
            (Some(0), _) => {}
            (Some(left_out), LogFormat::Text) => {
                writeln!(writer, "({left_out} lines like the next one were left out)")?;
            }
            (Some(left_out), LogFormat::Json) => {
                writeln!(writer, "{{\"left_out\":{left_out}}}")?;
            }
        }
        match self.kind {
            LogFormat::Text => self.format.format_event(context, writer, event),
            LogFormat::Json => {
                let mut line = String::new();
                self.format
                    .format_event(context, Writer::new(&mut line), event)?;
                writer.write_str(&visible_json(&line))
            }
        }
    }
}

/// Writes the fields of an event as text, escaped.
struct Fields;

impl<'w> FormatFields<'w> for Fields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = Visitor {
            writer: &mut writer,
            is_first: true,
            result: Ok(()),
        };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct Visitor<'a, 'w> {
    writer: &'a mut Writer<'w>,
    is_first: bool,
    result: fmt::Result,
}

impl Visitor<'_, '_> {
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let space = if self.is_first { "" } else { " " };
        self.is_first = false;
        let name = field.name();
        let italic = self.writer.has_ansi_escapes();
        let mut write = || {
            match (name, italic) {
                ("message", _) => write!(self.writer, "{space}")?,
                (name, true) => write!(
                    self.writer,
                    "{space}\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m"
                )?,
                (name, false) => write!(self.writer, "{space}{name}=")?,
            }
            write!(Visible(&mut *self.writer), "{value}")
        };
        if self.result.is_ok() {
            self.result = write();
        }
    }
}

impl Visit for Visitor<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.put(field, format_args!("{value}")),
            _ => self.put(field, format_args!("{value:?}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    /// What was logged.
    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for LogBuffer {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn logged(lines: Option<u32>, log: impl FnOnce()) -> String {
        let kept = LogBuffer::default();
        let format = tracing_subscriber::fmt::format().without_time();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(kept.clone())
            .with_ansi(false)
            .fmt_fields(Fields)
            .event_format(Paced::new(
                format.with_target(false).with_ansi(false),
                lines,
                LogFormat::Text,
            ));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, log);
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn no_value_and_no_message_begins_a_line_or_commands_a_terminal() {
        let hostile = "x\n2026 ERROR forged\u{1b}[2J";
        let text = logged(None, || {
            tracing::warn!(client = %hostile, user = hostile, peer = ?hostile, n = 3, "said {hostile}");
        });
        let escaped = "x\\n2026 ERROR forged\\u{1b}[2J";
        let debugged = "\"x\\n2026 ERROR forged\\u{1b}[2J\"";
        assert_eq!(
            text,
            format!(" WARN said {escaped} client={escaped} user={debugged} peer={debugged} n=3\n")
        );
    }

    #[test]
    fn json_commands_no_terminal() {
        let kept = LogBuffer::default();
        let format = tracing_subscriber::fmt::format().json().without_time();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(kept.clone())
            .json()
            .event_format(Paced::new(format, None, LogFormat::Json));
        let subscriber = tracing_subscriber::registry().with(layer);
        let hostile = "x\n\u{1b}[2J\u{9b}1m\u{202e}\u{feff}ü";
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(client = %hostile, user = hostile, "said {hostile}");
        });
        let line = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let (json, end) = line.split_at(line.len() - 1);
        assert_eq!(end, "\n");
        assert!(!json.contains(crate::escape::is_unsafe), "{json:?}");
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        let fields = &value["fields"];
        assert_eq!(fields["message"], format!("said {hostile}"));
        assert_eq!(
            (&fields["client"], &fields["user"]),
            (&hostile.into(), &hostile.into())
        );
    }

    #[test]
    fn a_bounded_log_leaves_out_what_is_said_too_often() {
        let text = logged(Some(2), || {
            for n in 0..5 {
                tracing::warn!("often {n}");
            }
            tracing::warn!("another");
        });
        assert_eq!(text, " WARN often 0\n WARN often 1\n WARN another\n");
    }

    #[test]
    fn a_budget_begins_anew_and_counts_what_it_refused() {
        let mut budget = Budget::new(2);
        let start = Instant::now();
        let taken = [0, 1, 2, 3].map(|s| budget.take(start + Duration::from_secs(s)));
        assert_eq!(taken, [Some(0), Some(0), None, None]);
        assert_eq!(budget.take(start + WINDOW), Some(2));
        assert_eq!(budget.take(start + 3 * WINDOW), Some(0));
    }
}
