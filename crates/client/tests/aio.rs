//! The asynchronous client against a server of these tests, and what happens
//! to its futures when they are dropped.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[allow(dead_code, reason = "not every test binary needs all of it")]
mod support;

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use punctual_client::aio::Client;
use punctual_client::{
    Backoff, Config, Error, Event, Message, Options, QoS, ReasonCode, SubscribeOptions, Version,
};
use support::{Server, Taken};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn options(listener: &TcpListener) -> Options {
    let mut options = Options {
        config: Config {
            client_id: "client".into(),
            ..Config::default()
        },
        ..Options::default()
    };
    options.endpoint.host = "127.0.0.1".into();
    options.endpoint.port = listener.local_addr().unwrap().port();
    options
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Serves one connection until the client closes it; `messages` are delivered
/// one after the other, a byte at a time.
fn serve(listener: TcpListener, messages: Vec<Taken>) -> JoinHandle<Server> {
    std::thread::spawn(move || {
        let mut server = Server::new(Version::V5, 10, 0);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut messages = Some(messages);
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return server,
                Ok(n) => server.receive(&buffer[..n]),
            }
            for message in messages.take().into_iter().flatten() {
                server.deliver(message);
            }
            for byte in std::mem::take(&mut server.output) {
                if stream.write_all(&[byte]).is_err() {
                    return server;
                }
            }
        }
    })
}

fn taken(n: u32, qos: QoS) -> Taken {
    Taken {
        topic: format!("t/{n}"),
        payload: n.to_string().into_bytes(),
        qos,
    }
}

#[test]
fn publish_subscribe_disconnect() {
    let listener = listen();
    let options = options(&listener);
    let server = serve(listener, vec![taken(1, QoS::ExactlyOnce)]);
    runtime().block_on(async {
        let (mut client, connected) = Client::connect(options).await.unwrap();
        assert_eq!(connected.client_id, "client");
        let filters = [("t/#", SubscribeOptions::default())];
        let asked = client.subscribe(&filters, &Default::default()).unwrap();
        let sent = Message::new("up", "x").qos(QoS::ExactlyOnce).priority(3);
        let sent = client.publish(&sent).await.unwrap();
        let (mut subscribed, mut published, mut got) = (false, false, false);
        while !(subscribed && published && got) {
            match client.next().await.unwrap() {
                Event::Subscribed { token, .. } => subscribed = token == asked,
                Event::Published { token, reason, .. } => {
                    assert_eq!(reason, ReasonCode::Success);
                    published = token == sent;
                }
                Event::Message(delivery) => {
                    assert_eq!(delivery.message.payload, b"1");
                    assert!(delivery.received <= client.epoch().elapsed());
                    got = true;
                }
                _ => {}
            }
        }
        client
            .disconnect(ReasonCode::Success, &Default::default())
            .await
            .unwrap();
        assert!(matches!(client.next().await, Err(Error::NotConnected)));
    });
    let server = server.join().unwrap();
    assert_eq!(server.taken.len(), 1);
}

/// Polls a future once and drops it.
fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A client whose futures are dropped after every poll gets everything once,
/// in order.
#[test]
fn dropped_futures_lose_nothing() {
    const COUNT: u32 = 200;
    let listener = listen();
    let options = options(&listener);
    let messages = (0..COUNT).map(|n| taken(n, QoS::from_bits(n as u8 % 3).unwrap()));
    let server = serve(listener, messages.collect());
    let mut got = Vec::new();
    runtime().block_on(async {
        let mut client = Client::new(options).unwrap();
        while poll_once(client.open()).is_none() {
            tokio::task::yield_now().await;
        }
        while got.len() < COUNT as usize {
            match poll_once(client.next()) {
                Some(Ok(Event::Message(delivery))) => got.push(delivery.message.payload),
                Some(other) => drop(other.unwrap()),
                None => tokio::task::yield_now().await,
            }
        }
    });
    let expected: Vec<Vec<u8>> = (0..COUNT).map(|n| n.to_string().into_bytes()).collect();
    assert_eq!(got, expected);
    server.join().unwrap();
}

/// `publish` awaits room, and what it reads meanwhile is kept for `next`.
#[test]
fn publish_awaits_room() {
    const COUNT: u32 = 100;
    let listener = listen();
    let mut options = options(&listener);
    options.config.max_queued = 2;
    let server = serve(listener, Vec::new());
    runtime().block_on(async {
        let (mut client, _) = Client::connect(options).await.unwrap();
        let mut sent = Vec::new();
        for n in 0..COUNT {
            let message = Message::new("up", n.to_string()).qos(QoS::AtLeastOnce);
            sent.push(client.publish(&message).await.unwrap());
        }
        let mut ended = Vec::new();
        while client.unfinished() > 0 || ended.len() < sent.len() {
            if let Event::Published { token, .. } = client.next().await.unwrap() {
                ended.push(token);
            }
        }
        assert_eq!(ended, sent);
    });
    let server = server.join().unwrap();
    assert_eq!(server.taken.len(), COUNT as usize);
}

#[test]
fn a_lost_connection_is_an_error_and_then_another_is_made() {
    let listener = listen();
    let mut options = options(&listener);
    options.reconnect = Some(Backoff {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(1),
    });
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        close_after_connect(stream);
        serve(listener, Vec::new())
    });
    runtime().block_on(async {
        let mut client = Client::new(options).unwrap();
        client.open().await.unwrap();
        let error = client.next().await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(matches!(client.next().await, Ok(Event::Connected(_))));
        drop(client);
    });
    server.join().unwrap().join().unwrap();
}

fn close_after_connect(mut stream: TcpStream) {
    let mut buffer = [0; 512];
    let _ = stream.read(&mut buffer).unwrap();
}
