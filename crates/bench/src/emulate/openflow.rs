//! Open vSwitch bridges with the userspace datapath. They show which OpenFlow features work; their
//! forwarding speed says nothing about the timing of real switches.
//!
//! The bridges get the OpenFlow messages that the controller sends for a plan. One thread forwards
//! for all bridges, so frames wait for this thread in the order of arrival and not in the ports'
//! queues. The queues are Linux queueing disciplines, selected by the packets' mark: this datapath
//! accepts `set_queue` and ignores it. Source: ovs-vswitchd(8).

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use punctual_controller::openflow_messages;
use punctual_controller::plan::{Plan, SwitchPlan};
use punctual_openflow::{Envelope, Message, Xid};
use punctual_southbound::linux::queues;
use punctual_southbound::openflow::{Session, SessionEvent};
use punctual_testbed::{Datapath, Ovs};

use crate::sys;
use punctual_measure::{Error, Result};
use punctual_testbed::netns::Namespace;

/// Size of the send buffer, bytes. The daemon sends for all ports through one socket: when its
/// buffer is full, frames for every port are lost, not only those for the congested port.
const ROOM: i32 = 16 << 20;

/// A frame that no host interprets (an EtherType for local experiments).
const FRAME: &str = "02000000000102000000000288b50000";

/// `SCHED_FIFO` priority of the daemon: without it, frames wait milliseconds for a processor.
const FIFO: u8 = 40;

/// Longest wait for an answer of a switch.
const PATIENCE: Duration = Duration::from_secs(30);

/// Open vSwitch bridges in one namespace.
pub(super) struct Bridges {
    pub(super) ovs: Ovs,
    pub(super) namespace: Namespace,
}

impl Bridges {
    /// Starts Open vSwitch in a namespace in which the ports' devices exist.
    pub(super) fn start(namespace: &Namespace, before_others: bool) -> Result<Self> {
        let fifo = if before_others { FIFO } else { 0 };
        let place = |command: &mut std::process::Command| {
            namespace.place(command);
            sys::prepare_child(command, None, fifo);
        };
        let ovs = Ovs::start_in(Datapath::Userspace, &place).map_err(failed())?;
        Ok(Self {
            ovs,
            namespace: namespace.clone(),
        })
    }

    /// Creates the bridges of a plan, numbered from 1 in the plan's order, with their ports and
    /// queues.
    pub(super) fn wire(&self, plan: &Plan) -> Result<()> {
        let mut commands = String::new();
        for ((name, switch), datapath) in plan.switches.iter().zip(1..) {
            self.ovs.bridge(name, datapath).map_err(failed())?;
            for (number, port) in &switch.ports {
                self.ovs.port(name, &port.name, *number).map_err(failed())?;
                commands.push_str(&queues(&port.name, port.rate_bps));
            }
        }
        self.namespace.feed("tc", &["-batch", "-"], &commands)?;
        // One socket sends for all ports. The daemon opens it for the first frame that it sends.
        for (name, switch) in plan.switches.iter().take(1) {
            for number in switch.ports.keys().take(1) {
                let packet = format!("in_port=controller,packet={FRAME},actions=output:{number}");
                self.ovs
                    .ofctl("packet-out", name, [packet])
                    .map_err(failed())?;
            }
        }
        sys::packet_send_buffers(self.ovs.pid(), ROOM).map_err(failed())
    }

    /// Installs the rules of the plan on the bridges.
    pub(super) fn tell(&self, plan: &Plan) -> Result<()> {
        for (name, switch) in &plan.switches {
            tell(&self.ovs.management(name), switch).map_err(failed())?;
        }
        Ok(())
    }
}

pub(super) fn failed() -> impl FnOnce(io::Error) -> Error {
    Error::io("the openflow driver (Debian: openvswitch-switch)")
}

/// Sends a plan to the switch that listens on `socket`, and waits until the switch has applied it.
fn tell(socket: &Path, plan: &SwitchPlan) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut session = Session::new(1);
    let mut told = Vec::new();
    let mut bytes = [0; 16 * 1024];
    loop {
        stream.write_all(session.output())?;
        session.output().clear();
        let length = stream.read(&mut bytes)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let heard = session.receive(&bytes[..length], &mut told);
        heard.map_err(io::Error::other)?;
        for told in told.drain(..) {
            match told {
                SessionEvent::Ready { meters, .. } => {
                    for (xid, message) in openflow_messages(plan, meters) {
                        let envelope = Envelope::new(Xid(xid), message);
                        envelope
                            .encode(session.output())
                            .map_err(io::Error::other)?;
                    }
                }
                SessionEvent::Message(_, Message::Error(report)) => {
                    return Err(io::Error::other(format!("a switch says {}", report.code)));
                }
                SessionEvent::Message(_, Message::BarrierReply) => return Ok(()),
                SessionEvent::Message(..) => {}
            }
        }
    }
}
