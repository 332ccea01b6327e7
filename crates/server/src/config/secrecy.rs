//! Whether files with secrets are secret.

use std::fs::{self, Metadata};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Permission of users that neither own a file nor are of its group to read it.
const OTHERS_READ: u32 = 0o004;

/// What is to be said of a file with a secret that every user of this machine may read.
pub(crate) fn exposure(path: &Path) -> Option<String> {
    exposed(&fs::metadata(path).ok()?, path)
}

/// The same of a file whose metadata is known.
pub(crate) fn exposed(metadata: &Metadata, path: &Path) -> Option<String> {
    let mode = metadata.permissions().mode();
    // Devices such as /dev/null keep no secret.
    (metadata.is_file() && mode & OTHERS_READ != 0).then(|| {
        format!(
            "every user of this machine may read it (mode {:04o}); write `chmod 600 {}`",
            mode & 0o7777,
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_others_may_read_are_exposed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, exposed) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(exposure(file.path()).is_some(), exposed, "{mode:o}");
        }
        for no_secret in ["/there/is/none", "/dev/null", "/"] {
            assert_eq!(exposure(Path::new(no_secret)), None, "{no_secret}");
        }
    }
}
