//! What plans look like as rules.

use std::collections::{BTreeMap, BTreeSet};

use punctual_controller::plan::{
    Base, Detour, Entry, FarEnd, HandOver, Header, Leg, Mac, Mark, Match, Police, Port, PortNumber,
    Rewrite, SwitchPlan,
};
use punctual_model::srt::Protocol;

use super::rules::{hooks, replace, rules};

pub(super) fn leg(port: PortNumber, queue: u8) -> Leg {
    Leg {
        port,
        queue,
        hand_over: None,
        detour: None,
    }
}

/// A switch with three ports, p1 to p3, and one entry from the first.
pub(super) fn plan(legs: Vec<Leg>) -> SwitchPlan {
    let port = |number: PortNumber| {
        let port = Port {
            name: format!("p{number}"),
            link: None,
            rate_bps: 100_000_000,
            to: FarEnd::Edge(Vec::new()),
        };
        (number, port)
    };
    let matching = Match {
        in_port: 1,
        header: Header {
            protocol: Protocol::Tcp,
            source: "10.0.1.1".parse().unwrap(),
            source_port: None,
            destination: "10.0.1.2".parse().unwrap(),
            destination_port: Some(1883),
        },
        dscp: None,
        tagged: false,
    };
    let entry = Entry {
        owner: "m1".to_owned(),
        police: None,
        mark: None,
        legs,
    };
    SwitchPlan {
        datapath: None,
        ports: (1..=3).map(port).collect(),
        entries: BTreeMap::from([(matching, entry)]),
        base: Base::default(),
    }
}

const CONDITIONS: &str = "iifname \"p1\" ip saddr 10.0.1.1 ip daddr 10.0.1.2 meta l4proto tcp \
                          tcp dport 1883 ";

fn only(plan: &SwitchPlan) -> Vec<String> {
    rules(plan, &BTreeSet::new())
}

fn entry(plan: &mut SwitchPlan) -> &mut Entry {
    plan.entries.values_mut().next().unwrap()
}

#[test]
fn an_entry_is_policed_marked_and_forwarded() {
    let mut plan = plan(vec![leg(2, 7)]);
    entry(&mut plan).mark = Some(Mark {
        dscp: 56,
        pcp: Some(7),
    });
    entry(&mut plan).police = Some(Police {
        rate_bps: 1_000_000,
        burst_bytes: 3_000,
    });
    assert_eq!(
        only(&plan),
        [
            format!(
                "{CONDITIONS}limit rate over 125000 bytes/second burst 3000 bytes counter drop"
            ),
            format!("{CONDITIONS}counter meta priority set 1:17 ip dscp set 56 fwd to \"p2\""),
        ]
    );
}

#[test]
fn copies_that_are_changed_come_last() {
    let mut handed = leg(2, 7);
    handed.hand_over = Some(HandOver {
        dscp: 0,
        untag: true,
        address: Some(Rewrite {
            mac: Mac([2, 0, 0, 0, 0, 9]),
            ip: "10.0.1.9".parse().unwrap(),
            port: None,
        }),
    });
    assert_eq!(
        only(&plan(vec![handed, leg(3, 6)])),
        [format!(
            "{CONDITIONS}counter meta priority set 1:16 dup to \"p3\" \
             meta priority set 1:17 ip dscp set 0 ether daddr set 02:00:00:00:00:09 \
             ip daddr set 10.0.1.9 fwd to \"p2\""
        )]
    );
}

#[test]
fn a_port_that_is_down_is_gone_around_or_not_used() {
    let mut detoured = leg(2, 7);
    detoured.detour = Some(Detour {
        port: 3,
        queue: 5,
        dscp: 41,
    });
    let down = BTreeSet::from([2]);
    assert_eq!(
        rules(&plan(vec![detoured]), &down),
        [format!(
            "{CONDITIONS}counter meta priority set 1:15 ip dscp set 41 fwd to \"p3\""
        )]
    );
    assert_eq!(
        rules(&plan(vec![leg(2, 7)]), &down),
        [format!("{CONDITIONS}counter drop")]
    );
}

#[test]
fn exact_headers_come_before_others_and_both_before_the_rest() {
    let mut plan = plan(vec![leg(2, 7)]);
    let (mut exact, entry) = plan.entries.pop_first().unwrap();
    plan.entries.insert(exact, entry.clone());
    exact.header.source_port = Some(20_000);
    plan.entries.insert(exact, entry);
    plan.base = Base {
        hosts: BTreeMap::from([(Mac([2, 0, 0, 0, 0, 1]), 2)]),
        flood: vec![1, 2, 3],
        edge: vec![1],
    };
    let rules = only(&plan);
    assert!(rules[0].contains("sport 20000"));
    assert!(!rules[1].contains("sport"));
    assert_eq!(
        rules[2..],
        [
            "iifname \"p1\" ip dscp set 0",
            "iifname \"p1\" ip6 dscp set 0",
            "meta priority set 1:10",
            "iifname != \"p2\" ether daddr 02:00:00:00:00:01 counter fwd to \"p2\"",
            "iifname \"p1\" ip daddr 224.0.0.0/4 ip daddr != 224.0.0.0/24 counter drop",
            "iifname \"p1\" ip6 daddr ff00::/8 ip6 daddr & ff0f:: != ff02:: counter drop",
            "iifname \"p1\" ether daddr & 01:00:00:00:00:00 == 01:00:00:00:00:00 counter \
             dup to \"p2\" fwd to \"p3\"",
            "iifname \"p2\" ip daddr 224.0.0.0/4 ip daddr != 224.0.0.0/24 counter drop",
            "iifname \"p2\" ip6 daddr ff00::/8 ip6 daddr & ff0f:: != ff02:: counter drop",
            "iifname \"p2\" ether daddr & 01:00:00:00:00:00 == 01:00:00:00:00:00 counter \
             dup to \"p1\" fwd to \"p3\"",
            "iifname \"p3\" ip daddr 224.0.0.0/4 ip daddr != 224.0.0.0/24 counter drop",
            "iifname \"p3\" ip6 daddr ff00::/8 ip6 daddr & ff0f:: != ff02:: counter drop",
            "iifname \"p3\" ether daddr & 01:00:00:00:00:00 == 01:00:00:00:00:00 counter \
             dup to \"p1\" fwd to \"p2\"",
        ]
    );
}

#[test]
fn every_port_leads_to_the_same_rules_and_a_replacement_keeps_the_hooks() {
    let hooks = hooks(["p1", "p2"]);
    assert_eq!(hooks.matches("jump forward").count(), 2);
    assert!(hooks.contains("hook ingress device \"p2\" priority 0;"));
    let replaced = replace(&only(&plan(vec![leg(2, 7)])));
    assert!(replaced.starts_with("flush chain netdev punctual forward\n"));
    assert_eq!(
        replaced
            .matches("add rule netdev punctual forward ")
            .count(),
        1
    );
    assert!(!replaced.contains("hook"));
}
