//! Measures how long an admitted flow is interrupted when a link of its path fails: eight Open
//! vSwitch switches in a ring, the project's controller, and repeated cuts of one link at a time.
//!
//! The result is the longest time between two packets at the receiver around the cut; the sender
//! sends one packet per millisecond. A link is cut either by taking its device down, which the
//! switches detect, or by dropping its packets, which only BFD detects (RFC 5880).

mod control;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use punctual_controller::plan::FarEnd;
use punctual_controller::{End, Event, KnownHost, Settings};
use punctual_model::network::{Document, FlowEntry, LinkEntry, Network, NodeEntry};
use punctual_model::srt::{Peer, Protocol, Request, State};
use punctual_report::Page;
use serde::Serialize;
use serde_json::json;

use super::experiment::{join, take_turn};
use super::fabric::{Driver, Fabric};
use super::flows::{self, Stream, hardware};
use super::layout::{Layout, Place};
use super::observe::{Arrival, Observer};
use super::openflow::failed;
use super::stamp::Stamp;
use crate::compare::document;
use crate::compare::machine::Machine;
use crate::results_file::ResultsFile;
use crate::sys;
use control::Control;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Name and version of the JSON format.
const FORMAT: &str = "punctual-recovery-1";

/// Number of switches in the ring.
const SWITCHES: usize = 8;
/// Number of the receiver's switch; the sender is at switch 1, and both ways around are equally
/// long.
const FAR: usize = 5;
const RATE: u64 = 100_000_000;
/// Interval of packets.
const PERIOD: Duration = Duration::from_millis(1);
/// A packet's payload and size on the wire, bytes.
const PAYLOAD: usize = 200;
const WIRE_BYTES: u32 = PAYLOAD as u32 + 66;
/// UDP port of receiver and sender.
const PORT: u16 = 5000;
/// Release jitter of the flow: a late sender may catch up by this much before it is policed.
const JITTER: Duration = Duration::from_millis(5);
const DEADLINE: Duration = Duration::from_millis(50);
/// Duration of a cut.
const OUTAGE: Duration = Duration::from_millis(700);
/// Pause after all links have recovered.
const REST: Duration = Duration::from_secs(1);
/// Longest wait for the network to reach the expected state.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
/// BFD transmission interval, ms.
const BFD: u64 = 10;
/// `SCHED_FIFO` priority of `punctual controller --realtime`.
const CONTROL_FIFO: u8 = 40;
const SENDER_FIFO: u8 = 30;
const OBSERVER_FIFO: u8 = 20;

const MANAGER: &str = "bench";
const FLOW: &str = "there";

/// Options of `bench recovery`.
#[derive(Args, Debug)]
pub(crate) struct RecoveryArgs {
    /// Cuts for each recovery mechanism
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeats: u64,
    /// Do not give switches, controller and sender real-time priority
    #[arg(long)]
    unpinned: bool,
    /// Markdown file whose generated part is replaced
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// JSON file for the results, written after each recovery mechanism [default:
    /// target/bench/recovery.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Mechanisms by which a flow changes to another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Mechanism {
    /// The switch before the link has a backup path (fast failover).
    FastFailover,
    /// The controller computes and installs another path.
    Recomputation,
    /// The switch has a backup path, and uses it when BFD detects the failure.
    SilentLoss,
}

impl Mechanism {
    const ALL: [Self; 3] = [Self::FastFailover, Self::Recomputation, Self::SilentLoss];

    fn title(self) -> &'static str {
        match self {
            Self::FastFailover => "link down, detour on the switch (fast failover)",
            Self::Recomputation => "link down, another path from the controller",
            Self::SilentLoss => "silent loss, BFD every 10 ms, detour on the switch",
        }
    }

    /// Largest interruption that meets the goal, ms.
    fn goal(self) -> u64 {
        match self {
            Self::FastFailover => 15,
            Self::Recomputation => 20,
            Self::SilentLoss => 50,
        }
    }
}

/// Effect of one cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Outage {
    /// Longest time without a packet, ns; `None` if packets did not arrive again.
    gap: Option<u64>,
    /// Packets that were lost.
    lost: u64,
}

/// Results of all cuts with one recovery mechanism.
#[derive(Debug, Serialize)]
struct Series {
    mechanism: Mechanism,
    goal_ms: u64,
    outages: Vec<Outage>,
    /// Packets that arrived twice.
    repeated: u64,
}

impl RecoveryArgs {
    /// Runs all cuts; progress goes to standard error, the table to `out`.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        Namespace::check()?;
        let file = ResultsFile::new(
            self.json.as_deref(),
            "target/bench".as_ref(),
            "recovery.json",
        )?;
        let machine = Machine::read();
        let json = |all: &[Series]| json!({"format": FORMAT, "machine": machine, "series": all});
        let mut all = Vec::new();
        for mechanism in Mechanism::ALL {
            let series = self.measure(mechanism)?;
            eprintln!("{}: {}", mechanism.title(), series.cells()[3]);
            all.push(series);
            file.write(&json(&all), false)?;
        }
        file.write(&json(&all), true)?;
        let markdown = self.page(&all).markdown();
        document::publish(self.document.as_deref(), &markdown, out)?;
        Ok(())
    }

    fn page(&self, all: &[Series]) -> Page {
        let machine = Machine::read();
        let mut page = Page::new("Recovery");
        page.paragraph(format!(
            "Measured on {} by `punctual bench recovery`: {}, {} cores, Linux {}, load average {}. \
             {} cuts each; packets 1 ms apart over four links between switches of Open vSwitch \
             (userspace), eight in a ring; ms.",
            machine.date,
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.load_average,
            self.repeats,
        ));
        let head = [
            "what fails and who recovers",
            "goal",
            "median without a packet",
            "longest",
            "packets lost, at most",
            "came twice, in all",
            "never recovered",
        ];
        page.table(
            head.map(str::to_owned).to_vec(),
            all.iter().map(Series::cells).collect(),
        );
        page
    }

    fn measure(&self, mechanism: Mechanism) -> Result<Series> {
        let document = ring();
        let network = Network::new(&document).map_err(|error| Error::Config {
            field: "network",
            value: "ring".to_owned(),
            remedy: error.to_string(),
        })?;
        let layout = Layout::new(&network)?;
        let fabric = Fabric::new(&layout, Driver::Openflow, !self.unpinned)?;
        let path = &layout.publications[0];
        let stream = Stream {
            from: path.publisher,
            to: path.ups[0].broker,
            protocol: Protocol::Udp,
            ports: [PORT; 2],
            path: path.ups[0].path.clone(),
            levels: [7, 0],
        };
        fabric.introduce(&layout, std::slice::from_ref(&stream))?;
        let fifo = |priority| if self.unpinned { 0 } else { priority };
        let plant = Plant::start(&layout, &fabric, document, mechanism, fifo(CONTROL_FIFO))?;
        let group = plant.reserve(&layout, &stream)?;
        let (ended, seen) = (AtomicBool::new(false), AtomicBool::new(false));
        let [from, to] = [stream.from, stream.to].map(|host| fabric.host(host));
        let sender = from
            .enter(|| UdpSocket::bind((layout.hosts[stream.from].address, PORT)))?
            .map_err(Error::io("cannot send"))?;
        // No program reads from this socket: a capture at the host's device sees the packets.
        let _receiver = to
            .enter(|| UdpSocket::bind((layout.hosts[stream.to].address, PORT)))?
            .map_err(Error::io("cannot receive"))?;
        let (_, device) = layout.sender(stream.path[0]);
        from.ip(&format!("route replace {group} dev {device}"))?;
        let target = SocketAddr::from((group, PORT));
        let observer = Observer::new([(stream.to, to)])?;
        let (cuts, observed) = thread::scope(|scope| -> Result<_> {
            let observing = scope.spawn(|| {
                take_turn(None, fifo(OBSERVER_FIFO))?;
                observer.run(&seen)
            });
            let sending = scope.spawn(|| {
                take_turn(None, fifo(SENDER_FIFO))?;
                send(&sender, target, &ended);
                Ok(())
            });
            let cuts = plant.cut_often(&layout, self.repeats);
            ended.store(true, Ordering::Release);
            let sent = join(sending);
            thread::sleep(LOOK);
            seen.store(true, Ordering::Release);
            let observed = join(observing)?;
            sent?;
            Ok((cuts?, observed))
        })?;
        let outages = cuts
            .iter()
            .map(|cut| outage(&observed.arrivals, *cut))
            .collect();
        Ok(Series {
            mechanism,
            goal_ms: mechanism.goal(),
            outages,
            repeated: observed.repeated.len() as u64,
        })
    }
}

impl Series {
    fn cells(&self) -> Vec<String> {
        let mut gaps: Vec<u64> = self.outages.iter().filter_map(|of| of.gap).collect();
        gaps.sort_unstable();
        let ms = |ns: Option<&u64>| {
            ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", *ns as f64 / 1e6))
        };
        let lost = self.outages.iter().map(|of| of.lost).max();
        vec![
            self.mechanism.title().to_owned(),
            self.goal_ms.to_string(),
            ms(gaps.get(gaps.len() / 2)),
            ms(gaps.last()),
            lost.unwrap_or(0).to_string(),
            self.repeated.to_string(),
            (self.outages.len() - gaps.len()).to_string(),
        ]
    }
}

/// The ring with one host at the first switch and one at the far switch. Two flows, one each way
/// around, make all other nodes switches.
fn ring() -> Document {
    let mut document = Document::default();
    let node = |id: String| NodeEntry {
        id,
        ..NodeEntry::default()
    };
    let mut cables = Vec::new();
    for number in 1..=SWITCHES {
        document.nodes.push(node(format!("s{number}")));
        cables.push((format!("s{number}"), format!("s{}", number % SWITCHES + 1)));
    }
    for (host, switch) in [("h1", 1), ("h2", FAR)] {
        document.nodes.push(node(host.to_owned()));
        cables.push((host.to_owned(), format!("s{switch}")));
    }
    let both = cables.iter().flat_map(|(a, b)| [(a, b), (b, a)]);
    document.links = both
        .map(|(from, to)| LinkEntry {
            id: format!("{from}>{to}"),
            from: from.clone(),
            to: to.clone(),
            rate_bps: Some(RATE),
            ..LinkEntry::default()
        })
        .collect();
    let up: Vec<usize> = (1..=FAR).collect();
    let down: Vec<usize> = [1].into_iter().chain((FAR..=SWITCHES).rev()).collect();
    for (name, switches) in [(FLOW, up), ("round", down)] {
        let mut stations = vec!["h1".to_owned()];
        stations.extend(switches.iter().map(|number| format!("s{number}")));
        stations.push("h2".to_owned());
        let path = stations.windows(2);
        document.flows.push(FlowEntry {
            id: name.to_owned(),
            period_ns: PERIOD.as_nanos() as u64,
            wire_bytes: Some(WIRE_BYTES.into()),
            paths: vec![path.map(|ends| ends.join(">")).collect()],
            ..FlowEntry::default()
        });
    }
    document
}

/// Switches connected to a controller.
struct Plant<'a> {
    control: Control,
    namespace: &'a Namespace,
    mechanism: Mechanism,
}

/// Times at which a link was cut and restored, ns on `CLOCK_REALTIME`.
type Cut = (u64, u64);

impl<'a> Plant<'a> {
    fn start(
        layout: &Layout,
        fabric: &'a Fabric,
        document: Document,
        mechanism: Mechanism,
        fifo: u8,
    ) -> Result<Self> {
        let bridges = fabric
            .bridges()
            .ok_or_else(|| failed()(std::io::ErrorKind::Unsupported.into()))?;
        let bare = flows::plan(layout, &[]);
        bridges.wire(&bare)?;
        let mut hosts = Vec::new();
        let mut bfd: Vec<String> = Vec::new();
        for (switch, datapath) in bare.switches.values().zip(1..) {
            for (number, port) in &switch.ports {
                let at = End {
                    datapath,
                    port: *number,
                };
                match &port.to {
                    FarEnd::Edge(names) => hosts.extend(known(layout, names, at)),
                    FarEnd::Switch { .. } if mechanism == Mechanism::SilentLoss => {
                        bfd.extend(["--", "set", "interface"].map(str::to_owned));
                        bfd.push(port.name.clone());
                        bfd.push("bfd:enable=true".to_owned());
                        bfd.push(format!("bfd:min_rx={BFD}"));
                        bfd.push(format!("bfd:min_tx={BFD}"));
                    }
                    FarEnd::Switch { .. } => {}
                }
            }
        }
        if !bfd.is_empty() {
            bridges.ovs.vsctl(bfd).map_err(failed())?;
        }
        let settings = Settings {
            network: document,
            switches: (1..).zip(bare.switches.keys().cloned()).collect(),
            hosts,
            protect: mechanism != Mechanism::Recomputation,
            ..Settings::default()
        };
        let control = Control::start(&bridges.namespace, &settings, fifo)?;
        for name in bare.switches.keys() {
            let target = control.target();
            bridges
                .ovs
                .vsctl(["set-controller", name, &target])
                .map_err(failed())?;
        }
        control.tell(Event::Synchronised);
        let plant = Self {
            control,
            namespace: &bridges.namespace,
            mechanism,
        };
        plant.settle("the switches did not become a network")?;
        Ok(plant)
    }

    /// Waits until all links are up, and the controller has settled and checked the detours of
    /// every cable.
    fn settle(&self, otherwise: &str) -> Result<()> {
        let is_there = || {
            self.control.look(|controller| {
                let status = controller.status();
                let between = status.links.iter().filter(|link| {
                    let from_host = link.name.starts_with('h') || link.name.contains(">h");
                    link.up && !from_host
                });
                controller.is_settled()
                    && between.count() == 2 * SWITCHES
                    && status.covered_completely
            })
        };
        wait(is_there, otherwise)
    }

    /// Requests the flow, waits until it is admitted, and returns its destination address.
    fn reserve(&self, layout: &Layout, stream: &Stream) -> Result<IpAddr> {
        let peer = |host: usize| Peer::udp(layout.hosts[host].address, PORT);
        self.control.tell(Event::Request(Request {
            manager: MANAGER.to_owned(),
            flow: FLOW.to_owned(),
            generation: 1,
            topic: FLOW.to_owned(),
            qos: 0,
            publisher: peer(stream.from),
            subscribers: BTreeSet::from([peer(stream.to)]),
            broker: None,
            deadline_ns: DEADLINE.as_nanos() as u64,
            period_ns: PERIOD.as_nanos() as u64,
            jitter_ns: JITTER.as_nanos() as u64,
            size: PAYLOAD as u32,
            wire_bytes: WIRE_BYTES,
            frames: 1,
            priority: Some(7),
            bandwidth: None,
        }));
        let mut group = None;
        let is_admitted = || {
            self.control.look(|controller| {
                let channel = controller.channel(MANAGER, FLOW);
                let channel = channel.filter(|channel| channel.state == State::Admitted);
                group = channel.and_then(|channel| channel.group_address);
                group.is_some()
            })
        };
        wait(is_admitted, "the flow was not admitted")?;
        self.settle("the network did not come to rest")?;
        group.ok_or_else(|| timed_out("the flow was not admitted"))
    }

    fn cut_often(&self, layout: &Layout, repeats: u64) -> Result<Vec<Cut>> {
        let mut cuts = Vec::new();
        for _ in 0..repeats {
            let ends = self.link_in_use(layout)?;
            let begin = sys::real_time_ns();
            self.cut(ends, true)?;
            thread::sleep(OUTAGE);
            let end = sys::real_time_ns();
            self.cut(ends, false)?;
            cuts.push((begin, end));
            // The links must be discovered again, and BFD starts with slow transmission.
            self.settle("the link did not come back")?;
            thread::sleep(REST);
            self.settle("the network did not come to rest")?;
        }
        Ok(cuts)
    }

    /// The devices at both ends of the second link of the flow's path.
    fn link_in_use<'l>(&self, layout: &'l Layout) -> Result<&'l [String; 2]> {
        let name = |number: usize| format!("s{number}");
        let first = name(1);
        let next = self.control.look(|controller| {
            let switch = controller.plan().switches.get(&first)?;
            // The entry at which the flow enters the network matches no mark: the sender's mark is
            // arbitrary.
            let mut entries = switch.entries.iter();
            let (_, entry) = entries.find(|(matching, _)| matching.dscp.is_none())?;
            let port = switch.ports.get(&entry.legs.first()?.port)?;
            match &port.to {
                FarEnd::Switch { name, .. } => Some(name.clone()),
                FarEnd::Edge(_) => None,
            }
        });
        let pair = match next {
            Some(next) if next == name(2) => [name(2), name(3)],
            _ => [name(SWITCHES), name(SWITCHES - 1)],
        };
        let place = |name: &String| layout.switches.iter().position(|of| of == name);
        let pair = pair.each_ref().map(place);
        let cable = layout.cables.iter().find(|cable| {
            let ends = cable.ends.map(|end| match end {
                Place::Switch(switch) => Some(switch),
                Place::Host(_) => None,
            });
            ends == pair || ends == [pair[1], pair[0]]
        });
        let cable = cable.ok_or_else(|| timed_out("the flow takes no link of the ring"))?;
        Ok(&cable.devices)
    }

    /// Cuts a link, or restores it.
    fn cut(&self, ends: &[String; 2], cut: bool) -> Result<()> {
        if self.mechanism != Mechanism::SilentLoss {
            let state = if cut { "down" } else { "up" };
            return self
                .namespace
                .ip(&format!("link set dev {} {state}", ends[0]))
                .map(drop);
        }
        // An egress hook drops what the switches send on this link; the carrier stays up.
        let rules = match cut {
            true => {
                let chain = |device: &String| {
                    format!(
                        "chain {device} {{ type filter hook egress device \"{device}\" priority 0; \
                         policy drop; }}\n"
                    )
                };
                let chains: String = ends.iter().map(chain).collect();
                format!("table netdev cut {{\n{chains}}}\n")
            }
            false => "delete table netdev cut\n".to_owned(),
        };
        self.namespace.feed("nft", &["-f", "-"], &rules).map(drop)
    }
}

/// The hosts with these names, at a port.
fn known(layout: &Layout, names: &[String], at: End) -> Vec<KnownHost> {
    let hosts = layout.hosts.iter();
    let hosts = hosts.filter(|host| names.contains(&host.name));
    hosts
        .map(|host| KnownHost {
            name: host.name.clone(),
            mac: Some(hardware(host.address)),
            addresses: vec![host.address.into()],
            at: Some(at),
        })
        .collect()
}

fn wait(mut is_so: impl FnMut() -> bool, otherwise: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > deadline {
            return Err(timed_out(otherwise));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

fn timed_out(what: &str) -> Error {
    Error::io(what.to_owned())(std::io::ErrorKind::TimedOut.into())
}

/// Sends a packet each period until `ended` is set.
fn send(socket: &UdpSocket, target: SocketAddr, ended: &AtomicBool) {
    sys::set_least_timer_slack();
    let mut payload = [0; PAYLOAD];
    let mut due = Instant::now();
    for sequence in 0.. {
        if ended.load(Ordering::Acquire) {
            break;
        }
        let now = sys::real_time_ns();
        let stamp = Stamp {
            flow: 0,
            sequence,
            nominal: now,
            written: now,
        };
        payload[PAYLOAD - super::stamp::LENGTH..].copy_from_slice(&stamp.to_bytes());
        // A packet that cannot be sent counts as lost at the receiver.
        let _ = socket.send_to(&payload, target);
        due += PERIOD;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// The effect of a cut on the packets, which are in the order of arrival.
fn outage(arrivals: &[Arrival], (begin, end): Cut) -> Outage {
    let before = arrivals.iter().rev().find(|arrival| arrival.time < begin);
    let during = arrivals
        .iter()
        .filter(|arrival| (begin..end).contains(&arrival.time));
    let all: Vec<&Arrival> = before.into_iter().chain(during).collect();
    let gap = all.windows(2).map(|pair| pair[1].time - pair[0].time).max();
    let sequences: BTreeSet<u32> = all.iter().map(|arrival| arrival.stamp.sequence).collect();
    let span = match (sequences.first(), sequences.last()) {
        (Some(first), Some(last)) => u64::from(last - first) + 1,
        _ => 0,
    };
    // If no packet arrived in the last half of the outage, the flow was not recovered.
    let last = all.last().map_or(begin, |arrival| arrival.time);
    let is_back = end - last < (end - begin) / 2;
    Outage {
        gap: gap.filter(|_| is_back),
        lost: span - sequences.len() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_can_be_laid_out() {
        let layout = Layout::new(&Network::new(&ring()).unwrap()).unwrap();
        assert_eq!((layout.hosts.len(), layout.switches.len()), (2, SWITCHES));
        assert_eq!(layout.cables.len(), SWITCHES + 2);
        assert_eq!(layout.publications[0].ups[0].path.len(), FAR + 1);
    }

    #[test]
    fn an_outage_is_the_longest_time_without_a_packet() {
        let arrival = |sequence: u32, ms: u64| Arrival {
            host: 0,
            stamp: Stamp {
                flow: 0,
                sequence,
                nominal: 0,
                written: 0,
            },
            time: ms * 1_000_000,
        };
        let cut = (10_500_000, 40_000_000);
        let mut arrivals: Vec<_> = (0..=12).map(|n| arrival(n, n.into())).collect();
        let lasting = outage(&arrivals, cut);
        assert_eq!((lasting.gap, lasting.lost), (None, 0));
        // Packets 13 to 18 are lost; packet 19, the first after the cut, is 1 ms late.
        arrivals.push(arrival(19, 20));
        arrivals.extend((20..50).map(|n| arrival(n, n.into())));
        let short = outage(&arrivals, cut);
        assert_eq!((short.gap, short.lost), (Some(8_000_000), 6));
    }
}
