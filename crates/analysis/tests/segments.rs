//! Where segments of a path reach: across ports without priorities, past flows
//! that leave, and up to a full link.

use punctual_analysis::{PathBounds, analyze};
use punctual_model::network::{Document, Network};
use serde_json::{Value, json};

fn bounds(nodes: &[&str], links: Value, flows: Value) -> Vec<PathBounds> {
    let nodes: Vec<_> = nodes.iter().map(|id| json!({ "id": id })).collect();
    let document = json!({ "nodes": nodes, "links": links, "flows": flows });
    let document: Document = serde_json::from_value(document).expect("a document");
    let bounds = analyze(&Network::new(&document).expect("a network"));
    bounds.flows.into_iter().map(|paths| paths[0]).collect()
}

/// A link on which frames take so many ns for each byte.
fn link(id: &str, from: &str, to: &str, nanos_per_byte: u64) -> Value {
    json!({ "id": id, "from": from, "to": to, "rate_bps": 8_000_000_000 / nanos_per_byte })
}

/// Three publishers of 1000 bytes, over a switch to a processor that takes
/// 100 us for each message and serves in this way.
fn to_a_processor(service: &str, priorities: [u64; 3]) -> Vec<PathBounds> {
    let mut cpu = json!({ "id": "cpu", "from": "in", "to": "out" });
    cpu[service] = json!(true);
    let links = json!([
        link("a>s", "a", "s", 10),
        link("b>s", "b", "s", 10),
        link("c>s", "c", "s", 10),
        link("s>in", "s", "in", 10),
        cpu
    ]);
    let flow = |host: &str, prio: u64| {
        json!({
            "id": host, "prio": prio, "period_ns": 10_000_000, "wire_bytes": 1000,
            "cost_ns": { "cpu": 100_000 }, "paths": [[format!("{host}>s"), "s>in", "cpu"]],
        })
    };
    let [a, b, c] = priorities;
    let flows = json!([flow("a", a), flow("b", b), flow("c", c)]);
    bounds(&["a", "b", "c", "s", "in", "out"], links, flows)
}

#[test]
fn who_goes_along_is_paid_once_across_ports_without_priorities() {
    // By hand: the others are at the switch when a's message comes (10 us) and
    // first at the processor, which the first of them reaches 10 us later;
    // then three times 100 us.
    for service in ["fifo", "edf"] {
        let equal = to_a_processor(service, [1, 1, 1]);
        assert_eq!(equal[0].best, Some(320_000), "{service}");
        assert_eq!(equal[0].trajectory, Some(320_000), "{service}");
        // Port by port the switch is paid, too.
        assert_eq!(equal[0].holistic, Some(340_000), "{service}");
        // One of lower priority may have begun at the switch, and counts again
        // at the processor. Cut there, the link to it brings one at a time.
        let lower = to_a_processor(service, [1, 1, 0]);
        assert_eq!(lower[0].trajectory, Some(330_000), "{service}");
        assert_eq!(lower[0].best, Some(320_000), "{service}");
    }
}

#[test]
fn one_less_urgent_frame_does_not_block_at_every_port() {
    let links = json!([
        link("a>s", "a", "s", 10),
        link("b>s", "b", "s", 10),
        link("s>t", "s", "t", 10),
        link("c>t", "c", "t", 10),
        link("t>u", "t", "u", 10),
    ]);
    let flow = |id: &str, prio: u64, bytes: u64, path: &[&str]| {
        json!({
            "id": id, "prio": prio, "period_ns": 1_000_000, "wire_bytes": bytes, "paths": [path],
        })
    };
    let flows = json!([
        flow("tested", 1, 1000, &["a>s", "s>t", "t>u"]),
        flow("ahead", 0, 1000, &["b>s", "s>t", "t>u"]),
        flow("joins", 0, 100, &["c>t", "t>u"]),
    ]);
    // By hand: 10 us to the switch, where the other has just begun; it has gone from t when
    // the tested one comes, 20 us later, but for the short one (1 us) before it.
    let found = bounds(&["a", "b", "c", "s", "t", "u"], links, flows);
    assert_eq!(found[0].best, Some(41_000));
    // Blocked at both switches.
    assert_eq!(found[0].trajectory, Some(50_000));
}

#[test]
fn no_deadline_is_overtaken_by_a_longer_one() {
    let links = json!([
        link("a>b", "a", "b", 10),
        { "id": "cpu", "from": "b", "to": "c", "edf": true },
    ]);
    let flow = |id: &str, period: u64, deadline: u64, cost: u64| {
        json!({
            "id": id, "prio": 0, "period_ns": period, "deadline_ns": deadline, "wire_bytes": 1000,
            "cost_ns": { "cpu": cost }, "paths": [["a>b", "cpu"]],
        })
    };
    let flows = json!([
        flow("tested", 1_000_000, 100_000, 20_000),
        flow("as urgent", 1_000_000, 100_000, 100_000),
        flow("patient", 40_000, 2_000_000, 30_000),
    ]);
    // By hand: one message of each other, 10 us later; what of the patient one
    // comes while these are served goes behind.
    let found = bounds(&["a", "b", "c"], links, flows);
    assert_eq!(found[0].best, Some(160_000));
}

#[test]
fn equals_in_any_order_go_first_as_often_as_they_come() {
    let flow = |id: &str, period: u64, cost: u64| {
        json!({
            "id": id, "prio": 0, "period_ns": period, "cost_ns": { "cpu": cost }, "paths": [["cpu"]],
        })
    };
    let flows = [
        flow("tested", 1_000_000, 20_000),
        flow("long", 1_000_000, 100_000),
        flow("often", 80_000, 30_000),
    ];
    let of = |flows: &[Value], unordered: bool| {
        let cpu = json!({ "id": "cpu", "from": "a", "to": "b", "unordered": unordered });
        bounds(&["a", "b"], json!([cpu]), json!(flows))[0].best
    };
    // By hand: in the order of arrival one of each is first; in any order also those
    // that come 80 and 160 us later.
    assert_eq!(of(&flows, false), Some(150_000));
    assert_eq!(of(&flows, true), Some(210_000));
    // One that differs in name only is no exception. By hand: both of its messages come
    // before the tested one, 40 us after the first; or the second, while the first is
    // served that came with the tested one.
    let mut alike = [
        flow("tested", 100_000, 45_000),
        flow("alike", 100_000, 45_000),
    ];
    for flow in &mut alike {
        flow["jitter_ns"] = json!(60_000);
    }
    assert_eq!(of(&alike, false), Some(60_000 + 135_000 - 40_000));
    assert_eq!(of(&alike, true), Some(60_000 + 135_000));
}

#[test]
fn full_together_is_not_full() {
    let links = json!([
        link("a>s", "a", "s", 10),
        link("s>t", "s", "t", 10),
        link("t>u", "t", "u", 10),
        link("b>s", "b", "s", 10),
        link("c>t", "c", "t", 10),
        link("t>v", "t", "v", 10),
    ]);
    let flow = |id: &str, prio: u64, period: u64, path: &[&str]| {
        json!({
            "id": id, "prio": prio, "period_ns": period, "wire_bytes": 1000, "paths": [path],
        })
    };
    // Six tenths of each port are taken by others, not the same at both.
    let flows = json!([
        flow("tested", 0, 1_000_000, &["a>s", "s>t", "t>u"]),
        flow("leaves", 1, 16_667, &["b>s", "s>t", "t>v"]),
        flow("joins", 1, 16_667, &["c>t", "t>u"]),
    ]);
    let nodes = ["a", "b", "c", "s", "t", "u", "v"];
    let found = bounds(&nodes, links, flows);
    // By hand: 10 us to the switch; one that leaves, which counts at both ports
    // if it can, one that joins in each 16.667 us.
    let trajectory = found[0].trajectory.expect("each port has time left");
    assert!(trajectory >= 50_000, "{trajectory}");
    assert!(found[0].best <= found[0].trajectory && found[0].best <= found[0].holistic);
}

#[test]
fn almost_full_links_have_bounds() {
    let links = json!([link("a>b", "a", "b", 10), link("b>c", "b", "c", 10)]);
    let flows: Vec<_> = (0..20_u64)
        .map(|number| {
            let bytes = 500 + 37 * number;
            json!({
                "id": format!("f{number}"), "prio": number % 4, "wire_bytes": bytes,
                // A twentieth of the link, but for a part in ten million.
                "period_ns": bytes * 200 + bytes / 50_000 + 1,
                "jitter_ns": 30_000, "paths": [["a>b", "b>c"]],
            })
        })
        .collect();
    let found = bounds(&["a", "b", "c"], links, json!(flows));
    for (number, bounds) in found.iter().enumerate() {
        let least = 30_000 + 2 * (500 + 37 * number as u64) * 10;
        assert!(
            bounds.best.is_some_and(|best| best >= least),
            "f{number}: {bounds:?}"
        );
    }
}

/// What is urgent, and what is not and has so many bytes, over a switch that both
/// share to one that only they come to, unless something starts there; by holistic
/// steps. `last` is added to the last link, `node` to the last switch.
fn past_what_is_less_urgent(bytes: u64, last: Value, node: Value, third: bool) -> Option<u64> {
    let mut out = link("t>d", "t", "d", 10);
    let mut t = json!({ "id": "t" });
    for (object, more) in [(&mut out, last), (&mut t, node)] {
        let more = more.as_object().expect("an object").clone();
        object.as_object_mut().expect("an object").extend(more);
    }
    let nodes =
        json!([{ "id": "a" }, { "id": "b" }, { "id": "c" }, { "id": "s" }, t, { "id": "d" }]);
    let links = json!([
        link("a>s", "a", "s", 10),
        link("b>s", "b", "s", 10),
        link("c>t", "c", "t", 10),
        link("s>t", "s", "t", 10),
        out
    ]);
    let flow = |id: &str, prio: u64, bytes: u64, path: Value| {
        json!({
            "id": id, "prio": prio, "period_ns": 10_000_000, "wire_bytes": bytes, "paths": [path],
        })
    };
    let mut flows = vec![
        flow("urgent", 1, 1000, json!(["a>s", "s>t", "t>d"])),
        flow("other", 0, bytes, json!(["b>s", "s>t", "t>d"])),
    ];
    if third {
        flows.push(flow("third", 0, 84, json!(["c>t", "t>d"])));
    }
    let document = json!({ "nodes": nodes, "links": links, "flows": flows });
    let document: Document = serde_json::from_value(document).expect("a document");
    let network = Network::new(&document).expect("a network");
    analyze(&network).flows[0][0].holistic
}

#[test]
fn who_comes_over_one_link_has_been_held_there() {
    let plain = || json!({});
    // By hand: 10 us, behind the other 20 us, and 10 us, because the other is gone when
    // the urgent one has come over the link on which it followed.
    let equal = past_what_is_less_urgent(1000, plain(), plain(), false);
    assert_eq!(equal, Some(40_000));
    // A longer one needs 5 us more than the urgent one takes to come.
    let longer = past_what_is_less_urgent(1500, plain(), plain(), false);
    assert_eq!(longer, Some(10_000 + 25_000 + 15_000));
    // It may come so much later, or have waited for best effort first.
    let varied = past_what_is_less_urgent(1500, plain(), json!({ "sd_max_ns": 3_000 }), false);
    assert_eq!(varied, Some(10_000 + 25_000 + 21_000));
    let behind = past_what_is_less_urgent(1500, json!({ "be_bytes": 200 }), plain(), false);
    assert_eq!(behind, Some(10_000 + 25_000 + 17_000));
    // Behind something that came another path, or to a slower link, it may begin last.
    let third = past_what_is_less_urgent(1500, plain(), plain(), true);
    assert_eq!(third, Some(10_000 + 25_000 + 25_000));
    let slower = past_what_is_less_urgent(1500, json!({ "rate_bps": 400_000_000 }), plain(), false);
    assert_eq!(slower, Some(10_000 + 25_000 + 50_000));
}

/// Messages of three frames, of which the broker makes a copy for each of two
/// receivers behind one link. `cpu` is how it serves and what it takes.
fn large_messages(cpu: Value, cost: u64) -> Vec<PathBounds> {
    let mut server = json!({ "id": "cpu", "from": "in", "to": "out" });
    for (key, value) in cpu.as_object().expect("fields") {
        server[key] = value.clone();
    }
    let links = json!([
        link("a>s", "a", "s", 10),
        link("b>s", "b", "s", 10),
        link("s>in", "s", "in", 10),
        server,
        link("out>t", "out", "t", 10),
        link("t>x", "t", "x", 10),
        link("t>y", "t", "y", 10),
    ]);
    let flow = |host: &str, prio: u64| {
        let way = |to: &str| {
            [
                format!("{host}>s"),
                "s>in".into(),
                "cpu".into(),
                "out>t".into(),
                format!("t>{to}"),
            ]
        };
        json!({
            "id": host, "prio": prio, "period_ns": 100_000_000, "wire_bytes": 1000, "frames": 3,
            "cost_ns": { "cpu": cost }, "fanout_node": "out", "paths": [way("x"), way("y")],
        })
    };
    let flows = json!([flow("a", 0), flow("b", 1)]);
    bounds(&["a", "b", "s", "in", "out", "t", "x", "y"], links, flows)
}

#[test]
fn a_message_that_is_served_whole_waits_for_another_before_and_behind() {
    // By hand, in us, each frame taking 10 on a link and each message 1 at the processor: a's
    // frames are at the switch at 10, 20 and 30, and go on at once but the last, for with it
    // come those of b's message, which are at the processor at 40, 50 and 60. From 61 to 121 all
    // six frames of its copies go over the next link. a's last frame is at the processor at 70;
    // its message is ready at 71, goes out from 121 to 181, and over the last link to 191.
    let served_whole = large_messages(json!({ "whole": true }), 1_000);
    for found in [served_whole[0].best, served_whole[0].trajectory] {
        assert_eq!(found, Some(191_000));
    }
    assert!(served_whole[0].holistic >= Some(191_000));
    // A link that takes longer for each frame, by all frames that follow, is no such processor.
    let frame_by_frame = large_messages(json!({}), 1_000 + 2 * 10_000);
    assert!(frame_by_frame[0].best < Some(191_000));
}

#[test]
fn a_processor_may_take_less_than_what_is_stated() {
    // By hand, in us: a message of b comes to the processor at 1 and takes 900; the one of the
    // next period comes at 1001 and takes nothing. A frame of c's that comes out with the first
    // waits 500 for it and 500 for the other.
    let links = json!([
        link("b>in", "b", "in", 1),
        { "id": "cpu", "from": "in", "to": "out", "whole": true },
        link("out>t", "out", "t", 500),
    ]);
    let flows = json!([
        { "id": "c", "prio": 0, "period_ns": 100_000_000, "wire_bytes": 1000, "paths": [["out>t"]] },
        {
            "id": "b", "prio": 1, "period_ns": 1_000_000, "wire_bytes": 1000,
            "cost_ns": { "cpu": 900_000 }, "paths": [["b>in", "cpu", "out>t"]],
        },
    ]);
    let found = bounds(&["b", "in", "out", "t"], links, flows);
    assert_eq!(found[0].best, Some(1_500_000));
    // With the hop before, all that may pass counts once: 1, 900 and a frame.
    assert_eq!(found[1].best, Some(1_000 + 900_000 + 500_000 + 500_000));
}
