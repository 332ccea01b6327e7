//! The thesis' figures and tables, beside the values that were measured here.

use punctual_report::{Bars, Group, Line, Lines, Page, Unit, bars, lines};

use super::NAMES;
use super::experiment::{CLUSTER, Locality, Outcome, TOPOLOGIES};
use super::network::System;
use super::report::Report;
use super::thesis;
use super::usage::Cpu;

/// Publications of the thesis' tests.
const PUBLISHES: [u32; 3] = [50, 500, 1500];
/// The thesis compares its cluster with the star, which is the topology most similar to it.
const STAR: &str = "star";

impl Report {
    /// Figures 5 to 46 and tables 1 to 7.
    pub(super) fn thesis(&self, page: &mut Page) {
        if self.outcomes.is_empty() {
            return;
        }
        page.heading("Beside the thesis");
        page.paragraph(
            "The thesis counts all that its containers sent, clients and pings included, on one \
             laptop; its totals for 1500 publications are those that its text names. Its figures \
             are drawn here with what was measured between brokers alone. Its cluster is HiveMQ's, \
             ours RabbitMQ's.",
        );
        self.processors(page);
        page.charts(self.courses());
        page.charts(self.peaks());
        page.charts(self.summaries());
        page.charts(self.beside_cluster());
        self.tables(page);
    }

    fn of<'a>(
        &'a self,
        topology: &'a str,
        publishes: u32,
        locality: Locality,
    ) -> impl Iterator<Item = &'a Outcome> {
        self.outcomes.iter().filter(move |o| {
            o.topology == topology && o.publishes == publishes && o.locality == locality
        })
    }

    /// Numbers of publications for which there are results.
    fn publishes(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.outcomes.iter().map(|o| o.publishes).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Methods of forwarding along connections for which there are results.
    fn systems(&self) -> Vec<System> {
        let is_there = |system: &System| self.outcomes.iter().any(|o| o.system == *system);
        System::ALL.into_iter().filter(is_there).collect()
    }

    /// Bytes over time: figures 5, 9, 13 and so on to 37.
    fn courses(&self) -> Vec<(String, punctual_report::Chart)> {
        let mut charts = Vec::new();
        for publishes in self.publishes() {
            let names = TOPOLOGIES.map(|(name, _)| name);
            for topology in names.into_iter().chain([CLUSTER.0]) {
                let all = Locality::ALL.into_iter().enumerate();
                let all = all.flat_map(|(dash, locality)| {
                    let found = self.of(topology, publishes, locality);
                    found.map(move |outcome| course(outcome, dash))
                });
                let all: Vec<Line> = all.collect();
                if all.is_empty() {
                    continue;
                }
                let chart = lines(&Lines {
                    title: format!("Bytes between brokers, {topology}, {publishes} publications"),
                    unit: Unit::Kilobytes,
                    lines: all,
                });
                charts.push((
                    caption(
                        figure(topology, publishes),
                        &format!("{topology}, {publishes} publications"),
                    ),
                    chart,
                ));
            }
        }
        charts
    }

    /// Peak and average processor time of each broker: figures 6 to 8, 10 to 12 and so on.
    fn peaks(&self) -> Vec<(String, punctual_report::Chart)> {
        let mut charts = Vec::new();
        for publishes in self.publishes() {
            for (topology, _) in TOPOLOGIES {
                for (after, locality) in (1..).zip(Locality::ALL) {
                    let found: Vec<&Outcome> = self.of(topology, publishes, locality).collect();
                    if found.is_empty() {
                        continue;
                    }
                    let share = |broker: usize, of: fn(&Cpu) -> f64| {
                        let shares = found.iter().map(|o| o.usage.cpu.get(broker).map(of));
                        shares.collect::<Vec<_>>()
                    };
                    let groups = NAMES.iter().enumerate().flat_map(|(broker, name)| {
                        let most = share(broker, |cpu| cpu.peak_percent);
                        let average = share(broker, |cpu| cpu.average_percent);
                        [("most", most), ("average", average)].map(|(what, values)| Group {
                            name: format!("{name} {what}"),
                            values,
                            mark: None,
                        })
                    });
                    let what = format!("{topology}, {publishes} publications, {}", locality.name());
                    let chart = bars(&Bars {
                        title: format!("Processor of each broker, {what}"),
                        series: found.iter().map(|o| o.system.name().to_owned()).collect(),
                        mark: String::new(),
                        unit: Unit::Percent,
                        groups: groups.collect(),
                    });
                    let number = figure(topology, publishes).map(|number| number + after);
                    charts.push((caption(number, &what), chart));
                }
            }
        }
        charts
    }

    /// Total bytes by topology: figures 41 to 43.
    fn summaries(&self) -> Vec<(String, punctual_report::Chart)> {
        let systems = self.systems();
        let mut charts = Vec::new();
        for (number, (topology, _)) in (41..).zip(TOPOLOGIES) {
            let groups: Vec<Group> = self
                .publishes()
                .into_iter()
                .flat_map(|publishes| Locality::ALL.map(|locality| (publishes, locality)))
                .filter_map(|(publishes, locality)| {
                    self.of(topology, publishes, locality).next()?;
                    let name = format!("{publishes} {}", locality.name());
                    Some(self.group(name, (topology, publishes, locality), &systems))
                })
                .collect();
            if groups.is_empty() {
                continue;
            }
            let chart = bars(&Bars {
                title: format!("Bytes between brokers, {topology}"),
                series: systems.iter().map(|s| s.name().to_owned()).collect(),
                mark: String::new(),
                unit: Unit::Kilobytes,
                groups,
            });
            charts.push((caption(Some(number), topology), chart));
        }
        charts
    }

    /// The star compared with the cluster: figures 44 to 46.
    fn beside_cluster(&self) -> Vec<(String, punctual_report::Chart)> {
        let mut charts = Vec::new();
        let systems = self.systems();
        for publishes in self.publishes() {
            let groups: Vec<Group> = Locality::ALL
                .into_iter()
                .filter_map(|locality| {
                    let cluster = self.of(CLUSTER.0, publishes, locality).next()?;
                    let of = (STAR, publishes, locality);
                    let mut group = self.group(locality.name().to_owned(), of, &systems);
                    group.values.push(Some(cluster.bytes as f64 / 1e3));
                    Some(group)
                })
                .collect();
            if groups.is_empty() {
                continue;
            }
            let all = systems.iter().chain([&System::RabbitmqCluster]);
            let chart = bars(&Bars {
                title: format!("Bytes between brokers, star and cluster, {publishes} publications"),
                series: all.map(|s| s.name().to_owned()).collect(),
                mark: String::new(),
                unit: Unit::Kilobytes,
                groups,
            });
            let number = PUBLISHES.iter().position(|n| *n == publishes);
            let what = format!("star and cluster, {publishes} publications");
            charts.push((caption(number.map(|at| 44 + at), &what), chart));
        }
        charts
    }

    /// The bytes of each method of forwarding.
    fn group(
        &self,
        name: String,
        (topology, publishes, locality): (&str, u32, Locality),
        systems: &[System],
    ) -> Group {
        let bytes = |system: &System| {
            let mut found = self.of(topology, publishes, locality);
            let found = found.find(|o| o.system == *system)?;
            Some(found.bytes as f64 / 1e3)
        };
        Group {
            name,
            values: systems.iter().map(bytes).collect(),
            mark: None,
        }
    }

    /// The values of figures 6 to 40 as a table.
    fn processors(&self, page: &mut Page) {
        page.paragraph(
            "Processor time of brokers A, B, C, D, E: all of it in ms, and in percent of one \
             processor the average and the most in a tenth of a second. The thesis gives percent of \
             a laptop's four, looked at each second.",
        );
        let row = |o: &Outcome| {
            let each = |value: fn(&Cpu) -> f64| {
                let texts = o.usage.cpu.iter().map(|cpu| format!("{:.1}", value(cpu)));
                texts.collect::<Vec<_>>().join(", ")
            };
            vec![
                o.topology.to_owned(),
                o.system.name().to_owned(),
                o.locality.name().to_owned(),
                o.publishes.to_string(),
                each(|cpu| cpu.ms),
                each(|cpu| cpu.average_percent),
                each(|cpu| cpu.peak_percent),
            ]
        };
        let header = [
            "topology",
            "forwarding",
            "locality",
            "publications",
            "ms",
            "average %",
            "most %",
        ];
        let rows = self.outcomes.iter().map(row).collect();
        page.table(header.map(String::from).to_vec(), rows);
    }

    fn tables(&self, page: &mut Page) {
        let rows = self.outcomes.iter().filter_map(|o| {
            let key = (o.topology, o.publishes, o.system, o.locality);
            let (table, time) = thesis::total_time(key.0, key.1, key.2, key.3)?;
            Some(vec![
                format!("{table}: {}", o.topology),
                o.system.name().to_owned(),
                o.locality.name().to_owned(),
                o.publishes.to_string(),
                format!("{time:.2}"),
                format!("{:.2}", o.seconds),
                format!("{:.1}", f64::from(o.publishes) / time),
                format!("{:.1}", o.received as f64 / o.seconds.max(1e-9)),
            ])
        });
        let header = [
            "table",
            "forwarding",
            "locality",
            "publications",
            "thesis s",
            "here s",
            "thesis messages/s",
            "here messages/s",
        ];
        page.table(header.map(String::from).to_vec(), rows.collect());
        let rows = self.outcomes.iter().filter_map(|o| {
            let thesis = thesis::kilobytes(o.topology, o.publishes, o.system, o.locality)?;
            Some(vec![
                o.topology.to_owned(),
                o.system.name().to_owned(),
                o.locality.name().to_owned(),
                format!("{thesis:.0}"),
                format!("{:.0}", o.bytes as f64 / 1e3),
            ])
        });
        let header = ["topology", "forwarding", "locality", "thesis kB", "here kB"];
        page.table(header.map(String::from).to_vec(), rows.collect());
    }
}

/// The number of the thesis' figure on the bytes sent in a test; figures on processors follow it.
fn figure(topology: &str, publishes: u32) -> Option<usize> {
    let test = PUBLISHES.iter().position(|n| *n == publishes)?;
    let mut topologies = TOPOLOGIES.iter();
    let shape = topologies.position(|(name, _)| *name == topology)?;
    Some(5 + 12 * test + 4 * shape)
}

fn caption(number: Option<usize>, what: &str) -> String {
    match number {
        Some(number) => format!("As figure {number} of the thesis: {what}"),
        None => what.to_owned(),
    }
}

/// Cumulative kilobytes sent, over time.
fn course(outcome: &Outcome, dash: usize) -> Line {
    let mut bytes = 0;
    let mut points = vec![(0.0, 0.0)];
    points.extend(outcome.usage.traffic.iter().map(|traffic| {
        bytes += traffic.bytes;
        (traffic.until_ms as f64 / 1e3, bytes as f64 / 1e3)
    }));
    Line {
        name: format!("{}, {}", outcome.system.name(), outcome.locality.name()),
        colour: outcome.system as usize,
        dash,
        points,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_numbered_as_in_the_thesis() {
        assert_eq!(figure("tree", 50), Some(5));
        assert_eq!(figure("star", 500), Some(21));
        assert_eq!(figure("line", 1500), Some(37));
        assert_eq!(figure("star", 100), None);
        assert_eq!(figure("cluster", 500), None);
    }
}
