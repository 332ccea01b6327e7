//! A controller of 100 switches, 1 000 hosts and up to 10 000 flows: `cargo bench -p
//! punctual-controller`. One table has flows to one subscriber each, the other flows over
//! brokers and groups, which subscribers join.
//!
//! Switches confirm every step at once, so what is measured is the controller's
//! own work: deciding, laying, and rendering for OpenFlow, in time on a
//! processor, so that other programs of the machine do not count.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::time::Duration;

use punctual_controller::plan::Mac;
use punctual_controller::{
    Controller, Effect, End, Event, KnownHost, PortState, Settings, SwitchProtocol,
};
use punctual_model::srt::{Channel, Peer, Protocol, Request, State};
use punctual_model::{Nanos, Rng};
use punctual_openflow::{Message, MultipartBody, MultipartReply, MultipartRequest};
use rustix::time::{ClockId, clock_gettime};

const SWITCHES: u64 = 100;
const HOSTS: u64 = 10;

struct Net {
    controller: Controller,
    now: u64,
    busy: Duration,
    changes: usize,
    admitted: usize,
    last: Option<Channel>,
    speaks: SwitchProtocol,
}

fn ports(datapath: u64) -> Vec<PortState> {
    let port = |number: u32| PortState {
        number,
        name: format!("p{number}"),
        mac: Mac([6, 0, 0, 0, datapath as u8, number as u8]),
        up: true,
        rate_bps: 1_000_000_000,
    };
    (1..=HOSTS as u32 + 12).map(port).collect()
}

/// The cables of a plant: one switch in the middle, nine around it, ten at each
/// of those. Paths make no cycle.
fn cables() -> Vec<(End, End)> {
    let mut cables = Vec::new();
    let mut used = [HOSTS as u32; SWITCHES as usize + 1];
    let mut port = |datapath: u64| {
        used[datapath as usize] += 1;
        let port = used[datapath as usize];
        End { datapath, port }
    };
    for datapath in 2..=SWITCHES {
        let up = match datapath {
            2..=10 => 1,
            edge => 2 + edge % 9,
        };
        cables.push((port(datapath), port(up)));
    }
    cables
}

fn request(number: u64) -> Request {
    let mut rng = Rng::new(number);
    let mut host = || {
        [
            10,
            0,
            1 + rng.below(SWITCHES) as u8,
            1 + rng.below(HOSTS) as u8,
        ]
    };
    let (from, to) = (host(), host());
    let period = 20_000_000 + rng.below(80) * 1_000_000;
    Request {
        manager: "m".into(),
        flow: format!("f{number}"),
        generation: 1,
        topic: format!("t{number}"),
        qos: 0,
        publisher: Peer::udp(from, 2_000 + (number % 50_000) as u16),
        subscribers: [Peer::udp(to, 2_000 + (number % 50_000) as u16)].into(),
        broker: None,
        deadline_ns: period,
        period_ns: period,
        jitter_ns: 100_000,
        size: 100,
        wire_bytes: 200,
        frames: 1,
        priority: None,
        bandwidth: None,
    }
}

/// The same flow to the subscriber of the flows with the next numbers, too: over a broker at
/// the first host of a switch in the middle, or to a group.
fn to_several(number: u64, subscribers: u64, broker: bool) -> Request {
    let mut request = request(number);
    let publisher = request.publisher.address;
    let others = (1..).map(|step| self::request(number + 1_000_003 * step));
    let others = others.flat_map(|other| other.subscribers);
    let others = others.filter(|peer| peer.address != publisher);
    let missing = subscribers as usize - request.subscribers.len();
    request.subscribers.extend(others.take(missing));
    if broker {
        let tcp = |mut peer: Peer| {
            peer.protocol = Protocol::Tcp;
            peer
        };
        request.subscribers = request.subscribers.into_iter().map(tcp).collect();
        request.publisher.protocol = Protocol::Tcp;
        request.broker = Some(Peer::tcp([10, 0, 1 + (number % 10) as u8, 1], 1883));
    }
    request
}

impl Net {
    fn new(speaks: SwitchProtocol) -> Self {
        let hosts = (1..=SWITCHES).flat_map(|datapath| {
            (1..=HOSTS).map(move |host| KnownHost {
                name: format!("h{datapath}-{host}"),
                mac: Some(Mac([2, 0, 0, 0, datapath as u8, host as u8])),
                addresses: vec![[10, 0, datapath as u8, host as u8].into()],
                at: Some(End {
                    datapath,
                    port: host as u32,
                }),
            })
        });
        let settings = Settings {
            hosts: hosts.collect(),
            protect: false,
            ..Settings::default()
        };
        let mut net = Self {
            controller: Controller::new(&settings),
            now: 1,
            busy: Duration::ZERO,
            changes: 0,
            admitted: 0,
            last: None,
            speaks,
        };
        for datapath in 1..=SWITCHES {
            net.tell(Event::Connected {
                datapath,
                speaks,
                meters: 65_535,
                ports: ports(datapath),
            });
        }
        for (a, b) in cables() {
            net.tell(Event::Link { from: a, to: b });
            net.tell(Event::Link { from: b, to: a });
        }
        net
    }

    /// Tells the controller, and answers for the switches.
    fn tell(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut effects = Vec::new();
            let begin = on_processor();
            self.controller.handle(event, Nanos(self.now), &mut effects);
            self.busy += on_processor() - begin;
            for effect in effects {
                match effect {
                    Effect::Apply {
                        datapath,
                        step,
                        changes,
                    } => {
                        self.changes += changes.len();
                        events.push(Event::Applied {
                            datapath,
                            step,
                            problem: None,
                        });
                    }
                    Effect::Send {
                        datapath,
                        xid,
                        message,
                    } => {
                        let empty =
                            |body| Message::MultipartReply(MultipartReply { more: false, body });
                        let answer = match message {
                            Message::BarrierRequest => Message::BarrierReply,
                            Message::MultipartRequest(MultipartRequest::Flow(_)) => {
                                empty(MultipartBody::Flow(Vec::new()))
                            }
                            Message::MultipartRequest(MultipartRequest::GroupDesc) => {
                                empty(MultipartBody::GroupDesc(Vec::new()))
                            }
                            Message::MultipartRequest(MultipartRequest::MeterConfig(_)) => {
                                empty(MultipartBody::MeterConfig(Vec::new()))
                            }
                            Message::FlowMod(_) | Message::GroupMod(_) | Message::MeterMod(_) => {
                                self.changes += 1;
                                continue;
                            }
                            _ => continue,
                        };
                        events.push(Event::Message {
                            datapath,
                            xid,
                            message: answer,
                        });
                    }
                    Effect::Write(channel) => {
                        self.admitted += usize::from(channel.state == State::Admitted);
                        self.last = Some(channel);
                    }
                    Effect::Erase { .. } | Effect::Notice(_) => {}
                }
            }
        }
    }

    fn run(&mut self, millis: u64) {
        let end = self.now + millis * 1_000_000;
        while self.controller.next_tick().0 <= end {
            self.now = self.now.max(self.controller.next_tick().0) + 1;
            self.tell(Event::Tick);
        }
        self.now = end;
    }
}

/// Time for which this thread has had a processor.
fn on_processor() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

/// Memory of this process, MB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    pages * 4096 / 1_000_000
}

/// Flows over brokers, and groups of which some get a member more.
fn several() {
    println!(
        "| switches told by | flows | subscribers each | over | admitted | all planned, ms | one joins: median, ms | greatest of 51 |"
    );
    println!("|---|--:|--:|---|--:|--:|--:|--:|");
    for speaks in [SwitchProtocol::Plans, SwitchProtocol::OpenFlow] {
        for (flows, subscribers, broker) in [(500, 10, false), (1_000, 1, true), (1_000, 4, true)] {
            let mut net = Net::new(speaks);
            for number in 0..flows {
                let request = to_several(number, subscribers, broker);
                net.tell(Event::Request(request));
            }
            net.busy = Duration::ZERO;
            net.tell(Event::Synchronised);
            net.run(3_000);
            let (all, admitted) = (net.busy, net.admitted);
            let mut joins = Vec::new();
            for number in 0..51 {
                let mut more = to_several(number, subscribers + 1, broker);
                more.generation += 1;
                net.busy = Duration::ZERO;
                net.tell(Event::Request(more));
                joins.push(net.busy);
            }
            joins.sort_unstable();
            println!(
                "| {} | {flows} | {subscribers} | {} | {admitted} | {} | {} | {} |",
                name_of(speaks),
                if broker { "brokers" } else { "groups" },
                millis(all),
                millis(joins[25]),
                millis(joins[50]),
            );
        }
    }
}

fn name_of(speaks: SwitchProtocol) -> &'static str {
    match speaks {
        SwitchProtocol::Plans => "plans",
        SwitchProtocol::OpenFlow => "OpenFlow",
    }
}

fn main() {
    several();
    println!();
    println!(
        "| switches told by | flows | admitted | all planned, ms | changes | one more: median, ms | greatest of 51 | a cable fails, ms | bounds set anew, ms | memory, MB |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for speaks in [SwitchProtocol::Plans, SwitchProtocol::OpenFlow] {
        for flows in [1_000, 10_000] {
            let mut net = Net::new(speaks);
            for number in 0..flows {
                net.tell(Event::Request(request(number)));
            }
            (net.busy, net.changes) = (Duration::ZERO, 0);
            net.tell(Event::Synchronised);
            net.run(3_000);
            let (all, changes, admitted) = (net.busy, net.changes, net.admitted);
            let mut more = Vec::new();
            for number in flows..flows + 51 {
                net.busy = Duration::ZERO;
                net.tell(Event::Request(request(number)));
                more.push(net.busy);
            }
            more.sort_unstable();
            net.busy = Duration::ZERO;
            // They have their turns.
            net.run(12_000);
            let renewed = net.busy;
            net.busy = Duration::ZERO;
            // One at the edge: its hosts cannot be reached.
            let (from, to) = cables()[50];
            for end in [from, to] {
                let mut port = ports(end.datapath)[end.port as usize - 1].clone();
                port.up = false;
                net.tell(Event::Port {
                    datapath: end.datapath,
                    port,
                });
            }
            let speaks = name_of(net.speaks);
            println!(
                "| {speaks} | {flows} | {admitted} | {} | {changes} | {} | {} | {} | {} | {} |",
                millis(all),
                millis(more[25]),
                millis(more[50]),
                millis(net.busy),
                millis(renewed),
                resident(),
            );
        }
    }
}
