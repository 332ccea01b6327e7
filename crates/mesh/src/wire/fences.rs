//! What brokers say to each other about what is on its way between them.

use super::{Reader, WireError, Writer};
use crate::id::BrokerId;

/// Has all come that was on its way to who asks?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Who asks.
    pub by: BrokerId,
    /// Which question.
    pub number: u64,
    /// Nor does anything go back that was kept for links that were lost.
    pub settled: bool,
}

/// All has come that was on its way from the sender, and from those behind it, when it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fenced {
    /// Who asked.
    pub by: BrokerId,
    /// Which question.
    pub number: u64,
}

impl Writer {
    pub(super) fn fence(&mut self, fence: &Fence) {
        self.id(&fence.by);
        self.number(fence.number);
        self.byte(u8::from(fence.settled));
    }

    pub(super) fn fenced(&mut self, fenced: &Fenced) {
        self.id(&fenced.by);
        self.number(fenced.number);
    }
}

impl Reader<'_> {
    pub(super) fn fence(&mut self) -> Result<Fence, WireError> {
        Ok(Fence {
            by: self.id()?,
            number: self.number()?,
            settled: self.flag()?,
        })
    }

    pub(super) fn fenced(&mut self) -> Result<Fenced, WireError> {
        Ok(Fenced {
            by: self.id()?,
            number: self.number()?,
        })
    }
}
