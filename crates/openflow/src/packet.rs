//! Packets between the switch and its controller.
//!
//! Source: OpenFlow 1.3.5, sections 7.3.7 and 7.4.1.

use crate::action::Action;
use crate::matching::Match;
use crate::wire::{Reader, Result, Wire, codes, pad};
use crate::{BufferId, Cookie, PortNo, TableId};

/// A packet for the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketIn {
    /// Where the switch keeps it, if it does.
    pub buffer: BufferId,
    /// Bytes of the whole frame.
    pub total_len: u16,
    /// Why it comes.
    pub reason: PacketInReason,
    /// Table that sent it.
    pub table: TableId,
    /// Mark of the entry that sent it; all ones without one.
    pub cookie: Cookie,
    /// What is known besides its bytes: at least the port it came in by.
    pub matching: Match,
    /// The frame, perhaps cut short.
    pub data: Vec<u8>,
}

codes! {
    /// Why a packet comes to the controller.
    pub enum PacketInReason: u8 else Reason {
        /// No entry matched, or the one for all others.
        NoMatch = 0,
        /// An entry or a packet-out says so.
        Action = 1,
        /// Its time to live is over.
        InvalidTtl = 2,
    }
}

impl Wire for PacketIn {
    fn put(&self, out: &mut Vec<u8>) {
        self.buffer.put(out);
        self.total_len.put(out);
        self.reason.put(out);
        self.table.put(out);
        self.cookie.put(out);
        self.matching.put(out);
        pad(out, 2);
        self.data.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (buffer, total_len, reason) = (from.get()?, from.get()?, from.get()?);
        let (table, cookie, matching) = (from.get()?, from.get()?, from.get()?);
        from.skip(2)?;
        Ok(Self {
            buffer,
            total_len,
            reason,
            table,
            cookie,
            matching,
            data: from.get()?,
        })
    }
}

/// A packet from the controller, or one that the switch kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketOut {
    /// Which one that the switch kept, or [`BufferId::NONE`].
    pub buffer: BufferId,
    /// The port it is taken to have come in by; [`PortNo::CONTROLLER`] without one.
    pub in_port: PortNo,
    /// What happens to it; without actions it is dropped.
    pub actions: Vec<Action>,
    /// The frame; empty if the switch kept it.
    pub data: Vec<u8>,
}

impl PacketOut {
    /// Sends a frame of the controller.
    pub fn new(actions: Vec<Action>, data: Vec<u8>) -> Self {
        Self {
            buffer: BufferId::NONE,
            in_port: PortNo::CONTROLLER,
            actions,
            data,
        }
    }
}

impl Wire for PacketOut {
    fn put(&self, out: &mut Vec<u8>) {
        self.buffer.put(out);
        self.in_port.put(out);
        let place = out.len();
        pad(out, 8);
        let start = out.len();
        self.actions.put(out);
        let length = (out.len() - start) as u16;
        if let Some(place) = out.get_mut(place..place + 2) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        self.data.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (buffer, in_port) = (from.get()?, from.get()?);
        let length: u16 = from.get()?;
        from.skip(6)?;
        Ok(Self {
            buffer,
            in_port,
            actions: from.part(length.into(), "packet-out's actions")?.get()?,
            data: from.get()?,
        })
    }
}
