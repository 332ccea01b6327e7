//! The experiment of the MRT-MQTT paper, Figs. 15 to 18: three edge networks, in which messages go
//! to the brokers of all three by standard MQTT, by DM-MQTT and by MRT-MQTT.
//!
//! A case is a load with one of these systems. Every case gets a network of its own and is written
//! to the results file when it has finished. Sets of flows that overload a link are not run; the
//! report shows why admission control refuses them.

mod checks;
mod counters;
mod report;
mod run;
mod scenario;
mod tally;

use std::io::Write;
use std::time::Duration;

use clap::Args;
use punctual_analysis::Admission;
use punctual_model::network::Network;
use punctual_sim::network::families::Load;
use serde_json::{Value, json};

use self::checks::Check;
use self::report::{Report, Verdict};
use self::run::{CaseResult, Setup};
pub(super) use self::scenario::background;
use self::scenario::{OwnEdge, Scenario, Series, Setting, Subscribed};
use super::background::Background;
use super::broker::Kind;
use super::layout::Layout;
use super::outputs::OutputArgs;
use super::tools::{self, Wanted};
use super::{LoadName, cores};
use crate::arguments::seconds;
use crate::compare::machine::Machine;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-mrt-mqtt-1";

/// The paper's number of repetitions, and a duration in which each publisher sends at least the
/// paper's 100 messages.
const PAPER: (u64, Duration) = (1000, Duration::from_secs(2));
/// Repetitions and duration of a smoke test.
const SHORT: (u64, Duration) = (1, Duration::from_secs(10));
/// Default repetitions and duration.
const USUAL: (u64, Duration) = (3, Duration::from_secs(5));

/// Duration of traffic before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);

/// Options of `bench mrt-mqtt`.
#[derive(Args, Debug)]
pub(crate) struct MrtArgs {
    /// Loads: 20, 40 or 60 publishers on each gateway
    #[arg(
        long,
        value_name = "LOAD",
        value_delimiter = ',',
        default_value = "low,medium,high"
    )]
    loads: Vec<LoadName>,
    /// Systems to run
    #[arg(
        long,
        value_name = "SYSTEM",
        value_delimiter = ',',
        default_value = "mqtt,dm-mqtt,mrt-mqtt"
    )]
    series: Vec<Series>,
    /// Let all three edge networks publish; the paper reports results with A publishing only. Loads
    /// that overload a link are then not run but shown as refused, with the reason
    #[arg(long)]
    all_publish: bool,
    /// Scale periods and deadlines by a common factor, until no link is loaded above 90 % and every
    /// bound is within its deadline
    #[arg(long)]
    scale_periods: bool,
    /// How MRT-MQTT reaches the broker in the publisher's own edge network
    #[arg(long, value_name = "HOW", default_value = "group")]
    own_edge: OwnEdge,
    /// Publishers without requirements on each of h3, h8 and h13. The paper has as many as on its
    /// other gateways, 20, 40 or 60; two cores cannot run more than 20 beside the other traffic
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=60))]
    plain: u16,
    /// What subscribers subscribe to. Delays behind the brokers are not measured, and on two cores
    /// forwarding everything would take CPU time from the measured part
    #[arg(long, value_name = "WHAT", default_value = "plain")]
    subscribe: Subscribed,
    /// Smoke test: each case once, for 10 s
    #[arg(long, conflicts_with = "paper")]
    short: bool,
    /// Repeat as often as the paper: 1000 repetitions of at least 100 messages of every publisher
    #[arg(long)]
    paper: bool,
    /// Repetitions of each case, with different phases and release jitter [default: 3; short: 1;
    /// paper: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    repeats: Option<u64>,
    /// Measured seconds per repetition [default: 5; short: 10; paper: 2]
    #[arg(long, short, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// Program of the broker
    #[arg(long, value_name = "BROKER", default_value = "mosquitto")]
    broker: Kind,
    /// Programs that generate the undeclared traffic of their kind, separated by commas; none is
    /// installed automatically. The emulation itself generates what no tool generates
    #[arg(
        long,
        value_name = "TOOL",
        value_delimiter = ',',
        default_value = "installed"
    )]
    tools: Vec<Wanted>,
    /// Neither pin clients to a core nor give them real-time priority, nor detect gaps in which the
    /// machine did not run them
    #[arg(long)]
    unpinned: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl MrtArgs {
    /// Runs the experiment; progress goes to standard error, the tables to `out`. Returns whether
    /// all checks passed.
    ///
    /// # Errors
    /// Privileges or programs are missing, a network cannot be built, or a file cannot be written.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<bool> {
        Namespace::check()?;
        let setup = self.setup()?;
        let verdicts = self.verdicts()?;
        let mut settings = Vec::new();
        for load in &self.loads {
            let scenario = Scenario::new(self.setting((*load).into(), self.all_publish))?;
            if scenario.most_loaded() <= 1.0 {
                settings.push(scenario);
            }
        }
        let machine = Machine::read();
        let file = self.output.results_file("mrt-mqtt")?;
        let mut cases: Vec<CaseResult> = Vec::new();
        for scenario in &settings {
            for series in Series::ALL
                .into_iter()
                .filter(|of| self.series.contains(of))
            {
                let setup = self.setup_of(&setup, scenario)?;
                let case = run::run(scenario, series, &setup)?;
                eprintln!("{}", report::progress(&case));
                cases.push(case);
                let results = self.results(&machine, &cases, &verdicts, &checks::of(&cases));
                file.write(&results, false)?;
            }
        }
        let checks = checks::of(&cases);
        file.write(&self.results(&machine, &cases, &verdicts, &checks), true)?;
        let page = Report {
            machine: &machine,
            about: self.about(&setup),
            own_edge: self.own_edge,
            settings: &settings,
            cases: &cases,
            verdicts: &verdicts,
            checks: &checks,
        }
        .page();
        self.output.write(&page, out)?;
        for check in &checks {
            let result = if check.passed { "pass" } else { "FAIL" };
            let line = format!(
                "{result}: {}, {}: {}",
                check.setting, check.what, check.found
            );
            writeln!(out, "{line}").map_err(Error::io("cannot write the checks"))?;
        }
        Ok(checks.iter().all(|check| check.passed))
    }

    fn setting(&self, load: Load, all_publish: bool) -> Setting {
        Setting {
            load,
            all_publish,
            own_edge: self.own_edge,
            scaled: self.scale_periods,
        }
    }

    fn setup(&self) -> Result<Setup> {
        let (repeats, duration) = match (self.short, self.paper) {
            (true, _) => SHORT,
            (_, true) => PAPER,
            _ => USUAL,
        };
        Ok(Setup {
            broker: self.broker.find()?,
            background: Vec::new(),
            plain: self.plain.into(),
            subscribed: self.subscribe,
            warm_up: WARM_UP,
            duration: self.duration.unwrap_or(duration),
            repeats: self.repeats.unwrap_or(repeats),
            pinned: !self.unpinned && cores() > 1,
        })
    }

    /// The setup of a case, with the undeclared traffic that depends on the setting.
    fn setup_of(&self, setup: &Setup, scenario: &Scenario) -> Result<Setup> {
        let mut undeclared: Vec<Background> =
            background(&Layout::new(&scenario.network)?).unwrap_or_default();
        tools::assign(&self.tools, &mut undeclared)?;
        Ok(Setup {
            broker: setup.broker.clone(),
            background: undeclared,
            ..*setup
        })
    }

    /// The decisions of admission control on all loads: with only A and with all three edge
    /// networks publishing, with original and with scaled periods.
    fn verdicts(&self) -> Result<Vec<Verdict>> {
        let kinds = [false, true].map(|scaled| [false, true].map(|all| (scaled, all)));
        let each = kinds
            .into_iter()
            .flatten()
            .flat_map(|(scaled, all_publish)| {
                self.loads.iter().map(move |load| Setting {
                    scaled,
                    ..self.setting((*load).into(), all_publish)
                })
            });
        each.map(verdict).collect()
    }

    fn about(&self, setup: &Setup) -> String {
        format!(
            "{} {}; {} repetitions of {} s for each case; {} publishers without requirements on each \
             of h3, h8 and h13; subscribers take {}; clients {}.",
            setup.broker.name,
            setup.broker.version,
            setup.repeats,
            setup.duration.as_secs_f64(),
            setup.plain,
            match setup.subscribed {
                Subscribed::Plain => "what these send",
                Subscribed::All => "everything",
            },
            match setup.pinned {
                true => "have a core, before other programs",
                false => "are programs like others",
            }
        )
    }

    /// The results so far as JSON.
    fn results(
        &self,
        machine: &Machine,
        cases: &[CaseResult],
        verdicts: &[Verdict],
        checks: &[Check],
    ) -> Value {
        json!({
            "format": FORMAT,
            "machine": machine,
            "own_edge": self.own_edge,
            "cases": cases,
            "admission": verdicts,
            "checks": checks,
        })
    }
}

/// Asks admission control for all flows of a setting at once.
fn verdict(setting: Setting) -> Result<Verdict> {
    let scenario = Scenario::new(setting)?;
    let flows = scenario.declared.flows.clone();
    let mut admission = Admission::new(Network {
        flows: Vec::new(),
        ..scenario.declared.clone()
    });
    let refused = admission.add(flows).err().map(|why| why.to_string());
    let bounds = ["alpha", "beta"].map(|topic| {
        let own = scenario.network.flows.iter().zip(&scenario.bounds);
        let own = own.filter(|(flow, _)| flow.id.starts_with(topic));
        let all = own.clone().flat_map(|(_, paths)| paths);
        let bound = all
            .map(|path| path.best)
            .try_fold(0, |most, bound| Some(bound?.max(most)));
        let deadline = own.map(|(flow, _)| flow.deadline).min();
        (topic.to_owned(), bound, deadline.unwrap_or(0))
    });
    Ok(Verdict {
        setting: setting.name(),
        flows: scenario.network.flows.len(),
        scale: scenario.scale,
        refused,
        bounds: bounds.into(),
        unicast: scenario.unicast_load(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict_of(load: Load, all_publish: bool, scaled: bool) -> Verdict {
        verdict(Setting {
            load,
            all_publish,
            own_edge: OwnEdge::Group,
            scaled,
        })
        .unwrap()
    }

    #[test]
    fn what_cannot_be_carried_is_refused_with_the_link_and_fits_with_longer_periods() {
        let refused = verdict_of(Load::Medium, true, false).refused.unwrap();
        assert!(refused.contains("loaded"), "{refused}");
        let scaled = verdict_of(Load::Medium, true, true);
        assert_eq!(scaled.refused, None);
        assert!(scaled.scale > 1.8);
        // No link is overloaded, but a bound exceeds an assumed deadline.
        let refused = verdict_of(Load::Low, true, false).refused.unwrap();
        assert!(refused.contains("beyond its deadline"), "{refused}");
    }

    #[test]
    fn at_high_the_bound_of_alpha_is_above_the_assumed_deadline() {
        let high = verdict_of(Load::High, false, false);
        let (topic, bound, deadline) = &high.bounds[0];
        assert_eq!((topic.as_str(), *deadline), ("alpha", 20_000_000));
        assert!(bound.unwrap() > *deadline);
        assert!(high.refused.is_some());
        let (_, bound, deadline) = &high.bounds[1];
        assert!(bound.unwrap() < *deadline);
    }
}
