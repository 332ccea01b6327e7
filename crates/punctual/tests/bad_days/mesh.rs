//! The disks of all brokers of a mesh stand still: what is not to be stored, and what is urgent, goes on
//! between them, also by a way that is new, and nothing acknowledged is lost.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use punctual_client::{Client, Event, Message, Scheme};
use punctual_codec::{PropertyBuf, QoS, SubscribeOptions};

use crate::broker::eventually;
use crate::client;
use crate::grip::{Disk, Grip};
use crate::load::{Mortal, client as lasting};
use crate::secret;

/// Of each of two publishers: together more than may be under way between two brokers.
const BULK: usize = 800;
/// What a client waits for before it looks again.
const LOOK: Duration = Duration::from_millis(20);

fn start(data: &Path, id: &str, neighbours: &[&Mortal]) -> Mortal {
    let addresses = neighbours
        .iter()
        .map(|it| format!("\"127.0.0.1:{}\"", it.port));
    let addresses: Vec<String> = addresses.collect();
    let gamma = if id == "a" { 1_000_000 } else { 0 };
    let config = format!(
        "[mesh]\nenabled = true\nid = \"{id}\"\nsecret_file = {:?}\nhello = \"200ms\"\ngamma = {gamma}\n\
         heal = \"10m\"\njoin_wait = \"0s\"\nneighbours = [{}]\n",
        secret::FILE,
        addresses.join(", ")
    );
    let broker = Mortal::start_with(&data.join(id), &config);
    broker.wait();
    broker
}

/// Waits until a broker sees so many, itself included.
fn sees(broker: &Mortal, brokers: usize) {
    eventually("the mesh is whole", || {
        let (_, status) = broker.get("/api/v1/mesh");
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let is_whole = status["brokers"].as_array()?.len() == brokers;
        (is_whole && status["attached"] == true).then_some(())
    });
}

/// One with a session that survives, once it is connected.
fn connected(broker: &Mortal, name: &str) -> Client {
    let mut client = lasting(broker.port, name.into());
    until(&mut client, |event| matches!(event, Event::Connected(_)));
    client
}

/// Waits for an event.
fn until(client: &mut Client, wanted: impl Fn(&Event) -> bool) {
    eventually("an event", || {
        let event = client.next(Some(LOOK)).unwrap();
        event.is_some_and(|event| wanted(&event)).then_some(())
    });
}

fn subscribe(client: &mut Client, filter: &str) {
    let options = SubscribeOptions {
        qos: QoS::AtLeastOnce,
        ..SubscribeOptions::default()
    };
    client
        .subscribe(&[(filter, options)], &PropertyBuf::new())
        .unwrap();
}

/// Holds the store of a broker when it commits next, which one of its clients causes. `None` where
/// that is not allowed.
fn stand_still(broker: &Mortal, mut client: Client) -> Option<Grip> {
    let is_held = AtomicBool::new(false);
    let is_held = &is_held;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut number = 0;
            while !is_held.load(Ordering::Relaxed) {
                subscribe(&mut client, &format!("restless/{number}"));
                let _ = client.next(Some(LOOK)).unwrap();
                number += 1;
            }
        });
        let grip = Grip::take(broker.process(), "store", Disk::StandsStill);
        is_held.store(true, Ordering::Relaxed);
        grip
    })
}

/// A publisher and a subscriber at two brokers.
struct Talk {
    publisher: Client,
    subscriber: Client,
    number: u32,
}

impl Talk {
    fn new(from: &Mortal, to: &Mortal) -> Self {
        let name = format!("{}-{}", from.port, to.port);
        let connect = |port, role| client::client(Scheme::Tcp, port, &format!("{name}-{role}"));
        let mut subscriber = connect(to.port, "subscriber");
        subscribe(&mut subscriber, "talk/#");
        until(&mut subscriber, |event| {
            matches!(event, Event::Subscribed { .. })
        });
        Self {
            publisher: connect(from.port, "publisher"),
            subscriber,
            number: 0,
        }
    }

    /// Messages go on: each kind is published until one comes. One that is on its way when its path
    /// changes is lost if it has QoS 0, and waits for the disks if it has QoS 1.
    fn goes_on(&mut self) {
        for _ in 0..20 {
            for (qos, urgent) in [
                (QoS::AtMostOnce, false),
                (QoS::AtMostOnce, true),
                (QoS::AtLeastOnce, true),
            ] {
                eventually("a message comes", || {
                    let number = self.publish(qos, urgent);
                    self.comes(number)
                });
            }
        }
    }

    fn publish(&mut self, qos: QoS, urgent: bool) -> u32 {
        self.number += 1;
        let payload = self.number.to_string();
        let mut message = Message::new("talk/x", payload.as_bytes()).qos(qos);
        if urgent {
            message.properties.push_user("priority", "0").unwrap();
        }
        self.publisher.publish(&message).unwrap();
        self.number
    }

    /// Whether that one comes, or a later one.
    fn comes(&mut self, number: u32) -> Option<()> {
        while let Some(event) = self.subscriber.next(Some(LOOK)).unwrap() {
            if let Event::Message(delivery) = event {
                let got = String::from_utf8(delivery.message.payload.to_vec()).unwrap();
                if got.parse::<u32>().unwrap() >= number {
                    return Some(());
                }
            }
        }
        None
    }
}

/// A publisher with QoS 1, and what it was told is safe.
struct Bulk {
    name: &'static str,
    publisher: Client,
    safe: usize,
}

impl Bulk {
    fn new(broker: &Mortal, name: &'static str) -> Self {
        Self {
            name,
            publisher: connected(broker, name),
            safe: 0,
        }
    }

    fn publish(&mut self) {
        for number in 0..BULK {
            let payload = format!("{} {number}", self.name);
            let message = Message::new("bulk/x", payload).qos(QoS::AtLeastOnce);
            self.publisher.publish(&message).unwrap();
        }
    }

    fn look(&mut self) {
        // An error is the end of a connection: it connects again.
        while let Ok(Some(event)) = self.publisher.next(Some(LOOK)) {
            if let Event::Published { reason, .. } = event {
                assert!(!reason.is_error(), "{reason}");
                self.safe += 1;
            }
        }
    }
}

#[test]
fn disks_stand_still_while_a_mesh_heals() {
    let data = tempfile::tempdir().unwrap();
    let mut a = start(data.path(), "a", &[]);
    let mut b = start(data.path(), "b", &[&a]);
    let c = start(data.path(), "c", &[&b]);
    let d = start(data.path(), "d", &[&c, &a]);
    for broker in [&a, &b, &c, &d] {
        sees(broker, 4);
    }
    let mut subscriber = connected(&d, "subscriber");
    subscribe(&mut subscriber, "bulk/#");
    until(&mut subscriber, |event| {
        matches!(event, Event::Subscribed { .. })
    });
    let mut talk = Talk::new(&b, &d);
    talk.goes_on();

    let mut bulk = ["one", "other"].map(|name| Bulk::new(&b, name));
    let brokers = [&a, &b, &c, &d];
    let restless = brokers.map(|it| connected(it, &format!("restless-{}", it.port)));
    let mut grips = Vec::new();
    for (broker, client) in brokers.into_iter().zip(restless) {
        let Some(grip) = stand_still(broker, client) else {
            return;
        };
        grips.push(grip);
    }
    talk.goes_on();
    // More than is acknowledged between two brokers, since nothing is.
    bulk.iter_mut().for_each(Bulk::publish);
    talk.goes_on();

    a.kill();
    drop(grips.remove(0));
    talk.goes_on();
    for publisher in &mut bulk {
        publisher.look();
        assert_eq!(publisher.safe, 0, "nothing can be committed");
    }

    // It comes back, and its neighbours' disks still stand still.
    a.start();
    a.wait();
    Talk::new(&b, &a).goes_on();
    Talk::new(&a, &d).goes_on();
    talk.goes_on();

    b.kill();
    drop(grips);
    b.start();
    b.wait();
    let all = bulk.iter().map(|it| it.name);
    let all = all.flat_map(|name| (0..BULK).map(move |number| format!("{name} {number}")));
    let mut missing: HashSet<String> = all.collect();
    eventually("all is acknowledged and has come", || {
        bulk.iter_mut().for_each(Bulk::look);
        while let Some(event) = subscriber.next(Some(LOOK)).unwrap() {
            if let Event::Message(delivery) = event {
                missing.remove(std::str::from_utf8(&delivery.message.payload).unwrap());
            }
        }
        let is_safe = bulk.iter().all(|publisher| publisher.safe == BULK);
        (is_safe && missing.is_empty()).then_some(())
    });
}
