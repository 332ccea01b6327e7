//! How large the records are that a TLS client can hold, from its ClientHello.
//!
//! Small devices have buffers for 512 bytes to 4 KiB. They say so by the extension
//! `max_fragment_length` (RFC 6066 section 4) or `record_size_limit` (RFC 8449), which rustls does
//! not know. A server may send records as small as it likes, so what they ask for is kept to,
//! although the ServerHello does not say so.

use std::ops::ControlFlow;

/// Bytes of a ClientHello, with the headers of its records, that are waited for. A larger one is
/// not looked at.
pub(super) const MAX_HELLO: usize = 16 * 1024;

/// First byte of a record that carries a part of the handshake.
const HANDSHAKE: u8 = 22;
/// Second byte of every record (RFC 8446 section 5.1).
const MAJOR_VERSION: u8 = 3;
const CLIENT_HELLO: u8 = 1;
const MAX_FRAGMENT_LENGTH: u16 = 1;
const RECORD_SIZE_LIMIT: u16 = 28;
/// The least that RFC 8449 allows.
const LEAST_LIMIT: u16 = 64;

/// The most bytes of content that a client takes in a record, by the first bytes that it has sent:
/// `Continue` while its ClientHello is not complete, `Break(None)` if it says nothing about it or
/// is none that can be read.
pub(super) fn record_limit(bytes: &[u8]) -> ControlFlow<Option<usize>> {
    let mut hello = Vec::new();
    let mut rest = bytes;
    loop {
        if let Some(body) = whole_message(&hello) {
            return ControlFlow::Break(body.and_then(limit_in));
        }
        let Some((header, after)) = rest.split_first_chunk::<5>() else {
            break;
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let is_handshake = header[..2] == [HANDSHAKE, MAJOR_VERSION];
        if !is_handshake || length == 0 || length > MAX_HELLO {
            return ControlFlow::Break(None);
        }
        let Some((fragment, after)) = after.split_at_checked(length) else {
            break;
        };
        hello.extend_from_slice(fragment);
        rest = after;
    }
    match bytes.len() < MAX_HELLO {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(None),
    }
}

/// The body of a ClientHello that is complete; `Some(None)` if it is another message, or too large.
fn whole_message(bytes: &[u8]) -> Option<Option<&[u8]>> {
    let (header, body) = bytes.split_first_chunk::<4>()?;
    let [kind, length @ ..] = *header;
    if kind != CLIENT_HELLO {
        return Some(None);
    }
    let length = u32::from_be_bytes([0, length[0], length[1], length[2]]);
    if length as usize > MAX_HELLO {
        return Some(None);
    }
    body.get(..length as usize).map(Some)
}

/// What the extensions of a ClientHello say.
fn limit_in(body: &[u8]) -> Option<usize> {
    // Version and random.
    let rest = body.get(2 + 32..)?;
    let (_session, rest) = vector::<1>(rest)?;
    let (_suites, rest) = vector::<2>(rest)?;
    let (_compression, rest) = vector::<1>(rest)?;
    let (mut extensions, _) = vector::<2>(rest)?;
    let mut limit: Option<usize> = None;
    while let Some((kind, rest)) = extensions.split_first_chunk::<2>() {
        let (content, rest) = vector::<2>(rest)?;
        extensions = rest;
        let asked = match (u16::from_be_bytes(*kind), content) {
            (MAX_FRAGMENT_LENGTH, [n @ 1..=4]) => 256 << n,
            (RECORD_SIZE_LIMIT, [high, low]) => {
                let limit = u16::from_be_bytes([*high, *low]);
                if limit < LEAST_LIMIT {
                    continue;
                }
                // In TLS 1.3 the type of the content counts.
                usize::from(limit) - 1
            }
            _ => continue,
        };
        limit = Some(limit.map_or(asked, |other| other.min(asked)));
    }
    limit
}

/// A vector with a length of `N` bytes, and what follows it.
fn vector<const N: usize>(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<N>()?;
    let length = length
        .iter()
        .fold(0, |all, byte| all << 8 | usize::from(*byte));
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ClientHello with these extensions, in records of `size` bytes.
    fn hello(extensions: &[(u16, &[u8])], size: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for (kind, content) in extensions {
            all.extend(kind.to_be_bytes());
            all.extend((content.len() as u16).to_be_bytes());
            all.extend(*content);
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend((all.len() as u16).to_be_bytes());
        body.extend(all);
        let mut message = vec![CLIENT_HELLO];
        message.extend(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        let mut records = Vec::new();
        for part in message.chunks(size) {
            records.extend([HANDSHAKE, 3, 1]);
            records.extend((part.len() as u16).to_be_bytes());
            records.extend(part);
        }
        records
    }

    #[test]
    fn both_extensions_are_understood() {
        let limit = |extensions: &[(u16, &[u8])]| record_limit(&hello(extensions, 1000));
        for (n, size) in [(1, 512), (2, 1024), (3, 2048), (4, 4096)] {
            assert_eq!(
                limit(&[(0, b"x"), (1, &[n])]),
                ControlFlow::Break(Some(size))
            );
        }
        assert_eq!(limit(&[(28, &[2, 1])]), ControlFlow::Break(Some(512)));
        assert_eq!(
            limit(&[(28, &[2, 1]), (1, &[2])]),
            ControlFlow::Break(Some(512))
        );
        for nothing in [&[][..], &[(1, &[0][..])], &[(1, &[5])], &[(28, &[0, 63])]] {
            assert_eq!(limit(nothing), ControlFlow::Break(None), "{nothing:?}");
        }
    }

    #[test]
    fn it_is_waited_for_and_not_for_ever() {
        let whole = hello(&[(1, &[1])], 7);
        for end in 0..whole.len() {
            assert_eq!(
                record_limit(&whole[..end]),
                ControlFlow::Continue(()),
                "{end}"
            );
        }
        assert_eq!(record_limit(&whole), ControlFlow::Break(Some(512)));
        // In records of a byte each, so that they come to more than the message.
        let message = [&[CLIENT_HELLO, 0, 0x27, 0x10][..], &[0; 10_000]].concat();
        let record = |byte: &u8| [HANDSHAKE, 3, 1, 0, 1, *byte];
        let endless: Vec<u8> = message.iter().flat_map(record).collect();
        let less = &endless[..MAX_HELLO - 1];
        assert_eq!(record_limit(less), ControlFlow::Continue(()));
        assert_eq!(record_limit(&endless), ControlFlow::Break(None));
        for other in [
            &[HANDSHAKE; 9][..],
            &[HANDSHAKE, 3, 1, 0xFF, 0xFF],
            &[HANDSHAKE, 3, 1, 0, 4, CLIENT_HELLO, 1, 0, 0],
        ] {
            assert_eq!(record_limit(other), ControlFlow::Break(None));
        }
        assert_eq!(record_limit(&[21, 3, 1, 0, 1, 0]), ControlFlow::Break(None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_reason_to_panic(bytes: Vec<u8>, at in 0usize..60, byte: u8) {
            let _ = record_limit(&bytes);
            let mut changed = hello(&[(0, b"x"), (28, &[2, 1])], 30);
            changed[at] = byte;
            let _ = record_limit(&changed);
        }
    }
}
