//! Matches of fields that go together.

use proptest::collection::vec;
use proptest::prelude::*;
use punctual_openflow::{Match, OxmField};

/// A match that [`Match::new`] takes: of fewer than `most` fields, those that go
/// together with the ones before.
pub(crate) fn matching(
    field: impl Strategy<Value = OxmField>,
    most: usize,
) -> impl Strategy<Value = Match> {
    vec(field, 0..most).prop_map(|fields| {
        let mut taken = Vec::new();
        for field in fields {
            taken.push(field);
            if Match::new(taken.iter().cloned()).is_err() {
                taken.pop();
            }
        }
        Match::new(taken).unwrap()
    })
}
