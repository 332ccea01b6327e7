//! What each transport costs: round trips of one message at a time, and the
//! processor time that the broker spends on them. Ratios to TCP in the same run
//! mean something on any machine; see docs/quic.md.
//!
//! ```sh
//! cargo test --release -p punctual --test quic figures -- --ignored --nocapture
//! ```

use std::time::{Duration, Instant};

use punctual_client::{Client, Endpoint, Event, Message, QoS, Scheme};

use crate::broker::{Broker, connect, subscribe};

const ROUND_TRIPS: usize = 5000;
const ROUNDS: usize = 5;

/// A transport, and its figures of each round.
struct Measurement {
    name: &'static str,
    client: Client,
    median: Vec<f64>,
    p99: Vec<f64>,
    broker: Vec<f64>,
    lost: usize,
}

#[test]
#[ignore = "a measurement, not a test"]
fn figures() {
    let broker = Broker::start(
        "",
        "[[listener]]\naddress = \"udp://127.0.0.1:0\"\n\
         [[listener]]\naddress = \"tls://127.0.0.1:0\"\n\
         certificate = \"DIR/server.pem\"\nkey = \"DIR/server.key\"\n",
    );
    let way = |name, scheme, datagrams| {
        let mut options = broker.options(name);
        options.endpoint = Endpoint {
            tls: options.endpoint.tls,
            port: broker.port(scheme),
            datagrams,
            ..Endpoint::new(scheme, "127.0.0.1")
        };
        let mut client = connect(options).unwrap();
        subscribe(&mut client, name, QoS::AtMostOnce);
        Measurement {
            name,
            client,
            median: Vec::new(),
            p99: Vec::new(),
            broker: Vec::new(),
            lost: 0,
        }
    };
    let mut ways = [
        way("TCP", Scheme::Tcp, false),
        way("TLS", Scheme::Tls, false),
        way("plain UDP", Scheme::Udp, false),
        way("QUIC stream", Scheme::Quic, false),
        way("QUIC datagrams", Scheme::Quic, true),
    ];
    // The first round warms up.
    for round in 0..=ROUNDS {
        for way in &mut ways {
            let measured = measure(way, &broker);
            if round > 0 {
                way.median.push(measured.0);
                way.p99.push(measured.1);
                way.broker.push(measured.2);
            }
        }
    }
    let tcp = (middle(&mut ways[0].median), middle(&mut ways[0].broker));
    println!("\n| transport | round trip, p50 | p99 | to TCP | broker's CPU | to TCP | lost |");
    println!("|---|---|---|---|---|---|---|");
    for way in &mut ways {
        let (median, broker) = (middle(&mut way.median), middle(&mut way.broker));
        println!(
            "| {} | {median:.1} µs | {:.1} µs | {:.2} | {broker:.1} µs | {:.2} | {} |",
            way.name,
            middle(&mut way.p99),
            median / tcp.0,
            broker / tcp.1,
            way.lost
        );
    }
}

/// Median and 99th percentile of round trips, and the broker's processor time
/// for one, all in µs.
fn measure(way: &mut Measurement, broker: &Broker) -> (f64, f64, f64) {
    let message = Message::new(way.name, vec![0; 64]);
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    let before = broker.processor_time();
    while times.len() < ROUND_TRIPS {
        let start = Instant::now();
        way.client.publish(&message).unwrap();
        loop {
            match way.client.next(Some(Duration::from_secs(1))).unwrap() {
                Some(Event::Message(_)) => {
                    times.push(start.elapsed().as_secs_f64() * 1e6);
                    break;
                }
                Some(_) => {}
                None => {
                    way.lost += 1;
                    break;
                }
            }
        }
    }
    let spent = broker.processor_time() - before;
    times.sort_by(f64::total_cmp);
    let spent = spent.as_secs_f64() * 1e6 / ROUND_TRIPS as f64;
    (times[ROUND_TRIPS / 2], times[ROUND_TRIPS * 99 / 100], spent)
}

/// How fast large messages reach a subscriber, and what an idle connection
/// costs the broker in memory.
#[test]
#[ignore = "a measurement, not a test"]
fn figures_of_bulk_and_memory() {
    let more = "[[listener]]\naddress = \"tls://127.0.0.1:0\"\n\
                certificate = \"DIR/server.pem\"\nkey = \"DIR/server.key\"\n\
                [queue]\nsend_buffer = \"64MiB\"\n";
    println!("\n| transport | MB/s to a subscriber | idle connection |");
    println!("|---|---|---|");
    for (name, scheme) in [
        ("TCP", Scheme::Tcp),
        ("TLS", Scheme::Tls),
        ("QUIC stream", Scheme::Quic),
    ] {
        // What one has given back another would not be seen to take.
        let broker = Broker::start("", more);
        let open = |id: &str| {
            let mut options = broker.options(id);
            options.endpoint = Endpoint {
                tls: options.endpoint.tls,
                port: broker.port(scheme),
                ..Endpoint::new(scheme, "127.0.0.1")
            };
            options.config.keep_alive = 0;
            connect(options).unwrap()
        };
        let clients = 500;
        let before = broker.memory();
        let idle: Vec<_> = (0..clients).map(|n| open(&format!("idle-{n}"))).collect();
        let each = (broker.memory() - before) as f64 / 1024.0 / f64::from(clients);
        drop(idle);
        let mut rates = Vec::new();
        for _ in 0..ROUNDS {
            let mut subscriber = open(name);
            subscribe(&mut subscriber, "bulk", QoS::AtMostOnce);
            let mut publisher = broker.tcp_client("publisher");
            let (count, size) = (500, 64 << 10);
            let bulk = Message::new("bulk", vec![0; size]);
            let start = Instant::now();
            let publishing = std::thread::spawn(move || {
                for _ in 0..count {
                    while publisher.publish(&bulk).is_err() {
                        publisher.next(None).unwrap();
                    }
                }
                crate::broker::publish(&mut publisher, "end", b"", QoS::AtLeastOnce);
            });
            for _ in 0..count {
                crate::broker::message(&mut subscriber);
            }
            rates.push((count * size) as f64 / 1e6 / start.elapsed().as_secs_f64());
            publishing.join().unwrap();
        }
        println!("| {name} | {:.0} | {each:.1} KiB |", middle(&mut rates));
    }
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
