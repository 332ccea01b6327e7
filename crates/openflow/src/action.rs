//! What is done to packets: actions, and the instructions that hold them.
//!
//! Source: OpenFlow 1.3.5, sections 7.2.4 and 7.2.5. Actions and instructions without a name here
//! are kept as bytes.

use crate::oxm::{OxmField, put_padded};
use crate::wire::{Reader, Result, Wire, pad, sized};
use crate::{DecodeError, GroupId, MeterId, PortNo, QueueId, TableId};

/// In [`Action::Output`] to the controller: the whole packet, nothing kept back.
pub const WHOLE_PACKET: u16 = 0xffff;

/// One step in what happens to a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Send it out.
    Output {
        /// Where.
        port: PortNo,
        /// Bytes of it for the controller; no meaning elsewhere.
        max_len: u16,
    },
    /// Copy the time to live from the inner to the outer header.
    CopyTtlOut,
    /// Copy the time to live from the outer to the inner header.
    CopyTtlIn,
    /// Set the time to live of the MPLS label.
    SetMplsTtl(u8),
    /// Lower the time to live of the MPLS label.
    DecMplsTtl,
    /// Add a VLAN tag of this Ethernet type.
    PushVlan(u16),
    /// Remove the outer VLAN tag.
    PopVlan,
    /// Choose the egress queue for outputs that follow.
    SetQueue(QueueId),
    /// Hand it to a group.
    Group(GroupId),
    /// Set the time to live of IP.
    SetNwTtl(u8),
    /// Lower the time to live of IP; at 0 it goes to the controller or nowhere.
    DecNwTtl,
    /// Give a field a value. Without a mask.
    SetField(OxmField),
    /// One without a name here.
    Other {
        /// Its type.
        kind: u16,
        /// What follows type and length; its length plus 4 is a multiple of 8.
        body: Vec<u8>,
    },
}

impl Action {
    /// Send it out by `port`.
    pub fn output(port: PortNo) -> Self {
        Self::Output { port, max_len: 0 }
    }

    /// Send all of it to the controller.
    pub fn to_controller() -> Self {
        Self::Output {
            port: PortNo::CONTROLLER,
            max_len: WHOLE_PACKET,
        }
    }
}

impl Wire for Action {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 2, |out| {
            let kind = |out: &mut Vec<u8>, kind: u16| {
                kind.put(out);
                pad(out, 2);
            };
            let plain = |out: &mut Vec<u8>, number| {
                kind(out, number);
                pad(out, 4);
            };
            match self {
                Self::Output { port, max_len } => {
                    kind(out, 0);
                    port.put(out);
                    max_len.put(out);
                    pad(out, 6);
                }
                Self::CopyTtlOut => plain(out, 11),
                Self::CopyTtlIn => plain(out, 12),
                Self::SetMplsTtl(ttl) => {
                    kind(out, 15);
                    ttl.put(out);
                    pad(out, 3);
                }
                Self::DecMplsTtl => plain(out, 16),
                Self::PushVlan(eth_type) => {
                    kind(out, 17);
                    eth_type.put(out);
                    pad(out, 2);
                }
                Self::PopVlan => plain(out, 18),
                Self::SetQueue(queue) => {
                    kind(out, 21);
                    queue.put(out);
                }
                Self::Group(group) => {
                    kind(out, 22);
                    group.put(out);
                }
                Self::SetNwTtl(ttl) => {
                    kind(out, 23);
                    ttl.put(out);
                    pad(out, 3);
                }
                Self::DecNwTtl => plain(out, 24),
                Self::SetField(field) => {
                    kind(out, 25);
                    put_padded(field, 4, out);
                }
                Self::Other { kind: number, body } => {
                    kind(out, *number);
                    body.put(out);
                }
            }
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (kind, mut body) = part(from, "action")?;
        let action = match kind {
            0 => {
                let (port, max_len) = (body.get()?, body.get()?);
                body.skip(6)?;
                Self::Output { port, max_len }
            }
            11 => plain(&mut body, Self::CopyTtlOut)?,
            12 => plain(&mut body, Self::CopyTtlIn)?,
            15 => Self::SetMplsTtl(padded(&mut body, 3)?),
            16 => plain(&mut body, Self::DecMplsTtl)?,
            17 => Self::PushVlan(padded(&mut body, 2)?),
            18 => plain(&mut body, Self::PopVlan)?,
            21 => Self::SetQueue(body.get()?),
            22 => Self::Group(body.get()?),
            23 => Self::SetNwTtl(padded(&mut body, 3)?),
            24 => plain(&mut body, Self::DecNwTtl)?,
            25 => {
                let field: OxmField = body.get()?;
                if body.rest().len() >= 8 {
                    return Err(DecodeError::Length("set-field action"));
                }
                if field.is_masked() {
                    return Err(DecodeError::SetField);
                }
                Self::SetField(field)
            }
            kind => Self::Other {
                kind,
                body: body.rest().to_vec(),
            },
        };
        body.end()?;
        Ok(action)
    }
}

/// What an entry does with a packet. A table carries them out in the order of their variants
/// here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Instruction {
    /// Let a meter drop or mark it first.
    Meter(MeterId),
    /// Do these at once, in order.
    ApplyActions(Vec<Action>),
    /// Empty the packet's action set.
    ClearActions,
    /// Put these into the packet's action set, to be done when no table follows.
    WriteActions(Vec<Action>),
    /// Set the bits of the metadata that the mask covers.
    WriteMetadata {
        /// New value of the bits.
        value: u64,
        /// Which bits.
        mask: u64,
    },
    /// Go on in a later table.
    GotoTable(TableId),
    /// One without a name here.
    Other {
        /// Its type.
        kind: u16,
        /// What follows type and length; its length plus 4 is a multiple of 8.
        body: Vec<u8>,
    },
}

impl Wire for Instruction {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 2, |out| {
            let kind = |out: &mut Vec<u8>, kind: u16| {
                kind.put(out);
                pad(out, 2);
            };
            match self {
                Self::GotoTable(table) => {
                    kind(out, 1);
                    table.put(out);
                    pad(out, 3);
                }
                Self::WriteMetadata { value, mask } => {
                    kind(out, 2);
                    pad(out, 4);
                    value.put(out);
                    mask.put(out);
                }
                Self::WriteActions(actions) => {
                    kind(out, 3);
                    pad(out, 4);
                    actions.put(out);
                }
                Self::ApplyActions(actions) => {
                    kind(out, 4);
                    pad(out, 4);
                    actions.put(out);
                }
                Self::ClearActions => {
                    kind(out, 5);
                    pad(out, 4);
                }
                Self::Meter(meter) => {
                    kind(out, 6);
                    meter.put(out);
                }
                Self::Other { kind: number, body } => {
                    kind(out, *number);
                    body.put(out);
                }
            }
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (kind, mut body) = part(from, "instruction")?;
        let instruction = match kind {
            1 => Self::GotoTable(padded(&mut body, 3)?),
            2 => {
                body.skip(4)?;
                let (value, mask) = (body.get()?, body.get()?);
                Self::WriteMetadata { value, mask }
            }
            3 => {
                body.skip(4)?;
                Self::WriteActions(body.get()?)
            }
            4 => {
                body.skip(4)?;
                Self::ApplyActions(body.get()?)
            }
            5 => plain(&mut body, Self::ClearActions)?,
            6 => Self::Meter(body.get()?),
            kind => Self::Other {
                kind,
                body: body.rest().to_vec(),
            },
        };
        body.end()?;
        Ok(instruction)
    }
}

/// Type and body of a part whose length is a multiple of eight.
fn part<'a>(from: &mut Reader<'a>, what: &'static str) -> Result<(u16, Reader<'a>)> {
    let (kind, length): (u16, u16) = (from.get()?, from.get()?);
    let body = usize::from(length).checked_sub(4);
    match body {
        Some(body) if length.is_multiple_of(8) => Ok((kind, from.part(body, what)?)),
        _ => Err(DecodeError::Length(what)),
    }
}

fn plain<T>(body: &mut Reader<'_>, value: T) -> Result<T> {
    body.skip(4)?;
    Ok(value)
}

fn padded<T: Wire>(body: &mut Reader<'_>, padding: usize) -> Result<T> {
    let value = body.get()?;
    body.skip(padding)?;
    Ok(value)
}
