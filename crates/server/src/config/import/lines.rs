//! The lines of a mosquitto.conf, with those of its `include_dir`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::origin::Origin;

/// Files within files: Mosquitto itself goes no deeper.
const DEEPEST: usize = 10;

/// An option and its value.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub origin: Origin,
    pub option: String,
    /// The rest of the line; empty for an option without value.
    pub value: String,
}

/// Reads a file and, in the place of each `include_dir`, the `*.conf` files of
/// that directory by name.
///
/// # Errors
///
/// A file or directory that cannot be read.
pub(crate) fn read(path: &Path) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    read_into(path, 0, &mut lines)?;
    Ok(lines)
}

fn read_into(path: &Path, depth: usize, lines: &mut Vec<Line>) -> Result<(), String> {
    // Comments may be in any encoding.
    let bytes = fs::read(path).map_err(|error| cannot_read(path, &error))?;
    let text = String::from_utf8_lossy(&bytes);
    let path: Arc<Path> = path.into();
    for (index, text) in text.lines().enumerate() {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (option, value) = text.split_once([' ', '\t']).unwrap_or((text, ""));
        let line = Line {
            origin: Origin::File {
                path: path.clone(),
                line: index + 1,
            },
            option: option.into(),
            value: value.trim().into(),
        };
        if line.option != "include_dir" {
            lines.push(line);
            continue;
        }
        if depth == DEEPEST {
            return Err(format!(
                "{}: too many files include each other",
                line.origin
            ));
        }
        for file in files(Path::new(&line.value)).map_err(|e| format!("{}: {e}", line.origin))? {
            read_into(&file, depth + 1, lines)?;
        }
    }
    Ok(())
}

/// The `*.conf` files of a directory, by name.
fn files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut files: Vec<_> = entries
        .map_err(|error| cannot_read(directory, &error))?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "conf")
        })
        .collect();
    files.sort();
    Ok(files)
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be read: {error}", path.display())
}
