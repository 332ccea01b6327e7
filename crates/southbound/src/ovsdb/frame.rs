//! Messages from bytes: JSON objects one after the other, with nothing between
//! them but white space (RFC 7047 section 4).
//!
//! The splitter looks at each byte once and only counts braces outside of
//! strings; what is between them is for the JSON parser. A message has a
//! greatest size, and what is not an object at the top is an error.

/// What cannot be a sequence of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A message is larger than allowed.
    #[error("a message has more than {0} bytes")]
    TooLarge(usize),
    /// Something else than an object.
    #[error("there is a byte {0:#04x} where a message should begin")]
    NoObject(u8),
}

/// Cuts a stream of bytes into messages.
#[derive(Debug)]
pub struct Splitter {
    buffer: Vec<u8>,
    /// Bytes of the buffer that have been looked at.
    seen: usize,
    depth: u32,
    in_string: bool,
    escaped: bool,
    most: usize,
}

impl Splitter {
    /// For messages of at most `most` bytes.
    pub fn new(most: usize) -> Self {
        Self {
            buffer: Vec::new(),
            seen: 0,
            depth: 0,
            in_string: false,
            escaped: false,
            most,
        }
    }

    /// Takes bytes; every message that is complete with them goes to `message`.
    ///
    /// # Errors
    /// The stream is no sequence of messages; the splitter is of no use then.
    pub fn push(&mut self, bytes: &[u8], mut message: impl FnMut(&[u8])) -> Result<(), FrameError> {
        self.buffer.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(&byte) = self.buffer.get(self.seen) {
            self.seen += 1;
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'{' | b'[' if self.depth > 0 || byte == b'{' => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        let whole = &self.buffer[start..self.seen];
                        if whole.len() > self.most {
                            return Err(FrameError::TooLarge(self.most));
                        }
                        message(whole);
                        start = self.seen;
                    }
                }
                b'"' if self.depth > 0 => self.in_string = true,
                b' ' | b'\t' | b'\r' | b'\n' if self.depth == 0 => start = self.seen,
                other if self.depth == 0 => return Err(FrameError::NoObject(other)),
                _ => {}
            }
        }
        self.buffer.drain(..start);
        self.seen -= start;
        if self.buffer.len() > self.most {
            return Err(FrameError::TooLarge(self.most));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn split(chunks: &[&[u8]], most: usize) -> Result<Vec<String>, FrameError> {
        let mut splitter = Splitter::new(most);
        let mut messages = Vec::new();
        for chunk in chunks {
            splitter.push(chunk, |message| {
                messages.push(String::from_utf8_lossy(message).into_owned());
            })?;
        }
        Ok(messages)
    }

    #[test]
    fn messages_need_nothing_between_them() {
        let all = split(&[b"{\"a\":\"}{\\\"\"}{}\n {\"b\":[{}]}"], 64).unwrap();
        assert_eq!(all, [r#"{"a":"}{\""}"#, "{}", r#"{"b":[{}]}"#]);
    }

    #[test]
    fn what_is_too_large_or_nothing_is_refused() {
        assert_eq!(split(&[b"{\"a\":1}"], 7).unwrap().len(), 1);
        assert_eq!(split(&[b"{\"a\":1}"], 6), Err(FrameError::TooLarge(6)));
        assert_eq!(
            split(&[b"{\"a\":", b"\"xyz"], 6),
            Err(FrameError::TooLarge(6))
        );
        for byte in b"[\"1}]x" {
            assert_eq!(split(&[&[*byte]], 64), Err(FrameError::NoObject(*byte)));
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<i32>().prop_map(Value::from),
            ".*".prop_map(Value::from)
        ];
        let inner = leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map(".*", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        });
        proptest::collection::hash_map(".*", inner, 0..4)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn cuts_do_not_depend_on_how_bytes_arrive(
            values in proptest::collection::vec(json(), 1..4),
            size in 1_usize..40,
        ) {
            let text: String = values.iter().map(Value::to_string).collect();
            let chunks: Vec<_> = text.as_bytes().chunks(size).collect();
            let messages = split(&chunks, 1 << 20).unwrap();
            let read: Vec<Value> = messages.iter().map(|m| serde_json::from_str(m).unwrap()).collect();
            prop_assert_eq!(read, values);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = split(&[&bytes], 100);
        }
    }
}
