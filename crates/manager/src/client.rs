//! A client, as whoever asks for admission describes it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use punctual_broker::Asker;
use punctual_model::wire::{Carriage, Transport};

/// A client as the broker knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Client identifier.
    pub id: Arc<str>,
    /// Number of its session, never used again; 0 for one that is expected
    /// back after a restart.
    pub session: u64,
    /// User name.
    pub user: Option<Arc<str>>,
    /// Whether that is more than a claim.
    pub is_proven: bool,
    /// Address that it connects from.
    pub address: Option<IpAddr>,
    /// What carries its packets.
    pub transport: Transport,
}

impl Client {
    /// How its packets travel in frames with a payload of `mtu` bytes.
    pub(crate) fn carriage(&self, mtu: u32) -> Carriage {
        Carriage {
            transport: self.transport,
            ipv6: self
                .address
                .is_some_and(|address| address.to_canonical().is_ipv6()),
            mtu,
        }
    }

    pub(crate) fn asking(asker: &Asker, transport: Transport) -> Self {
        Self {
            id: asker.client_id.clone(),
            session: asker.session,
            user: asker.username.clone(),
            is_proven: asker.is_proven,
            address: asker.peer.as_ref().map(SocketAddr::ip),
            transport,
        }
    }
}
