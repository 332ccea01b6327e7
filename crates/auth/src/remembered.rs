//! Passwords that were verified lately, so that a client that comes back need not wait for a hash that
//! is slow on purpose.
//!
//! Neither passwords nor hashes of them that others could use are kept: only HMACs with a key that is
//! drawn when the process starts and never leaves its memory. Bounds: [`MOST`] entries, of which the
//! oldest gives way, and [`LIFETIME`] for each.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Entries.
const MOST: usize = 4096;
/// How long one counts after the password was verified.
const LIFETIME: Duration = Duration::from_secs(300);

type Tag = [u8; 32];

/// See the module. `Debug` shows nothing of it.
pub struct Remembered {
    key: [u8; 32],
    known: HashMap<Tag, Duration>,
    /// With the time from which each counts no more; the oldest first.
    order: VecDeque<(Tag, Duration)>,
}

impl Remembered {
    /// Empty; `key` is random and used for nothing else.
    pub fn new(key: [u8; 32]) -> Self {
        Self {
            key,
            known: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// A user's password was verified at `now`, which is counted from anywhere.
    pub fn remember(&mut self, user: &str, password: &[u8], now: Duration) {
        let Some(tag) = self.tag(user, password) else {
            return;
        };
        let until = now.saturating_add(LIFETIME);
        self.known.insert(tag, until);
        self.order.push_back((tag, until));
        while self.order.len() > MOST || self.order.front().is_some_and(|(_, at)| *at <= now) {
            self.forget_oldest();
        }
    }

    /// Whether it was a short time before `now`.
    pub fn knows(&self, user: &str, password: &[u8], now: Duration) -> bool {
        let tag = self.tag(user, password);
        let until = tag.and_then(|tag| self.known.get(&tag));
        until.is_some_and(|until| now < *until)
    }

    fn forget_oldest(&mut self) {
        if let Some((tag, until)) = self.order.pop_front()
            // It may have been verified again since.
            && self.known.get(&tag) == Some(&until)
        {
            self.known.remove(&tag);
        }
    }

    fn tag(&self, user: &str, password: &[u8]) -> Option<Tag> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).ok()?;
        mac.update(&(user.len() as u64).to_le_bytes());
        mac.update(user.as_bytes());
        mac.update(password);
        Some(mac.finalize().into_bytes().into())
    }
}

impl fmt::Debug for Remembered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembered").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    #[test]
    fn only_what_was_verified_is_known_and_not_for_long() {
        let mut remembered = Remembered::new([7; 32]);
        remembered.remember("alice", b"secret", NOW);
        assert!(remembered.knows("alice", b"secret", NOW));
        for (user, password) in [
            ("alice", &b"secre"[..]),
            ("alice", b"secret2"),
            ("alic", b"esecret"),
            ("bob", b"secret"),
            ("", b"alicesecret"),
        ] {
            assert!(!remembered.knows(user, password, NOW), "{user}");
        }
        assert!(!remembered.knows("alice", b"secret", NOW + LIFETIME));
        let other = Remembered::new([8; 32]);
        assert_ne!(
            other.tag("alice", b"secret"),
            remembered.tag("alice", b"secret")
        );
    }

    #[test]
    fn the_oldest_give_way() {
        let mut remembered = Remembered::new([7; 32]);
        for n in 0..2 * MOST {
            let user = n.to_string();
            remembered.remember(&user, b"p", NOW + Duration::from_millis(n as u64));
            remembered.remember("always", b"p", NOW + Duration::from_millis(n as u64));
            assert!(remembered.order.len() <= MOST && remembered.known.len() <= MOST);
        }
        assert!(remembered.knows("always", b"p", NOW) && !remembered.knows("0", b"p", NOW));
        remembered.remember("last", b"p", NOW + 2 * LIFETIME);
        assert_eq!((remembered.known.len(), remembered.order.len()), (1, 1));
    }
}
