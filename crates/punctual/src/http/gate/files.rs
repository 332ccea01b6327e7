//! The file of the tokens: where it is, and how it comes to be.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use punctual_auth::{HttpRole, TOKEN_BYTES, TokenFile};

use crate::config::secrecy::exposure;
use crate::files::directory;

/// Where tokens are if nobody says so: among what outlives the process, otherwise where programs
/// have what they need while they run. `None` if the system has no such place for this user.
pub(crate) fn token_path(data: Option<&Path>, name: &str) -> Option<PathBuf> {
    if let Some(data) = data {
        return Some(data.join(name));
    }
    let from = |variable| {
        let value = std::env::var_os(variable)?;
        // systemd may name several.
        let first = value.to_str()?.split(':').next()?.to_owned();
        Some(PathBuf::from(first)).filter(|path| path.is_absolute())
    };
    if let Some(own) = from("RUNTIME_DIRECTORY") {
        return Some(own.join(name));
    }
    let shared = from("XDG_RUNTIME_DIR").or_else(|| (own_user() == 0).then(|| "/run".into()));
    Some(shared?.join("punctual").join(name))
}

/// Reads the tokens. The first time there is no file, and one is made that its owner alone can read.
pub(super) fn open(path: &Path) -> Result<TokenFile, String> {
    let wrong = |what: &str, why: &str| format!("the token file {} {what}: {why}", path.display());
    let read = || fs::read_to_string(path);
    let text = match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(path).map_err(|error| wrong("cannot be made", &error.to_string()))?;
            read()
        }
        found => found,
    };
    let text = text.map_err(|error| wrong("cannot be read", &error.to_string()))?;
    if let Some(why) = exposure(path) {
        tracing::warn!("the token file {}: {why}", path.display());
    }
    TokenFile::parse(&text).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        wrong("cannot be used", &lines.join("; "))
    })
}

/// Makes the file in one step, so that nobody reads half of it; one that another process has made
/// meanwhile stays.
fn make(path: &Path) -> io::Result<()> {
    let directory = directory(path);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let mut random = [[0; TOKEN_BYTES]; HttpRole::ALL.len()];
    for one in &mut random {
        getrandom::fill(one).map_err(io::Error::other)?;
    }
    // Of mode 0600 from the start.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(TokenFile::generate(&random).as_bytes())?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error.error),
        Ok(_) => Ok(()),
    }
}

/// The user that runs this process.
pub(super) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_missing_file_is_made_once_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/tokens");
        let first = open(&path).unwrap();
        let token = first.token_for(HttpRole::Administer).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            open(&path).unwrap().role_of(token),
            Some(HttpRole::Administer)
        );
        make(&path).unwrap();
        assert_eq!(
            open(&path).unwrap().role_of(token),
            Some(HttpRole::Administer)
        );
        // Nothing is left beside it.
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn bad_files_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "root x\n").unwrap();
        let why = open(file.path()).unwrap_err();
        assert!(why.contains("line 1: token"), "{why}");
        assert!(
            open(Path::new("/proc/none/x"))
                .unwrap_err()
                .contains("cannot be made")
        );
    }

    #[test]
    fn the_place_follows_the_data() {
        let path = token_path(Some(Path::new("/d")), "t");
        assert_eq!(path.unwrap(), Path::new("/d/t"));
    }
}
