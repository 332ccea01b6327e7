//! Stateless proof that a client receives what is sent to its address.
//!
//! A cookie is a time slot and the first 16 bytes of an HMAC-SHA256 over
//! address, port, the client's nonce and the slot. The key is replaced in
//! every slot by one derived from it and forgotten one slot later, so that a
//! cookie is good for [`COOKIE_LIFETIME`] at most, and only at the address it
//! was made for. A cookie that opened a connection opens no second one while
//! it lasts: that is remembered, boundedly.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of a time slot.
const SLOT: Duration = Duration::from_secs(10);
/// How long a cookie is good at most: the rest of its slot and the next one.
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(20);
/// Used cookies that are remembered of one slot. Beyond, further ones are
/// bounded by their lifetime and address alone.
const USED: usize = 1 << 16;
const MAC: usize = 16;

/// A cookie as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cookie([u8; Cookie::LEN]);

impl Cookie {
    /// Bytes of a cookie.
    pub const LEN: usize = 1 + MAC;

    /// A cookie as received.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// Makes and checks cookies.
#[derive(Debug)]
pub(crate) struct Cookies {
    slot: u64,
    key: [u8; 32],
    /// Of the slot before, if that was used.
    last_key: Option<[u8; 32]>,
    used: HashSet<Cookie>,
    last_used: HashSet<Cookie>,
}

impl Cookies {
    /// `key` has to be random.
    pub(crate) fn new(key: [u8; 32], now: Duration) -> Self {
        Self {
            slot: slot_of(now),
            key,
            last_key: None,
            used: HashSet::new(),
            last_used: HashSet::new(),
        }
    }

    /// The cookie for a client at `address` now.
    pub(crate) fn make(&mut self, address: SocketAddr, nonce: &[u8; 8], now: Duration) -> Cookie {
        self.advance(now);
        cookie(&self.key, self.slot, address, nonce)
    }

    /// Whether that is a cookie of a client at `address`, not too old.
    pub(crate) fn check(
        &mut self,
        cookie: &Cookie,
        address: SocketAddr,
        nonce: &[u8; 8],
        now: Duration,
    ) -> bool {
        self.advance(now);
        let (key, slot) = match self.last_key {
            _ if cookie.0[0] == self.slot as u8 => (&self.key, self.slot),
            Some(ref last) if cookie.0[0] == (self.slot as u8).wrapping_sub(1) => {
                (last, self.slot - 1)
            }
            _ => return false,
        };
        mac(key, slot, address, nonce)
            .verify_truncated_left(&cookie.0[1..])
            .is_ok()
    }

    /// Notes that a cookie has opened a connection: false if it had before.
    pub(crate) fn spend(&mut self, cookie: &Cookie) -> bool {
        if self.last_used.contains(cookie) || self.used.contains(cookie) {
            return false;
        }
        if self.used.len() < USED {
            self.used.insert(*cookie);
        }
        true
    }

    fn advance(&mut self, now: Duration) {
        let slot = slot_of(now);
        if slot <= self.slot {
            return;
        }
        let mut hmac = keyed(&self.key);
        hmac.update(b"punctual udp cookie key");
        hmac.update(&slot.to_be_bytes());
        let old = std::mem::replace(&mut self.key, hmac.finalize().into_bytes().into());
        let adjacent = slot == self.slot + 1;
        self.last_key = adjacent.then_some(old);
        self.last_used = std::mem::take(&mut self.used);
        if !adjacent {
            self.last_used.clear();
        }
        self.slot = slot;
    }
}

fn slot_of(now: Duration) -> u64 {
    now.as_secs() / SLOT.as_secs()
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn mac(key: &[u8; 32], slot: u64, address: SocketAddr, nonce: &[u8; 8]) -> Hmac<Sha256> {
    let mut mac = keyed(key);
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    mac.update(&ip.octets());
    mac.update(&address.port().to_be_bytes());
    mac.update(nonce);
    mac.update(&slot.to_be_bytes());
    mac
}

fn cookie(key: &[u8; 32], slot: u64, address: SocketAddr, nonce: &[u8; 8]) -> Cookie {
    let mut bytes = [0; Cookie::LEN];
    bytes[0] = slot as u8;
    let mac = mac(key, slot, address, nonce).finalize().into_bytes();
    bytes[1..].copy_from_slice(&mac[..MAC]);
    Cookie(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONCE: [u8; 8] = *b"a nonce!";

    fn address(n: u8) -> SocketAddr {
        ([10, 0, 0, n], 1000).into()
    }

    proptest! {
        /// Good at its address for one slot at least and two at most.
        #[test]
        fn a_cookie_has_its_time(start in 0..10_000u64, made in 0..100_000u64, later in 0..60_000u64) {
            let start = Duration::from_secs(start);
            let made = start + Duration::from_millis(made);
            let now = made + Duration::from_millis(later);
            let mut cookies = Cookies::new([7; 32], start);
            let cookie = cookies.make(address(1), &NONCE, made);
            let good = cookies.check(&cookie, address(1), &NONCE, now);
            if later < SLOT.as_millis() as u64 {
                prop_assert!(good);
            }
            if later >= COOKIE_LIFETIME.as_millis() as u64 {
                prop_assert!(!good);
            }
        }

        #[test]
        fn another_bit_another_address_another_nonce(bit in 0..8 * Cookie::LEN) {
            let now = Duration::from_secs(5);
            let mut cookies = Cookies::new([7; 32], now);
            let cookie = cookies.make(address(1), &NONCE, now);
            let mut forged = *cookie.as_bytes();
            forged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!cookies.check(&Cookie::from_bytes(forged), address(1), &NONCE, now));
            prop_assert!(!cookies.check(&cookie, address(2), &NONCE, now));
            prop_assert!(!cookies.check(&cookie, address(1), b"no nonce", now));
            prop_assert!(cookies.check(&cookie, address(1), &NONCE, now));
        }
    }

    #[test]
    fn a_mapped_address_is_the_same_address() {
        let now = Duration::ZERO;
        let mut cookies = Cookies::new([1; 32], now);
        let mapped = "[::ffff:10.0.0.1]:1000".parse().unwrap();
        let cookie = cookies.make(mapped, &NONCE, now);
        assert!(cookies.check(&cookie, address(1), &NONCE, now));
    }

    #[test]
    fn a_cookie_is_spent_once() {
        let mut cookies = Cookies::new([1; 32], Duration::ZERO);
        let cookie = cookies.make(address(1), &NONCE, Duration::from_secs(9));
        assert!(cookies.spend(&cookie));
        assert!(!cookies.spend(&cookie));
        cookies.make(address(2), &NONCE, Duration::from_secs(11));
        assert!(!cookies.spend(&cookie), "remembered as long as it is good");
    }

    #[test]
    fn a_clock_that_steps_back_does_no_harm() {
        let mut cookies = Cookies::new([1; 32], Duration::from_secs(100));
        let cookie = cookies.make(address(1), &NONCE, Duration::from_secs(50));
        assert!(cookies.check(&cookie, address(1), &NONCE, Duration::from_secs(100)));
    }
}
