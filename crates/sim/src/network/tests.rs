//! The engine against what can be worked out by hand.

use punctual_model::network::{Document, Network};

use super::*;

fn network(text: &str) -> Network {
    Network::new(&Document::from_json(text).unwrap()).unwrap()
}

/// Two hops, frames of 100 us; best effort of 100 us at the second.
fn two_hops(extra: &str) -> Network {
    network(&format!(
        r#"{{"nodes":[{{"id":"a"}},{{"id":"s","sd_min_ns":10000,"sd_max_ns":60000}},{{"id":"b"}},{{"id":"x"}}],
        "links":[{{"id":"as","from":"a","to":"s","rate_bps":100000000,"prop_ns":500}},
                 {{"id":"xs","from":"x","to":"s","rate_bps":100000000}},
                 {{"id":"sb","from":"s","to":"b","rate_bps":100000000,"be_ns":100000}}],
        "flows":[{{"id":"m","prio":5,"period_ns":1000000,"jitter_ns":7000,"wire_bytes":1250,"paths":[["as","sb"]]}}
                 {extra}]}}"#
    ))
}

fn message(nominal_ns: u64, late_ns: u64) -> Message {
    Message {
        nominal_ns,
        late_ns,
    }
}

fn run(network: &Network, scenario: &Scenario) -> Vec<u64> {
    scenario.check(network).unwrap();
    let layout = Layout::new(network);
    let mut engine = Engine::new(&layout);
    engine.run(&mut scenario.play(&layout), &mut Nobody);
    let flows = network.flows.iter().enumerate();
    flows
        .flat_map(|(flow, f)| (0..f.leaves.len()).map(move |path| (flow, path)))
        .map(|(flow, path)| engine.worst(flow, path).response)
        .collect()
}

#[test]
fn one_frame_has_its_costs_delays_and_the_undeclared_frame() {
    let network = two_hops("");
    let mut scenario = Scenario::silent(&network);
    scenario.flows[0].messages = vec![message(1000, 7000)];
    let expected = 7_000 + 100_000 + 500 + 60_000 + 99_999 + 100_000;
    assert_eq!(run(&network, &scenario), [expected]);
    scenario.links[2].residual = RepeatedChoice::always(0);
    scenario.flows[0].delays[1] = RepeatedChoice::always(10_000);
    assert_eq!(
        run(&network, &scenario),
        [7_000 + 100_000 + 500 + 10_000 + 100_000]
    );
}

#[test]
fn a_frame_that_comes_when_the_link_becomes_free_takes_part() {
    // h arrives at s>b exactly when a frame of m ends there, and before the
    // next frame of m.
    let extra =
        r#",{"id":"h","prio":6,"period_ns":9000000,"wire_bytes":1250,"paths":[["xs","sb"]]}"#;
    let network = two_hops(extra);
    let mut scenario = Scenario::silent(&network);
    for link in &mut scenario.links {
        link.residual.usual = 0;
    }
    scenario.flows[0].messages = vec![message(0, 0)];
    // m is on s>b from 160500 to 260500.
    scenario.flows[1].messages = vec![message(500, 0)];
    assert_eq!(run(&network, &scenario), [360_500, 260_000]);
    scenario.flows[1].messages = vec![message(501, 0)];
    assert_eq!(run(&network, &scenario), [260_500, 359_999]);
}

#[test]
fn arrivals_of_one_instant_follow_ranks() {
    let extra =
        r#",{"id":"n","prio":5,"period_ns":9000000,"wire_bytes":1250,"paths":[["xs","sb"]]}"#;
    let network = two_hops(extra);
    let mut scenario = Scenario::silent(&network);
    scenario.flows[0].messages = vec![message(0, 0)];
    scenario.flows[1].messages = vec![message(500, 0)];
    for link in &mut scenario.links {
        link.residual.usual = 0;
    }
    scenario.flows[1].rank = 1;
    assert_eq!(run(&network, &scenario), [260_500, 360_000]);
    (scenario.flows[0].rank, scenario.flows[1].rank) = (1, 0);
    assert_eq!(run(&network, &scenario), [360_500, 260_000]);
}

#[test]
fn frames_of_one_input_and_output_keep_their_order() {
    // The first frame is slow in s, the second is fast: it has to wait.
    let network = two_hops("").clone();
    let mut document = Document::from_json(
        r#"{"nodes":[{"id":"a"},{"id":"s","sd_max_ns":500000},{"id":"b"}],
        "links":[{"id":"as","from":"a","to":"s"},{"id":"sb","from":"s","to":"b"}],
        "flows":[{"id":"l","prio":1,"period_ns":9000000,"paths":[["as","sb"]],"cost_ns":{"as":10,"sb":10}},
                 {"id":"h","prio":2,"period_ns":9000000,"paths":[["as","sb"]],"cost_ns":{"as":10,"sb":10}}]}"#,
    )
    .unwrap();
    let slow = Network::new(&document).unwrap();
    let mut scenario = Scenario::silent(&slow);
    scenario.flows[0].messages = vec![message(100, 0)];
    scenario.flows[1].messages = vec![message(101, 0)];
    scenario.flows[1].delays[1] = RepeatedChoice::always(0);
    // l is queued at 110 + 500000, and h at that instant too, and goes first.
    assert_eq!(run(&slow, &scenario), [500_030, 500_019]);
    // Over another input it does not wait.
    document.links.push(network_link());
    document.flows[1].paths = vec![vec!["as2".to_owned(), "sb".to_owned()]];
    document.flows[1].cost_ns.insert("as2".to_owned(), 10);
    let apart = Network::new(&document).unwrap();
    let mut scenario = Scenario::silent(&apart);
    scenario.flows[0].messages = vec![message(100, 0)];
    scenario.flows[1].messages = vec![message(101, 0)];
    scenario.flows[1].delays[1] = RepeatedChoice::always(0);
    assert_eq!(run(&apart, &scenario), [500_020, 20]);
    assert_eq!(network.flows.len(), 1);
}

fn network_link() -> punctual_model::network::LinkEntry {
    punctual_model::network::LinkEntry {
        id: "as2".to_owned(),
        from: "a".to_owned(),
        to: "s".to_owned(),
        ..Default::default()
    }
}

#[test]
fn copies_and_multicast_reach_every_destination() {
    let text = |fanout: &str| {
        format!(
            r#"{{"nodes":[{{"id":"a"}},{{"id":"s","sd_max_ns":5,"copy_max_ns":3}},{{"id":"b"}},{{"id":"c"}},{{"id":"t"}}],
        "links":[{{"id":"as","from":"a","to":"s"}},{{"id":"st","from":"s","to":"t"}},
                 {{"id":"tb","from":"t","to":"b"}},{{"id":"tc","from":"t","to":"c"}}],
        "flows":[{{"id":"m","period_ns":1000,"frames":2,"paths":[["as","st","tb"],["as","st","tc"]],{fanout}
                  "cost_ns":{{"as":10,"st":10,"tb":10,"tc":20}}}}]}}"#
        )
    };
    let multicast = network(&text(""));
    let mut scenario = Scenario::silent(&multicast);
    scenario.flows[0].messages = vec![message(0, 0), message(1000, 0)];
    // Two frames: the last is on as until 20, on st until 35, on tb until 45;
    // tc is the slower: the first is there from 25 until 45.
    assert_eq!(run(&multicast, &scenario), [45, 65]);
    let copies = network(&text(r#""fanout_node":"s","#));
    let mut scenario = Scenario::silent(&copies);
    scenario.flows[0].messages = vec![message(0, 0)];
    // Frame 1 is copied at 10, queued at 18, its copies on st until 28 and 38;
    // those of frame 2 until 48 (b) and 58 (c).
    assert_eq!(run(&copies, &scenario), [58, 78]);
    scenario.flows[0].rotation = 1;
    assert_eq!(run(&copies, &scenario), [68, 68]);
}

#[test]
fn a_seed_repeats_and_all_priorities_are_served() {
    let mut flows = String::new();
    for number in 0..90 {
        flows += &format!(
            r#",{{"id":"f{number}","prio":{number},"period_ns":20000000,"wire_bytes":1250,"paths":[["xs","sb"]]}}"#
        );
    }
    let network = two_hops(&flows);
    let layout = Layout::new(&network);
    let mut engine = Engine::new(&layout);
    let chances = Chances {
        duration: 100_000_000,
        ..Chances::default()
    };
    let mut seen = Vec::new();
    for seed in [3, 4, 3] {
        engine.run(&mut Drawn::new(&layout, seed, chances), &mut Nobody);
        let all: Vec<_> = (0..91).map(|flow| engine.worst(flow, 0)).collect();
        assert!(all.iter().all(|worst| worst.count >= 2));
        seen.push((all, engine.transmissions()));
    }
    assert_eq!(seen[0], seen[2]);
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn scenarios_that_the_model_forbids_are_refused() {
    let network = two_hops("");
    let mut good = Scenario::silent(&network);
    good.flows[0].messages = vec![message(0, 7000), message(1_000_000, 0)];
    let json = serde_json::to_string(&good).unwrap();
    assert_eq!(serde_json::from_str::<Scenario>(&json).unwrap(), good);
    type Change = fn(&mut Scenario);
    let cases: [(Change, &str); 6] = [
        (
            |s| s.flows[0].messages[1].nominal_ns -= 1,
            "less than a period",
        ),
        (|s| s.flows[0].messages[0].late_ns += 1, "above the jitter"),
        (
            |s| s.flows[0].delays[1].usual += 1,
            "not from 10000 to 60000",
        ),
        (|s| s.flows[0].delays[1].except.push((0, 9)), "delay 9"),
        (|s| s.links[2].residual.usual += 1, "residual 100000"),
        (|s| s.links.truncate(1), "1 flows and 1 links"),
    ];
    for (change, expected) in cases {
        let mut bad = good.clone();
        change(&mut bad);
        let error = bad.check(&network).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

/// The frame of m waits for one frame of each other flow and for undeclared
/// traffic, at the port that they share.
#[test]
fn search_finds_the_critical_instant() {
    let extra = r#",{"id":"h","prio":6,"period_ns":2000000,"wire_bytes":1250,"paths":[["xs","sb"]]}
                   ,{"id":"n","prio":5,"period_ns":2000000,"wire_bytes":1250,"paths":[["xs","sb"]]}"#;
    let network = two_hops(extra);
    let effort = Effort {
        runs: 300,
        enough: None,
    };
    let found = search(&network, 0, 0, 7, effort);
    found.scenario.check(&network).unwrap();
    // x>s brings one of the two while the other one is sent.
    let expected = 7_000 + 100_000 + 500 + 60_000 + 99_999 + 2 * 100_000 + 100_000;
    assert_eq!(found.worst.response, expected);
    assert_eq!(run(&network, &found.scenario)[0], expected);
    assert!(found.runs <= 310, "{}", found.runs);
    let again = search(&network, 0, 0, 7, effort);
    assert_eq!(again.scenario, found.scenario);
}
