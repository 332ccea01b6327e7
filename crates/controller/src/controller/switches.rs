//! Messages from and to OpenFlow switches.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use punctual_model::Nanos;
use punctual_openflow::multipart::QueueStatsRequest;
use punctual_openflow::{
    Action, Message, MultipartBody, MultipartRequest, PacketIn, PacketOut, PortDesc, PortNo,
    PortReason, QueueId, TableId,
};

use super::again::ASKER;
use super::{Controller, Link};
use crate::event::{Change, Effect, Notice, SwitchProtocol};
use crate::monitor::Counters;
use crate::openflow::{FLOOD, Session, SwitchReport};
use crate::plan::{Mac, Mark};
use crate::topology::{Change as Found, EarlierUse, End, PortState, lldp};
use crate::updates::Progress;

/// Most packets to unknown hosts that are flooded between two probes.
const MAX_FLOODS: u32 = 256;

/// State of a port from its OpenFlow description; `None` if the port is a reserved one.
pub fn port_state(port: &PortDesc) -> Option<PortState> {
    (port.port <= PortNo::MAX).then(|| PortState {
        number: port.port.0,
        name: port.name.to_string(),
        mac: Mac(port.mac.0),
        up: port.is_up(),
        rate_bps: u64::from(port.current_kbps) * 1_000,
    })
}

impl Controller {
    pub(super) fn connected(
        &mut self,
        datapath: u64,
        speaks: SwitchProtocol,
        meters: u32,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        let switch = self.name(datapath);
        effects.push(Effect::Notice(Notice::SwitchUp { switch }));
        // The switch will never confirm changes of an earlier connection.
        let mut progress = Progress::default();
        self.updates.away(datapath, now, &mut progress);
        let link = match speaks.is_openflow() {
            true => {
                let mut out = Vec::new();
                let session = Session::new(meters, &mut out);
                send(datapath, out, effects);
                Link::OpenFlow(Box::new(session))
            }
            false => Link::Plans(false),
        };
        self.switches.insert(datapath, link);
        if speaks.is_openflow() {
            self.recovery.arrived(datapath, now);
        }
        self.perform(progress, now, effects);
        if self.begun && !speaks.is_openflow() {
            self.send_whole_plan(datapath, effects);
        }
        self.next_probe = self.next_probe.min(now);
    }

    /// Sends the whole plan to a switch whose tables cannot be read.
    fn send_whole_plan(&mut self, datapath: u64, effects: &mut Vec<Effect>) {
        let name = self.name(datapath);
        let plan = self.plan.switches.entry(name).or_default();
        let entries = plan.entries.iter();
        let entries = entries.map(|(matching, entry)| Change::Set(*matching, entry.clone()));
        let changes = [Change::Reset, Change::Base]
            .into_iter()
            .chain(entries)
            .collect();
        self.switches.insert(datapath, Link::Plans(true));
        self.steps += 1;
        let step = self.steps;
        effects.push(Effect::Apply {
            datapath,
            step,
            changes,
        });
    }

    pub(super) fn heard(
        &mut self,
        datapath: u64,
        xid: u32,
        message: &Message,
        now: Nanos,
        found: &mut Vec<Found>,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            Message::PacketIn(packet) => {
                return self.packet(datapath, packet, now, found, effects);
            }
            Message::PortStatus(status) => {
                if let Some(port) = port_state(&status.port) {
                    let end = End {
                        datapath,
                        port: port.number,
                    };
                    let live = status
                        .port
                        .state
                        .contains(punctual_openflow::PortState::LIVE);
                    // A port without the liveness flag is dead only if it has had the flag before:
                    // some switches never set it.
                    if live {
                        self.live.insert(end);
                    }
                    let silent = !live && self.live.contains(&end) && port.up;
                    match status.reason {
                        PortReason::Delete => {
                            self.live.remove(&end);
                            self.topology.port_gone(end, found);
                        }
                        _ => {
                            self.topology.port(datapath, port, now, found);
                            self.topology.liveness(end, !silent, found);
                        }
                    }
                }
                return;
            }
            Message::MultipartReply(reply) => self.counters(datapath, &reply.body, now),
            _ => {}
        }
        let Some(Link::OpenFlow(session)) = self.switches.get_mut(&datapath) else {
            return;
        };
        match session.hear(xid, message) {
            SwitchReport::Nothing => {}
            SwitchReport::Read => {
                let is_blank = session.is_blank();
                if self.begun && !self.recovery.waits_for(datapath, is_blank) {
                    self.reconcile(datapath, effects);
                    return;
                }
                if let Some(uses) = session.port_uses() {
                    let ports = self.topology.switches.get(&datapath);
                    let ports = ports.into_iter().flat_map(|switch| switch.ports.keys());
                    for port in ports.copied().collect::<Vec<_>>() {
                        let earlier = match (uses.edge.contains(&port), uses.out.contains(&port)) {
                            (true, _) => EarlierUse::Unknown,
                            (false, false) => EarlierUse::Inner,
                            (false, true) => EarlierUse::Link,
                        };
                        self.topology.recall_port(End { datapath, port }, earlier);
                    }
                }
                let mut out = Vec::new();
                session.prepare(&mut out);
                for (header, dscp) in session.marks() {
                    if !self.ledger.streams.contains_key(&header) {
                        self.ledger.found(header, Mark { dscp, pcp: None });
                    }
                }
                send(datapath, out, effects);
                self.recovery.read(now);
            }
            SwitchReport::Done(step, problem) => {
                if let Some(reason) = &problem {
                    let switch = self.name(datapath);
                    effects.push(Effect::Notice(Notice::Trouble {
                        switch,
                        reason: reason.clone(),
                    }));
                }
                let switch = self.name(datapath);
                let problem = problem.map(|reason| format!("switch {switch} says {reason}"));
                let mut progress = Progress::default();
                self.updates
                    .done(datapath, step, problem, now, &mut progress);
                self.perform(progress, now, effects);
            }
            SwitchReport::Trouble(reason) => {
                let switch = self.name(datapath);
                effects.push(Effect::Notice(Notice::Trouble { switch, reason }));
            }
        }
    }

    /// Makes a switch conform to its plan, when its tables were read or cannot be read.
    pub(super) fn reconcile(&mut self, datapath: u64, effects: &mut Vec<Effect>) {
        if let Some(Link::Plans(_)) = self.switches.get(&datapath) {
            return self.send_whole_plan(datapath, effects);
        }
        let name = self.name(datapath);
        let plan = self.plan.switches.entry(name.clone()).or_default();
        let Some(Link::OpenFlow(session)) = self.switches.get_mut(&datapath) else {
            return;
        };
        if session.is_ready() || !session.is_read() {
            return;
        }
        self.steps += 1;
        let mut out = Vec::new();
        let changes = session.reconcile(plan, self.steps, &mut out);
        send(datapath, out, effects);
        effects.push(Effect::Notice(Notice::Reconciled {
            switch: name,
            changes,
        }));
    }

    fn packet(
        &mut self,
        datapath: u64,
        packet: &PacketIn,
        now: Nanos,
        found: &mut Vec<Found>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(port) = packet.matching.in_port() else {
            return;
        };
        let at = End {
            datapath,
            port: port.0,
        };
        if lldp::is_lldp(&packet.data) {
            if let Some(from) = lldp::sender(&packet.data) {
                self.topology.probed(from, at, now, found);
            }
            return;
        }
        let Some(sender) = Sender::of(&packet.data) else {
            return;
        };
        self.topology.heard(sender.mac, sender.address, at, found);
        let known = self.topology.hosts.get(&sender.to);
        let unknown = known.is_none_or(|host| host.at.is_none());
        let missed = packet.table == TableId(1);
        let to_others = !sender.to.is_group() && sender.to != ASKER;
        if missed && unknown && to_others && self.floods < MAX_FLOODS {
            self.floods += 1;
            let Some(Link::OpenFlow(session)) = self.switches.get_mut(&datapath) else {
                return;
            };
            let packet = PacketOut {
                in_port: port,
                ..PacketOut::new(vec![Action::Group(FLOOD)], packet.data.clone())
            };
            let xid = session.xid();
            effects.push(Effect::Send {
                datapath,
                xid,
                message: Message::PacketOut(packet),
            });
        }
    }

    /// Sends a probe over each link.
    pub(super) fn probe(&mut self, effects: &mut Vec<Effect>) {
        let seconds =
            u16::try_from(self.intervals.probe_timeout.as_secs_ceil()).unwrap_or(u16::MAX);
        for (end, mac) in self.topology.to_probe() {
            let Some(Link::OpenFlow(session)) = self.switches.get_mut(&end.datapath) else {
                continue;
            };
            let out = vec![
                // Probes must not queue behind other packets.
                Action::SetQueue(QueueId(7)),
                Action::output(PortNo(end.port)),
            ];
            let packet = PacketOut::new(out, lldp::probe(end, mac, seconds));
            let xid = session.xid();
            effects.push(Effect::Send {
                datapath: end.datapath,
                xid,
                message: Message::PacketOut(packet),
            });
        }
    }

    pub(super) fn ask_counters(&mut self, effects: &mut Vec<Effect>) {
        for (datapath, link) in &mut self.switches {
            let Link::OpenFlow(session) = link else {
                continue;
            };
            let mut out = Vec::new();
            session.ask(MultipartRequest::PortStats(PortNo::ANY), &mut out);
            let queues = QueueStatsRequest {
                port: PortNo::ANY,
                queue: QueueId::ALL,
            };
            session.ask(MultipartRequest::Queue(queues), &mut out);
            send(*datapath, out, effects);
        }
    }

    fn counters(&mut self, datapath: u64, body: &MultipartBody, now: Nanos) {
        let rate = |map: &crate::topology::Map, end: End| {
            let link = map
                .link_at(end)
                .and_then(|link| map.model().links.get(link));
            link.map_or(0, |link| link.rate)
        };
        match body {
            MultipartBody::PortStats(ports) => {
                for stats in ports.iter().filter(|stats| stats.port <= PortNo::MAX) {
                    let end = End {
                        datapath,
                        port: stats.port.0,
                    };
                    let rate = rate(&self.map, end);
                    let counters = Counters {
                        bytes: stats.tx_bytes,
                        dropped: stats.tx_dropped,
                    };
                    self.monitor.port(end, counters, rate, now);
                }
            }
            MultipartBody::Queue(queues) => {
                for stats in queues.iter().filter(|stats| stats.port <= PortNo::MAX) {
                    let end = End {
                        datapath,
                        port: stats.port.0,
                    };
                    let rate = rate(&self.map, end);
                    let counters = Counters {
                        bytes: stats.tx_bytes,
                        dropped: stats.tx_errors,
                    };
                    let queue = stats.queue.0;
                    self.monitor.queue(end, queue, counters, rate, now);
                }
            }
            _ => {}
        }
    }
}

fn send(datapath: u64, out: Vec<(u32, Message)>, effects: &mut Vec<Effect>) {
    let sends = out.into_iter().map(|(xid, message)| Effect::Send {
        datapath,
        xid,
        message,
    });
    effects.extend(sends);
}

/// Source and destination addresses of a frame.
struct Sender {
    mac: Mac,
    address: Option<IpAddr>,
    to: Mac,
}

impl Sender {
    fn of(frame: &[u8]) -> Option<Self> {
        let to = Mac(*frame.first_chunk()?);
        let mac = Mac(*frame.get(6..)?.first_chunk()?);
        let mut rest = frame.get(12..)?;
        if rest.starts_with(&[0x81, 0x00]) {
            rest = rest.get(4..)?;
        }
        let (kind, packet) = rest.split_first_chunk::<2>()?;
        let v4 = |at: usize| {
            let octets: [u8; 4] = *packet.get(at..)?.first_chunk()?;
            Some(IpAddr::V4(Ipv4Addr::from(octets)))
        };
        let address = match *kind {
            // Sender protocol address of an ARP packet.
            [0x08, 0x06] => v4(14),
            [0x08, 0x00] => v4(12),
            [0x86, 0xdd] => {
                let octets: Option<&[u8; 16]> = packet.get(8..).and_then(<[u8]>::first_chunk);
                octets.map(|octets| IpAddr::V6(Ipv6Addr::from(*octets)))
            }
            _ => None,
        };
        Some(Self { mac, address, to })
    }
}
