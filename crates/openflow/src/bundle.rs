//! Bundles: changes that happen together or not at all.
//!
//! In OpenFlow 1.3 they are experimenter messages of the ONF. Source: ONF extension 230 for
//! OpenFlow 1.3; the layout is that of OpenFlow 1.4, section 7.3.9, with 1.3's header inside.

use crate::error_code::ONF;
use crate::message::Envelope;
use crate::wire::{Reader, Result, Wire, bits, codes, pad};
use crate::{BundleId, DecodeError};

pub(crate) const CONTROL: u32 = 2300;
pub(crate) const ADD: u32 = 2301;

/// Opens, closes, commits or discards a bundle, or says that it was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleControl {
    /// Which bundle.
    pub bundle: BundleId,
    /// What to do, or what was done.
    pub kind: BundleControlType,
    /// Promises; the same in all messages of a bundle.
    pub flags: BundleFlags,
    /// Further facts, as bytes.
    pub properties: Vec<u8>,
}

codes! {
    /// What a bundle's control message says.
    pub enum BundleControlType: u16 else Bundle {
        /// Begin.
        OpenRequest = 0,
        /// Begun.
        OpenReply = 1,
        /// Nothing will be added.
        CloseRequest = 2,
        /// Closed.
        CloseReply = 3,
        /// Apply all of it.
        CommitRequest = 4,
        /// All of it was applied.
        CommitReply = 5,
        /// Forget it.
        DiscardRequest = 6,
        /// Forgotten.
        DiscardReply = 7,
    }
}

bits! {
    /// Guarantees of a bundle.
    pub struct BundleFlags: u16 {
        /// All changes or none, and no packet sees a part of them.
        const ATOMIC = 1;
        /// In the order in which they were added.
        const ORDERED = 1 << 1;
    }
}

impl BundleControl {
    /// A control message without properties.
    pub fn new(bundle: BundleId, kind: BundleControlType, flags: BundleFlags) -> Self {
        Self {
            bundle,
            kind,
            flags,
            properties: Vec::new(),
        }
    }
}

impl Wire for BundleControl {
    fn put(&self, out: &mut Vec<u8>) {
        ONF.put(out);
        CONTROL.put(out);
        self.bundle.put(out);
        self.kind.put(out);
        self.flags.put(out);
        self.properties.put(out);
    }

    /// Without experimenter and type, which told that it is one.
    fn get(from: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            bundle: from.get()?,
            kind: from.get()?,
            flags: from.get()?,
            properties: from.get()?,
        })
    }
}

/// Adds a message to a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleAdd {
    /// Which bundle.
    pub bundle: BundleId,
    /// Promises; the same in all messages of a bundle.
    pub flags: BundleFlags,
    /// What is to happen. Its xid must be that of the message that carries it.
    pub message: Box<Envelope>,
    /// Further facts, as bytes.
    pub properties: Vec<u8>,
}

impl Wire for BundleAdd {
    fn put(&self, out: &mut Vec<u8>) {
        ONF.put(out);
        ADD.put(out);
        self.bundle.put(out);
        pad(out, 2);
        self.flags.put(out);
        let start = out.len();
        self.message.put(out);
        if !self.properties.is_empty() {
            pad(out, crate::wire::to_eight(out.len() - start));
            self.properties.put(out);
        }
    }

    /// Without experimenter and type, which told that it is one.
    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let bundle = from.get()?;
        from.skip(2)?;
        let flags = from.get()?;
        let [_, kind, high, low] = from.peek()?;
        // One level: a bundle in a bundle would nest as deep as a peer likes.
        if !matches!(kind, 14..=17 | 29) {
            return Err(DecodeError::NotInBundle(kind));
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        let mut inner = from.part(length, "message in a bundle")?;
        let message = Box::new(Envelope::decode(inner.rest())?);
        let padding = to_properties(from, length)?;
        from.skip(padding)?;
        Ok(Self {
            bundle,
            flags,
            message,
            properties: from.get()?,
        })
    }
}

/// Padding between the message and properties, if there are any.
fn to_properties(from: &Reader<'_>, length: usize) -> Result<usize> {
    Ok(match from.is_empty() {
        true => 0,
        false => crate::wire::to_eight(length),
    })
}
