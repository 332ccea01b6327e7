//! Retained messages and their replay to new subscriptions.

use punctual_sim::Scenario;

#[test]
fn replay() {
    for shards in [1, 3] {
        let mut s = Scenario::run(&format!("broker shards={shards}"));
        s.go_on(
            "pub a t/1 x q1 retain; pub a t/2 y q2 retain; pub a u z retain
             sub b t/# q1 id=7; expect b t/1 x q1 retain ids=7; expect b t/2 y q1 retain ids=7
             none b; sub b t/# q1; count b 2; sub b t/# q1 rh=1; none b; sub b + rh=1
             expect b u z retain; sub b +/+ rh=2; none b; sub b $share/g/# q1; none b
             unsub b +; unsub b $share/g/#; sub b u rh=1; expect b u z retain; none b",
        );
        // Removed by an empty payload, which is delivered like other messages.
        s.go_on("pub a u - q1 retain; expect b u -; sub c u; none c; none b; pub a t/1 w retain");
        s.go_on("count b 1; sub c t/1; expect c t/1 w retain");
    }
}

#[test]
fn expiry_goes_on_while_retained() {
    Scenario::run(
        "pub a t x q1 retain expiry=10; wait 4500ms; sub b t q1; expect b t x q1 retain left=6
         wait 6s; sub c t; none c; pub a t y retain; sub d t; expect d t y retain",
    );
}

/// A retained message that was replaced while it waited to be sent to a new subscription does not
/// arrive after its successor.
#[test]
fn replay_does_not_go_back() {
    for last in [
        "pub a t/3 new retain",
        "pub a t/3 new q1 retain",
        "pub a t/3 - retain",
    ] {
        let mut s = Scenario::run(
            "pub a t/1 old q1 retain; pub a t/2 old q1 retain; pub a t/3 old q1 retain
             pub a t/4 old q1 retain; conn b rm=1 hold; sub b t/# q1",
        );
        s.go_on(last);
        s.go_on("ack b; wait 1s");
        let mut old = 0;
        let mut seen_new = false;
        for message in s.take_inbox("b") {
            if message.topic == "t/3" {
                assert!(message.payload.0 != b"old" || !seen_new, "after {last}");
                seen_new |= message.payload.0 != b"old";
            } else {
                old += usize::from(message.retain);
            }
        }
        assert!(seen_new);
        assert_eq!(old, 3);
    }
}

/// A search through many topics without a match ends, and later packets of the client are handled.
#[test]
fn long_searches_end() {
    let mut publishes = String::new();
    for n in 0..20_000 {
        publishes.push_str("3109 0006 ");
        for digit in format!("{n:06}").bytes() {
            publishes.push_str(&format!("{digit:02x}"));
        }
        publishes.push_str(" 78 ");
    }
    let publishes: String = publishes.split(' ').collect();
    let mut s = Scenario::run("conn a v3");
    s.go_on(&format!("raw a {publishes}"));
    assert_eq!(s.world().directory().retained_totals().0, 20_000);
    s.go_on("sub b +/none q1; pub c x/none y q1; expect b x/none y q1; none b");
    s.go_on("sub b +/+/none; none b; sub b 019999; expect b 019999 x retain");
}

/// No Local also applies to retained messages [MQTT-3.8.3-3].
#[test]
fn own_retained_messages_are_local() {
    Scenario::run(
        "pub a t x retain; sub a t nl; none a; sub a t; expect a t x retain; pub b t y retain
         expect a t y; sub a t nl; expect a t y retain",
    );
}

/// A message that cannot be retained is refused, and delivered to no client.
#[test]
fn bounds() {
    Scenario::run(
        "broker retained=2 retained_bytes=100; sub b # q1; pub a t x q1 retain; pub a u y q1 retain
         count b 2; pub a v z q1 retain fails=0x97; pub a v z q2 retain fails=0x97; none b
         pub a u zz q1 retain; count b 1; pub a u big q1 retain size=200 fails=0x97; none b
         pub a t - q1 retain; pub a v z q1 retain; count b 2; sub c #; count c 2",
    );
}
