//! Connections as networks have them: what one end sends arrives at the other in its
//! order, each end closes for itself, and a network that breaks may tell nobody.
//!
//! This holds the state of a connection; [`crate::VirtualNetwork`] schedules what arrives, and
//! knows who the ends are.

use std::collections::BTreeMap;

use punctual_model::{Nanos, Rng};

/// A connection with the ends 0 and 1.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// When it was opened.
    pub(crate) opened: Nanos,
    /// Which ends have closed it, or have been told that the other one has.
    closed: [bool; 2],
    /// Nothing arrives any more.
    is_silent: bool,
    /// When the last of what was sent to each end arrives.
    last: [Nanos; 2],
}

impl Connection {
    /// Opened at a time.
    pub(crate) fn new(now: Nanos) -> Self {
        Self {
            opened: now,
            closed: [false; 2],
            is_silent: false,
            last: [now; 2],
        }
    }

    /// When something arrives that the end `from` sends and that would arrive at `at`
    /// by itself: not before what was sent before it. `None` if this end has closed the connection.
    /// What arrives over a broken network is lost there ([`Self::is_live`]).
    pub(crate) fn send(&mut self, from: usize, at: Nanos) -> Option<Nanos> {
        let last = &mut self.last[1 - from];
        if self.closed[from] {
            return None;
        }
        *last = at.max(*last);
        Some(*last)
    }

    /// The end `side` closes the connection, or is told that the other one has; whether that is new.
    pub(crate) fn close(&mut self, side: usize) -> bool {
        !std::mem::replace(&mut self.closed[side], true)
    }

    /// When the other end is told that `side` has closed the connection, which it does now: after what
    /// was sent before. `None` if it is not told.
    pub(crate) fn end(&self, side: usize, now: Nanos) -> Option<Nanos> {
        (!self.is_silent).then(|| now.max(self.last[1 - side]))
    }

    /// Whether the end `side` has not closed the connection.
    pub(crate) fn is_open(&self, side: usize) -> bool {
        !self.closed[side]
    }

    /// Whether the end `side` has not closed the connection and the network is not broken: what it sends
    /// leaves, and what was sent to it arrives.
    pub(crate) fn is_live(&self, side: usize) -> bool {
        !self.closed[side] && !self.is_silent
    }

    /// The network breaks: nothing arrives from now on, and nobody is told.
    pub(crate) fn silence(&mut self) {
        self.is_silent = true;
    }

    /// Whether the network is broken.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }
}

/// Where connections can be made in a network of nodes.
#[derive(Debug, Clone)]
pub struct Edge {
    /// The nodes; the first one opens the connection.
    pub ends: [usize; 2],
    /// Time from one to the other.
    pub delay: Nanos,
    /// No connection can be made, and those that exist carry nothing.
    pub is_cut: bool,
}

impl Edge {
    /// One that is not cut.
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
