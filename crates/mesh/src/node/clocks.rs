//! Clocks of this broker and its neighbours, and rejection of instants in the future.
//!
//! Messages between brokers contain instants: when a client connected, and, in versions of retained
//! messages, when these were published. An instant far in the future would count as the newest until
//! then, so a claim that cannot be true by this broker's clock is discarded
//! ([`punctual_model::latest_instant`]). The link stays up: the neighbour may only have forwarded the
//! claim, and its clock may allow it. A broker whose own clock is wrong notices that by the clocks of its
//! neighbours.
//!
//! Epochs of roots are counters, not instants, but have the same limit: see [`Tree::set_last_epoch`].
//!
//! [`Tree::set_last_epoch`]: crate::tree::Tree::set_last_epoch

use punctual_model::{LAST_INSTANT, latest_instant};

use super::{Event, Node};
use crate::wire::Message;

/// Difference of two clocks above which one of them is wrong, microseconds. A hello is in flight for a
/// fraction of a second.
const TOLERANCE: i64 = 5_000_000;

/// This broker's clock.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// Microseconds since 1970; `None` before the first [`Node::set_clock`].
    pub(super) now: Option<u64>,
    /// The clock error that was logged last.
    wrong: Option<i64>,
    /// Number of claims that were discarded.
    pub(super) left_out: u64,
}

impl Clocks {
    fn latest(&self) -> u64 {
        self.now.map_or(LAST_INSTANT, latest_instant)
    }

    /// Whether an instant can be past; counts those that cannot.
    pub(super) fn is_past(&mut self, at: u64) -> bool {
        let is_past = at <= self.latest();
        self.left_out += u64::from(!is_past);
        is_past
    }
}

impl Node {
    /// Sets the wall clock, in microseconds since 1970; to be called before the other calls at that time.
    /// Without it, instants in messages are not checked.
    pub fn set_clock(&mut self, micros: u64) {
        self.clocks.now = Some(micros);
        self.tree.set_last_epoch(self.clocks.latest());
    }

    /// Removes claims about the future from a message.
    pub(super) fn leave_out_future(&mut self, message: &mut Message) {
        let clocks = &mut self.clocks;
        let mut is_past = |at: u64| clocks.is_past(at);
        match message {
            Message::Arrived(arrivals) => arrivals.retain(|arrival| is_past(arrival.at)),
            Message::Wills { add, .. } => add.retain(|will| is_past(will.at)),
            Message::GuardReport(left) => {
                left.wills.retain(|will| is_past(will.at));
                left.published.retain(|will| is_past(will.at));
                left.moved.retain(|arrival| is_past(arrival.at));
            }
            // Epochs are no instants; the tree itself ignores those above its limit.
            Message::Hello(hello) => {
                clocks.left_out += u64::from(!self.tree.can_be_true(&hello.advert));
            }
            _ => {}
        }
    }

    /// By how many microseconds most neighbours' clocks are ahead of this broker's (behind it, if
    /// negative), where that is more than [`TOLERANCE`]: its own is likely to be wrong.
    pub(super) fn clock_error(&self) -> Option<i64> {
        let known = self.links.iter().filter_map(|(_, link)| link.clock_ahead());
        let mut known: Vec<i64> = known.collect();
        known.sort_unstable();
        // If the median differs too much, at least half of the clocks do.
        let upper_middle = known.get(known.len() / 2);
        let lower_middle = known.get(known.len().saturating_sub(1) / 2);
        let behind = upper_middle.filter(|ahead| **ahead < -TOLERANCE);
        behind
            .or(lower_middle.filter(|ahead| **ahead > TOLERANCE))
            .copied()
    }

    /// Logs when this broker's clock begins to be wrong, and when it is right again.
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
    use crate::id::{BrokerId, LinkId, Rank};
    use crate::node::{Output, Settings};
    use crate::strategy::Strategy;
    use crate::tree::{Advert, EpochRequest};
    use crate::wire::{Arrival, Hello, Open, VERSIONS};

    const NOW: Nanos = Nanos::from_secs(1);
    const TODAY: u64 = 1_800_000_000_000_000;

    /// A broker with so many neighbours.
    fn node(neighbours: usize) -> (Node, Vec<LinkId>) {
        let mut node = broker("own", 5);
        let links = (0..neighbours).map(|n| link(&mut node, &format!("n{n}"), true));
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

    fn broker(name: &str, capacity: u64) -> Node {
        let id = BrokerId::new(name).unwrap();
        Node::new(Settings::new(id, 1, capacity), NOW)
    }

    fn link(node: &mut Node, peer: &str, dialled: bool) -> LinkId {
        let open = Open {
            versions: (*VERSIONS.start(), *VERSIONS.end()),
            id: BrokerId::new(peer).unwrap(),
            instance: 1,
            strategy: Strategy::SubscriptionTable,
            dialled,
        };
        node.link_up(&open, 1.0, NOW).unwrap()
    }

    /// A hello of a broker that says to be next to a root, in that epoch, and seeks one above another.
    fn hello(node: &mut Node, from: LinkId, number: u64, epoch: u64, epoch_request: Option<u64>) {
        let root = Rank {
            capacity: 9,
            id: BrokerId::new("root").unwrap(),
        };
        let epoch_request = epoch_request.map(|above| EpochRequest {
            root: root.id.clone(),
            above,
        });
        let advert = Advert {
            number,
            root,
            epoch,
            cost: 0,
            hops: 0,
            age: Nanos(0),
            asks: 0,
            answered: 0,
            held: false,
            epoch_request,
        };
        let hello = Hello {
            advert,
            sent: 0,
            echo: None,
            clock: None,
        };
        let bytes = Message::Hello(hello).encode();
        node.receive(from, &bytes, NOW).unwrap();
    }

    /// Two brokers hear what they tell each other, until there is nothing more.
    fn talk(ends: &mut [(Node, LinkId); 2], now: Nanos) {
        let mut quiet = 0;
        for turn in (0..2).cycle() {
            let (node, link) = &mut ends[turn];
            let link = *link;
            let said = node.take_outputs().into_iter();
            let said: Vec<_> = said
                .filter_map(|output| match output {
                    Output::Send(to, bytes) if to == link => Some(bytes),
                    _ => None,
                })
                .collect();
            quiet = if said.is_empty() { quiet + 1 } else { 0 };
            if quiet == 2 {
                return;
            }
            let (other, link) = &mut ends[1 - turn];
            for bytes in said {
                other.receive(*link, &bytes, now).unwrap();
            }
        }
    }

    /// What a neighbour says of epochs keeps nobody from the root once it has left.
    #[test]
    fn no_epoch_that_is_told_keeps_a_root_out_for_good() {
        let last = TODAY + MOST_AHEAD;
        for told in [u64::MAX, u64::MAX - 1, LAST_INSTANT + 1, last + 1, last, 7] {
            for (epoch, epoch_request) in [(told, None), (1, Some(told)), (told, Some(told))] {
                for at_root in [false, true] {
                    let mut ends =
                        [broker("own", 5), broker("root", 9)].map(|node| (node, LinkId(0)));
                    for (node, _) in &mut ends {
                        node.set_clock(TODAY);
                    }
                    let liar = usize::from(at_root);
                    let to_liar = link(&mut ends[liar].0, "liar", true);
                    hello(&mut ends[liar].0, to_liar, 1, epoch, epoch_request);
                    // What is left of it is told on as well.
                    ends[0].1 = link(&mut ends[0].0, "root", true);
                    ends[1].1 = link(&mut ends[1].0, "own", false);
                    talk(&mut ends, NOW);
                    hello(&mut ends[liar].0, to_liar, 2, epoch, epoch_request);
                    talk(&mut ends, NOW);
                    ends[liar].0.link_down(to_liar, "left", NOW);
                    // A hello later the clocks of all are further.
                    let now = NOW + Nanos::from_secs(2);
                    for (node, _) in &mut ends {
                        node.set_clock(TODAY + 2_000_000);
                        node.tick(now);
                    }
                    talk(&mut ends, now);
                    let statuses = [ends[0].0.status(), ends[1].0.status()];
                    let case = format!("{epoch} {epoch_request:?} {at_root}: {statuses:?}");
                    for status in &statuses {
                        assert_eq!(status.root.id.as_str(), "root", "{case}");
                        assert!(status.attached && status.epoch < last + 100, "{case}");
                    }
                    // The root itself may be left out as long as it takes its clock to go on.
                    let left_out = statuses[liar].future_claims;
                    assert!(told <= last || left_out > 0, "{case}");
                }
            }
        }
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
