//! Receivers that do not keep up: publishers wait for a bounded time, memory is bounded, and no
//! other client is affected.

use punctual_sim::Scenario;

/// The timer of an ended pause is not taken for that of a new one, which would end the new pause
/// early.
#[test]
fn every_congestion_has_its_own_time() {
    let mut s = Scenario::run(
        "broker buffer=1000 pause=100ms; conn b window=1000; sub b t; conn a
         stop b; pub a t x size=900; pub a t x size=900; pub a t x size=900; read b; wait 90ms
         stop b; pub a t x size=900; pub a t x size=900; pub a t x size=900; wait 20ms
         pub a t y size=900; pub a t y size=900",
    );
    // 20 ms into the second pause no receiver counts as slow, and no message was dropped.
    s.go_on("read b; wait 1s; count b 8");
    s.go_on("drop a; drop b; idle");
}

/// Bytes in the broker's send buffer for a client.
fn buffered(s: &mut Scenario, name: &str) -> usize {
    let link = s.link(name);
    let world = s.world();
    let (shard, conn) = world.conn(link).expect("connected");
    world.shards()[usize::from(shard)].buffered(conn)
}

/// A client that does not read its acknowledgements is not read, so that these do not pile up.
#[test]
fn who_does_not_read_is_not_read() {
    let mut s = Scenario::run(
        "broker buffer=1000; conn a window=100; stop a; pub a t x q1 nowait times=5000",
    );
    assert!(buffered(&mut s, "a") <= 1100);
    s.go_on("read a; wait 1s; pub a t y q1; drop a; idle");
}

/// While a full send buffer keeps the broker from reading a client, Keep Alive is judged by whether
/// the client reads.
#[test]
fn who_reads_nothing_is_not_alive() {
    let mut s = Scenario::run(
        "broker buffer=1000; conn a window=100 keep=10; stop a; pub a t x q1 nowait times=2000
         wait 12s",
    );
    let link = s.link("a");
    assert!(s.world().conn(link).is_some());
    s.go_on("wait 3s");
    assert!(s.world().conn(link).is_none());

    // A client that reads a little from time to time stays connected.
    let mut s = Scenario::run(
        "broker buffer=1000; conn a window=10 keep=10; stop a; pub a t x q1 nowait times=2000
         wait 9s; read a; stop a; raw a c000; wait 9s; read a; stop a; wait 9s; read a; stop a
         wait 9s",
    );
    let link = s.link("a");
    assert!(s.world().conn(link).is_some());
}

/// Publishers on other shards also wait until the receiver has read or the pause has timed out, so
/// that no messages pile up between shards.
#[test]
fn other_shards_wait_too() {
    let mut s = Scenario::run(
        "broker shards=2 buffer=1000 pause=200ms mail=50us; conn b shard=1 window=1000; sub b t
         conn c shard=1; sub c t; conn a shard=0; stop b
         pub a t x size=500 times=50",
    );
    assert!(buffered(&mut s, "b") <= 1000 + 2 * 520);
    let a = s.link("a");
    assert!(s.world().is_paused(a));
    // After the timeout other receivers get all messages, and the slow one gets those for which it
    // has room.
    s.go_on("wait 1s; count c 50; pub a t y; expect c t y");
    assert!(s.world().longest_pause(a).0 <= 201_000_000);
    assert!(buffered(&mut s, "b") <= 1000 + 3 * 520);
    // A receiver that has read its messages no longer counts as slow.
    s.go_on("read b; wait 1s; pub a t z; expect c t z; wait 1s");
    s.go_on("stop b; pub a t x size=500 times=4; read b; wait 10ms; drop b; drop a; drop c; idle");
}

/// When a congested receiver disconnects, all publishers continue.
#[test]
fn leaving_is_relief() {
    for broker in ["broker buffer=1000", "broker shards=2 buffer=1000"] {
        let mut s = Scenario::run(broker);
        s.go_on(
            "conn b shard=0 window=1000; sub b t; conn c shard=0; sub c t; conn a; stop b
             pub a t x size=500 times=20; cut b; wait 10ms; count c 20",
        );
        s.go_on("drop a; drop c; idle");
    }
}
