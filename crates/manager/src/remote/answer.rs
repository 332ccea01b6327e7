//! Requests of shards and proxies, and their replies when the network has decided.

use std::sync::Arc;

use punctual_broker::{AdmissionRequest, Ask, Asker, ConnId};
use punctual_model::srt::{Peer, Protocol};
use punctual_model::wire::Transport;

use super::{Endpoints, RemoteManager};
use crate::client::Client;
use crate::decision::{Reply, Subscribed};
use crate::request::{Publication, Subscription};

/// A SUBSCRIBE that waits, and who is to be notified.
#[derive(Debug)]
pub(super) struct Waiting {
    from: u16,
    conn: ConnId,
    client: Client,
    filters: Vec<Box<str>>,
}

impl Waiting {
    fn reply(self, subscribed: Subscribed) -> (u16, Reply) {
        let Self {
            from,
            conn,
            client,
            filters,
        } = self;
        (from, Reply::subscription(conn, client, filters, subscribed))
    }
}

impl RemoteManager {
    /// Takes a question of `from`, a shard or a proxy. What can be answered is
    /// among the [replies](Self::take_replies); what becomes of a flow that the
    /// network is asked for, among the changes. The transport is that of the
    /// listener that the asker names.
    pub fn answer(&mut self, from: u16, request: AdmissionRequest, transport: Transport) {
        let AdmissionRequest { asker, ask } = request;
        let client = Client::asking(&asker, transport);
        let ends = ends(&asker, transport);
        match ask {
            Ask::Connected { conn } => {
                self.connected(&client, ends);
                self.replies.push((from, Reply::GoOn { conn }));
            }
            Ask::Absent => self.absent(&client.id, client.session),
            Ask::Ended => self.ended(&client.id, client.session),
            Ask::Unsubscribed { filters } => {
                self.unsubscribe(&client.id, client.session, &filters);
            }
            Ask::Publish {
                topic,
                requirements,
                payload,
                properties,
                qos,
            } => {
                let publication = Publication {
                    topic: &topic,
                    requirements,
                    payload,
                    properties,
                    quota: asker.quota.into(),
                };
                if let Some(decision) = self.publish(&client, ends, publication, qos) {
                    let reply = Reply::Flow {
                        client,
                        topic,
                        requirements,
                        decision,
                    };
                    self.replies.push((from, reply));
                }
            }
            Ask::Subscribe {
                conn,
                filters,
                requirements,
            } => {
                let subscriptions = filters.iter().map(|filter| Subscription {
                    filter: Arc::from(&**filter),
                    requirements,
                });
                let subscriptions: Vec<_> = subscriptions.collect();
                let result = self.subscribe(&client, ends, &subscriptions);
                let waiting = Waiting {
                    from,
                    conn,
                    client,
                    filters,
                };
                match result {
                    Ok(subscribed) => self.replies.push(waiting.reply(subscribed)),
                    Err(number) => {
                        self.waiting.insert(number, waiting);
                    }
                }
            }
        }
    }

    /// Answers for those who asked by [`answer`](Self::answer), with who asked. To
    /// be handed out after the changes.
    pub fn take_replies(&mut self) -> Vec<(u16, Reply)> {
        for (number, subscribed) in self.take_subscribed() {
            if let Some(waiting) = self.waiting.remove(&number) {
                self.replies.push(waiting.reply(subscribed));
            }
        }
        std::mem::take(&mut self.replies)
    }
}

/// The ends of an asker's connection, if both are known.
fn ends(asker: &Asker, transport: Transport) -> Option<Endpoints> {
    let protocol = match transport {
        Transport::Udp | Transport::Quic => Protocol::Udp,
        Transport::Tcp | Transport::Tls | Transport::WebSocket | Transport::SecureWebSocket => {
            Protocol::Tcp
        }
    };
    let peer = |address: std::net::SocketAddr| Peer {
        protocol,
        address: address.ip().to_canonical(),
        port: Some(address.port()),
    };
    Some(Endpoints {
        client: peer(asker.peer?),
        broker: peer(asker.local?),
    })
}
