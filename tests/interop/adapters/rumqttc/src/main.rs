//! Adapter for rumqttc, both its MQTT 3.1.1 and its MQTT 5 client.
//!
//! See ../../../README.md for the protocol on standard input and output. The event loop is
//! not polled again after an error, so that a lost connection stays lost and is reported.

mod protocol;
mod tracker;
mod v4;
mod v5;

use std::collections::HashMap;

use protocol::{Request, fail, say};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("no provider is installed before this one");
    say(json!({
        "hello": "rumqttc",
        "library": "0.25.1",
        // The MQTT 5 client accepts no keep-alive below five seconds.
        "keepalive": 6,
        "cannot": {},
    }));
    let mut queues: HashMap<String, mpsc::UnboundedSender<Request>> = HashMap::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let request: Request = match serde_json::from_str(&line) {
            Ok(request) => request,
            Err(error) => {
                eprintln!("{error}: {line}");
                continue;
            }
        };
        if request.op == "connect" {
            let (sender, receiver) = mpsc::unbounded_channel();
            queues.insert(request.conn.clone(), sender);
            if request.version == 5 {
                tokio::spawn(v5::connection(request, receiver));
            } else {
                tokio::spawn(v4::connection(request, receiver));
            }
            continue;
        }
        let id = request.id;
        let last = request.op == "disconnect";
        let name = request.conn.clone();
        let sent = queues
            .get(&name)
            .is_some_and(|queue| queue.send(request).is_ok());
        if !sent {
            fail(id, "the connection has ended");
        }
        if last {
            queues.remove(&name);
        }
    }
}
