//! What brokers say to each other about what is on its way between them.

use std::sync::Arc;

use super::{Reader, WireError, Writer};
use crate::id::BrokerId;
use crate::transfer::Stub;

/// Stubs that a [`Fence`] is asked for at most.
pub const MAX_STUBS: usize = 256;

/// A client, and the stub that is left of its session where a [`Fence`] is asked.
pub type ClientStub = (Box<str>, Stub);

/// What else has to have happened before a [`Fence`] is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Nothing.
    Nothing,
    /// What was kept for brokers that are behind who asks, as that has told before, has been passed on.
    PassedOn,
    /// Nothing goes back any more that was kept for links that were lost.
    Settled,
}

/// Has all come that was on its way to who asks?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Who asks.
    pub by: BrokerId,
    /// Which question.
    pub number: u64,
    /// Once that is so.
    pub after: After,
    /// For which stubs it is asked, [`MAX_STUBS`] at most; none if it is for something else.
    pub stubs: Arc<[ClientStub]>,
}

/// All has come that was on its way from the sender, and from those behind it, when it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fenced {
    /// Who asked.
    pub by: BrokerId,
    /// Which question.
    pub number: u64,
    /// Which of its stubs are to stay all the same, by their places in it, in order.
    pub blocked: Vec<u32>,
}

impl Writer {
    pub(super) fn fence(&mut self, fence: &Fence) {
        self.id(&fence.by);
        self.number(fence.number);
        self.byte(match fence.after {
            After::Nothing => 0,
            After::PassedOn => 1,
            After::Settled => 2,
        });
        self.number(fence.stubs.len() as u64);
        for (client, stub) in &*fence.stubs {
            self.text(client);
            self.stub(stub);
        }
    }

    pub(super) fn fenced(&mut self, fenced: &Fenced) {
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
                0 => After::Nothing,
                1 => After::PassedOn,
                2 => After::Settled,
                _ => return Err(WireError::Field("fence")),
            },
            stubs: self.stubs()?,
        })
    }

    pub(super) fn fenced(&mut self) -> Result<Fenced, WireError> {
        Ok(Fenced {
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
