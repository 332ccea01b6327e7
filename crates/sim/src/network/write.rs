//! A document as TOML for people: one entry a line, times and rates with units.

use std::fmt::Write as _;
use std::time::Duration;

use punctual_model::network::Document;
use punctual_model::{format_bandwidth, format_duration};

/// Writes a document as TOML with one node, link or flow in each line, so that it can be read, compared and
/// changed by hand. Reading the text leads to an equal document.
pub fn to_toml(document: &Document) -> String {
    let mut text = String::new();
    list(&mut text, "nodes", &document.nodes, |node, line| {
        line.text("id", &node.id);
        line.time("sd_min", node.sd_min_ns);
        if node.sd_max_ns != Some(node.sd_min_ns) {
            line.time("sd_max", node.sd_max_ns.unwrap_or(0));
        }
        line.time("copy_max", node.copy_max_ns);
    });
    list(&mut text, "links", &document.links, |link, line| {
        line.text("id", &link.id);
        line.text("from", &link.from);
        line.text("to", &link.to);
        if let Some(rate) = link.rate_bps {
            line.text("rate", &format_bandwidth(rate));
        }
        line.time("prop", link.prop_ns);
        if let Some(bytes) = link.be_bytes {
            line.plain("be_bytes", bytes);
        }
        line.time("be", link.be_ns.unwrap_or(0));
        if link.fifo {
            line.plain("fifo", true);
        }
        if link.edf {
            line.plain("edf", true);
        }
        if link.unordered {
            line.plain("unordered", true);
        }
        if link.whole {
            line.plain("whole", true);
        }
    });
    list(&mut text, "flows", &document.flows, |flow, line| {
        line.text("id", &flow.id);
        line.plain("prio", flow.prio);
        line.text("period", &time(flow.period_ns));
        line.time("jitter", flow.jitter_ns);
        if let Some(deadline) = flow.deadline_ns {
            line.text("deadline", &time(deadline));
        }
        if let Some(bytes) = flow.wire_bytes {
            line.plain("wire_bytes", bytes);
        }
        if let Some(frames) = flow.frames {
            line.plain("frames", frames);
        }
        if !flow.paths.is_empty() {
            let paths: Vec<_> = flow.paths.iter().map(|path| texts(path)).collect();
            line.plain("paths", format_args!("[{}]", paths.join(", ")));
        }
        if let Some(node) = &flow.from {
            line.text("from", node);
        }
        if !flow.to.is_empty() {
            line.plain("to", texts(&flow.to));
        }
        if let Some(node) = &flow.via {
            line.text("via", node);
        }
        if !flow.cost_ns.is_empty() {
            let costs = flow.cost_ns.iter();
            let costs: Vec<_> = costs
                .map(|(link, cost)| format!("{} = {}", quoted(link), quoted(&time(*cost))))
                .collect();
            line.plain("cost_ns", format_args!("{{ {} }}", costs.join(", ")));
        }
        if let Some(node) = &flow.fanout_node {
            line.text("fanout_node", node);
        }
        if !flow.fanout_prio.is_empty() {
            line.plain("fanout_prio", format_args!("{:?}", flow.fanout_prio));
        }
    });
    text
}

/// Quotes a string as TOML does.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a text does not fail.
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn texts(list: &[String]) -> String {
    let list: Vec<_> = list.iter().map(|text| quoted(text)).collect();
    format!("[{}]", list.join(", "))
}

fn time(nanos: u64) -> String {
    format_duration(Duration::from_nanos(nanos))
}

fn list<T>(text: &mut String, name: &str, entries: &[T], write: impl Fn(&T, &mut Line)) {
    if entries.is_empty() {
        return;
    }
    text.push_str(name);
    text.push_str(" = [\n");
    for entry in entries {
        let mut line = Line::default();
        write(entry, &mut line);
        text.push_str("  { ");
        text.push_str(&line.0);
        text.push_str(" },\n");
    }
    text.push_str("]\n");
}

/// Collects `key = value` pairs, separated by commas.
#[derive(Default)]
struct Line(String);

impl Line {
    fn plain(&mut self, key: &str, value: impl std::fmt::Display) {
        let comma = if self.0.is_empty() { "" } else { ", " };
        // Writing to a text does not fail.
        let _ = write!(self.0, "{comma}{key} = {value}");
    }

    fn text(&mut self, key: &str, value: &str) {
        self.plain(key, quoted(value));
    }

    /// Adds a time, which is left out if it is 0.
    fn time(&mut self, key: &str, nanos: u64) {
        if nanos > 0 {
            self.text(key, &time(nanos));
        }
    }
}
