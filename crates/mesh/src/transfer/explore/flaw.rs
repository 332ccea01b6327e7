//! Rules that are left out, one at a time, to see that each is needed.

use super::super::{FenceAnswer, Mark};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// What a stub forwards is an ordinary publication.
    ForwardsPublications,
    /// A stub forwards whatever comes.
    ForwardsInCircles,
    /// A snapshot has no history but what it contains.
    NoHistory,
    /// A fence passes although another stub leads there.
    FenceIgnoresStubs,
    /// The stub of a demoted session wants nothing.
    DemotedStubIsEmpty,
    /// Every session counts as confirmed.
    AlwaysConfirmed,
    /// Clean Start does not count for what is forwarded.
    NeverBorn,
    /// An outcome is forgotten at once.
    ForgetsOutcomes,
    /// Freezes have no numbers of their own.
    OneFreeze,
    /// No session is blind.
    NeverBlind,
    /// What others see does not wait for the disk.
    SpeaksBeforeWriting,
    /// A stub that was here does not lead to the new session.
    StubEndsWithNewSession,
}

impl Flaw {
    pub(super) fn hears(self, answer: FenceAnswer) -> FenceAnswer {
        match (self, answer) {
            (Self::FenceIgnoresStubs, FenceAnswer::StubLeadsThere) => FenceAnswer::Clear,
            _ => answer,
        }
    }

    /// What is kept with a session.
    pub(super) fn mark(self, mut mark: Mark) -> Mark {
        mark.confirmed |= self == Self::AlwaysConfirmed;
        mark.blind &= self != Self::NeverBlind;
        mark
    }
}
