//! The broker in a process of somebody else.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use punctual_server::config::{Config, ListenAddress, Switch};
use punctual_server::{Error, Server};

#[path = "../examples/embedded.rs"]
mod example;

#[test]
fn the_example_runs() {
    example::main().unwrap();
}

fn config(address: &str) -> Config {
    let mut config = Config::default();
    config.listeners[0].address = ListenAddress::parse(address).unwrap();
    config.server.http = Switch::Off;
    config
}

#[test]
fn two_brokers_run_in_one_process() {
    let servers = [(); 2].map(|()| Server::start(config("tcp://127.0.0.1:0")).unwrap());
    assert_ne!(servers[0].urls(), servers[1].urls());
    for server in servers {
        server.stop();
    }
}

#[test]
fn what_cannot_work_is_refused_with_its_key() {
    let wrong = Server::start(config("tls://127.0.0.1:0")).err().unwrap();
    assert!(matches!(wrong, Error::Config(_)), "{wrong:?}");
    assert!(
        wrong.to_string().contains("listener.0.certificate"),
        "{wrong}"
    );

    let one = Server::start(config("tcp://127.0.0.1:0")).unwrap();
    let taken = Server::start(config(&one.urls()[0])).err().unwrap();
    assert!(matches!(taken, Error::Start(_)), "{taken:?}");
    one.stop();
}

#[test]
fn another_configuration_is_applied_or_nothing_of_it() {
    let mut server = Server::start(config("tcp://127.0.0.1:0")).unwrap();
    let mut new = config("tcp://127.0.0.1:0");
    server.reload(&new).unwrap();
    new.auth.password_file = Some("/nowhere/passwords".into());
    let wrong = server.reload(&new).unwrap_err();
    assert!(wrong.to_string().contains("/nowhere/passwords"), "{wrong}");
    server.stop();
}
