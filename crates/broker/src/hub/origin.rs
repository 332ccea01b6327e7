//! The origin of a connection, in little memory: a broker has one for each connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::ConnMeta;
use crate::Credential;

/// The facts of a [`ConnMeta`].
#[derive(Debug)]
pub(crate) struct Origin {
    ends: Ends,
    /// `None` for most connections; so it takes one word.
    certified: Option<Box<Certified>>,
    /// The password by which the client was authenticated; before that, the credential of clients
    /// without authentication.
    proof: Option<Arc<Credential>>,
    pub(crate) nonce: [u8; 16],
    pub(crate) listener: u16,
    pub(crate) allow_anonymous: bool,
    pub(crate) refuse: Option<bool>,
}

/// The result of an authentication below MQTT.
#[derive(Debug, Default)]
struct Certified {
    identity: Option<Arc<str>>,
    /// The client certificate.
    credential: Option<Arc<Credential>>,
}

impl Certified {
    fn new(identity: Option<Arc<str>>, credential: Option<Arc<Credential>>) -> Option<Box<Self>> {
        let is_any = identity.is_some() || credential.is_some();
        is_any.then(|| {
            Box::new(Self {
                identity,
                credential,
            })
        })
    }
}

/// The addresses of the peer and of this machine.
#[derive(Debug)]
enum Ends {
    /// Both are IPv4 addresses: a quarter of the memory of any two.
    V4([(Ipv4Addr, u16); 2]),
    Any(Box<[Option<SocketAddr>; 2]>),
}

impl Ends {
    fn new(peer: Option<SocketAddr>, local: Option<SocketAddr>) -> Self {
        match (peer, local) {
            (Some(SocketAddr::V4(peer)), Some(SocketAddr::V4(local))) => {
                Self::V4([peer, local].map(|end| (*end.ip(), end.port())))
            }
            ends => Self::Any(Box::new(ends.into())),
        }
    }

    fn get(&self) -> [Option<SocketAddr>; 2] {
        match self {
            Self::V4(ends) => ends.map(|end| Some(end.into())),
            Self::Any(ends) => **ends,
        }
    }
}

impl Origin {
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        let [peer, _] = self.ends.get();
        peer
    }

    pub(crate) fn set_peer(&mut self, peer: Option<SocketAddr>) {
        self.ends = Ends::new(peer, self.local());
    }

    /// The user name that was authenticated below MQTT.
    pub(crate) fn identity(&self) -> Option<&Arc<str>> {
        self.certified.as_ref()?.identity.as_ref()
    }

    /// Sets the user name that was authenticated below MQTT.
    pub(crate) fn identify(&mut self, identity: Arc<str>) {
        self.certified.get_or_insert_default().identity = Some(identity);
    }

    /// Sets the certificate by which the client was authenticated.
    pub(crate) fn credit(&mut self, credential: Option<Arc<Credential>>) {
        let identity = self.certified.take().and_then(|it| it.identity);
        self.certified = Certified::new(identity, credential);
    }

    /// Sets the password by which the client was authenticated, too; `None` if it cannot be
    /// revoked.
    pub(crate) fn prove(&mut self, password: Option<Arc<Credential>>) {
        self.proof = password;
    }

    /// Whether a credential by which the client was authenticated is revoked, or the client was not
    /// authenticated and such clients are not accepted any more.
    pub(crate) fn is_revoked(&self) -> bool {
        let certificate = self.certified.iter().flat_map(|it| &it.credential);
        let mut all = certificate.chain(&self.proof);
        all.any(|credential| credential.is_revoked())
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        let [_, local] = self.ends.get();
        local
    }
}

impl From<ConnMeta> for Origin {
    fn from(meta: ConnMeta) -> Self {
        Self {
            ends: Ends::new(meta.peer, meta.local),
            certified: Certified::new(meta.identity, meta.credential),
            proof: meta.unproven,
            nonce: meta.nonce,
            listener: meta.listener,
            allow_anonymous: meta.allow_anonymous,
            refuse: meta.refuse,
        }
    }
}

impl From<Origin> for ConnMeta {
    fn from(origin: Origin) -> Self {
        let [peer, local] = origin.ends.get();
        let certified = origin.certified.map(|it| (it.identity, it.credential));
        let (identity, credential) = certified.unwrap_or_default();
        Self {
            peer,
            local,
            listener: origin.listener,
            allow_anonymous: origin.allow_anonymous,
            identity,
            credential,
            unproven: origin.proof,
            nonce: origin.nonce,
            refuse: origin.refuse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_they_were() {
        let addresses = [
            None,
            Some("192.0.2.1:1883"),
            Some("[2001:db8::1]:1883"),
            Some("[::ffff:192.0.2.1]:1883"),
            Some("[fe80::1%3]:1883"),
        ]
        .map(|address| address.map(|address| address.parse::<SocketAddr>().unwrap()));
        for peer in addresses {
            for local in addresses {
                let mut origin = Origin::from(ConnMeta {
                    peer,
                    local,
                    ..ConnMeta::default()
                });
                for peer in addresses {
                    origin.set_peer(peer);
                    assert_eq!((origin.peer(), origin.local()), (peer, local));
                }
                origin.set_peer(peer);
                let meta = ConnMeta::from(origin);
                assert_eq!((meta.peer, meta.local), (peer, local));
            }
        }
    }
}
