//! The blocking client against a real server, over every transport.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "support/broker.rs"]
mod broker;

use std::time::Duration;

use broker::Broker;
use punctual_client::{
    Backoff, Client, Config, Endpoint, Error, Event, Message, Options, PropertyBuf, PropertyId,
    QoS, ReasonCode, Scheme, SubscribeOptions, Token, Version,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

fn options(scheme: Scheme, broker: &Broker) -> Options {
    let mut endpoint = Endpoint::new(scheme, "localhost");
    endpoint.port = match scheme {
        Scheme::Tcp => broker.tcp,
        Scheme::Udp | Scheme::Quic => panic!("mosquitto has no {scheme:?}"),
        Scheme::Tls => broker.tls,
        Scheme::Ws => broker.ws,
        Scheme::Wss => broker.wss,
    };
    endpoint.tls.ca_file = Some(broker.file("ca.pem"));
    endpoint.tls.cert_file = Some(broker.file("client.pem"));
    endpoint.tls.key_file = Some(broker.file("client.key"));
    Options {
        endpoint,
        ..Options::default()
    }
}

fn next(client: &mut Client) -> Event {
    client.next(PATIENCE).unwrap().expect("an event in time")
}

fn with_qos(qos: QoS) -> SubscribeOptions {
    SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    }
}

/// A message that its publisher gets back, and what has come of that.
struct Echo {
    message: Message,
    token: Token,
    arrived: bool,
    published: bool,
}

impl Echo {
    fn of(message: Message, token: Token) -> Self {
        Self {
            published: message.qos == QoS::AtMostOnce,
            arrived: false,
            message,
            token,
        }
    }

    fn is_whole(&self) -> bool {
        self.arrived && self.published
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Message(delivery) => {
                assert_eq!(delivery.message, self.message);
                self.arrived = true;
            }
            Event::Published { token, reason, .. } => {
                assert_eq!((token, reason), (self.token, ReasonCode::Success));
                self.published = true;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Subscribes, publishes with every QoS and gets it all back.
fn echo(mut options: Options, version: Version) {
    let websocket = options.endpoint.scheme.is_websocket();
    options.config.version = version;
    options.config.client_id = "echo".into();
    let (mut client, connected) = Client::connect(options).unwrap();
    assert!(!connected.session_present);
    let filters = [("echo/#", with_qos(QoS::ExactlyOnce))];
    let token = client.subscribe(&filters, &PropertyBuf::new()).unwrap();
    match next(&mut client) {
        Event::Subscribed {
            token: answered,
            reasons,
            ..
        } => {
            assert_eq!(answered, token);
            assert_eq!(reasons, [ReasonCode::GrantedQos2]);
        }
        other => panic!("{other:?}"),
    }
    // Mosquitto takes 4 KiB from a WebSocket each tenth of a second.
    let large = match websocket {
        false => vec![7; 300_000],
        true => vec![7; 5_000],
    };
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let message = Message::new("echo/it", large.clone()).qos(qos);
        let token = client.publish(&message).unwrap();
        let mut echo = Echo::of(message, token);
        while !echo.is_whole() {
            echo.take(next(&mut client));
        }
    }
    client
        .unsubscribe(&["echo/#"], &PropertyBuf::new())
        .unwrap();
    assert!(matches!(next(&mut client), Event::Unsubscribed { .. }));
    client
        .disconnect(ReasonCode::Success, &PropertyBuf::new())
        .unwrap();
}

#[test]
fn every_transport_and_version_echoes() {
    let Some(broker) = Broker::start("") else {
        return;
    };
    for version in [Version::V31, Version::V311, Version::V5] {
        for scheme in [Scheme::Tcp, Scheme::Ws, Scheme::Tls, Scheme::Wss] {
            echo(options(scheme, &broker), version);
        }
    }
}

/// The asynchronous client, by what is not plain TCP.
#[cfg(feature = "tokio")]
#[test]
fn every_transport_echoes_asynchronously() {
    let Some(broker) = Broker::start("") else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for scheme in [Scheme::Tls, Scheme::Ws, Scheme::Wss] {
        let mut options = options(scheme, &broker);
        options.config.client_id = "echo".into();
        runtime.block_on(async {
            let connecting = punctual_client::aio::Client::connect(options);
            let (mut client, _) = connecting.await.unwrap();
            let filters = [("echo/#", with_qos(QoS::ExactlyOnce))];
            client.subscribe(&filters, &PropertyBuf::new()).unwrap();
            while !matches!(client.next().await.unwrap(), Event::Subscribed { .. }) {}
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                let message = Message::new("echo/it", vec![7; 5_000]).qos(qos);
                let token = client.publish(&message).await.unwrap();
                let mut echo = Echo::of(message, token);
                while !echo.is_whole() {
                    echo.take(client.next().await.unwrap());
                }
            }
            client
                .disconnect(ReasonCode::Success, &PropertyBuf::new())
                .await
                .unwrap();
        });
    }
}

#[test]
fn certificates_are_checked() {
    let Some(broker) = Broker::start("") else {
        return;
    };
    let good = options(Scheme::Tls, &broker);
    let error = |options: Options| match Client::connect(options) {
        Ok(_) => panic!("connected"),
        Err(error) => error.to_string(),
    };

    let mut other_name = good.clone();
    other_name.endpoint.host = "127.0.0.1".into();
    let said = error(other_name.clone());
    assert!(said.contains("not valid for name"), "{said}");
    other_name.endpoint.tls.insecure = true;
    Client::connect(other_name.clone()).unwrap();
    other_name.endpoint.tls.insecure = false;
    other_name.endpoint.tls.server_name = Some("localhost".into());
    Client::connect(other_name).unwrap();

    let mut other_ca = good.clone();
    other_ca.endpoint.tls.ca_file = Some(broker.file("client.pem"));
    other_ca.endpoint.tls.insecure = true;
    let said = error(other_ca);
    assert!(
        said.contains("UnknownIssuer") && said.contains("CA file"),
        "{said}"
    );

    let mut no_certificate = good.clone();
    no_certificate.endpoint.tls.cert_file = None;
    no_certificate.endpoint.tls.key_file = None;
    let said = error(no_certificate);
    assert!(said.contains("client certificate"), "{said}");

    let mut missing = good.clone();
    missing.endpoint.tls.ca_file = Some(broker.file("nowhere.pem"));
    let said = error(missing);
    assert!(said.contains("nowhere.pem"), "{said}");

    let mut plain_port = good;
    plain_port.endpoint.port = broker.tcp;
    let said = error(plain_port);
    assert!(said.contains("is it a TLS port"), "{said}");
}

#[test]
fn nobody_there_is_unreachable() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = Options::default();
    options.endpoint.port = free.local_addr().unwrap().port();
    drop(free);
    let Err(error) = Client::connect(options.clone()) else {
        panic!("connected");
    };
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.is_transient());
    let place = format!("localhost:{}", options.endpoint.port);
    assert!(error.to_string().contains(&place), "{error}");
}

/// Subscribed to what it publishes itself, with more in flight than any
/// buffer holds: both directions have to make progress at once.
#[test]
fn a_flood_to_oneself_flows() {
    const MESSAGES: u32 = 3000;
    let Some(broker) = Broker::start("") else {
        return;
    };
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut options = options(Scheme::Tcp, &broker);
        options.config.topic_aliases = 5;
        let (mut client, _) = Client::connect(options).unwrap();
        let filters = [("flood", with_qos(qos))];
        client.subscribe(&filters, &PropertyBuf::new()).unwrap();
        let mut message = Message::new("flood", vec![0; 4000]).qos(qos);
        let (mut sent, mut got) = (0, 0);
        while got < MESSAGES || client.unfinished() > 0 {
            let full = sent < MESSAGES;
            if full {
                message.payload[..4].copy_from_slice(&sent.to_be_bytes());
                match client.publish(&message) {
                    Ok(_) => {
                        sent += 1;
                        continue;
                    }
                    Err(Error::Full) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            match client.next(PATIENCE).unwrap() {
                Some(Event::Message(delivery)) => {
                    assert_eq!(delivery.message.payload[..4], u32::to_be_bytes(got));
                    got += 1;
                }
                Some(_) => {}
                // There is room.
                None => assert!(full, "an event in time"),
            }
        }
        client
            .disconnect(ReasonCode::Success, &PropertyBuf::new())
            .unwrap();
    }
}

#[test]
fn a_restarted_server_finds_its_clients_again() {
    let Some(mut broker) = Broker::start("") else {
        return;
    };
    let mut options = options(Scheme::Tcp, &broker);
    options.reconnect = Some(Backoff {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(1),
    });
    options
        .config
        .properties
        .push_number(PropertyId::SessionExpiryInterval, 60);
    let (mut client, _) = Client::connect(options).unwrap();
    let filters = [("a", with_qos(QoS::AtLeastOnce))];
    client.subscribe(&filters, &PropertyBuf::new()).unwrap();
    assert!(matches!(next(&mut client), Event::Subscribed { .. }));
    broker.restart();
    let error = loop {
        match client.next(PATIENCE) {
            Ok(event) => assert_eq!(event, None),
            Err(error) => break error,
        }
    };
    assert!(error.is_transient(), "{error}");
    // Not connected now: it is sent once there is a connection.
    client
        .publish(&Message::new("a", "b").qos(QoS::AtLeastOnce))
        .unwrap();
    match next(&mut client) {
        Event::Connected(connected) => assert!(!connected.session_present),
        other => panic!("{other:?}"),
    }
    // The subscription was renewed, perhaps after the message was published.
    loop {
        match next(&mut client) {
            Event::Message(delivery) => break assert_eq!(delivery.message.topic, "a"),
            Event::Published { .. } => {
                client
                    .publish(&Message::new("a", "c").qos(QoS::AtLeastOnce))
                    .unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_waker_ends_a_wait() {
    let Some(broker) = Broker::start("") else {
        return;
    };
    let (mut client, _) = Client::connect(options(Scheme::Tcp, &broker)).unwrap();
    let waker = client.waker();
    let thread = std::thread::spawn(move || waker.wake());
    assert_eq!(client.next(None).unwrap(), None);
    thread.join().unwrap();
}

#[test]
fn a_refusal_says_why() {
    let Some(broker) = Broker::start("password_file /dev/null") else {
        return;
    };
    for (version, reason) in [
        (Version::V5, ReasonCode::NotAuthorized),
        (Version::V311, ReasonCode::NotAuthorized),
    ] {
        let mut options = options(Scheme::Tcp, &broker);
        options.config = Config {
            version,
            client_id: "x".into(),
            username: Some("nobody".into()),
            password: Some(b"wrong".to_vec()),
            ..Config::default()
        };
        match Client::connect(options) {
            Err(Error::Refused(farewell)) => assert_eq!(farewell.reason, reason),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("connected"),
        }
    }
}

/// Servers that accept a connection and then say nothing.
#[test]
fn silence_is_given_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = tempfile::NamedTempFile::new().unwrap();
    let certificate = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    std::fs::write(authority.path(), certificate.cert.pem()).unwrap();
    for scheme in [Scheme::Tcp, Scheme::Ws, Scheme::Tls, Scheme::Wss] {
        let mut options = Options {
            endpoint: Endpoint::new(scheme, "127.0.0.1"),
            ..Options::default()
        };
        options.endpoint.port = silent.local_addr().unwrap().port();
        options.endpoint.timeout = Duration::from_millis(20);
        options.endpoint.tls.ca_file = Some(authority.path().into());
        options.config.connack_timeout = 1;
        match Client::connect(options) {
            Err(error @ Error::TimedOut(_)) => assert!(error.is_transient()),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("connected"),
        }
    }
}
