//! Receivers that do not keep up: publishers wait a bounded time, memory is
//! bounded, nobody else notices.

use punctual_sim::Scenario;

/// A pause that ended does not shorten the next one: its timer is not taken
/// for that of the new pause.
#[test]
fn every_congestion_has_its_own_time() {
    let mut s = Scenario::run(
        "broker buffer=1000 pause=100ms; conn b window=1000; sub b t; conn a
         stop b; pub a t x size=900; pub a t x size=900; pub a t x size=900; read b; wait 90ms
         stop b; pub a t x size=900; pub a t x size=900; pub a t x size=900; wait 20ms
         pub a t y size=900; pub a t y size=900",
    );
    // 20 ms into the second pause nobody is slow and nothing was dropped.
    s.go_on("read b; wait 1s; count b 8");
    s.go_on("drop a; drop b; idle");
}
