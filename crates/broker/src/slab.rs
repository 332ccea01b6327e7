//! A slab that grows by chunks: inserting never moves existing values, so a growing broker has no
//! latency spike and wastes at most one chunk.

const CHUNK_BITS: usize = 7;
const CHUNK: usize = 1 << CHUNK_BITS;

/// Values by stable `u32` slots.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Box<[Option<T>]>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Slab<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of places, used or not: every slot is below.
    pub(crate) fn places(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.insert_with(|_| value)
    }

    /// Inserts the value that `make` returns for its future slot.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let first = (self.chunks.len() * CHUNK) as u32;
                self.chunks.push((0..CHUNK).map(|_| None).collect());
                self.free.extend((first + 1..first + CHUNK as u32).rev());
                first
            }
        };
        self.chunks[slot as usize >> CHUNK_BITS][slot as usize & (CHUNK - 1)] = Some(make(slot));
        self.len += 1;
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self
            .chunks
            .get_mut(slot as usize >> CHUNK_BITS)?
            .get_mut(slot as usize & (CHUNK - 1))?;
        let value = entry.take()?;
        self.free.push(slot);
        self.len -= 1;
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.chunks.get(slot as usize >> CHUNK_BITS)?[slot as usize & (CHUNK - 1)].as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.chunks.get_mut(slot as usize >> CHUNK_BITS)?[slot as usize & (CHUNK - 1)].as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks
            .iter()
            .flatten()
            .enumerate()
            .filter_map(|(slot, value)| Some((slot as u32, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_stable() {
        let mut slab = Slab::default();
        let slots: Vec<u32> = (0..300).map(|i| slab.insert(i)).collect();
        assert_eq!(slab.len(), 300);
        for (i, slot) in slots.iter().enumerate() {
            assert_eq!(slab.get(*slot), Some(&i));
        }
        assert_eq!(slab.remove(slots[7]), Some(7));
        assert_eq!(slab.remove(slots[7]), None);
        assert_eq!(slab.get(slots[7]), None);
        assert_eq!(slab.insert(1000), slots[7]);
        assert_eq!(slab.iter().count(), 300);
        assert!((300..300 + CHUNK as u32).contains(&slab.places()));
        assert_eq!(slab.get(u32::MAX), None);
    }
}
