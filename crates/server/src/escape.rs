//! What somebody else has written, made fit for a log or a terminal.
//!
//! A client chooses its identifier, its topics and its words; so does a neighbour or a switch. A line
//! break among them would forge a line of the log, an escape sequence would command the terminal, and
//! marks of the direction of writing would show text in another order than it has. All of these are
//! written as Rust writes them in a string: `\n`, `\u{1b}`.

use std::borrow::Cow;
use std::fmt;

/// Whether a character does something else than to be seen.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Marks of direction, separators of lines and paragraphs, byte order mark.
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

/// The text on one line, without anything that acts on a log or a terminal.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, is_unsafe)
}

/// The same of several lines.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_unsafe(c))
}

/// The same of what somebody sends to be read, with its line breaks and tabs.
pub fn visible_text(text: &str) -> Cow<'_, str> {
    escaped(text, |c| !matches!(c, '\n' | '\t') && is_unsafe(c))
}

/// JSON with its line breaks, where what acts on a log or a terminal is escaped as in strings of
/// JSON, which is the only place where it can be: what it says is the same.
pub fn visible_json(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c| c != '\n' && is_unsafe(c);
    if !text.contains(is_unsafe) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            // All of them are in the first plane.
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out.into()
}

fn escaped(text: &str, is_unsafe: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_unsafe) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_unsafe(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.extend(c.escape_unicode()),
        }
    }
    out.into()
}

/// Passes text on to a writer without what acts on a log or a terminal.
pub(crate) struct Visible<W>(pub(crate) W);

impl<W: fmt::Write> fmt::Write for Visible<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&visible(text))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn nothing_that_acts_is_left() {
        let hostile = "x\n2026 ERROR forged\r\u{1b}[2J\u{9b}1m\u{7f}\0\u{202e}\u{2028}\u{feff}\ty";
        let expected =
            "x\\n2026 ERROR forged\\r\\u{1b}[2J\\u{9b}1m\\u{7f}\\u{0}\\u{202e}\\u{2028}\\u{feff}";
        assert_eq!(visible(hostile), format!("{expected}\\ty"));
        assert_eq!(visible_lines("a\n\tb"), "a\n\\tb");
        assert_eq!(visible_text("a\n\t\rb"), "a\n\t\\rb");
        let mut out = String::new();
        write!(Visible(&mut out), "{hostile}").unwrap();
        assert_eq!(out, format!("{expected}\\ty"));
        for c in (0..=0x10_FFFF).filter_map(char::from_u32) {
            assert!(!visible(&c.to_string()).contains(is_unsafe), "{c:?}");
        }
    }

    #[test]
    fn json_says_the_same_and_nothing_in_it_acts() {
        let value = serde_json::json!({ "name\u{202e}": ["\u{7f}\u{9b}\u{feff}\n", "ü"] });
        let text = format!("{value:#}\n");
        let visible = visible_json(&text);
        assert!(
            !visible.contains(|c| c != '\n' && is_unsafe(c)),
            "{visible:?}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&visible).unwrap(),
            value
        );
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in ["", "ü € \\n {}", "日本", "a\u{301}", "👩\u{200d}🔧"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
        }
    }
}
