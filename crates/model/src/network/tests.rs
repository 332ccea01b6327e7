use std::path::Path;

use super::*;

/// Publisher p, switch s, receivers a and b, and a broker between.
const SMALL: &str = r#"{
  "nodes": [{"id":"p"}, {"id":"s","sd_min_ns":1000,"sd_max_ns":2000,"copy_max_ns":500}, {"id":"a"}, {"id":"b"}],
  "links": [
    {"id":"p>s","from":"p","to":"s","rate_bps":100000000,"prop_ns":50,"be_bytes":1538},
    {"id":"s>a","from":"s","to":"a","rate_bps":10000000,"be_ns":5},
    {"id":"s>b","from":"s","to":"b","fifo":true}
  ],
  "flows": [{"id":"m","prio":7,"period_ns":1000000,"wire_bytes":125,
             "paths":[["p>s","s>a"],["p>s","s>b"]],"cost_ns":{"s>b":77}, "note":"ignored"}]
}"#;

fn read(text: &str) -> Result<Network, NetworkError> {
    Network::new(&Document::from_json(text)?)
}

/// The message of the error that a change of the small network gives.
fn refused(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    read(&SMALL.replace(from, to)).unwrap_err().to_string()
}

#[test]
fn a_tree_has_a_hop_per_link() {
    let network = read(SMALL).unwrap();
    let flow = &network.flows[0];
    let hop = |link, parent, cost, replicated| Hop {
        priority: None,
        link,
        parent,
        cost,
        frames: 1,
        replicated,
    };
    assert_eq!(
        flow.hops,
        [
            hop(0, None, 10_000, false),
            hop(1, Some(0), 100_000, true),
            hop(2, Some(0), 77, true)
        ]
    );
    assert_eq!(flow.leaves, [1, 2]);
    assert_eq!(
        (flow.deadline, flow.frames, flow.fanout),
        (1_000_000, 1, None)
    );
    assert_eq!(network.topology.links[0].best_effort, 123_040);
    assert_eq!(network.topology.links[1].best_effort, 5);
    assert_eq!(
        (
            network.topology.nodes[0].sd_max,
            network.topology.nodes[1].sd_max
        ),
        (0, 2000)
    );
}

#[test]
fn a_fan_out_has_a_copy_per_destination() {
    let text = SMALL.replace(r#"["p>s","s>b"]]"#, r#"["p>s","s>a"]], "fanout_node":"s""#);
    let network = read(&text).unwrap();
    let flow = &network.flows[0];
    let links: Vec<_> = flow.hops.iter().map(|hop| (hop.link, hop.parent)).collect();
    assert_eq!(links, [(0, None), (1, Some(0)), (1, Some(0))]);
    assert!(flow.hops[1].replicated && flow.hops[2].replicated);
    assert_eq!(flow.leaves, [1, 2]);
}

#[test]
fn a_multicast_to_one_place_twice_is_one_frame() {
    let network = read(&SMALL.replace(r#"["p>s","s>b"]]"#, r#"["p>s"]]"#)).unwrap();
    let flow = &network.flows[0];
    assert_eq!((flow.hops.len(), flow.leaves.as_slice()), (2, &[1, 0][..]));
    assert!(flow.hops.iter().all(|hop| !hop.replicated));
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of cases")]
fn what_means_nothing_is_refused_by_name() {
    let cases = [
        (
            r#"{"id":"a"}"#,
            r#"{"id":"p"}"#,
            r#"nodes "p": is there twice"#,
        ),
        (
            r#""to":"a""#,
            r#""to":"x""#,
            r#"links "s>a": to: "x" is not among the nodes"#,
        ),
        (
            r#""id":"s>b""#,
            r#""id":"s>a""#,
            r#"links "s>a": is there twice"#,
        ),
        (
            r#"["p>s","s>b"]]"#,
            r#"["p>s","x"]]"#,
            r#"flows "m": paths[1]: "x" is not among the links"#,
        ),
        (
            r#"["p>s","s>b"]]"#,
            r#"["s>b","p>s"]]"#,
            "does not start at",
        ),
        (
            r#"[["p>s","s>a"],["p>s","s>b"]]"#,
            r#"[["p>s"],["s>b"]]"#,
            "a flow has one publisher",
        ),
        (
            r#"[["p>s","s>a"],["p>s","s>b"]]"#,
            "[]",
            "at least one destination",
        ),
        (
            r#"[["p>s","s>a"],["p>s","s>b"]]"#,
            "[[]]",
            "paths[0]: is empty",
        ),
        (
            r#""period_ns":1000000"#,
            r#""period_ns":0"#,
            "0 is no period",
        ),
        (r#""period_ns":1000000,"#, "", "period_ns"),
        (
            r#""period_ns":1000000"#,
            r#""period_ns":-5"#,
            "-5 is negative",
        ),
        (
            r#""period_ns":1000000"#,
            r#""period_ns":"x""#,
            "whole number",
        ),
        (
            r#""period_ns":1000000"#,
            r#""period_ns":1.5"#,
            "whole number",
        ),
        (
            r#""period_ns":1000000"#,
            r#""period_ns":2000000000000000"#,
            "too long",
        ),
        (r#""wire_bytes":125"#, r#""wire_bytes":0"#, "0 is no frame"),
        (r#""s>b":77"#, r#""s>b":0"#, "0 is no cost"),
        (r#""s>b":77"#, r#""s>a":77"#, "no time is known"),
        (r#""s>b":77"#, r#""x":77"#, "not among the links"),
        (
            r#""sd_max_ns":2000"#,
            r#""sd_max_ns":20"#,
            "below sd_min_ns",
        ),
        (r#""sd_min_ns":1000"#, r#""sd_min_ns":-1"#, "negative"),
        (r#""note":"ignored""#, r#""fanout_node":"p""#, ""),
        (
            r#""note":"ignored""#,
            r#""fanout_node":"a""#,
            "leaves \"a\" 0 times",
        ),
        (
            r#""note":"ignored""#,
            r#""fanout_node":"x""#,
            "not among the nodes",
        ),
        (
            r#""note":"ignored""#,
            r#""frames":0"#,
            "frames: 0 must be from 1",
        ),
        (
            r#""fifo":true"#,
            r#""fifo":true,"edf":true"#,
            "edf: and fifo are both",
        ),
        (
            r#""fifo":true"#,
            r#""fifo":true,"unordered":true"#,
            "unordered: goes by priority",
        ),
        (
            r#""nodes": ["#,
            r#""nodes": 5, "other": ["#,
            "nodes: must be a list",
        ),
    ];
    for (from, to, expected) in cases {
        if expected.is_empty() {
            read(&SMALL.replace(from, to)).unwrap();
            continue;
        }
        let error = refused(from, to);
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
    let ring = r#"{"nodes":[{"id":"a"}],"links":[{"id":"l","from":"a","to":"a","rate_bps":1}],
        "flows":[{"id":"m","period_ns":1,"wire_bytes":1,"paths":[["l","l"]]}]}"#;
    assert!(
        read(ring)
            .unwrap_err()
            .to_string()
            .contains("visited twice")
    );
}

#[test]
fn people_write_units_and_are_told_of_slips() {
    let text = r#"
        [[nodes]]
        id = "p"
        sd_max = "2us"
        [[nodes]]
        id = "q"
        [[links]]
        id = "p>q"
        from = "p"
        to = "q"
        rate = "100Mbit"
        [[flows]]
        id = "m"
        period = "10ms"
        jitter = "0.4ms"
        wire_bytes = 1538
        paths = [["p>q"]]
        cost_ns = { "p>q" = "5us" }
    "#;
    let document = Document::from_toml(text).unwrap();
    assert_eq!(document.links[0].rate_bps, Some(100_000_000));
    assert_eq!(
        (document.flows[0].period_ns, document.flows[0].jitter_ns),
        (10_000_000, 400_000)
    );
    assert_eq!(document.flows[0].cost_ns["p>q"], 5_000);
    let json = serde_json::to_string(&document).unwrap();
    assert_eq!(Document::from_json(&json).unwrap(), document);

    for (from, to, expected) in [
        (
            "jitter =",
            "jiter =",
            "flows \"m\": jiter: is unknown; known are id, prio",
        ),
        ("\"10ms\"", "\"10 miles\"", "must be a duration"),
        ("\"10ms\"", "10", "a text with a unit"),
        (
            "jitter = \"0.4ms\"",
            "period_ns = 5",
            "a second time as period_ns",
        ),
        ("[[links]]", "[[link]]", "link: is unknown"),
    ] {
        let error = Document::from_toml(&text.replace(from, to))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn a_flow_without_paths_says_where_it_goes() {
    let text = SMALL.replace(
        r#""paths":[["p>s","s>a"],["p>s","s>b"]]"#,
        r#""from":"p","to":["a","b"],"via":"s""#,
    );
    let document = Document::from_json(&text).unwrap();
    let flow = &document.flows[0];
    assert_eq!(flow.from.as_deref(), Some("p"));
    assert_eq!(
        (flow.to.as_slice(), flow.via.as_deref()),
        (&["a".into(), "b".into()][..], Some("s"))
    );
    let error = Network::new(&document).unwrap_err().to_string();
    assert!(error.contains("paths: is empty; state"), "{error}");
    // Beside paths a machine may mean by these keys what it likes.
    let other = SMALL.replace(r#""note":"ignored""#, r#""from":5,"to":"a","via":[]"#);
    assert_eq!(read(&other), read(SMALL));
}

#[test]
fn the_name_of_a_file_decides_its_format_and_then_its_content() {
    let cases = [
        ("a.toml", "{}", Format::Toml),
        ("a.json", "x = 1", Format::Json),
        ("-", "  \n{}", Format::Json),
        ("network", "nodes = []", Format::Toml),
    ];
    for (name, text, format) in cases {
        assert_eq!(Format::of(Path::new(name), text), format, "{name}");
    }
}

#[test]
fn depth_takes_no_stack() {
    let many = 100_000;
    for deep in [
        "[".repeat(many) + &"]".repeat(many),
        "{\"a\":".repeat(many) + "1" + &"}".repeat(many),
    ] {
        assert!(Document::from_json(&deep).is_err());
        let place = format!("{{\"nodes\":[],\"links\":[],\"flows\":[],\"note\":{deep}}}");
        assert!(Document::from_json(&place).is_err());
    }
    for deep in [
        format!("x = {}{}\n", "[".repeat(many), "]".repeat(many)),
        format!("x = {}{}\n", "{a=".repeat(many), "}".repeat(many)),
        format!("[{}x]\n", "a.".repeat(many)),
    ] {
        assert!(Document::from_toml(&deep).is_err());
    }
    // A path of many links is as deep as it is long.
    let nodes: Vec<String> = (0..=20_000)
        .map(|n| format!("{{\"id\":\"{n}\"}}"))
        .collect();
    let links: Vec<String> = (0..20_000)
        .map(|n| {
            let to = n + 1;
            format!("{{\"id\":\"l{n}\",\"from\":\"{n}\",\"to\":\"{to}\",\"rate_bps\":100000000}}")
        })
        .collect();
    let path: Vec<String> = (0..20_000).map(|n| format!("\"l{n}\"")).collect();
    let text = format!(
        "{{\"nodes\":[{}],\"links\":[{}],\"flows\":[{{\"id\":\"m\",\"prio\":7,\"period_ns\":1000000,\
         \"wire_bytes\":125,\"paths\":[[{}]]}}]}}",
        nodes.join(","),
        links.join(","),
        path.join(",")
    );
    // Taken or refused by name, without a walk that is as deep.
    if let Err(error) = read(&text) {
        assert!(!error.to_string().is_empty());
    }
}
