//! A small file system of its own, to be filled.

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A mounted file system, as long as it lives.
pub(crate) struct Small(TempDir);

impl Small {
    /// One of so many MiB. Without the right to mount: `None`, and says so, or fails
    /// where PUNCTUAL_REQUIRE_NETNS is set.
    pub(crate) fn mount(mib: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        if mount.is_ok_and(|status| status.success()) {
            return Some(Self(dir));
        }
        let required = std::env::var_os("PUNCTUAL_REQUIRE_NETNS").is_some();
        assert!(!required, "a file system cannot be mounted");
        eprintln!("skipped: a file system cannot be mounted without being root");
        None
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let umount = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(std::thread::panicking() || umount.unwrap().success());
    }
}
