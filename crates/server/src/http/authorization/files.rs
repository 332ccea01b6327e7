//! The file of the tokens: where it is, and how it comes to be.

use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use punctual_auth::{HttpRole, TOKEN_BYTES, TokenFile};

use crate::config::secrecy::exposed;
use crate::files::directory;

/// Where tokens are if nobody says so: among what outlives the process, otherwise where programs
/// have what they need while they run. `None` if the system has no such place for this user.
pub fn token_path(data: Option<&Path>, name: &str) -> Option<PathBuf> {
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

/// Why there are no tokens.
#[derive(Debug)]
pub(super) enum NoTokens {
    /// There is no file, or not one that this user can read.
    Absent(String),
    /// There is a file, and what is in it is not to be used.
    Unusable(String),
}

impl fmt::Display for NoTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(why) | Self::Unusable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for NoTokens {}

/// Reads the tokens. The first time there is no file, and one is made that its owner alone can read.
pub(super) fn open(path: &Path) -> Result<TokenFile, NoTokens> {
    let wrong = |what: &str, why: &str| format!("the token file {} {what}: {why}", path.display());
    let opened = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = make(path);
            made.map_err(|error| NoTokens::Absent(wrong("cannot be made", &error.to_string())))?;
            File::open(path)
        }
        opened => opened,
    };
    let mut text = String::new();
    let read = opened.and_then(|mut file| {
        file.read_to_string(&mut text)?;
        file.metadata()
    });
    let metadata = read.map_err(|error| {
        let why = wrong("cannot be read", &error.to_string());
        match error.kind() {
            io::ErrorKind::InvalidData => NoTokens::Unusable(why),
            _ => NoTokens::Absent(why),
        }
    })?;
    let unusable = |why: &str| NoTokens::Unusable(wrong("cannot be used", why));
    if let Some(why) = other_writers(metadata.uid(), metadata.mode()) {
        return Err(unusable(&why));
    }
    if let Some(why) = exposed(&metadata, path) {
        tracing::warn!("the token file {}: {why}", path.display());
    }
    TokenFile::parse(&text).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        unusable(&lines.join("; "))
    })
}

/// Who else can write a file with that owner and mode, and so give himself every role.
fn other_writers(owner: u32, mode: u32) -> Option<String> {
    if owner != 0 && owner != own_user() {
        return Some(format!(
            "it belongs to user {owner}; have it belong to root or to the user that runs this program \
             (chown)"
        ));
    }
    (mode & 0o022 != 0).then(|| {
        format!(
            "others can write it (mode {:04o}); write `chmod go-w` and its path",
            mode & 0o7777
        )
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
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

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
        assert!(why.to_string().contains("line 1: token"), "{why}");
        assert!(matches!(why, NoTokens::Unusable(_)), "{why}");
        fs::write(file.path(), [0xff]).unwrap();
        let why = open(file.path()).unwrap_err();
        assert!(matches!(why, NoTokens::Unusable(_)), "{why}");
        let why = open(Path::new("/proc/none/x")).unwrap_err();
        assert!(matches!(why, NoTokens::Absent(_)), "{why}");
        assert!(why.to_string().contains("cannot be made"), "{why}");
    }

    /// Whoever can write the file gives himself every role.
    #[test]
    fn files_that_others_can_write_are_refused() {
        let own = own_user();
        for (owner, mode, is_good) in [
            (own, 0o600, true),
            (own, 0o644, true),
            (0, 0o640, true),
            (own, 0o620, false),
            (own, 0o602, false),
            (own + 1, 0o600, false),
        ] {
            let found = other_writers(owner, mode);
            assert_eq!(found.is_none(), is_good, "{owner} {mode:o}: {found:?}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        open(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let why = open(&path).unwrap_err().to_string();
        assert!(why.contains("chmod go-w"), "{why}");
    }

    #[test]
    fn the_place_follows_the_data() {
        let path = token_path(Some(Path::new("/d")), "t");
        assert_eq!(path.unwrap(), Path::new("/d/t"));
    }
}
