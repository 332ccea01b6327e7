//! Files: the network, and the flows that are kept over a restart.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use punctual_manager::State;
use punctual_model::network::Document;

use crate::error::Error;
use crate::files::write_atomically;

/// Reads a network; JSON if its name says so, else TOML.
pub(crate) fn network(path: &Path) -> Result<Document, Error> {
    let text = fs::read_to_string(path).map_err(|error| {
        format!(
            "admission.network: {} cannot be read: {error}",
            path.display()
        )
    })?;
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    let document = match is_json {
        true => Document::from_json(&text),
        false => Document::from_toml(&text),
    };
    document.map_err(|error| format!("{}: {error}", path.display()).into())
}

/// The name of the file with the flows in the directory with what survives, unless
/// `admission.file` says another.
pub const FLOWS: &str = "flows.json";

/// The file with the flows.
#[derive(Debug)]
pub struct FlowFile(PathBuf);

impl FlowFile {
    /// The file of that name.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// What was kept; `None` if there is no file.
    pub fn read(&self) -> Result<Option<State>, Error> {
        let path = self.0.display();
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(format!("admission.file: {path} cannot be read: {error}").into());
            }
        };
        let state = State::from_json(&text).map_err(|error| {
            format!("admission.file: {path} {error}; repair it, or move it away to begin anew")
        })?;
        Ok(Some(state))
    }

    /// Replaces the file: after a crash it is the old one or the new one.
    pub fn write(&self, state: &State) -> Result<(), String> {
        write_atomically(&self.0, &state.to_json()).map_err(|error| {
            format!(
                "admission.file: {} cannot be written: {error}; promises made from now on do \
                 not outlive a restart until it can, and it is tried again",
                self.0.display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let kept = FlowFile::new(directory.path().join("flows.json"));
        assert!(matches!(kept.read(), Ok(None)));
        let state = State {
            version: 1,
            ..State::default()
        };
        kept.write(&state).unwrap();
        kept.write(&state).unwrap();
        let Ok(Some(read)) = kept.read() else {
            panic!("not read")
        };
        assert_eq!(read, state);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        fs::write(directory.path().join("flows.json"), "{").unwrap();
        let Err(error) = kept.read() else {
            panic!("read")
        };
        assert!(error.to_string().contains("admission.file"));
        let nowhere = FlowFile::new(directory.path().join("no/flows.json"));
        assert!(
            nowhere
                .write(&state)
                .unwrap_err()
                .contains("cannot be written")
        );
    }
}
