//! Connections that never say anything do not keep others out.

use std::sync::Arc;

use punctual_broker::{Config, ConnId, ConnMeta, Directory, Flow, Nanos, Output, Shard};

const CONNECT: &[u8] = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c";

fn open(shard: &mut Shard, now: Nanos) -> ConnId {
    let meta = ConnMeta {
        allow_anonymous: true,
        ..ConnMeta::default()
    };
    shard.open(meta, now)
}

fn closed(shard: &mut Shard) -> Vec<ConnId> {
    let mut outputs = Vec::new();
    shard.take_outputs(&mut outputs);
    let closed = outputs.into_iter().filter_map(|output| match output {
        Output::Close { conn, .. } => Some(conn),
        _ => None,
    });
    closed.collect()
}

#[test]
fn the_oldest_silent_connection_makes_room() {
    let mut config = Config::default();
    config.limits.max_half_open = 3;
    config.sys_interval = None;
    let now = Nanos::from_secs(1);
    let mut shard = Shard::new(Directory::new(1), 0, Arc::new(config), now);

    // One that connects does not count, and is not closed later.
    let client = open(&mut shard, now);
    let received = shard.receive(client, CONNECT, now);
    assert_eq!(received.consumed, CONNECT.len());
    assert_eq!(received.flow, Flow::Read);

    let silent: Vec<ConnId> = (0..3).map(|_| open(&mut shard, now)).collect();
    assert_eq!(closed(&mut shard), []);
    for oldest in silent {
        open(&mut shard, now);
        assert_eq!(closed(&mut shard), [oldest]);
    }
    assert_eq!(shard.connections(), 4);
    assert_eq!(shard.clients_connected(), 1);
}
