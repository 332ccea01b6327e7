//! Neighbours that were added at run time, in a file for the next start: one a line, replaced as
//! a whole, so that it is never half written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::Neighbour;
use crate::error::Error;
use crate::files::write_atomically;

/// Those that were added, and where they are kept.
#[derive(Debug, Default)]
pub(super) struct AddedNeighbours {
    file: Option<PathBuf>,
    neighbours: Vec<Neighbour>,
}

impl AddedNeighbours {
    /// Reads the file; one that does not exist has none.
    pub(super) fn read(file: Option<&Path>) -> Result<Self, Error> {
        let Some(file) = file else {
            return Ok(Self::default());
        };
        let wrong = |why: String| wrong(file, &why);
        let text = match fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
                if let Some(directory) = directory.filter(|path| !path.is_dir()) {
                    let why = format!("{} is no directory; make it", directory.display());
                    return Err(wrong(why).into());
                }
                String::new()
            }
            other => other.map_err(|error| wrong(error.to_string()))?,
        };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let read = |line: &str| {
            let neighbour = line.parse();
            neighbour.map_err(|why: String| wrong(format!("{line:?}: {why}")))
        };
        Ok(Self {
            file: Some(file.to_owned()),
            neighbours: lines.map(read).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn neighbours(&self) -> &[Neighbour] {
        &self.neighbours
    }

    /// Keeps one, in place of one with the same address.
    pub(super) fn add(&mut self, neighbour: Neighbour) -> Result<(), String> {
        let mut neighbours = self.without(&neighbour.address);
        neighbours.push(neighbour);
        self.write(neighbours)
    }

    /// Forgets one; says whether it was kept.
    pub(super) fn remove(&mut self, address: &str) -> Result<bool, String> {
        let neighbours = self.without(address);
        if self.neighbours.len() == neighbours.len() {
            return Ok(false);
        }
        self.write(neighbours).map(|()| true)
    }

    fn without(&self, address: &str) -> Vec<Neighbour> {
        let mut neighbours = self.neighbours.clone();
        neighbours.retain(|kept| kept.address != address);
        neighbours
    }

    /// Keeps these, if they can be written.
    fn write(&mut self, neighbours: Vec<Neighbour>) -> Result<(), String> {
        if let Some(file) = &self.file {
            write(file, &neighbours).map_err(|error| wrong(file, &error.to_string()))?;
        }
        self.neighbours = neighbours;
        Ok(())
    }
}

fn wrong(file: &Path, why: &str) -> String {
    format!("mesh.neighbours_file = {}: {why}", file.display())
}

fn write(file: &Path, neighbours: &[Neighbour]) -> io::Result<()> {
    let lines = neighbours.iter().map(|neighbour| format!("{neighbour}\n"));
    write_atomically(file, &lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("neighbours");
        let neighbour = |text: &str| text.parse::<Neighbour>().unwrap();
        let mut kept = AddedNeighbours::read(Some(&file)).unwrap();
        kept.add(neighbour("a:1883")).unwrap();
        kept.add(neighbour("tls://b:8883")).unwrap();
        kept.add(neighbour("a:1883 weight=0.5")).unwrap();
        let again = AddedNeighbours::read(Some(&file)).unwrap();
        let wanted = ["tls://b:8883", "a:1883 weight=0.5"].map(neighbour);
        assert_eq!(again.neighbours(), wanted);
        assert_eq!(kept.remove("tls://b:8883"), Ok(true));
        assert_eq!(kept.remove("nobody:1"), Ok(false));
        assert_eq!(
            AddedNeighbours::read(Some(&file))
                .unwrap()
                .neighbours()
                .len(),
            1
        );
        fs::write(&file, "a\n").unwrap();
        let error = AddedNeighbours::read(Some(&file)).unwrap_err().to_string();
        assert!(error.starts_with("mesh.neighbours_file = "), "{error}");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gone").join("neighbours");
        let error = AddedNeighbours::read(Some(&file)).unwrap_err().to_string();
        let gone = directory.path().join("gone");
        assert!(
            error.contains(&format!("{} is no directory", gone.display())),
            "{error}"
        );
        // Removed while the broker runs: what could not be written is not kept.
        fs::create_dir(&gone).unwrap();
        let mut kept = AddedNeighbours::read(Some(&file)).unwrap();
        fs::remove_dir(&gone).unwrap();
        let error = kept.add("a:1".parse().unwrap()).unwrap_err();
        assert!(error.starts_with("mesh.neighbours_file = "), "{error}");
        assert!(kept.neighbours().is_empty());
        // What could not be taken out of it is there the next time.
        fs::create_dir(&gone).unwrap();
        kept.add("a:1".parse().unwrap()).unwrap();
        fs::remove_dir_all(&gone).unwrap();
        kept.remove("a:1").unwrap_err();
        fs::create_dir(&gone).unwrap();
        assert_eq!(kept.remove("a:1"), Ok(true));
        assert!(
            AddedNeighbours::read(Some(&file))
                .unwrap()
                .neighbours()
                .is_empty()
        );
    }

    #[test]
    fn without_a_file_nothing_is_kept() {
        let mut kept = AddedNeighbours::read(None).unwrap();
        kept.add("a:1".parse().unwrap()).unwrap();
        assert!(AddedNeighbours::read(None).unwrap().neighbours().is_empty());
    }
}
