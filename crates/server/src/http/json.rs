//! Answers in JSON, fit for a terminal.
//!
//! JSON demands escapes for the first 32 characters only. The others that act on a terminal are
//! escaped here, too, which changes nothing for who reads the JSON.

use std::io::{self, Write};

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use crate::escape::visible_json;

/// A body of JSON.
#[derive(Debug)]
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match text(&self.0) {
            Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
            // No type of the interface has keys that are no text, which is all that can fail.
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

fn text(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(128);
    value.serialize(&mut Serializer::with_formatter(&mut text, Visible))?;
    Ok(text)
}

/// Writes JSON without spaces, and strings without unsafe characters.
struct Visible;

impl Formatter for Visible {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        writer.write_all(visible_json(fragment).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_escaped_and_read_back_as_it_was() {
        let hostile = "a\n\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\u{feff}\"\\ ü 日";
        let written = text(&serde_json::json!({ hostile: [hostile] })).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert!(!written.contains(crate::escape::is_unsafe), "{written:?}");
        assert!(written.contains("ü 日"));
        let read: serde_json::Value = serde_json::from_str(&written).unwrap();
        assert_eq!(read[hostile][0], hostile);
    }
}
