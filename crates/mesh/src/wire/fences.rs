//! Messages of fences, see `node::fences`.

use std::sync::Arc;

use super::{Reader, WireError, Writer};
use crate::id::BrokerId;
use crate::transfer::Stub;

/// Bound on the stubs of a [`Fence`].
pub const MAX_STUBS: usize = 256;

/// A client, and the forwarding stub of its session at the broker that sends a [`Fence`].
pub type ClientStub = (Box<str>, Stub);

/// Further condition for the reply to a [`Fence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceCondition {
    /// None.
    Nothing,
    /// Messages queued for brokers behind the asking link, as it has advertised before, were forwarded.
    PassedOn,
    /// No queue of a lost link is being copied elsewhere, or may soon be.
    Settled,
}

/// Asks for a [`FenceReply`] once all messages in flight to the sender have arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The broker that started the fence.
    pub by: BrokerId,
    /// Number of the fence there.
    pub number: u64,
    /// Condition for the reply.
    pub after: FenceCondition,
    /// The stubs that are to end, at most [`MAX_STUBS`]; empty if the fence has another purpose.
    pub stubs: Arc<[ClientStub]>,
}

/// All messages that were in flight from the sender, and from the brokers behind it, when the fence came
/// have arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceReply {
    /// The broker that started the fence.
    pub by: BrokerId,
    /// Number of the fence there.
    pub number: u64,
    /// Stubs of the fence that have to stay, by their index there, ascending.
    pub blocked: Vec<u32>,
}

impl Writer {
    pub(super) fn fence(&mut self, fence: &Fence) {
        self.id(&fence.by);
        self.number(fence.number);
        self.byte(match fence.after {
            FenceCondition::Nothing => 0,
            FenceCondition::PassedOn => 1,
            FenceCondition::Settled => 2,
        });
        self.number(fence.stubs.len() as u64);
        for (client, stub) in &*fence.stubs {
            self.text(client);
            self.stub(stub);
        }
    }

    pub(super) fn fenced(&mut self, fenced: &FenceReply) {
        self.id(&fenced.by);
        self.number(fenced.number);
        self.number(fenced.blocked.len() as u64);
        for place in &fenced.blocked {
            self.number(u64::from(*place));
        }
    }
}

impl Reader<'_> {
    pub(super) fn fence(&mut self) -> Result<Fence, WireError> {
        Ok(Fence {
            by: self.id()?,
            number: self.number()?,
            after: match self.byte()? {
                0 => FenceCondition::Nothing,
                1 => FenceCondition::PassedOn,
                2 => FenceCondition::Settled,
                _ => return Err(WireError::Field("fence")),
            },
            stubs: self.stubs()?,
        })
    }

    pub(super) fn fenced(&mut self) -> Result<FenceReply, WireError> {
        Ok(FenceReply {
            by: self.id()?,
            number: self.number()?,
            blocked: self.places()?,
        })
    }

    fn stubs(&mut self) -> Result<Arc<[ClientStub]>, WireError> {
        let count = self.count(10)?;
        if count > MAX_STUBS {
            return Err(WireError::Field("stubs"));
        }
        let stub = |reader: &mut Self| Ok((reader.client()?, reader.stub()?));
        (0..count).map(|_| stub(self)).collect()
    }

    fn places(&mut self) -> Result<Vec<u32>, WireError> {
        let count = self.count(1)?;
        let places = (0..count).map(|_| self.number());
        let places: Vec<u64> = places.collect::<Result<_, _>>()?;
        let are_places = places.iter().all(|place| *place < MAX_STUBS as u64);
        match are_places && places.is_sorted_by(|a, b| a < b) {
            true => Ok(places.into_iter().map(|place| place as u32).collect()),
            false => Err(WireError::Field("places")),
        }
    }
}
