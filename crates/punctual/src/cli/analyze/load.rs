//! How much of its links the declared flows take.

use punctual_model::network::{LinkIndex, Network};

/// A share of a link, in units of 2^-64, rounded up for each flow.
type Share = u128;
/// All of a link.
const FULL: Share = 1 << 64;

/// What the declared flows take of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkLoad {
    /// The link.
    pub(super) link: LinkIndex,
    share: Share,
    /// The highest priority at which the flows of it and above take more than
    /// all of the link.
    pub(super) overloaded_from: Option<u64>,
}

impl LinkLoad {
    /// In percent.
    pub(super) fn percent(&self) -> f64 {
        self.share as f64 / FULL as f64 * 100.0
    }

    /// The load in words, such as `104 %`; one that is barely above 100 % is
    /// not rounded to it.
    pub(super) fn text(&self) -> String {
        let percent = self.percent();
        match self.overloaded_from {
            Some(_) => format!("{} %", (percent * 10.0).ceil() / 10.0),
            None => format!("{} %", (percent * 10.0).round() / 10.0),
        }
    }
}

/// The loads of all links that carry a flow, in the order of the network.
pub(super) fn loads(network: &Network) -> Vec<LinkLoad> {
    let mut flows: Vec<Vec<(u64, Share)>> = vec![Vec::new(); network.topology.links.len()];
    for flow in &network.flows {
        for hop in &flow.hops {
            let work = Share::from(hop.cost) * Share::from(flow.frames);
            // Costs and frames are limited so that this stays below 2^127; one
            // message may take many times its period.
            let whole = work / Share::from(flow.period) * FULL;
            let rest = (work % Share::from(flow.period) * FULL).div_ceil(flow.period.into());
            flows[hop.link].push((flow.priority, whole + rest));
        }
    }
    let used = flows
        .into_iter()
        .enumerate()
        .filter(|(_, flows)| !flows.is_empty());
    used.map(|(link, mut flows)| {
        let link_of = &network.topology.links[link];
        let without_levels = link_of.fifo || link_of.edf;
        flows.sort_unstable_by_key(|(priority, _)| std::cmp::Reverse(*priority));
        let mut share: Share = 0;
        let mut overloaded_from = None;
        for (priority, part) in &flows {
            share += part;
            if share > FULL && overloaded_from.is_none() {
                overloaded_from = Some(*priority);
            }
        }
        if without_levels && overloaded_from.is_some() {
            overloaded_from = flows.first().map(|(priority, _)| *priority);
        }
        LinkLoad {
            link,
            share,
            overloaded_from,
        }
    })
    .collect()
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
        let [load] = loads(&network(""))[..] else {
            panic!("one link carries flows");
        };
        assert_eq!(load.overloaded_from, Some(2));
        assert_eq!(load.text(), "404 %");
        // Without priorities everything is in it.
        assert_eq!(
            loads(&network(r#","fifo":true"#))[0].overloaded_from,
            Some(3)
        );
    }

    #[test]
    fn a_load_of_all_of_a_link_is_no_overload() {
        let mut network = network("");
        network.flows.truncate(1);
        network.flows[0].period = 400;
        let load = loads(&network)[0];
        assert_eq!(
            (load.overloaded_from, load.text().as_str()),
            (None, "100 %")
        );
        network.flows[0].period = 399_999_999;
        network.flows[0].hops[0].cost = 400_000_000;
        let load = loads(&network)[0];
        assert_eq!(
            (load.overloaded_from, load.text().as_str()),
            (Some(3), "100.1 %")
        );
    }
}
