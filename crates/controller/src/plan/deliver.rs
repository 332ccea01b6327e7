//! Where a packet goes, by a plan.

use std::collections::BTreeSet;
use std::net::IpAddr;

use punctual_model::srt::Protocol;

use super::{FarEnd, Header, Leg, Match, Plan, PortNumber};

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Source address.
    pub source: IpAddr,
    /// Source port.
    pub source_port: u16,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port.
    pub destination_port: u16,
    /// Its mark.
    pub dscp: u8,
}

/// A copy that left the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The switch that it left last.
    pub switch: String,
    /// Port of that switch.
    pub port: PortNumber,
    /// As it is handed over.
    pub packet: Packet,
    /// The ports that it left by on its path, with the queues.
    pub hops: Vec<(String, PortNumber, u8)>,
}

/// An error of a plan, found by following a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No entry is about it at this port.
    Lost(String, PortNumber),
    /// It comes a second time to a port with the same mark: it goes in circles,
    /// or there are two of it.
    Again(String, PortNumber),
    /// An entry sends it by a port that the switch does not have.
    NoPort(String, PortNumber),
}

impl Packet {
    fn has(&self, header: &Header) -> bool {
        (self.protocol, self.source, self.destination)
            == (header.protocol, header.source, header.destination)
            && header
                .source_port
                .is_none_or(|port| port == self.source_port)
            && header
                .destination_port
                .is_none_or(|port| port == self.destination_port)
    }
}

impl Plan {
    /// Sends a packet into the network at a port of the edge, by the entries of
    /// flows alone; ports in `down` do not transmit.
    ///
    /// # Errors
    /// Where it is lost, goes in circles, or comes twice.
    pub fn deliver(
        &self,
        switch: &str,
        port: PortNumber,
        packet: Packet,
        down: &BTreeSet<(String, PortNumber)>,
    ) -> Result<Vec<Delivery>, Fault> {
        let mut delivered = Vec::new();
        let mut seen = BTreeSet::new();
        let mut waiting = vec![(switch.to_owned(), port, packet, Vec::new())];
        while let Some((switch, in_port, mut packet, hops)) = waiting.pop() {
            let lost = || Fault::Lost(switch.clone(), in_port);
            if !seen.insert((switch.clone(), in_port, packet.dscp)) {
                return Err(Fault::Again(switch, in_port));
            }
            let plan = self.switches.get(&switch).ok_or_else(lost)?;
            let matches = |matching: &Match| {
                matching.in_port == in_port
                    && packet.has(&matching.header)
                    && matching.dscp.is_none_or(|dscp| dscp == packet.dscp)
            };
            let entry = plan
                .entries
                .iter()
                .filter(|(matching, _)| matches(matching))
                .max_by_key(|(matching, _)| matching.header.precision());
            let (_, entry) = entry.ok_or_else(lost)?;
            if let Some(mark) = entry.mark {
                packet.dscp = mark.dscp;
            }
            for leg in &entry.legs {
                let is_down = |port| down.contains(&(switch.clone(), port));
                let Some((port, queue, copy)) = sent(leg, packet, is_down) else {
                    continue;
                };
                let mut hops = hops.clone();
                hops.push((switch.clone(), port, queue));
                let no_port = || Fault::NoPort(switch.clone(), port);
                match &plan.ports.get(&port).ok_or_else(no_port)?.to {
                    FarEnd::Switch { name, port } => {
                        waiting.push((name.clone(), *port, copy, hops));
                    }
                    FarEnd::Edge(_) => delivered.push(Delivery {
                        switch: switch.clone(),
                        port,
                        packet: copy,
                        hops,
                    }),
                }
            }
        }
        Ok(delivered)
    }
}

/// By which port, in which queue and how a copy is sent; `None` if there is no
/// path.
fn sent(
    leg: &Leg,
    mut packet: Packet,
    is_down: impl Fn(PortNumber) -> bool,
) -> Option<(PortNumber, u8, Packet)> {
    if is_down(leg.port) {
        let detour = leg.detour.filter(|detour| !is_down(detour.port))?;
        packet.dscp = detour.dscp;
        return Some((detour.port, detour.queue, packet));
    }
    if let Some(last) = leg.hand_over {
        packet.dscp = last.dscp;
        if let Some(address) = last.address {
            packet.destination = address.ip;
            packet.destination_port = address.port.unwrap_or(packet.destination_port);
        }
    }
    Some((leg.port, leg.queue, packet))
}
