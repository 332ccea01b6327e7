//! Captures arriving messages: one thread with a capture on each observed host.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::stamp::Stamp;
use crate::packets::{Capture, Which};
use crate::sys::{Epoll, Interest};
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Longest interval of checks whether to end, ns.
const LOOK: u64 = 50_000_000;

/// Size of the buffer for a frame, bytes.
const FRAME: usize = 2048;

/// Bytes of a frame before the TCP payload as Linux counts frames, with TCP time stamps, and the
/// offset of the IPv4 source address.
const HEADERS: u64 = 14 + 20 + 32;
const SOURCE_AT: usize = 14 + 12;

/// Length of the shortest packet that can contain a stamp, including headers, bytes.
const SHORTEST: usize = 14 + 20 + 8 + super::stamp::LENGTH;

/// Interface index of the loopback device, the first device of every namespace.
const LOOPBACK: u32 = 1;

/// The arrival of a message at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) host: usize,
    pub(super) stamp: Stamp,
    /// Kernel time stamp of the frame that completed the message, ns on `CLOCK_REALTIME`.
    pub(super) time: u64,
}

/// The captured messages.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// The first arrival of each message at each host.
    pub(super) arrivals: Vec<Arrival>,
    /// Further arrivals of messages, which TCP retransmitted.
    pub(super) repeated: Vec<Arrival>,
    /// Packets lost because the capture buffer was full.
    pub(super) missed: u64,
    /// Payload bytes of packets without a stamp, by receiving host and source address.
    pub(super) unstamped: BTreeMap<(usize, Ipv4Addr), u64>,
}

/// The source address of an IPv4 packet.
fn source(packet: &[u8; FRAME]) -> Ipv4Addr {
    let address = packet[SOURCE_AT..].first_chunk::<4>();
    address.map_or(Ipv4Addr::UNSPECIFIED, |bytes| Ipv4Addr::from(*bytes))
}

/// Captures on several hosts.
pub(super) struct Observer {
    captures: Vec<(usize, Capture)>,
    epoll: Epoll,
}

impl Observer {
    /// Starts captures on these hosts.
    pub(super) fn new<'a>(hosts: impl IntoIterator<Item = (usize, &'a Namespace)>) -> Result<Self> {
        let epoll = Epoll::new().map_err(Error::io("cannot create an epoll instance"))?;
        let mut captures = Vec::new();
        for (host, namespace) in hosts {
            let capture = Capture::new(namespace, Which::Incoming)?;
            epoll
                .add(capture.fd(), captures.len() as u32, Interest::READ)
                .map_err(Error::io("cannot watch a capture"))?;
            captures.push((host, capture));
        }
        Ok(Self { captures, epoll })
    }

    /// Captures until `end` is set.
    pub(super) fn run(mut self, end: &AtomicBool) -> Result<Observed> {
        let mut observed = Observed::default();
        let mut known: HashMap<(usize, u32), HashSet<u32>> = HashMap::new();
        let mut buffer = [0; FRAME];
        loop {
            let ended = end.load(Ordering::Acquire);
            let ready = self
                .epoll
                .wait(Some(if ended { 0 } else { LOOK }))
                .map_err(Error::io("cannot wait for packets"))?;
            for index in 0..ready {
                let token = self.epoll.ready(index).token;
                let (host, capture) = &self.captures[token as usize];
                while let Some(seen) = capture
                    .next(&mut buffer)
                    .map_err(Error::io("cannot take a packet"))?
                {
                    // Packets on the loopback device pass between programs of the host and arrived
                    // before.
                    if seen.length < SHORTEST || seen.device == LOOPBACK {
                        continue;
                    }
                    let mut is_stamped = false;
                    for stamp in Stamp::all(&buffer[..seen.length]) {
                        is_stamped = true;
                        let messages = known.entry((*host, stamp.flow)).or_default();
                        let arrival = Arrival {
                            host: *host,
                            stamp,
                            time: seen.time,
                        };
                        match messages.insert(stamp.sequence) {
                            true => observed.arrivals.push(arrival),
                            false => observed.repeated.push(arrival),
                        }
                    }
                    if !is_stamped {
                        let place = (*host, source(&buffer));
                        *observed.unstamped.entry(place).or_default() +=
                            (seen.length as u64).saturating_sub(HEADERS);
                    }
                }
            }
            if ended && ready == 0 {
                break;
            }
        }
        for (_, capture) in &self.captures {
            let missed = capture.missed();
            observed.missed += missed.map_err(Error::io("cannot count packets"))?;
        }
        Ok(observed)
    }
}
