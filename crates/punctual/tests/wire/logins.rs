//! Floods of logins with wrong passwords, whose hashes take long.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::auth::SECRET;
use crate::broker::Broker;
use crate::build::{Connect, V5};
use crate::conn::{Conn, unique};

/// Logins of the flood: with two threads they take longer than [`PATIENCE`].
const FLOOD: usize = 250;
/// Seconds for a login beside it.
const PATIENCE: u64 = 10;

/// A broker with the user `wire`, whose hash is fast, and `slow`, whose hash is not.
fn slow_to_check() -> Option<(Broker, tempfile::TempDir)> {
    let dir = tempfile::tempdir().expect("a directory for the files");
    let passwd = dir.path().join("passwd");
    let slow = SECRET.replace("$101$", "$300000$");
    std::fs::write(&passwd, format!("wire:{SECRET}\nslow:{slow}\n")).expect("write the file");
    let config = format!(
        "[auth]\npassword_file = {:?}\n",
        passwd.display().to_string()
    );
    Some((Broker::with_config(&config)?, dir))
}

/// A connection that comes from another address of this machine.
fn from(broker: &Broker, last: u8) -> Conn {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let own = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
    socket.bind(&own.into()).expect("bind it");
    socket
        .connect(&broker.tcp().into())
        .expect("connect to the broker");
    Conn::over(Box::new(TcpStream::from(socket)), broker, V5)
}

fn login(user: &str, password: &str) -> Vec<u8> {
    let connect = Connect::new(V5, unique("c"));
    connect.user(user).password(password).encode()
}

/// A flood from one address does not keep clients of another one waiting.
#[test]
fn a_flood_from_one_address_does_not_block_others() {
    let Some((broker, _files)) = slow_to_check() else {
        return;
    };
    let flood: Vec<Conn> = (0..FLOOD)
        .map(|_| {
            let mut conn = from(&broker, 2);
            conn.send(login("slow", "wrong"));
            conn
        })
        .collect();
    let mut conn = from(&broker, 3).patient(PATIENCE);
    conn.send(login("wire", "secret"));
    assert_eq!(conn.connack().code, 0);
    conn.ping();
    drop(flood);
}

/// Nothing is done for clients that have left, so that one that stays gets in, also from the same
/// address.
#[test]
fn logins_of_closed_connections_are_dropped() {
    let Some((broker, _files)) = slow_to_check() else {
        return;
    };
    for _ in 0..FLOOD {
        from(&broker, 2).send(login("slow", "wrong"));
    }
    let mut conn = from(&broker, 2).patient(PATIENCE);
    conn.send(login("wire", "secret"));
    assert_eq!(conn.connack().code, 0);
    conn.ping();
}
