//! The core of one broker in a simulation: its shards, the connections that they serve, and the
//! requests of the shards to the shell around them.
//!
//! The shell is the simulation: it decides when bytes arrive, when output leaves, and how long
//! commits, hand-overs and the mail between shards take.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::Arc;

use punctual_broker::{
    Config, ConnId, ConnMeta, Directory, Flow, Nanos, Output, RestoredSession, Restorer, Scope,
    Shard, Stats,
};
use punctual_codec::{Split, split};
use punctual_store::Store;

use crate::virtual_network::Socket;

/// A connection as the shards of a broker know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShardConn {
    /// The shard that serves it.
    pub shard: u16,
    /// Its identity there.
    pub id: ConnId,
}

/// The broker's side of a connection.
#[derive(Debug, Default)]
struct BrokerEnd {
    /// The shard that serves the connection, if one does.
    conn: Option<ShardConn>,
    /// Received bytes that the shard has not consumed.
    inbox: Vec<u8>,
    is_paused: bool,
    /// The client has ended the connection: no bytes follow those in the inbox.
    is_ended: bool,
    /// Time when a shard last consumed a packet, or stopped reading.
    last_heard: Option<Nanos>,
    paused_since: Nanos,
    longest_pause: Nanos,
}

/// A request of a shard to its shell.
#[derive(Debug)]
pub enum ShardEffect {
    /// Write bytes to the connection ([`SimulatedBroker::take_output`]).
    Write(Socket),
    /// Close the connection after these last bytes.
    Close(Socket, Vec<u8>),
    /// Read received bytes again ([`SimulatedBroker::read`]).
    Resume(Socket),
    /// Hand the connection over to another shard ([`SimulatedBroker::accept`]).
    HandOver(Socket, u16, Box<ConnMeta>),
    /// An output that does not concern the bytes of a connection.
    Other(Output),
}

/// Result of a shard that read received bytes.
#[derive(Debug)]
pub struct Reading {
    /// The shard.
    pub shard: u16,
    /// The packets that it consumed.
    pub packets: Vec<u8>,
    /// Whether the last of them ended the connection.
    pub is_closed: bool,
    /// Number of publications among them that were refused for lack of room.
    pub refused: u64,
    /// Whether there may be more to read.
    pub has_more: bool,
}

/// The shards of a broker, from its start to its end.
#[derive(Debug)]
pub struct SimulatedBroker {
    directory: Arc<Directory>,
    /// The shards in the order of their numbers.
    pub shards: Vec<Shard>,
    ends: HashMap<Socket, BrokerEnd>,
    sockets: HashMap<ShardConn, Socket>,
    outputs: Vec<Output>,
    dirty: Vec<ConnId>,
}

impl SimulatedBroker {
    /// Starts a broker with as many shards as its directory has, without a store.
    pub fn new(directory: Arc<Directory>, config: &Arc<Config>, now: Nanos) -> Self {
        let shard = |index| Shard::new(directory.clone(), index, config.clone(), now);
        Self {
            shards: (0..directory.shards()).map(shard).collect(),
            directory,
            ends: HashMap::new(),
            sockets: HashMap::new(),
            outputs: Vec::new(),
            dirty: Vec::new(),
        }
    }

    /// Starts a broker with the content of a store. `wall` is the real time at simulated time 0, ns since
    /// 1970.
    ///
    /// # Panics
    /// If the store cannot be read, or has two sessions of one client.
    pub fn restore(
        directory: Arc<Directory>,
        config: &Arc<Config>,
        store: &mut impl Store,
        wall: u64,
        now: Nanos,
    ) -> Self {
        let mut broker = Self::new(directory, config, now);
        let shards = &mut broker.shards;
        let count = broker.directory.shards();
        shards.iter_mut().for_each(|shard| shard.attach_store(wall));
        let mut restorer = Restorer::new(broker.directory.clone(), wall);
        let mut restore = |session: RestoredSession| {
            let home = usize::from(session.home(count));
            let is_new = shards[home].restore(session, now);
            assert!(is_new, "two sessions of one client in the store");
        };
        let recovered = store.recover(&mut |op| {
            restorer.take(&op).into_iter().for_each(&mut restore);
        });
        assert!(recovered.is_ok(), "what is open can be read: {recovered:?}");
        restorer.finish().into_iter().for_each(&mut restore);
        broker
    }

    /// The directory that all shards share.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// A shard by its number.
    pub fn shard(&mut self, shard: u16) -> &mut Shard {
        &mut self.shards[usize::from(shard)]
    }

    /// Earliest time at which a shard has work by itself.
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.shards.iter().filter_map(Shard::next_timeout).min()
    }

    /// A shard begins to serve a connection, or goes on with one that was handed over to it.
    pub fn accept(&mut self, at: Socket, shard: u16, meta: ConnMeta, now: Nanos) {
        let id = self.shard(shard).open(meta, now);
        self.adopt(at, ShardConn { shard, id });
    }

    /// Notes that a shard serves a connection as `conn`.
    pub fn adopt(&mut self, at: Socket, conn: ShardConn) {
        let end = self.ends.entry(at).or_default();
        (end.conn, end.is_paused) = (Some(conn), false);
        self.sockets.insert(conn, at);
    }

    /// The shard that serves a connection, and its identity there; `None` while no shard does.
    pub fn conn(&self, at: Socket) -> Option<ShardConn> {
        self.ends.get(&at)?.conn
    }

    /// Received bytes of a connection that no shard has consumed.
    pub fn inbox(&mut self, at: Socket) -> &mut Vec<u8> {
        &mut self.ends.entry(at).or_default().inbox
    }

    /// Passes received bytes of a connection to the shard that serves it, or only the first packet if
    /// `single` is set. Returns `None` if no shard serves the connection, if the shard has stopped reading,
    /// or if there are no bytes. The caller carries out [`Self::effects`] before it reads again.
    ///
    /// # Panics
    /// If the shard consumes more than there is, or leaves a whole packet although it reads.
    pub fn read(&mut self, at: Socket, single: bool, now: Nanos) -> Option<Reading> {
        let end = self.ends.get_mut(&at)?;
        let conn = end.conn?;
        if end.is_paused || end.inbox.is_empty() {
            return None;
        }
        let offered = match split(&end.inbox, u32::MAX) {
            Ok(Split::Frame(frame)) if single => frame.bytes.len(),
            _ => end.inbox.len(),
        };
        let shard = &mut self.shards[usize::from(conn.shard)];
        let before = refusals(shard.stats());
        let received = shard.receive(conn.id, &end.inbox[..offered], now);
        assert!(received.consumed <= offered, "consumed more than offered");
        let reads = received.flow == Flow::Read;
        assert!(
            !reads || received.needed == 0 || received.needed > offered - received.consumed,
            "a whole packet was left unread"
        );
        // A part of a packet is no sign of life.
        if received.consumed > 0 || !reads {
            end.last_heard = Some(now);
        }
        end.is_paused = received.flow == Flow::Pause;
        end.paused_since = now;
        Some(Reading {
            shard: conn.shard,
            packets: end.inbox.drain(..received.consumed).collect(),
            is_closed: received.flow == Flow::Closed,
            refused: refusals(shard.stats()) - before,
            has_more: received.consumed == offered && reads,
        })
    }

    /// Notes that the client has ended a connection: no bytes follow those in the inbox.
    pub fn end(&mut self, at: Socket) {
        self.ends.entry(at).or_default().is_ended = true;
    }

    /// Whether a connection has ended and the shard that serves it reads, so that it has to be told
    /// ([`Self::lose`]).
    pub fn reads_end(&self, at: Socket) -> bool {
        let end = self.ends.get(&at);
        end.is_some_and(|end| end.is_ended && !end.is_paused && end.conn.is_some())
    }

    /// Tells the shard that serves a connection that it is gone, and returns the shard's number.
    pub fn lose(&mut self, at: Socket, now: Nanos) -> Option<u16> {
        let conn = self.conn(at)?;
        let why = "connection closed by peer";
        self.shard(conn.shard).closed(conn.id, why, now);
        Some(conn.shard)
    }

    /// Takes what a shard asks its shell to do. It may ask for more when that has been done.
    pub fn effects(&mut self, shard: u16, now: Nanos) -> Vec<ShardEffect> {
        let (mut outputs, mut dirty) = (Vec::new(), Vec::new());
        std::mem::swap(&mut outputs, &mut self.outputs);
        std::mem::swap(&mut dirty, &mut self.dirty);
        self.shard(shard).take_outputs(&mut outputs);
        self.shard(shard).take_dirty(&mut dirty);
        self.shard(shard).take_urgent(&mut dirty);
        let mut effects = Vec::new();
        for output in outputs.drain(..) {
            effects.extend(self.effect(shard, output, now));
        }
        for id in dirty.drain(..) {
            let socket = self.sockets.get(&ShardConn { shard, id });
            effects.extend(socket.copied().map(ShardEffect::Write));
        }
        (self.outputs, self.dirty) = (outputs, dirty);
        effects
    }

    fn effect(&mut self, shard: u16, output: Output, now: Nanos) -> Option<ShardEffect> {
        Some(match output {
            Output::Close { conn: id, tail } => {
                let at = self.release(ShardConn { shard, id })?;
                self.inbox(at).clear();
                ShardEffect::Close(at, tail)
            }
            Output::Resume(id) => {
                let at = *self.sockets.get(&ShardConn { shard, id })?;
                let end = self.ends.get_mut(&at)?;
                if std::mem::take(&mut end.is_paused) {
                    end.longest_pause = end.longest_pause.max(now - end.paused_since);
                }
                ShardEffect::Resume(at)
            }
            Output::Handover {
                conn: id,
                shard: to,
                meta,
            } => ShardEffect::HandOver(self.release(ShardConn { shard, id })?, to, meta),
            other => ShardEffect::Other(other),
        })
    }

    /// Notes that a shard does not serve a connection any more; returns the broker's end of it.
    fn release(&mut self, conn: ShardConn) -> Option<Socket> {
        let at = self.sockets.remove(&conn)?;
        self.ends.get_mut(&at)?.conn = None;
        Some(at)
    }

    /// The broker's end of the connection that a shard serves as `conn`.
    pub fn socket(&self, conn: ShardConn) -> Option<Socket> {
        self.sockets.get(&conn).copied()
    }

    /// Takes bytes that wait to be written to a connection. `some` is called with their number and returns how
    /// many of them the network accepts. Returns none if no shard serves the connection.
    pub fn take_output(
        &mut self,
        at: Socket,
        now: Nanos,
        some: impl FnOnce(usize) -> usize,
    ) -> Vec<u8> {
        let Some(conn) = self.conn(at) else {
            return Vec::new();
        };
        take_some(self.shard(conn.shard), conn.id, now, some)
    }

    /// Takes all bytes that wait to be written to a connection.
    pub fn take_all_output(&mut self, at: Socket, now: Nanos) -> Vec<u8> {
        let conn = self.conn(at);
        conn.map_or_else(Vec::new, |conn| {
            take_pending(self.shard(conn.shard), conn.id, now)
        })
    }

    /// Whether the shard that serves a connection has stopped reading from it.
    pub fn is_paused(&self, at: Socket) -> bool {
        self.ends.get(&at).is_some_and(|end| end.is_paused)
    }

    /// When a shard last consumed a packet of a connection, or stopped reading; `None` before the first time.
    pub fn last_heard(&self, at: Socket) -> Option<Nanos> {
        self.ends.get(&at)?.last_heard
    }

    /// The longest time for which shards have stopped reading from a connection without a break.
    pub fn longest_pause(&self, at: Socket, now: Nanos) -> Nanos {
        let Some(end) = self.ends.get(&at) else {
            return Nanos(0);
        };
        match end.is_paused {
            true => end.longest_pause.max(now - end.paused_since),
            false => end.longest_pause,
        }
    }
}

/// Publications refused for lack of room.
fn refusals(stats: &Stats) -> u64 {
    stats.refused_queue_full + stats.refused_retained_full
}

/// Takes bytes that a shard has for a connection. `some` is called with their number and returns how many of
/// them are sent.
fn take_some(
    shard: &mut Shard,
    conn: ConnId,
    now: Nanos,
    some: impl FnOnce(usize) -> usize,
) -> Vec<u8> {
    let mut slices = [IoSlice::new(&[]); 4];
    let filled = shard.pending(conn, Scope::All, now, &mut slices);
    let mut bytes = Vec::new();
    let pending = slices[..filled].iter();
    pending.for_each(|slice| bytes.extend_from_slice(slice));
    if !bytes.is_empty() {
        bytes.truncate(some(bytes.len()));
        shard.sent(conn, bytes.len(), now);
    }
    bytes
}

/// Takes all bytes that a shard has for a connection, as if they were sent at this time.
pub fn take_pending(shard: &mut Shard, conn: ConnId, now: Nanos) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let some = take_some(shard, conn, now, |all| all);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}
