//! Urgent messages overtake others, as far as they state it, may do so, and can. A receiver that
//! stops reading lets messages queue in the broker: with `window=100` the network holds 100 bytes,
//! and the rest waits in the broker.

use std::sync::Arc;

use punctual_broker::{AccessControl, Permissions, UrgencyRights};
use punctual_sim::Scenario;

fn everywhere(settings: &str, script: &str) {
    for shards in [1, 2] {
        for enqueue in ["own", "shared"] {
            let broker = format!("broker shards={shards} enqueue={enqueue} {settings}");
            let mut s = Scenario::run(&broker);
            s.go_on(script);
        }
    }
}

#[test]
fn priorities_overtake_plain_messages() {
    everywhere(
        "shares=0",
        "conn b window=100; sub b #; stop b; pub a log 1 size=300; pub a log 2 size=300
         pub a alarm x user=priority:7; pub a alarm y user=priority:3; pub a alarm z user=priority:7
         pub a log 3; read b
         expect b log 1; expect b alarm y; expect b alarm x; expect b alarm z
         expect b log 2; expect b log 3; none b; drop a; drop b; idle",
    );
}

#[test]
fn requirements_come_before_priorities() {
    everywhere(
        "shares=0",
        "conn b window=50; sub b #; stop b; pub a log 1 size=200
         pub a t 2 user=priority:0; pub a t 3 user=rt-priority:1; pub a t 4 user=rt-deadline:1ms
         pub a t 5 user=rt-priority:7; read b
         expect b log 1; expect b t 4; expect b t 5; expect b t 3; expect b t 2; none b",
    );
}

#[test]
fn what_is_sent_again_keeps_its_place() {
    // After a reconnection, a repeated message comes before less urgent ones, and before later ones
    // of equal urgency.
    everywhere(
        "",
        "conn b resume expiry=60 hold; sub b # q1; pub a t 1 q1; pub a t 2 q1 user=priority:3
         expect b t 1 q1; expect b t 2 q1; cut b; wait 1s
         pub a t 3 q1 user=priority:3; pub a t 4 q1; conn b resume expiry=60 present
         expect b t 2 q1 dup; expect b t 3 q1; expect b t 1 q1 dup; expect b t 4 q1
         none b; drop a; drop b; wait 61s; idle",
    );
    // A repeated QoS 2 message is neither dropped as late nor expires: otherwise its packet
    // identifier would be given to another message before the receiver has released it.
    everywhere(
        "",
        "conn b resume expiry=60 hold user=rt-late:drop; sub b t q2
         pub a t 1 q2 user=priority:3 user=rt-deadline:10ms expiry=1
         expect b t 1 q2 left=1; cut b; wait 3s; pub a t 2 q2 user=priority:3
         conn b resume expiry=60 present; expect b t 1 q2 dup left=0; expect b t 2 q2; none b",
    );
}

#[test]
fn edf_goes_by_deadline_alone() {
    everywhere(
        "shares=0 egress=edf",
        "conn b window=50; sub b #; stop b; pub a log 1 size=200
         pub a t 2 user=rt-priority:7 user=rt-deadline:9s; pub a t 3 user=rt-deadline:5s
         wait 3s; pub a t 4 user=rt-deadline:1s; read b
         expect b log 1; expect b t 4; expect b t 3; expect b t 2; none b",
    );
}

#[test]
fn fifo_knows_no_urgency() {
    everywhere(
        "egress=fifo",
        "conn b window=50; sub b #; stop b; pub a log 1 size=200; pub a t 2
         pub a t 3 user=priority:0; pub a t 4 user=rt-priority:7; read b
         expect b log 1; expect b t 2; expect b t 3; expect b t 4; none b",
    );
}

#[test]
fn rules_make_topics_urgent_and_bulk() {
    everywhere(
        "shares=0 rule=log/#:bulk rule=alarm/#:priority=0 rule=#:priority=9",
        "conn b window=50; sub b #; stop b; pub a log/1 1 size=200; pub a log/2 2; pub a x 3
         pub a alarm/a 4; pub a y 5 user=priority:4; conn c v3; pub c alarm/b 6; read b
         expect b log/1 1; expect b alarm/a 4; expect b alarm/b 6; expect b y 5; expect b x 3
         expect b log/2 2; none b; drop a; drop b; drop c; idle",
    );
}

#[test]
fn connect_and_will_state_urgency() {
    everywhere(
        "shares=0",
        "conn b window=50; sub b #; conn a user=priority:5 will=w:4 will_user=priority:1; stop b
         conn c; pub c t 1 size=200; pub c t 2; pub a t 3; cut a; read b
         expect b t 1; expect b w 4; expect b t 3; expect b t 2; none b",
    );
}

#[test]
fn acknowledged_messages_overtake_others() {
    everywhere(
        "shares=0",
        "conn b window=100; sub b # q1; stop b
         pub a log 1 q1 size=300; pub a log 2 q1 size=300; pub a alarm x q1 user=priority:0; read b
         expect b log 1 q1; expect b alarm x q1; expect b log 2 q1; none b
         drop a; drop b; idle",
    );
}

#[test]
fn queued_messages_leave_by_urgency() {
    everywhere(
        "",
        "conn b rm=1 hold resume expiry=100; sub b # q1
         pub a log 1 q1; pub a log 2 q1; pub a t 3 q1 user=priority:8; pub a t 4 q1 user=priority:2
         expect b log 1 q1; none b; ack b; expect b t 4 q1; ack b; expect b t 3 q1; ack b
         expect b log 2 q1; none b; drop b; pub a log 5 q1; pub a t 6 q1 user=rt-priority:0
         conn b resume expiry=100; expect b t 6 q1; expect b log 5 q1; none b
         drop a; drop b expiry=0; idle",
    );
}

#[test]
fn late_messages_are_dropped_if_wished() {
    everywhere(
        "",
        "conn b window=50; sub b #; stop b; pub a log 1 size=200
         pub a t 2 user=rt-deadline:1s user=rt-late:drop; pub a t 3 user=rt-deadline:1s
         pub a t 4 user=priority:0 expiry=1; wait 2s; read b
         expect b log 1; expect b t 3; none b; drop a; drop b; idle",
    );
}

#[test]
fn a_late_acknowledged_message_frees_its_place() {
    everywhere(
        "",
        "conn b window=50 rm=2; sub b # q1; stop b; pub a log 1 q1 size=200
         pub a t 2 q1 user=rt-deadline:1s user=rt-late:drop; wait 2s; pub a log 3 q1; read b
         expect b log 1 q1; expect b log 3 q1; none b; drop a; drop b; idle",
    );
}

#[test]
fn full_lanes_keep_the_most_urgent() {
    let fill = "conn b window=50; sub b #; stop b; pub a log 1 size=200
                pub a t 2 user=priority:5; pub a t 3 user=priority:5; pub a t 4 user=priority:1
                pub a t 5 user=priority:5; pub a t 6 user=rt-priority:0; pub a t 7 user=priority:9
                read b; expect b log 1; expect b t 6; expect b t 4";
    everywhere(
        "lanes=3 overflow=evict shares=0",
        &format!("{fill}; expect b t 5; none b; drop a; drop b; idle"),
    );
    everywhere(
        "lanes=3 overflow=refuse shares=0",
        &format!("{fill}; expect b t 3; none b; drop a; drop b; idle"),
    );
    // A message that cannot be queued takes no room from more urgent ones.
    for overflow in ["evict", "refuse"] {
        everywhere(
            &format!("lanes=2 overflow={overflow} shares=0"),
            "conn b window=50; sub b # q1; stop b; pub a log 1 size=200
             pub a t 2 q1 user=priority:9 times=5; pub a t 3 user=rt-priority:7
             pub a t 4 user=rt-priority:7; read b; expect b log 1; expect b t 3; expect b t 4
             count b 5; none b; drop a; drop b; idle",
        );
    }
}

#[test]
fn shares_keep_plain_messages_going() {
    everywhere(
        "shares=160",
        "conn b window=50; sub b #; stop b; pub a log 1 size=200; pub a log 2 size=100
         pub a t 3 user=priority:0 size=1000 times=12; read b; expect b log 1
         expect b t 3 size=1000; expect b log 2",
    );
}

#[test]
fn acknowledgements_do_not_wait() {
    everywhere(
        "",
        "conn b window=50; sub b #; stop b; pub a log 1 size=5000; pub b own 2 q1 nowait; read b
         expect b log 1; expect b own 2; none b",
    );
}

#[test]
fn large_messages_are_not_cut_by_urgent_ones() {
    everywhere(
        "shares=0",
        "conn b window=700; sub b #; stop b; pub a log 1 size=50000; pub a log 2 size=20000
         pub a log 3 size=9000 user=priority:1; pub a log 4 user=priority:0; read b
         expect b log 1; expect b log 4; expect b log 3; expect b log 2; none b",
    );
}

#[test]
fn a_connection_may_choose_its_classes() {
    everywhere(
        "",
        "conn b user=rt-classes:0,1; sub b #; conn c user=rt-classes:2,3; sub c #
         pub a t 1; pub a t 2 user=priority:0; pub a t 3 q1 user=rt-priority:1
         expect b t 2; expect b t 3; none b; expect c t 1; none c",
    );
}

#[test]
fn what_is_not_understood_is_carried_and_told() {
    everywhere(
        "",
        "conn b; sub b #; pub a t 1 q1 user=priority:high; expect b t 1
         pub a t 2 user=rt-deadline:soon; expect b t 2; pub a t 3 q2 user=rt-what:1; expect b t 3",
    );
}

/// A client that marks all messages as most urgent delays other messages by no more than the shares
/// allow, and delays no real-time message.
#[test]
fn a_flood_of_priority_0_leaves_others_their_shares() {
    for shards in [1, 2] {
        let mut s = Scenario::run(&format!("broker shards={shards} shares=160"));
        s.go_on(
            "conn b window=50; sub b #; stop b; pub a log 0 size=200
             pub f flood x user=priority:0 size=200 times=300
             pub a log 1 size=200 times=30; pub a t 2 user=rt-priority:7; read b; wait 60s",
        );
        let topics: Vec<String> = s.take_inbox("b").into_iter().map(|m| m.topic).collect();
        assert_eq!(topics.len(), 332, "nothing is lost");
        let at = |topic: &str| topics.iter().position(|t| t == topic);
        assert!(
            at("t") <= Some(2),
            "one packet was on its way: {:?}",
            at("t")
        );
        let plain = |first: usize| topics[..first].iter().filter(|t| *t == "log").count();
        // 16 % of the bytes, whatever the flood sends; the flood gets the others.
        assert!((12..=20).contains(&plain(100)), "{}", plain(100));
        assert!(plain(220) >= 30, "{}", plain(220));
        s.go_on("drop a; drop b; drop f; idle");
    }
}

/// Client `f` may publish and subscribe to all topics, with these rights to urgency.
#[derive(Debug)]
struct OfF(UrgencyRights);

/// No right to any urgency.
const NONE: UrgencyRights = UrgencyRights {
    max_rt_priority: None,
    min_priority: None,
};

#[derive(Debug)]
struct Rights(UrgencyRights);

impl AccessControl for OfF {
    fn permissions(&self, _: Option<&str>, client_id: &str) -> Option<Arc<dyn Permissions>> {
        let rights = match client_id {
            "f" => self.0,
            _ => UrgencyRights::ALL,
        };
        Some(Arc::new(Rights(rights)))
    }
}

impl Permissions for Rights {
    fn may_publish(&self, _: &str) -> bool {
        true
    }

    fn may_receive(&self, _: &str) -> bool {
        true
    }

    fn may_subscribe(&self, _: &str) -> bool {
        true
    }

    fn urgency(&self, _: &str) -> UrgencyRights {
        self.0
    }
}

#[test]
fn a_flood_of_who_has_no_right_to_urgency_overtakes_nobody() {
    for shards in [1, 2] {
        let mut s = Scenario::run(&format!("broker shards={shards} shares=0"));
        let access = Arc::new(OfF(NONE));
        s.world().directory().set_access_control(Some(access));
        s.go_on(
            "conn b window=50; sub b #; conn f user=priority:0 will=w:x will_user=priority:0; stop b
             pub a log 0 size=200; pub a log 1; pub f t 2 user=rt-priority:7; pub f t 3
             pub f t 4 q1 user=priority:0; pub a alarm 5 user=priority:9; cut f; pub a log 6; read b
             expect b log 0; expect b alarm 5; expect b log 1; expect b t 2; expect b t 3
             expect b t 4; expect b w x; expect b log 6; none b",
        );
    }
}

/// A right to an `rt-priority` also limits deadlines: a deadline without a priority implies one,
/// and where the deadline alone determines the order, it counts only as far as the right allows.
#[test]
fn a_short_deadline_is_no_way_around_the_right_to_a_priority() {
    for policy in ["fixed", "edf"] {
        for shards in [1, 2] {
            let broker = format!("broker shards={shards} shares=0 egress={policy}");
            let mut s = Scenario::run(&broker);
            let access = Arc::new(OfF(UrgencyRights {
                max_rt_priority: Some(3),
                min_priority: None,
            }));
            s.world().directory().set_access_control(Some(access));
            s.go_on(
                "conn b window=50; sub b #; stop b; pub a log 0 size=200; pub a log 1
                 pub f t 2 user=rt-deadline:1us; pub f t 3 user=rt-priority:3 user=rt-deadline:1ns
                 pub f t 4 user=rt-deadline:100ms; pub a t 5 user=rt-priority:5
                 pub a t 6 user=rt-priority:6; read b
                 expect b log 0; expect b t 6; expect b t 5; expect b t 3; expect b t 4
                 expect b log 1; expect b t 2; none b",
            );
        }
    }
}

/// For a receiver that has stopped reading, the number of urgent messages is bounded; they delay no
/// other client, and are discarded when the receiver leaves.
#[test]
fn who_stops_reading_holds_a_bounded_number_of_urgent_messages() {
    everywhere(
        "lanes=5",
        "conn b window=50; sub b #; conn c; sub c t; stop b; pub a log 0 size=200
         pub a t x user=priority:1 times=1000; count c 1000
         pub a t y user=rt-priority:7; expect c t y; cut b; none c; drop a; drop c; idle",
    );
    everywhere(
        "lanes=5 shares=0",
        "conn b window=50; sub b #; stop b; pub a log 0 size=200
         pub a t x user=priority:1 times=1000; pub a t y user=rt-priority:7; read b
         expect b log 0; expect b t y; count b 4; drop a; drop b; idle",
    );
    // With QoS 1 the window limits them, then the queue; after that the publisher's messages are
    // refused.
    everywhere(
        "policy=refuse lanes=5 inflight=10 queue=20 pause=0s",
        "conn b window=50 hold; sub b # q1; stop b; pub a log 0 q1 size=200
         pub a t x q1 user=priority:1 times=29; pub a t y q1 user=priority:1 fails=0x97
         read b; count b 10; cut b; drop a; idle",
    );
}

/// Sequence numbers count the messages for the session, whether they are delivered or not.
#[test]
fn a_subscriber_may_have_its_messages_numbered() {
    let on = "user=rt-sequence:on";
    everywhere(
        "",
        &format!(
            "pub p t old retain; sub b t/# q1 {on}; expect b t old retain number=0
             sub c t/#; pub p t 1; pub p t 2 q1; pub p t/x 3; pub p t 4 user=priority:3
             expect b t 1 number=1; expect b t 2 q1 number=2; expect b t/x 3 number=0
             expect b t 4 number=3; count c 5
             sub b t/# q1 user=rt-sequence:off rh=2; pub p t 5; expect b t 5
             sub b t/# q1 {on} rh=2; pub p t 6; expect b t 6 number=4
             sub b t q0 rh=2; pub p t 7; expect b t 7 number=5; none b"
        ),
    );
    // Overtaking, dropped and repeated messages keep their numbers.
    everywhere(
        "lanes=2 shares=0",
        &format!(
            "conn b window=50; sub b # {on}; stop b; pub a log 0 size=200
             pub a t 0 user=priority:5; pub a t 1 user=priority:5; pub a t 2 user=priority:5
             pub a t 3 user=priority:1; read b; expect b log 0 number=0
             expect b t 3 number=3; expect b t 2 number=2; none b"
        ),
    );
    everywhere(
        "",
        &format!(
            "conn b resume expiry=60 hold; sub b t q1 {on}; pub a t 0 q1; pub a t 1 q1
             expect b t 0 q1 number=0; expect b t 1 q1 number=1; cut b; wait 1s
             pub a t 2; pub a t 3 q1; conn b resume expiry=60 present
             expect b t 0 q1 dup number=0; expect b t 1 q1 dup number=1
             expect b t 3 q1 number=3; none b"
        ),
    );
    // A refused message has no number for the receiver.
    everywhere(
        "policy=refuse inflight=1 queue=1 pause=0s",
        &format!(
            "conn b hold; sub b t q1 {on}; pub a t 0 q1; pub a t 1 q1; pub a t 2 q1 fails=0x97
             expect b t 0 q1 number=0; ack b; expect b t 1 q1 number=1; ack b
             pub a t 3 q1; expect b t 3 q1 number=2"
        ),
    );
    // If there are more topics than the broker counts, the numbers of all topics start again.
    everywhere(
        "numbered=2",
        &format!(
            "sub b # {on}; pub a t 0; pub a t 1; pub a u 0; pub a v 0; pub a t 2
             expect b t 0 number=0; expect b t 1 number=1; expect b u 0 number=0
             expect b v 0 number=0; expect b t 2 number=0"
        ),
    );
    // Each member of a shared subscription has its own numbers.
    everywhere(
        "",
        &format!(
            "sub b $share/g/t {on}; sub c $share/g/t {on}; pub a t 0; pub a t 1; pub a t 2; pub a t 3
             expect b t 0 number=0; expect c t 1 number=0; expect b t 2 number=1
             expect c t 3 number=1"
        ),
    );
}

/// One receiver has stopped reading, another receives only the urgent message: both are sent the
/// urgent message at once, though other messages fill the first one's queue.
#[test]
fn full_queues_refuse_no_urgent_message_that_is_sent_at_once() {
    let mut s = Scenario::run("broker shards=1 buffer=2000 queue=5 pause=0s");
    s.go_on(
        "conn b window=50; sub b # q1; conn c; sub c alarm q1; stop b
         pub a log x q1 size=500 times=10; pub a alarm y q1 user=priority:0
         expect c alarm y q1; none c",
    );
    let mut s = Scenario::run("broker shards=1 buffer=2000 queue=5 pause=0s");
    s.go_on(
        "conn b window=50; sub b $share/g/# q1; stop b; pub a log x q1 size=500 times=10
         pub a alarm y q1 user=priority:0; read b
         expect b log x q1; expect b alarm y q1",
    );
}

#[test]
fn urgent_messages_do_not_wait_for_retained_ones() {
    everywhere(
        "",
        "pub a r/1 1 q1 retain; pub a r/2 2 q1 retain; pub a r/3 3 q1 retain
         conn b rm=1 hold; sub b # q1; pub a log z q1; pub a alarm y q1 user=priority:0
         expect b r/1 1 q1 retain; ack b; expect b alarm y q1; ack b
         expect b r/2 2 q1 retain; ack b; expect b r/3 3 q1 retain; ack b
         expect b log z q1; none b; drop a; drop b; idle",
    );
}

#[test]
fn bulk_waits_behind_normal_messages_in_sessions() {
    everywhere(
        "rule=bulk/#:bulk",
        "conn d resume expiry=100; sub d # q1; drop d
         pub a bulk/x 1 q1; pub a n 2 q1; pub a bulk/x 3 q1; pub a n 4 q1
         conn d resume expiry=100 present
         expect d n 2 q1; expect d n 4 q1; expect d bulk/x 1 q1; expect d bulk/x 3 q1; none d
         drop a; drop d expiry=0; idle",
    );
}

#[test]
fn bulk_goes_before_normal_messages_from_full_queues() {
    everywhere(
        "policy=oldest queue=2 rule=bulk/#:bulk",
        "conn d resume expiry=100; sub d # q1; drop d
         pub a n 1 q1; pub a bulk/x 2 q1; pub a bulk/x 3 q1; pub a n 4 q1; pub a bulk/x 5 q1
         conn d resume expiry=100 present; expect d n 1 q1; expect d n 4 q1; none d
         drop a; drop d expiry=0; idle",
    );
}

/// Messages that expire while the receiver does not read are not sent, with any QoS; and urgent
/// messages do not wait for them.
#[test]
fn plain_messages_expire_behind_a_receiver_that_does_not_read() {
    for qos in ["", "q1"] {
        everywhere(
            "shares=0 rule=bulk/#:bulk",
            &format!(
                "conn b window=50; sub b # q1; stop b; pub a log 1 {qos} size=200
                 pub a t 2 {qos} expiry=1; pub a bulk/t 3 {qos} expiry=1; pub a t 4 {qos}
                 pub a alarm 5 {qos} user=priority:0; pub a t 6 {qos} expiry=100
                 wait 3s; read b; expect b log 1 {qos}; expect b alarm 5 {qos}
                 expect b t 4 {qos}; count b 1
                 drop a; drop b; idle"
            ),
        );
    }
}

/// Bulk messages that fill their lane leave the lane of normal messages free.
#[test]
fn bulk_leaves_room_for_normal_messages() {
    everywhere(
        "rule=bulk/#:bulk buffer=2000 pause=0s",
        "conn b window=50; sub b #; stop b; pub a bulk/x 1 size=900 times=10; wait 1s
         pub a t 2; read b; expect b bulk/x 1; expect b t 2",
    );
}
