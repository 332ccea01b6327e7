//! One device of the cell: a process of its own in a network namespace of its own.
//!
//! The station publishes its periodic flows at their due times regardless of the broker's progress,
//! answers messages at once, and counts what it receives. The paper defines a round trip as (TD -
//! TA) - (TC - TB). The station sends TA in the message, takes TD on receipt of the answer, and
//! finds TC - TB in the answer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufRead, Write};

use super::link::{Link, VERSION};
use super::talk::{self, Answer, Assignment, Outcome, Received, Schedule, Sent};
use crate::sys::{self, Epoll, Interest};
use punctual_measure::io::{FlushOutcome, READ_CHUNK, ReadOutcome};
use punctual_measure::load::meter::Recorder;
use punctual_measure::load::publisher::Publisher;
use punctual_measure::load::scenario::PublisherPace;
use punctual_measure::load::stamp::{STAMP_LEN, Stamp};
use punctual_measure::load::track::{Track, Verdict};
use punctual_measure::wire::{self, Frame, PublishTemplate, kind};
use punctual_measure::{Error, Result};

/// After the end, missing messages count as lost after this time without an arrival, ns.
const SILENCE_NS: u64 = 500_000_000;

/// Longest wait for messages in transit at the end, ns.
const DRAIN_MOST_NS: u64 = 10_000_000_000;

/// Bytes of bulk that are added to the output buffer at once.
const BULK_CHUNK: usize = 64 * 1024;

/// Follows the coordinator's instructions on `input` until the run has ended.
///
/// # Errors
/// The coordinator violates the protocol. Failures of the broker are reported to the coordinator.
pub(crate) fn serve(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<()> {
    let Some(assignment) = talk::hear::<Assignment>(input)? else {
        return Ok(());
    };
    sys::set_least_timer_slack();
    let mut station = match Station::connect(&assignment) {
        Ok(station) => station,
        Err(error) => return talk::say(&Answer::Failed(error.to_string()), output),
    };
    talk::say(&Answer::Ready, output)?;
    let Some(schedule) = talk::hear(input)? else {
        return Ok(());
    };
    let answer = match station.run(schedule) {
        Ok(()) => Answer::Done(station.outcome()),
        Err(error) => Answer::Failed(error.to_string()),
    };
    talk::say(&answer, output)
}

/// A connected client with its counters.
struct Station {
    name: String,
    epoll: Epoll,
    link: Link,
    blocked: bool,
    shared: Vec<u8>,
    flows: Vec<FlowState>,
    /// When the next message of each periodic flow is due, ns, and the flow's index.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// Index of the flow that is published as fast as the socket accepts data.
    bulk: Option<u32>,
    schedule: Schedule,
    last_arrival: u64,
    strays: u64,
    lateness: Recorder,
}

/// The role of one flow of the cell at this station.
#[derive(Default)]
struct FlowState {
    publisher: Option<Publisher>,
    track: Option<Track>,
    measured: u64,
    /// Index of the flow on which this station answers each message of this flow.
    answered_by: Option<u32>,
    /// If this flow's messages answer this station: the index of the answered flow, and round
    /// trips.
    round_trips: Option<(u32, Recorder)>,
}

impl Station {
    fn connect(assignment: &Assignment) -> Result<Self> {
        let topic = |flow: u32| {
            let known = assignment.flows.get(flow as usize);
            known.ok_or_else(|| unknown(flow))
        };
        let receives = assignment.receives.iter();
        let filters: Vec<String> = receives
            .map(|&flow| topic(flow).map(|flow| flow.topic.clone()))
            .collect::<Result<_>>()?;
        let link = Link::connect(assignment, &filters)?;
        let epoll = Epoll::new().map_err(Error::io("cannot create an epoll instance"))?;
        epoll
            .add(link.fd(), 0, Interest::READ)
            .map_err(Error::io("cannot watch a connection"))?;

        let mut flows: Vec<FlowState> = Vec::new();
        flows.resize_with(assignment.flows.len(), FlowState::default);
        for &flow in &assignment.receives {
            flows[flow as usize].track = Some(Track::default());
        }
        let mut bulk = None;
        for &flow in &assignment.publishes {
            let described = topic(flow)?;
            let payload = vec![b'.'; described.payload.max(STAMP_LEN)];
            let template = PublishTemplate::with_user_properties(
                VERSION,
                &described.topic,
                0,
                &described.user_properties,
                &payload,
            );
            let pace = described.pace;
            let publisher = Publisher::new(flow, 0, Vec::new(), pace, template, u64::MAX);
            flows[flow as usize].publisher = Some(publisher);
            match pace {
                PublisherPace::Answers(asked) => {
                    let asked = flows
                        .get_mut(asked as usize)
                        .ok_or_else(|| unknown(asked))?;
                    asked.answered_by = Some(flow);
                }
                PublisherPace::FlatOut | PublisherPace::Window(_) => bulk = Some(flow),
                PublisherPace::Every { .. } => {}
            }
        }
        for &flow in &assignment.receives {
            if let PublisherPace::Answers(asked) = topic(flow)?.pace
                && assignment.publishes.contains(&asked)
            {
                flows[flow as usize].round_trips = Some((asked, Recorder::default()));
            }
        }
        Ok(Self {
            name: assignment.name.clone(),
            epoll,
            link,
            blocked: false,
            shared: vec![0; READ_CHUNK],
            flows,
            due: BinaryHeap::new(),
            bulk,
            schedule: Schedule {
                begin: 0,
                measure: 0,
                end: 0,
            },
            last_arrival: 0,
            strays: 0,
            lateness: Recorder::default(),
        })
    }

    /// Publishes and receives until the end of the schedule, then waits for messages in transit.
    fn run(&mut self, schedule: Schedule) -> Result<()> {
        self.schedule = schedule;
        self.last_arrival = schedule.end;
        for (index, flow) in (0u32..).zip(&mut self.flows) {
            if let Some(publisher) = &mut flow.publisher
                && let PublisherPace::Every { offset, .. } = publisher.pace
            {
                publisher.next_due = schedule.begin + offset;
                self.due.push(Reverse((publisher.next_due, index)));
            }
        }
        loop {
            let now = sys::now_ns();
            if now >= schedule.end {
                let silent = now.saturating_sub(self.last_arrival);
                let empty = !self.link.is_pending();
                if (silent >= SILENCE_NS && empty) || now - schedule.end >= DRAIN_MOST_NS {
                    return Ok(());
                }
            }
            self.turn(now)?;
        }
    }

    fn turn(&mut self, now: u64) -> Result<()> {
        let timeout = self.timeout(now);
        let count = self
            .epoll
            .wait(Some(timeout))
            .map_err(Error::io("cannot wait for events"))?;
        if count > 0 {
            let ready = self.epoll.ready(0);
            if ready.writable {
                self.flush()?;
            }
            if ready.readable {
                self.read()?;
            }
        }
        self.publish_due()?;
        self.publish_bulk()
    }

    fn timeout(&self, now: u64) -> u64 {
        if now >= self.schedule.end {
            return SILENCE_NS / 10;
        }
        let next = match (self.bulk, self.due.peek()) {
            (Some(_), _) if now < self.schedule.begin => self.schedule.begin,
            (Some(_), _) if !self.blocked => return 0,
            (_, Some(&Reverse((due, _)))) => due,
            _ => self.schedule.end,
        };
        next.min(self.schedule.end).saturating_sub(now)
    }

    fn read(&mut self) -> Result<()> {
        let len = match self.link.read(&mut self.shared) {
            ReadOutcome::Bytes(len) => len,
            ReadOutcome::Nothing => return Ok(()),
            ReadOutcome::Closed => return Err(self.failure("closed the connection")),
        };
        let now = sys::now_ns();
        let shared = std::mem::take(&mut self.shared);
        let used = self.packets(&shared[..len], now)?;
        self.link.keep(&shared[used..len]);
        self.shared = shared;
        Ok(())
    }

    /// Handles every complete packet in `bytes`; returns the number of bytes consumed.
    fn packets(&mut self, bytes: &[u8], now: u64) -> Result<usize> {
        let mut at = 0;
        loop {
            match wire::frame(&bytes[at..]) {
                Frame::Incomplete => return Ok(at),
                Frame::Malformed => return Err(self.failure("sent a malformed length")),
                Frame::Packet { first, body, end } => {
                    let body = &bytes[at + body..at + end];
                    at += end;
                    match first >> 4 {
                        kind::PUBLISH => {
                            let publish = wire::publish(first, body, VERSION)
                                .ok_or_else(|| self.failure("sent a malformed PUBLISH"))?;
                            self.arrival(publish.payload, now)?;
                        }
                        kind::DISCONNECT => {
                            return Err(self.failure(&format!("sent DISCONNECT {body:02x?}")));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    fn arrival(&mut self, payload: &[u8], now: u64) -> Result<()> {
        let stamp = Stamp::read(payload);
        let flow = stamp.and_then(|stamp| self.flows.get_mut(stamp.publisher as usize));
        let tracked = flow.and_then(|flow| {
            let verdict = flow.track.as_mut()?.receive(stamp?.seq);
            Some((flow, verdict, stamp?))
        });
        let Some((flow, verdict, stamp)) = tracked else {
            self.strays += 1;
            return Ok(());
        };
        if verdict == Verdict::Duplicate {
            return Ok(());
        }
        self.last_arrival = self.last_arrival.max(now);
        let Schedule { measure, end, .. } = self.schedule;
        if (measure..end).contains(&now) {
            flow.measured += 1;
        }
        if let Some((_, round_trips)) = &mut flow.round_trips {
            // `time` carries TA, and `extra` carries TC - TB.
            if (measure..end).contains(&stamp.time) {
                let between = now.saturating_sub(stamp.time);
                round_trips.record(between.saturating_sub(stamp.extra));
            }
        }
        match flow.answered_by {
            Some(answer) => {
                let held = sys::now_ns().saturating_sub(now);
                self.publish(answer, stamp.extra, held)
            }
            None => Ok(()),
        }
    }

    /// Sends all messages that are due by now, each at once.
    fn publish_due(&mut self) -> Result<()> {
        while let Some(&Reverse((due, index))) = self.due.peek() {
            let now = sys::now_ns();
            if due >= self.schedule.end {
                self.due.pop();
                continue;
            }
            if due > now {
                break;
            }
            self.due.pop();
            if let Some(publisher) = &mut self.flows[index as usize].publisher {
                publisher.next_due = due + publisher.period();
                self.due.push(Reverse((publisher.next_due, index)));
            }
            if now >= self.schedule.measure {
                self.lateness.record(now - due);
            }
            self.publish(index, due, now)?;
        }
        Ok(())
    }

    fn publish_bulk(&mut self) -> Result<()> {
        let Some(index) = self.bulk else {
            return Ok(());
        };
        let now = sys::now_ns();
        if self.blocked || !(self.schedule.begin..self.schedule.end).contains(&now) {
            return Ok(());
        }
        if let Some(publisher) = &mut self.flows[index as usize].publisher {
            let count = (BULK_CHUNK / publisher.wire_len()).max(1) as u64;
            publisher.put(self.link.buffer(), None, count, now, 0);
        }
        self.flush()
    }

    fn publish(&mut self, index: u32, time: u64, extra: u64) -> Result<()> {
        if let Some(publisher) = &mut self.flows[index as usize].publisher {
            publisher.put(self.link.buffer(), None, 1, time, extra);
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        let blocked = match self.link.flush() {
            FlushOutcome::All => false,
            FlushOutcome::Blocked => true,
            FlushOutcome::Closed => return Err(self.failure("closed the connection")),
        };
        if blocked != self.blocked {
            self.blocked = blocked;
            let interest = Interest {
                read: true,
                write: blocked,
            };
            self.epoll
                .change(self.link.fd(), 0, interest)
                .map_err(Error::io("cannot watch a connection"))?;
        }
        Ok(())
    }

    fn outcome(mut self) -> Outcome {
        let mut outcome = Outcome {
            strays: self.strays,
            lateness: self.lateness.buckets(),
            ..Outcome::default()
        };
        for (flow, mut state) in (0u32..).zip(self.flows) {
            if let Some(publisher) = state.publisher {
                outcome.sent.push(Sent {
                    flow,
                    messages: publisher.sent(),
                });
            }
            if let Some(track) = state.track {
                outcome.received.push(Received {
                    flow,
                    unique: track.unique(),
                    out_of_order: track.out_of_order(),
                    duplicates: track.duplicates(),
                    measured: state.measured,
                });
            }
            if let Some((asked, round_trips)) = &mut state.round_trips {
                outcome.round_trips.push((*asked, round_trips.buckets()));
            }
        }
        outcome
    }

    fn failure(&self, what: &str) -> Error {
        Error::Broker {
            client: self.name.clone(),
            what: what.to_owned(),
        }
    }
}

fn unknown(flow: u32) -> Error {
    Error::Config {
        field: "assignment",
        value: flow.to_string(),
        remedy: "name flows that exist".to_owned(),
    }
}
