//! The address of the interface belongs to somebody else.

use std::net::TcpListener;

use punctual_server::Server;

use crate::log::Log;
use crate::support::{config, load};

/// What the default configuration says.
const DEFAULT: &str = "127.0.0.1:8080";

#[test]
fn the_default_address_is_done_without_if_it_is_taken() {
    // Where this fails another program of the machine has it.
    let _taken = TcpListener::bind(DEFAULT);
    let log = Log::of_all();
    let server = Server::start(load("", &[("PUNCTUAL__SERVER__HTTP", DEFAULT)]).unwrap()).unwrap();
    log.logged(&[
        "there is no HTTP interface: ",
        "server.http = \"127.0.0.1:8080\"",
        "--http ADDRESS|off",
    ]);
    assert_eq!(server.http_url(), None);
    assert_eq!(server.urls().len(), config("").listeners.len());
    server.stop();
}

#[test]
fn an_address_that_was_asked_for_has_to_be_free() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = load("", &[("PUNCTUAL__SERVER__HTTP", &address)]).unwrap();
    let error = Server::start(config).err().unwrap().to_string();
    for part in ["cannot listen there", &address, "--http ADDRESS|off"] {
        assert!(error.contains(part), "{error}");
    }
}
