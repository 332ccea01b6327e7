//! The results file of an experiment. A reader never finds it partially written.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use punctual_measure::{Error, Result};

/// The file in which an experiment keeps its results as JSON. The experiment writes it after each
/// case, so that an interrupted run loses no finished case.
#[derive(Debug)]
pub(crate) struct ResultsFile {
    path: PathBuf,
}

impl ResultsFile {
    /// Uses the file `given`, or else `name` in `directory`, which is created if missing.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub(crate) fn new(given: Option<&Path>, directory: &Path, name: &str) -> Result<Self> {
        let path = given.map_or_else(|| directory.join(name), Path::to_owned);
        if given.is_none() {
            fs::create_dir_all(directory)
                .map_err(Error::io(format!("cannot create {}", directory.display())))?;
        }
        eprintln!("results after each case: {}", path.display());
        Ok(Self { path })
    }

    /// Replaces the content. `complete` says whether the experiment has finished, and becomes a
    /// field of the results.
    ///
    /// # Errors
    /// If the file cannot be written; its old content then remains.
    pub(crate) fn write(&self, results: &impl Serialize, complete: bool) -> Result<()> {
        let value = serde_json::to_value(results)
            .map_err(|error| Error::io("cannot write the results")(error.into()))?;
        let value = match value {
            Value::Object(mut fields) => {
                fields.insert("complete".to_owned(), complete.into());
                Value::Object(fields)
            }
            other => other,
        };
        replace(&self.path, &format!("{value:#}\n"))
    }
}

/// Replaces a file atomically: a reader finds either the old or the new text, even if this program
/// is killed or the machine stops during the write.
///
/// # Errors
/// If the file cannot be written; its old content then remains.
pub(crate) fn replace(path: &Path, text: &str) -> Result<()> {
    let context = || Error::io(format!("cannot write {}", path.display()));
    // A device or a pipe, such as /dev/stdout, is written to instead of being replaced.
    if path.metadata().is_ok_and(|known| !known.is_file()) {
        return fs::write(path, text).map_err(context());
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut file = File::create(&new).map_err(context())?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(context())?;
    fs::rename(&new, path).map_err(context())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_after_each_case_and_says_whether_it_was_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("made");
        let file = ResultsFile::new(None, &below, "results.json").unwrap();
        let read = || -> Value {
            let text = fs::read_to_string(below.join("results.json")).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        file.write(&serde_json::json!({"cases": [1, 2]}), false)
            .unwrap();
        assert_eq!(
            read(),
            serde_json::json!({"cases": [1, 2], "complete": false})
        );
        file.write(&serde_json::json!({"cases": [1]}), true)
            .unwrap();
        assert_eq!(read(), serde_json::json!({"cases": [1], "complete": true}));
        let left: Vec<_> = fs::read_dir(&below).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn a_device_stays_a_device() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        replace(&link, "text").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        replace(&path, "old").unwrap();
        // A directory has the name of the temporary file, so that it cannot be written.
        fs::create_dir(directory.path().join("results.json.new")).unwrap();
        let error = replace(&path, "new").unwrap_err().to_string();
        assert!(error.contains("results.json"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }
}
