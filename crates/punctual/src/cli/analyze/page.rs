//! A study as charts, and as an HTML page with them.

use punctual_analysis::LinkLoad;
use punctual_report::{Bars, Chart, Edge, Group, Page, Part, Unit, bars, map};

use super::study::{Row, Study};
use super::table::cells;

/// So many links are drawn in the chart of loads, the fullest.
const LINKS: usize = 60;

/// An HTML page: the answer, charts, the table.
pub(super) fn html(study: &Study, name: &str) -> String {
    let mut page = Page::new(&format!("Response times of {name}"));
    page.paragraph(format!("**{}.**", study.summary()));
    let remarks = study.remarks();
    if !remarks.is_empty() {
        page.parts.push(Part::List(remarks));
    }
    page.paragraph(
        "Times are counted from a message's nominal release to its last bit at the destination, \
         release jitter included. The verdict rests on the tightest safe method shown.",
    );
    for (caption, chart) in charts(study) {
        page.charts(vec![(caption, chart)]);
    }
    page.heading("Flows");
    let (head, rows) = cells(study);
    page.table(head, rows);
    page.html()
}

/// Bounds, slack, loads of links, and their map, with captions.
pub(super) fn charts(study: &Study) -> Vec<(String, Chart)> {
    vec![
        ("Bounds and deadline of each flow".into(), bounds(study)),
        (
            "What each flow has left to its deadline, as a share of it".into(),
            slack(study),
        ),
        ("Load of the links by declared flows".into(), loads(study)),
        (
            "The network and the loads of its links".into(),
            network(study),
        ),
    ]
}

/// Nanoseconds as µs.
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// The flow's name, and which path where it has several.
fn name(study: &Study, row: &Row) -> String {
    let same = |other: &&Row| other.flow == row.flow;
    match study.rows.iter().filter(same).count() {
        1 => row.flow.clone(),
        _ => format!("{} {}", row.flow, row.path),
    }
}

fn bounds(study: &Study) -> Chart {
    let methods = study.methods.iter();
    let mut series: Vec<String> = methods.map(|method| method.title().to_owned()).collect();
    if study.observed {
        series.insert(0, "observed".into());
    }
    let group = |row: &Row| {
        let bounds = row.bounds.iter().map(|bound| bound.map(micros));
        let observed = study.observed.then_some(row.observed.map(micros));
        Group {
            name: name(study, row),
            values: observed.into_iter().chain(bounds).collect(),
            mark: Some(micros(row.deadline)),
        }
    };
    bars(&Bars {
        title: "Bounds".into(),
        series,
        mark: "deadline".into(),
        unit: Unit::Micros,
        groups: study.rows.iter().map(group).collect(),
    })
}

fn slack(study: &Study) -> Chart {
    let share = |row: &Row| {
        let slack = row.slack()?;
        (row.deadline > 0).then(|| slack as f64 / row.deadline as f64 * 100.0)
    };
    let group = |row: &Row| Group {
        name: name(study, row),
        values: vec![share(row)],
        mark: None,
    };
    bars(&Bars {
        title: "Slack".into(),
        series: vec!["slack, % of the deadline".into()],
        mark: String::new(),
        unit: Unit::Percent,
        groups: study.rows.iter().map(group).collect(),
    })
}

fn loads(study: &Study) -> Chart {
    let mut loads = study.loads.clone();
    loads.sort_by(|a, b| b.percent().total_cmp(&a.percent()));
    let group = |load: &LinkLoad| Group {
        name: study.network.topology.links[load.link].id.clone(),
        values: vec![Some(load.percent())],
        mark: Some(100.0),
    };
    bars(&Bars {
        title: "Loads".into(),
        series: vec!["load".into()],
        mark: "all of the link".into(),
        unit: Unit::Percent,
        groups: loads.iter().take(LINKS).map(group).collect(),
    })
}

/// Nodes stand as far to the right as they are from the publishers.
fn network(study: &Study) -> Chart {
    let topology = &study.network.topology;
    let mut layers = vec![0; topology.nodes.len()];
    for flow in &study.network.flows {
        let mut depths = Vec::with_capacity(flow.hops.len());
        for hop in &flow.hops {
            let depth = hop.parent.map_or(1, |parent| depths[parent] + 1);
            depths.push(depth);
            let to = topology.links[hop.link].to;
            layers[to] = layers[to].max(depth);
        }
    }
    let nodes: Vec<_> = topology
        .nodes
        .iter()
        .zip(&layers)
        .map(|(node, layer)| (node.id.clone(), *layer))
        .collect();
    let mut percent = vec![0.0; topology.links.len()];
    for load in &study.loads {
        percent[load.link] = load.percent();
    }
    let edges: Vec<_> = topology
        .links
        .iter()
        .zip(percent)
        .map(|(link, percent)| Edge {
            from: link.from,
            to: link.to,
            name: link.id.clone(),
            percent,
        })
        .collect();
    map("Network", &nodes, &edges)
}
