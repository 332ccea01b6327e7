//! Sees messages arrive: one thread, a capture in each host of interest.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::stamp::Stamp;
use crate::packets::{Capture, Which};
use crate::sys::{Epoll, Interest};
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Longest wait between looks at whether to end, ns.
const LOOK: u64 = 50_000_000;

/// Room for a frame.
const FRAME: usize = 2048;

/// Bytes before a segment's payload in a frame as Linux counts it, with TCP's time stamps, and where
/// the source's address stands in it.
const HEADERS: u64 = 14 + 20 + 32;
const SOURCE_AT: usize = 14 + 12;

/// Shortest packet that can hold a stamp, headers included.
const SHORTEST: usize = 14 + 20 + 8 + super::stamp::LENGTH;

/// Index of the loopback device: a namespace has it from the start.
const LOOPBACK: u32 = 1;

/// A message that arrived at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) host: usize,
    pub(super) stamp: Stamp,
    /// The kernel's time of the frame that it was whole with, ns on `CLOCK_REALTIME`.
    pub(super) time: u64,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// The first arrival of each message at each host.
    pub(super) arrivals: Vec<Arrival>,
    /// Messages that arrived again, because TCP repeated them.
    pub(super) repeated: Vec<Arrival>,
    /// Packets that were not looked at in time.
    pub(super) missed: u64,
    /// Payload, bytes, by host and source, of packets without a message.
    pub(super) unstamped: BTreeMap<(usize, Ipv4Addr), u64>,
}

/// The source's address of an IPv4 packet.
fn source(packet: &[u8; FRAME]) -> Ipv4Addr {
    let address = packet[SOURCE_AT..].first_chunk::<4>();
    address.map_or(Ipv4Addr::UNSPECIFIED, |bytes| Ipv4Addr::from(*bytes))
}

/// Captures at hosts.
pub(super) struct Observer {
    captures: Vec<(usize, Capture)>,
    epoll: Epoll,
}

impl Observer {
    /// Begins to see what arrives at these hosts.
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

    /// Looks until told to end.
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
                    // What goes on from one program to another of the host has arrived before.
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
