//! Replaces the text between two marker lines of a Markdown file; hand-written text around the
//! markers stays.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use punctual_measure::{Error, Result};

const BEGIN: &str = "<!-- bench: generated below, do not edit -->";
const END: &str = "<!-- bench: generated above -->";

const NEW_DOCUMENT: &str = "# Performance\n\n\
    Broker and load generator have a core each; the floor is a forwarder that is no broker and \
    marks what a plain design can reach on the machine.\n\n";

/// Writes tables to `out` and, if a path is given, into the generated part of that file.
///
/// # Errors
/// As for [`update`], or `out` cannot be written.
pub(crate) fn publish(path: Option<&Path>, markdown: &str, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{markdown}").map_err(Error::io("cannot write the tables"))?;
    path.map_or(Ok(()), |path| update(path, markdown))
}

/// Replaces the generated part of the file at `path`; creates the file if it is missing.
pub(crate) fn update(path: &Path, generated: &str) -> Result<()> {
    let old = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => NEW_DOCUMENT.to_owned(),
        Err(e) => return Err(Error::io(format!("cannot read {}", path.display()))(e)),
    };
    fs::write(path, replace(&old, generated))
        .map_err(Error::io(format!("cannot write {}", path.display())))
}

fn replace(old: &str, generated: &str) -> String {
    let marked = format!("{BEGIN}\n\n{}\n\n{END}", generated.trim());
    let parts = old
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    match parts {
        Some((before, after)) => format!("{before}{marked}{after}"),
        None => format!("{}\n\n{marked}\n", old.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_around_the_markers_survives() {
        let first = replace("# Title\n\nBy hand.\n", "one");
        assert!(first.starts_with("# Title\n\nBy hand.\n\n<!--"));
        let more = format!("{first}\nAlso by hand.\n");
        let second = replace(&more, "two\n");
        assert_eq!(second, more.replace("one", "two"));
    }
}
