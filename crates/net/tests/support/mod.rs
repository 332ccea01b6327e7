//! A server on free ports of the loopback interface.

use punctual_broker::{Config, Nanos};
use punctual_net::layer::LayerConfig;
use punctual_net::marking::Marking;
use punctual_net::{
    AcceptPolicy, Anonymous, Identity, ListenerOptions, ListenerPolicy, ServerOptions, TcpOptions,
    UdpOptions,
};

/// Everything as it comes, with a UDP and a TCP listener, in this order.
pub(crate) fn options(udp: UdpOptions) -> ServerOptions {
    let listener = |udp| ListenerOptions {
        address: "127.0.0.1:0".parse().unwrap(),
        policy: ListenerPolicy {
            layer: LayerConfig::default(),
            identity: Identity::None,
            anonymous: Anonymous::Local,
            checks_passwords: false,
            unproven: std::sync::Arc::default(),
            refuse: None,
            admits: punctual_broker::Admits::All,
            max_connections: usize::MAX,
        },
        udp,
        quic: None,
    };
    ServerOptions {
        listeners: vec![listener(Some(udp)), listener(None)],
        broker: Config::default(),
        shards: 1,
        realtime: None,
        tcp: TcpOptions::default(),
        marking: Marking::NONE,
        accept: AcceptPolicy {
            max_connections: 1000,
            rate: 0,
            max_drift: Nanos::MAX,
        },
        max_receive_bytes: 1 << 20,
        slice: Nanos(100_000),
        shutdown_timeout: Nanos::from_secs(1),
        authentication_threads: 1,
        authenticator: None,
        admission: None,
        store: None,
        federation: None,
        access: None,
    }
}
