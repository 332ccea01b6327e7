//! How much of its links declared flows take.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use punctual_model::network::{Flow, LinkIndex, Network};

/// A share of a link, in units of 2^-64, rounded up.
pub(crate) type Load = u128;
/// All of a link.
pub(crate) const FULL: Load = 1 << 64;

/// The share of a link that `work` in each `period` takes, rounded up; more
/// than all of it counts as all.
pub(crate) fn load(work: u64, period: u64) -> Load {
    share(work.into(), period).min(FULL)
}

/// A share, which may be many times the link; at most what can be counted.
pub(crate) fn share(work: u128, period: u64) -> Load {
    let period = Load::from(period.max(1));
    let whole = (work / period).saturating_mul(FULL);
    // Less than a period, which is below 2^64.
    let rest = (work % period * FULL).div_ceil(period);
    whole.saturating_add(rest)
}

/// A share in per cent, rounded up, but for what rounding up each flow's part
/// has added.
pub(crate) fn percent(share: Load) -> u64 {
    let percent = ((share >> 24).saturating_mul(100)).div_ceil(FULL >> 24);
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// What the declared flows take of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLoad {
    /// The link.
    pub link: LinkIndex,
    /// The share of it, in units of 2^-64, rounded up for each flow; more than
    /// all of it is more than that.
    pub share: u128,
    /// The highest priority at which the flows of it and above take more than
    /// all of the link.
    pub overloaded_from: Option<u64>,
    /// Flows that cross it.
    pub flows: usize,
}

impl LinkLoad {
    /// All of a link.
    pub const FULL: u128 = FULL;

    /// In per cent, for people.
    pub fn percent(&self) -> f64 {
        self.share as f64 / FULL as f64 * 100.0
    }

    /// In per cent, rounded up.
    pub fn whole_percent(&self) -> u64 {
        percent(self.share)
    }
}

/// The loads of all links that carry a flow, in the order of the network.
pub fn link_loads(network: &Network) -> Vec<LinkLoad> {
    let mut parts: Vec<Vec<(u64, usize, Load)>> = vec![Vec::new(); network.topology.links.len()];
    for (index, flow) in network.flows.iter().enumerate() {
        for (hop, (link, part)) in flow.hops.iter().zip(parts_of(flow)) {
            parts[link].push((flow.priority_at(hop), index, part));
        }
    }
    let used = parts.into_iter().enumerate();
    let used = used.filter(|(_, parts)| !parts.is_empty());
    used.map(|(link, mut parts)| {
        let this = &network.topology.links[link];
        parts.sort_unstable_by_key(|(priority, ..)| Reverse(*priority));
        let (mut share, mut overloaded_from): (Load, _) = (0, None);
        for (priority, _, part) in &parts {
            share = share.saturating_add(*part);
            if share > FULL && overloaded_from.is_none() {
                overloaded_from = Some(*priority);
            }
        }
        if (this.fifo || this.edf) && overloaded_from.is_some() {
            // Without levels everything is in it.
            overloaded_from = parts.first().map(|(priority, ..)| *priority);
        }
        // A broker's copies cross it one by one.
        let flows: BTreeSet<usize> = parts.iter().map(|(_, flow, _)| *flow).collect();
        LinkLoad {
            link,
            share,
            overloaded_from,
            flows: flows.len(),
        }
    })
    .collect()
}

/// What a flow takes of each of its links.
pub(crate) fn parts_of(flow: &Flow) -> impl Iterator<Item = (LinkIndex, Load)> {
    flow.hops.iter().map(|hop| {
        let work = u128::from(hop.cost) * u128::from(hop.frames);
        (hop.link, share(work, flow.period))
    })
}

#[cfg(test)]
mod tests {
    use punctual_model::network::Document;

    use super::*;

    fn network(link: &str) -> Network {
        let text = format!(
            r#"{{"nodes":[{{"id":"a"}},{{"id":"b"}}],
                "links":[{{"id":"a>b","from":"a","to":"b"{link}}},{{"id":"b>a","from":"b","to":"a"}}],
                "flows":[
                  {{"id":"x","prio":3,"period_ns":1000,"cost_ns":{{"a>b":400}},"paths":[["a>b"]]}},
                  {{"id":"y","prio":2,"period_ns":1000,"cost_ns":{{"a>b":320}},"frames":2,"paths":[["a>b"]]}},
                  {{"id":"z","prio":1,"period_ns":1000,"cost_ns":{{"a>b":3000}},"paths":[["a>b"]]}}]}}"#
        );
        Network::new(&Document::from_json(&text).unwrap()).unwrap()
    }

    #[test]
    fn the_level_that_passes_all_of_a_link_is_named() {
        let [load] = link_loads(&network(""))[..] else {
            panic!("one link carries flows");
        };
        assert_eq!((load.overloaded_from, load.flows), (Some(2), 3));
        assert_eq!(load.whole_percent(), 404);
        // Without priorities everything is in it.
        let fifo = link_loads(&network(r#","fifo":true"#));
        assert_eq!(fifo[0].overloaded_from, Some(3));
    }

    #[test]
    fn a_load_of_all_of_a_link_is_no_overload() {
        let mut network = network("");
        network.flows.truncate(1);
        network.flows[0].period = 400;
        let load = link_loads(&network)[0];
        assert_eq!((load.overloaded_from, load.whole_percent()), (None, 100));
        assert_eq!(load.share, LinkLoad::FULL);
        network.flows[0].period = 399_999_999;
        network.flows[0].hops[0].cost = 400_000_000;
        let load = link_loads(&network)[0];
        assert_eq!((load.overloaded_from, load.whole_percent()), (Some(3), 101));
    }

    #[test]
    fn per_cents_are_those_of_the_flows() {
        // Thirds, each rounded up.
        for (works, expected) in [
            (&[1_u128, 1, 1][..], 100),
            (&[1], 34),
            (&[2, 2], 134),
            (&[], 0),
        ] {
            let sum: Load = works.iter().map(|work| share(*work, 3)).sum();
            assert_eq!(percent(sum), expected, "{works:?}");
        }
        assert_eq!(percent(share(u128::MAX, 1)), u64::MAX);
    }
}
