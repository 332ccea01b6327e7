//! `punctual top`: a live view of a running broker in the terminal.
//!
//! Everything comes from `/metrics`, looked at again and again: rates and
//! percentiles are those between two looks. What the broker does not count is
//! left out, so that the view works with any version. On a terminal it is drawn
//! in place on the alternate screen; into a pipe it is printed look by look.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use punctual_measure::{Api, Distribution, HttpPlace, Samples};
use punctual_server::escape::{visible, visible_lines};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::access::Access;
use super::{Failure, print, write};

/// Names of what is counted by class of traffic.
const WAIT: &str = "punctual_egress_wait_seconds";
const WAITING: &str = "punctual_egress_waiting_messages";
const SENT: &str = "punctual_egress_sent_total";
const QUEUED: &str = "punctual_egress_queued_messages";
const DROPPED: &str = "punctual_egress_dropped_total";
const MISSED: &str = "punctual_deadline_misses_total";

/// Of an admitted flow: what it was promised, and the longest time seen.
const FLOW_BOUND: &str = "punctual_flow_bound_seconds";
const FLOW_MAX: &str = "punctual_flow_broker_seconds_max";
/// Flows that are shown.
const FLOWS: usize = 10;

/// What helps if nobody answers there.
const HINT: &str = "give the address that the broker has as server.http, or after --http";

/// Control sequences: alternate screen without cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Arguments of `punctual top`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Address of the broker's HTTP interface, or unix:PATH.
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    broker: String,
    #[command(flatten)]
    access: Access,
    /// Seconds between two looks.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print the numbers since the broker's start, once.
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give seconds from 0.01 to 3600, such as 1 or 0.5".into())
}

/// The numbers of one moment.
struct Look {
    at: Instant,
    samples: Samples,
}

impl Look {
    fn take(broker: &Api) -> Result<Self, Failure> {
        let text = broker.get("/metrics")?;
        let samples = Samples::parse(&text);
        if samples.sum("punctual_build_info", &[]).is_none() {
            let place = broker.place();
            return Err(format!("{place}/metrics: this is no Punctual broker").into());
        }
        Ok(Self {
            at: Instant::now(),
            samples,
        })
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments {
        broker, interval, ..
    } = arguments;
    let place: HttpPlace = broker
        .parse()
        .map_err(|remedy| format!("{broker}: {remedy}, as server.http has it"))?;
    let api = arguments.access.api(place.clone());
    // Without a role the flows are not shown, and the rest is.
    let _ = api.authenticate();
    let mut before = Look::take(&api).map_err(|error| format!("{error}; {HINT}"))?;
    if arguments.once {
        return print(&View::new(&place, &before, None).text());
    }

    let (tell, told) = channel();
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || signals.forever().try_for_each(|_| tell.send(())));
    let screen = Screen::open()?;
    let mut text = View::new(&place, &before, None).text();
    loop {
        if !screen.show(&text)? {
            return Ok(());
        }
        match told.recv_timeout(*interval) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok(()),
        }
        match Look::take(&api) {
            Ok(now) => {
                text = View::new(&place, &now, Some(&before)).text();
                before = now;
            }
            // It may be restarting: the view stays, with the reason below.
            Err(error) => {
                let end = text.find(UNREACHABLE).unwrap_or(text.len());
                text.truncate(end);
                let _ = writeln!(text, "{UNREACHABLE}{}", visible(&error.to_string()));
            }
        }
    }
}

/// Begins the line that says why there are no new numbers.
const UNREACHABLE: &str = "\nno answer: ";

/// Where the view is shown; restored when this is dropped.
struct Screen {
    terminal: bool,
}

impl Screen {
    fn open() -> Result<Self, Failure> {
        let screen = Self {
            terminal: io::stdout().is_terminal(),
        };
        if screen.terminal {
            write(ENTER)?;
        }
        Ok(screen)
    }

    /// Shows the text; false when nobody reads any more.
    fn show(&self, text: &str) -> Result<bool, Failure> {
        let mut out = io::stdout().lock();
        let shown = if self.terminal {
            // Each line is drawn over the last one, and the rest cleared: no flicker.
            let text = text.replace('\n', "\x1b[K\r\n");
            write!(out, "\x1b[H{text}\x1b[J")
        } else {
            writeln!(out, "{text}")
        };
        match shown.and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(format!("standard output cannot be written: {error}").into()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.terminal {
            // There is nobody to tell if the terminal is gone.
            let _ = write(LEAVE);
        }
    }
}

/// What is shown of one look, and of what changed since the one before.
struct View<'a> {
    broker: &'a HttpPlace,
    now: &'a Samples,
    /// The look before, and seconds since.
    before: Option<(&'a Samples, f64)>,
}

impl<'a> View<'a> {
    fn new(broker: &'a HttpPlace, now: &'a Look, before: Option<&'a Look>) -> Self {
        let since = |before: &'a Look| (&before.samples, (now.at - before.at).as_secs_f64());
        Self {
            broker,
            now: &now.samples,
            // Counters that went back are those of another process.
            before: before.map(since).filter(|(before, seconds)| {
                let start = |samples: &Samples| samples.sum("process_start_time_seconds", &[]);
                *seconds > 0.0 && start(before) == start(&now.samples)
            }),
        }
    }

    /// At most 80 columns and, with four classes and no flows, 24 lines.
    fn text(&self) -> String {
        let mut text = String::new();
        self.header(&mut text);
        self.traffic(&mut text);
        self.classes(&mut text);
        self.flows(&mut text);
        // Names of flows have what clients have chosen in them.
        visible_lines(&text).into_owned()
    }

    fn header(&self, text: &mut String) {
        let version = self.now.label_values("punctual_build_info", "version");
        let shards = self.now.label_values("punctual_shard_up", "shard").len();
        let up = self.gauge("punctual_shard_up");
        let _ = writeln!(
            text,
            "punctual {}  {}  up {}  shards {up:.0}/{shards}",
            version.first().copied().unwrap_or("?"),
            self.broker,
            uptime(self.gauge("punctual_uptime_seconds")),
        );
        let _ = writeln!(
            text,
            "clients {:.0}  sessions {:.0}  subscriptions {:.0}  retained {:.0}  connections {:.0}",
            self.gauge("punctual_clients_connected"),
            self.gauge("punctual_sessions"),
            self.gauge("punctual_subscriptions"),
            self.gauge("punctual_retained_messages"),
            self.gauge("punctual_connections"),
        );
        let cpu = self.flow("process_cpu_seconds_total", &[]);
        let seconds = match self.before {
            Some(_) => 1.0,
            None => self.gauge("punctual_uptime_seconds").max(1.0),
        };
        let _ = writeln!(
            text,
            "CPU {:.0} %  memory {}  event loop late {} (most {})",
            100.0 * cpu / seconds,
            bytes(self.gauge("process_resident_memory_bytes")),
            time(Some(self.gauge("punctual_event_loop_drift_seconds"))),
            time(Some(self.gauge("punctual_event_loop_drift_max_seconds"))),
        );
        self.store(text);
    }

    /// Whether something is wrong with what survives, and where that is told.
    fn store(&self, text: &mut String) {
        let damages = self.gauge("punctual_store_damages");
        let mut wrong = Vec::new();
        if self.gauge("punctual_store_failing") > 0.0 {
            wrong.push("cannot be written".to_owned());
        }
        if damages > 0.0 {
            wrong.push(format!("damaged in {damages:.0} places"));
        }
        if !wrong.is_empty() {
            let wrong = wrong.join(", ");
            let _ = writeln!(text, "store {wrong}: see /api/v1/store");
        }
    }

    fn traffic(&self, text: &mut String) {
        let (per, each) = match self.before {
            Some(_) => ("per second", "/s"),
            None => ("since the start", ""),
        };
        let _ = writeln!(
            text,
            "\n{per:<16}{:>12}{:>12}{:>14}{:>14}",
            "in", "out", "bytes in", "bytes out"
        );
        for (what, numbers) in [
            (
                "messages",
                [
                    "punctual_messages_received_total",
                    "punctual_messages_sent_total",
                    "punctual_payload_received_bytes_total",
                    "punctual_payload_sent_bytes_total",
                ],
            ),
            (
                "packets",
                [
                    "punctual_packets_received_total",
                    "punctual_packets_sent_total",
                    "punctual_received_bytes_total",
                    "punctual_sent_bytes_total",
                ],
            ),
        ] {
            let [received, sent, bytes_in, bytes_out] = numbers.map(|name| self.flow(name, &[]));
            let _ = writeln!(
                text,
                "{what:<16}{:>12}{:>12}{:>14}{:>14}",
                count(received),
                count(sent),
                bytes(bytes_in),
                bytes(bytes_out)
            );
        }
        let _ = writeln!(
            text,
            "waiting {} messages, {}; {} in flight",
            count(self.gauge("punctual_queued_messages")),
            bytes(self.gauge("punctual_queued_bytes")),
            count(self.gauge("punctual_inflight_messages")),
        );
        for (what, name) in [
            ("dropped", "punctual_messages_dropped_total"),
            ("refused", "punctual_messages_refused_total"),
        ] {
            let _ = write!(text, "{what} {}{each}", count(self.flow(name, &[])));
            for reason in self.now.label_values(name, "reason") {
                let number = self.flow(name, &[("reason", reason)]);
                if number > 0.0 {
                    let _ = write!(text, "  {reason} {}", count(number));
                }
            }
            text.push('\n');
        }
    }

    /// One line for each class of traffic, the most urgent first as the broker
    /// lists them.
    fn classes(&self, text: &mut String) {
        let classes = self.now.label_values(&format!("{WAIT}_count"), "class");
        if classes.is_empty() {
            text.push_str("\nThis broker counts nothing by class of traffic.\n");
            return;
        }
        let _ = writeln!(
            text,
            "\n{:<10}{:>7}{:>6}{:>7}{:>8}{:>8}{:>8}{:>6}{:>5}{:>8}{:>7}",
            "lane class",
            "sent",
            "waits",
            "queued",
            "p50",
            "p99",
            "p99.9",
            "drops",
            "late",
            "expired",
            "missed"
        );
        for (lane, class) in classes.iter().enumerate() {
            let of = [("class", *class)];
            let wait = self.waited(&of);
            let quantile = |q| time(wait.as_ref().and_then(|wait| wait.quantile(q)));
            let dropped = |reason| self.flow(DROPPED, &[of[0], ("reason", reason)]);
            let _ = writeln!(
                text,
                "{:<10}{:>7}{:>6}{:>7}{:>8}{:>8}{:>8}{:>6}{:>5}{:>8}{:>7}",
                format!("{lane} {class}"),
                count(self.flow(SENT, &of)),
                count(self.now.sum(WAITING, &of).unwrap_or_default()),
                count(self.now.sum(QUEUED, &of).unwrap_or_default()),
                quantile(0.5),
                quantile(0.99),
                quantile(0.999),
                // Whatever for, but time.
                count(self.flow(DROPPED, &of) - dropped("late") - dropped("expired")),
                count(dropped("late")),
                count(dropped("expired")),
                count(self.flow(MISSED, &of)),
            );
        }
    }

    /// The admitted flows that have come nearest to their bounds.
    fn flows(&self, text: &mut String) {
        let value = |name: &str, flow| self.now.sum(name, &[("flow", flow)]);
        let mut flows: Vec<(f64, &str)> = Vec::new();
        for flow in self.now.label_values("punctual_flow_sent_total", "flow") {
            let seen = value(FLOW_MAX, flow).unwrap_or_default();
            let bound = value(FLOW_BOUND, flow).unwrap_or(f64::INFINITY);
            flows.push((seen / bound, flow));
        }
        if flows.is_empty() {
            return;
        }
        flows.sort_by(|(a, first), (b, second)| b.total_cmp(a).then(first.cmp(second)));
        let _ = writeln!(
            text,
            "\n{:<26}{:>9}{:>9}{:>11}{:>9}{:>8}{:>8}",
            "admitted flow", "deadline", "bound", "broker p99", "max", "missed", "amiss"
        );
        for (_, flow) in flows.iter().take(FLOWS) {
            let number = |name| count(value(name, flow).unwrap_or_default());
            // From the end: the names of one plant begin alike.
            let from = flow.chars().count().saturating_sub(25);
            let name: String = flow.chars().skip(from).collect();
            let _ = writeln!(
                text,
                "{name:<26}{:>9}{:>9}{:>11}{:>9}{:>8}{:>8}",
                time(value("punctual_flow_deadline_seconds", flow)),
                time(value(FLOW_BOUND, flow)),
                time(value("punctual_flow_broker_seconds_p99", flow)),
                time(value(FLOW_MAX, flow)),
                number("punctual_flow_misses_total"),
                number("punctual_flow_undeclared_total"),
            );
        }
        if flows.len() > FLOWS {
            let _ = writeln!(text, "and {} more", flows.len() - FLOWS);
        }
    }

    fn gauge(&self, name: &str) -> f64 {
        self.now.sum(name, &[]).unwrap_or_default()
    }

    /// What a counter gained per second, or since the start where there is no
    /// look before.
    fn flow(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let now = self.now.sum(name, labels).unwrap_or_default();
        match self.before {
            Some((before, seconds)) => {
                let before = before.sum(name, labels).unwrap_or_default();
                (now - before).max(0.0) / seconds
            }
            None => now,
        }
    }

    fn waited(&self, labels: &[(&str, &str)]) -> Option<Distribution> {
        let now = self.now.distribution(WAIT, labels)?;
        let before = self
            .before
            .and_then(|(before, _)| before.distribution(WAIT, labels));
        Some(before.map_or_else(|| now.clone(), |before| now.since(&before)))
    }
}

/// A number with about three digits: 0, 12, 4.07k, 1.3M.
fn count(value: f64) -> String {
    scaled(value, 1000.0, &["", "k", "M", "G", "T"])
}

/// A size: 12 B, 4.07 KiB.
fn bytes(value: f64) -> String {
    scaled(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter();
    let mut unit = units.next();
    while value.round() >= step
        && let Some(next) = units.next()
    {
        value /= step;
        unit = Some(next);
    }
    let unit = unit.copied().unwrap_or_default();
    let whole = value == value.trunc() || value >= 100.0;
    match value {
        _ if whole => format!("{value:.0}{unit}"),
        v if v >= 10.0 => format!("{v:.1}{unit}"),
        v => format!("{v:.2}{unit}"),
    }
}

/// Seconds as µs, ms or s.
fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "–".into(),
        Some(s) if s < 0.000_999_5 => format!("{:.0} µs", s * 1e6),
        Some(s) if s < 0.999_5 => format!("{:.1} ms", s * 1e3),
        Some(s) => format!("{s:.1} s"),
    }
}

fn uptime(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {:02}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes:02}m"),
        _ => format!("{days}d {hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at: Instant, sent: u32) -> Look {
        let text = format!(
            "punctual_build_info{{version=\"0.1.0\"}} 1\n\
             punctual_shard_up{{shard=\"0\"}} 1\npunctual_shard_up{{shard=\"1\"}} 0\n\
             punctual_uptime_seconds 3725\nprocess_start_time_seconds 7\n\
             process_cpu_seconds_total 10\nprocess_resident_memory_bytes 1572864\n\
             punctual_clients_connected 5\n\
             punctual_messages_sent_total{{qos=\"0\"}} {sent}\n\
             punctual_messages_sent_total{{qos=\"1\"}} 0\n\
             punctual_messages_dropped_total{{reason=\"queue_full\"}} {sent}\n\
             punctual_messages_dropped_total{{reason=\"expired\"}} 0\n\
             {WAIT}_bucket{{class=\"realtime\",le=\"0.0001\"}} {sent}\n\
             {WAIT}_bucket{{class=\"realtime\",le=\"+Inf\"}} {sent}\n\
             {WAIT}_sum{{class=\"realtime\"}} 1\n{WAIT}_count{{class=\"realtime\"}} {sent}\n\
             {SENT}{{class=\"realtime\"}} {sent}\n{WAITING}{{class=\"realtime\"}} 12\n\
             {DROPPED}{{class=\"realtime\",reason=\"full\"}} 3\n\
             {DROPPED}{{class=\"realtime\",reason=\"late\"}} 4\n\
             {DROPPED}{{class=\"realtime\",reason=\"gone\"}} 6\n\
             {DROPPED}{{class=\"realtime\",reason=\"expired\"}} 7\n\
             {QUEUED}{{class=\"realtime\"}} 8\n\
             {MISSED}{{class=\"realtime\"}} 5\n\
             punctual_store_failing 1\npunctual_store_damages 2\n"
        );
        Look {
            at,
            samples: Samples::parse(&text),
        }
    }

    fn address() -> HttpPlace {
        "127.0.0.1:8080".parse().unwrap()
    }

    #[test]
    fn the_first_look_shows_what_was_counted_since_the_start() {
        let look = look(Instant::now(), 4000);
        let text = View::new(&address(), &look, None).text();
        for line in [
            "punctual 0.1.0  http://127.0.0.1:8080  up 1h 02m  shards 1/2",
            "CPU 0 %  memory 1.50 MiB  event loop late 0 µs (most 0 µs)",
            "messages                   0          4k           0 B           0 B",
            "store cannot be written, damaged in 2 places: see /api/v1/store",
            "dropped 4k  queue_full 4k",
            "0 realtime     4k    12      8   50 µs   99 µs  100 µs     9    4       7      5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn flows_are_shown_beside_their_bounds() {
        let mut text = "punctual_build_info{version=\"1\"} 1\n".to_owned();
        for n in 0..12 {
            let flow = format!("{{flow=\"hall/{n:02}@press\"}}");
            text += &format!(
                "punctual_flow_sent_total{flow} 9\npunctual_flow_deadline_seconds{flow} 0.02\n\
                 {FLOW_BOUND}{flow} 0.01\n{FLOW_MAX}{flow} 0.00{n:02}\n\
                 punctual_flow_broker_seconds_p99{flow} 0.00005\n\
                 punctual_flow_misses_total{flow} 3\npunctual_flow_undeclared_total{flow} 2000\n"
            );
        }
        let look = Look {
            at: Instant::now(),
            samples: Samples::parse(&text),
        };
        let text = View::new(&address(), &look, None).text();
        let rows: Vec<&str> = text
            .lines()
            .skip_while(|l| !l.starts_with("admitted"))
            .collect();
        let first =
            "hall/11@press               20.0 ms  10.0 ms      50 µs   1.1 ms       3      2k";
        assert_eq!(
            (rows.len(), rows[1], rows[11]),
            (12, first, "and 2 more"),
            "{text}"
        );
        assert!(rows[10].starts_with("hall/02@press"), "{text}");
        assert!(rows.iter().all(|row| row.chars().count() <= 80), "{text}");
    }

    #[test]
    fn later_looks_show_rates_and_what_came_in_between() {
        let start = Instant::now();
        let before = look(start, 1000);
        let now = look(start + Duration::from_secs(2), 4000);
        let text = View::new(&address(), &now, Some(&before)).text();
        for line in [
            "messages                   0       1.50k           0 B           0 B",
            "dropped 1.50k/s  queue_full 1.50k",
            "0 realtime  1.50k    12      8   50 µs   99 µs  100 µs     0    0       0      0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_broker_that_was_restarted_is_looked_at_afresh() {
        let start = Instant::now();
        let before = Look {
            at: start,
            samples: Samples::parse("process_start_time_seconds 6\n"),
        };
        let now = look(start + Duration::from_secs(1), 4000);
        let text = View::new(&address(), &now, Some(&before)).text();
        assert!(text.contains("since the start"), "{text}");
    }

    #[test]
    fn a_broker_without_classes_is_shown_without_them() {
        let look = Look {
            at: Instant::now(),
            samples: Samples::parse("punctual_build_info{version=\"0.0.9\"} 1\n"),
        };
        let text = View::new(&address(), &look, None).text();
        assert!(text.contains("counts nothing by class"), "{text}");
    }

    #[test]
    fn numbers_have_about_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (7.0, "7"),
            (0.5, "0.50"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (4_070.0, "4.07k"),
            (123_456.0, "123k"),
            (1e15, "1000T"),
        ] {
            assert_eq!(count(value), text);
        }
        assert_eq!(bytes(12.0 * 1024.0 * 1024.0), "12 MiB");
        let times = [0.000_012, 0.0123, 2.0].map(|s| time(Some(s)));
        assert_eq!(times, ["12 µs", "12.3 ms", "2.0 s"]);
        let ups = [5.0, 65.0, 7200.0, 100_000.0].map(uptime);
        assert_eq!(ups, ["5s", "1m 05s", "2h 00m", "1d 03h"]);
    }

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "x", "NaN", "1e9"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
