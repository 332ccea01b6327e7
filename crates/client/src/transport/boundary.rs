//! Where packets end in a stream of bytes that is passed on in any pieces, so
//! that others can be put in between. Source: MQTT 5.0 section 2.1.

/// A position in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Boundary {
    /// Between two packets.
    #[default]
    Start,
    /// In the remaining length: its value so far, and its bytes.
    Length(usize, u32),
    /// Behind the fixed header: number of bytes to come.
    Body(usize),
}

impl Boundary {
    /// Whether a packet begins here.
    pub(super) fn at_start(self) -> bool {
        self == Self::Start
    }

    /// Advances over `bytes`. Input that is not MQTT never reaches a boundary.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            (*self, bytes) = match *self {
                Self::Start => (Self::Length(0, 0), rest),
                Self::Length(length, read) => {
                    let length = length | usize::from(first & 0x7F) << (7 * read.min(3));
                    let next = match (first & 0x80, length) {
                        (0, 0) => Self::Start,
                        (0, length) => Self::Body(length),
                        _ => Self::Length(length, read + 1),
                    };
                    (next, rest)
                }
                Self::Body(left) => {
                    let n = left.min(bytes.len());
                    let next = match left - n {
                        0 => Self::Start,
                        left => Self::Body(left),
                    };
                    (next, &bytes[n..])
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_end_where_their_length_says() {
        let mut stream = vec![0xD0, 0, 0x30, 0x80, 0x01];
        stream.extend([0; 128]);
        stream.extend([0x40, 2, 0, 1]);
        let ends = [0, 2, 133, 137];
        for step in 1..stream.len() {
            let mut boundary = Boundary::default();
            let mut passed = 0;
            for piece in stream.chunks(step) {
                assert_eq!(boundary.at_start(), ends.contains(&passed), "{passed}");
                boundary.pass(piece);
                passed += piece.len();
            }
            assert!(boundary.at_start());
        }
    }
}
