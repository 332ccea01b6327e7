use punctual_model::network::{Document, FlowEntry, LinkEntry, Network, NodeEntry};

use super::*;

const MEGABIT: u64 = 1_000_000;
const MILLI: u64 = 1_000_000;

/// A network of links in both directions, 100 Mbit/s if no rate is stated.
fn document(pairs: &[(&str, &str, u64)]) -> Document {
    let mut document = Document::default();
    let mut names = BTreeSet::new();
    for (a, b, rate) in pairs {
        names.extend([*a, *b]);
        for (from, to) in [(a, b), (b, a)] {
            document.links.push(LinkEntry {
                id: format!("{from}>{to}"),
                from: (*from).into(),
                to: (*to).into(),
                rate_bps: Some(if *rate == 0 { 100 } else { *rate } * MEGABIT),
                ..LinkEntry::default()
            });
        }
    }
    let nodes = names.into_iter().map(|id| NodeEntry {
        id: id.into(),
        ..NodeEntry::default()
    });
    document.nodes = nodes.collect();
    document
}

fn flow(id: &str, period: u64) -> FlowEntry {
    FlowEntry {
        id: id.into(),
        period_ns: period,
        wire_bytes: Some(1_250),
        ..FlowEntry::default()
    }
}

/// The example of the paper's Fig. 4: h1 to h2 directly, or by s3.
fn detour() -> Document {
    document(&[
        ("h1", "s1", 0),
        ("s1", "s2", 0),
        ("s1", "s3", 0),
        ("s3", "s2", 0),
        ("s2", "h2", 0),
    ])
}

fn network(document: &Document) -> Network {
    Network::new(document).unwrap()
}

fn ends(network: &Network, source: &str, via: Option<&str>, receivers: &[&str]) -> Ends {
    let node = |id: &str| network.topology.node(id).unwrap();
    Ends {
        source: node(source),
        via: via.map(node),
        receivers: receivers.iter().map(|id| node(id)).collect(),
    }
}

/// Nodes in a square, each with links to its neighbours of rates that differ.
fn grid(side: u64) -> Network {
    let mut pairs = Vec::new();
    let name = |x: u64, y: u64| format!("n{x}-{y}");
    for x in 0..side {
        for y in 0..side {
            let rate = 10 + (x * 7 + y * 13) % 29;
            if x + 1 < side {
                pairs.push((name(x, y), name(x + 1, y), rate));
            }
            if y + 1 < side {
                pairs.push((name(x, y), name(x, y + 1), rate + 5));
            }
        }
    }
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(a, b, rate)| (a.as_str(), b.as_str(), *rate))
        .collect();
    network(&document(&pairs))
}

#[test]
fn the_papers_example() {
    let network = network(&detour());
    let ends = ends(&network, "h1", None, &["h2"]);
    let paths = paths_by_bucket_weight(&network, &flow("f", MILLI), ends.source, ends.receivers[0]);
    let found: Vec<_> = paths
        .iter()
        .map(|path| (path.links.len(), path.weight, path.bucket))
        .collect();
    // Table 1, where the first is rounded to 5.8.
    assert_eq!(found, [(3, 300_000, 5_714), (4, 400_000, 4_285)]);
}

#[test]
fn bucket_weights_avoid_links_without_bandwidth() {
    let mut document = detour();
    document.flows.push(FlowEntry {
        paths: vec![vec!["s1>s2".into()]],
        ..flow("full", 100_000)
    });
    let network = network(&document);
    let ends = ends(&network, "h1", None, &["h2"]);
    let paths = paths_by_bucket_weight(&network, &flow("f", MILLI), ends.source, ends.receivers[0]);
    assert_eq!(paths.len(), 1);
    assert_eq!((paths[0].links.len(), paths[0].bucket), (4, 0));
}

#[test]
fn enumeration_is_complete_or_says_so() {
    let corners = |side: u64| {
        let network = grid(side);
        let node = |id: String| network.topology.node(&id).unwrap();
        let (from, to) = (node("n0-0".into()), node(format!("n{0}-{0}", side - 1)));
        all_paths(&network.topology, from, to)
    };
    // Paths of a rook that visits no square twice.
    for (side, count) in [(2, 2), (3, 12), (4, 184)] {
        let all = corners(side);
        assert_eq!((all.paths.len(), all.complete), (count, true));
        assert_eq!(all.paths.iter().collect::<BTreeSet<_>>().len(), count);
    }
    let all = corners(7);
    assert_eq!((all.paths.len(), all.complete), (MAX_PATHS, false));
}

#[test]
fn the_shortest_are_the_shortest_of_all() {
    let network = grid(4);
    let topology = &network.topology;
    let flow = flow("f", MILLI);
    let nodes = topology.nodes.len();
    for from in 0..nodes {
        for to in (0..nodes).filter(|to| *to != from) {
            let found = shortest_paths(topology, &flow, from, to, MAX_SHORTEST);
            let map = Map::new(topology, &flow);
            let mut all: Vec<_> = all_paths(topology, from, to)
                .paths
                .iter()
                .map(|links| map.length(links))
                .collect();
            all.sort_unstable();
            all.truncate(MAX_SHORTEST);
            let lengths: Vec<_> = found.iter().map(|path| path.length).collect();
            assert_eq!(lengths, all);
            assert!(
                found
                    .iter()
                    .all(|path| map.length(&path.links) == path.length)
            );
            let distinct: BTreeSet<_> = found.iter().map(|path| &path.links).collect();
            assert_eq!(distinct.len(), found.len());
        }
    }
}

#[test]
fn where_no_way_leads() {
    let network = network(&detour());
    let node = |id: &str| network.topology.node(id).unwrap();
    let unknown = FlowEntry {
        wire_bytes: None,
        ..flow("f", MILLI)
    };
    assert!(shortest_paths(&network.topology, &unknown, node("h1"), node("h2"), 3).is_empty());
    assert!(shortest_paths(&network.topology, &unknown, node("h1"), node("h1"), 3).is_empty());
    assert!(
        all_paths(&network.topology, node("h1"), node("h1"))
            .paths
            .is_empty()
    );
    let ends = ends(&network, "h1", None, &["h2"]);
    let error = choose_route(&mut Admission::new(network), &unknown, &ends, &[0], 3).unwrap_err();
    assert!(matches!(error, NoRoute::Unreachable { .. }), "{error}");
}

#[test]
fn a_detour_is_taken_where_the_direct_way_leaves_less_time() {
    let mut document = detour();
    for number in 0..6 {
        document.flows.push(FlowEntry {
            prio: 7,
            paths: vec![vec!["s1>s2".into()]],
            ..flow(&format!("busy{number}"), 2 * MILLI)
        });
    }
    let network = network(&document);
    let ends = ends(&network, "h1", None, &["h2"]);
    let mut admission = Admission::new(network.clone());
    let late = FlowEntry {
        deadline_ns: Some(700_000),
        ..flow("f", 2 * MILLI)
    };
    let route = choose_route(&mut admission, &late, &ends, &[3], 4).unwrap();
    assert_eq!(route.entry.paths, [["h1>s1", "s1>s3", "s3>s2", "s2>h2"]]);
    // Four frames alone on four links: 400 of 700 us are needed.
    assert_eq!(route.score, 300_000 * 1_000_000 / 700_000);
    assert_eq!(admission.network(), &network);
    assert!(admission.clone().add(vec![route.flow]).is_ok());

    let hopeless = FlowEntry {
        deadline_ns: Some(250_000),
        ..late
    };
    let error = choose_route(&mut admission, &hopeless, &ends, &[3], 4).unwrap_err();
    assert!(matches!(error, NoRoute::Refused(_)), "{error}");
}

#[test]
fn the_priority_that_leaves_the_most_time_is_taken() {
    let mut document = document(&[("a", "b", 0)]);
    document.flows.push(FlowEntry {
        prio: 4,
        deadline_ns: Some(250_000),
        paths: vec![vec!["a>b".into()]],
        ..flow("tight", MILLI)
    });
    let network = network(&document);
    let ends = ends(&network, "a", None, &["b"]);
    let route = choose_route(
        &mut Admission::new(network),
        &flow("f", MILLI),
        &ends,
        &[5, 3, 4],
        1,
    );
    // Above, beside or below it: the tight one waits for one frame in any case.
    // Of equals the least urgent.
    assert_eq!(route.unwrap().flow.priority, 3);
}

#[test]
fn trees_grow_leaf_by_leaf() {
    let network = network(&document(&[
        ("p", "s1", 0),
        ("s1", "s2", 0),
        ("s1", "s3", 0),
        ("s2", "s3", 0),
        ("s2", "a", 0),
        ("s3", "b", 0),
        ("s3", "c", 0),
    ]));
    let ends = ends(&network, "p", None, &["a", "b", "c"]);
    let mut admission = Admission::new(network);
    let route = choose_route(&mut admission, &flow("f", MILLI), &ends, &[1], MAX_SHORTEST).unwrap();
    let [a, b, c] = route.entry.paths.as_slice() else {
        panic!("one path for each receiver");
    };
    assert_eq!(a, &["p>s1", "s1>s2", "s2>a"]);
    assert_eq!(b, &["p>s1", "s1>s3", "s3>b"]);
    assert_eq!(c, &["p>s1", "s1>s3", "s3>c"]);
    // One frame for each link of the tree.
    assert_eq!(route.flow.hops.len(), 6);
}

#[test]
fn through_a_broker_and_back() {
    let mut document = document(&[("p", "s", 0), ("s", "a", 0), ("s", "b", 0)]);
    for id in ["in", "out"] {
        document.nodes.push(NodeEntry {
            id: id.into(),
            ..NodeEntry::default()
        });
    }
    let mut link = |from: &str, to: &str, rate| {
        document.links.push(LinkEntry {
            id: format!("{from}>{to}"),
            from: from.into(),
            to: to.into(),
            rate_bps: rate,
            ..LinkEntry::default()
        });
    };
    link("s", "in", Some(100 * MEGABIT));
    link("in", "out", None);
    link("out", "s", Some(100 * MEGABIT));
    let network = network(&document);
    let ends = ends(&network, "p", Some("out"), &["a", "b"]);
    let mut entry = FlowEntry {
        fanout_node: Some("out".into()),
        ..flow("f", MILLI)
    };
    entry.cost_ns.insert("in>out".into(), 20_000);
    let route = choose_route(&mut Admission::new(network), &entry, &ends, &[1], 4).unwrap();
    let start = ["p>s", "s>in", "in>out", "out>s"];
    let paths = [
        [&start[..], &["s>a"]].concat(),
        [&start[..], &["s>b"]].concat(),
    ];
    assert_eq!(route.entry.paths, paths);
}

#[test]
fn nothing_to_choose_from() {
    let network = network(&detour());
    let mut ends = ends(&network, "h1", None, &["h2"]);
    let mut admission = Admission::new(network);
    let mut choose = |ends: &Ends, priorities: &[u64]| {
        choose_route(&mut admission, &flow("f", MILLI), ends, priorities, 4).unwrap_err()
    };
    assert_eq!(choose(&ends, &[]), NoRoute::Nothing);
    ends.receivers.clear();
    assert_eq!(choose(&ends, &[1]), NoRoute::Nothing);
}

#[test]
fn the_rendezvous_point_is_nearest_on_average() {
    let network = network(&document(&[
        ("p", "s1", 0),
        ("s1", "s2", 0),
        ("s2", "s3", 0),
        ("s1", "a", 0),
        ("s3", "b", 0),
        ("s3", "c", 10),
    ]));
    let node = |id: &str| network.topology.node(id).unwrap();
    let choose = |candidates: &[&str]| {
        let candidates: Vec<_> = candidates.iter().map(|id| node(id)).collect();
        let receivers = [node("a"), node("b"), node("c")];
        rendezvous_point(
            &network.topology,
            &flow("f", MILLI),
            node("p"),
            &candidates,
            &receivers,
        )
    };
    // From s3: 300, 100 and 1000 us.
    assert_eq!(choose(&["s1", "s2", "s3"]), Some((node("s3"), 466_666)));
    assert_eq!(choose(&["s1", "s2"]), Some((node("s2"), 500_000)));
    assert_eq!(choose(&[]), None);
}

/// Each switch between two receivers has the same average; beyond the nearest one to the publisher a message
/// would go to and fro.
#[test]
fn of_equal_rendezvous_points_the_nearest_is_taken() {
    let links = [
        ("p", "s1", 0),
        ("s1", "s2", 0),
        ("s2", "s3", 0),
        ("s1", "a", 0),
        ("s3", "b", 0),
    ];
    for is_reversed in [false, true] {
        let mut links = links;
        if is_reversed {
            links.reverse();
        }
        let network = network(&document(&links));
        let node = |id: &str| network.topology.node(id).unwrap();
        let receivers = [node("a"), node("b")];
        for candidates in [["s1", "s2", "s3"], ["s3", "s2", "s1"]] {
            let candidates = candidates.map(node);
            let flow = flow("f", MILLI);
            let topology = &network.topology;
            let point = rendezvous_point(topology, &flow, node("p"), &candidates, &receivers);
            assert_eq!(point.map(|point| point.0), Some(node("s1")));
        }
    }
}

#[test]
fn a_branch_that_comes_back_to_the_trunk_leaves_it_there() {
    let network = network(&document(&[
        ("p", "s1", 0),
        ("s1", "s2", 0),
        ("s2", "s3", 0),
        ("s1", "a", 0),
    ]));
    let topology = &network.topology;
    let links = |names: &[&str]| -> Vec<_> {
        let all = names.iter().map(|name| topology.link(name).unwrap());
        all.collect()
    };
    let path = ["p>s1", "s1>s2", "s2>s3", "s3>s2", "s2>s1", "s1>a"];
    assert_eq!(
        without_loops(topology, &links(&path)),
        links(&["p>s1", "s1>a"])
    );
    let straight = links(&["p>s1", "s1>s2", "s2>s3"]);
    assert_eq!(without_loops(topology, &straight), straight);
}

fn going(id: &str, from: &str, to: &[&str]) -> FlowEntry {
    FlowEntry {
        prio: 3,
        deadline_ns: Some(700_000),
        from: Some(from.into()),
        to: to.iter().map(|id| (*id).into()).collect(),
        ..flow(id, 2 * MILLI)
    }
}

#[test]
fn flows_without_paths_get_theirs_one_after_the_other() {
    let mut document = detour();
    // Seven do not fit on the direct path.
    for number in 0..8 {
        document
            .flows
            .push(going(&format!("f{number}"), "h1", &["h2"]));
    }
    let chosen = choose_paths(&mut document, &[], Selection::Paper).unwrap();
    assert_eq!(chosen, (0..8).collect::<Vec<_>>());
    assert!(
        network(&document)
            .flows
            .iter()
            .all(|flow| flow.leaves.len() == 1)
    );
    // Now they have paths, and keep them unless that is asked for.
    assert_eq!(
        choose_paths(&mut document, &[], Selection::Paper),
        Ok(vec![])
    );
    let before = document.flows[2].paths.clone();
    document.flows.truncate(3);
    let again = choose_paths(&mut document, &["f2".into()], Selection::Admission);
    assert_eq!(again, Ok(vec![2]));
    assert_eq!(before.len(), document.flows[2].paths.len());

    document.flows = vec![FlowEntry {
        deadline_ns: Some(250_000),
        ..going("f", "h1", &["h2"])
    }];
    let before = document.clone();
    let stuck = choose_paths(&mut document, &[], Selection::Admission).unwrap_err();
    assert!(matches!(stuck.why, NoRoute::Refused(_)), "{stuck}");
    assert_eq!((stuck.flow.as_str(), &document), ("f", &before));
    // The paper does not look at deadlines.
    assert_eq!(
        choose_paths(&mut document, &[], Selection::Paper),
        Ok(vec![0])
    );
}

#[test]
fn several_destinations_are_a_tree_with_either_choice() {
    let links = [
        ("p", "s1", 0),
        ("s1", "s2", 0),
        ("s1", "s3", 0),
        ("s2", "s3", 0),
        ("s2", "a", 0),
        ("s3", "b", 0),
        ("s3", "c", 0),
    ];
    for selection in [Selection::Admission, Selection::Paper] {
        for via in [None, Some("s2".to_owned())] {
            let mut document = document(&links);
            let entry = FlowEntry {
                deadline_ns: None,
                via: via.clone(),
                ..going("f", "p", &["a", "b", "c"])
            };
            document.flows.push(entry);
            choose_paths(&mut document, &[], selection).unwrap();
            let paths = &document.flows[0].paths;
            for (path, to) in paths.iter().zip(["a", "b", "c"]) {
                assert!(
                    path[0] == "p>s1" && path.last().unwrap().ends_with(to),
                    "{path:?}"
                );
                assert!(
                    via.is_none() || path.contains(&"s1>s2".to_owned()),
                    "{path:?}"
                );
            }
            assert_eq!(network(&document).flows[0].leaves.len(), 3);
        }
    }
}

#[test]
fn ends_that_mean_nothing_are_named() {
    let wrong = |change: fn(&mut FlowEntry)| {
        let mut document = detour();
        document.flows.push(going("f", "h1", &["h2"]));
        change(&mut document.flows[0]);
        choose_paths(&mut document, &[], Selection::Admission)
            .unwrap_err()
            .to_string()
    };
    let cases = [
        (
            wrong(|f| f.from = Some("x".into())),
            "flows \"f\": from: \"x\" is not among the nodes",
        ),
        (wrong(|f| f.to.clear()), "flows \"f\": to: is missing"),
        (
            wrong(|f| f.to.push("h2".into())),
            "flows \"f\": to: \"h2\" is named twice",
        ),
        (
            wrong(|f| f.to = vec!["h1".into()]),
            "is the publisher's own node",
        ),
        (
            wrong(|f| f.via = Some("y".into())),
            "flows \"f\": via: \"y\" is not among",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error}");
    }
    let again = choose_paths(&mut detour(), &["x".into()], Selection::Paper).unwrap_err();
    assert!(
        again.to_string().contains("\"x\": is not among the flows"),
        "{again}"
    );
}
