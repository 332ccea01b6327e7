//! The factory cell of the PrioMQTT paper as data: stations, topics, periods, priorities.
//!
//! Sources: section 5, Fig. 4 (layout), Fig. 5 (exchange), Table 1 (topics) and Table 3
//! (priorities) of Patti, Leonardi, Testa, Lo Bello: PrioMQTT, Computer Communications 2024.
//! Four modules publish to one data topic each; the controller answers every message on the
//! module's command topic; every client also receives its own publications. The paper's devices
//! have independent clocks. To model these, the modules' periods differ from the nominal ones by
//! some parts per million and their phases are random, so that a long run covers every alignment of
//! the flows.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use punctual_measure::load::scenario::PublisherPace;
use punctual_model::Rng;

/// Address at which the broker of the cell listens.
pub(crate) const BROKER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 1883);

/// A data topic and the command topic of its answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Couple {
    pub(crate) data: &'static str,
    pub(crate) command: &'static str,
    /// Nominal period of both topics.
    pub(crate) period_ms: u64,
    /// PrioMQTT priority; 0 is the most urgent.
    pub(crate) priority: u64,
    /// Deviation of the module's clock from the nominal period, parts per million.
    drift_ppm: i64,
}

/// Tables 1 and 3 of the paper, by module S1 to S4.
pub(crate) const COUPLES: [Couple; 4] = [
    Couple {
        data: "T1",
        command: "T2",
        period_ms: 1,
        priority: 1,
        drift_ppm: 0,
    },
    Couple {
        data: "T3",
        command: "T4",
        period_ms: 2,
        priority: 2,
        drift_ppm: 53,
    },
    Couple {
        data: "T5",
        command: "T6",
        period_ms: 5,
        priority: 5,
        drift_ppm: -71,
    },
    Couple {
        data: "T7",
        command: "T8",
        period_ms: 3,
        priority: 3,
        drift_ppm: 97,
    },
];

impl Couple {
    /// The couple's name in the notation of the paper.
    pub(crate) fn name(&self) -> String {
        format!("{}, {}", self.data, self.command)
    }
}

/// The couples' indexes from the most to the least urgent.
pub(crate) fn by_priority() -> [usize; 4] {
    let mut order = [0, 1, 2, 3];
    order.sort_by_key(|&index| COUPLES[index].priority);
    order
}

/// One device of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Station {
    Controller,
    /// Module S1 to S4, counted from 0.
    Module(usize),
    /// Publishes bulk as fast as its connection accepts it.
    BulkSource,
    /// Receives the bulk flow.
    BulkSink,
}

impl Station {
    /// The stations of the paper; `bulk` adds the source and the sink of the bulk flow.
    pub(crate) fn all(bulk: bool) -> Vec<Self> {
        let mut stations = vec![Self::Controller];
        stations.extend((0..COUPLES.len()).map(Self::Module));
        if bulk {
            stations.extend([Self::BulkSink, Self::BulkSource]);
        }
        stations
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Controller => "controller".to_owned(),
            Self::Module(index) => format!("S{}", index + 1),
            Self::BulkSource => "bulk-source".to_owned(),
            Self::BulkSink => "bulk-sink".to_owned(),
        }
    }

    pub(crate) fn address(self) -> IpAddr {
        let last = match self {
            Self::Controller => 10,
            Self::Module(index) => 11 + index as u8,
            Self::BulkSource => 20,
            Self::BulkSink => 21,
        };
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    /// Whether the station is connected to the broker's switch; the others are at the second
    /// switch. The paper's text says that S2 is one hop closer to the broker than the other
    /// clients.
    pub(crate) fn is_near(self) -> bool {
        self == Self::Module(1)
    }
}

/// One topic with its only publisher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Flow {
    pub(crate) topic: String,
    /// User properties of each of the flow's messages.
    pub(crate) user_properties: Vec<(String, String)>,
    /// Payload bytes.
    pub(crate) payload: usize,
    pub(crate) pace: PublisherPace,
}

/// How messages state their urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// User property `priority`, as in the paper.
    Priority,
    /// User property `rt-deadline`, set to the period.
    Deadline,
}

/// Parameters of a run of the cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Payload bytes of the cell's messages.
    pub(crate) payload: usize,
    /// Every client receives every topic; otherwise only the controller and the topic's module do.
    pub(crate) all_subscribe: bool,
    pub(crate) urgency: Urgency,
    /// Payload bytes of bulk messages, if there is a bulk flow.
    pub(crate) bulk: Option<usize>,
    /// Seed of the modules' phases.
    pub(crate) seed: u64,
}

impl Traffic {
    /// Number of clients that receive each of the cell's topics.
    pub(crate) fn subscribers(&self) -> usize {
        if self.all_subscribe { 5 } else { 2 }
    }
}

/// The stations and flows of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) stations: Vec<Station>,
    /// Couple `i` has the data flow `2 * i` and the command flow `2 * i + 1`; the last flow is
    /// bulk.
    pub(crate) flows: Vec<Flow>,
    traffic: Traffic,
}

/// Index of the bulk flow.
pub(crate) const BULK_FLOW: u32 = 2 * COUPLES.len() as u32;

impl Plan {
    pub(crate) fn new(traffic: Traffic) -> Self {
        let mut flows = Vec::new();
        let mut phases = Rng::new(traffic.seed);
        for (index, couple) in (0u32..).zip(&COUPLES) {
            let period = couple.period_ms * 1_000_000;
            let drifted = period.saturating_add_signed(couple.drift_ppm * couple.period_ms as i64);
            let pace = PublisherPace::Every {
                period: drifted,
                offset: phases.below(period),
            };
            let property = match traffic.urgency {
                Urgency::Priority => ("priority".to_owned(), couple.priority.to_string()),
                Urgency::Deadline => ("rt-deadline".to_owned(), format!("{}ms", couple.period_ms)),
            };
            let answers = PublisherPace::Answers(2 * index);
            for (topic, pace) in [(couple.data, pace), (couple.command, answers)] {
                flows.push(Flow {
                    topic: topic.to_owned(),
                    user_properties: vec![property.clone()],
                    payload: traffic.payload,
                    pace,
                });
            }
        }
        if let Some(payload) = traffic.bulk {
            flows.push(Flow {
                topic: "bulk".to_owned(),
                user_properties: Vec::new(),
                payload,
                pace: PublisherPace::FlatOut,
            });
        }
        Self {
            stations: Station::all(traffic.bulk.is_some()),
            flows,
            traffic,
        }
    }

    /// The flows that `station` publishes.
    pub(crate) fn published_by(&self, station: Station) -> Vec<u32> {
        match station {
            Station::Controller => (0..BULK_FLOW).filter(|flow| flow % 2 == 1).collect(),
            Station::Module(index) => vec![2 * index as u32],
            Station::BulkSource => vec![BULK_FLOW],
            Station::BulkSink => Vec::new(),
        }
    }

    /// The flows that `station` receives.
    pub(crate) fn received_by(&self, station: Station) -> Vec<u32> {
        match station {
            Station::Controller => (0..BULK_FLOW).collect(),
            Station::Module(_) if self.traffic.all_subscribe => (0..BULK_FLOW).collect(),
            Station::Module(index) => vec![2 * index as u32, 2 * index as u32 + 1],
            Station::BulkSource => Vec::new(),
            Station::BulkSink => vec![BULK_FLOW],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic() -> Traffic {
        Traffic {
            payload: 500,
            all_subscribe: false,
            urgency: Urgency::Priority,
            bulk: None,
            seed: 1,
        }
    }

    #[test]
    fn every_topic_has_one_publisher_and_as_many_subscribers_as_the_table_says() {
        for all_subscribe in [false, true] {
            let plan = Plan::new(Traffic {
                all_subscribe,
                ..traffic()
            });
            assert_eq!(plan.flows.len(), 8);
            for (flow, topic) in (0u32..).zip(&plan.flows) {
                let count = |of: &dyn Fn(Station) -> Vec<u32>| {
                    let stations = plan.stations.iter();
                    stations.filter(|s| of(**s).contains(&flow)).count()
                };
                assert_eq!(topic.topic, format!("T{}", flow + 1));
                assert_eq!(count(&|s| plan.published_by(s)), 1, "{}", topic.topic);
                assert_eq!(count(&|s| plan.received_by(s)), plan.traffic.subscribers());
            }
            // Every client receives its own topics.
            for &station in &plan.stations {
                let received = plan.received_by(station);
                assert!(
                    plan.published_by(station)
                        .iter()
                        .all(|f| received.contains(f))
                );
            }
        }
    }

    #[test]
    fn shorter_periods_have_higher_priorities() {
        let order = by_priority().map(|index| COUPLES[index]);
        assert!(order.is_sorted_by_key(|couple| couple.period_ms));
        assert_eq!(order.map(|couple| couple.priority), [1, 2, 3, 5]);
        assert_eq!(order.map(|couple| couple.data), ["T1", "T3", "T7", "T5"]);
    }

    #[test]
    fn clocks_drift_by_less_than_a_crystal_may() {
        let plan = Plan::new(traffic());
        for (couple, flow) in COUPLES.iter().zip(plan.flows.iter().step_by(2)) {
            let PublisherPace::Every { period, offset } = flow.pace else {
                panic!("{flow:?}");
            };
            let nominal = couple.period_ms * 1_000_000;
            assert!(period.abs_diff(nominal) <= nominal / 10_000, "{period}");
            assert!(offset < nominal);
        }
    }

    #[test]
    fn bulk_goes_from_its_source_to_its_sink_alone() {
        let plan = Plan::new(Traffic {
            bulk: Some(1400),
            all_subscribe: true,
            ..traffic()
        });
        let receivers: Vec<_> = plan
            .stations
            .iter()
            .filter(|s| plan.received_by(**s).contains(&BULK_FLOW))
            .collect();
        assert_eq!(receivers, [&Station::BulkSink]);
        assert_eq!(plan.flows[BULK_FLOW as usize].topic, "bulk");
        assert!(plan.flows[BULK_FLOW as usize].user_properties.is_empty());
    }
}
