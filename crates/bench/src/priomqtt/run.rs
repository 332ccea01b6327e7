//! One run of the cell: starts network, broker and stations, and combines their results.

use std::io::BufReader;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use super::brokers::{BrokerProgram, HTTP, Placement};
use super::cell::{BROKER, BULK_FLOW, COUPLES, Plan, Station, Traffic};
use super::link::Transport;
use super::network::{Network, Switches};
use super::queue::QueueWatch;
use super::results::{Bulk, CoupleResult, Faults, RunResult};
use super::talk::{self, Answer, Assignment, Outcome, Schedule};
use crate::process::Process;
use crate::sys;
use punctual_measure::http_get;
use punctual_measure::load::meter::Recorder;
use punctual_measure::watch::Watch;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Time between the coordinator's schedule and the first period: all stations have read it by then.
const LEAD: Duration = Duration::from_millis(100);

/// Pause between the start of a broker and its first client.
const SETTLE: Duration = Duration::from_millis(200);

/// DiffServ code point of the cell's stations: class selector 5, as for the broker's class
/// `Priority`.
const CELL_DSCP: u8 = 40;

/// The conditions of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) broker: Placement,
    pub(crate) stations: Placement,
    pub(crate) switches: Switches,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
}

impl Setup<'_> {
    /// Carries out one run.
    pub(crate) fn run(&self, broker: &BrokerProgram, traffic: Traffic) -> Result<RunResult> {
        let plan = Plan::new(traffic);
        let network = Network::new(&plan.stations, self.switches)?;
        let process = broker.start(&network.broker, self.directory, self.broker)?;
        let watch = Watch::new(process.id())?;
        thread::sleep(SETTLE);
        let mut workers = Vec::new();
        for (station, namespace) in network.stations() {
            workers.push(Worker::start(self, broker, station, namespace, &plan)?);
        }
        for worker in &mut workers {
            worker.expect_ready()?;
        }

        let begin = sys::now_ns() + ns(LEAD);
        let measure = begin + ns(self.warm_up);
        let schedule = Schedule {
            begin,
            measure,
            end: measure + ns(self.duration),
        };
        for worker in &mut workers {
            talk::say(&schedule, &mut worker.to)?;
        }
        let until = |time: u64| Duration::from_nanos(time.saturating_sub(sys::now_ns()));
        thread::sleep(until(measure));
        let cpu_before = watch.cpu_ns()?;
        let queue = broker.variant.has_metrics.then(|| {
            // No HTTP request reaches the broker between these two readings.
            let look = || network.broker.enter(|| http_get(HTTP, "/metrics"));
            let mut queue = QueueWatch::begin(look());
            thread::sleep(until(schedule.end));
            queue.end(look());
            queue
        });
        thread::sleep(until(schedule.end));
        let cpu = watch.cpu_ns()? - cpu_before;

        let mut outcomes = Vec::new();
        for mut worker in workers {
            outcomes.push((worker.station, worker.outcome()?));
        }
        let mut result = put_together(&plan, &outcomes, self.duration);
        result.broker_cpu_share = cpu as f64 / 1e9 / self.duration.as_secs_f64();
        result.queue = queue.and_then(QueueWatch::report);
        Ok(result)
    }
}

/// The process of a station.
struct Worker {
    station: Station,
    process: Process,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    fn start(
        setup: &Setup<'_>,
        broker: &BrokerProgram,
        station: Station,
        namespace: &Namespace,
        plan: &Plan,
    ) -> Result<Self> {
        let name = station.name();
        let context = format!("cannot start station {name}");
        let program = env::current_exe().map_err(Error::io(context.clone()))?;
        let mut command = Command::new(program);
        command
            .arg(super::STATION_COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // Bulk stations run below the measured stations, so that they take no CPU time from them.
        let is_bulk = matches!(station, Station::BulkSource | Station::BulkSink);
        let fifo = if is_bulk { 0 } else { setup.stations.fifo };
        sys::prepare_child(&mut command, setup.stations.core, fifo);
        namespace.place(&mut command);
        let mut process = Process::spawn(&mut command).map_err(Error::io(context.clone()))?;
        let pipes = process
            .child()
            .stdin
            .take()
            .zip(process.child().stdout.take());
        let (mut to, from) =
            pipes.ok_or_else(|| Error::io(context)(std::io::Error::other("it has no pipes")))?;
        let assignment = Assignment {
            name,
            broker: BROKER,
            // Over UDP most of a bulk flow would be lost instead of loading the broker.
            transport: if is_bulk {
                Transport::Tcp
            } else {
                broker.variant.transport
            },
            flows: plan.flows.clone(),
            publishes: plan.published_by(station),
            receives: plan.received_by(station),
            dscp: if is_bulk { 0 } else { CELL_DSCP },
        };
        talk::say(&assignment, &mut to)?;
        Ok(Self {
            station,
            process,
            to,
            from: BufReader::new(from),
        })
    }

    fn expect_ready(&mut self) -> Result<()> {
        match talk::hear(&mut self.from)? {
            Some(Answer::Ready) => Ok(()),
            other => Err(self.failure(other)),
        }
    }

    fn outcome(&mut self) -> Result<Outcome> {
        match talk::hear(&mut self.from)? {
            Some(Answer::Done(outcome)) => Ok(outcome),
            other => Err(self.failure(other)),
        }
    }

    fn failure(&mut self, answer: Option<Answer>) -> Error {
        let why = match (answer, self.process.ended()) {
            (Some(Answer::Failed(why)), _) => why,
            (_, Some(status)) => format!("it ended with {status}"),
            _ => "it does not answer as expected".to_owned(),
        };
        Error::Peer {
            peer: format!("station {}", self.station.name()),
            why,
        }
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Compares sent with received messages, flow by flow.
fn put_together(plan: &Plan, outcomes: &[(Station, Outcome)], duration: Duration) -> RunResult {
    let sent = |flow: u32| -> u64 {
        let all = outcomes.iter().flat_map(|(_, outcome)| &outcome.sent);
        all.filter(|sent| sent.flow == flow)
            .map(|sent| sent.messages)
            .sum()
    };
    let mut result = RunResult::default();
    let mut bulk = Faults::default();
    let mut bulk_measured = 0;
    for received in outcomes.iter().flat_map(|(_, outcome)| &outcome.received) {
        let expected = sent(received.flow);
        let faults = if received.flow == BULK_FLOW {
            bulk_measured += received.measured;
            &mut bulk
        } else {
            &mut result.faults
        };
        faults.expected += expected;
        faults.lost += expected.saturating_sub(received.unique);
        faults.out_of_order += received.out_of_order;
        faults.duplicates += received.duplicates;
    }
    let mut lateness = Recorder::default();
    for (_, outcome) in outcomes {
        lateness.add(&outcome.lateness);
        result.faults.strays += outcome.strays;
    }
    result.lateness = lateness.summary();
    for (index, couple) in (0u32..).zip(&COUPLES) {
        let all = outcomes
            .iter()
            .flat_map(|(_, outcome)| &outcome.round_trips);
        let own = all.filter(|(flow, _)| *flow == 2 * index);
        let round_trips = own
            .flat_map(|(_, buckets)| buckets.iter().copied())
            .collect();
        result.couples.push(CoupleResult::new(
            couple,
            [sent(2 * index), sent(2 * index + 1)],
            round_trips,
        ));
    }
    if let Some(flow) = plan.flows.get(BULK_FLOW as usize) {
        let bits = (bulk_measured * flow.payload as u64 * 8) as f64;
        result.bulk = Some(Bulk {
            delivered_mbit_per_s: bits / 1e6 / duration.as_secs_f64(),
            faults: bulk,
        });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::super::cell::Urgency;
    use super::super::talk::{Received, Sent};
    use super::*;

    #[test]
    fn loss_is_what_was_sent_and_did_not_come_to_every_subscriber() {
        let plan = Plan::new(Traffic {
            payload: 100,
            all_subscribe: false,
            urgency: Urgency::Priority,
            bulk: Some(1250),
            seed: 0,
        });
        let received = |flow, unique, measured| Received {
            flow,
            unique,
            out_of_order: 1,
            duplicates: 0,
            measured,
        };
        let module = Outcome {
            sent: vec![Sent {
                flow: 0,
                messages: 10,
            }],
            received: vec![received(0, 10, 0), received(1, 8, 0)],
            strays: 2,
            round_trips: vec![(0, vec![(1000, 7), (2000, 1)])],
            lateness: vec![(5, 10)],
        };
        let controller = Outcome {
            sent: vec![Sent {
                flow: 1,
                messages: 9,
            }],
            received: vec![received(0, 9, 0), received(1, 9, 0)],
            ..Outcome::default()
        };
        let source = Outcome {
            sent: vec![Sent {
                flow: BULK_FLOW,
                messages: 1000,
            }],
            ..Outcome::default()
        };
        let sink = Outcome {
            received: vec![received(BULK_FLOW, 400, 200)],
            ..Outcome::default()
        };
        let outcomes = [
            (Station::Module(0), module),
            (Station::Controller, controller),
            (Station::BulkSource, source),
            (Station::BulkSink, sink),
        ];
        let result = put_together(&plan, &outcomes, Duration::from_secs(2));
        assert_eq!(result.faults.expected, 10 + 9 + 10 + 9);
        assert_eq!((result.faults.lost, result.faults.out_of_order), (2, 4));
        assert_eq!(result.faults.strays, 2);
        assert_eq!(result.couples[0].sent, [10, 9]);
        assert_eq!(result.couples[0].round_trip.unwrap().count, 8);
        assert_eq!(result.couples[1].round_trip, None);
        let bulk = result.bulk.unwrap();
        assert_eq!(bulk.faults.lost, 600);
        assert!((bulk.delivered_mbit_per_s - 1.0).abs() < 1e-9);
    }
}
