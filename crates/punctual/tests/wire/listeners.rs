//! Listeners with users and rights of their own.

use std::fs;
use std::net::TcpStream;

use crate::auth::{SECRET, as_user};
use crate::broker::Broker;
use crate::build::{Connect, V5};
use crate::conn::Conn;

/// A broker with two listeners; the files `users` and `acl` are for the first, `own` and `own.acl` for
/// the second.
fn apart() -> Option<(Broker, tempfile::TempDir)> {
    apart_with("", "")
}

/// The same with further configuration, and lines of `own.acl` for its user.
fn apart_with(more: &str, own: &str) -> Option<(Broker, tempfile::TempDir)> {
    let dir = tempfile::tempdir().expect("a directory for the files");
    let all = "user wire\ntopic readwrite #\n";
    let (users, own) = (format!("wire:{SECRET}\n"), format!("{all}{own}"));
    for (name, text) in [
        ("users", &*users),
        ("own", &users),
        ("acl", all),
        ("own.acl", &own),
    ] {
        fs::write(dir.path().join(name), text).expect("write a file");
    }
    let path = |name: &str| format!("{:?}", dir.path().join(name).display().to_string());
    let config = format!(
        "{more}[auth]\npassword_file = {}\nacl_file = {}\n\
         [[listener]]\naddress = \"tcp://127.0.0.1:0\"\n\
         [[listener]]\naddress = \"tcp://127.0.0.1:0\"\npassword_file = {}\nacl_file = {}\n",
        path("users"),
        path("acl"),
        path("own"),
        path("own.acl")
    );
    Some((Broker::with_config(&config)?, dir))
}

fn ask(broker: &Broker, listener: usize, connect: &Connect) -> Conn {
    let stream = TcpStream::connect(broker.listener(listener)).expect("connect to the broker");
    let mut conn = Conn::over(Box::new(stream), broker, V5);
    conn.send(connect.encode());
    conn
}

#[track_caller]
fn connect(broker: &Broker, listener: usize, connect: &Connect) -> Conn {
    let mut conn = ask(broker, listener, connect);
    assert_eq!(conn.connack().code, 0);
    conn
}

fn wire() -> Connect {
    as_user(V5, "wire")
}

/// A user that goes from the files of one listener is disconnected there, and only there, and what was
/// verified at another one lets nobody in.
#[test]
fn passwords_are_revoked_by_the_listener() {
    for gone in [0, 1] {
        let Some((broker, files)) = apart() else {
            return;
        };
        let mut conns = [0, 1].map(|at| connect(&broker, at, &wire()));
        let name = ["users", "own"][gone];
        fs::write(files.path().join(name), "").expect("write the password file");
        broker.reload();
        conns[gone].error(&[0x87]);
        conns[1 - gone].ping();
        connect(&broker, 1 - gone, &wire()).ping();
        ask(&broker, gone, &wire()).refused(&[0x86]);
    }
}

/// What the retained messages are that a new subscriber gets, by payload.
#[track_caller]
fn retained(broker: &Broker, listener: usize) -> Vec<String> {
    let mut conn = connect(broker, listener, &wire());
    conn.subscribe("kept/#", 0);
    connect(broker, listener, &wire()).publish("kept/marker", "end", 0);
    conn.payloads_before("end")
}

/// Rights that a reload takes from the users of one listener are taken from those who came by it,
/// and what they left is not given out any more.
#[test]
fn rights_are_revoked_by_the_listener() {
    let Some((broker, files)) = apart() else {
        return;
    };
    let mut conns = [0, 1].map(|at| connect(&broker, at, &wire()));
    for (at, conn) in conns.iter_mut().enumerate() {
        conn.retain(&format!("kept/{at}"), at.to_string(), 1);
        conn.subscribe("live", 0);
    }
    let less = "user wire\ntopic readwrite kept/marker\n";
    fs::write(files.path().join("own.acl"), less).expect("write the ACL file");
    broker.reload();
    let [common, own] = &mut conns;
    // Sessions have their rights anew some turns later.
    let mut answers = (0..10_000).map(|_| own.subscribe("live", 0));
    assert!(answers.any(|code| code == 0x87), "the right is taken away");
    common.publish("live", "1", 1);
    common.expect("live", "1");
    own.subscribe("kept/marker", 0);
    common.publish("kept/marker", "end", 1);
    own.expect("kept/marker", "end");
    assert_eq!(retained(&broker, 0), ["0"]);
}

/// The ACL file of the listener says who may connect there as a broker.
#[test]
fn brokers_are_let_in_by_the_listener() {
    let mesh = "[mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"a\"\n";
    let Some((broker, _files)) = apart_with(mesh, "broker b\n") else {
        return;
    };
    let link = || {
        let connect = Connect::new(V5, "$mesh/b");
        connect.user("wire").password("secret")
    };
    ask(&broker, 0, &link()).refused(&[0x87]);
    connect(&broker, 1, &link());
}
