//! The address of the interface belongs to somebody else.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use punctual_testbed::{Run, plain_command};

use crate::broker::log::Log;

/// What the default configuration says.
const DEFAULT: &str = "127.0.0.1:8080";

fn serve(arguments: &[&str]) -> Command {
    let mut command = plain_command(env!("CARGO_BIN_EXE_punctual"));
    command.args(["serve", "--listen", "tcp://127.0.0.1:0"]);
    command.args(arguments);
    command
}

#[test]
fn the_default_address_is_done_without_if_it_is_taken() {
    // Where this fails another program of the machine has it.
    let _taken = TcpListener::bind(DEFAULT);
    let mut broker = serve(&[])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = Log::of(broker.stderr.take().unwrap());
    let warning = log.logged("there is no HTTP interface: ");
    assert!(warning.contains("server.http = \"127.0.0.1:8080\""));
    assert!(warning.contains("--http ADDRESS|off"));
    let _: SocketAddr = log.logged("listening on tcp://").parse().unwrap();
    broker.kill().unwrap();
    broker.wait().unwrap();
}

#[test]
fn an_address_that_was_asked_for_has_to_be_free() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = Run::of(&mut serve(&["--http", &address]));
    run.fails(1, &["cannot listen there", &address, "--http ADDRESS|off"]);
}
