//! Flow control of messages from clients (section 4.9).

use punctual_sim::Scenario;

/// Receive Maximum is per connection: unreleased messages of an earlier connection do not count.
#[test]
fn receive_maximum_begins_anew() {
    let mut s = Scenario::run(
        "broker rm=2; conn a resume expiry=100; stop a; pub a t 1 q2 nowait; pub a t 2 q2 nowait
         cut a; conn a resume expiry=100 present; stop a; pub a t 3 q2 pid=11 nowait
         pub a t 4 q2 pid=12 nowait",
    );
    let link = s.link("a");
    assert!(s.world().conn(link).is_some(), "two at a time are allowed");
    s.go_on("pub a t 5 q2 pid=13 nowait; read a; wait 1s; gone a 0x93");
}
