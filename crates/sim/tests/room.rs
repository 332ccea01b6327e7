//! A message is acknowledged only if the queues of all its receivers have room, and a refused
//! message reaches no receiver.

use punctual_sim::Scenario;

/// Runs a script with one shard, and with several where receivers are on another shard than the
/// publisher `a`.
fn everywhere(settings: &str, script: &str) {
    for shards in [1, 2, 3] {
        let mut s = Scenario::run(&format!("broker shards={shards} policy=refuse {settings}"));
        s.go_on(script);
    }
}

#[test]
fn messages_of_one_session_are_bounded() {
    everywhere(
        "queue=3",
        "conn b shard=1 resume expiry=100; sub b t q1; drop b
         pub a t 1 q1; pub a t 2 q1; pub a t 3 q2; pub a t 4 q1 fails=0x97; pub a t 5 q2 fails=0x97
         conn b resume expiry=100; expect b t 1 q1; expect b t 2 q1; expect b t 3 q1; none b
         pub a t 6 q1; expect b t 6 q1; drop a; drop b expiry=0; idle",
    );
}

#[test]
fn bytes_of_one_session_are_bounded() {
    everywhere(
        "queue_bytes=1000",
        "conn b shard=1 resume expiry=100; sub b t q1; drop b
         pub a t 1 q1 size=400; pub a t 2 q1 size=400; pub a t 3 q1 size=400 fails=0x97
         pub a t 4 q1 size=10; conn b resume; count b 3; drop a; drop b; idle",
    );
}

#[test]
fn bytes_of_all_sessions_are_bounded() {
    everywhere(
        "total_bytes=1000 urgent_reserve=0",
        "conn b shard=1 resume expiry=100; sub b t q1; drop b
         conn c shard=2 resume expiry=100; sub c t q1; drop c
         conn d shard=1 resume expiry=100; sub d t q1; drop d
         sub e t q1
         pub a t 1 q1 size=400 fails=0x97; none e; pub a t 2 q1 size=300; expect e t 2 q1
         pub a t 3 q1 size=40 fails=0x97; none e
         conn b resume; expect b t 2 q1; none b
         pub a t 4 q1 size=40; expect e t 4 q1; expect b t 4 q1
         conn c resume; count c 2; conn d resume; count d 2
         drop a; drop b; drop c; drop d; drop e; idle",
    );
}

/// Room reserved on other shards is released, whether it was used or not.
#[test]
fn promises_are_given_back() {
    everywhere(
        "queue=3 queue_bytes=2000 total_bytes=4000",
        "conn b shard=1; sub b t q2; conn c shard=2 resume expiry=100; sub c u q1; sub c t q1
         drop c; pub a u x q1 times=3
         pub a t x q1 times=50 fails=0x97; none b
         unsub b t; sub b v q2; pub a v x q1 times=50; pub a v x q2 times=50; count b 100
         cut b; pub a v x q1 times=50
         conn c resume; count c 3; drop a; drop c; wait 1s; idle",
    );
}

/// A session that receives two copies of a message needs room for both.
#[test]
fn every_copy_needs_room() {
    everywhere(
        "queue=3",
        "conn b shard=1 resume expiry=100; sub b t q1; sub b $share/g/t q1; sub b $share/h/# q1
         drop b; pub a t 1 q1; pub a t 2 q1 fails=0x97
         conn b resume; count b 3; drop a; drop b; idle",
    );
}

/// A message needs no room at receivers for which it is not queued.
#[test]
fn members_with_qos_0_do_not_refuse() {
    everywhere(
        "queue=1",
        "conn b shard=1 resume expiry=100; sub b $share/g/t; drop b; sub c t q1
         pub a t 1 q1; expect c t 1 q1",
    );
}

/// A member without room is skipped if another member has room; if no member has room, the message
/// is refused.
#[test]
fn groups_choose_who_has_room() {
    everywhere(
        "queue=2",
        "conn b shard=1 resume expiry=100; sub b $share/g/t q1; drop b
         conn c shard=2 resume expiry=100; sub c $share/g/t q1; drop c
         pub a t 1 q1 times=4; pub a t 2 q1 fails=0x97
         conn b resume; count b 2; conn c resume; count c 2; pub a t 3 q1",
    );
}

/// A message that a client does not receive because of No Local needs no room.
#[test]
fn own_messages_need_no_room() {
    Scenario::run(
        "broker policy=refuse inflight=1 queue=1 pause=0ms; conn a hold; sub a t q1 nl; sub a u q1
         pub b u 1 q1; pub b u 2 q1; pub a t x q1; pub b u 3 q1 fails=0x97
         ack a; count a 2",
    );
}

#[test]
fn policies() {
    let script = "conn b shard=1 resume expiry=100; sub b t q1; drop b
         pub a t 1 q1; pub a t 2 q1; pub a t 3 q1";
    everywhere(
        "queue=2 policy=oldest",
        &format!("{script}; conn b resume; expect b t 2 q1; expect b t 3 q1; none b; idle_queues"),
    );
    everywhere(
        "queue=2 policy=new",
        &format!("{script}; conn b resume; expect b t 1 q1; expect b t 2 q1; none b; idle_queues"),
    );
    everywhere(
        "queue=2 policy=disconnect",
        &format!("{script}; conn b resume fresh; none b; idle_queues"),
    );
    // A connected client receives the refusal.
    everywhere(
        "queue=2 inflight=1 policy=disconnect pause=0ms",
        "conn b shard=1 hold; sub b t q1; pub a t 1 q1 times=4; gone b 0x97; drop a; idle",
    );
}

/// When the last queued message was dropped for a new one, the new one still has to fit the queue:
/// it is not sent at once.
#[test]
fn dropping_the_oldest_keeps_the_bounds() {
    let mut s = Scenario::run(
        "broker policy=oldest queue_bytes=80000
         conn b resume expiry=100; sub b t q1; drop b; pub a t 1 q1 size=9900 times=8
         conn b resume expiry=100 window=10; stop b; pub a t 2 q1 size=90000",
    );
    let queued = s.world().directory().totals().queued_bytes;
    assert!(queued <= 80_000, "{queued}");
}

/// Shared subscriptions also drop by policy, instead of refusing when no member has room.
#[test]
fn groups_follow_the_policy() {
    everywhere(
        "queue=2 policy=oldest",
        "conn b shard=1 resume expiry=100; sub b $share/g/t q1; drop b
         pub a t 1 q1; pub a t 2 q1; pub a t 3 q1
         conn b resume; expect b t 2 q1; expect b t 3 q1; none b",
    );
}

/// Before MQTT 5 a message can be refused only by closing the connection.
#[test]
fn refusal_before_mqtt_5() {
    everywhere(
        "queue=1",
        "conn b shard=1 resume expiry=100; sub b t q1; drop b; conn a v3; pub a t 1 q1
         pub a t 2 q1 nowait; gone a; conn b resume; expect b t 1 q1; none b",
    );
}

/// Queued QoS 0 messages for a client are not overtaken by later ones [MQTT-4.6.0-6].
#[test]
fn waiting_qos_0_is_not_overtaken() {
    everywhere(
        "qos0_offline buffer=100",
        "conn b shard=1 resume expiry=100; sub b t q1; drop b
         pub a t 1 size=90; pub a t 2 q1 size=90; pub a t 3 size=90
         conn b resume hold rm=1 window=50 present; stop b; pub a t 4 size=90; pub a t 5; pub a t 6
         read b; wait 1s; ack b; wait 1s
         expect b t 1; expect b t 2 q1; expect b t 3; expect b t 4; expect b t 5; expect b t 6",
    );
}

/// A QoS 0 copy may take the place of a QoS 1 copy that would have been sent at once.
#[test]
fn copies_with_qos_0_count() {
    everywhere(
        "total_bytes=500 buffer=300",
        "sub b $share/g/#; sub b $share/h/t q1; conn a v5; pub a t 1 q1 size=1000 fails=0x97
         none b; unsub b $share/g/#; pub a t 1 q1 size=1000; expect b t 1 q1",
    );
}

/// A queued QoS 0 copy of a message does not use the room that was reserved for another receiver's
/// copy.
#[test]
fn waiting_qos_0_does_not_take_what_is_promised() {
    for shards in [1, 2] {
        let mut s = Scenario::run(&format!(
            "broker shards={shards} total_bytes=1000 qos0_offline
             conn b shard=1 resume expiry=100; sub b t; drop b
             conn c shard=1 resume expiry=100; sub c t q1; drop c
             pub a t 1 q1 size=600"
        ));
        let queued = s.world().directory().totals().queued_bytes;
        assert!((601..=1000).contains(&queued), "{queued}");
        s.go_on("conn b resume; none b; conn c resume; expect c t 1 q1");
    }
}

/// Room that one shard has reserved is not reserved by another shard again.
#[test]
fn promises_add_up_over_shards() {
    everywhere(
        "total_bytes=1000 urgent_reserve=0",
        "conn b shard=0 resume expiry=100; sub b t q1; drop b
         conn c shard=1 resume expiry=100; sub c t q1; drop c
         conn a shard=0; pub a t 1 q1 size=600 fails=0x97; pub a t 1 q1 size=400",
    );
}

/// A part of every bound is reserved for urgent messages, so that one session with a full queue of
/// other messages does not block an alarm for all.
#[test]
fn a_part_of_every_bound_is_for_urgent_messages() {
    for bound in ["queue=10", "queue_bytes=1000", "total_bytes=1000"] {
        everywhere(
            &format!("{bound} pause=0s"),
            "conn d shard=1 resume expiry=100; sub d # q1; drop d; conn c; sub c alarm q1
             pub a log x q1 size=96 times=9; pub a log x q1 size=96 fails=0x97
             pub a alarm y q1 user=priority:0; expect c alarm y q1
             conn d resume expiry=100; expect d alarm y q1; count d 9
             drop a; drop c; drop d expiry=0; idle",
        );
    }
}
