//! A session belongs to the user that made it (`auth.client_id`).

use crate::auth::guarded_by;
use crate::broker::Broker;
use crate::build::{Connect, Level, V5, V311, id};
use crate::conn::{Conn, unique};

const ALL: &str = "user wire\ntopic readwrite #\nuser loud\ntopic readwrite #\n";

fn as_user(level: Level, client_id: &str, user: &str) -> Connect {
    let connect = Connect::new(level, client_id);
    connect.user(user).password("secret")
}

#[track_caller]
fn is_refused(broker: &Broker, connect: &Connect) {
    let codes: &[u8] = if connect.level() == V5 { &[0x85] } else { &[2] };
    Conn::ask(broker, connect).refused(codes);
}

/// Another user with the same identifier is refused, with and without clean start, and finds
/// nothing of what it could destroy: the session keeps its connection, its subscriptions and its
/// acknowledged messages.
#[test]
fn a_session_is_nobody_elses() {
    let Some((broker, _files)) = guarded_by(ALL, "") else {
        return;
    };
    for level in [V311, V5] {
        let name = unique("owned");
        let own = as_user(level, &name, "wire").lasting(300);
        let other = as_user(level, &name, "loud");
        let (mut conn, _) = Conn::connect_to(&broker, &own);
        conn.subscribe("owned/#", 1);
        is_refused(&broker, &other);
        is_refused(&broker, &other.clone().lasting(300));
        conn.ping();
        conn.disconnect();
        let publisher = as_user(V5, &unique("c"), "loud");
        let (mut publisher, _) = Conn::connect_to(&broker, &publisher);
        publisher.publish("owned/a", "acknowledged", 1);
        is_refused(&broker, &other.clone().lasting(300));
        is_refused(&broker, &other);
        let (mut conn, connack) = Conn::connect_to(&broker, &own);
        assert!(connack.session_present);
        let message = conn.expect("owned/a", "acknowledged");
        conn.acknowledge(&message);
        // Once it has ended, the identifier is free.
        conn.disconnect();
        Conn::connect_to(&broker, &as_user(level, &name, "wire"))
            .0
            .disconnect();
        Conn::connect_to(&broker, &other).0.ping();
    }
}

/// Clients without a user name are one user, whose sessions are not for those that have one.
#[test]
fn clients_without_a_user_name_are_one_user() {
    let listener = "[[listener]]\naddress = \"tcp://127.0.0.1:0\"\nallow_anonymous = true\n";
    let Some((broker, _files)) = guarded_by(ALL, listener) else {
        return;
    };
    let name = unique("nobodys");
    let anonymous = Connect::new(V5, &name).lasting(300);
    Conn::connect_to(&broker, &anonymous).0.disconnect();
    is_refused(&broker, &as_user(V5, &name, "wire"));
    let (_conn, connack) = Conn::connect_to(&broker, &anonymous);
    assert!(connack.session_present);
    let name = unique("wires");
    Conn::connect_to(&broker, &as_user(V5, &name, "wire").lasting(300))
        .0
        .disconnect();
    is_refused(&broker, &Connect::new(V5, &name));
}

/// Identifiers are bound to user names by a rule, and those that are assigned keep to it.
#[test]
fn identifiers_may_be_bound_to_user_names() {
    for (rule, allowed, refused) in [
        ("user", ["wire", "wire"], ["wire:1", "loud"]),
        ("prefix", ["wire", "wire:1"], ["wire1", "loud:wire"]),
    ] {
        let Some((broker, _files)) = guarded_with(&format!("client_id = \"{rule}\"\n")) else {
            return;
        };
        for name in allowed {
            Conn::connect_to(&broker, &as_user(V5, name, "wire"))
                .0
                .disconnect();
        }
        for name in refused {
            for level in [V311, V5] {
                is_refused(&broker, &as_user(level, name, "wire"));
            }
        }
        let (_conn, connack) = Conn::connect_to(&broker, &as_user(V5, "", "wire"));
        let assigned = connack
            .props
            .text(id::ASSIGNED_CLIENT_ID)
            .expect("an identifier");
        assert_eq!(
            assigned.starts_with("wire:auto-"),
            rule == "prefix",
            "{assigned}"
        );
    }
}

/// With "any" a session of another user ends, and what waits in it is not for the new one.
#[test]
fn with_any_the_session_of_another_user_ends() {
    let Some((broker, _files)) = guarded_with("client_id = \"any\"\n") else {
        return;
    };
    let name = unique("any");
    let (mut conn, _) = Conn::connect_to(&broker, &as_user(V5, &name, "wire").lasting(300));
    conn.subscribe("any/#", 1);
    let other = as_user(V5, &name, "loud").lasting(300);
    let (mut new, connack) = Conn::connect_to(&broker, &other);
    assert!(!connack.session_present);
    conn.error(&[0x8E]);
    new.publish("any/a", "x", 1);
    new.ping();
}

/// Like [`guarded_by`], with further keys of `[auth]`.
fn guarded_with(keys: &str) -> Option<(Broker, tempfile::TempDir)> {
    crate::auth::guarded_with(ALL, "", keys)
}
