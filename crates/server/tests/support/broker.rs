//! A broker in the process of the test, with an HTTP interface, both on free loopback ports.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::ops::Deref;

use punctual_server::config::Config;
use punctual_server::{Error, Server, Source};
use tempfile::{TempDir, tempdir};

use super::Interface;

/// A running broker. It is stopped when this is dropped.
pub(crate) struct Broker {
    server: RefCell<Option<Server>>,
    interface: Interface,
    directory: TempDir,
    pub(crate) tcp: SocketAddr,
}

impl Broker {
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// With this configuration beside that of all brokers of tests.
    pub(crate) fn with(text: &str) -> Self {
        let directory = tempdir().unwrap();
        let server = Server::start(own(text, &directory)).unwrap();
        let address = |url: &str| url.split("//").nth(1).unwrap().parse().unwrap();
        Self {
            tcp: address(&server.urls()[0]),
            interface: Interface {
                http: address(server.http_url().unwrap()),
                tokens: directory.path().join("tokens"),
            },
            server: RefCell::new(Some(server)),
            directory,
        }
    }

    /// Applies another configuration.
    pub(crate) fn reload(&self, text: &str) {
        let config = own(text, &self.directory);
        let mut server = self.server.borrow_mut();
        server.as_mut().unwrap().reload(&config).unwrap();
    }

    /// Stops it, and waits for its end.
    pub(crate) fn stop(&self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Deref for Broker {
    type Target = Interface;

    fn deref(&self) -> &Interface {
        &self.interface
    }
}

/// The configuration of a broker whose tokens are in that directory.
fn own(text: &str, directory: &TempDir) -> Config {
    let tokens = directory.path().join("tokens");
    let tokens = (
        "PUNCTUAL__SERVER__HTTP_TOKEN_FILE",
        tokens.to_str().unwrap(),
    );
    load(text, &[tokens]).unwrap()
}

/// The configuration of a broker on free ports, with this text and these variables, which have the
/// last word.
pub(crate) fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, Error> {
    let mut all = BTreeMap::from([
        ("PUNCTUAL__LISTENER__0__ADDRESS", "tcp://127.0.0.1:0"),
        ("PUNCTUAL__SERVER__HTTP", "127.0.0.1:0"),
        ("PUNCTUAL__SERVER__SHARDS", "2"),
        // Retained messages are those of the test.
        ("PUNCTUAL__SERVER__SYS_INTERVAL", "off"),
    ]);
    all.extend(variables.iter().copied());
    let directory = tempdir().unwrap();
    let file = directory.path().join("punctual.toml");
    fs::write(&file, text).unwrap();
    let source = Source {
        file: Some(file),
        variables: all
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        ..Source::default()
    };
    source.load()
}

/// The same with a text that is correct.
pub(crate) fn config(text: &str) -> Config {
    load(text, &[]).unwrap()
}
