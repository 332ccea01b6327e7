//! Puts the parts of answers together.

use std::collections::BTreeMap;

use super::{MultipartBody, MultipartReply};
use crate::Xid;

/// Answers of which parts are still to come. Bounded in number of answers and in parts of each;
/// beyond that an answer is refused, and so are its later parts.
#[derive(Debug)]
pub struct Assembly {
    open: BTreeMap<Xid, Open>,
    max_open: usize,
    max_parts: usize,
}

#[derive(Debug)]
struct Open {
    body: MultipartBody,
    parts: usize,
}

/// Why a part cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssemblyError {
    /// Too many answers are unfinished.
    #[error("more than {0} answers are unfinished")]
    TooManyAnswers(usize),
    /// An answer has too many parts.
    #[error("an answer has more than {0} parts")]
    TooManyParts(usize),
    /// A part is of another type than those before it, or of one that has only one part.
    #[error("parts of an answer do not fit together")]
    Mixed,
}

impl Assembly {
    /// At most `max_open` unfinished answers of `max_parts` parts each.
    pub fn new(max_open: usize, max_parts: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            max_open,
            max_parts,
        }
    }

    /// Takes a part; returns the answer when it was the last one.
    ///
    /// # Errors
    /// If it does not fit; what came before of the answer is forgotten.
    pub fn push(
        &mut self,
        xid: Xid,
        part: MultipartReply,
    ) -> Result<Option<MultipartBody>, AssemblyError> {
        let (body, parts) = match self.open.remove(&xid) {
            None => (part.body, 1),
            Some(open) => {
                let mut body = open.body;
                append(&mut body, part.body)?;
                (body, open.parts + 1)
            }
        };
        if !part.more {
            return Ok(Some(body));
        }
        if parts >= self.max_parts {
            return Err(AssemblyError::TooManyParts(self.max_parts));
        }
        if self.open.len() >= self.max_open {
            return Err(AssemblyError::TooManyAnswers(self.max_open));
        }
        self.open.insert(xid, Open { body, parts });
        Ok(None)
    }

    /// Forgets an answer that is not waited for any more.
    pub fn forget(&mut self, xid: Xid) {
        self.open.remove(&xid);
    }
}

fn append(body: &mut MultipartBody, part: MultipartBody) -> Result<(), AssemblyError> {
    use MultipartBody as Body;
    match (body, part) {
        (Body::Flow(all), Body::Flow(part)) => all.extend(part),
        (Body::Table(all), Body::Table(part)) => all.extend(part),
        (Body::PortStats(all), Body::PortStats(part)) => all.extend(part),
        (Body::Queue(all), Body::Queue(part)) => all.extend(part),
        (Body::Group(all), Body::Group(part)) => all.extend(part),
        (Body::GroupDesc(all), Body::GroupDesc(part)) => all.extend(part),
        (Body::Meter(all), Body::Meter(part)) => all.extend(part),
        (Body::MeterConfig(all), Body::MeterConfig(part)) => all.extend(part),
        (Body::TableFeatures(all), Body::TableFeatures(part)) => all.extend(part),
        (Body::PortDesc(all), Body::PortDesc(part)) => all.extend(part),
        _ => return Err(AssemblyError::Mixed),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableId;
    use crate::multipart::TableStats;

    fn part(table: u8, more: bool) -> MultipartReply {
        let stats = TableStats {
            table: TableId(table),
            active: 0,
            lookups: 0,
            matched: 0,
        };
        let body = MultipartBody::Table(vec![stats]);
        MultipartReply { more, body }
    }

    #[test]
    fn parts_of_different_answers_may_mix() {
        let mut assembly = Assembly::new(2, 3);
        assert_eq!(assembly.push(Xid(1), part(0, true)), Ok(None));
        assert_eq!(assembly.push(Xid(2), part(7, true)), Ok(None));
        assert_eq!(assembly.push(Xid(1), part(1, true)), Ok(None));
        let Ok(Some(MultipartBody::Table(all))) = assembly.push(Xid(1), part(2, false)) else {
            panic!("not whole");
        };
        assert_eq!(
            all.iter().map(|one| one.table.0).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        let other = MultipartReply {
            more: false,
            body: MultipartBody::Flow(Vec::new()),
        };
        assert_eq!(assembly.push(Xid(2), other), Err(AssemblyError::Mixed));
    }

    #[test]
    fn a_peer_cannot_fill_the_memory() {
        let mut assembly = Assembly::new(2, 3);
        for xid in [1, 2] {
            assert_eq!(assembly.push(Xid(xid), part(0, true)), Ok(None));
        }
        let refused = assembly.push(Xid(3), part(0, true));
        assert_eq!(refused, Err(AssemblyError::TooManyAnswers(2)));
        assert_eq!(assembly.push(Xid(1), part(0, true)), Ok(None));
        let refused = assembly.push(Xid(1), part(0, true));
        assert_eq!(refused, Err(AssemblyError::TooManyParts(3)));
        assembly.forget(Xid(2));
        assert_eq!(assembly.push(Xid(4), part(0, true)), Ok(None));
    }
}
