//! Networks and changes as files: JSON or TOML, by name or by content.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use punctual_model::network::{Document, Format, NetworkError};
use serde_json::Value;

use super::Failure;

/// The name that stands for standard input.
const STDIN: &str = "-";
/// What standard input is called.
const PIPED: &str = "standard input";

/// A text and where it is from, for messages.
#[derive(Debug)]
pub(super) struct Input {
    text: String,
    place: String,
    format: Format,
}

impl Input {
    /// Reads a file, or standard input for `-`.
    pub(super) fn read(file: &Path) -> Result<Self, Failure> {
        let (text, place) = match file.to_str() {
            Some(STDIN) => (stdin()?, PIPED.into()),
            _ => {
                let place = file.display().to_string();
                let text = fs::read_to_string(file)
                    .map_err(|error| format!("{place} cannot be read: {error}"))?;
                (text, place)
            }
        };
        let format = Format::of(file, &text);
        Ok(Self {
            text,
            place,
            format,
        })
    }

    /// The text itself.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Where it is from.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// It is JSON, by its name or by how it begins.
    pub(super) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// The text as a network.
    pub(super) fn document(&self) -> Result<Document, Failure> {
        Document::parse(&self.text, self.format).map_err(|error| self.blame(&error))
    }

    /// The text as a value.
    pub(super) fn value(&self) -> Result<Value, Failure> {
        let read = match self.format {
            Format::Json => serde_json::from_str(&self.text)
                .map_err(|error| NetworkError::new("", format!("is not JSON: {error}"))),
            Format::Toml => toml::from_str(&self.text).map_err(|error| {
                NetworkError::new("", format!("is not TOML: {}", error.message()))
            }),
        };
        read.map_err(|error| self.blame(&error))
    }

    /// An error of this input.
    pub(super) fn blame(&self, error: &NetworkError) -> Failure {
        blame(&self.place, error)
    }
}

fn blame(place: &str, error: &NetworkError) -> Failure {
    let between = if error.place().is_empty() { "" } else { ":" };
    format!("{place}{between} {error}").into()
}

/// What `read` makes of standard input.
pub(super) fn read_stdin<T>(
    read: impl FnOnce(&str) -> Result<T, NetworkError>,
) -> Result<T, Failure> {
    read(&stdin()?).map_err(|error| blame(PIPED, &error))
}

/// All of standard input.
fn stdin() -> Result<String, Failure> {
    let mut text = String::new();
    io::stdin()
        .lock()
        .read_to_string(&mut text)
        .map_err(|error| format!("standard input cannot be read: {error}"))?;
    Ok(text)
}
