//! Additional traffic and losses of the RT-MQTT paper's experiment (section V.A): publishers
//! without requirements, undeclared traffic, and a packet error rate of 3 %.

use punctual_report::Page;

use super::background::{Background, Kind};
use super::experiment::Outcome;

/// Host of the broker, and the switch before it, to which h51 is attached: the sink of other
/// traffic.
const BROKER: &str = "h49";
const BEFORE: &str = "s7";

/// Switches of the publishers without requirements. h8, h16, h24, h32, h40 and h48 are the eighth
/// hosts of s1 to s6. The paper gives the places of h52 to h56 only in a drawing; here they are at
/// switches without declared flows, in turn.
const PLAIN: [&str; 11] = [
    "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s10", "s7", "s8",
];
/// Total rate of these publishers, bit/s.
const PLAIN_RATE: u64 = 6_000_000;

/// Undeclared traffic: D-ITG at h16, VLC at h24, vsftpd at h32, and eleven plain publishers.
pub(super) fn background() -> Vec<Background> {
    let of = |kind, from: &str, to: &str, rate| Background {
        kind,
        from: from.to_owned(),
        to: to.to_owned(),
        rate,
        tool: None,
        limited: false,
    };
    let mut all = vec![
        of(Kind::Bulk, "s2", BEFORE, 38_000_000),
        of(Kind::Media, "s3", BEFORE, 1_200_000),
        of(Kind::Files, "s4", BEFORE, 3_200_000),
    ];
    let rate = PLAIN_RATE / PLAIN.len() as u64;
    all.extend(PLAIN.map(|switch| of(Kind::Mqtt, switch, BROKER, rate)));
    all
}

/// The discarded packets in the runs of each load, and their retransmissions.
pub(super) fn losses<'a>(
    page: &mut Page,
    percent: f64,
    loads: impl Iterator<Item = (&'static str, &'a [Outcome])>,
) {
    page.paragraph(format!(
        "The broker's host discards {percent} % of the packets that reach it, at random, and TCP sends \
         them again: the network carries more than the flows declare. As in the paper, repetitions are not \
         among the delays: these are of first arrivals at the broker, without messages that were \
         written while TCP had an earlier one of their connection to repeat and may have held them \
         back. Below, all runs of a load together.",
    ));
    let rows = loads.map(|(load, runs)| {
        let sum = |of: fn(&Outcome) -> u64| runs.iter().map(of).sum::<u64>();
        let after = runs
            .iter()
            .filter_map(|run| run.losses.repeated_after.as_ref());
        let (mut p50, mut most) = (Vec::new(), 0.0_f64);
        for latency in after {
            p50.push(latency.p50_us);
            most = most.max(latency.max_us);
        }
        p50.sort_by(f64::total_cmp);
        let ms = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{:.1}", us / 1e3));
        let (written, acknowledged) = (sum(|run| run.written), sum(|run| run.acknowledged));
        vec![
            load.to_owned(),
            written.to_string(),
            (written - acknowledged.min(written)).to_string(),
            sum(|run| run.losses.discarded).to_string(),
            sum(|run| run.repeated).to_string(),
            sum(|run| run.losses.held_back as u64).to_string(),
            ms(p50.get(p50.len() / 2).copied()),
            ms((most > 0.0).then_some(most)),
        ]
    });
    page.table(
        [
            "load",
            "messages written",
            "never acknowledged",
            "packets discarded",
            "messages repeated, plain ones too",
            "held back, plain ones too",
            "repetition after, median of runs, ms",
            "at most, ms",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows.collect(),
    );
}

#[cfg(test)]
mod tests {
    use super::super::background::Generator;
    use super::super::layout::Layout;
    use super::*;
    use punctual_model::network::Network;
    use punctual_sim::network::families::{self, Load};

    #[test]
    fn all_publishers_of_the_paper_have_a_place_in_its_network() {
        let network = Network::new(&families::fig2(Load::High)).unwrap();
        let mut layout = Layout::new(&network).unwrap();
        let all = background();
        for (index, background) in all.iter().enumerate() {
            Generator::place(background, index, &mut layout).unwrap();
        }
        let plain = all.iter().filter(|of| of.kind == Kind::Mqtt);
        assert_eq!(plain.clone().count(), 11);
        let rate: u64 = plain.map(|of| of.rate).sum();
        assert!((PLAIN_RATE - 11..=PLAIN_RATE).contains(&rate), "{rate}");
    }
}
