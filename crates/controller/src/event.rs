//! Events for a controller, and the effects it requests.

use std::fmt;
use std::net::IpAddr;

use punctual_model::Nanos;
use punctual_model::srt::{Channel, Request};
use punctual_openflow::Message;
use serde::Serialize;

use crate::plan::{Entry, Mac, Match};
use crate::topology::{End, PortState};

/// How a switch is controlled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SwitchProtocol {
    /// OpenFlow 1.3: [`Effect::Send`], and its messages come as
    /// [`Event::Message`].
    #[default]
    OpenFlow,
    /// Nothing: [`Effect::Apply`], which is answered with [`Event::Applied`].
    Plans,
}

/// An event for a controller.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A switch has connected, for the first time or again; with OpenFlow the
    /// handshake is complete.
    Connected {
        /// Its datapath identifier.
        datapath: u64,
        /// How it is controlled.
        speaks: SwitchProtocol,
        /// Meters that it has; 0 if it has none.
        meters: u32,
        /// All of its ports.
        ports: Vec<PortState>,
    },
    /// A switch has disconnected.
    Disconnected {
        /// Its datapath identifier.
        datapath: u64,
    },
    /// A switch sent something.
    Message {
        /// Its datapath identifier.
        datapath: u64,
        /// The number that it carries.
        xid: u32,
        /// The message.
        message: Message,
    },
    /// A port came or changed; OpenFlow switches say so themselves.
    Port {
        /// Its switch.
        datapath: u64,
        /// As it is now.
        port: PortState,
    },
    /// Whether anything comes through a port whose carrier may be there (BFD).
    Liveness {
        /// The port.
        end: End,
        /// Something comes through.
        alive: bool,
    },
    /// A link leads from one port to another; for switches that cannot be
    /// probed. It stays until a port at its ends is down.
    Link {
        /// The port that sends.
        from: End,
        /// The port that receives.
        to: End,
    },
    /// A host is there; for switches that do not tell.
    Host {
        /// Its Ethernet address.
        mac: Mac,
        /// Its address.
        address: Option<IpAddr>,
        /// The port at which it is.
        at: End,
    },
    /// An answer of an earlier run, from the table: its path is kept where
    /// possible. To be sent before [`Event::Synchronised`].
    Known(Channel),
    /// A request was made or changed.
    Request(Request),
    /// A request is no more.
    Withdrawn {
        /// Whose request it was.
        manager: String,
        /// Its flow.
        flow: String,
    },
    /// All existing requests have been sent: decisions may begin.
    Synchronised,
    /// An [`Effect::Apply`] was carried out.
    Applied {
        /// The switch.
        datapath: u64,
        /// Its number.
        step: u64,
        /// Why it could not be, if so.
        problem: Option<String>,
    },
    /// Time has passed: to be sent at
    /// [`Controller::next_tick`](crate::Controller::next_tick).
    Tick,
}

/// What a controller wants done, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A message is to be sent to a switch.
    Send {
        /// Its datapath identifier.
        datapath: u64,
        /// The number that the message is to carry.
        xid: u32,
        /// The message.
        message: Message,
    },
    /// A switch that speaks [`SwitchProtocol::Plans`] is to be changed; the steps of
    /// one switch in their order.
    Apply {
        /// Its datapath identifier.
        datapath: u64,
        /// Its number, for [`Event::Applied`].
        step: u64,
        /// The changes.
        changes: Vec<Change>,
    },
    /// An answer is to be written into the table.
    Write(Channel),
    /// The answer to a request that is no more is to be taken out.
    Erase {
        /// Whose request it was.
        manager: String,
        /// Its flow.
        flow: String,
    },
    /// Something that people want to know.
    Notice(Notice),
}

/// A change of the entries of a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Packets that match are treated so from now on.
    Set(Match, Entry),
    /// Remove the entry.
    Unset(Match),
    /// Entries that are not set in the same step are gone: the step is the whole
    /// plan. It comes first.
    Reset,
    /// Set the handling of all other packets, the ports and the links to those of
    /// the plan.
    Base,
}

/// Something that people want to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Notice {
    /// A switch connected.
    SwitchUp {
        /// Its name.
        switch: String,
    },
    /// A switch is away.
    SwitchDown {
        /// Its name.
        switch: String,
    },
    /// There are more switches than the settings allow; this one is left alone.
    SwitchRefused {
        /// Its datapath identifier.
        datapath: u64,
    },
    /// A link came.
    LinkUp {
        /// Its name.
        link: String,
    },
    /// A link went.
    LinkDown {
        /// Its name.
        link: String,
    },
    /// A host came or moved.
    Host {
        /// Its name.
        host: String,
        /// The switch at which it is.
        switch: String,
        /// And the port.
        port: u32,
    },
    /// A flow lost its guarantee.
    Lost {
        /// Whose request it was.
        manager: String,
        /// Its flow.
        flow: String,
        /// Why.
        reason: String,
    },
    /// A switch was compared with the plan.
    Reconciled {
        /// Its name.
        switch: String,
        /// Changes that were made; none if it was as it should be.
        changes: usize,
    },
    /// A switch refused a change, or does not answer.
    Trouble {
        /// Its name.
        switch: String,
        /// The reason, as in the answer.
        reason: String,
    },
    /// A value of the network document is out of range; nothing is decided
    /// until the controller is started with a better one.
    Document {
        /// The entry, the value and the remedy.
        problem: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchUp { switch } => write!(f, "switch {switch} is there"),
            Self::SwitchDown { switch } => write!(f, "switch {switch} is away"),
            Self::SwitchRefused { datapath } => write!(
                f,
                "switch {datapath:016x} is left alone: there are as many as there may be"
            ),
            Self::LinkUp { link } => write!(f, "link {link} is there"),
            Self::LinkDown { link } => write!(f, "link {link} is down"),
            Self::Host { host, switch, port } => {
                write!(f, "host {host} is at port {port} of switch {switch}")
            }
            Self::Lost {
                manager,
                flow,
                reason,
            } => write!(
                f,
                "flow {flow:?} of {manager:?} lost its guarantee: {reason}"
            ),
            Self::Reconciled { switch, changes: 0 } => {
                write!(f, "switch {switch} is as it should be")
            }
            Self::Reconciled { switch, changes } => {
                write!(
                    f,
                    "switch {switch} has been brought up to date: {changes} changes"
                )
            }
            Self::Trouble { switch, reason } => write!(f, "switch {switch}: {reason}"),
            Self::Document { problem } => f.write_str(problem),
        }
    }
}

/// A moment for which something is planned.
pub(crate) fn soonest(times: impl IntoIterator<Item = Option<Nanos>>) -> Option<Nanos> {
    times.into_iter().flatten().min()
}
