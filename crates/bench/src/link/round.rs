//! One round: bulk messages, then an urgent message while they are in transit.

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::sys;
use punctual_measure::load::client::Handshake;
use punctual_measure::wire::{self, Frame, PublishTemplate, Version, kind};
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Longest wait for each expected event of a round.
const PATIENCE: Duration = Duration::from_secs(30);

/// The urgent message is published when one in `ARRIVED` of the bulk messages has arrived.
const ARRIVED: u32 = 10;

const BULK: &str = "bulk";
const URGENT: &str = "urgent";

/// Which client receives bulk while a client receives an urgent message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// No client: there is no bulk.
    Idle,
    /// The client that receives the urgent message.
    Same,
    /// Another client behind the same link.
    Other,
}

impl Case {
    pub(super) const ALL: [Self; 3] = [Self::Idle, Self::Same, Self::Other];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Idle => "no bulk",
            Self::Same => "bulk to the same client",
            Self::Other => "bulk to another client",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// The times measured in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Time from the publication of the urgent message to its receipt, ns.
    pub(super) wait: u64,
    /// Time from the publication of the bulk to the receipt of its last message, ns.
    pub(super) bulk: Option<u64>,
}

/// An event at a receiver, with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Enough bulk has arrived for the urgent message to be published.
    Enough,
    /// The last bulk message arrived.
    BulkEnd(u64),
    /// An urgent message arrived.
    Urgent(u64),
    /// The connection ended.
    Closed,
}

/// The connections of one case.
pub(super) struct Rounds {
    case: Case,
    bulk_publisher: TcpStream,
    urgent_publisher: TcpStream,
    bulk: Vec<u8>,
    urgent: PublishTemplate,
    seen: Receiver<Seen>,
}

impl Rounds {
    /// Connects publishers and receivers, each from its namespace to the broker's address on its
    /// side. A round has `messages` bulk messages of `size` bytes.
    pub(super) fn connect(
        case: Case,
        publishers: (&Namespace, SocketAddr),
        receivers: (&Namespace, SocketAddr),
        messages: u32,
        size: usize,
    ) -> Result<Self> {
        let (send, seen) = channel();
        let filters: &[&[&str]] = match case {
            Case::Idle => &[&[URGENT]],
            Case::Same => &[&[BULK, URGENT]],
            Case::Other => &[&[BULK], &[URGENT]],
        };
        for (i, filters) in filters.iter().enumerate() {
            let stream = connect(receivers, &format!("receiver-{i}"), filters)?;
            let send = send.clone();
            thread::spawn(move || receive(stream, messages, &send));
        }
        let message = PublishTemplate::new(Version::V5, BULK, 0, &vec![b'x'; size]);
        let urgency = [("priority".to_owned(), "0".to_owned())];
        Ok(Self {
            case,
            bulk_publisher: connect(publishers, "bulk-publisher", &[])?,
            urgent_publisher: connect(publishers, "urgent-publisher", &[])?,
            bulk: message.bytes.repeat(messages as usize),
            urgent: PublishTemplate::with_user_properties(
                Version::V5,
                URGENT,
                0,
                &urgency,
                &[b'u'; 100],
            ),
            seen,
        })
    }

    /// Runs one round and waits until none of its messages is in transit.
    pub(super) fn run(&mut self, round: u32) -> Result<Measured> {
        let failed = || Error::io(format!("round {round}, {}", self.case));
        let (mut bulk_publisher, bulk) = (&self.bulk_publisher, &self.bulk);
        let with_bulk = self.case != Case::Idle;
        let started = sys::now_ns();
        let (sent, arrived, bulk_end) = thread::scope(|scope| {
            // The write may block: the broker may stop reading from this publisher for a while.
            let writer = with_bulk.then(|| scope.spawn(move || bulk_publisher.write_all(bulk)));
            if with_bulk {
                self.wait(|seen| (seen == Seen::Enough).then_some(()))?;
            }
            let sent = sys::now_ns();
            (&self.urgent_publisher)
                .write_all(&self.urgent.bytes)
                .map_err(failed())?;
            let (mut arrived, mut bulk_end) = (None, None);
            while arrived.is_none() || (with_bulk && bulk_end.is_none()) {
                match self.wait(Some)? {
                    Seen::Urgent(at) => arrived = Some(at),
                    Seen::BulkEnd(at) => bulk_end = Some(at),
                    Seen::Enough | Seen::Closed => {}
                }
            }
            if let Some(writer) = writer {
                writer
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    .map_err(failed())?;
            }
            Ok::<_, Error>((sent, arrived.unwrap_or(sent), bulk_end))
        })?;
        Ok(Measured {
            wait: arrived.saturating_sub(sent),
            bulk: bulk_end.map(|end| end.saturating_sub(started)),
        })
    }

    /// Waits for an event for which `wanted` returns a value.
    fn wait<T>(&self, wanted: impl Fn(Seen) -> Option<T>) -> Result<T> {
        loop {
            let seen = self
                .seen
                .recv_timeout(PATIENCE)
                .map_err(|_| Error::Broker {
                    client: "receiver".to_owned(),
                    what: format!("has delivered nothing for {PATIENCE:?} ({})", self.case),
                })?;
            if seen == Seen::Closed {
                return Err(Error::Broker {
                    client: "receiver".to_owned(),
                    what: "closed the connection".to_owned(),
                });
            }
            if let Some(wanted) = wanted(seen) {
                return Ok(wanted);
            }
        }
    }
}

fn connect(
    (host, address): (&Namespace, SocketAddr),
    client_id: &str,
    filters: &[&str],
) -> Result<TcpStream> {
    let filters: Vec<String> = filters.iter().map(|&filter| filter.to_owned()).collect();
    let handshake = Handshake {
        address,
        version: Version::V5,
        client_id,
        filters: &filters,
        qos: 0,
        persistent: false,
    };
    let (stream, _) = host.enter(|| handshake.run())??;
    let blocking = stream.set_nonblocking(false);
    blocking
        .and_then(|()| stream.set_read_timeout(None))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .map_err(Error::io("cannot set up a socket"))?;
    Ok(stream)
}

/// Reads packets until the connection ends and reports events. Each round has `messages` bulk
/// messages, so counting them tells where a round ends.
fn receive(mut stream: TcpStream, messages: u32, seen: &Sender<Seen>) {
    let mut buffer = vec![0; 256 * 1024];
    let (mut filled, mut count) = (0, 0);
    while let Ok(read @ 1..) = stream.read(&mut buffer[filled..]) {
        let now = sys::now_ns();
        filled += read;
        let mut at = 0;
        while let Frame::Packet { first, body, end } = wire::frame(&buffer[at..filled]) {
            let body = &buffer[at + body..at + end];
            at += end;
            if first >> 4 != kind::PUBLISH {
                continue;
            }
            let urgent = body.starts_with(b"\x00\x06urgent");
            let told = if urgent {
                seen.send(Seen::Urgent(now))
            } else {
                count += 1;
                if count == messages.div_ceil(ARRIVED) {
                    seen.send(Seen::Enough)
                } else if count == messages {
                    count = 0;
                    seen.send(Seen::BulkEnd(now))
                } else {
                    Ok(())
                }
            };
            if told.is_err() {
                return;
            }
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
    }
    // A waiting round gets this event; after the last round there is no receiver for it.
    let _ = seen.send(Seen::Closed);
}
