//! Directed tests of the broker, most of them with one line.

use punctual_sim::Scenario;

#[test]
fn hello() {
    Scenario::run("sub b t/# q1; pub a t/x hello q1; expect b t/x hello q1; none b");
    Scenario::run(
        "broker shards=3; conn b shard=2; sub b t/# q2; conn a shard=1; pub a t/x hello q2; expect b t/x hello q2; none b; drop a; drop b; idle",
    );
}
