//! `punctual mesh`: the mesh as a running broker sees it.

use std::fmt::Write as _;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use punctual_server::escape::{visible_json, visible_lines};
use serde_json::{Value, json};

use super::access::Access;
use super::{Failure, print};

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print the tree, the links and what neighbours want.
    Status(Target),
    /// Connect to another broker: until the next restart, or for good with
    /// mesh.neighbours_file. For one that is there, change the weight.
    Add {
        /// Host and port, with tls:// in front if it is to be TLS; "weight=0.2" after it
        /// attracts the tree.
        #[arg(value_name = "NEIGHBOUR")]
        neighbour: String,
        #[command(flatten)]
        target: Target,
    },
    /// Give up a neighbour and close its connection. One that names this broker
    /// connects again: remove it there, too.
    Remove {
        /// Host and port, as in the status.
        #[arg(value_name = "NEIGHBOUR", value_parser = NonEmptyStringValueParser::new())]
        neighbour: String,
        #[command(flatten)]
        target: Target,
    },
    /// Say that a broker that is away does not come back: what is kept for its persistent sessions
    /// is given up at once, not after mesh.keep. Ask each broker whose status names it as away.
    Forget {
        /// Its name, as in the status.
        #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        target: Target,
    },
    /// Print which brokers get a topic, and on which way.
    Trace {
        /// Topic name.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        topic: String,
        #[command(flatten)]
        target: Target,
    },
}

/// Which broker to ask.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// Address of the broker's HTTP interface, or unix:PATH.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    broker: String,
    /// Print the broker's answer as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Status(target) => {
            let status = target.ask("GET", "/api/v1/mesh", None)?;
            target.show(&status, describe)
        }
        Command::Add { neighbour, target } => {
            let body = json!({ "neighbour": neighbour }).to_string();
            target.ask("POST", "/api/v1/mesh/neighbours", Some(&body))?;
            Ok(())
        }
        Command::Remove { neighbour, target } => {
            let path = format!("/api/v1/mesh/neighbours/{}", encoded(neighbour));
            target.ask("DELETE", &path, None)?;
            Ok(())
        }
        Command::Forget { name, target } => {
            let path = format!("/api/v1/mesh/away/{}", encoded(name));
            target.ask("DELETE", &path, None)?;
            Ok(())
        }
        Command::Trace { topic, target } => {
            let path = format!("/api/v1/mesh/trace/{}", encoded(topic));
            let answers = target.ask("GET", &path, None)?;
            target.show(&answers, ways)
        }
    }
}

/// A part of a path.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                out.push(byte.into());
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    })
}

impl Target {
    fn show(&self, answer: &Value, text: fn(&Value) -> String) -> Result<(), Failure> {
        match self.json {
            true => print(&visible_json(&format!("{answer:#}\n"))),
            false => print(&visible_lines(&text(answer))),
        }
    }

    fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Result<Value, Failure> {
        let broker = &self.broker;
        let place = broker
            .parse()
            .map_err(|remedy| format!("{broker}: {remedy}, as server.http has it"))?;
        let api = self.access.api(place);
        let answer = api.send(method, path, body.unwrap_or_default());
        let answer = answer.map_err(|error| {
            format!(
                "{error}; name the host and port of a running broker's server.http with --broker"
            )
        })?;
        let value: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        if matches!(answer.status, 200..=299) {
            return Ok(value);
        }
        let said = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let at = api.place();
        Err(match said("error").as_str() {
            "" => format!("{at}{path}: answers with status {}", answer.status),
            error => format!("{at}{path}: {error}; {}", said("remedy")),
        }
        .into())
    }
}

fn describe(status: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let millis = |value: &Value| match value.as_f64() {
        Some(micros) => format!("{:.2} ms", micros / 1e3),
        None => "-".into(),
    };
    let mut out = String::new();
    let role = match (status["parent"].as_str(), status["attached"].as_bool()) {
        (None, _) => "root".into(),
        (Some(parent), Some(true)) => format!("child of {parent}"),
        (Some(parent), _) => format!("joining {parent}"),
    };
    let _ = writeln!(
        out,
        "{} ({role}), capacity {}, {}",
        text(&status["id"]),
        status["capacity"],
        text(&status["strategy"])
    );
    let _ = writeln!(
        out,
        "root {}, {} over {} links, epoch {}",
        text(&status["root"]),
        millis(&status["cost_us"]),
        status["hops"],
        status["epoch"]
    );
    let _ = writeln!(
        out,
        "{} filters known, {} changes told",
        status["filters"], status["advertised"]
    );
    for link in status["links"].as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "  {:<20} {:<8} rtt {:<10} {} filters",
            text(&link["peer"]),
            text(&link["state"]),
            millis(&link["rtt_us"]),
            link["filters"]
        );
    }
    let list = |value: &Value| {
        let names = value.as_array().into_iter().flatten();
        names.map(text).collect::<Vec<_>>().join(", ")
    };
    let brokers = &status["brokers"];
    let count = brokers.as_array().map_or(0, Vec::len);
    let _ = writeln!(out, "{count} brokers in the tree: {}", list(brokers));
    let _ = writeln!(out, "connects to: {}", list(&status["neighbours"]));
    for (address, why) in status["unconnected"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "  {address} is not connected: {}", text(why));
    }
    for bridge in status["bridges"].as_array().into_iter().flatten() {
        let (name, address) = (text(&bridge["name"]), text(&bridge["address"]));
        let _ = match bridge["why"].as_str() {
            None => writeln!(out, "bridge {name} to {address} is connected"),
            Some(why) => writeln!(out, "bridge {name} to {address} is not connected: {why}"),
        };
    }
    let moved = |key: &str| status[key].as_u64().unwrap_or(0);
    let (came, went) = (moved("sessions_in"), moved("sessions_out"));
    if came + went > 0 {
        let _ = writeln!(
            out,
            "sessions that followed their clients: {came} here, {went} to others"
        );
    }
    let healing = list(&status["healing"]);
    if !healing.is_empty() {
        let _ = writeln!(out, "messages wait for: {healing}");
    }
    let away = list(&status["away"]);
    if !away.is_empty() {
        let _ = writeln!(out, "away, with persistent sessions: {away}");
    }
    out
}

fn ways(answers: &Value) -> String {
    let mut out = String::new();
    for answer in answers.as_array().into_iter().flatten() {
        let hops = answer["path"].as_array().into_iter().flatten();
        let mut total = 0;
        let mut way = String::new();
        for hop in hops {
            let rtt = hop[1].as_u64().unwrap_or(0);
            let _ = write!(way, "{}", hop[0].as_str().unwrap_or("?"));
            if rtt > 0 {
                let _ = write!(way, " -{:.2} ms- ", rtt as f64 / 2e3);
            }
            total += rtt;
        }
        let subscribed = match answer["subscribed"].as_bool() {
            Some(true) => "subscribed",
            _ => "passes it on",
        };
        let _ = writeln!(
            out,
            "{way}: {subscribed}, {:.2} ms one way",
            total as f64 / 2e3
        );
    }
    let mut all = answers.as_array().into_iter().flatten();
    if !all.any(|answer| answer["subscribed"] == true) {
        out.push_str("nobody has subscribed to it\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_in_words() {
        let status = json!({
            "id": "b", "parent": "a", "attached": true, "capacity": 5, "strategy": "flooding",
            "root": "a", "cost_us": 1800, "hops": 1, "epoch": 9, "filters": 2, "advertised": 3,
            "links": [{"peer": "a", "state": "parent", "rtt_us": 120.5, "filters": 1}],
            "brokers": ["a", "b"], "neighbours": ["a:1883"], "unconnected": {"x:1": "no route"},
            "bridges": [
                {"name": "site", "address": "s:1883", "connected": true, "why": null},
                {"name": "plant", "address": "p:1883", "connected": false, "why": "refused"},
            ],
            "healing": ["c"], "sessions_in": 2, "sessions_out": 0,
        });
        let text = describe(&status);
        assert!(text.starts_with("b (child of a), capacity 5, flooding\nroot a, 1.80 ms over 1"));
        assert!(
            text.contains("a                    parent   rtt 0.12 ms"),
            "{text}"
        );
        let end = "2 brokers in the tree: a, b\nconnects to: a:1883\n  x:1 is not connected: no route\n\
                   bridge site to s:1883 is connected\n\
                   bridge plant to p:1883 is not connected: refused\nsessions that followed their clients: 2 here, 0 to others\n\
                   messages wait for: c\n";
        assert!(text.ends_with(end), "{text}");
        let answers = json!([{"broker": "c", "subscribed": true, "path": [["b", 200], ["a", 1800], ["c", 0]]}]);
        assert_eq!(
            ways(&answers),
            "b -0.10 ms- a -0.90 ms- c: subscribed, 1.00 ms one way\n"
        );
        let answers = json!([{"broker": "c", "subscribed": false, "path": [["c", 0]]}]);
        assert!(ways(&answers).ends_with("\nnobody has subscribed to it\n"));
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encoded("a/b c"), "a%2Fb%20c");
        assert_eq!(encoded("10.0.0.1:1883"), "10.0.0.1:1883");
    }
}
