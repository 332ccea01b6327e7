//! What time it is at this broker and at its neighbours.
//!
//! Brokers state instants: when a client connected, and with versions of retained messages when these
//! were published. One that is far in the future would count as the newest for as long, so that what
//! cannot be true by this broker's clock is left out ([`punctual_model::latest_instant`]). It is left
//! out, and the link stays: the neighbour may only have passed it on, and have a clock by which it
//! could be true. A broker whose own clock is wrong is told by those of its neighbours.

use punctual_model::{LAST_INSTANT, latest_instant};

use super::{Event, Node};
use crate::wire::Message;

/// Difference of two clocks from which one of them is wrong, microseconds: messages are a
/// fraction of a second under way.
const TOLERANCE: u64 = 5_000_000;

/// This broker's clock.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// Microseconds since 1970; `None` as long as nobody has said.
    pub(super) now: Option<u64>,
    /// By how much most neighbours' clocks are ahead, if that is too much, as was said last.
    wrong: Option<i64>,
    /// Instants that were left out.
    pub(super) left_out: u64,
}

impl Clocks {
    fn latest(&self) -> u64 {
        self.now.map_or(LAST_INSTANT, latest_instant)
    }
}

impl Node {
    /// What time it is, in microseconds since 1970: to be said before all else that happens then.
    /// Without it instants that neighbours state are not looked at.
    pub fn set_clock(&mut self, micros: u64) {
        self.clocks.now = Some(micros);
    }

    /// Takes out of a message what is said to have happened in the future.
    pub(super) fn leave_out_future(&mut self, message: &mut Message) {
        let latest = self.clocks.latest();
        let mut left_out = 0;
        let mut is_past = |at: u64| {
            left_out += u64::from(at > latest);
            at <= latest
        };
        match message {
            Message::Arrived(arrivals) => arrivals.retain(|arrival| is_past(arrival.at)),
            Message::Wills { add, .. } => add.retain(|will| is_past(will.at)),
            Message::Left(left) => {
                left.wills.retain(|will| is_past(will.at));
                left.published.retain(|will| is_past(will.at));
                left.moved.retain(|arrival| is_past(arrival.at));
            }
            Message::Found(found) => {
                let all = found.holders.len();
                found.holders.retain(|holder| is_past(holder.at));
                found.incomplete |= found.holders.len() < all;
            }
            _ => {}
        }
        self.clocks.left_out += left_out;
    }

    /// Whether a question can have been asked already.
    pub(super) fn is_past(&mut self, at: u64) -> bool {
        let is_past = at <= self.clocks.latest();
        self.clocks.left_out += u64::from(!is_past);
        is_past
    }

    /// By how many microseconds most neighbours' clocks are ahead of this broker's (behind it, if
    /// negative), where that is more than [`TOLERANCE`]: its own is likely to be wrong.
    pub(super) fn clock_error(&self) -> Option<i64> {
        let known = self.links.iter().filter_map(|(_, link)| link.clock_ahead());
        let mut known: Vec<i64> = known.collect();
        known.sort_unstable();
        // Half of them at least differ as much as the one in the middle, or more.
        let (low, high) = (
            known.get(known.len() / 2),
            known.get(known.len().saturating_sub(1) / 2),
        );
        match (low, high) {
            (Some(low), _) if *low < 0 && low.unsigned_abs() > TOLERANCE => Some(*low),
            (_, Some(high)) if *high > 0 && high.unsigned_abs() > TOLERANCE => Some(*high),
            _ => None,
        }
    }

    /// The log says when this broker's clock begins to be wrong, and when it is right again.
    pub(super) fn look_at_clocks(&mut self) {
        let wrong = self.clock_error();
        if wrong.is_some() != self.clocks.wrong.is_some() {
            self.outputs.log(Event::Clock(wrong));
        }
        self.clocks.wrong = wrong;
    }
}

#[cfg(test)]
mod tests {
    use punctual_model::{MOST_AHEAD, Nanos};

    use super::*;
    use crate::id::{BrokerId, LinkId};
    use crate::node::{Output, Settings};
    use crate::strategy::Strategy;
    use crate::wire::{Arrival, Open, VERSIONS};

    const NOW: Nanos = Nanos::from_secs(1);
    const TODAY: u64 = 1_800_000_000_000_000;

    /// A broker with so many neighbours.
    fn node(neighbours: usize) -> (Node, Vec<LinkId>) {
        let id = |name: &str| BrokerId::new(name).unwrap();
        let mut node = Node::new(Settings::new(id("own"), 1, 5), NOW);
        let links = (0..neighbours).map(|n| {
            let open = Open {
                versions: (*VERSIONS.start(), *VERSIONS.end()),
                id: id(&format!("n{n}")),
                instance: 1,
                strategy: Strategy::SubscriptionTable,
                dialled: true,
            };
            node.link_up(&open, 1.0, NOW).unwrap()
        });
        let links = links.collect();
        (node, links)
    }

    fn arrivals(node: &mut Node, link: LinkId, at: u64) -> usize {
        let arrival = Arrival {
            client: "c".into(),
            user: None,
            at,
            clean: false,
        };
        let bytes = Message::Arrived(vec![arrival]).encode();
        node.receive(link, &bytes, NOW).unwrap();
        let outputs = node.take_outputs().into_iter();
        let heard = outputs.filter_map(|output| match output {
            Output::Arrived(arrivals) => Some(arrivals.len()),
            _ => None,
        });
        heard.sum()
    }

    #[test]
    fn what_is_to_happen_is_left_out_and_the_link_stays() {
        let (mut node, links) = node(1);
        assert_eq!(arrivals(&mut node, links[0], LAST_INSTANT), 1, "no clock");
        node.set_clock(TODAY);
        assert_eq!(arrivals(&mut node, links[0], TODAY + MOST_AHEAD), 1);
        assert_eq!(arrivals(&mut node, links[0], TODAY + MOST_AHEAD + 1), 0);
        let status = node.status();
        assert_eq!((status.links.len(), status.future_claims), (1, 1));
    }

    #[test]
    fn a_clock_is_wrong_if_most_neighbours_have_another() {
        let second = 1_000_000;
        for (ahead, wrong) in [
            (&[0][..], None),
            (&[4][..], None),
            (&[6][..], Some(6)),
            (&[-6][..], Some(-6)),
            (&[6, 0][..], None),
            (&[6, 0, 7][..], Some(6)),
            (&[-6, 0, -7][..], Some(-6)),
            (&[-60, 0, 60][..], None),
            (&[-60, -60, 60, 60][..], None),
        ] {
            let (mut node, links) = node(ahead.len());
            node.set_clock(TODAY);
            for (link, ahead) in links.iter().zip(ahead) {
                let theirs = TODAY.wrapping_add_signed(ahead * second);
                let link = node.links.get_mut(*link).unwrap();
                link.compare_clocks(Some(theirs), Some(TODAY));
            }
            let wrong: Option<i64> = wrong.map(|wrong: i64| wrong * second);
            assert_eq!(node.clock_error(), wrong, "{ahead:?}");
            let logged = |node: &mut Node| {
                node.look_at_clocks();
                let outputs = node.take_outputs().into_iter();
                let clocks = outputs.filter(|it| matches!(it, Output::Event(Event::Clock(_))));
                clocks.count()
            };
            assert_eq!(logged(&mut node), usize::from(wrong.is_some()));
            assert_eq!(logged(&mut node), 0, "once");
        }
    }
}
