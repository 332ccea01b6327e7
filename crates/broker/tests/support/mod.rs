//! One shard and clients that talk to it.

use std::sync::Arc;

use punctual_broker::{Config, ConnId, ConnMeta, Directory, Flow, Nanos, Shard};
use punctual_codec::{
    Connect, PacketType, Properties, PropertyBuf, PropertyId, Publish, QoS, Split, Subscribe,
    SubscribeOptions, Version, split,
};
use punctual_model::Grant;

pub(crate) const NOW: Nanos = Nanos::from_secs(1);

/// What is granted to a flow of one message of at most 1000 bytes a second.
pub(crate) const GRANT: Grant = Grant {
    priority: 7,
    period_ns: 1_000_000_000,
    tolerance_ns: 0,
    bandwidth: None,
    max_payload: None,
    max_packet: 1000,
};

pub(crate) struct Rig {
    pub(crate) shard: Shard,
    pub(crate) directory: Arc<Directory>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(crate) fn with(mut config: Config) -> Self {
        config.sys_interval = None;
        config.limits.max_packet_size = 16 << 20;
        config.limits.max_subscriptions_per_session = 1_000_000;
        config.limits.max_subscriptions = 1_000_000;
        Self::of(&Directory::new(1), 0, config)
    }

    /// One shard of several.
    pub(crate) fn of(directory: &Arc<Directory>, index: u16, config: Config) -> Self {
        let shard = Shard::new(directory.clone(), index, Arc::new(config), NOW);
        Self {
            shard,
            directory: directory.clone(),
        }
    }

    pub(crate) fn client(&mut self, id: &str) -> ConnId {
        let client = self.connect(id, true, Properties::EMPTY);
        assert_eq!(self.kinds(client), [PacketType::ConnAck]);
        client
    }

    /// Connects a client whose session stays for an hour when its connection ends. It has not read
    /// CONNACK yet.
    pub(crate) fn client_that_stays(&mut self, id: &str) -> ConnId {
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::SessionExpiryInterval, 3600);
        self.connect(id, false, properties.as_properties())
    }

    fn connect(&mut self, id: &str, clean_start: bool, properties: Properties<'_>) -> ConnId {
        let meta = ConnMeta {
            allow_anonymous: true,
            ..ConnMeta::default()
        };
        let client = self.shard.open(meta, NOW);
        let connect = Connect {
            version: Version::V5,
            clean_start,
            keep_alive: 0,
            properties,
            client_id: id,
            will: None,
            username: None,
            password: None,
        };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).unwrap();
        self.send(client, &bytes);
        client
    }

    /// All of it is taken.
    pub(crate) fn send(&mut self, client: ConnId, bytes: &[u8]) -> Flow {
        let received = self.shard.receive(client, bytes, NOW);
        assert_eq!(received.consumed, bytes.len());
        received.flow
    }

    /// What a client is sent, as packets.
    pub(crate) fn read(&mut self, client: ConnId) -> Vec<(PacketType, Vec<u8>)> {
        let mut bytes = Vec::new();
        while self
            .shard
            .next_packets(client, 1 << 20, &mut bytes, NOW)
            .is_some()
        {}
        let (mut at, mut packets) = (0, Vec::new());
        while let Ok(Split::Frame(frame)) = split(&bytes[at..], 1 << 24) {
            at += frame.bytes.len();
            packets.push((frame.kind, frame.body.to_vec()));
        }
        packets
    }

    pub(crate) fn kinds(&mut self, client: ConnId) -> Vec<PacketType> {
        self.read(client)
            .into_iter()
            .map(|(kind, _)| kind)
            .collect()
    }

    pub(crate) fn subscribe(&mut self, client: ConnId, filters: &[String]) -> Flow {
        self.subscribe_with(client, filters, QoS::AtMostOnce)
    }

    pub(crate) fn subscribe_with(&mut self, client: ConnId, filters: &[String], qos: QoS) -> Flow {
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        let filters: Vec<_> = filters.iter().map(|filter| (&**filter, options)).collect();
        let mut bytes = Vec::new();
        Subscribe::put(7, Properties::EMPTY, &filters, Version::V5, &mut bytes).unwrap();
        self.send(client, &bytes)
    }

    pub(crate) fn publish(&mut self, client: ConnId, topic: &str, retain: bool) {
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain,
            topic,
            packet_id: 0,
            properties: Properties::EMPTY,
            payload: b"x",
        };
        let mut bytes = Vec::new();
        publish.encode(Version::V5, &mut bytes).unwrap();
        self.send(client, &bytes);
    }
}
