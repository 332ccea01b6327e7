//! The header that a datagram may have in front of its MQTT packets.
//!
//! `00 KIND LENGTH BODY`: the first byte cannot begin an MQTT packet, since packet type 0 is
//! reserved (MQTT 5.0 section 2.1.2). Of a body longer than this version defines only the known
//! fields are read, so that fields can be added; integers are big-endian. Decoding allocates
//! nothing and never panics.

use std::fmt;

use crate::cookie::Cookie;

/// First byte of a header.
const MARK: u8 = 0;
const HELLO: u8 = 0x11;
const RETRY: u8 = 0x12;
const WELCOME: u8 = 0x13;
const TOKEN: u8 = 0x14;
const MOVE: u8 = 0x15;
const RESET: u8 = 0x16;
const SEALED: u8 = 0x01;

/// Mark, kind and length.
const PREFIX: usize = 3;
const NONCE: usize = 8;
const TAG: usize = 8;

/// Names a session's connection in headers; public, unlike its key.
pub type SessionId = u64;

/// Proof that a datagram comes from the session's peer: a counter that never
/// repeats, and a tag over the datagram made with the session's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Which session.
    pub id: SessionId,
    /// Grows with every datagram that has a token, each direction by itself.
    pub counter: u64,
    /// First 8 bytes of HMAC-SHA256, see [`Header::signed`].
    pub tag: [u8; TAG],
}

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// From a client, in front of CONNECT.
    Hello {
        /// Whether every datagram of the session is to have a token.
        sealed: bool,
        /// Chosen at random for each connection, the same in repetitions.
        nonce: [u8; NONCE],
        /// The server's cookie; zeros at first.
        cookie: Cookie,
    },
    /// From a server: "say that again, with this cookie".
    Retry {
        /// The client's nonce, or the identifier of its session.
        nonce: [u8; NONCE],
        /// Cookie for the address that this is sent to.
        cookie: Cookie,
    },
    /// From a server, in front of CONNACK (and of AUTH before it).
    Welcome {
        /// Whether every datagram of the session has to have a token.
        sealed: bool,
        /// The client's nonce.
        nonce: [u8; NONCE],
        /// The session's identifier.
        id: SessionId,
        /// The session's key.
        key: [u8; 16],
    },
    /// From either side, in front of any packets of a session.
    Token(Token),
    /// From a client: a token and the cookie of its new address.
    Move(Token, Cookie),
    /// From a server: there is no such session (any more).
    Reset {
        /// Identifier in the datagram that this answers, 0 without one.
        id: SessionId,
        /// Counter in it.
        counter: u64,
    },
}

/// Why bytes that begin like a header are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderError {
    /// The datagram ends within the header.
    Truncated,
    /// No such kind in this version.
    UnknownKind(u8),
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the datagram ends within its header"),
            Self::UnknownKind(kind) => write!(f, "header kind 0x{kind:02X} is unknown"),
        }
    }
}

impl std::error::Error for HeaderError {}

impl Header {
    /// Bytes of a [`Header::Hello`].
    pub const HELLO_LEN: usize = PREFIX + 1 + NONCE + Cookie::LEN;
    /// Bytes of a [`Header::Retry`].
    pub const RETRY_LEN: usize = PREFIX + NONCE + Cookie::LEN;
    /// Bytes of a [`Header::Welcome`].
    pub const WELCOME_LEN: usize = PREFIX + 1 + NONCE + 8 + 16;
    /// Bytes of a [`Header::Token`].
    pub const TOKEN_LEN: usize = PREFIX + 16 + TAG;
    /// Bytes of a [`Header::Move`].
    pub const MOVE_LEN: usize = Self::TOKEN_LEN + Cookie::LEN;
    /// Bytes of a [`Header::Reset`].
    pub const RESET_LEN: usize = PREFIX + 16;

    /// Splits a datagram into its header, if it has one, and its packets.
    ///
    /// # Errors
    /// See [`HeaderError`]; the datagram is to be ignored.
    #[inline]
    pub fn split(datagram: &[u8]) -> Result<(Option<Self>, &[u8]), HeaderError> {
        match datagram.first() {
            Some(&MARK) => Self::split_marked(datagram).map(|(header, rest)| (Some(header), rest)),
            _ => Ok((None, datagram)),
        }
    }

    fn split_marked(datagram: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let [_, kind, len, rest @ ..] = datagram else {
            return Err(HeaderError::Truncated);
        };
        let (body, packets) = rest
            .split_at_checked(usize::from(*len))
            .ok_or(HeaderError::Truncated)?;
        let mut body = Body(body);
        let header = match *kind {
            HELLO => Self::Hello {
                sealed: body.byte()? & SEALED != 0,
                nonce: body.array()?,
                cookie: Cookie::from_bytes(body.array()?),
            },
            RETRY => Self::Retry {
                nonce: body.array()?,
                cookie: Cookie::from_bytes(body.array()?),
            },
            WELCOME => Self::Welcome {
                sealed: body.byte()? & SEALED != 0,
                nonce: body.array()?,
                id: u64::from_be_bytes(body.array()?),
                key: body.array()?,
            },
            TOKEN => Self::Token(body.token()?),
            MOVE => Self::Move(body.token()?, Cookie::from_bytes(body.array()?)),
            RESET => Self::Reset {
                id: u64::from_be_bytes(body.array()?),
                counter: u64::from_be_bytes(body.array()?),
            },
            kind => return Err(HeaderError::UnknownKind(kind)),
        };
        Ok((header, packets))
    }

    /// Appends the header.
    pub fn put(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[MARK, 0, 0]);
        let kind = match self {
            Self::Hello {
                sealed,
                nonce,
                cookie,
            } => {
                out.push(if *sealed { SEALED } else { 0 });
                out.extend_from_slice(nonce);
                out.extend_from_slice(cookie.as_bytes());
                HELLO
            }
            Self::Retry { nonce, cookie } => {
                out.extend_from_slice(nonce);
                out.extend_from_slice(cookie.as_bytes());
                RETRY
            }
            Self::Welcome {
                sealed,
                nonce,
                id,
                key,
            } => {
                out.push(if *sealed { SEALED } else { 0 });
                out.extend_from_slice(nonce);
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(key);
                WELCOME
            }
            Self::Token(token) => {
                token.put(out);
                TOKEN
            }
            Self::Move(token, cookie) => {
                token.put(out);
                out.extend_from_slice(cookie.as_bytes());
                MOVE
            }
            Self::Reset { id, counter } => {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(&counter.to_be_bytes());
                RESET
            }
        };
        out[start + 1] = kind;
        out[start + 2] = (out.len() - start - PREFIX) as u8;
    }

    /// The part of a datagram with a token that its tag is made of, in two
    /// pieces: what stands before the tag, and what stands after it. `None` if
    /// the datagram is too short to have one.
    pub fn signed(datagram: &[u8]) -> Option<(&[u8], &[u8])> {
        let (before, rest) = datagram.split_at_checked(Self::TOKEN_LEN - TAG)?;
        Some((before, rest.get(TAG..)?))
    }

    /// Where the tag of a datagram with a token stands.
    pub(crate) fn tag_range() -> std::ops::Range<usize> {
        Self::TOKEN_LEN - TAG..Self::TOKEN_LEN
    }
}

impl Token {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&self.counter.to_be_bytes());
        out.extend_from_slice(&self.tag);
    }
}

/// What is left of a header's body.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(HeaderError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8, HeaderError> {
        self.array().map(|[byte]| byte)
    }

    fn token(&mut self) -> Result<Token, HeaderError> {
        Ok(Token {
            id: u64::from_be_bytes(self.array()?),
            counter: u64::from_be_bytes(self.array()?),
            tag: self.array()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = Header> {
        let cookie = any::<[u8; Cookie::LEN]>().prop_map(Cookie::from_bytes);
        let token = (any::<u64>(), any::<u64>(), any::<[u8; TAG]>())
            .prop_map(|(id, counter, tag)| Token { id, counter, tag });
        prop_oneof![
            (any::<bool>(), any::<[u8; 8]>(), cookie.clone()).prop_map(
                |(sealed, nonce, cookie)| Header::Hello {
                    sealed,
                    nonce,
                    cookie
                }
            ),
            (any::<[u8; 8]>(), cookie.clone())
                .prop_map(|(nonce, cookie)| Header::Retry { nonce, cookie }),
            (
                any::<bool>(),
                any::<[u8; 8]>(),
                any::<u64>(),
                any::<[u8; 16]>()
            )
                .prop_map(|(sealed, nonce, id, key)| Header::Welcome {
                    sealed,
                    nonce,
                    id,
                    key
                }),
            token.clone().prop_map(Header::Token),
            (token, cookie).prop_map(|(token, cookie)| Header::Move(token, cookie)),
            (any::<u64>(), any::<u64>()).prop_map(|(id, counter)| Header::Reset { id, counter }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            header in any_header(),
            extra in proptest::collection::vec(any::<u8>(), 0..20),
            packets in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut datagram = Vec::new();
            header.put(&mut datagram);
            // Fields of a later version, at the end of the body.
            datagram[2] += extra.len() as u8;
            datagram.extend_from_slice(&extra);
            let len = datagram.len();
            datagram.extend_from_slice(&packets);
            prop_assert_eq!(Header::split(&datagram), Ok((Some(header), &packets[..])));
            for cut in 1..len {
                prop_assert_eq!(Header::split(&datagram[..cut]), Err(HeaderError::Truncated));
            }
        }

        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), mark: bool) {
            if mark && !bytes.is_empty() {
                bytes[0] = MARK;
            }
            match Header::split(&bytes) {
                Ok((None, rest)) => prop_assert_eq!(rest, &bytes[..]),
                Ok((Some(_), rest)) => prop_assert!(bytes.ends_with(rest)),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
            let _ = Header::signed(&bytes);
        }
    }

    #[test]
    fn lengths_are_as_documented() {
        let cookie = Cookie::default();
        let token = Token {
            id: 1,
            counter: 2,
            tag: [3; 8],
        };
        let nonce = [0; 8];
        for (header, len) in [
            (
                Header::Hello {
                    sealed: true,
                    nonce,
                    cookie,
                },
                Header::HELLO_LEN,
            ),
            (Header::Retry { nonce, cookie }, Header::RETRY_LEN),
            (
                Header::Welcome {
                    sealed: true,
                    nonce,
                    id: 1,
                    key: [0; 16],
                },
                Header::WELCOME_LEN,
            ),
            (Header::Token(token), Header::TOKEN_LEN),
            (Header::Move(token, cookie), Header::MOVE_LEN),
            (Header::Reset { id: 1, counter: 2 }, Header::RESET_LEN),
        ] {
            let mut out = Vec::new();
            header.put(&mut out);
            assert_eq!(out.len(), len, "{header:?}");
        }
        let mut out = Vec::new();
        Header::Token(token).put(&mut out);
        assert_eq!(out[Header::tag_range()], [3; 8]);
    }

    #[test]
    fn unknown_kinds_are_told_apart_from_truncation() {
        assert_eq!(
            Header::split(&[0, 0x21, 0]),
            Err(HeaderError::UnknownKind(0x21))
        );
        assert_eq!(Header::split(&[]), Ok((None, &[][..])));
    }
}
