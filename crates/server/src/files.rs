//! Files that are replaced as a whole.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::Path;

/// Puts `text` in the place of a file in one step: after a crash it is the old one or the new one.
/// An existing file keeps owner and mode; a new one has mode 0600, and so has what is written before
/// it takes the place, in the same directory under a name that cannot be guessed.
///
/// # Errors
///
/// What the system says; the file is as it was, unless only the last step failed: to have its new name
/// on disk.
pub fn write_atomically(file: &Path, text: &str) -> io::Result<()> {
    // The file behind a link is replaced, not the link.
    let target = match fs::canonicalize(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => file.to_owned(),
        found => found?,
    };
    let directory = directory(&target);
    let mut temporary = tempfile::NamedTempFile::new_in(directory)?;
    temporary.write_all(text.as_bytes())?;
    if let Ok(old) = fs::metadata(&target) {
        let new = temporary.as_file();
        let now = new.metadata()?;
        if (now.uid(), now.gid()) != (old.uid(), old.gid()) {
            fchown(new, Some(old.uid()), Some(old.gid()))?;
        }
        new.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
    }
    temporary.as_file().sync_all()?;
    temporary.persist(&target)?;
    File::open(directory)?.sync_all()
}

/// Where a file is.
pub(crate) fn directory(file: &Path) -> &Path {
    match file.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_its_owners_and_an_old_one_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f");
        // Somebody who knows the old way prepares a name to write to.
        let trap = directory.path().join("f.new");
        let victim = directory.path().join("victim");
        fs::write(&victim, "whole").unwrap();
        std::os::unix::fs::symlink(&victim, &trap).unwrap();
        write_atomically(&file, "one").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        write_atomically(&file, "two").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "whole");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }
}
