//! The way out of one listener on one shard: datagrams by class, to the sockets
//! that all shards share.
//!
//! No more than [`QUEUE`] datagrams of a class are made before they are sent.
//! Room in the sockets is asked for only while one is full: a UDP socket tells
//! of every datagram that has left, to all who listen.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use punctual_udp::{Path, Transmit};

use super::QuicCounters;
use super::mail::Key;
use super::options::count;
use crate::datagram::{CLASSES, Refused, SendBatch, Sockets};
use crate::transport::TransportKind;

/// Datagrams of one class that are made before they are sent.
pub(super) const QUEUE: usize = 32;
/// Answers of the endpoint that may wait; they may be lost.
const ANSWERS: usize = 256;
/// Buffers that are kept for datagrams.
const SPARE: usize = 64;

pub(super) struct Output {
    sockets: Arc<Sockets>,
    /// Number of its listener.
    at: usize,
    /// This shard reads from the sockets.
    reads: bool,
    outgoing: [VecDeque<Transmit<Path>>; CLASSES],
    blocked: [bool; CLASSES],
    /// Links that have more to send than the sockets take.
    pub(super) waiting: Vec<Key>,
    spare: Vec<Vec<u8>>,
}

impl Output {
    pub(super) fn new(
        sockets: Arc<Sockets>,
        at: usize,
        reads: bool,
        registry: &Registry,
    ) -> io::Result<Self> {
        let output = Self {
            sockets,
            at,
            reads,
            outgoing: Default::default(),
            blocked: [false; CLASSES],
            waiting: Vec::new(),
            spare: Vec::new(),
        };
        if reads {
            for class in 0..CLASSES {
                let fd = output.sockets.of(class).as_raw_fd();
                registry.register(&mut SourceFd(&fd), output.token(class), Interest::READABLE)?;
            }
        }
        Ok(output)
    }

    fn token(&self, class: usize) -> Token {
        TransportKind::Quic.token(self.at << 2 | class)
    }

    pub(super) fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// Whether datagrams of the class may be made.
    pub(super) fn has_room(&self, class: usize) -> bool {
        !self.blocked[class] && self.outgoing[class].len() < QUEUE
    }

    /// Whether there is something to send now.
    pub(super) fn can_send(&self) -> bool {
        let mut classes = self.outgoing.iter().zip(self.blocked);
        classes.any(|(queue, blocked)| !blocked && !queue.is_empty())
    }

    /// An empty buffer for a datagram.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    pub(super) fn push(&mut self, class: usize, transmit: quinn_proto::Transmit, data: Vec<u8>) {
        self.outgoing[class].push_back(Transmit {
            path: Path {
                remote: transmit.destination,
                local: transmit.src_ip,
            },
            class: class as u8,
            data,
        });
    }

    /// What an endpoint answers by itself; may be lost.
    pub(super) fn answer(&mut self, class: usize, transmit: quinn_proto::Transmit, data: Vec<u8>) {
        if self.outgoing[class].len() < ANSWERS {
            self.push(class, transmit, data);
        }
    }

    /// Sends what the sockets take.
    pub(super) fn send(&mut self, batch: &mut SendBatch, on: &Registry, counters: &QuicCounters) {
        for class in 0..CLASSES {
            if self.blocked[class] || self.outgoing[class].is_empty() {
                continue;
            }
            let queue = &mut self.outgoing[class];
            let (spare, mut refused) = (&mut self.spare, Refused::default());
            let before = queue.len();
            let done = |mut buffer: Vec<u8>| {
                if spare.len() < SPARE {
                    buffer.clear();
                    spare.push(buffer);
                }
            };
            let result = self
                .sockets
                .send(class, batch, queue, before, done, &mut refused);
            count(&counters.sent, before - queue.len());
            count(&counters.unsent, refused.count as usize);
            if result.is_err() {
                self.block(class, on);
            }
        }
    }

    fn block(&mut self, class: usize, on: &Registry) {
        self.blocked[class] = true;
        let fd = self.sockets.of(class).as_raw_fd();
        let (mut fd, token) = (SourceFd(&fd), self.token(class));
        // Without a place in epoll nobody would be notified of room: try again soon.
        let watched = match self.reads {
            true => on.reregister(&mut fd, token, Interest::READABLE | Interest::WRITABLE),
            false => on.register(&mut fd, token, Interest::WRITABLE),
        };
        self.blocked[class] = watched.is_ok();
    }

    /// A socket has room again.
    pub(super) fn unblock(&mut self, class: usize, on: &Registry) {
        if !std::mem::take(&mut self.blocked[class]) {
            return;
        }
        let fd = self.sockets.of(class).as_raw_fd();
        let (mut fd, token) = (SourceFd(&fd), self.token(class));
        let _ = match self.reads {
            true => on.reregister(&mut fd, token, Interest::READABLE),
            false => on.deregister(&mut fd),
        };
    }
}
