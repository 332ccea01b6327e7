//! Measures the forwarding delay of switches with captures at their ports, one frame at a time.
//!
//! The delay is the difference of the kernel's time stamps of a frame at its input and output port,
//! with no other frame on the path, so that no queueing is included. The analysis needs a lower and
//! an upper bound, so the result is the full range with a margin, without a standard deviation.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use punctual_model::network::Document;
use punctual_model::srt::Protocol;
use serde::Serialize;

use super::fabric::Fabric;
use super::flows::Stream;
use super::layout::Layout;
use super::results::Delays;
use super::stamp::{LENGTH, Stamp};
use crate::packets::{Capture, Which};
use crate::sys;
use punctual_measure::{Error, Result};

/// Probe frames for each path.
const PROBES: u32 = 200;

/// UDP port of the first path's frames.
const FIRST_PORT: u16 = 40_000;

/// Longest wait for a probe frame.
const PATIENCE: Duration = Duration::from_millis(500);

/// Bytes of a frame on the wire in addition to the payload of a UDP datagram.
const HEADERS: u64 = 38 + 28;

/// Margin below the least and above the greatest delay: one in `MARGIN` of the delay.
const MARGIN: u64 = 10;

/// The measured forwarding delay of a switch.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SwitchDelay {
    pub(crate) switch: String,
    pub(crate) least: u64,
    #[serde(flatten)]
    pub(crate) delays: Delays,
}

impl SwitchDelay {
    /// Range that an analysis should assume, ns: from below the least to above the greatest delay.
    pub(crate) fn range(&self) -> (u64, u64) {
        let (least, greatest) = (self.least, self.delays.max);
        (least - least / MARGIN, greatest + greatest / MARGIN)
    }
}

/// A path with its probe frames.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) stream: Stream,
    wire_bytes: u64,
}

/// A probe for each path from a publisher to a broker.
pub(super) fn probes(layout: &Layout) -> Vec<Probe> {
    let mut probes: Vec<Probe> = Vec::new();
    let publications = layout.publications.iter();
    for (publication, up) in publications.flat_map(|of| of.ups.iter().map(move |up| (of, up))) {
        if probes.iter().any(|probe| probe.stream.path == up.path) {
            continue;
        }
        let port = FIRST_PORT + probes.len() as u16;
        probes.push(Probe {
            stream: Stream {
                from: publication.publisher,
                to: up.broker,
                protocol: Protocol::Udp,
                ports: [port, port],
                path: up.path.clone(),
                levels: [publication.level, 0],
            },
            wire_bytes: publication.wire_bytes,
        });
    }
    probes
}

/// Sends the probes, and returns the delays of each switch that they cross.
pub(super) fn measure(
    layout: &Layout,
    fabric: &Fabric,
    probes: &[Probe],
) -> Result<Vec<SwitchDelay>> {
    let captures = (0..layout.switches.len())
        .map(|switch| Capture::new(fabric.switch(switch), Which::All))
        .collect::<Result<Vec<_>>>()?;
    let mut delays: Vec<Vec<u64>> = vec![Vec::new(); captures.len()];
    for (index, probe) in probes.iter().enumerate() {
        send(layout, fabric, probe, index as u32)?;
        for (capture, delays) in captures.iter().zip(&mut delays) {
            passed(capture, delays)?;
        }
    }
    let measured = layout.switches.iter().zip(delays);
    Ok(measured
        .filter_map(|(name, mut delays)| {
            Some(SwitchDelay {
                switch: name.clone(),
                delays: Delays::of(&mut delays)?,
                // The delays are sorted.
                least: *delays.first()?,
            })
        })
        .collect())
}

/// Sends frames along a path, each after the arrival of the frame before.
fn send(layout: &Layout, fabric: &Fabric, probe: &Probe, index: u32) -> Result<()> {
    let Stream {
        from, to, ports, ..
    } = probe.stream;
    let failed = || Error::io("cannot probe a path");
    let open = |host, port| {
        let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
        fabric.host(host).enter(bind)?.map_err(failed())
    };
    let (sender, receiver) = (open(from, ports[0])?, open(to, ports[1])?);
    let timeout = receiver.set_read_timeout(Some(PATIENCE));
    timeout.map_err(failed())?;
    let address = SocketAddr::from((layout.hosts[to].address, ports[1]));
    let length = probe.wire_bytes.saturating_sub(HEADERS) as usize;
    let mut payload = vec![0; length.max(LENGTH)];
    for sequence in 0..PROBES {
        let now = sys::real_time_ns();
        let stamp = Stamp {
            flow: index,
            sequence,
            nominal: now,
            written: now,
        };
        let at = payload.len() - LENGTH;
        payload[at..].copy_from_slice(&stamp.to_bytes());
        sender.send_to(&payload, address).map_err(failed())?;
        receiver.recv(&mut [0; 64]).map_err(failed())?;
    }
    Ok(())
}

/// Adds the time from input to output port of each captured frame.
fn passed(capture: &Capture, delays: &mut Vec<u64>) -> Result<()> {
    let mut came = BTreeMap::new();
    let mut buffer = [0; 2048];
    while let Some(seen) = capture
        .next(&mut buffer)
        .map_err(Error::io("cannot take a packet"))?
    {
        for stamp in Stamp::all(&buffer[..seen.length]) {
            let frame = (stamp.flow, stamp.sequence);
            if !seen.outgoing {
                came.insert(frame, seen.time);
            } else if let Some(came) = came.remove(&frame) {
                delays.push(seen.time.saturating_sub(came));
            }
        }
    }
    Ok(())
}

/// Writes the measured delays into a network's document.
pub(super) fn write(document: &mut Document, measured: &[SwitchDelay]) {
    for delay in measured {
        let mut nodes = document.nodes.iter_mut();
        if let Some(node) = nodes.find(|node| node.id == delay.switch) {
            let (least, greatest) = delay.range();
            node.sd_min_ns = least;
            node.sd_max_ns = Some(greatest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_model::network::Network;
    use punctual_sim::network::families::{self, Load};

    #[test]
    fn every_way_is_probed_once() {
        let layout = Layout::new(&Network::new(&families::fig15(Load::Low, false)).unwrap());
        // Forty flows of two publishers to three brokers.
        assert_eq!(probes(&layout.unwrap()).len(), 6);
    }

    #[test]
    fn what_is_written_is_the_range_with_a_margin() {
        let mut document = families::line();
        let measured = SwitchDelay {
            switch: "s2".to_owned(),
            least: 2_000,
            delays: Delays::of(&mut [2_000, 5_000]).unwrap(),
        };
        write(&mut document, &[measured]);
        let of = |id: &str| document.nodes.iter().find(|node| node.id == id).unwrap();
        assert_eq!(
            (of("s2").sd_min_ns, of("s2").sd_max_ns),
            (1_800, Some(5_500))
        );
        assert_eq!(of("s1").sd_max_ns, Some(10_000));
        assert!(Network::new(&document).is_ok());
    }
}
