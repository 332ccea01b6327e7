//! Opening connections to neighbours: a thread for each, which ends with them.
//!
//! It speaks MQTT until both ends have said who they are; then the socket goes to
//! the first shard, and the thread waits until it is told that the link is gone.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use punctual_broker::{LINK_PREFIX, LINKED_ALREADY, LinkLimits};
use punctual_codec::{
    Connect, Packet, Properties, PropertyBuf, PropertyId, Publish, QoS, Split, Version, split,
};
use punctual_federation::Port;
use punctual_mesh::BrokerId;
use punctual_mesh::wire::{Message, Open, TOPIC};
use punctual_net::{Outgoing, TlsConnector};

use super::Input;
use crate::config::Neighbour;

/// Between the first two attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Between any two at most; less than the default of `mesh.join_wait`, so that a broker that starts is
/// found while it waits for those that name it.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long connecting and the first words may take.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// How connections are tried again. What waits for a neighbour is kept for `mesh.heal`, so an attempt
/// and the pause before it take less than half of that together: a link that can be used again is
/// used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    /// Between two attempts at most.
    longest_pause: Duration,
    /// How long an attempt may take; not less than a second, for ways on which packets are lost.
    patience: Duration,
}

impl Retry {
    pub(super) fn new(heal: Duration) -> Self {
        let share = heal / 5;
        Self {
            longest_pause: share.min(LONGEST_PAUSE),
            patience: share.clamp(PATIENCE.0, PATIENCE.1),
        }
    }

    /// The pause after this one.
    fn next(&self, pause: Duration) -> Duration {
        (pause * 2).min(self.longest_pause)
    }
}
/// Of one that speaks MQTT and says nothing of a mesh.
const NO_BROKER_OF_A_MESH: &str = "it is no broker of a mesh, or mesh.enabled is not set there; for a broker \
                                   of another kind there are bridges (mesh.bridges)";
/// Of one on another machine that is connected without TLS.
const CLEAR_PASSWORD: &str = "everybody on the way would read the secret or password of this broker: put tls:// \
                              in front of the address, or set mesh.clear_password = true where the network is trusted";
/// In front of the reason that the other broker gives.
const REFUSED: &str = "it refused: ";
/// Bytes of the largest packet before the link is one.
const FIRST_PACKETS: u32 = 64 << 10;

/// Who this broker says it is when it connects.
#[derive(Debug, Clone)]
pub(super) struct Introduction {
    pub(super) open: Open,
    pub(super) user: Option<String>,
    pub(super) password: Option<Vec<u8>>,
    /// Whether the password, which may be the secret of the mesh, may be sent in clear to another machine.
    pub(super) clear_password: bool,
    /// What this broker accepts on every connection.
    pub(super) limits: LinkLimits,
    /// For neighbours that are to be connected by TLS.
    pub(super) tls: Option<TlsConnector>,
    /// How often it is tried.
    pub(super) retry: Retry,
}

impl Introduction {
    /// Whether others would read the password on its way to a neighbour at that address, and nobody
    /// has allowed it.
    fn exposes_password(&self, neighbour: &Neighbour, address: IpAddr) -> bool {
        let is_elsewhere = !address.to_canonical().is_loopback();
        let is_plain = self.password.is_some() && !neighbour.is_tls();
        is_plain && is_elsewhere && !self.clear_password
    }
}

/// A connection to a neighbour that has said who it is.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) address: String,
    pub(super) peer: Open,
    pub(super) connection: Outgoing,
    pub(super) unread: Vec<u8>,
    pub(super) limits: LinkLimits,
}

/// A neighbour that is kept connected.
#[derive(Debug)]
pub(super) struct Dialler {
    /// By what its round-trip time is scaled.
    pub(super) weight: f64,
    /// Wakes the thread because the link is gone; dropped to end it.
    again: Sender<()>,
}

impl Dialler {
    /// Keeps connecting to a neighbour until dropped.
    pub(super) fn start(
        neighbour: &Neighbour,
        introduction: Introduction,
        port: Arc<Port>,
        keeper: Sender<Input>,
    ) -> io::Result<Self> {
        let (again, woken) = channel();
        let weight = neighbour.weight();
        if neighbour.is_tls() && introduction.tls.is_none() {
            return Err(io::Error::other(format!(
                "{} is to be connected by TLS, and mesh.ca_file does not name its authority",
                neighbour.address
            )));
        }
        let neighbour = neighbour.clone();
        thread::Builder::new()
            .name("mesh-dial".into())
            .spawn(move || keep(&neighbour, &introduction, &port, &keeper, &woken))?;
        Ok(Self { weight, again })
    }

    /// The link is gone, or was not wanted: connect again.
    pub(super) fn wake(&self) {
        // It ends with the program only.
        let _ = self.again.send(());
    }
}

fn keep(
    neighbour: &Neighbour,
    introduction: &Introduction,
    port: &Port,
    keeper: &Sender<Input>,
    woken: &Receiver<()>,
) {
    let retry = introduction.retry;
    let first = FIRST_PAUSE.min(retry.longest_pause);
    let mut pause = first;
    let mut said = String::new();
    // Who was at the address.
    let mut peer: Option<BrokerId> = None;
    loop {
        // Where there is a link to it by now, another connection would take that over,
        // whose end would have this one opened again, and so on.
        let mut waits = peer.as_ref().is_some_and(|peer| port.is_linked(peer));
        if !waits {
            match connect(neighbour, introduction) {
                Ok((connection, open, unread, limits)) => {
                    peer = Some(open.id.clone());
                    let dialled = Dialled {
                        address: neighbour.address.clone(),
                        peer: open,
                        connection,
                        unread,
                        limits,
                    };
                    if keeper.send(Input::Dialled(Box::new(dialled))).is_err() {
                        return;
                    }
                    said.clear();
                    waits = true;
                }
                Err(why) => {
                    peer = why
                        .strip_prefix(REFUSED)
                        .and_then(|why| BrokerId::new(why.strip_prefix(LINKED_ALREADY)?));
                    if let Some(peer) = peer.clone() {
                        let address = neighbour.address.clone();
                        said.clear();
                        if keeper.send(Input::There { address, peer }).is_err() {
                            return;
                        }
                    } else if why != said {
                        tracing::info!("mesh: {} is not connected: {why}", neighbour.address);
                        said.clone_from(&why);
                        let address = neighbour.address.clone();
                        if keeper.send(Input::Missed { address, why }).is_err() {
                            return;
                        }
                    }
                }
            }
        }
        if waits {
            let since = Instant::now();
            if woken.recv().is_err() {
                return;
            }
            if since.elapsed() > retry.longest_pause {
                pause = first;
            }
        }
        match woken.recv_timeout(pause) {
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
        }
        pause = retry.next(pause);
    }
}

type Connected = (Outgoing, Open, Vec<u8>, LinkLimits);

/// Connects, and does the TLS handshake if there is one.
fn open(neighbour: &Neighbour, introduction: &Introduction) -> Result<Outgoing, String> {
    let text = |error: io::Error| error.to_string();
    let mut stream = Err("the name has no address".to_owned());
    for address in neighbour.target().to_socket_addrs().map_err(text)? {
        stream = TcpStream::connect_timeout(&address, introduction.retry.patience).map_err(text);
        if stream.is_ok() {
            break;
        }
    }
    let stream = stream?;
    let address = stream.peer_addr().map_err(text)?.ip();
    if introduction.exposes_password(neighbour, address) {
        return Err(CLEAR_PASSWORD.into());
    }
    stream.set_nodelay(true).map_err(text)?;
    let patience = introduction.retry.patience;
    stream.set_read_timeout(Some(patience)).map_err(text)?;
    match introduction.tls.as_ref().filter(|_| neighbour.is_tls()) {
        None => Ok(Outgoing::plain(stream)),
        Some(tls) => {
            let wrong = |error| format!("the TLS handshake failed: {error}");
            Outgoing::tls(stream, neighbour.host(), tls).map_err(wrong)
        }
    }
}

fn connect(neighbour: &Neighbour, introduction: &Introduction) -> Result<Connected, String> {
    let text = |error: io::Error| error.to_string();
    let patience = introduction.retry.patience;
    let end = Instant::now() + patience;
    let mut stream = open(neighbour, introduction)?;
    let mut out = Vec::new();
    put_connect(introduction, &mut out).ok_or("CONNECT cannot be encoded")?;
    stream
        .write_all(&out)
        .and_then(|()| stream.flush())
        .map_err(text)?;

    let mut bytes = Vec::new();
    let mut limits = None;
    let mut buffer = [0; 4096];
    loop {
        while let Ok(Split::Frame(frame)) = split(&bytes, FIRST_PACKETS) {
            let length = frame.bytes.len();
            let packet = Packet::decode(frame, Version::V5).map_err(|e| e.to_string())?;
            match (packet, limits) {
                (Packet::ConnAck(answer), None) => {
                    if answer.reason.is_error() {
                        let why = answer.properties.text(PropertyId::ReasonString);
                        let reason = answer.reason.name();
                        return Err(format!("{REFUSED}{}", why.unwrap_or(reason)));
                    }
                    let number = |id| answer.properties.number(id);
                    limits = Some(LinkLimits {
                        receive_maximum: number(PropertyId::ReceiveMaximum)
                            .map_or(u16::MAX, |max| max as u16),
                        max_packet: number(PropertyId::MaximumPacketSize).unwrap_or(u32::MAX),
                        topic_aliases: number(PropertyId::TopicAliasMaximum)
                            .map_or(0, |max| max as u16),
                    });
                    let open = Message::Open(introduction.open.clone()).encode();
                    let mut out = Vec::new();
                    let publish = Publish {
                        dup: false,
                        qos: QoS::AtMostOnce,
                        retain: false,
                        topic: TOPIC,
                        packet_id: 0,
                        properties: Properties::default(),
                        payload: &open,
                    };
                    Packet::Publish(publish)
                        .encode(Version::V5, &mut out)
                        .map_err(|e| e.to_string())?;
                    stream.write_all(&out).map_err(text)?;
                }
                (Packet::Publish(publish), Some(limits)) if publish.topic == TOPIC => {
                    let Ok(Message::Open(peer)) = Message::decode(publish.payload) else {
                        return Err("its first words are not understood".into());
                    };
                    let own = &introduction.open.id;
                    if peer.id == *own {
                        return Err(format!(
                            "there is this broker itself, or another one that is called {own}, too: give \
                             each its own name (mesh.id)"
                        ));
                    }
                    stream.socket().set_read_timeout(None).map_err(text)?;
                    return Ok((stream, peer, bytes.split_off(length), limits));
                }
                (Packet::Disconnect(farewell), _) => {
                    let why = farewell.properties.text(PropertyId::ReasonString);
                    let reason = farewell.reason.name();
                    return Err(format!("{REFUSED}{}", why.unwrap_or(reason)));
                }
                _ => return Err(NO_BROKER_OF_A_MESH.into()),
            }
            bytes.drain(..length);
        }
        if Instant::now() > end || bytes.len() > FIRST_PACKETS as usize {
            return Err(NO_BROKER_OF_A_MESH.into());
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Err("it closed the connection".into()),
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            // As long as its patience.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(match limits {
                    Some(_) => NO_BROKER_OF_A_MESH.into(),
                    None => format!("it does not answer within {} s", patience.as_secs()),
                });
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn put_connect(introduction: &Introduction, out: &mut Vec<u8>) -> Option<()> {
    let limits = &introduction.limits;
    let mut properties = PropertyBuf::new();
    for (property, value) in [
        (PropertyId::SessionExpiryInterval, u32::MAX),
        (
            PropertyId::ReceiveMaximum,
            u32::from(limits.receive_maximum),
        ),
        (PropertyId::MaximumPacketSize, limits.max_packet),
        (
            PropertyId::TopicAliasMaximum,
            u32::from(limits.topic_aliases),
        ),
    ] {
        properties.push_number(property, value);
    }
    let connect = Connect {
        version: Version::V5,
        clean_start: false,
        keep_alive: 0,
        properties: properties.as_properties(),
        client_id: &format!("{LINK_PREFIX}{}", introduction.open.id),
        will: None,
        username: introduction.user.as_deref(),
        password: introduction.password.as_deref(),
    };
    Packet::Connect(connect).encode(Version::V5, out).ok()
}

#[cfg(test)]
mod tests {
    use std::iter::successors;

    use punctual_broker::Nanos;
    use punctual_mesh::{Node, Settings};

    use super::*;

    #[test]
    fn a_link_is_tried_again_before_half_of_heal_is_over() {
        for heal in [1, 2, 5, 10, 60, 86_400].map(Duration::from_secs) {
            let retry = Retry::new(heal);
            let pauses = successors(Some(FIRST_PAUSE), |pause| Some(retry.next(*pause)));
            let longest = pauses.take(40).max().unwrap();
            assert!(longest < heal / 2 && longest <= LONGEST_PAUSE, "{heal:?}");
            // An attempt takes a second at least.
            let takes = retry.patience.min(heal / 5);
            assert!(longest + takes < heal / 2, "{heal:?}: {retry:?}");
        }
    }

    #[test]
    fn a_password_leaves_the_machine_in_clear_only_if_that_is_allowed() {
        let id = BrokerId::new("a").unwrap();
        let node = Node::new(Settings::new(id, 1, 1), Nanos(0));
        let mut introduction = Introduction {
            open: node.open(true),
            user: Some("a".into()),
            password: Some(b"secret".to_vec()),
            clear_password: false,
            limits: LinkLimits {
                receive_maximum: 1,
                max_packet: 1,
                topic_aliases: 0,
            },
            tls: None,
            retry: Retry::new(Duration::from_secs(10)),
        };
        let plain: Neighbour = "b:1883".parse().unwrap();
        let tls: Neighbour = "tls://b:8883".parse().unwrap();
        let elsewhere = "10.0.0.1".parse().unwrap();
        for near in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(
                !introduction.exposes_password(&plain, near.parse().unwrap()),
                "{near}"
            );
        }
        assert!(introduction.exposes_password(&plain, elsewhere));
        assert!(!introduction.exposes_password(&tls, elsewhere));
        introduction.clear_password = true;
        assert!(!introduction.exposes_password(&plain, elsewhere));
        introduction.clear_password = false;
        introduction.password = None;
        assert!(!introduction.exposes_password(&plain, elsewhere));
    }
}
