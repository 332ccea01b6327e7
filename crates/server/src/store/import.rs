//! The end of `punctual store import`: what it has made beside the place of a store gets there,
//! all of it or nothing, whenever the process ends.
//!
//! Invariant: a directory with the name `WHOLE` has all of a store, but for what has been
//! moved to its place already. It gets that name at once, and whoever opens the store next
//! moves the rest.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::admission::FLOWS;

/// Where `import` makes a store, in the directory that gets it.
pub const UNFINISHED: &str = "import";
/// Its name once all is there.
const WHOLE: &str = "imported";

/// Moves the store in [`UNFINISHED`] to its place.
///
/// # Errors
/// Something cannot be moved or made safe; [`finish`] goes on from there, if all was there.
pub fn publish(directory: &Path) -> Result<(), String> {
    let named = fs::rename(directory.join(UNFINISHED), directory.join(WHOLE));
    named
        .and_then(|()| sync(directory))
        .map_err(|error| failed(directory, &error))?;
    finish(directory).map(|_| ())
}

/// Whether [`finish`] has something to do.
pub fn is_unfinished(directory: &Path) -> bool {
    directory.join(WHOLE).exists()
}

/// Moves what an import that was stopped has not moved yet; whether there was one. To be called
/// with the lock of the store, before anything else is done with it.
///
/// # Errors
/// Something cannot be moved or made safe.
pub fn finish(directory: &Path) -> Result<bool, String> {
    let whole = directory.join(WHOLE);
    let entries = match fs::read_dir(&whole) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries,
    };
    let moved = entries.and_then(|entries| {
        let names = entries.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<OsString>>>()?;
        let is_segment = |name: &OsString| Path::new(name).extension() == Some("segment".as_ref());
        names.retain(|name| is_segment(name) || name == FLOWS);
        for name in names {
            fs::rename(whole.join(&name), directory.join(&name))?;
        }
        sync(directory)?;
        fs::remove_dir_all(&whole)?;
        sync(directory)
    });
    moved
        .map(|()| true)
        .map_err(|error| failed(directory, &error))
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn failed(directory: &Path, error: &io::Error) -> String {
    format!("{} cannot be filled: {error}", directory.display())
}
