//! Bounded resources stay within their bounds, and all are released when all clients have left.

use punctual_sim::Scenario;

/// Messages with early and late expiry create no more timers than necessary.
#[test]
fn expiring_messages_do_not_pile_up_timers() {
    let mut s = Scenario::run("conn b resume expiry=100000; sub b t q1; drop b; conn a");
    for round in 0..300 {
        s.go_on("pub a t x q1 expiry=3000 times=3; pub a t x q1 expiry=2 times=3; wait 3s");
        let timers = s.world().shards()[0].timers();
        assert!(timers < 100 + round, "{timers} timers in round {round}");
    }
    // Messages that expire later are removed when they expire.
    s.go_on("wait 3000s; drop a; wait 1s; idle_queues");
    assert!(s.world().shards()[0].timers() < 5);
}

/// Shared statistics also reflect changes that only timers have caused.
#[test]
fn statistics_are_shared_after_timers() {
    let mut s = Scenario::run(
        "broker shards=2; conn a shard=0 v3 keep=1; conn b shard=1 resume expiry=3; drop b; wait 1s",
    );
    let stats = s.world().directory().stats();
    assert_eq!((stats.clients_connected, stats.sessions), (1, 2));
    s.go_on("wait 3s");
    let stats = s.world().directory().stats();
    assert_eq!((stats.clients_connected, stats.sessions), (0, 0));
    assert_eq!(stats.connections, 0);
}
