//! Clients, a broker, and a manager that has decided on the clients' requests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use punctual_broker::{Admission, Config, ConnMeta, Enqueue, LaneLimits, Nanos, Policing};
use punctual_codec::packet::RetainHandling;
use punctual_codec::{
    Connect, Properties, PropertyBuf, Publish, QoS, Subscribe, SubscribeOptions, Version,
};
use punctual_manager::{Service, Settings, Star};
use punctual_model::Rng;
use punctual_sim::{LinkId, LinkProfile, World};

use crate::desk::{Office, Shared, decide};

const MS: u64 = 1_000_000;

/// A client that publishes on one topic. Bytes on one connection do not overtake each other, so
/// flows of different priorities have a connection each.
pub(crate) struct Publisher {
    pub(crate) id: String,
    pub(crate) link: LinkId,
    pub(crate) topic: String,
    stated: Vec<(&'static str, String)>,
    pub(crate) size: usize,
}

impl Publisher {
    /// A PUBLISH packet whose payload begins with `beginning`.
    pub(crate) fn packet(&self, qos: QoS, beginning: &[u8]) -> Vec<u8> {
        let mut properties = PropertyBuf::new();
        for (key, value) in &self.stated {
            properties.push_user(key, value).unwrap();
        }
        let mut payload = beginning.to_vec();
        payload.resize(self.size, 0);
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic: &self.topic,
            packet_id: u16::from(qos != QoS::AtMostOnce),
            properties: properties.as_properties(),
            payload: &payload,
        };
        let mut bytes = Vec::new();
        publish.encode(Version::V5, &mut bytes).unwrap();
        bytes
    }
}

pub(crate) struct Plant {
    pub(crate) world: World,
    pub(crate) office: Shared,
    pub(crate) service: Service,
    pub(crate) publishers: Vec<Publisher>,
    /// Client identifier and connection of each receiver.
    pub(crate) receivers: Vec<(String, LinkId)>,
}

impl Plant {
    /// Creates the plant of a seed, after all requests were answered.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let service = Service {
            receive_ns: *rng.pick(&[5_000, 20_000, 100_000]),
            send_ns: *rng.pick(&[3_000, 10_000, 50_000]),
            blocking_ns: *rng.pick(&[0, 10_000, 200_000]),
        };
        let mbit = |n: u64| n * 1_000_000;
        let settings = Settings {
            star: Star {
                access_rate: mbit(*rng.pick(&[10, 100])),
                broker_rate: mbit(*rng.pick(&[100, 1000])),
                switch_delay_ns: *rng.pick(&[0, 10_000, 50_000]),
            },
            service,
            // Each host has several of the many clients without a user name.
            max_user_load: 100,
            ..Settings::default()
        };
        let office = Office::open(settings, 1);
        let enqueue = *rng.pick(&[Enqueue::PerReceiver, Enqueue::Shared]);
        let config = Config {
            admission: Some(Admission {
                refuse: false,
                policing: *rng.pick(&[Policing::Drop, Policing::Demote]),
                max_flows_per_session: 1,
                absent_after: Nanos::from_secs(3600),
                conditions: Default::default(),
            }),
            lanes: LaneLimits {
                enqueue,
                ..LaneLimits::default()
            },
            ..Config::default()
        };
        let mut world = World::new(config, 1, rng.any());
        let desk = office.clone();
        world.set_desk(move |shard, request| decide(&desk, shard, request));
        let mut plant = Self {
            world,
            office,
            service,
            publishers: Vec::new(),
            receivers: Vec::new(),
        };
        plant.settle();
        let topics = rng.within(4..=9);
        for number in 0..rng.within(1..=3) {
            plant.receiver(number, topics, &mut rng);
        }
        for number in 0..topics {
            plant.publisher(number, &mut rng);
        }
        plant
    }

    /// Waits until all packets in flight have arrived, and all requests are decided.
    fn settle(&mut self) {
        let until = self.world.now() + Nanos(50 * MS);
        self.world.run_until(until);
    }

    fn connect(&mut self, id: &str, rng: &mut Rng) -> LinkId {
        let host = Ipv4Addr::new(10, 0, 0, rng.within(1..=5) as u8);
        let meta = ConnMeta {
            peer: Some(SocketAddr::new(IpAddr::from(host), 1)),
            allow_anonymous: true,
            nonce: u128::from(rng.any()).to_be_bytes(),
            ..ConnMeta::default()
        };
        let link = self.world.connect_with(0, LinkProfile::default(), meta);
        let connect = Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 0,
            client_id: id,
            will: None,
            username: None,
            password: None,
            properties: Properties::EMPTY,
        };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes).unwrap();
        self.world.write(link, &bytes);
        self.settle();
        link
    }

    /// Creates a client that subscribes to all topics, or to some.
    fn receiver(&mut self, number: u64, topics: u64, rng: &mut Rng) {
        let id = format!("r{number}");
        let link = self.connect(&id, rng);
        let filters: Vec<String> = match number == 0 || rng.chance(40) {
            true => vec!["t/#".into()],
            false => (0..topics)
                .filter(|_| rng.chance(50))
                .map(|topic| format!("t/{topic}"))
                .collect(),
        };
        for filter in filters {
            let options = SubscribeOptions {
                qos: QoS::AtMostOnce,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::Send,
            };
            let mut bytes = Vec::new();
            let filters = [(filter.as_str(), options)];
            Subscribe::put(1, Properties::EMPTY, &filters, Version::V5, &mut bytes).unwrap();
            self.world.write(link, &bytes);
            self.settle();
        }
        self.receivers.push((id, link));
    }

    /// Creates a client that requests admission with its first message, and later sends as declared
    /// there.
    fn publisher(&mut self, number: u64, rng: &mut Rng) {
        let id = format!("p{number}");
        let link = self.connect(&id, rng);
        let period = rng.within(2..=20) * MS;
        let jitter = match rng.below(3) {
            0 => 0,
            1 => rng.below(period / 4),
            _ => rng.below(2 * period),
        };
        let deadline = period / 10 * rng.within(5..=30) + jitter;
        let size = *rng.pick(&[16, 40, 200, 1_000, 3_000]);
        let nanos = |nanos: u64| format!("{nanos}ns");
        let mut stated = vec![
            ("rt-deadline", nanos(deadline)),
            ("rt-period", nanos(period)),
            ("rt-jitter", nanos(jitter)),
            ("rt-size", size.to_string()),
        ];
        if rng.chance(50) {
            stated.push(("rt-priority", rng.below(8).to_string()));
        }
        let publisher = Publisher {
            id,
            link,
            topic: format!("t/{number}"),
            stated,
            size,
        };
        let packet = publisher.packet(QoS::AtLeastOnce, &[]);
        self.world.write(link, &packet);
        self.settle();
        self.publishers.push(publisher);
    }
}
