//! Publishers, subscribers and relays in one thread; each socket is opened in its host's namespace.
//!
//! A publisher writes each message to one or several brokers over TCP, or once to a multicast
//! group, as a datagram with a PUBLISH packet. A relay on each member's host passes these datagrams
//! on to the broker of the host.
//!
//! Nominal releases of a flow are one period apart, regardless of the broker. A message is due at a
//! random time from its nominal release until the release jitter of its flow has passed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memchr::memmem;
use punctual_model::network::Flow;
use punctual_model::{Answer, Rng, Status};
use socket2::{Domain, Socket, Type};

use super::layout::Publication;
use super::stamp::{LENGTH, Stamp};
use super::tree;
use crate::sys::{self, Epoll, Interest};
use punctual_measure::io::{self, FlushOutcome, Outbox, READ_CHUNK, ReadOutcome, Tail};
use punctual_measure::load::client::Handshake;
use punctual_measure::load::meter::Recorder;
use punctual_measure::wire::{self, Frame, PublishTemplate, Version, kind};
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// MQTT version of all clients.
const VERSION: Version = Version::V5;

/// Bytes of Ethernet's header, frame check sequence, preamble and inter-frame gap.
const ETHERNET: u64 = 38;

/// Headers of IPv4 and of TCP with time stamps, bytes.
const IP_AND_TCP: u64 = 52;

/// Headers of IPv4 and of UDP, bytes.
const IP_AND_UDP: u64 = 28;

/// Bytes of TCP options, by which they reduce the payload of a segment.
const TCP_OPTIONS: u64 = 12;

/// Tolerance for lateness beyond a flow's release jitter, ns: waking up and writing take time.
const GRACE: u64 = 100_000;

/// Longest wait for events, ns.
const LOOK: u64 = 50_000_000;

/// Longest wait for a connection to a broker.
const CONNECT: Duration = Duration::from_secs(5);

/// Send buffer of a connection, bytes. While it holds this much, due messages are not written.
const MOST_PENDING: usize = 1 << 20;

/// IP TTL of datagrams to a group; Linux's default is 1.
const GROUP_HOPS: u32 = 16;

/// Size of the receive buffer of a relay's socket, bytes.
const RELAY_ROOM: usize = 1 << 20;

/// Largest number of datagrams that a relay passes on before other sockets have their turn.
const RELAY_BATCH: usize = 64;

/// Bit in the epoll tokens of relays' sockets; tokens of clients are smaller.
const RELAY_TOKEN: u32 = 1 << 31;

/// A periodic publisher.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    /// Flow number in the stamps of the publisher's messages.
    pub(super) flow: u32,
    pub(super) name: String,
    /// Bytes of a frame on the wire, and number of frames of a message.
    pub(super) wire_bytes: u64,
    pub(super) frames: u64,
    pub(super) period: u64,
    pub(super) jitter: u64,
    pub(super) qos: u8,
    /// User properties of every message, which state the flow's requirements.
    pub(super) requirements: Vec<(String, String)>,
    /// Index of the publisher's host.
    pub(super) host: usize,
    /// Destinations of each message, in the order of writing.
    pub(super) endpoints: Vec<Endpoint>,
}

impl Publisher {
    /// The publisher of a flow, without requirements and endpoints.
    pub(super) fn of(publication: &Publication, flow: &Flow, qos: u8) -> Self {
        Self {
            flow: publication.flow as u32,
            name: flow.id.clone(),
            wire_bytes: publication.wire_bytes,
            frames: flow.frames,
            period: flow.period,
            jitter: flow.jitter,
            qos,
            requirements: Vec::new(),
            host: publication.publisher,
            endpoints: Vec::new(),
        }
    }
}

/// Source port and destination of packets, and their DiffServ mark.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) host: usize,
    /// Source port; 0: the system chooses.
    pub(super) port: u16,
    /// Address of the broker, or of a multicast group to which datagrams are sent.
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

/// A relay, which passes datagrams to multicast groups on to the broker of its host.
#[derive(Clone, Debug)]
pub(super) struct RelaySpec {
    pub(super) host: usize,
    pub(super) qos: u8,
}

/// Results of the clients.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Messages by flow number, including those that were not written.
    pub(super) messages: Vec<u64>,
    /// Acknowledged messages by flow number; always 0 for QoS 0.
    pub(super) acknowledged: Vec<u64>,
    /// By flow number, whether an acknowledgement stated that the flow is admitted.
    pub(super) promised: Vec<bool>,
    /// Messages that were written later than their flow's release jitter allows.
    pub(super) late: u64,
    /// Time from when a message was due until it was written, ns, with the number of messages.
    pub(super) lateness: Vec<(u64, u64)>,
    /// Messages that subscribers received.
    pub(super) received: u64,
    /// Copies that were not written because a send buffer was full or a send failed.
    pub(super) withheld: u64,
    /// Datagrams that relays passed on to brokers, and datagrams that they dropped because the
    /// connection's send buffer was full.
    pub(super) relayed: u64,
    pub(super) not_relayed: u64,
}

/// The connected clients.
pub(super) struct Load {
    epoll: Epoll,
    clients: Vec<Client>,
    senders: Vec<Sender>,
    relays: Vec<Relay>,
    random: Rng,
    /// Offset to add to the monotonic clock to get the real-time clock, ns.
    offset: u64,
    sent: Sent,
    lateness: Recorder,
    /// Encoded user property of an acknowledgement that guarantees a deadline.
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

/// Destination of a copy of a message.
enum Output {
    /// The connection of a client to its broker, by the client's index.
    Connection(usize, PublishTemplate),
    /// A socket that sends to a multicast group.
    Group(UdpSocket, PublishTemplate),
}

struct Relay {
    socket: UdpSocket,
    client: usize,
    /// Packet identifier of the last publication.
    id: u16,
}

struct Sender {
    outputs: Vec<Output>,
    flow: u32,
    period: u64,
    jitter: u64,
    /// Nominal release of the next message, ns on the monotonic clock.
    nominal: u64,
    sequence: u32,
}

impl Load {
    /// Connects all clients; `hosts` returns a host's namespace.
    pub(super) fn connect<'a>(
        subscribers: &[Subscriber],
        publishers: &[Publisher],
        relays: &[RelaySpec],
        seed: u64,
        hosts: impl Fn(usize) -> &'a Namespace,
    ) -> Result<Self> {
        let flows = publishers.iter().map(|of| of.flow as usize + 1).max();
        let mut load = Self {
            epoll: Epoll::new().map_err(Error::io("cannot create an epoll instance"))?,
            clients: Vec::new(),
            senders: Vec::new(),
            relays: Vec::new(),
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
        for relay in relays {
            load.add_relay(relay, hosts(relay.host))?;
        }
        for publisher in publishers {
            let host = hosts(publisher.host);
            let endpoints = publisher.endpoints.iter().enumerate();
            let outputs = endpoints.map(|at| load.output(publisher, at, host));
            let outputs = outputs.collect::<Result<_>>()?;
            load.senders.push(Sender {
                outputs,
                flow: publisher.flow,
                period: publisher.period.max(1),
                jitter: publisher.jitter,
                nominal: 0,
                sequence: 0,
            });
        }
        Ok(load)
    }

    /// Opens the connection or socket for a destination of a publisher.
    fn output(
        &mut self,
        publisher: &Publisher,
        (index, endpoint): (usize, &Endpoint),
        host: &Namespace,
    ) -> Result<Output> {
        if endpoint.broker.is_multicast() {
            let open = || open_group(endpoint);
            let socket = host.enter(open)?.map_err(refused(&publisher.name))?;
            return Ok(Output::Group(socket, template(publisher, IP_AND_UDP)?));
        }
        let template = template(publisher, IP_AND_TCP)?;
        let segment = (publisher.frames > 1)
            .then(|| (publisher.wire_bytes - ETHERNET - IP_AND_TCP + TCP_OPTIONS) as u32);
        let open = || open(endpoint, segment);
        let stream = host.enter(open)?.map_err(refused(&publisher.name))?;
        let name = match index {
            0 => publisher.name.clone(),
            index => format!("{}-{index}", publisher.name),
        };
        let client = (name.as_str(), stream);
        self.add(client, &[], publisher.qos, Some(publisher.flow))?;
        Ok(Output::Connection(self.clients.len() - 1, template))
    }

    fn add_relay(&mut self, relay: &RelaySpec, host: &Namespace) -> Result<()> {
        let name = "relay";
        let endpoint = Endpoint {
            host: relay.host,
            port: 0,
            broker: Ipv4Addr::LOCALHOST,
            dscp: 0,
        };
        let stream = host
            .enter(|| open(&endpoint, None))?
            .map_err(refused(name))?;
        self.add((name, stream), &[], relay.qos, None)?;
        let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, tree::PORT));
        let socket = host.enter(bind)?.map_err(refused(name))?;
        socket.set_nonblocking(true).map_err(refused(name))?;
        sys::ask_receive_buffer(&socket, RELAY_ROOM).map_err(refused(name))?;
        let token = RELAY_TOKEN | self.relays.len() as u32;
        self.epoll
            .add(socket.as_raw_fd(), token, Interest::READ)
            .map_err(Error::io("cannot watch a relay"))?;
        self.relays.push(Relay {
            socket,
            client: self.clients.len() - 1,
            id: 0,
        });
        Ok(())
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

    /// Publishes from `begin` to `end`, ns on the monotonic clock, then receives until `ended` is
    /// set.
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
            // Due messages are written before received packets are handled.
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
                if ready.token >= RELAY_TOKEN {
                    self.relay((ready.token - RELAY_TOKEN) as usize, &mut shared)?;
                    continue;
                }
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
        let now = sys::now_ns();
        self.lateness.record(now.saturating_sub(due));
        self.sent.late += u64::from(now > sender.nominal + sender.jitter + GRACE);
        self.sent.messages[sender.flow as usize] += 1;
        // Packet identifiers 1 to 65535 are reused long after their acknowledgements.
        let id = (sender.sequence % 65_535) as u16 + 1;
        let mut stamp = Stamp {
            flow: sender.flow,
            sequence: sender.sequence,
            nominal: sender.nominal + self.offset,
            written: 0,
        };
        sender.sequence += 1;
        for output in 0..self.senders[index].outputs.len() {
            stamp.written = sys::real_time_ns();
            let written = match &mut self.senders[index].outputs[output] {
                Output::Connection(client, template) => {
                    let client = *client;
                    let out = &mut self.clients[client].out;
                    let has_room = out.pending() < MOST_PENDING;
                    if has_room {
                        put(template, id, stamp, out.buffer());
                        self.flush(client)?;
                    }
                    has_room
                }
                Output::Group(socket, template) => {
                    fill(template, id, stamp);
                    // UDP does not retransmit; a failed send is counted.
                    socket.send(&template.bytes).is_ok()
                }
            };
            self.sent.withheld += u64::from(!written);
        }
        Ok(())
    }

    /// Passes received datagrams to groups on to the broker of the relay's host.
    fn relay(&mut self, index: usize, shared: &mut [u8]) -> Result<()> {
        let relay = &mut self.relays[index];
        let client = relay.client;
        for _ in 0..RELAY_BATCH {
            let Ok(length) = relay.socket.recv(shared) else {
                break;
            };
            let out = &mut self.clients[client].out;
            let packet = &shared[..length];
            let Frame::Packet { first, body, end } = wire::frame(packet) else {
                continue;
            };
            let publish = wire::publish(first, &packet[body..end], VERSION);
            let (Some(publish), true) = (publish, first >> 4 == kind::PUBLISH) else {
                continue;
            };
            if out.pending() >= MOST_PENDING {
                self.sent.not_relayed += 1;
                continue;
            }
            let buffer = out.buffer();
            let at = buffer.len();
            buffer.extend_from_slice(&packet[..end]);
            if publish.qos > 0 {
                relay.id = relay.id.checked_add(1).unwrap_or(1);
                let id_at = at + body + publish.id_at;
                buffer[id_at..id_at + 2].copy_from_slice(&relay.id.to_be_bytes());
            }
            self.sent.relayed += 1;
        }
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

    /// Counts acknowledgements, and receives and acknowledges messages.
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

/// Writes packet identifier and stamp into a template of a message.
fn fill(template: &mut PublishTemplate, id: u16, stamp: Stamp) {
    if let Some(id_at) = template.id_at {
        template.bytes[id_at..id_at + 2].copy_from_slice(&id.to_be_bytes());
    }
    let stamp_at = template.bytes.len() - LENGTH;
    template.bytes[stamp_at..].copy_from_slice(&stamp.to_bytes());
}

/// Appends a message to the output buffer of a connection.
fn put(template: &mut PublishTemplate, id: u16, stamp: Stamp, out: &mut Vec<u8>) {
    fill(template, id, stamp);
    out.extend_from_slice(&template.bytes);
}

/// The template of a flow's message. With `headers` bytes of headers it fills the flow's frames.
fn template(publisher: &Publisher, headers: u64) -> Result<PublishTemplate> {
    let short = || Error::Config {
        field: "flow",
        value: publisher.name.clone(),
        remedy: format!(
            "{} bytes on the wire do not hold a message with its stamp; give it more wire_bytes",
            publisher.wire_bytes
        ),
    };
    let room = publisher.wire_bytes.checked_sub(ETHERNET + headers);
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
    // The size of the remaining length field depends on the length of the packet.
    let headers = of(size).bytes.len() - size;
    let payload = size.checked_sub(headers).filter(|of| *of >= LENGTH);
    let template = of(payload.ok_or_else(short)?);
    Ok(template)
}

/// The encoded user property of an acknowledgement that guarantees a deadline.
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

/// The topic name of a flow.
pub(super) fn topic(flow: &str) -> String {
    // A flow's name may contain characters that topic names must not contain or that separate
    // levels.
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

/// Opens a socket for datagrams to a multicast group.
fn open_group(endpoint: &Endpoint) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_tos_v4(u32::from(endpoint.dscp) << 2)?;
    socket.set_multicast_ttl_v4(GROUP_HOPS)?;
    // No group member is on the publisher's host. The route to the group selects the device.
    socket.set_multicast_loop_v4(false)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, endpoint.port)).into())?;
    socket.connect(&SocketAddr::from((endpoint.broker, tree::PORT)).into())?;
    Ok(UdpSocket::from(socket))
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
            host: 0,
            endpoints: Vec::new(),
        }
    }

    #[test]
    fn a_message_fills_its_frames() {
        let tcp = [(1538, 1, 1448), (1538, 4, 5792), (320, 1, 230)].map(|of| (of, IP_AND_TCP));
        let all = tcp.into_iter().chain([((1538, 1, 1472), IP_AND_UDP)]);
        for ((wire_bytes, frames, expected), headers) in all {
            let template = template(&publisher(wire_bytes, frames), headers).unwrap();
            assert_eq!(template.bytes.len(), expected);
        }
    }

    #[test]
    fn a_frame_that_is_too_short_is_refused_with_the_flow() {
        for wire_bytes in [84, 120] {
            let error = template(&publisher(wire_bytes, 1), IP_AND_TCP)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("flow = m1: "), "{error}");
        }
    }
}
