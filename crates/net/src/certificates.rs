//! Certificates by which clients were let in. When the files are read again, those that would not
//! be let in any more are revoked, and their connections end.
//!
//! Bounds: a certificate is here as long as a connection has it, and until a few more were added: there
//! are at most about twice as many as connections.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, Weak};

use punctual_broker::Credential;
use punctual_broker::lock::lock;
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest as _, Sha256};

use crate::policy::{ListenerPolicy, Policies};

/// Certificates that are looked at, for each that is added, whether a connection still has them.
const SWEPT: usize = 2;
/// Certificates that are taken out to be checked at a time.
const BATCH: usize = 64;

/// By listener and digest of the certificate.
type Key = (u16, [u8; 32]);

/// The client's certificate and the intermediate ones that it sent.
type Chain = Arc<[CertificateDer<'static>]>;

#[derive(Debug)]
struct Entry {
    chain: Chain,
    credential: Weak<Credential>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Certificates(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    held: BTreeMap<Key, Entry>,
    /// Where sweeping continues.
    swept: Option<Key>,
}

impl Table {
    fn add(&mut self, key: Key, chain: Chain) -> Arc<Credential> {
        self.sweep();
        let known = self.held.get(&key).and_then(|it| it.credential.upgrade());
        known.filter(|it| !it.is_revoked()).unwrap_or_else(|| {
            let credential = Arc::new(Credential::default());
            let held = Entry {
                chain,
                credential: Arc::downgrade(&credential),
            };
            self.held.insert(key, held);
            credential
        })
    }

    /// Forgets some that no connection has.
    fn sweep(&mut self) {
        for _ in 0..SWEPT {
            let next = self.after(self.swept).next();
            let next = next.map(|(key, held)| (*key, held.credential.strong_count() == 0));
            self.swept = next.map(|(key, _)| key);
            if let Some((key, true)) = next {
                self.held.remove(&key);
            }
        }
    }

    fn after(&self, key: Option<Key>) -> impl Iterator<Item = (&Key, &Entry)> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.held.range((from, Bound::Unbounded))
    }
}

impl Certificates {
    /// A client was let in under that policy with a certificate.
    pub(crate) fn hold(
        &self,
        listener: u16,
        chain: Vec<CertificateDer<'static>>,
        policy: &Arc<ListenerPolicy>,
        policies: &Policies,
    ) -> Option<Arc<Credential>> {
        let chain: Chain = chain.into();
        let digest = Sha256::digest(chain.first()?).into();
        let credential = lock(&self.0).add((listener, digest), chain.clone());
        // The files may have been read again since the handshake began: then nobody looks at it any
        // more unless it is here already.
        let current = policies.of(listener);
        if !Arc::ptr_eq(&current, policy) && !is_let_in(&current, &chain) {
            credential.revoke();
        }
        Some(credential)
    }

    /// Revokes the certificates that the current policies of their listeners reject. Verifying all
    /// signatures may take long: call it on no thread that serves clients.
    pub(crate) fn check(&self, policies: &Policies) {
        let mut last = None;
        loop {
            let known = lock(&self.0);
            let some = known.after(last).take(BATCH);
            let some: Vec<(Key, Chain, Weak<Credential>)> = some
                .map(|(key, held)| (*key, held.chain.clone(), held.credential.clone()))
                .collect();
            drop(known);
            let Some((key, ..)) = some.last() else {
                return;
            };
            last = Some(*key);
            for ((listener, _), chain, credential) in some {
                if let Some(credential) = credential.upgrade()
                    && !is_let_in(&policies.of(listener), &chain)
                {
                    credential.revoke();
                }
            }
        }
    }
}

fn is_let_in(policy: &ListenerPolicy, chain: &[CertificateDer<'_>]) -> bool {
    let tls = policy.layer.tls.as_ref();
    tls.is_some_and(|tls| tls.lets_in(chain, UnixTime::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_forgotten_when_their_connections_are() {
        let mut known = Table::default();
        let key = |n: u32| {
            let mut digest = [0; 32];
            digest[..4].copy_from_slice(&n.to_be_bytes());
            (0, digest)
        };
        let chain = || Chain::from([]);
        let live: Vec<_> = (0..10).map(|n| known.add(key(n), chain())).collect();
        assert!(Arc::ptr_eq(&known.add(key(3), chain()), &live[3]));
        for n in 10..1000 {
            drop(known.add(key(n), chain()));
        }
        assert!(
            known.held.len() <= 2 * live.len() + 2 * SWEPT,
            "{}",
            known.held.len()
        );
        assert!((0..10).all(|n| known.held.contains_key(&key(n))));
        // After a revocation the same certificate gets a new credential, which is not revoked.
        live[3].revoke();
        assert!(!known.add(key(3), chain()).is_revoked());
    }
}
