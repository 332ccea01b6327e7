//! Segments as files of a directory, which one process has to itself.
//!
//! A file is made with all its room (`fallocate`), and the directory is synced
//! whenever a name in it comes or goes. The lock is the system's (`flock`): it
//! goes with the process, however that ends.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::{Medium, StoreError};

const LOCK: &str = "lock";
const SUFFIX: &str = ".segment";
/// How often segments may go while they are being opened.
const ATTEMPTS: u32 = 100;

/// A directory with segments.
#[derive(Debug)]
pub struct Files {
    place: PathBuf,
    files: HashMap<u32, File>,
    /// Held while the directory is written to.
    lock: Option<File>,
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
        let lock = lock(place)?;
        Ok(Self {
            place: place.into(),
            files: HashMap::new(),
            lock: Some(lock),
        })
    }

    /// Opens what is there at this moment for reading, also while another
    /// process writes to it: what a log says at one time stays readable through
    /// files that are open.
    ///
    /// # Errors
    /// What the system says.
    pub fn read_only(place: &Path) -> Result<Self, StoreError> {
        let mut files = Self {
            place: place.into(),
            files: HashMap::new(),
            lock: None,
        };
        let failed = |error| StoreError::io(format!("{} cannot be read", place.display()), &error);
        for _ in 0..ATTEMPTS {
            files.files.clear();
            let segments = files.names().map_err(failed)?;
            let opened = segments.iter().try_for_each(|segment| {
                let file = File::open(files.path(*segment))?;
                files.files.insert(*segment, file);
                Ok(())
            });
            match opened {
                Ok(()) => return Ok(files),
                // It was given back meanwhile, and what it had is elsewhere.
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
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
        let writes = self.lock.is_some();
        match self.files.entry(segment) {
            std::collections::hash_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let file = OpenOptions::new().read(true).write(writes).open(path)?;
                Ok(entry.insert(file))
            }
        }
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.place)?.sync_all()
    }

    fn writable(&self) -> io::Result<()> {
        match self.lock {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        }
    }
}

impl Medium for Files {
    fn list(&mut self) -> io::Result<Vec<u32>> {
        if self.lock.is_some() {
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
                self.files.insert(segment, file);
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
        self.file(segment)?.sync_data()
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
}

/// The name of a segment's file.
fn name(segment: u32) -> String {
    format!("{segment:010}{SUFFIX}")
}

/// Gives a file all its room. Where the file system cannot promise that, zeros
/// are written.
fn allocate(mut file: &File, size: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            io::copy(&mut io::repeat(0).take(size), &mut file)?;
            Ok(())
        }
        done => Ok(done?),
    }
}

fn lock(place: &Path) -> Result<File, StoreError> {
    let path = place.join(LOCK);
    let failed =
        |error: io::Error| StoreError::io(format!("{} cannot be locked", path.display()), &error);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut file = options.mode(0o600).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut process = String::new();
            let _ = file.read_to_string(&mut process);
            return Err(StoreError::Locked {
                place: place.display().to_string(),
                process: process.trim().parse().ok(),
            });
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    // Only for the message of whoever comes second: it need not succeed on a
    // full disk.
    let _ = file.set_len(0);
    let _ = write!(file, "{}", std::process::id());
    Ok(file)
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
