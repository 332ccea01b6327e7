//! Cases with one publisher that sends QoS 0 as fast as its messages are delivered.

use std::time::{Duration, Instant};

use punctual_measure::wire::{PublishTemplate, Version};
use punctual_measure::{Error, Result};

use super::crowd::Crowd;
use super::ground::Ground;
use super::report::Measures;

/// Most undelivered messages.
const WINDOW: u64 = 1000;
/// Most undelivered bytes; two messages are always allowed.
const WINDOW_BYTES: u64 = 4 << 20;
/// Payload of the cases in which the number of topics varies.
const PAYLOAD: &[u8] = b"0123456789abcdef";
/// Least duration of the traffic before the measurement; a full round of all topics may take
/// longer.
const WARM_UP: Duration = Duration::from_millis(300);

/// One subscriber to all of `n` topics, and a publisher that sends to them in turn.
pub(super) fn topics(ground: &Ground, n: u64) -> Result<Measures> {
    let topics = names(n);
    let (crowd, publisher) = ground.pair(Version::V311, "t/#", &topics)?;
    let flow = flow(ground, crowd, publisher, &Stock::new(&topics, PAYLOAD))?;
    Ok(flow.per_message())
}

/// A shared subscription with `MEMBERS` members, and a publisher that sends to `n` topics in turn.
pub(super) fn shared<const MEMBERS: u64>(ground: &Ground, n: u64) -> Result<Measures> {
    let topics = names(n);
    let mut crowd = ground.crowd()?;
    crowd.greet("member", MEMBERS, Version::V311, false)?;
    let members: Vec<usize> = (0..MEMBERS as usize).collect();
    let filters = vec!["$share/g/t/#".to_owned(); members.len()];
    crowd.subscribe(&members, &filters)?;
    let publisher = crowd.client("publisher", Version::V311, &[])?;
    let flow = flow(ground, crowd, publisher, &Stock::new(&topics, PAYLOAD))?;
    Ok(flow.per_message())
}

/// Cost of a receiver of another version than the publisher's, and of a shared subscription,
/// relative to a receiver of the publisher's version, which is measured before and after both.
pub(super) fn mixed(ground: &Ground, n: u64) -> Result<Measures> {
    let topics = names(n);
    let stock = Stock::new(&topics, PAYLOAD);
    let cpu = |version, filter| {
        let (crowd, publisher) = ground.pair(version, filter, &topics)?;
        Ok::<_, Error>(flow(ground, crowd, publisher, &stock)?.cpu_us)
    };
    let before = cpu(Version::V311, "t/#")?;
    let other = cpu(Version::V5, "t/#")?;
    let shared = cpu(Version::V311, "$share/g/t/#")?;
    let plain = f64::midpoint(before, cpu(Version::V311, "t/#")?);
    Ok(vec![
        ("3.1.1 → 3.1.1, µs CPU/message", plain),
        ("3.1.1 → 5.0, µs CPU/message", other),
        ("3.1.1 → shared, µs CPU/message", shared),
        ("3.1.1 → 5.0, share of 3.1.1 → 3.1.1", other / plain),
        ("3.1.1 → shared, share of 3.1.1 → 3.1.1", shared / plain),
    ])
}

/// One topic with payloads of `n` bytes.
pub(super) fn payloads(ground: &Ground, n: u64) -> Result<Measures> {
    let topics = names(1);
    let (crowd, publisher) = ground.pair(Version::V311, "t/#", &topics)?;
    let flow = flow(
        ground,
        crowd,
        publisher,
        &Stock::new(&topics, &vec![7; n as usize]),
    )?;
    Ok(vec![
        ("MB/s", flow.per_second * n as f64 / 1e6),
        ("µs CPU/MB", flow.cpu_us / n as f64 * 1e6),
    ])
}

fn names(n: u64) -> Vec<String> {
    (0..n).map(|n| format!("t/{n}")).collect()
}

/// Encoded packets, which are sent in turn.
pub(super) struct Stock {
    bytes: Vec<u8>,
    /// Offset of the end of each packet.
    ends: Vec<usize>,
}

impl Stock {
    fn new(topics: &[String], payload: &[u8]) -> Self {
        let mut stock = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(topics.len()),
        };
        for topic in topics {
            let publish = PublishTemplate::new(Version::V311, topic, 0, payload);
            stock.bytes.extend_from_slice(&publish.bytes);
            stock.ends.push(stock.bytes.len());
        }
        stock
    }

    fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Most messages that may be undelivered.
    fn window(&self) -> u64 {
        let each = self.bytes.len() as u64 / self.len().max(1);
        (WINDOW_BYTES / each.max(1)).clamp(2, WINDOW)
    }

    /// Appends `count` packets, beginning with the one that follows `sent` earlier ones,
    /// cyclically.
    fn put(&self, out: &mut Vec<u8>, sent: u64, mut count: u64) {
        let mut at = sent % self.len();
        while count > 0 {
            let part = count.min(self.len() - at);
            let begin = match at {
                0 => 0,
                _ => self.ends[at as usize - 1],
            };
            out.extend_from_slice(&self.bytes[begin..self.ends[(at + part) as usize - 1]]);
            count -= part;
            at = 0;
        }
    }
}

/// Results of a flow of messages.
struct Flow {
    per_second: f64,
    cpu_us: f64,
}

impl Flow {
    fn per_message(&self) -> Measures {
        vec![
            ("messages/s", self.per_second),
            ("µs CPU/message", self.cpu_us),
        ]
    }
}

/// Sends the packets cyclically, measures for a while, and waits until all are delivered.
fn flow(ground: &Ground, mut crowd: Crowd, publisher: usize, stock: &Stock) -> Result<Flow> {
    let (duration, patience) = (ground.extent.duration, ground.extent.patience);
    let mut sent = 0;
    let instant = |crowd: &Crowd| Ok((Instant::now(), ground.cpu()?, crowd.seen.publishes));
    let started = Instant::now();
    let (mut begin, mut end) = (None, None);
    crowd.until("measurements", 1, |crowd| {
        top_up(crowd, publisher, stock, &mut sent)?;
        let warm = crowd.seen.publishes >= stock.len() || started.elapsed() >= patience / 2;
        if begin.is_none() && warm && started.elapsed() >= WARM_UP {
            begin = Some(instant(crowd)?);
        }
        if let Some((begin, ..)) = begin
            && begin.elapsed() >= duration
        {
            end = Some(instant(crowd)?);
        }
        Ok(u64::from(end.is_some()))
    })?;
    crowd.until("messages", sent, |crowd| Ok(crowd.seen.publishes))?;
    if crowd.seen.publishes > sent {
        return Err(Error::Broker {
            client: "subscriber".to_owned(),
            what: format!("sent {} messages too many", crowd.seen.publishes - sent),
        });
    }
    let measured = begin.zip(end).map(|(begin, end)| {
        let messages = (end.2 - begin.2).max(1) as f64;
        Flow {
            per_second: messages / (end.0 - begin.0).as_secs_f64(),
            cpu_us: (end.1 - begin.1).as_secs_f64() * 1e6 / messages,
        }
    });
    measured.ok_or_else(|| Error::io("nothing was measured")(std::io::ErrorKind::Other.into()))
}

/// Sends as many packets as the window allows.
fn top_up(crowd: &mut Crowd, publisher: usize, stock: &Stock, sent: &mut u64) -> Result<()> {
    let undelivered = sent.saturating_sub(crowd.seen.publishes);
    let room = stock.window().saturating_sub(undelivered);
    if room == 0 {
        return Ok(());
    }
    crowd.send(publisher, |out| stock.put(out, *sent, room))?;
    *sent += room;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stock_goes_round() {
        let stock = Stock::new(&names(3), b"");
        let mut five = Vec::new();
        stock.put(&mut five, 1, 5);
        let mut each = Vec::new();
        for sent in 1..6 {
            stock.put(&mut each, sent, 1);
        }
        assert_eq!(five, each);
        assert_eq!(five.len(), 5 * stock.bytes.len() / 3);
        assert!(five.ends_with(&stock.bytes[stock.ends[1]..]));
    }

    #[test]
    fn windows_have_two_messages_at_least() {
        let window = |bytes: usize| Stock::new(&names(1), &vec![0; bytes]).window();
        assert_eq!(window(16), WINDOW);
        assert_eq!(window(16 << 10), 255);
        assert_eq!(window(16 << 20), 2);
    }
}
