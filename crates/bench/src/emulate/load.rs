//! Publishers and subscribers: one thread, with each socket opened in the namespace of its host.
//!
//! A message is due a random time within its flow's release jitter after its nominal release,
//! and the nominal releases are a period apart, whatever the broker does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memchr::memmem;
use punctual_model::{Answer, Rng, Status};
use socket2::{Domain, Socket, Type};

use super::stamp::{LENGTH, Stamp};
use crate::sys::{self, Epoll, Interest};
use punctual_measure::io::{self, FlushOutcome, Outbox, READ_CHUNK, ReadOutcome, Tail};
use punctual_measure::load::client::Handshake;
use punctual_measure::load::meter::Recorder;
use punctual_measure::wire::{self, Frame, PublishTemplate, Version, kind};
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// The version that all clients speak.
const VERSION: Version = Version::V5;

/// Ethernet's header, check sequence, preamble and gap, bytes.
const ETHERNET: u64 = 38;

/// Headers of IPv4 and of TCP with time stamps, bytes.
const IP_AND_TCP: u64 = 52;

/// What the IP and TCP headers take of a segment's greatest size, bytes: the options of TCP.
const TCP_OPTIONS: u64 = 12;

/// What a message may be later than its flow declares before it counts as late, ns: waking up and
/// writing take some of it.
const GRACE: u64 = 100_000;

/// Longest wait for something to do, ns.
const LOOK: u64 = 50_000_000;

/// Longest wait for a broker to take a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A periodic publisher.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    /// What its messages bear.
    pub(super) flow: u32,
    pub(super) name: String,
    /// Bytes of a frame on the wire, and frames of a message.
    pub(super) wire_bytes: u64,
    pub(super) frames: u64,
    pub(super) period: u64,
    pub(super) jitter: u64,
    pub(super) qos: u8,
    /// User properties of every message.
    pub(super) requirements: Vec<(String, String)>,
    pub(super) endpoint: Endpoint,
}

/// Where a connection begins and ends, and how its packets are marked.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) host: usize,
    pub(super) port: u16,
    pub(super) broker: Ipv4Addr,
    /// DiffServ code point.
    pub(super) dscp: u8,
}

/// A subscriber.
#[derive(Clone, Debug)]
pub(super) struct Subscriber {
    pub(super) name: String,
    pub(super) filters: Vec<String>,
    pub(super) qos: u8,
    pub(super) endpoint: Endpoint,
}

/// What the clients did.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// By flow, as far as the highest number that was given.
    pub(super) messages: Vec<u64>,
    /// By flow: messages that the broker acknowledged; at QoS 0 none.
    pub(super) acknowledged: Vec<u64>,
    /// By flow: an acknowledgement said that it is admitted.
    pub(super) promised: Vec<bool>,
    /// Messages that were written later than their flow's release jitter allows.
    pub(super) late: u64,
    /// From when a message was due to when it was written, ns: value and count.
    pub(super) lateness: Vec<(u64, u64)>,
    /// Messages that subscribers received.
    pub(super) received: u64,
}

/// Connected clients.
pub(super) struct Load {
    epoll: Epoll,
    clients: Vec<Client>,
    senders: Vec<Sender>,
    random: Rng,
    /// What there is to add to the steady clock for the real-time one, ns.
    offset: u64,
    sent: Sent,
    lateness: Recorder,
    /// What stands in an acknowledgement that promises a deadline.
    promise: Vec<u8>,
}

struct Client {
    name: String,
    stream: TcpStream,
    tail: Tail,
    out: Outbox,
    blocked: bool,
    flow: Option<u32>,
}

struct Sender {
    client: usize,
    flow: u32,
    template: PublishTemplate,
    period: u64,
    jitter: u64,
    /// On the steady clock.
    nominal: u64,
    sequence: u32,
}

impl Load {
    /// Connects everybody; `hosts` gives a host's namespace.
    pub(super) fn connect<'a>(
        subscribers: &[Subscriber],
        publishers: &[Publisher],
        seed: u64,
        hosts: impl Fn(usize) -> &'a Namespace,
    ) -> Result<Self> {
        let flows = publishers.iter().map(|of| of.flow as usize + 1).max();
        let mut load = Self {
            epoll: Epoll::new().map_err(Error::io("cannot create an epoll instance"))?,
            clients: Vec::new(),
            senders: Vec::new(),
            random: Rng::new(seed),
            offset: sys::real_time_ns().saturating_sub(sys::now_ns()),
            sent: Sent {
                messages: vec![0; flows.unwrap_or(0)],
                acknowledged: vec![0; flows.unwrap_or(0)],
                promised: vec![false; flows.unwrap_or(0)],
                ..Sent::default()
            },
            lateness: Recorder::default(),
            promise: promise(),
        };
        for subscriber in subscribers {
            let host = hosts(subscriber.endpoint.host);
            let open = || open(&subscriber.endpoint, None);
            let stream = host.enter(open)?.map_err(refused(&subscriber.name))?;
            let client = (subscriber.name.as_str(), stream);
            load.add(client, &subscriber.filters, subscriber.qos, None)?;
        }
        for publisher in publishers {
            let template = template(publisher)?;
            let segment = (publisher.frames > 1)
                .then(|| (publisher.wire_bytes - ETHERNET - IP_AND_TCP + TCP_OPTIONS) as u32);
            let host = hosts(publisher.endpoint.host);
            let open = || open(&publisher.endpoint, segment);
            let stream = host.enter(open)?.map_err(refused(&publisher.name))?;
            let client = (publisher.name.as_str(), stream);
            load.add(client, &[], publisher.qos, Some(publisher.flow))?;
            load.senders.push(Sender {
                client: load.clients.len() - 1,
                flow: publisher.flow,
                template,
                period: publisher.period.max(1),
                jitter: publisher.jitter,
                nominal: 0,
                sequence: 0,
            });
        }
        Ok(load)
    }

    fn add(
        &mut self,
        (name, stream): (&str, TcpStream),
        filters: &[String],
        qos: u8,
        flow: Option<u32>,
    ) -> Result<()> {
        let address = stream.peer_addr().map_err(refused(name))?;
        let (stream, _) = Handshake {
            address,
            version: VERSION,
            client_id: name,
            filters,
            qos,
            persistent: false,
        }
        .greet(stream)?;
        let token = self.clients.len() as u32;
        self.epoll
            .add(stream.as_raw_fd(), token, Interest::READ)
            .map_err(Error::io("cannot watch a connection"))?;
        self.clients.push(Client {
            name: name.to_owned(),
            stream,
            tail: Tail::default(),
            out: Outbox::default(),
            blocked: false,
            flow,
        });
        Ok(())
    }

    /// Publishes from `begin` to `end` on the steady clock, then receives until told to end.
    pub(super) fn run(mut self, begin: u64, end: u64, ended: &AtomicBool) -> Result<Sent> {
        sys::set_least_timer_slack();
        let mut due = BinaryHeap::new();
        for (index, sender) in self.senders.iter_mut().enumerate() {
            sender.nominal = begin + self.random.below(sender.period);
            let release = sender.nominal + self.random.below(sender.jitter + 1);
            due.push(Reverse((release, index)));
        }
        let mut shared = vec![0; READ_CHUNK];
        while !ended.load(Ordering::Acquire) {
            let now = sys::now_ns();
            let next = due.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let count = self
                .epoll
                .wait(Some(next.saturating_sub(now).min(LOOK)))
                .map_err(Error::io("cannot wait for events"))?;
            // What is due goes first.
            while let Some(&Reverse((at, index))) = due.peek() {
                let now = sys::now_ns();
                if at > now {
                    break;
                }
                due.pop();
                self.publish(index, at)?;
                let sender = &mut self.senders[index];
                sender.nominal += sender.period;
                if sender.nominal < end {
                    let release = sender.nominal + self.random.below(sender.jitter + 1);
                    due.push(Reverse((release, index)));
                }
            }
            for event in 0..count {
                let ready = self.epoll.ready(event);
                let client = ready.token as usize;
                if ready.writable {
                    self.flush(client)?;
                }
                if ready.readable {
                    self.read(client, &mut shared)?;
                }
            }
        }
        self.sent.lateness = self.lateness.buckets();
        Ok(self.sent)
    }

    fn publish(&mut self, index: usize, due: u64) -> Result<()> {
        let sender = &mut self.senders[index];
        let client = &mut self.clients[sender.client];
        let out = client.out.buffer();
        let at = out.len();
        out.extend_from_slice(&sender.template.bytes);
        if let Some(id_at) = sender.template.id_at {
            // 1 to 65535; by then the first ones are long acknowledged.
            let id = (sender.sequence % 65_535) as u16 + 1;
            out[at + id_at..at + id_at + 2].copy_from_slice(&id.to_be_bytes());
        }
        let stamp_at = out.len() - LENGTH;
        let now = sys::now_ns();
        let stamp = Stamp {
            flow: sender.flow,
            sequence: sender.sequence,
            nominal: sender.nominal + self.offset,
            written: sys::real_time_ns(),
        };
        out[stamp_at..].copy_from_slice(&stamp.to_bytes());
        self.lateness.record(now.saturating_sub(due));
        self.sent.late += u64::from(now > sender.nominal + sender.jitter + GRACE);
        self.sent.messages[sender.flow as usize] += 1;
        sender.sequence += 1;
        let client = sender.client;
        self.flush(client)
    }

    fn flush(&mut self, client: usize) -> Result<()> {
        let token = client as u32;
        let client = &mut self.clients[client];
        let blocked = match client.out.flush(&client.stream) {
            FlushOutcome::All => false,
            FlushOutcome::Blocked => true,
            FlushOutcome::Closed => return Err(gone(client)),
        };
        if blocked != client.blocked {
            client.blocked = blocked;
            let interest = Interest {
                read: true,
                write: blocked,
            };
            self.epoll
                .change(client.stream.as_raw_fd(), token, interest)
                .map_err(Error::io("cannot watch a connection"))?;
        }
        Ok(())
    }

    /// Counts acknowledgements, and takes and acknowledges messages.
    fn read(&mut self, index: usize, shared: &mut [u8]) -> Result<()> {
        let client = &mut self.clients[index];
        let length = match client.tail.read(&client.stream, shared) {
            ReadOutcome::Bytes(length) => length,
            ReadOutcome::Nothing => return Ok(()),
            ReadOutcome::Closed => return Err(gone(client)),
        };
        let bytes = &shared[..length];
        let mut at = 0;
        loop {
            match wire::frame(&bytes[at..]) {
                Frame::Incomplete => break,
                Frame::Malformed => return Err(gone(client)),
                Frame::Packet { first, body, end } => {
                    let body = &bytes[at + body..at + end];
                    at += end;
                    match (first >> 4, client.flow) {
                        (kind::PUBACK, Some(flow)) => {
                            self.sent.acknowledged[flow as usize] += 1;
                            let promised = memmem::find(body, &self.promise).is_some();
                            self.sent.promised[flow as usize] |= promised;
                        }
                        (kind::PUBLISH, _) => {
                            self.sent.received += 1;
                            let publish = wire::publish(first, body, VERSION);
                            if let Some(publish) = publish.filter(|publish| publish.qos == 1) {
                                wire::put_ack(client.out.buffer(), kind::PUBACK, publish.id);
                            }
                        }
                        (kind::DISCONNECT, _) => return Err(gone(client)),
                        _ => {}
                    }
                }
            }
        }
        client.tail.keep(&bytes[at..]);
        match client.out.pending() {
            0 => Ok(()),
            _ => self.flush(index),
        }
    }
}

/// The message of a flow: with its headers as long as its frames say.
fn template(publisher: &Publisher) -> Result<PublishTemplate> {
    let short = || Error::Config {
        field: "flow",
        value: publisher.name.clone(),
        remedy: format!(
            "{} bytes on the wire do not hold a message with its stamp; give it more wire_bytes",
            publisher.wire_bytes
        ),
    };
    let room = publisher.wire_bytes.checked_sub(ETHERNET + IP_AND_TCP);
    let room = room.ok_or_else(short)?;
    let size = usize::try_from(room * publisher.frames).map_err(|_| short())?;
    let of = |payload: usize| {
        let payload = vec![b'.'; payload];
        let topic = topic(&publisher.name);
        let requirements = &publisher.requirements;
        PublishTemplate::with_user_properties(
            VERSION,
            &topic,
            publisher.qos,
            requirements,
            &payload,
        )
    };
    // The length of the length field depends on the length.
    let headers = of(size).bytes.len() - size;
    let payload = size.checked_sub(headers).filter(|of| *of >= LENGTH);
    let template = of(payload.ok_or_else(short)?);
    Ok(template)
}

/// The user property of an acknowledgement that promises a deadline.
fn promise() -> Vec<u8> {
    let answer = Answer {
        status: Some(Status::Admitted),
        ..Answer::default()
    };
    let mut bytes = Vec::new();
    for (key, value) in answer.user_properties() {
        wire::put_string(&mut bytes, key);
        wire::put_string(&mut bytes, &value);
    }
    bytes
}

/// The topic of a flow.
pub(super) fn topic(flow: &str) -> String {
    // What is special in filters may stand in a flow's name.
    let plain = flow.replace(['+', '#', '/', '\0'], "_");
    format!("flow/{plain}")
}

fn open(endpoint: &Endpoint, segment: Option<u32>) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_tos_v4(u32::from(endpoint.dscp) << 2)?;
    if let Some(segment) = segment {
        socket.set_tcp_mss(segment)?;
    }
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, endpoint.port)).into())?;
    let broker = SocketAddr::from((endpoint.broker, super::broker::PORT));
    socket.connect_timeout(&broker.into(), CONNECT)?;
    let stream = TcpStream::from(socket);
    io::prepare(&stream)?;
    Ok(stream)
}

fn refused(client: &str) -> impl FnOnce(std::io::Error) -> Error + use<> {
    Error::io(format!("cannot connect (client {client})"))
}

fn gone(client: &Client) -> Error {
    Error::Broker {
        client: client.name.clone(),
        what: "closed the connection or sent what is no MQTT".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publisher(wire_bytes: u64, frames: u64) -> Publisher {
        Publisher {
            flow: 0,
            name: "m1".to_owned(),
            wire_bytes,
            frames,
            period: 1,
            jitter: 0,
            qos: 1,
            requirements: Vec::new(),
            endpoint: Endpoint {
                host: 0,
                port: 0,
                broker: Ipv4Addr::LOCALHOST,
                dscp: 0,
            },
        }
    }

    #[test]
    fn a_message_fills_its_frames() {
        for (wire_bytes, frames, expected) in [(1538, 1, 1448), (1538, 4, 5792), (320, 1, 230)] {
            let template = template(&publisher(wire_bytes, frames)).unwrap();
            assert_eq!(template.bytes.len(), expected);
        }
    }

    #[test]
    fn a_frame_that_is_too_short_is_refused_with_the_flow() {
        for wire_bytes in [84, 120] {
            let error = template(&publisher(wire_bytes, 1)).unwrap_err().to_string();
            assert!(error.starts_with("flow = m1: "), "{error}");
        }
    }
}
