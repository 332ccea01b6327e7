//! Who publishes what to whom, and at which pace.
//!
//! A scenario becomes a [`Plan`]: clients, publishers and, for each publisher, the clients that
//! must receive every message of it. Publishers of one client's subscriptions are numbered
//! contiguously, so that a receiver finds the state of a flow by subtraction.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Pace;

/// Periods of the factory cell's four input/output modules in milliseconds (PrioMQTT, table 1).
const FACTORY_PERIODS_MS: [u64; 4] = [1, 2, 5, 3];

const NS_PER_MS: u64 = 1_000_000;

/// A shape of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// All publishers send to one topic to which all subscribers listen.
    Fan {
        /// Number of publishing clients, at least 1.
        publishers: u32,
        /// Number of subscribing clients, at least 1.
        subscribers: u32,
    },
    /// So many publishers with a topic and a subscriber each.
    Pairs(u32),
    /// 20 pairs at a fixed rate.
    Rate,
    /// The factory cell of the PrioMQTT paper: four modules publish with periods of 1, 2, 5 and
    /// 3 ms, a controller answers each message, every client also receives its own topic.
    Factory,
    /// Connections with one subscription each and no traffic.
    Idle,
}

impl Scenario {
    /// The pace that shows this scenario's limit without loss.
    #[must_use]
    pub fn default_pace(self) -> Pace {
        match self {
            Self::Fan {
                publishers: 1,
                subscribers: 1,
            } => Pace::Window(1000),
            // Fewer per publisher would make the generator's sends the limit of a fan-in.
            Self::Fan { .. } => Pace::Window(100),
            Self::Pairs(_) => Pace::Window(20),
            Self::Rate | Self::Factory | Self::Idle => Pace::Rate(5000.0),
        }
    }

    /// Draws the plan. `echo` says whether factory clients receive their own topics too.
    pub fn plan(self, pace: Pace, echo: bool) -> Plan {
        match self {
            Self::Fan {
                publishers,
                subscribers,
            } => Plan::fan(publishers, subscribers, pace),
            Self::Pairs(pairs) => Plan::pairs(pairs, pace),
            Self::Rate => Plan::pairs(20, pace),
            Self::Factory => Plan::factory(echo),
            Self::Idle => Plan::default(),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fan {
                publishers,
                subscribers,
            } => write!(f, "{publishers}-{subscribers}"),
            Self::Pairs(pairs) => write!(f, "{pairs}pairs"),
            Self::Rate => f.write_str("rate"),
            Self::Factory => f.write_str("factory"),
            Self::Idle => f.write_str("idle"),
        }
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = |digits: &str| digits.parse().ok().filter(|n| (1..=5000).contains(n));
        match text {
            "rate" => return Ok(Self::Rate),
            "factory" => return Ok(Self::Factory),
            "idle" => return Ok(Self::Idle),
            _ => {}
        }
        let known = if let Some(pairs) = text.strip_suffix("pairs") {
            count(pairs).map(Self::Pairs)
        } else if let Some((publishers, subscribers)) = text.split_once('-') {
            count(publishers)
                .zip(count(subscribers))
                .map(|(publishers, subscribers)| Self::Fan {
                    publishers,
                    subscribers,
                })
        } else {
            None
        };
        known.ok_or_else(|| {
            "write P-S (such as 1-1, 50-1, 1-100), Npairs, rate, factory or idle; \
             numbers from 1 to 5000"
                .to_owned()
        })
    }
}

/// Clients and flows of a run.
#[derive(Debug, Default)]
pub struct Plan {
    /// Who connects.
    pub clients: Vec<ClientPlan>,
    /// Who publishes.
    pub publishers: Vec<PublisherPlan>,
}

/// One client.
#[derive(Debug)]
pub struct ClientPlan {
    /// Ends the client identifier.
    pub id: String,
    /// What it subscribes to.
    pub filters: Vec<String>,
    /// The publishers whose messages it receives.
    pub receives: Range<u32>,
    /// Whether it connects to the broker of those who receive, if that is another one.
    pub far: bool,
}

/// One stream of messages to one topic.
#[derive(Debug)]
pub struct PublisherPlan {
    /// Index of the client that publishes.
    pub client: u32,
    /// The topic, without the prefix.
    pub topic: String,
    /// Indexes of the clients that receive.
    pub receivers: Vec<u32>,
    /// When it sends.
    pub pace: PublisherPace,
}

/// When one publisher sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PublisherPace {
    /// Whenever fewer than so many of its messages are undelivered.
    Window(u32),
    /// Whenever the socket takes more.
    FlatOut,
    /// Every `period` nanoseconds, beginning `offset` nanoseconds into the run.
    Every {
        /// Time between two messages, ns.
        period: u64,
        /// Time before the first one, ns.
        offset: u64,
    },
    /// When its client receives a message of this publisher.
    Answers(u32),
}

impl PublisherPace {
    /// The pace of publisher `index` of `count` that share `pace`.
    fn share(pace: Pace, index: u32, count: u32) -> Self {
        match pace {
            Pace::Window(window) => Self::Window(window),
            Pace::FlatOut => Self::FlatOut,
            Pace::Rate(total) => {
                let period = (1e9 * f64::from(count) / total).max(1.0) as u64;
                Self::Every {
                    period,
                    offset: period * u64::from(index) / u64::from(count),
                }
            }
        }
    }
}

impl Plan {
    /// Puts `prefix` before every topic, so that runs side by side do not meet.
    pub fn begin_topics(&mut self, prefix: &str) {
        let filters = self.clients.iter_mut().flat_map(|it| &mut it.filters);
        let topics = self.publishers.iter_mut().map(|it| &mut it.topic);
        filters
            .chain(topics)
            .for_each(|it| it.insert_str(0, prefix));
    }

    fn fan(publishers: u32, subscribers: u32, pace: Pace) -> Self {
        let topic = "bench/fan".to_owned();
        let mut plan = Self::default();
        for i in 0..subscribers {
            plan.far_client(format!("sub-{i}"), vec![topic.clone()], 0..publishers);
        }
        let receivers: Vec<u32> = (0..subscribers).collect();
        for i in 0..publishers {
            let client = plan.client(format!("pub-{i}"), Vec::new(), 0..0);
            plan.publishers.push(PublisherPlan {
                client,
                topic: topic.clone(),
                receivers: receivers.clone(),
                pace: PublisherPace::share(pace, i, publishers),
            });
        }
        plan
    }

    fn pairs(pairs: u32, pace: Pace) -> Self {
        let mut plan = Self::default();
        for i in 0..pairs {
            let topic = format!("bench/pair/{i}");
            let subscriber = plan.far_client(format!("sub-{i}"), vec![topic.clone()], i..i + 1);
            let client = plan.client(format!("pub-{i}"), Vec::new(), 0..0);
            plan.publishers.push(PublisherPlan {
                client,
                topic,
                receivers: vec![subscriber],
                pace: PublisherPace::share(pace, i, pairs),
            });
        }
        plan
    }

    /// Topics T1, T3, T5, T7 come from the modules, T2, T4, T6, T8 from the controller.
    fn factory(echo: bool) -> Self {
        const CONTROLLER: u32 = 0;
        let mut plan = Self::default();
        let topics: Vec<String> = (1..=8).map(|i| format!("cell/T{i}")).collect();
        let sensed = topics.iter().step_by(2).cloned();
        let answered = topics.iter().skip(1).step_by(2).filter(|_| echo).cloned();
        plan.far_client(
            "controller".to_owned(),
            sensed.chain(answered).collect(),
            0..8,
        );
        for (i, period) in (0u32..).zip(FACTORY_PERIODS_MS) {
            let sense = 2 * i;
            let answer = sense + 1;
            let own = topics[sense as usize].clone();
            let command = topics[answer as usize].clone();
            let mut filters = vec![command.clone()];
            let mut sense_receivers = vec![CONTROLLER];
            let module = plan.clients.len() as u32;
            let mut answer_receivers = vec![module];
            if echo {
                filters.push(own.clone());
                sense_receivers.push(module);
                answer_receivers.push(CONTROLLER);
            }
            plan.client(format!("module-{}", i + 1), filters, sense..answer + 1);
            plan.publishers.push(PublisherPlan {
                client: module,
                topic: own,
                receivers: sense_receivers,
                pace: PublisherPace::Every {
                    period: period * NS_PER_MS,
                    offset: u64::from(i) * 250_000,
                },
            });
            plan.publishers.push(PublisherPlan {
                client: CONTROLLER,
                topic: command,
                receivers: answer_receivers,
                pace: PublisherPace::Answers(sense),
            });
        }
        plan
    }

    fn client(&mut self, id: String, filters: Vec<String>, receives: Range<u32>) -> u32 {
        self.clients.push(ClientPlan {
            id,
            filters,
            receives,
            far: false,
        });
        (self.clients.len() - 1) as u32
    }

    fn far_client(&mut self, id: String, filters: Vec<String>, receives: Range<u32>) -> u32 {
        let index = self.client(id, filters, receives);
        self.clients[index as usize].far = true;
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["1-1", "50-1", "1-100", "50pairs", "rate", "factory", "idle"] {
            assert_eq!(name.parse::<Scenario>().unwrap().to_string(), name);
        }
        for name in ["", "0-1", "1-", "-1", "pairs", "0pairs", "1-9999", "x"] {
            assert!(name.parse::<Scenario>().is_err(), "{name}");
        }
    }

    #[test]
    fn every_receiver_listens_to_the_topic_and_expects_the_publisher() {
        for name in ["3-2", "4pairs", "rate", "factory"] {
            for echo in [false, true] {
                let scenario: Scenario = name.parse().unwrap();
                let plan = scenario.plan(scenario.default_pace(), echo);
                for (index, publisher) in (0u32..).zip(&plan.publishers) {
                    for (at, client) in (0u32..).zip(&plan.clients) {
                        let receives = publisher.receivers.contains(&at);
                        assert_eq!(receives, client.filters.contains(&publisher.topic));
                        assert!(!receives || client.receives.contains(&index));
                    }
                }
            }
        }
    }

    #[test]
    fn only_what_crosses_is_sent_to_clients_that_are_far() {
        for name in ["3-2", "4pairs", "rate", "factory"] {
            let scenario: Scenario = name.parse().unwrap();
            let plan = scenario.plan(scenario.default_pace(), false);
            let far = |client: u32| plan.clients[client as usize].far;
            for publisher in &plan.publishers {
                let crosses = |&to: &u32| far(to) != far(publisher.client);
                assert!(publisher.receivers.iter().all(crosses), "{name}");
            }
        }
    }

    #[test]
    fn factory_has_the_papers_periods_and_an_answer_to_each() {
        let plan = Scenario::Factory.plan(Pace::FlatOut, true);
        let paces: Vec<_> = plan.publishers.iter().map(|p| p.pace).collect();
        for (i, period) in [(0, 1), (2, 2), (4, 5), (6, 3)] {
            assert!(
                matches!(paces[i], PublisherPace::Every { period: p, .. } if p == period * NS_PER_MS)
            );
            assert_eq!(paces[i + 1], PublisherPace::Answers(i as u32));
        }
    }

    #[test]
    fn a_rate_is_shared_evenly_in_time() {
        let plan = Scenario::Pairs(20).plan(Pace::Rate(5000.0), false);
        let paces: Vec<_> = plan.publishers.iter().map(|p| p.pace).collect();
        let period = 4_000_000;
        assert_eq!(paces[0], PublisherPace::Every { period, offset: 0 });
        let offset = 200_000 * 19;
        assert_eq!(paces[19], PublisherPace::Every { period, offset });
    }
}
