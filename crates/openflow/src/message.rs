//! Messages and their headers; finding them in a stream of bytes.
//!
//! Invariants: [`split`] says nothing about bytes beyond the first message and never waits for
//! more than the limit; what [`Envelope::decode`] takes, [`Envelope::encode`] writes again, bit
//! for bit except that padding becomes 0. Source: OpenFlow 1.3.5, section 7.1.

use crate::bundle::{self, BundleAdd, BundleControl};
use crate::control::{
    AsyncConfig, ErrorReport, Experimenter, Features, Hello, QueueConfigReply, QueueConfigRequest,
    RoleMessage, SwitchConfig, TableMod, VERSION,
};
use crate::error_code::ONF;
use crate::flow::{FlowMod, FlowRemoved};
use crate::group::GroupMod;
use crate::meter::MeterMod;
use crate::multipart::{MultipartReply, MultipartRequest};
use crate::packet::{PacketIn, PacketOut};
use crate::port::{PortMod, PortStatus};
use crate::wire::{Reader, Result, Wire, sized};
use crate::{DecodeError, EncodeError, Xid};

/// Bytes of every message's header.
pub const HEADER: usize = 8;

/// The first message in `bytes`, header included; `None` if more bytes are needed.
///
/// # Errors
/// If it announces less than a header or more than `limit` bytes; then nothing that follows can
/// be trusted.
pub fn split(bytes: &[u8], limit: u16) -> Result<Option<&[u8]>> {
    let Some([_, _, high, low]) = bytes.first_chunk() else {
        return Ok(None);
    };
    let length = u16::from_be_bytes([*high, *low]);
    if usize::from(length) < HEADER {
        return Err(DecodeError::TooShort(length));
    }
    if length > limit {
        return Err(DecodeError::TooLong { length, limit });
    }
    Ok(bytes.get(..length.into()))
}

/// A message and the number that pairs it with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The number.
    pub xid: Xid,
    /// The message.
    pub message: Message,
}

impl Envelope {
    /// A message with its number.
    pub fn new(xid: Xid, message: Message) -> Self {
        Self { xid, message }
    }

    /// Reads one whole message, as [`split`] finds it. A hello and an error may be of another
    /// version than 1.3.
    ///
    /// # Errors
    /// If it is not a valid message; [`DecodeError::reply`] is the answer to it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Reader::new(bytes, "message");
        let [version, kind] = from.array()?;
        let length: u16 = from.get()?;
        if usize::from(length) != bytes.len() {
            return Err(from.bad_length());
        }
        let xid = from.get()?;
        if version != VERSION && !matches!(kind, HELLO | ERROR) {
            return Err(DecodeError::Version(version));
        }
        let mut message = Message::get_body(kind, &mut from)?;
        from.end()?;
        if let Message::Hello(hello) = &mut message {
            hello.version = version;
        }
        Ok(Self { xid, message })
    }

    /// Appends the message's bytes.
    ///
    /// # Errors
    /// If it would be longer than the protocol can say; then nothing is appended.
    pub fn encode(&self, out: &mut Vec<u8>) -> std::result::Result<(), EncodeError> {
        let start = out.len();
        self.put(out);
        let length = out.len() - start;
        if length > usize::from(u16::MAX) {
            out.truncate(start);
            return Err(EncodeError::TooLong { length });
        }
        Ok(())
    }

    /// The message's bytes.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn to_bytes(&self) -> std::result::Result<Vec<u8>, EncodeError> {
        let mut out = Vec::new();
        self.encode(&mut out).map(|()| out)
    }

    /// Appends the message. Its length field is wrong if it has more than 65 535 bytes.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let version = match &self.message {
            Message::Hello(hello) => hello.version,
            _ => VERSION,
        };
        sized(out, 2, |out| {
            out.extend_from_slice(&[version, self.message.number(), 0, 0]);
            self.xid.put(out);
            self.message.put_body(out);
        });
    }
}

/// The xid in a message's header, for an error about a message that cannot be read.
pub fn xid_of(bytes: &[u8]) -> Xid {
    let xid = bytes.get(4..HEADER).and_then(|xid| xid.try_into().ok());
    Xid(xid.map_or(0, u32::from_be_bytes))
}

const HELLO: u8 = 0;
const ERROR: u8 = 1;
const EXPERIMENTER: u8 = 4;

/// Number, variant and type of each message but the experimenters'; those without a type have no
/// body.
macro_rules! messages {
    ($($(#[$about:meta])* $number:literal $variant:ident $(($body:ident: $type:ty))?,)*) => {
        /// What controller and switch say to one another.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Message {
            $($(#[$about])* $variant $(($type))?,)*
            /// Either way: a message beyond the standard.
            Experimenter(Experimenter),
            /// Either way: begins or ends a bundle.
            BundleControl(BundleControl),
            /// To the switch: a part of a bundle.
            BundleAdd(BundleAdd),
        }

        impl Message {
            /// Its type's number in the header.
            pub fn number(&self) -> u8 {
                match self {
                    $(Self::$variant { .. } => $number,)*
                    Self::Experimenter(_) | Self::BundleControl(_) | Self::BundleAdd(_) => {
                        EXPERIMENTER
                    }
                }
            }

            fn put_body(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($body))? => {$($body.put(out);)?})*
                    Self::Experimenter(body) => body.put(out),
                    Self::BundleControl(body) => body.put(out),
                    Self::BundleAdd(body) => body.put(out),
                }
            }

            fn get_body(number: u8, from: &mut Reader<'_>) -> Result<Self> {
                Ok(match number {
                    $($number => Self::$variant $(({ let $body: $type = from.get()?; $body }))?,)*
                    EXPERIMENTER => return Self::get_experimenter(from),
                    other => return Err(DecodeError::Type(other)),
                })
            }
        }
    };
}

messages! {
    /// Either way, first: which versions are spoken.
    0 Hello(body: Hello),
    /// Either way: something did not work.
    1 Error(body: ErrorReport),
    /// Either way: are you there?
    2 EchoRequest(body: Vec<u8>),
    /// Either way: yes, with the same bytes.
    3 EchoReply(body: Vec<u8>),
    /// To the switch: what are you?
    5 FeaturesRequest,
    /// From the switch.
    6 FeaturesReply(body: Features),
    /// To the switch: how do you treat packets?
    7 GetConfigRequest,
    /// From the switch.
    8 GetConfigReply(body: SwitchConfig),
    /// To the switch: treat packets so.
    9 SetConfig(body: SwitchConfig),
    /// From the switch: a packet.
    10 PacketIn(body: PacketIn),
    /// From the switch: an entry is gone.
    11 FlowRemoved(body: FlowRemoved),
    /// From the switch: a port changed.
    12 PortStatus(body: PortStatus),
    /// To the switch: send a packet.
    13 PacketOut(body: PacketOut),
    /// To the switch: change flow entries.
    14 FlowMod(body: FlowMod),
    /// To the switch: change a group.
    15 GroupMod(body: GroupMod),
    /// To the switch: change a port.
    16 PortMod(body: PortMod),
    /// To the switch: change a table.
    17 TableMod(body: TableMod),
    /// To the switch: a question.
    18 MultipartRequest(body: MultipartRequest),
    /// From the switch: the answer or a part of it.
    19 MultipartReply(body: MultipartReply),
    /// To the switch: finish all that was asked before.
    20 BarrierRequest,
    /// From the switch: finished.
    21 BarrierReply,
    /// To the switch: which queues are there?
    22 QueueConfigRequest(body: QueueConfigRequest),
    /// From the switch.
    23 QueueConfigReply(body: QueueConfigReply),
    /// To the switch: let me be this.
    24 RoleRequest(body: RoleMessage),
    /// From the switch: you are this.
    25 RoleReply(body: RoleMessage),
    /// To the switch: what do you tell me without being asked?
    26 GetAsyncRequest,
    /// From the switch.
    27 GetAsyncReply(body: AsyncConfig),
    /// To the switch: tell me this without being asked.
    28 SetAsync(body: AsyncConfig),
    /// To the switch: change a meter.
    29 MeterMod(body: MeterMod),
}

impl Message {
    fn get_experimenter(from: &mut Reader<'_>) -> Result<Self> {
        let (experimenter, kind) = (from.get()?, from.get()?);
        Ok(match (experimenter, kind) {
            (ONF, bundle::CONTROL) => Self::BundleControl(from.get()?),
            (ONF, bundle::ADD) => Self::BundleAdd(from.get()?),
            _ => Self::Experimenter(Experimenter {
                experimenter,
                kind,
                data: from.get()?,
            }),
        })
    }
}
