//! Connections like those of TCP: payloads arrive in the order of sending, each end closes its
//! side, and a broken network may notify neither end.
//!
//! A [`Connection`] is the state; [`crate::VirtualNetwork`] schedules arrivals and knows the parties
//! at the ends.

use std::collections::BTreeMap;

use punctual_model::{Nanos, Rng};

/// A connection with the ends 0 and 1.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// Time of opening.
    pub(crate) opened: Nanos,
    /// For each end, whether it has closed the connection or has been notified that its peer has.
    closed: [bool; 2],
    /// The network is broken: payloads are lost.
    is_silent: bool,
    /// For each end, when the last payload in transit to it arrives.
    last: [Nanos; 2],
}

impl Connection {
    /// A connection that is opened at `now`.
    pub(crate) fn new(now: Nanos) -> Self {
        Self {
            opened: now,
            closed: [false; 2],
            is_silent: false,
            last: [now; 2],
        }
    }

    /// The arrival time of a payload from the end `from` that takes until `at`, or until earlier
    /// payloads have arrived. `None` if this end has closed the connection. A payload that arrives over a
    /// broken network is lost ([`Self::is_live`]).
    pub(crate) fn send(&mut self, from: usize, at: Nanos) -> Option<Nanos> {
        let last = &mut self.last[1 - from];
        if self.closed[from] {
            return None;
        }
        *last = at.max(*last);
        Some(*last)
    }

    /// Closes the end `side`, by itself or because its peer has closed; returns whether it was open.
    pub(crate) fn close(&mut self, side: usize) -> bool {
        !std::mem::replace(&mut self.closed[side], true)
    }

    /// The time at which the peer of `side`, which closes now, is notified: after the payloads in transit.
    /// `None` if the network is broken.
    pub(crate) fn end(&self, side: usize, now: Nanos) -> Option<Nanos> {
        (!self.is_silent).then(|| now.max(self.last[1 - side]))
    }

    /// Whether the end `side` has not closed the connection.
    pub(crate) fn is_open(&self, side: usize) -> bool {
        !self.closed[side]
    }

    /// Whether the end `side` has not closed the connection, and the network is not broken.
    pub(crate) fn is_live(&self, side: usize) -> bool {
        !self.closed[side] && !self.is_silent
    }

    /// Breaks the network: payloads are lost from now on, and the ends get no notice.
    pub(crate) fn silence(&mut self) {
        self.is_silent = true;
    }

    /// Whether the network is broken.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }
}

/// A link of a network of nodes, over which connections can be opened.
#[derive(Debug, Clone)]
pub struct Edge {
    /// The nodes at the ends; the first one opens connections.
    pub ends: [usize; 2],
    /// Delay from one node to the other.
    pub delay: Nanos,
    /// No connection can be opened, and existing ones are broken.
    pub is_cut: bool,
}

impl Edge {
    /// An edge that is not cut.
    pub fn new(ends: [usize; 2], delay: Nanos) -> Self {
        Self {
            ends,
            delay,
            is_cut: false,
        }
    }

    /// Edges that connect all of `nodes` as a tree, and fewer than `more` others; delays are 0.1 to 5 ms.
    pub fn graph(rng: &mut Rng, nodes: usize, more: usize) -> Vec<Self> {
        let mut pairs = BTreeMap::new();
        for node in 1..nodes {
            pairs.insert([rng.index(node), node], rng.chance(50));
        }
        for _ in 0..rng.index(more) {
            let (a, b) = (rng.index(nodes), rng.index(nodes));
            if a != b {
                pairs.insert([a.min(b), a.max(b)], rng.chance(50));
            }
        }
        let edges = pairs.into_iter().map(|([a, b], is_turned)| {
            let ends = if is_turned { [b, a] } else { [a, b] };
            Self::new(ends, Nanos(rng.within(100_000..=5_000_000)))
        });
        edges.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overtakes_and_the_end_comes_last() {
        let mut connection = Connection::new(Nanos(0));
        assert_eq!(connection.send(0, Nanos(5)), Some(Nanos(5)));
        assert_eq!(connection.send(0, Nanos(3)), Some(Nanos(5)));
        // The other direction has an order of its own.
        assert_eq!(connection.send(1, Nanos(3)), Some(Nanos(3)));
        assert!(connection.close(0) && !connection.close(0));
        assert_eq!(connection.end(0, Nanos(2)), Some(Nanos(5)));
        assert_eq!(connection.send(0, Nanos(9)), None);
        // What is on its way arrives, until the other end hears of the end.
        assert!(connection.is_live(1) && !connection.is_live(0));
        connection.silence();
        assert!(connection.is_open(1) && !connection.is_live(1));
        assert_eq!(connection.end(1, Nanos(9)), None);
    }
}
