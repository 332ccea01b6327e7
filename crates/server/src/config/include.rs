//! The file and the directory that it includes.
//!
//! `include = "DIR"` reads every `*.toml` of the directory in the order of
//! their names: later files replace the values of earlier ones and add to the
//! list of listeners. Included files include nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::document::{self, Content, Node, Table};
use super::problem::{Problem, Problems};
use super::value::Scalar;

/// Key that names the directory.
pub(super) const KEY: &str = "include";

/// Reads a file and what it includes.
pub(super) fn read_all(path: &Path, problems: &mut Problems) -> Table {
    let mut table = read(path, problems);
    if let Some(node) = table.remove(KEY) {
        let Node { origin, content } = node;
        let Content::Scalar(Scalar::Text(directory)) = content else {
            problems.push(Problem {
                origin: Some(origin),
                key: KEY.into(),
                value: None,
                what: "expected the path of a directory".into(),
                remedy: "write include = \"conf.d\" at the top of the file".into(),
            });
            return table;
        };
        let directory = path.parent().unwrap_or(Path::new("")).join(directory);
        match files(&directory) {
            Ok(files) => {
                for file in files {
                    let mut upper = read(&file, problems);
                    if let Some(node) = upper.remove(KEY) {
                        problems.push(Problem {
                            origin: Some(node.origin),
                            key: KEY.into(),
                            value: None,
                            what: "an included file cannot include others".into(),
                            remedy: "remove this line".into(),
                        });
                    }
                    document::merge(&mut table, upper);
                }
            }
            Err(error) => problems.push(Problem {
                origin: Some(origin),
                key: KEY.into(),
                value: Some(directory.display().to_string()),
                what: format!("the directory cannot be read: {error}"),
                remedy: "create it, or correct the path (it is relative to this file)".into(),
            }),
        }
    }
    table
}

/// The `*.toml` files of a directory, by name.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads one file; an unreadable one is a problem and an empty table.
fn read(path: &Path, problems: &mut Problems) -> Table {
    match fs::read_to_string(path) {
        Ok(text) => document::parse(&text, path, problems),
        Err(error) => {
            problems.push(Problem {
                origin: None,
                key: String::new(),
                value: None,
                what: format!("{} cannot be read: {error}", path.display()),
                remedy: match error.kind() {
                    io::ErrorKind::NotFound => {
                        "correct the path; `punctual config default` prints a file to start from"
                    }
                    io::ErrorKind::InvalidData => "save the file as UTF-8 text",
                    _ => "let the user that runs punctual read the file",
                }
                .into(),
            });
            Table::new()
        }
    }
}
