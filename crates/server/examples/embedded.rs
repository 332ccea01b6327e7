//! A broker in a program of one's own, and a client of it.

use std::error::Error;

use punctual_client::{Client, Endpoint, Event, Message, Options, Scheme, SubscribeOptions};
use punctual_server::Server;
use punctual_server::config::{Config, ListenAddress, Switch};

pub(crate) fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut config = Config::default();
    config.listeners[0].address = ListenAddress::parse("tcp://127.0.0.1:0")?;
    config.server.http = Switch::Off;
    let server = Server::start(config)?;

    let mut endpoint = Endpoint::new(Scheme::Tcp, "127.0.0.1");
    endpoint.port = server.urls()[0].rsplit(':').next().unwrap_or("").parse()?;
    let (mut client, _) = Client::connect(Options {
        endpoint,
        ..Options::default()
    })?;
    client.subscribe(
        &[("greeting", SubscribeOptions::default())],
        &Default::default(),
    )?;
    client.publish(&Message::new("greeting", "hello"))?;
    while let Some(event) = client.next(None)? {
        if let Event::Message(delivery) = event {
            assert_eq!(delivery.message.payload[..], *b"hello");
            break;
        }
    }
    server.stop();
    Ok(())
}
