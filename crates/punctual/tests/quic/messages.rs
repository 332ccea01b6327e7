//! Messages by stream and by datagram.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use punctual_client::{Endpoint, Event, Message, QoS, RealTimeProperties as _, Scheme};

use crate::broker::{Broker, PUNCTUAL, message, next, publish, subscribe};

const QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

#[test]
fn every_qos_goes_by_stream_and_by_datagram_and_to_tcp() {
    let broker = Broker::start("", "");
    let mut clients = [
        broker.client("stream"),
        broker.datagram_client("datagram"),
        broker.tcp_client("tcp"),
    ];
    for client in &mut clients {
        subscribe(client, "t/#", QoS::ExactlyOnce);
    }
    for publisher in 0..clients.len() {
        for qos in QOS {
            let payload = format!("{publisher} {qos:?}");
            let topic = format!("t/{publisher}");
            let sent = Message::new(&*topic, payload.as_bytes()).qos(qos);
            clients[publisher].publish(&sent).unwrap();
            for client in &mut clients {
                let got = message(client).message;
                assert_eq!((got.topic, got.qos), (topic.clone(), qos));
                assert_eq!(got.payload, payload.as_bytes());
            }
        }
    }
    // One by the client that asked for datagrams, three to it.
    assert_eq!(broker.metric("punctual_quic_messages_received_total "), 1);
    assert_eq!(broker.metric("punctual_quic_messages_sent_total "), 3);
    assert_eq!(broker.connections(), 2);
}

#[test]
fn what_is_larger_than_a_packet_goes_by_the_stream() {
    let broker = Broker::start("", "");
    let mut subscriber = broker.datagram_client("s");
    subscribe(&mut subscriber, "t", QoS::AtMostOnce);
    let mut publisher = broker.datagram_client("p");
    for size in [10, 1000, 1500, 70_000, 5 << 20, 10] {
        let payload: Vec<u8> = (0..size).map(|n: u32| n as u8).collect();
        publish(&mut publisher, "t", &payload, QoS::AtMostOnce);
        // Larger and smaller ones go different ways, so one after the other.
        let got = loop {
            let _ = publisher.next(Some(Duration::from_millis(1))).unwrap();
            let event = subscriber.next(Some(Duration::from_millis(1))).unwrap();
            if let Some(Event::Message(got)) = event {
                break got;
            }
        };
        assert_eq!(got.message.payload, payload, "{size}");
    }
    assert!(broker.metric("punctual_quic_messages_sent_total ") >= 3);
}

#[test]
fn many_messages_in_order() {
    let broker = Broker::start("", "");
    let mut subscriber = broker.client("s");
    subscribe(&mut subscriber, "t", QoS::AtLeastOnce);
    let publisher = std::thread::spawn({
        let mut client = broker.client("p");
        move || {
            for n in 0..20_000_u32 {
                let sent = Message::new("t", n.to_be_bytes().to_vec()).qos(QoS::AtLeastOnce);
                while client.publish(&sent).is_err() {
                    next(&mut client);
                }
            }
            while client.unfinished() > 0 {
                next(&mut client);
            }
        }
    });
    for n in 0..20_000_u32 {
        assert_eq!(message(&mut subscriber).message.payload, n.to_be_bytes());
    }
    publisher.join().unwrap();
}

#[test]
fn topic_aliases_stay_on_the_stream() {
    use punctual_client::{PropertyBuf, PropertyId};
    let broker = Broker::start("", "");
    let mut options = broker.options("s");
    options.endpoint.datagrams = true;
    options.config.properties = {
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::TopicAliasMaximum, 10);
        properties
    };
    let mut subscriber = crate::broker::connect(options).unwrap();
    subscribe(&mut subscriber, "t/#", QoS::AtMostOnce);
    let mut publisher = broker.datagram_client("p");
    for n in 0..10_u8 {
        let mut sent = Message::new("t/long", vec![n]);
        sent.properties.push_number(PropertyId::TopicAlias, 1);
        publisher.publish(&sent).unwrap();
    }
    for n in 0..10_u8 {
        let got = message(&mut subscriber).message;
        assert_eq!((&*got.topic, &got.payload[..]), ("t/long", &[n][..]));
    }
    assert_eq!(broker.metric("punctual_quic_messages_received_total "), 0);
    assert_eq!(broker.metric("punctual_quic_messages_sent_total "), 0);
}

/// A subscriber that does not read has more waiting for it than QUIC takes;
/// what is urgent comes before the end of it.
#[test]
fn what_is_urgent_overtakes_what_waits() {
    let more = "[egress]\nrules = [\"alarm/#: priority=0\"]\n\
                [queue]\nsend_buffer = \"64MiB\"\n";
    let broker = Broker::start("", more);
    let mut subscriber = broker.client("s");
    subscribe(&mut subscriber, "#", QoS::AtMostOnce);
    let mut publisher = broker.tcp_client("p");
    let bulk = vec![b'.'; 64 << 10];
    let count = 300;
    for _ in 0..count {
        let sent = Message::new("log", bulk.clone());
        while publisher.publish(&sent).is_err() {
            next(&mut publisher);
        }
    }
    publish(&mut publisher, "mark", b"", QoS::AtLeastOnce);
    publish(&mut publisher, "alarm/1", b"now", QoS::AtLeastOnce);
    let mut before = 0;
    while message(&mut subscriber).message.topic != "alarm/1" {
        before += 1;
    }
    // The client takes 1.25 MB before it reads: 20 of these. What QUIC was handed
    // beyond that is less than one.
    assert!(before <= 22, "{before} bulk messages came before");
}

#[test]
fn priorities_travel_unchanged() {
    let broker = Broker::start("", "");
    let mut subscriber = broker.datagram_client("s");
    subscribe(&mut subscriber, "t", QoS::AtMostOnce);
    let mut publisher = broker.datagram_client("p");
    let sent = Message::new("t", b"x".to_vec()).priority(3);
    publisher.publish(&sent).unwrap();
    let got = message(&mut subscriber).message;
    assert_eq!(
        got.properties.requirements().unwrap().message_priority,
        Some(3)
    );
}

#[test]
fn the_tools_speak_it() {
    let broker = Broker::start("", "");
    let port = broker.quic.port().to_string();
    let tool = |name: &str, more: &[&str]| {
        let mut command = Command::new(PUNCTUAL);
        command.args([
            name,
            "-t",
            "topic",
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "--quic",
        ]);
        command
            .arg("--cafile")
            .arg(broker.file("ca.pem"))
            .args(more);
        command.output().unwrap()
    };
    for datagrams in [&[][..], &["--quic-datagrams"]] {
        let published = tool("pub", &[&["-r", "-m", "kept"], datagrams].concat());
        assert!(published.status.success(), "{published:?}");
        let got = tool("sub", &[&["-C", "1", "-W", "20"], datagrams].concat());
        assert_eq!(String::from_utf8(got.stdout).unwrap().trim_end(), "kept");
    }
}

#[test]
fn the_sidecar_speaks_it() {
    let broker = Broker::start("", "");
    let url = format!("quic://127.0.0.1:{}", broker.quic.port());
    let mut sidecar = Command::new(PUNCTUAL)
        .args(["sidecar", "-l", "tcp://127.0.0.1:0", "-b", &url])
        .args(["--quic-datagrams", "--cafile"])
        .arg(broker.file("ca.pem"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(sidecar.stderr.take().unwrap()).lines();
    let port = lines.find_map(|line| {
        let line = line.unwrap();
        let rest = line.split("listening on tcp://127.0.0.1:").nth(1)?;
        rest.split(',').next()?.parse().ok()
    });
    let mut options = broker.options("behind");
    options.endpoint = Endpoint::new(Scheme::Tcp, "127.0.0.1");
    options.endpoint.port = port.expect("the sidecar listens");
    let mut behind = crate::broker::connect(options).unwrap();
    subscribe(&mut behind, "t", QoS::ExactlyOnce);
    let mut other = broker.tcp_client("other");
    subscribe(&mut other, "t", QoS::ExactlyOnce);
    for qos in QOS {
        behind
            .publish(&Message::new("t", b"x".to_vec()).qos(qos))
            .unwrap();
        for client in [&mut behind, &mut other] {
            assert_eq!(message(client).message.qos, qos);
        }
    }
    assert_eq!(broker.metric("punctual_quic_messages_received_total "), 1);
    assert_eq!(broker.metric("punctual_quic_messages_sent_total "), 1);
    sidecar.kill().unwrap();
    sidecar.wait().unwrap();
}

#[test]
fn the_asynchronous_client_speaks_it() {
    use punctual_client::aio::Client;
    use punctual_client::{PropertyBuf, ReasonCode, SubscribeOptions};
    let broker = Broker::start("", "");
    let mut options = broker.options("c");
    options.endpoint.datagrams = true;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut client, _) = Client::connect(options).await.unwrap();
        let granted = SubscribeOptions {
            qos: QoS::ExactlyOnce,
            ..SubscribeOptions::default()
        };
        client
            .subscribe(&[("t", granted)], &PropertyBuf::new())
            .unwrap();
        while !matches!(client.next().await.unwrap(), Event::Subscribed { .. }) {}
        for (size, qos) in [1, 1 << 20].into_iter().zip([QOS[0], QOS[2]]) {
            let sent = Message::new("t", vec![7; size]).qos(qos);
            client.publish(&sent).await.unwrap();
            let got = loop {
                if let Event::Message(got) = client.next().await.unwrap() {
                    break got;
                }
            };
            assert_eq!(got.message.payload.len(), size);
        }
        let nothing = PropertyBuf::new();
        client
            .disconnect(ReasonCode::Success, &nothing)
            .await
            .unwrap();
    });
    broker.wait_for("the end", || broker.connections() == 0);
}

/// The end of the broker is said by MQTT, and the connection is ended.
#[test]
fn shutting_down_says_so() {
    let mut broker = Broker::start("", "");
    let mut clients = [broker.client("a"), broker.datagram_client("b")];
    broker.signal(libc::SIGTERM);
    for client in &mut clients {
        let error = loop {
            match client.next(Some(crate::broker::PATIENCE)) {
                Ok(event) => assert!(event.is_some(), "the end"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("shutting down"), "{error}");
    }
    assert!(broker.ended_well());
}
