//! A map of nodes and directed links, each as thick as it is loaded.
//!
//! The caller gives every node a layer; layers are columns from left to right.
//! Inside a column nodes are sorted by the mean place of their neighbours, so
//! that few links cross.

use crate::chart::{Chart, escape};

const COLUMN: f64 = 150.0;
const ROW: f64 = 26.0;
const MARGIN: f64 = 44.0;
const RADIUS: f64 = 11.0;
/// So many links have their loads beside them.
const LABELS: usize = 80;
/// Times that the columns are sorted, there and back.
const SWEEPS: usize = 4;

/// A directed link.
#[derive(Debug, Clone)]
pub struct Edge {
    /// Index of the node that sends.
    pub from: usize,
    /// Index of the node that receives.
    pub to: usize,
    /// Its name.
    pub name: String,
    /// Its load, percent.
    pub percent: f64,
}

/// Draws the map of `nodes` (name and layer). An edge between nodes that do not
/// exist is left out.
pub fn map(title: &str, nodes: &[(String, usize)], edges: &[Edge]) -> Chart {
    let columns = columns(nodes, edges);
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let width = MARGIN * 2.0 + COLUMN * columns.len().saturating_sub(1) as f64;
    let height = MARGIN * 2.0 + ROW * (rows - 1) as f64;
    let mut places = vec![(0.0, 0.0); nodes.len()];
    for (column, members) in columns.iter().enumerate() {
        let gap = (height - 2.0 * MARGIN) / members.len() as f64;
        for (row, node) in members.iter().enumerate() {
            places[*node] = (
                MARGIN + COLUMN * column as f64,
                MARGIN + gap * (row as f64 + 0.5),
            );
        }
    }
    let mut chart = Chart::new(title, width.max(560.0), height + 20.0);
    let known = |edge: &&Edge| edge.from < nodes.len() && edge.to < nodes.len();
    for edge in edges.iter().filter(known) {
        draw(
            &mut chart,
            edge,
            places[edge.from],
            places[edge.to],
            edges.len() <= LABELS,
        );
    }
    for ((name, _), (x, y)) in nodes.iter().zip(&places) {
        chart.add(format_args!(
            "<rect class=\"node\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"5\"/>\
             <text class=\"ink small\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x - RADIUS * 1.8,
            y - RADIUS * 0.8,
            RADIUS * 3.6,
            RADIUS * 1.6,
            y + 3.0,
            escape(name)
        ));
    }
    legend(&mut chart, height + 10.0);
    chart
}

fn draw(chart: &mut Chart, edge: &Edge, from: (f64, f64), to: (f64, f64), with_label: bool) {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy).max(1.0);
    // To the right of its direction, so that both directions can be seen.
    let bend = if dx == 0.0 { 34.0 } else { 7.0 };
    let (x, y) = (
        from.0 + dx / 2.0 - dy / length * bend,
        from.1 + dy / 2.0 + dx / length * bend,
    );
    let (class, percent, name) = (class(edge.percent), edge.percent, escape(&edge.name));
    chart.add(format_args!(
        "<path class=\"edge {class}\" d=\"M{:.1} {:.1}Q{x:.1} {y:.1} {:.1} {:.1}\">\
         <title>{name}: {percent:.1} %</title></path>",
        from.0, from.1, to.0, to.1
    ));
    if with_label && percent >= 0.05 {
        // A third of the way back from the receiver, where links that meet
        // there still lie apart.
        let (x, y) = (from.0 + dx * 0.4, from.1 + dy * 0.4);
        chart.add(format_args!(
            "<text class=\"ink small\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{percent:.0} %</text>",
            y - 2.0
        ));
    }
}

fn class(percent: f64) -> &'static str {
    match percent {
        p if p > 100.0 => "l3",
        p if p > 70.0 => "l2",
        p if p > 30.0 => "l1",
        _ => "l0",
    }
}

fn legend(chart: &mut Chart, y: f64) {
    let steps = [
        ("l0", "to 30 %"),
        ("l1", "to 70 %"),
        ("l2", "to 100 %"),
        ("l3", "more"),
    ];
    for (index, (class, name)) in steps.iter().enumerate() {
        let x = 8.0 + 92.0 * index as f64;
        chart.add(format_args!(
            "<path class=\"edge {class}\" d=\"M{x:.0} {y:.1}h22\"/>\
             <text class=\"ink\" x=\"{:.0}\" y=\"{:.1}\">{name}</text>",
            x + 28.0,
            y + 4.0
        ));
    }
}

/// The nodes of each layer, those that are linked near each other.
fn columns(nodes: &[(String, usize)], edges: &[Edge]) -> Vec<Vec<usize>> {
    let mut layers: Vec<usize> = nodes.iter().map(|(_, layer)| *layer).collect();
    layers.sort_unstable();
    layers.dedup();
    let mut columns: Vec<Vec<usize>> = vec![Vec::new(); layers.len()];
    for (node, (_, layer)) in nodes.iter().enumerate() {
        columns[layers.partition_point(|known| known < layer)].push(node);
    }
    let mut neighbours: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for edge in edges {
        if edge.from < nodes.len() && edge.to < nodes.len() {
            neighbours[edge.from].push(edge.to);
            neighbours[edge.to].push(edge.from);
        }
    }
    let mut place: Vec<f64> = vec![0.0; nodes.len()];
    let settle = |column: &[usize], place: &mut Vec<f64>| {
        for (row, node) in column.iter().enumerate() {
            place[*node] = (row as f64 + 0.5) / column.len() as f64;
        }
    };
    for column in &columns {
        settle(column, &mut place);
    }
    for sweep in 0..SWEEPS {
        let order: Vec<usize> = match sweep % 2 {
            0 => (0..columns.len()).collect(),
            _ => (0..columns.len()).rev().collect(),
        };
        for column in order {
            let mean = |node: &usize| {
                let of = &neighbours[*node];
                match of.len() {
                    0 => place[*node],
                    count => of.iter().map(|other| place[*other]).sum::<f64>() / count as f64,
                }
            };
            let mut keyed: Vec<(f64, usize)> = columns[column]
                .iter()
                .map(|node| (mean(node), *node))
                .collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            columns[column] = keyed.into_iter().map(|(_, node)| node).collect();
            settle(&columns[column], &mut place);
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: usize, to: usize, percent: f64) -> Edge {
        Edge {
            from,
            to,
            name: format!("{from}>{to}"),
            percent,
        }
    }

    #[test]
    fn nodes_that_are_linked_stand_side_by_side() {
        let nodes: Vec<_> = [("a", 0), ("b", 0), ("x", 3), ("y", 3)]
            .map(|(name, layer)| (name.to_owned(), layer))
            .into();
        let columns = columns(&nodes, &[edge(0, 3, 1.0), edge(1, 2, 1.0)]);
        assert!(
            columns == [[0, 1], [3, 2]] || columns == [[1, 0], [2, 3]],
            "{columns:?}"
        );
    }

    #[test]
    fn a_link_is_as_thick_as_it_is_loaded() {
        let nodes = [("a&b".to_owned(), 0), ("c".to_owned(), 1)];
        let svg = map(
            "t",
            &nodes,
            &[edge(0, 1, 104.0), edge(1, 0, 0.0), edge(0, 7, 50.0)],
        )
        .svg();
        assert!(svg.contains("<path class=\"edge l3\" d=\"M44.0"), "{svg}");
        assert!(svg.contains("<title>0&gt;1: 104.0 %</title>"), "{svg}");
        assert!(svg.contains(">104 %</text>") && svg.contains(">a&amp;b</text>"));
        // Two links that exist, four signs of the legend.
        assert_eq!(svg.matches("class=\"edge").count(), 6);
        assert!(map("t", &[], &[]).svg().contains("<title>t</title>"));
    }
}
