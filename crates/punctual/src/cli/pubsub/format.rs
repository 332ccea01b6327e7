//! `punctual sub -F`: mosquitto_sub's output formats.
//!
//! A format is taken apart once, so that a mistake in it is found before
//! anything is connected; printing then only fills in.

use std::iter::Peekable;
use std::str::Chars;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Local, Timelike as _};
use punctual_client::{Delivery, PropertyId, RealTimeProperties as _, Requirements};
use punctual_model::format_duration;
use punctual_server::escape::visible_text;

use super::json::{self, NotJson};
use super::latency;

/// What may stand after `%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// A numeric property.
    Number(PropertyId),
    /// A string or binary property.
    Data(PropertyId),
    SubscriptionIds,
    UserProperties,
    Length,
    PacketId,
    Payload,
    HexLower,
    HexUpper,
    Qos,
    Retain,
    Topic,
    Iso,
    Unix,
    Json,
    JsonRaw,
    /// Of the requirements.
    Deadline,
    Priority,
    RtPriority,
    /// Microseconds since `pub --latency` sent it.
    Elapsed,
}

/// `%[-0][width][.most]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Layout {
    left: bool,
    zeros: bool,
    width: usize,
    most: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field(Field, Layout),
    /// A strftime conversion.
    Time(String),
    /// Nanoseconds in the second.
    Nanos,
}

/// A format, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Format {
    pieces: Vec<Piece>,
    pretty: bool,
    /// Whether what a message brings is escaped where it would command a terminal.
    escapes: bool,
}

impl Format {
    /// The payload alone.
    pub(super) fn payload() -> Self {
        Self {
            pieces: vec![Piece::Field(Field::Payload, Layout::default())],
            pretty: false,
            escapes: false,
        }
    }

    /// Topic, space, payload.
    pub(super) fn verbose() -> Self {
        Self {
            pieces: vec![
                Piece::Field(Field::Topic, Layout::default()),
                Piece::Text(" ".into()),
                Piece::Field(Field::Payload, Layout::default()),
            ],
            pretty: false,
            escapes: false,
        }
    }

    /// Takes the argument of `-F` apart; `pretty` is for JSON in it.
    pub(super) fn parse(text: &str, pretty: bool) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars().peekable();
        while let Some(char) = chars.next() {
            let piece = match char {
                '%' => parse_field(&mut chars)?,
                '@' => parse_time(&mut chars)?,
                '\\' => parse_escape(&mut chars)?,
                other => Piece::Text(other.into()),
            };
            match piece {
                Piece::Text(text) => literal.push_str(&text),
                piece => {
                    if !literal.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut literal)));
                    }
                    pieces.push(piece);
                }
            }
        }
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Self {
            pieces,
            pretty,
            escapes: false,
        })
    }

    /// The same for a terminal: what a message brings cannot command it. The format itself can.
    pub(super) fn for_terminal(self) -> Self {
        Self {
            escapes: true,
            ..self
        }
    }

    /// Appends a message that was received at `time`.
    pub(super) fn print(
        &self,
        delivery: &Delivery,
        time: DateTime<Local>,
        out: &mut Vec<u8>,
    ) -> Result<(), NotJson> {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Time(format) => {
                    out.extend_from_slice(time.format(format).to_string().as_bytes());
                }
                Piece::Nanos => {
                    out.extend_from_slice(format!("{:09}", nanos(time)).as_bytes());
                }
                Piece::Field(field @ (Field::Json | Field::JsonRaw), _) => {
                    let raw = *field == Field::JsonRaw;
                    let object = json::object(delivery, time, raw, self.pretty)?;
                    self.put(object.as_bytes(), out);
                }
                Piece::Field(field, layout) => {
                    let mut text = Vec::new();
                    print_field(*field, *layout, delivery, time, &mut text);
                    self.put(&text, out);
                }
            }
        }
        Ok(())
    }

    fn put(&self, bytes: &[u8], out: &mut Vec<u8>) {
        match self.escapes {
            true => {
                let text = String::from_utf8_lossy(bytes);
                out.extend_from_slice(visible_text(&text).as_bytes());
            }
            false => out.extend_from_slice(bytes),
        }
    }
}

fn nanos(time: DateTime<Local>) -> u32 {
    // chrono shows a leap second as nanoseconds above a milliard.
    time.nanosecond() % 1_000_000_000
}

fn parse_field(chars: &mut Peekable<Chars<'_>>) -> Result<Piece, String> {
    const INCOMPLETE: &str = "the format ends within a % specifier; for a percent sign say %%";
    let mut layout = Layout::default();
    let mut decorated = false;
    while let Some(flag @ ('-' | '0')) = chars.peek().copied() {
        layout.left |= flag == '-';
        layout.zeros |= flag == '0';
        decorated = true;
        chars.next();
    }
    if let Some(width) = parse_width(chars)? {
        layout.width = width;
        decorated = true;
    }
    if chars.next_if_eq(&'.').is_some() {
        layout.most = Some(parse_width(chars)?.unwrap_or(0));
        decorated = true;
    }
    let field = match chars.next().ok_or(INCOMPLETE)? {
        '%' if !decorated => return Ok(Piece::Text("%".into())),
        'A' => Field::Number(PropertyId::TopicAlias),
        'C' => Field::Data(PropertyId::ContentType),
        'D' => Field::Data(PropertyId::CorrelationData),
        'E' => Field::Number(PropertyId::MessageExpiryInterval),
        'F' => Field::Number(PropertyId::PayloadFormatIndicator),
        'I' => Field::Iso,
        'J' => Field::JsonRaw,
        'P' => Field::UserProperties,
        'R' => Field::Data(PropertyId::ResponseTopic),
        'S' => Field::SubscriptionIds,
        'U' => Field::Unix,
        'X' => Field::HexUpper,
        'd' => Field::Deadline,
        'e' => Field::Elapsed,
        'j' => Field::Json,
        'l' => Field::Length,
        'm' => Field::PacketId,
        'o' => Field::Priority,
        'p' => Field::Payload,
        'q' => Field::Qos,
        'r' => Field::Retain,
        't' => Field::Topic,
        'u' => Field::RtPriority,
        'x' => Field::HexLower,
        other => {
            return Err(format!(
                "the format has %{other}, which is none of %% %A %C %D %E %F %I %J %P %R %S %U \
                 %X %d %e %j %l %m %o %p %q %r %t %u %x"
            ));
        }
    };
    Ok(Piece::Field(field, layout))
}

fn parse_width(chars: &mut Peekable<Chars<'_>>) -> Result<Option<usize>, String> {
    const WIDEST: usize = 10_000;
    let mut digits = String::new();
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    if digits.is_empty() {
        return Ok(None);
    }
    match digits.parse() {
        Ok(width) if width <= WIDEST => Ok(Some(width)),
        _ => Err(format!(
            "the format has a width of {digits}; the most is {WIDEST}"
        )),
    }
}

fn parse_time(chars: &mut Peekable<Chars<'_>>) -> Result<Piece, String> {
    let conversion = chars
        .next()
        .ok_or("the format ends after @; for an at sign say @@")?;
    match conversion {
        '@' => Ok(Piece::Text("@".into())),
        'N' => Ok(Piece::Nanos),
        other => {
            let format = format!("%{other}");
            let known = StrftimeItems::new(&format).all(|item| !matches!(item, Item::Error));
            match known {
                true => Ok(Piece::Time(format)),
                false => Err(format!(
                    "the format has @{other}, which strftime does not know"
                )),
            }
        }
    }
}

fn parse_escape(chars: &mut Peekable<Chars<'_>>) -> Result<Piece, String> {
    let text = match chars.next() {
        Some('\\') => '\\',
        Some('0') => '\0',
        Some('a') => '\u{7}',
        Some('e') => '\u{1b}',
        Some('n') => '\n',
        Some('r') => '\r',
        Some('t') => '\t',
        Some('v') => '\u{b}',
        Some(other) => {
            return Err(format!(
                "the format has \\{other}, which is none of \\\\ \\0 \\a \\e \\n \\r \\t \\v"
            ));
        }
        None => return Err("the format ends after \\; for a backslash say \\\\".into()),
    };
    Ok(Piece::Text(text.into()))
}

fn print_field(
    field: Field,
    layout: Layout,
    delivery: &Delivery,
    time: DateTime<Local>,
    out: &mut Vec<u8>,
) {
    let message = &delivery.message;
    let properties = message.properties.as_properties();
    let hex = |upper: bool| {
        let digits: &[u8; 16] = match upper {
            true => b"0123456789ABCDEF",
            false => b"0123456789abcdef",
        };
        let byte = |byte: &u8| {
            [
                digits[usize::from(byte >> 4)],
                digits[usize::from(byte & 15)],
            ]
        };
        message.payload.iter().flat_map(byte).collect::<Vec<u8>>()
    };
    match field {
        Field::Payload => pad(
            &message.payload,
            Layout {
                zeros: false,
                ..layout
            },
            out,
        ),
        Field::HexLower => pad(&hex(false), layout, out),
        Field::HexUpper => pad(&hex(true), layout, out),
        Field::Topic => pad_text(&message.topic, layout, out),
        Field::Data(PropertyId::CorrelationData) => {
            let data = properties.data(PropertyId::CorrelationData);
            out.extend_from_slice(data.unwrap_or_default());
        }
        Field::Data(id) => pad_text(properties.text(id).unwrap_or_default(), layout, out),
        Field::Number(id) => {
            let text = properties.number(id).map(|number| number.to_string());
            pad_number(text, layout, out);
        }
        Field::SubscriptionIds => {
            let ids: Vec<String> = properties
                .subscription_ids()
                .map(|id| id.to_string())
                .collect();
            pad_number((!ids.is_empty()).then(|| ids.join(" ")), layout, out);
        }
        Field::UserProperties => {
            let all: Vec<String> = properties.user().map(|(k, v)| format!("{k}:{v}")).collect();
            out.extend_from_slice(all.join(" ").as_bytes());
        }
        Field::Length => pad_number(Some(message.payload.len().to_string()), layout, out),
        Field::PacketId => pad_number(Some(delivery.packet_id.to_string()), layout, out),
        Field::Qos => out.push(b'0' + message.qos as u8),
        Field::Retain => out.push(b'0' + u8::from(message.retain)),
        Field::Iso => {
            let text = time.format("%Y-%m-%dT%H:%M:%S%z").to_string();
            pad_text(&text, layout, out);
        }
        Field::Unix => {
            let text = format!("{}.{:09}", time.timestamp(), nanos(time));
            out.extend_from_slice(text.as_bytes());
        }
        Field::Deadline => {
            let deadline = requirements(delivery).deadline.map(format_duration);
            pad_text(&deadline.unwrap_or_default(), layout, out);
        }
        Field::Priority => {
            let priority = requirements(delivery).message_priority;
            pad_number(priority.map(|n| n.to_string()), layout, out);
        }
        Field::RtPriority => {
            let priority = requirements(delivery).priority;
            pad_number(priority.map(|n| n.to_string()), layout, out);
        }
        Field::Elapsed => {
            let now = u64::try_from(time.timestamp_nanos_opt().unwrap_or(0)).unwrap_or(0);
            let elapsed = latency::elapsed(message, now);
            let micros = elapsed.map(|nanos| format!("{}.{:03}", nanos / 1000, nanos % 1000));
            pad_number(micros, layout, out);
        }
        // Printed by the caller, who can fail.
        Field::Json | Field::JsonRaw => {}
    }
}

/// What a message requires; nothing if that is not valid.
fn requirements(delivery: &Delivery) -> Requirements {
    delivery
        .message
        .properties
        .requirements()
        .unwrap_or_default()
}

/// A number keeps zeros in front; its absence is blank.
fn pad_number(text: Option<String>, layout: Layout, out: &mut Vec<u8>) {
    let zeros = layout.zeros && text.is_some();
    let layout = Layout { zeros, ..layout };
    pad(text.unwrap_or_default().as_bytes(), layout, out);
}

/// A text is cut at its greatest width, in characters, and takes no zeros.
fn pad_text(text: &str, layout: Layout, out: &mut Vec<u8>) {
    let end = layout
        .most
        .and_then(|most| text.char_indices().nth(most))
        .map_or(text.len(), |(at, _)| at);
    let text = &text[..end];
    // Characters of several bytes count as one.
    let more = text.len() - text.chars().count();
    let width = match layout.width {
        0 => 0,
        width => width + more,
    };
    let zeros = false;
    pad(
        text.as_bytes(),
        Layout {
            width,
            zeros,
            ..layout
        },
        out,
    );
}

fn pad(bytes: &[u8], layout: Layout, out: &mut Vec<u8>) {
    let missing = layout.width.saturating_sub(bytes.len());
    if layout.left {
        out.extend_from_slice(bytes);
        out.resize(out.len() + missing, b' ');
    } else {
        let filler = if layout.zeros { b'0' } else { b' ' };
        out.resize(out.len() + missing, filler);
        out.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeZone as _;
    use punctual_client::{Message, QoS};
    use std::time::Duration;

    fn delivery() -> Delivery {
        let mut message = Message::new("r/1", "hello")
            .qos(QoS::AtLeastOnce)
            .retained();
        let p = &mut message.properties;
        p.push_number(PropertyId::SubscriptionIdentifier, 3);
        p.push_user("k", "v").unwrap();
        p.push_user("k2", "v2").unwrap();
        p.push_data(PropertyId::ContentType, b"text/plain").unwrap();
        p.push_data(PropertyId::CorrelationData, b"x\xffz").unwrap();
        p.push_data(PropertyId::ResponseTopic, b"re/sp").unwrap();
        p.push_number(PropertyId::PayloadFormatIndicator, 1);
        p.push_number(PropertyId::MessageExpiryInterval, 100);
        Delivery {
            message,
            dup: false,
            packet_id: 7,
            received: Duration::ZERO,
        }
    }

    fn print(format: &str) -> String {
        let time = Local.timestamp_opt(1_600_000_000, 22_463_001).unwrap();
        let mut out = Vec::new();
        let format = Format::parse(format, false).unwrap();
        format.print(&delivery(), time, &mut out).unwrap();
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn a_message_commands_no_terminal_and_the_format_may() {
        let mut delivery = delivery();
        delivery.message.topic = "a\u{1b}]0;x\u{7}".into();
        delivery.message.payload = b"one\n\ttwo\x1b[2J\x9b\xc2\x9b".to_vec();
        let time = Local.timestamp_opt(1_600_000_000, 0).unwrap();
        let print = |format: Format| {
            let mut out = Vec::new();
            format.print(&delivery, time, &mut out).unwrap();
            out
        };
        let format = |text| Format::parse(text, false).unwrap();
        let seen = print(format("\\e[1m%t %p").for_terminal());
        let expected = "\u{1b}[1ma\\u{1b}]0;x\\u{7} one\n\ttwo\\u{1b}[2J\u{fffd}\\u{9b}";
        assert_eq!(String::from_utf8(seen).unwrap(), expected);
        // A file gets what was sent.
        assert_eq!(print(Format::payload()), delivery.message.payload);
    }

    /// What mosquitto_sub 2.0.11 prints for the same message.
    #[test]
    fn fields_print_as_mosquitto_prints_them() {
        for (format, expected) in [
            (
                "A=%A C=%C E=%E F=%F l=%l m=%m",
                "A= C=text/plain E=100 F=1 l=5 m=7",
            ),
            (
                "P=%P p=%p q=%q R=%R r=%r S=%S t=%t",
                "P=k:v k2:v2 p=hello q=1 R=re/sp r=1 S=3 t=r/1",
            ),
            ("x=%x X=%X", "x=68656c6c6f X=68656C6C6F"),
            (
                "[%10t][%-10t][%10.2t][%.2t]",
                "[       r/1][r/1       ][        r/][r/]",
            ),
            (
                "[%010l][%-5l|][%05m][%20p]",
                "[0000000005][5    |][00007][               hello]",
            ),
            ("[%q][%5q]", "[1][1]"),
            ("%U @N", "1600000000.022463001 022463001"),
            ("@@ %% \\\\ \\t|\\e|\\0", "@ % \\ \t|\u{1b}|\0"),
            ("%D", "x\u{fffd}z"),
            ("[%5A][%05A]", "[     ][     ]"),
        ] {
            assert_eq!(print(format), expected, "{format}");
        }
    }

    #[test]
    fn requirements_have_fields() {
        assert_eq!(print("[%d][%o][%3u][%e]"), "[][][   ][]");
        let mut delivery = delivery();
        let requirements = "priority=3, deadline=1.5ms, rt-priority=6".parse().unwrap();
        delivery.message = delivery.message.requirements(&requirements);
        let p = &mut delivery.message.properties;
        p.push_user(latency::PROPERTY, "1600000000022000000")
            .unwrap();
        let time = Local.timestamp_opt(1_600_000_000, 22_463_001).unwrap();
        let mut out = Vec::new();
        let format = Format::parse("%d %03o %u %e", false).unwrap();
        format.print(&delivery, time, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "1500us 003 6 463.001");
    }

    #[test]
    fn times_follow_strftime() {
        assert_eq!(print("@Y").len(), 4);
        assert_eq!(print("@s"), "1600000000");
        assert_eq!(print("%I"), print("@Y-@m-@dT@H:@M:@S@z"));
    }

    #[test]
    fn mistakes_are_named() {
        for (format, why) in [
            ("%Q", "%Q"),
            ("abc%", "ends within"),
            ("%-05", "ends within"),
            ("%5%", "%%, which is none"),
            ("\\q", "\\q"),
            ("@", "ends after @"),
            ("x\\", "ends after \\"),
            ("%99999t", "99999"),
        ] {
            let said = Format::parse(format, false).unwrap_err();
            assert!(said.contains(why), "{format}: {said}");
        }
    }
}
