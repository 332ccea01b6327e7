//! Messages about the connection and the switch as a whole.
//!
//! Source: OpenFlow 1.3.5, sections 7.3.1, 7.3.2, 7.3.9, 7.3.10, 7.5.1 and 7.5.4.

use crate::wire::{Reader, Result, Wire, bits, codes, layout, pad, sized, to_eight};
use crate::{DatapathId, DecodeError, ErrorCode, PortNo, QueueId};

/// OpenFlow 1.3, as the header says it.
pub const VERSION: u8 = 4;

/// Opens a connection: which versions its sender speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The highest version, as in the header.
    pub version: u8,
    /// Further facts.
    pub elements: Vec<HelloElement>,
}

/// A fact in a hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloElement {
    /// Bit n of word n / 32 is set if version n is spoken.
    VersionBitmap(Vec<u32>),
    /// A fact without a name here.
    Other {
        /// Its type.
        kind: u16,
        /// What it says.
        data: Vec<u8>,
    },
}

impl Hello {
    /// Speaks OpenFlow 1.3 and nothing else.
    pub fn new() -> Self {
        Self {
            version: VERSION,
            elements: vec![HelloElement::VersionBitmap(vec![1 << VERSION])],
        }
    }

    /// Whether its sender and we can speak 1.3: its bitmap says so, or without a bitmap its
    /// highest version is not below (section 6.3.1).
    pub fn accepts(&self) -> bool {
        let bitmap = self.elements.iter().find_map(|element| match element {
            HelloElement::VersionBitmap(words) => words.first(),
            HelloElement::Other { .. } => None,
        });
        match bitmap {
            Some(word) => word & (1 << VERSION) != 0,
            None => self.version >= VERSION,
        }
    }
}

impl Default for Hello {
    fn default() -> Self {
        Self::new()
    }
}

impl Wire for Hello {
    fn put(&self, out: &mut Vec<u8>) {
        self.elements.put(out);
    }

    /// The version is not part of the body: whoever reads the header sets it.
    fn get(from: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            version: VERSION,
            elements: from.get()?,
        })
    }
}

impl Wire for HelloElement {
    fn put(&self, out: &mut Vec<u8>) {
        let start = out.len();
        sized(out, 2, |out| match self {
            Self::VersionBitmap(words) => {
                1_u16.put(out);
                pad(out, 2);
                words.put(out);
            }
            Self::Other { kind, data } => {
                kind.put(out);
                pad(out, 2);
                data.put(out);
            }
        });
        pad(out, to_eight(out.len() - start));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (kind, length): (u16, u16) = (from.get()?, from.get()?);
        let length = usize::from(length);
        let body = length
            .checked_sub(4)
            .ok_or(DecodeError::Length("hello element"))?;
        let mut body = from.part(body, "hello element")?;
        let element = match kind {
            1 => Self::VersionBitmap(body.get()?),
            kind => Self::Other {
                kind,
                data: body.get()?,
            },
        };
        from.skip(to_eight(length))?;
        Ok(element)
    }
}

layout! {
    /// Something that was asked for did not work.
    pub struct ErrorReport {
        /// Why.
        pub code: ErrorCode,
        /// At least the first 64 bytes of what was asked, or a text for a failed hello.
        pub data: Vec<u8>,
    }
}

layout! {
    /// A message beyond the standard.
    pub struct Experimenter {
        /// Whose.
        pub experimenter: u32,
        /// Which of its messages.
        pub kind: u32,
        /// What it says.
        pub data: Vec<u8>,
    }
}

layout! {
    /// What a switch is.
    pub struct Features {
        /// Its number.
        pub datapath: DatapathId,
        /// Packets it can keep while the controller decides.
        pub buffers: u32,
        /// Flow tables.
        pub tables: u8,
        /// 0 for a main connection.
        pub auxiliary: u8 [2],
        /// What it can do.
        pub capabilities: Capabilities,
        /// Not used.
        pub reserved: u32,
    }
}

bits! {
    /// What a switch can do.
    pub struct Capabilities: u32 {
        /// Counts per flow entry.
        const FLOW_STATS = 1;
        /// Counts per table.
        const TABLE_STATS = 1 << 1;
        /// Counts per port.
        const PORT_STATS = 1 << 2;
        /// Counts per group.
        const GROUP_STATS = 1 << 3;
        /// Can put fragments of IP packets together.
        const IP_REASM = 1 << 5;
        /// Counts per queue.
        const QUEUE_STATS = 1 << 6;
        /// Blocks ports that would make a loop.
        const PORT_BLOCKED = 1 << 8;
    }
}

layout! {
    /// How a switch treats packets in general.
    #[derive(Copy)]
    pub struct SwitchConfig {
        /// Treatment of IP fragments: 0 as packets, 1 drop, 2 put together.
        pub flags: u16,
        /// Bytes of a packet that go to the controller when no entry matches.
        pub miss_send_len: u16,
    }
}

layout! {
    /// Asks for a role, or says which one a controller has.
    #[derive(Copy)]
    pub struct RoleMessage {
        /// Which.
        pub role: Role [4],
        /// Number of the election that gave it; older ones are refused.
        pub generation: u64,
    }
}

codes! {
    /// What a controller may do with a switch.
    pub enum Role: u32 else Role {
        /// As it is: asks for the present role.
        NoChange = 0,
        /// All, beside others.
        Equal = 1,
        /// All; others become slaves.
        Master = 2,
        /// Only look, and hear of ports.
        Slave = 3,
    }
}

layout! {
    /// Which messages a switch sends without being asked: bit n stands for reason n; first as
    /// master or equal, then as slave.
    #[derive(Copy)]
    pub struct AsyncConfig {
        /// Reasons of packet-ins.
        pub packet_in: [u32; 2],
        /// Reasons of port-status messages.
        pub port_status: [u32; 2],
        /// Reasons of flow-removed messages.
        pub flow_removed: [u32; 2],
    }
}

layout! {
    /// Configuration of a table; deprecated by the standard.
    #[derive(Copy)]
    pub struct TableMod {
        /// Which.
        pub table: crate::TableId [3],
        /// Its configuration.
        pub config: u32,
    }
}

layout! {
    /// Asks for the queues of a port, or of all ([`PortNo::ANY`]).
    #[derive(Copy)]
    pub struct QueueConfigRequest {
        /// Which port.
        pub port: PortNo [4],
    }
}

layout! {
    /// The queues of a port.
    pub struct QueueConfigReply {
        /// The port that was asked for.
        pub port: PortNo [4],
        /// Its queues.
        pub queues: Vec<QueueDesc>,
    }
}

/// A queue of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDesc {
    /// Its number.
    pub queue: QueueId,
    /// Its port.
    pub port: PortNo,
    /// Its guarantees, as property type and bytes.
    pub properties: Vec<QueueProperty>,
}

/// A property of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueProperty {
    /// At least this rate in tenths of a per cent; above 1000: not set.
    MinRate(u16),
    /// At most this rate in tenths of a per cent; above 1000: not set.
    MaxRate(u16),
    /// One without a name here.
    Other {
        /// Its type.
        kind: u16,
        /// What follows type, length and padding.
        data: Vec<u8>,
    },
}

impl Wire for QueueDesc {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 8, |out| {
            self.queue.put(out);
            self.port.put(out);
            pad(out, 8);
            self.properties.put(out);
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (queue, port) = (from.get()?, from.get()?);
        let length: u16 = from.get()?;
        from.skip(6)?;
        let body = usize::from(length)
            .checked_sub(16)
            .ok_or(DecodeError::Length("queue"))?;
        Ok(Self {
            queue,
            port,
            properties: from.part(body, "queue")?.get()?,
        })
    }
}

impl Wire for QueueProperty {
    fn put(&self, out: &mut Vec<u8>) {
        sized(out, 2, |out| {
            let (kind, rate) = match self {
                Self::MinRate(rate) => (1, Some(rate)),
                Self::MaxRate(rate) => (2, Some(rate)),
                Self::Other { kind, .. } => (*kind, None),
            };
            kind.put(out);
            pad(out, 6);
            match (self, rate) {
                (_, Some(rate)) => {
                    rate.put(out);
                    pad(out, 6);
                }
                (Self::Other { data, .. }, None) => data.put(out),
                _ => {}
            }
        });
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let (kind, length): (u16, u16) = (from.get()?, from.get()?);
        from.skip(4)?;
        let body = usize::from(length)
            .checked_sub(8)
            .ok_or(DecodeError::Length("queue property"))?;
        let mut body = from.part(body, "queue property")?;
        let property = match kind {
            1 | 2 => {
                let rate = body.get()?;
                body.skip(6)?;
                match kind {
                    1 => Self::MinRate(rate),
                    _ => Self::MaxRate(rate),
                }
            }
            kind => Self::Other {
                kind,
                data: body.get()?,
            },
        };
        body.end()?;
        Ok(property)
    }
}
