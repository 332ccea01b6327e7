//! Bytes that are ready for a socket which has not taken them.

/// Bytes in wire form that are made and not written, in order. A connection that has none pays one word.
#[derive(Debug, Default)]
pub(crate) struct Unwritten(Option<Box<Bytes>>);

#[derive(Debug, Default)]
struct Bytes {
    all: Vec<u8>,
    /// How many of them were written.
    written: usize,
}

impl Unwritten {
    /// These.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let bytes = Bytes {
            all: bytes,
            written: 0,
        };
        Self((!bytes.all.is_empty()).then(|| Box::new(bytes)))
    }

    pub(crate) fn rest(&self) -> &[u8] {
        let rest = |bytes: &Bytes| bytes.all.len() > bytes.written;
        match &self.0 {
            Some(bytes) if rest(bytes) => &bytes.all[bytes.written..],
            _ => &[],
        }
    }

    /// Where further ones are appended.
    pub(crate) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.0.get_or_insert_default().all
    }

    /// The socket has taken so many.
    pub(crate) fn advance(&mut self, n: usize) {
        if let Some(bytes) = &mut self.0 {
            bytes.written += n;
        }
        if self.rest().is_empty() {
            self.0 = None;
        }
    }

    pub(crate) fn into_rest(self) -> Vec<u8> {
        let mut bytes = self.0.map(|bytes| *bytes).unwrap_or_default();
        match bytes.written {
            0 => bytes.all,
            written => bytes.all.split_off(written.min(bytes.all.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_was_appended_and_not_written() {
        let mut bytes = Unwritten::default();
        assert_eq!(bytes.rest(), b"");
        bytes.end().extend_from_slice(b"abc");
        bytes.advance(1);
        bytes.end().extend_from_slice(b"de");
        assert_eq!(bytes.rest(), b"bcde");
        bytes.advance(4);
        assert!(bytes.0.is_none(), "nothing is kept for nothing");
        assert!(Unwritten::new(Vec::new()).0.is_none());
        let mut bytes = Unwritten::new(b"xyz".to_vec());
        bytes.advance(2);
        assert_eq!(bytes.into_rest(), b"z");
    }
}
