//! Tokens: what proves that a datagram comes from the session's peer, and that
//! it is not an old one.
//!
//! The key travels once, in the clear, to the address that the cookie proved. Only an observer of
//! that datagram can make tokens. This keeps out senders of spoofed datagrams, not eavesdroppers on
//! the path.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::Side;
use crate::header::{Header, SessionId, Token};

/// Makes and checks the tokens of one session.
#[derive(Debug, Clone)]
pub(crate) struct Seal {
    pub(crate) id: SessionId,
    pub(crate) key: [u8; 16],
    /// With the key already absorbed.
    mac: Hmac<Sha256>,
    side: Side,
    sent: u64,
    received: Replay,
}

impl Seal {
    pub(crate) fn new(id: SessionId, key: [u8; 16], side: Side) -> Self {
        Self {
            id,
            key,
            mac: Hmac::new_from_slice(&key).expect("HMAC takes keys of any length"),
            side,
            sent: 0,
            received: Replay::default(),
        }
    }

    /// Counter of the last token made.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// The next token; its tag is set by [`Self::sign`].
    pub(crate) fn next(&mut self) -> Token {
        self.sent += 1;
        Token {
            id: self.id,
            counter: self.sent,
            tag: [0; 8],
        }
    }

    /// Fills in the tag of a datagram that begins with a token.
    pub(crate) fn sign(&self, datagram: &mut [u8]) {
        let Some((before, after)) = Header::signed(datagram) else {
            return;
        };
        let tag = self.tag(self.side, before, after).finalize().into_bytes();
        let range = Header::tag_range();
        let len = range.len();
        datagram[range].copy_from_slice(&tag[..len]);
    }

    /// Whether the peer made that datagram, and it was not seen before. It
    /// counts as seen from now on.
    pub(crate) fn open(&mut self, token: &Token, datagram: &[u8], now: Duration) -> bool {
        self.received.age(now);
        let Some((before, after)) = Header::signed(datagram) else {
            return false;
        };
        let peer = match self.side {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        self.received.is_new(token.counter)
            && self
                .tag(peer, before, after)
                .verify_truncated_left(&token.tag)
                .is_ok()
            && {
                self.received.note(token.counter);
                true
            }
    }

    /// Whether a token of the peer came later than all others.
    pub(crate) fn is_newest(&self, token: &Token) -> bool {
        self.received.highest == token.counter
    }

    fn tag(&self, from: Side, before: &[u8], after: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(match from {
            Side::Client => b"C",
            Side::Server => b"S",
        });
        mac.update(before);
        mac.update(after);
        mac
    }
}

/// A datagram is accepted for at least this long after it was sent, and for at most twice as long.
/// Far below [`crate::REPEAT_WINDOW`], so that an attacker who delays a datagram cannot have its
/// message delivered again.
const LATE: Duration = Duration::from_secs(10);

/// Which counters were seen: the highest, and the 128 below it.
#[derive(Debug, Clone, Default)]
struct Replay {
    highest: u64,
    /// Bit `n`: `highest - n` was seen.
    seen: u128,
    /// Counters up to this one are too old.
    floor: u64,
    /// The next floor, and when it was the highest counter.
    mark: (Duration, u64),
}

impl Replay {
    /// Makes counters too old as time goes by.
    fn age(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.mark.0);
        if elapsed >= LATE {
            self.floor = if elapsed >= LATE * 2 {
                self.highest
            } else {
                self.mark.1
            };
            self.mark = (now, self.highest);
        }
    }

    /// Counters too far below the highest, or too old, count as seen.
    fn is_new(&self, counter: u64) -> bool {
        if counter <= self.floor {
            return false;
        }
        if counter > self.highest {
            return true;
        }
        let age = self.highest - counter;
        counter > 0 && age < 128 && self.seen >> age & 1 == 0
    }

    fn note(&mut self, counter: u64) {
        if counter > self.highest {
            let step = counter - self.highest;
            self.seen = if step < 128 { self.seen << step } else { 0 };
            self.highest = counter;
        }
        self.seen |= 1 << (self.highest - counter).min(127);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const NOW: Duration = Duration::ZERO;

    proptest! {
        /// Nothing is taken twice; everything within 128 of the highest is
        /// taken once.
        #[test]
        fn counters_are_taken_once(counters in proptest::collection::vec(0..400u64, 1..200)) {
            let mut replay = Replay::default();
            let mut seen = HashSet::new();
            for counter in counters {
                let new = replay.is_new(counter);
                if new {
                    replay.note(counter);
                }
                if seen.contains(&counter) || counter == 0 {
                    prop_assert!(!new);
                } else if counter + 128 > replay.highest {
                    prop_assert!(new);
                }
                if new {
                    seen.insert(counter);
                }
            }
        }
    }

    fn signed(seal: &mut Seal, packets: &[u8]) -> (Token, Vec<u8>) {
        let mut datagram = Vec::new();
        Header::Token(seal.next()).put(&mut datagram);
        datagram.extend_from_slice(packets);
        seal.sign(&mut datagram);
        match Header::split(&datagram) {
            Ok((Some(Header::Token(token)), _)) => (token, datagram),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_peer_makes_tokens_and_each_is_good_once() {
        let mut client = Seal::new(1, [9; 16], Side::Client);
        let mut server = Seal::new(1, [9; 16], Side::Server);
        let mut stranger = Seal::new(1, [8; 16], Side::Client);
        let (token, datagram) = signed(&mut client, b"packets");
        assert!(!client.open(&token, &datagram, NOW), "reflected");
        for at in 0..datagram.len() {
            let mut forged = datagram.clone();
            forged[at] ^= 1;
            if let Ok((Some(Header::Token(token)), _)) = Header::split(&forged) {
                assert!(!server.open(&token, &forged, NOW), "byte {at}");
            }
        }
        assert!(server.open(&token, &datagram, NOW));
        assert!(server.is_newest(&token));
        assert!(!server.open(&token, &datagram, NOW), "replayed");
        let (token, datagram) = signed(&mut stranger, b"packets");
        assert!(!server.open(&token, &datagram, NOW));
    }

    #[test]
    fn who_is_held_back_for_long_comes_too_late() {
        let (mut client, mut server) = (
            Seal::new(1, [9; 16], Side::Client),
            Seal::new(1, [9; 16], Side::Server),
        );
        let held: Vec<_> = (0..3).map(|_| signed(&mut client, b"held")).collect();
        let (token, datagram) = signed(&mut client, b"first");
        assert!(server.open(&token, &datagram, NOW));
        assert!(server.open(&held[0].0, &held[0].1, NOW + LATE / 2));
        let (token, datagram) = signed(&mut client, b"second");
        assert!(server.open(&token, &datagram, NOW + LATE));
        assert!(server.open(&held[1].0, &held[1].1, NOW + LATE * 3 / 2));
        assert!(!server.open(&held[2].0, &held[2].1, NOW + LATE * 2));
        let (token, datagram) = signed(&mut client, b"after a long silence");
        assert!(server.open(&token, &datagram, NOW + LATE * 9));
    }
}
