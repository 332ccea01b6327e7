//! What a log is written to: numbered segments of bytes, and a disk that
//! behaves as badly as disks do.
//!
//! Invariant of every medium: bytes written before a [`Medium::sync`] that
//! returned survive; bytes written after it survive in any combination of
//! sectors, old or new.

use std::collections::BTreeMap;
use std::io;

/// The mark stored beside the segments of a log: how many of its commits were confirmed.
/// Only the mark reveals that commits are missing at the end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitMark {
    /// Identity of the store.
    pub store: u64,
    /// Number of a commit that was confirmed; later ones may have been.
    pub commit: u64,
}

/// Numbered segments of bytes.
pub trait Medium {
    /// The segments that exist, in rising order.
    ///
    /// # Errors
    /// As the system says, here and below.
    fn list(&mut self) -> io::Result<Vec<u32>>;

    /// Creates a segment of `size` zeros with all its space allocated, so that no write
    /// into it can fail on a full disk. Its existence is durable on return.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] if there is no room; nothing is made.
    fn create(&mut self, segment: u32, size: u64) -> io::Result<()>;

    /// Bytes of a segment.
    ///
    /// # Errors
    /// As the system says.
    fn size(&mut self, segment: u32) -> io::Result<u64>;

    /// Reads from `offset`; fewer bytes than asked for only at the end.
    ///
    /// # Errors
    /// As the system says.
    fn read(&mut self, segment: u32, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes at `offset`.
    ///
    /// # Errors
    /// As the system says; any part may have been written.
    fn write(&mut self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all writes to a segment durable.
    ///
    /// # Errors
    /// It is unknown which writes are durable; all writes since the last successful sync
    /// have to be repeated.
    fn sync(&mut self, segment: u32) -> io::Result<()>;

    /// Removes a segment. That it is gone is safe when this returns.
    ///
    /// # Errors
    /// As the system says.
    fn remove(&mut self, segment: u32) -> io::Result<()>;

    /// Gives a segment another number, which no other has. That it has it is safe when
    /// this returns.
    ///
    /// # Errors
    /// As the system says; it has one number or the other.
    fn rename(&mut self, segment: u32, to: u32) -> io::Result<()>;

    /// The mark that was set last; `None` if there is none.
    ///
    /// # Errors
    /// As the system says.
    fn mark(&mut self) -> io::Result<Option<CommitMark>>;

    /// Keeps a mark instead of the one before, and makes it safe.
    ///
    /// # Errors
    /// As the system says; the one before may still be there.
    fn set_mark(&mut self, mark: CommitMark) -> io::Result<()>;

    /// Sees whether the segments, and what keeps others away from them, are still there:
    /// a bounded number of segments in one call, the others in the next ones.
    ///
    /// # Errors
    /// A file is missing or was replaced; the message contains the remedy. Each call
    /// fails as long as that is so.
    fn verify(&mut self) -> io::Result<()>;
}

/// Bytes that a disk writes at once.
const SECTOR: usize = 512;

/// A disk in memory that loses, tears and reorders unsynced writes at a power failure,
/// and fails on demand. It has no randomness of its own: the caller of
/// [`SimulatedDisk::crash`] decides which writes survive.
#[derive(Debug, Clone, Default)]
pub struct SimulatedDisk {
    segments: BTreeMap<u32, Segment>,
    mark: Option<CommitMark>,
    /// Bytes that fit on it.
    pub capacity: Option<u64>,
    /// Operations that succeed before all fail; counted down.
    pub fail_after: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct Segment {
    safe: Vec<u8>,
    /// Sectors written since the last sync.
    written: BTreeMap<usize, [u8; SECTOR]>,
}

impl Segment {
    /// A sector as it is read now.
    fn sector(&self, number: usize) -> [u8; SECTOR] {
        if let Some(sector) = self.written.get(&number) {
            return *sector;
        }
        let mut sector = [0; SECTOR];
        let from = self.safe.len().min(number * SECTOR);
        let to = self.safe.len().min(from + SECTOR);
        sector[..to - from].copy_from_slice(&self.safe[from..to]);
        sector
    }

    fn keep(&mut self, number: usize, sector: &[u8; SECTOR]) {
        let from = self.safe.len().min(number * SECTOR);
        let to = self.safe.len().min(from + SECTOR);
        self.safe[from..to].copy_from_slice(&sector[..to - from]);
    }
}

impl SimulatedDisk {
    /// The power fails: of the sectors written since the last sync those
    /// survive for which `survives` says so. Everything works again.
    pub fn crash(&mut self, mut survives: impl FnMut() -> bool) {
        for segment in self.segments.values_mut() {
            for (number, sector) in std::mem::take(&mut segment.written) {
                if survives() {
                    segment.keep(number, &sector);
                }
            }
        }
        self.fail_after = None;
    }

    /// Bytes that are safe in a segment, to be damaged.
    pub fn safe_bytes(&mut self, segment: u32) -> Option<&mut Vec<u8>> {
        self.segments.get_mut(&segment).map(|it| &mut it.safe)
    }

    /// The segments that exist.
    pub fn segments(&self) -> impl Iterator<Item = u32> {
        self.segments.keys().copied()
    }

    /// Bytes of all segments.
    pub fn used(&self) -> u64 {
        let sizes = self.segments.values().map(|it| it.safe.len() as u64);
        sizes.sum()
    }

    fn step(&mut self) -> io::Result<()> {
        match &mut self.fail_after {
            Some(0) => Err(io::Error::other("the simulated disk fails")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn segment(&mut self, segment: u32) -> io::Result<&mut Segment> {
        let found = self.segments.get_mut(&segment);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Medium for SimulatedDisk {
    fn list(&mut self) -> io::Result<Vec<u32>> {
        self.step()?;
        Ok(self.segments().collect())
    }

    fn create(&mut self, segment: u32, size: u64) -> io::Result<()> {
        self.step()?;
        if self
            .capacity
            .is_some_and(|capacity| self.used() + size > capacity)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let new = Segment {
            safe: vec![0; size as usize],
            written: BTreeMap::new(),
        };
        self.segments.insert(segment, new);
        Ok(())
    }

    fn size(&mut self, segment: u32) -> io::Result<u64> {
        self.step()?;
        Ok(self.segment(segment)?.safe.len() as u64)
    }

    fn read(&mut self, segment: u32, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.step()?;
        let segment = self.segment(segment)?;
        let end = segment.safe.len().min(offset as usize + bytes.len());
        let mut at = offset as usize;
        while at < end {
            let within = at % SECTOR;
            let len = (SECTOR - within).min(end - at);
            let sector = segment.sector(at / SECTOR);
            let to = at - offset as usize;
            bytes[to..to + len].copy_from_slice(&sector[within..within + len]);
            at += len;
        }
        Ok(end.saturating_sub(offset as usize))
    }

    fn write(&mut self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let fails = self.step();
        let segment = self.segment(segment)?;
        // What fails has written the first half.
        let len = if fails.is_ok() {
            bytes.len()
        } else {
            bytes.len() / 2
        };
        if offset as usize + len > segment.safe.len() {
            return Err(io::Error::other("written beyond the end of the segment"));
        }
        let mut done = 0;
        while done < len {
            let at = offset as usize + done;
            let within = at % SECTOR;
            let part = (SECTOR - within).min(len - done);
            let mut sector = segment.sector(at / SECTOR);
            sector[within..within + part].copy_from_slice(&bytes[done..done + part]);
            segment.written.insert(at / SECTOR, sector);
            done += part;
        }
        fails
    }

    fn sync(&mut self, segment: u32) -> io::Result<()> {
        self.step()?;
        let segment = self.segment(segment)?;
        for (number, sector) in std::mem::take(&mut segment.written) {
            segment.keep(number, &sector);
        }
        Ok(())
    }

    fn remove(&mut self, segment: u32) -> io::Result<()> {
        self.step()?;
        match self.segments.remove(&segment) {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn rename(&mut self, segment: u32, to: u32) -> io::Result<()> {
        self.step()?;
        if self.segments.contains_key(&to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let renamed = self.segments.remove(&segment);
        let renamed = renamed.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        self.segments.insert(to, renamed);
        Ok(())
    }

    fn mark(&mut self) -> io::Result<Option<CommitMark>> {
        Ok(self.mark)
    }

    fn set_mark(&mut self, mark: CommitMark) -> io::Result<()> {
        self.mark = Some(mark);
        Ok(())
    }

    fn verify(&mut self) -> io::Result<()> {
        Ok(())
    }
}
