//! Segments as files of a directory, which one process has to itself.
//!
//! A file is created with all its space (`fallocate`), and the directory is synced
//! whenever a name in it is added or removed. Two advisory locks (`flock`) exclude other
//! processes, and end with the process however it ends: one on the directory, which
//! cannot be removed and created again beside the running process, and one on the file
//! `lock` in it, for file systems that do not lock directories. The two lines of that
//! file have fixed positions, so that rewriting them needs no space: the process id, and
//! the mark of the log.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::{CommitMark, Medium, StoreError};

const LOCK: &str = "lock";
const SUFFIX: &str = ".segment";
/// How often segments may go while they are being opened.
const ATTEMPTS: u32 = 100;
/// Segments that one call of [`Medium::verify`] looks at.
const VERIFIED: usize = 8;

/// A directory with segments.
#[derive(Debug)]
pub struct Files {
    place: PathBuf,
    files: BTreeMap<u32, Segment>,
    access: Access,
    /// The segment that is looked at first the next time.
    next: u32,
}

/// A segment's file.
#[derive(Debug)]
struct Segment {
    file: File,
    /// Bytes that it had when it was opened.
    len: u64,
}

/// What may be done with the directory.
#[derive(Debug)]
enum Access {
    /// For writing; no other process writes to it.
    Write(Lock),
    /// For reading; another process may write to it, and had set this mark before the
    /// segments were opened.
    Read(Option<CommitMark>),
}

/// What keeps other processes away.
#[derive(Debug)]
struct Lock {
    /// Locked where the file system can.
    directory: File,
    file: File,
    mark: Option<CommitMark>,
    /// Whether there were segments and no lock file.
    was_missing: bool,
}

impl Files {
    /// Makes the directory if there is none, and takes it for this process.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another process has it, or what the system says.
    pub fn open(place: &Path) -> Result<Self, StoreError> {
        let name = place.display();
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(place)
            .map_err(|error| StoreError::io(format!("{name} cannot be made"), &error))?;
        let mut files = Self {
            place: place.into(),
            files: BTreeMap::new(),
            access: Access::Read(None),
            next: 0,
        };
        let failed = |error| StoreError::io(format!("{name} cannot be read"), &error);
        let directory = File::open(place).map_err(failed)?;
        if matches!(directory.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(locked(place));
        }
        let path = place.join(LOCK);
        let had_lock = path.try_exists().map_err(failed)?;
        let (file, mark) = lock(place)?;
        files.access = Access::Write(Lock {
            directory,
            file,
            mark,
            // A name that is not one of a segment is refused when they are listed.
            was_missing: !had_lock && files.names().is_ok_and(|names| !names.is_empty()),
        });
        Ok(files)
    }

    /// Opens the present segments for reading, also while another process writes to the
    /// log: segments that are removed later stay readable through the open files.
    ///
    /// # Errors
    /// What the system says.
    pub fn read_only(place: &Path) -> Result<Self, StoreError> {
        let mut files = Self {
            place: place.into(),
            files: BTreeMap::new(),
            access: Access::Read(None),
            next: 0,
        };
        let failed = |error| StoreError::io(format!("{} cannot be read", place.display()), &error);
        for _ in 0..ATTEMPTS {
            files.files.clear();
            // Before the segments: these may have more than it says, but not less.
            files.access = Access::Read(read_mark(place).map_err(failed)?);
            let segments = files.names().map_err(failed)?;
            let opened = segments.iter().try_for_each(|segment| {
                let file = File::open(files.path(*segment))?;
                files.files.insert(*segment, Segment::new(file)?);
                Ok(())
            });
            match opened {
                Ok(()) => return Ok(files),
                // The segment was removed meanwhile; its live records are in another one.
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
    }

    /// Whether the directory had segments and no lock file when it was opened for
    /// writing: it was copied without that file, or the file was removed.
    pub fn lacked_lock(&self) -> bool {
        matches!(&self.access, Access::Write(lock) if lock.was_missing)
    }

    fn path(&self, segment: u32) -> PathBuf {
        self.place.join(name(segment))
    }

    fn names(&self) -> io::Result<Vec<u32>> {
        let mut segments = Vec::new();
        for entry in fs::read_dir(&self.place)? {
            let found = entry?.file_name();
            let number = found.to_str().and_then(|found| found.strip_suffix(SUFFIX));
            let Some(segment) = number.and_then(|number| number.parse::<u32>().ok()) else {
                continue;
            };
            if found != name(segment).as_str() {
                // It may be one of ours that was renamed, and all that is missing.
                return Err(io::Error::other(format!(
                    "{} is no name of a segment; if it is one, call it {}, else move it \
                     elsewhere",
                    self.place.join(&found).display(),
                    name(segment)
                )));
            }
            segments.push(segment);
        }
        segments.sort_unstable();
        Ok(segments)
    }

    fn file(&mut self, segment: u32) -> io::Result<&mut File> {
        let path = self.path(segment);
        let writes = matches!(self.access, Access::Write(_));
        let opened = match self.files.entry(segment) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let file = OpenOptions::new().read(true).write(writes).open(path)?;
                entry.insert(Segment::new(file)?)
            }
        };
        Ok(&mut opened.file)
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.place)?.sync_all()
    }

    fn writable(&mut self) -> io::Result<&mut Lock> {
        match &mut self.access {
            Access::Write(lock) => Ok(lock),
            Access::Read(_) => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        }
    }

    /// Sees whether a segment that is open is still the file of its name, and whole.
    fn verify_segment(&self, segment: u32, opened: &Segment) -> io::Result<()> {
        let found = opened.file.metadata()?;
        let what = if found.nlink() == 0 {
            "was removed"
        } else if found.len() < opened.len {
            "has lost its end"
        } else {
            return Ok(());
        };
        Err(gone(&format!("{} {what}", self.path(segment).display())))
    }
}

impl Segment {
    fn new(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, len })
    }
}

impl Lock {
    /// Sees whether the directory and the lock file at `place` are those that were taken. A
    /// lock file that is missing is made again.
    fn verify(&mut self, place: &Path) -> io::Result<()> {
        let name = place.display();
        let is_same =
            |one: &Metadata, other: &Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
        let found = match fs::metadata(place) {
            Err(error) if is_missing(&error) => {
                return Err(gone(&format!("{name} was removed or renamed")));
            }
            found => found?,
        };
        if !is_same(&found, &self.directory.metadata()?) {
            return Err(gone(&format!(
                "another directory is in the place of {name}"
            )));
        }
        let own = self.file.metadata()?;
        let found = match fs::symlink_metadata(place.join(LOCK)) {
            Err(error) if is_missing(&error) => None,
            found => Some(found?),
        };
        if found.is_some_and(|found| is_same(&found, &own)) {
            return Ok(());
        }
        (self.file, _) = lock(place).map_err(io::Error::other)?;
        write_lock(&self.file, self.mark)?;
        Err(io::Error::other(format!(
            "{name}/{LOCK} was removed while the store is in use, and has been made again: another \
             process that was started meanwhile may have written to the store"
        )))
    }
}

impl Medium for Files {
    fn list(&mut self) -> io::Result<Vec<u32>> {
        if let Access::Write(_) = self.access {
            return self.names();
        }
        let mut segments: Vec<u32> = self.files.keys().copied().collect();
        segments.sort_unstable();
        Ok(segments)
    }

    fn create(&mut self, segment: u32, size: u64) -> io::Result<()> {
        self.writable()?;
        let path = self.path(segment);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true);
        let file = file.mode(0o600).open(&path)?;
        let made = allocate(&file, size)
            .and_then(|()| file.sync_all())
            .and_then(|()| self.sync_names());
        match made {
            Ok(()) => {
                self.files.insert(segment, Segment { file, len: size });
                Ok(())
            }
            Err(error) => {
                // Left behind it is only in the way.
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn size(&mut self, segment: u32) -> io::Result<u64> {
        Ok(self.file(segment)?.metadata()?.len())
    }

    fn read(&mut self, segment: u32, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let file = self.file(segment)?;
        let mut done = 0;
        while done < bytes.len() {
            match file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write(&mut self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.writable()?;
        self.file(segment)?.write_all_at(bytes, offset)
    }

    fn sync(&mut self, segment: u32) -> io::Result<()> {
        self.file(segment)?.sync_data()?;
        match self.files.get(&segment) {
            // Data in a file without a name would be lost.
            Some(opened) => self.verify_segment(segment, opened),
            None => Ok(()),
        }
    }

    fn remove(&mut self, segment: u32) -> io::Result<()> {
        self.writable()?;
        self.files.remove(&segment);
        match fs::remove_file(self.path(segment)) {
            Err(error) if !is_missing(&error) => Err(error),
            _ => self.sync_names(),
        }
    }

    fn rename(&mut self, segment: u32, to: u32) -> io::Result<()> {
        self.writable()?;
        let path = self.path(to);
        if path.try_exists()? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::rename(self.path(segment), path)?;
        if let Some(file) = self.files.remove(&segment) {
            self.files.insert(to, file);
        }
        self.sync_names()
    }

    fn mark(&mut self) -> io::Result<Option<CommitMark>> {
        match &self.access {
            Access::Write(lock) => Ok(lock.mark),
            Access::Read(mark) => Ok(*mark),
        }
    }

    fn set_mark(&mut self, mark: CommitMark) -> io::Result<()> {
        let lock = self.writable()?;
        write_lock(&lock.file, Some(mark))?;
        lock.mark = Some(mark);
        lock.file.sync_data()
    }

    fn verify(&mut self) -> io::Result<()> {
        let Access::Write(lock) = &mut self.access else {
            return Ok(());
        };
        lock.verify(&self.place)?;
        let others = self.files.range(..self.next);
        let in_turn = self.files.range(self.next..).chain(others);
        let mut next = self.next;
        for (segment, opened) in in_turn.take(VERIFIED) {
            // One that is gone is looked at again.
            next = *segment;
            self.verify_segment(*segment, opened)
                .inspect_err(|_| self.next = next)?;
        }
        self.next = next.wrapping_add(1);
        Ok(())
    }
}

/// The name of a segment's file.
fn name(segment: u32) -> String {
    format!("{segment:010}{SUFFIX}")
}

/// Allocates all space of a file. Where the file system does not support that, zeros are
/// written.
fn allocate(mut file: &File, size: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            io::copy(&mut io::repeat(0).take(size), &mut file)?;
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Takes the lock file, which is made if there is none; the mark that it has.
fn lock(place: &Path) -> Result<(File, Option<CommitMark>), StoreError> {
    let path = place.join(LOCK);
    let failed =
        |error: io::Error| StoreError::io(format!("{} cannot be locked", path.display()), &error);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut file = options.mode(0o600).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(locked(place)),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let mut text = Vec::new();
    (&mut file)
        .take(LOCK_BYTES)
        .read_to_end(&mut text)
        .map_err(failed)?;
    let mark = parse_mark(&text);
    // Only for the error message of a second process, so it may fail on a full disk.
    let _ = write_lock(&file, mark);
    Ok((file, mark))
}

/// Bytes of the lock file.
const LOCK_BYTES: u64 = 11 + 38;

/// Writes what the lock file has: the process, and the mark if there is one.
fn write_lock(file: &File, mark: Option<CommitMark>) -> io::Result<()> {
    let mark = mark.map_or(String::new(), |CommitMark { store, commit }| {
        format!("{store:016x} {commit:020}")
    });
    let text = format!("{:<10}\n{mark:<37}\n", std::process::id());
    file.write_all_at(text.as_bytes(), 0)
}

fn read_mark(place: &Path) -> io::Result<Option<CommitMark>> {
    match fs::read(place.join(LOCK)) {
        Ok(text) => Ok(parse_mark(&text)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The mark in the second line of the lock file.
fn parse_mark(text: &[u8]) -> Option<CommitMark> {
    let line = std::str::from_utf8(text).ok()?.lines().nth(1)?;
    let (store, commit) = line.trim_end().split_once(' ')?;
    Some(CommitMark {
        store: u64::from_str_radix(store, 16).ok()?,
        commit: commit.parse().ok()?,
    })
}

fn locked(place: &Path) -> StoreError {
    let process = fs::read_to_string(place.join(LOCK)).unwrap_or_default();
    let process = process.lines().next().unwrap_or_default();
    StoreError::Locked {
        place: place.display().to_string(),
        process: process.trim().parse().ok(),
    }
}

fn gone(what: &str) -> io::Error {
    io::Error::other(format!(
        "{what} while the store is in use: put it back, or stop the broker and restore a backup"
    ))
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
