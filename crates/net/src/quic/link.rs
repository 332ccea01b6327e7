//! One QUIC connection that carries MQTT: what happens on it, what is read from
//! it, and what it is handed to send.
//!
//! The first bidirectional stream that the client opens carries MQTT as TCP
//! would. If the client has asked for it (ALPN `mqtt-datagram`), messages with
//! QoS 0 that fit travel in DATAGRAM frames, in both directions. What the broker
//! has chosen to send is handed over only when the network is about to take it:
//! no more than [`AHEAD`](super::settings::AHEAD) bytes wait in QUIC.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use punctual_broker::{Class, ConnId, Nanos};
use punctual_codec::{Connect, PacketType, Split, Version, split};
use punctual_udp::may_be_lost;
use quinn_proto::crypto::rustls::HandshakeData;
use quinn_proto::{
    Connection, ConnectionError, Dir, Event, SendDatagramError, StreamEvent, StreamId, VarInt,
};
use rustls_pki_types::CertificateDer;

use super::QuicCounters;
use super::proof::may_send;
use super::settings::ALPN_DATAGRAM;
use super::unsent::{SentDatagram, UnsentBound};
use crate::layer::PeerInfo;
use crate::policy::{Identity, ListenerPolicy};

/// Application error codes, of CONNECTION_CLOSE and of streams.
pub(super) const DONE: VarInt = VarInt::from_u32(0);

/// A connection of a shard.
pub(crate) struct Link {
    /// Number of its listener among all.
    pub(super) listener: u16,
    pub(super) connection: Connection,
    /// Once the broker knows it, and until it has forgotten it.
    pub(super) conn: Option<ConnId>,
    /// How it is treated.
    pub(super) policy: Option<Arc<ListenerPolicy>>,
    stream: Option<StreamId>,
    /// Whether messages with QoS 0 may travel in DATAGRAM frames.
    datagrams: bool,
    /// What the client has said in CONNECT.
    version: Option<Version>,
    /// Bytes of a packet of which a part is on the stream already.
    rest: usize,
    /// Bytes of the stream that the broker has not consumed.
    pub(super) unread: Vec<u8>,
    /// Messages of a datagram that the broker has not consumed.
    pub(super) held: Bytes,
    /// The broker does not want to read.
    pub(super) paused: bool,
    /// The broker has taken something from the stream.
    pub(super) spoke: bool,
    /// The client has ended the stream.
    pub(super) ended: bool,
    remote: SocketAddr,
    /// The class that its datagrams are marked with.
    pub(super) class: Class,
    pub(super) unsent: UnsentBound,
    /// When its timer is set to.
    pub(super) armed: Nanos,
    pub(super) closing: Option<Closing>,
    /// Counts as a handshake of an address that nothing proves.
    unproven: Option<UnprovenGuard>,
    /// Until it is set, or the handshake complete, its address is sent little.
    proven: Option<Arc<AtomicBool>>,
    /// In the list of links to handle.
    pub(super) touched: bool,
    /// In the list of links to send for.
    pub(super) ready: bool,
    established: bool,
    /// Nothing comes or goes any more.
    pub(super) drained: bool,
}

/// The broker has forgotten the connection; its last bytes are on their way.
#[derive(Debug)]
pub(super) struct Closing {
    tail: Vec<u8>,
    sent: usize,
    finished: bool,
    /// Given up then.
    pub(super) until: Nanos,
}

/// Counted as long as it lives.
#[derive(Debug)]
pub(super) struct UnprovenGuard(Arc<AtomicUsize>);

impl UnprovenGuard {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for UnprovenGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What has happened on a connection.
#[derive(Debug, Default)]
pub(super) struct LinkEvents {
    /// The handshake is complete.
    pub(super) established: bool,
    /// The client has another address now.
    pub(super) moved: Option<SocketAddr>,
    /// The connection has ended, and why.
    pub(super) lost: Option<String>,
}

/// What reading has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// There was nothing more.
    All,
    /// There may be more.
    More,
    /// The client has ended the stream.
    End,
}

impl Link {
    pub(super) fn new(
        listener: u16,
        connection: Connection,
        policy: Option<Arc<ListenerPolicy>>,
        unproven: Option<UnprovenGuard>,
    ) -> Self {
        Self {
            listener,
            remote: connection.remote_address(),
            connection,
            conn: None,
            policy,
            stream: None,
            datagrams: false,
            version: None,
            rest: 0,
            unread: Vec::new(),
            held: Bytes::new(),
            paused: false,
            spoke: false,
            ended: false,
            class: Class::Normal,
            unsent: UnsentBound::default(),
            armed: Nanos::MAX,
            closing: None,
            unproven,
            proven: None,
            touched: false,
            ready: false,
            established: false,
            drained: false,
        }
    }

    /// Sends its address little until that is `proven`.
    pub(super) fn limit(&mut self, proven: Arc<AtomicBool>) {
        self.proven = Some(proven);
    }

    /// Takes note of what has happened.
    pub(super) fn happened(&mut self, now: Instant, counters: &QuicCounters) -> LinkEvents {
        let mut happened = LinkEvents::default();
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => {
                    self.established = true;
                    self.unproven = None;
                    self.proven = None;
                    self.datagrams = self.wants_datagrams();
                    happened.established = true;
                    super::options::count(&counters.connected, 1);
                }
                Event::ConnectionLost { reason } => {
                    if !self.established {
                        self.unproven = None;
                        super::options::count(&counters.handshakes_failed, 1);
                    }
                    happened.lost = Some(explain(&reason));
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) if self.stream.is_none() => {
                    self.stream = self.connection.streams().accept(Dir::Bi);
                }
                Event::Stream(StreamEvent::Finished { .. } | StreamEvent::Stopped { .. })
                    if self.closing.is_some() =>
                {
                    self.connection.close(now, DONE, Bytes::new());
                }
                Event::Stream(StreamEvent::Stopped { .. }) => {
                    happened.lost = Some("connection closed by peer".into());
                }
                _ => {}
            }
        }
        let remote = self.connection.remote_address();
        if remote != self.remote {
            self.remote = remote;
            happened.moved = Some(remote);
        }
        happened
    }

    fn wants_datagrams(&mut self) -> bool {
        let data = self.connection.crypto_session().handshake_data();
        let data = data.and_then(|data| data.downcast::<HandshakeData>().ok());
        data.is_some_and(|data| data.protocol.as_deref() == Some(ALPN_DATAGRAM))
            && self.connection.datagrams().max_size().is_some()
    }

    /// The client's certificate, and those that it sent with it; empty if it has none.
    pub(super) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        let chain = self.connection.crypto_session().peer_identity();
        let chain = chain.and_then(|chain| chain.downcast().ok());
        chain.map_or_else(Vec::new, |chain| *chain)
    }

    /// Who the client's certificate says it is.
    pub(super) fn name(&self, chain: &[CertificateDer<'_>]) -> Option<String> {
        let identity = self
            .policy
            .as_ref()
            .map_or(Identity::None, |it| it.identity);
        if identity == Identity::None {
            return None;
        }
        let peer = PeerInfo::of_certificate(chain.first()?);
        match identity {
            Identity::None => None,
            Identity::CommonName => peer.common_name,
            Identity::Subject => peer.subject,
        }
    }

    /// The messages of the next datagram that may be given to the broker.
    pub(super) fn datagram(&mut self, counters: &QuicCounters) -> Option<Bytes> {
        if !self.held.is_empty() {
            return Some(std::mem::take(&mut self.held));
        }
        // What comes before CONNECT was accepted is kept for then, by QUIC.
        if !self.spoke {
            return None;
        }
        loop {
            let datagram = self.connection.datagrams().recv()?;
            if self.datagrams && punctual_udp::are_messages(&datagram) {
                super::options::count(&counters.messages_received, 1);
                return Some(datagram);
            }
            super::options::count(&counters.malformed, 1);
        }
    }

    /// Appends what has come on the stream to `buffer`, up to about `max` bytes.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>, max: usize) -> Read {
        let Some(stream) = self.stream else {
            return Read::All;
        };
        let mut stream = self.connection.recv_stream(stream);
        // Closed before, and the end was reported then.
        let Ok(mut chunks) = stream.read(true) else {
            return Read::All;
        };
        let outcome = loop {
            if buffer.len() >= max {
                break Read::More;
            }
            match chunks.next(max - buffer.len()) {
                Ok(Some(chunk)) => buffer.extend_from_slice(&chunk.bytes),
                Ok(None) => break Read::End,
                Err(quinn_proto::ReadError::Blocked) => break Read::All,
                Err(quinn_proto::ReadError::Reset(_)) => break Read::End,
            }
        };
        // Whoever has read is about to send.
        let _ = chunks.finalize();
        outcome
    }

    /// Notes the version of the protocol in CONNECT, the first packet.
    pub(super) fn sniff(&mut self, stream: &[u8]) {
        if self.version.is_none()
            && let Ok(Split::Frame(frame)) = split(stream, u32::MAX)
            && frame.kind == PacketType::Connect
            && let Ok(connect) = Connect::decode(frame.body)
        {
            self.version = Some(connect.version);
        }
    }

    /// Whether more may be handed over.
    pub(super) fn has_room(&self) -> bool {
        self.stream.is_some() && !self.connection.is_closed() && self.unsent.room() > 0
    }

    /// Hands over what the broker has chosen, in `slices`; returns how many bytes
    /// of it.
    pub(super) fn hand_over(&mut self, slices: &[IoSlice<'_>], counters: &QuicCounters) -> usize {
        let mut left = Pieces(slices, 0);
        let Some(version) = self.version.filter(|_| self.datagrams) else {
            return self.write_all(&mut left);
        };
        let mut taken = 0;
        let mut packet = Vec::new();
        loop {
            if self.rest == 0 {
                let Some(total) = left.packet() else {
                    // Where packets begin must not be guessed.
                    self.datagrams &= left.first().is_empty();
                    return taken + self.write_all(&mut left);
                };
                match self.send_datagram(&left, total, version, &mut packet) {
                    Sent::Datagram => {
                        super::options::count(&counters.messages_sent, 1);
                        left.skip(total);
                        taken += total;
                        continue;
                    }
                    Sent::Blocked => return taken,
                    Sent::Stream => self.rest = total,
                }
            }
            let piece = left.first();
            let wanted = piece.len().min(self.rest);
            let n = self.write(&piece[..wanted]);
            self.rest -= n;
            left.skip(n);
            taken += n;
            if n < wanted || wanted == 0 {
                return taken;
            }
        }
    }

    fn write_all(&mut self, left: &mut Pieces<'_>) -> usize {
        let mut taken = 0;
        loop {
            let piece = left.first();
            let n = self.write(piece);
            left.skip(n);
            taken += n;
            if n < piece.len() || n == 0 {
                return taken;
            }
        }
    }

    fn send_datagram(
        &mut self,
        left: &Pieces<'_>,
        total: usize,
        version: Version,
        packet: &mut Vec<u8>,
    ) -> Sent {
        let mut datagrams = self.connection.datagrams();
        if datagrams.max_size().is_none_or(|most| total > most) || !left.gather(total, packet) {
            return Sent::Stream;
        }
        match split(packet, u32::MAX) {
            Ok(Split::Frame(frame)) if may_be_lost(&frame, version) => {}
            _ => return Sent::Stream,
        }
        match datagrams.send(Bytes::copy_from_slice(packet), false) {
            Ok(()) => Sent::Datagram,
            Err(SendDatagramError::Blocked(_)) => Sent::Blocked,
            Err(_) => Sent::Stream,
        }
    }

    /// Writes to the stream what there is room for.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let room = self.unsent.room();
        let Some(stream) = self.stream else {
            return 0;
        };
        let bytes = &bytes[..bytes.len().min(room)];
        if bytes.is_empty() {
            return 0;
        }
        // What the client does not take, or does not want any more, stays; that
        // it has stopped reading is an event.
        let written = self.connection.send_stream(stream).write(bytes);
        let written = written.unwrap_or(0);
        self.unsent.handed(written);
        written
    }

    /// The broker has forgotten it: `tail` is the last that it has to say.
    pub(super) fn close(&mut self, tail: Vec<u8>, until: Nanos, now: Instant) {
        self.conn = None;
        self.unproven = None;
        self.unread = Vec::new();
        self.held = Bytes::new();
        if self.stream.is_none() || self.connection.is_closed() {
            self.connection.close(now, DONE, Bytes::new());
        }
        self.closing = Some(Closing {
            tail,
            sent: 0,
            finished: false,
            until,
        });
    }

    /// Sends on with the last bytes; whether it handed some over.
    pub(super) fn close_on(&mut self, now: Instant) -> bool {
        let Some(mut closing) = self.closing.take() else {
            return false;
        };
        let before = closing.sent;
        if !self.connection.is_closed() {
            let written = self.write(&closing.tail[closing.sent..]);
            closing.sent += written;
            if closing.sent == closing.tail.len() && !closing.finished {
                closing.finished = true;
                let stream = self
                    .stream
                    .map(|stream| self.connection.send_stream(stream));
                if stream.is_none_or(|mut stream| stream.finish().is_err()) {
                    self.connection.close(now, DONE, Bytes::new());
                }
            }
        }
        let handed = closing.sent > before;
        self.closing = Some(closing);
        handed
    }

    /// Makes the next datagram to send, in `data`.
    pub(super) fn transmit(
        &mut self,
        now: Instant,
        data: &mut Vec<u8>,
    ) -> Option<quinn_proto::Transmit> {
        let stats = self.connection.stats();
        let is_proven = |it: &Arc<AtomicBool>| it.load(Ordering::Relaxed);
        if !self.proven.as_ref().is_none_or(is_proven) && !may_send(&stats) {
            return None;
        }
        let before = stats.frame_tx;
        let transmit = self.connection.poll_transmit(now, 1, data)?;
        let after = self.connection.stats();
        self.unsent.made(SentDatagram {
            size: transmit.size,
            stream_frames: after.frame_tx.stream - before.stream,
            acks: after.frame_tx.acks > before.acks,
            lost: after.path.lost_packets,
        });
        Some(transmit)
    }
}

/// How a packet has left.
enum Sent {
    Datagram,
    /// It has to wait.
    Blocked,
    /// It has to go by the stream.
    Stream,
}

/// The end of a connection in words.
fn explain(reason: &ConnectionError) -> String {
    match reason {
        ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) => {
            "connection closed by peer".into()
        }
        ConnectionError::TimedOut => "the peer does not answer".into(),
        other => other.to_string(),
    }
}

/// Bytes in several pieces, without those before a position.
struct Pieces<'a>(&'a [IoSlice<'a>], usize);

impl<'a> Pieces<'a> {
    /// The rest of the first piece that is not empty.
    fn first(&self) -> &'a [u8] {
        let mut before = self.1;
        for slice in self.0 {
            if before < slice.len() {
                return &slice[before..];
            }
            before -= slice.len();
        }
        &[]
    }

    fn skip(&mut self, n: usize) {
        self.1 += n;
    }

    /// Copies the first `n` bytes to `out`; false if there are fewer.
    fn gather(&self, n: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        let mut before = self.1;
        for slice in self.0 {
            if before >= slice.len() {
                before -= slice.len();
                continue;
            }
            let piece = &slice[before..];
            before = 0;
            out.extend_from_slice(&piece[..piece.len().min(n - out.len())]);
            if out.len() == n {
                return true;
            }
        }
        out.len() == n
    }

    /// Bytes of the packet that begins here, if its header is there. Packets of
    /// the broker are well-formed.
    fn packet(&self) -> Option<usize> {
        let mut header = Vec::with_capacity(5);
        self.gather(5, &mut header);
        match split(&header, u32::MAX) {
            Ok(Split::Frame(frame)) => Some(frame.bytes.len()),
            Ok(Split::Incomplete { total }) => total,
            Err(_) => None,
        }
    }
}

/// Takes from the front of a datagram what the broker has consumed.
pub(super) fn rest_of(mut datagram: Bytes, consumed: usize) -> Bytes {
    datagram.advance(consumed.min(datagram.len()));
    datagram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_found_across_pieces() {
        let bytes = [&[0x30, 3][..], &[0, 1, b'a', 0xC0], &[0]];
        let slices: Vec<_> = bytes.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut pieces = Pieces(&slices, 0);
        assert_eq!(pieces.packet(), Some(5));
        let mut packet = Vec::new();
        assert!(pieces.gather(5, &mut packet));
        assert_eq!(packet, [0x30, 3, 0, 1, b'a']);
        assert!(!pieces.gather(8, &mut packet));
        pieces.skip(5);
        assert_eq!((pieces.packet(), pieces.first()), (Some(2), &[0xC0][..]));
        pieces.skip(2);
        assert_eq!((pieces.packet(), pieces.first()), (None, &[][..]));
    }

    #[test]
    fn a_packet_that_is_not_there_as_a_whole_has_its_length() {
        let slices = [IoSlice::new(&[0x32, 0x80, 0x02, 0, 1])];
        assert_eq!(Pieces(&slices, 0).packet(), Some(259));
    }

    #[test]
    fn handshakes_of_unproven_addresses_are_counted_while_they_last() {
        let count = Arc::new(AtomicUsize::new(0));
        let one = UnprovenGuard::new(&count);
        let two = UnprovenGuard::new(&count);
        drop(one);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop(two);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}
