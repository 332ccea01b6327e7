//! Real brokers of a mesh: they form one tree, messages cross it once, and when the
//! root is killed the others go on by a spare link.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "http/broker.rs"]
#[allow(dead_code, reason = "the tests of the HTTP interface need more of it")]
mod broker;
#[path = "support/secret.rs"]
mod secret;
#[path = "support/talk.rs"]
mod talk;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use broker::{Broker, PATIENCE};
use punctual_client::{
    Client, Config, Error, Event, Message, Options, PropertyBuf, PropertyId, QoS, ReasonCode, Url,
};
use punctual_mesh::tree::Advert;
use punctual_mesh::wire::{self, Hello, Open};
use punctual_mesh::{BrokerId, Rank, Strategy};
use punctual_model::{Nanos, Status};
use serde_json::{Value, json};
use talk::{payloads, publish, received, subscribed};
use tempfile::{NamedTempFile, TempDir};

struct Member {
    broker: Broker,
    _config: NamedTempFile,
}

/// Takes everything from a broker that is to start again.
fn kill(member: Member) {
    member.broker.signal(libc::SIGKILL);
}

impl Member {
    fn start(id: &str, keys: &str, neighbours: &[&Self]) -> Self {
        Self::with_sys(id, keys, neighbours, "off")
    }

    fn with_sys(id: &str, keys: &str, neighbours: &[&Self], interval: &str) -> Self {
        // Most tests begin with one that is alone, and is to serve at once.
        let keys = match keys.contains("join_wait") {
            true => keys.to_owned(),
            false => format!("join_wait = \"0s\"\n{keys}"),
        };
        let addresses: Vec<String> = neighbours
            .iter()
            .map(|other| format!("\"{}\"", other.broker.tcp))
            .collect();
        let neighbours = format!("neighbours = [{}]", addresses.join(", "));
        Self::configured(id, &format!("{neighbours}\n{keys}"), interval)
    }

    /// With keys that say who its neighbours are.
    fn alone(id: &str, keys: &str) -> Self {
        Self::configured(id, keys, "off")
    }

    fn configured(id: &str, keys: &str, interval: &str) -> Self {
        let keys = format!(
            "enabled = true\nid = \"{id}\"\nsecret_file = {:?}\nhello = \"200ms\"\n{keys}",
            secret::FILE
        );
        Self::of(&keys, interval)
    }

    /// With these keys of the mesh and tables behind it, and no others.
    fn of(keys: &str, interval: &str) -> Self {
        let config = NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(config.path(), format!("[mesh]\n{keys}\n")).unwrap();
        let arguments = ["--config", config.path().to_str().unwrap()];
        let broker = Broker::with_sys(&arguments, interval);
        Self {
            broker,
            _config: config,
        }
    }

    /// Messages with QoS 1 that it has received so far, from clients and neighbours.
    #[track_caller]
    fn received_with_qos_1(&self) -> u64 {
        let metrics = self.broker.get("/metrics").body;
        let line = metrics
            .lines()
            .find(|line| {
                line.starts_with("punctual_messages_received_total") && line.contains("qos=\"1\"")
            })
            .unwrap_or_else(|| panic!("{metrics}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    fn status(&self) -> Value {
        self.broker.get("/api/v1/mesh").ok()
    }

    /// Waits until the broker's view of the mesh is as wanted.
    #[track_caller]
    fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "never {what}: {status:#}");
            std::thread::yield_now();
        }
    }

    #[track_caller]
    fn attached(&self, root: &str) -> Value {
        self.until(&format!("attached to {root}"), |status| {
            status["root"] == *root && status["attached"] == true
        })
    }

    /// Waits until a neighbour is known to want something, over a link that carries.
    #[track_caller]
    fn wants(&self, peer: &str) {
        self.until(&format!("{peer} wants something"), |status| {
            let links = status["links"].as_array().unwrap().iter();
            let mut links = links.filter(|link| link["peer"] == *peer);
            links.any(|link| {
                let carries = ["parent", "child"].contains(&link["state"].as_str().unwrap());
                carries && link["filters"].as_u64() > Some(0)
            })
        });
    }

    /// Who says nothing of a mesh yet, but is let in as a broker.
    fn neighbour(&self, name: &str) -> Client {
        talk::connect(
            self.broker.tcp,
            Config {
                client_id: format!("$mesh/{name}"),
                username: Some(secret::USER.into()),
                password: Some(secret::SECRET.into()),
                ..Config::default()
            },
        )
    }

    fn client(&self, id: &str) -> Client {
        talk::connect(
            self.broker.tcp,
            Config {
                client_id: id.into(),
                ..Config::default()
            },
        )
    }

    /// One with a session that is there the next time.
    fn lasting(&self, id: &str) -> Client {
        self.returning(id).0
    }

    /// The same, and whether it found the session.
    fn returning(&self, id: &str) -> (Client, bool) {
        let mut properties = PropertyBuf::new();
        properties.push_number(PropertyId::SessionExpiryInterval, u32::MAX);
        talk::returning(
            self.broker.tcp,
            Config {
                client_id: id.into(),
                clean_start: false,
                properties,
                ..Config::default()
            },
        )
    }
}

/// How a broker answers CONNECT, with a reason code of MQTT 5 or 3.1.1.
fn connack(member: &Member, level: u8) -> u8 {
    use std::io::Read as _;
    let mut connect = vec![0x10, 0, 0, 4, b'M', b'Q', b'T', b'T', level, 2, 0, 0];
    if level == 5 {
        connect.push(0);
    }
    connect.extend([0, 1, b'x']);
    connect[1] = connect.len() as u8 - 2;
    let mut stream = std::net::TcpStream::connect(member.broker.tcp).unwrap();
    stream.write_all(&connect).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 0x20);
    answer[3]
}

/// A broker is new, or its disk is, and its clients come before it has found the mesh: it confirms
/// nothing before what others want is here.
#[test]
fn a_broker_lets_nobody_in_before_it_has_joined() {
    let b = Member::start("b", "join_wait = \"10m\"", &[]);
    assert_eq!((connack(&b, 5), connack(&b, 4)), (0x88, 3));
    let ready = b.broker.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("has not joined"), "{}", ready.body);
    assert_eq!(b.status()["membership"], "joining");
    let a = Member::start("a", "", &[]);
    let mut far = subscriber(&a, "far", "t/#");
    assert_eq!(add(&a, &b.broker.tcp.to_string()).status, 204);
    let start = Instant::now();
    while b.broker.get("/readyz").status != 200 {
        assert!(start.elapsed() < PATIENCE);
    }
    let mut publisher = b.client("publisher");
    for i in 0..20 {
        publish(&mut publisher, "t/1", &i.to_string(), QoS::AtLeastOnce);
    }
    let expected: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    assert_eq!(payloads(&mut far, 20), expected);
}

/// One that knows nobody reaches none of the neighbours that are named: it says so, instead of
/// acknowledging what nobody else will get.
#[test]
fn a_broker_that_reaches_none_of_its_neighbours_takes_no_publications() {
    // Nobody listens there.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let neighbours = format!("join_wait = \"10ms\"\nneighbours = [\"{closed}\"]");
    let a = Member::alone("a", &neighbours);
    a.until("stranded", |status| status["membership"] == "stranded");
    assert_eq!(a.broker.get("/readyz").status, 503);
    let mut client = subscriber(&a, "client", "t");
    let message = Message::new("t", "x").qos(QoS::AtLeastOnce);
    client.publish(&message).unwrap();
    let refused = loop {
        match client.next(Some(PATIENCE)).unwrap() {
            Some(Event::Published { reason, .. }) => break reason,
            Some(_) => {}
            None => panic!("no acknowledgement"),
        }
    };
    assert_eq!(refused, ReasonCode::QuotaExceeded);
    let metrics = a.broker.get("/metrics").body;
    assert!(
        metrics.contains("punctual_messages_refused_total{reason=\"not_joined\"} 1"),
        "{metrics}"
    );
    // What is not acknowledged is given to who is here.
    client.publish(&Message::new("t", "y")).unwrap();
    assert_eq!(payloads(&mut client, 1), ["y"]);
}

fn subscriber(member: &Member, id: &str, filter: &str) -> Client {
    subscribed(member.client(id), filter)
}

#[test]
fn load_crosses_from_publishers_to_subscribers_at_another_broker() {
    let a = Member::start("a", "gamma = 1000000", &[]);
    let b = Member::start("b", "", &[&a]);
    b.attached("a");
    let port = |member: &Member| member.broker.tcp.port().to_string();
    let (near, far) = (port(&a), port(&b));
    for (scenario, qos) in [("3-2", "1"), ("4pairs", "2")] {
        let ports = ["--port", &near, "--subscribers-port", &far, "--qos", qos];
        let load = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args(["bench", "load", scenario, "--messages", "200", "--strict"])
            .args(ports)
            .output()
            .unwrap();
        assert!(load.status.success(), "{load:?}");
    }
    // Each of three publishers' messages once, for both subscribers.
    assert_eq!(b.received_with_qos_1(), 600);
}

/// No bound covers the way to another broker.
#[test]
fn what_leaves_for_another_broker_is_not_promised() {
    let admission = "[server]\nshards = 1\n[admission]\nenabled = true\n\
                     places = [\"client *: hosts\"]";
    let a = Member::start("a", &format!("gamma = 1000000\n{admission}"), &[]);
    let b = Member::start("b", "", &[&a]);
    b.attached("a");
    let mut properties = PropertyBuf::new();
    for (key, value) in [("rt-deadline", "20ms"), ("rt-period", "50ms")] {
        properties.push_user(key, value).unwrap();
    }
    let message = Message {
        properties,
        ..Message::new("axis/1", "17").qos(QoS::AtLeastOnce)
    };
    let mut publisher = a.client("press");
    let mut told = || loop {
        publisher.publish(&message).unwrap();
        let answer = loop {
            match publisher.next(Some(PATIENCE)).unwrap() {
                Some(event @ Event::Published { .. }) => break event.answer(),
                Some(_) => {}
                None => panic!("no acknowledgement"),
            }
        };
        // Only changes are told.
        if let Some(answer) = answer {
            break answer;
        }
    };
    assert_eq!(told().status, Some(Status::Admitted));
    let mut far = subscriber(&b, "far", "axis/#");
    let answer = told();
    assert_eq!(answer.status, Some(Status::BestEffort), "{answer:?}");
    let reason = answer.reason.unwrap();
    assert!(reason.contains("over the mesh to b"), "{reason}");
    assert_eq!(answer.bound, None);
    let flow = a.broker.get("/api/v1/flows/axis/1@press").ok();
    assert_eq!(flow["status"], "best-effort", "{flow}");
    assert!(!payloads(&mut far, 1).is_empty());
    drop(far);
    assert_eq!(told().status, Some(Status::Admitted));
}

#[test]
fn three_brokers_are_one_and_survive_the_root() {
    let a = Member::start("a", "gamma = 1000000", &[]);
    let b = Member::start("b", "", &[&a]);
    let c = Member::start("c", "", &[&a, &b]);
    for member in [&a, &b, &c] {
        member.attached("a");
    }
    for member in [&b, &c] {
        member.until("a child of a", |status| status["parent"] == "a");
    }
    assert_eq!(a.broker.get("/readyz").status, 200);

    let mut at_c = subscriber(&c, "at-c", "t/#");
    let mut at_b = subscriber(&b, "at-b", "t/+");
    a.wants("c");
    b.wants("a");
    c.wants("a");
    let mut publisher = b.client("publisher");
    for (i, qos) in [QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::AtLeastOnce]
        .into_iter()
        .enumerate()
    {
        publish(&mut publisher, "t/1", &i.to_string(), qos);
    }
    assert_eq!(payloads(&mut at_c, 3), ["0", "1", "2"]);
    assert_eq!(payloads(&mut at_b, 3), ["0", "1", "2"]);
    // Messages are known by their names: equal ones are two.
    for _ in 0..2 {
        publish(&mut publisher, "t/1", "equal", QoS::ExactlyOnce);
    }
    assert_eq!(payloads(&mut at_c, 2), ["equal"; 2]);
    assert_eq!(payloads(&mut at_b, 2), ["equal"; 2]);
    // Where the tree is not what it was when the others told, it is by now.
    c.until("a child of a", |status| status["parent"] == "a");

    // Who gets it, and how. While the tree changes, not everybody is asked.
    let ask = || b.broker.get("/api/v1/mesh/trace/t/1").ok();
    b.until("all answer", |_| {
        let trace = ask();
        let all = trace.as_array().unwrap();
        let by_root = all
            .iter()
            .any(|it| it["broker"] == "c" && it["path"][1][0] == "a");
        all.len() == 3 && by_root
    });
    let trace = ask();
    let trace = trace.as_array().unwrap();
    let of = |name: &str| {
        trace
            .iter()
            .find(|answer| answer["broker"] == *name)
            .unwrap()
    };
    assert_eq!(of("b")["subscribed"], true);
    assert_eq!(of("a")["subscribed"], false);
    assert_eq!(of("c")["subscribed"], true);
    let path = of("c")["path"].as_array().unwrap();
    assert_eq!(
        path.iter().map(|hop| &hop[0]).collect::<Vec<_>>(),
        ["b", "a", "c"]
    );
    // It ends when all have answered: 1.5 s each, for who does not, would take too long.
    let start = Instant::now();
    for _ in 0..60 {
        let again = b.broker.get("/api/v1/mesh/trace/t/1").ok();
        assert_eq!(again.as_array().unwrap().len(), 3);
        assert!(start.elapsed() < PATIENCE);
    }

    // The root is killed: what is published from then on arrives over the link
    // between b and c, once. On a busy machine what went to the root may come after
    // newer messages, which wait for it for half a second only.
    a.broker.signal(libc::SIGKILL);
    for i in 3..50 {
        publish(&mut publisher, "t/2", &i.to_string(), QoS::ExactlyOnce);
    }
    let expected: Vec<String> = (3..50).map(|i| i.to_string()).collect();
    assert_eq!(payloads(&mut at_b, 47), expected);
    let mut all = payloads(&mut at_c, 47);
    all.sort_by_key(|payload| payload.parse::<u32>().unwrap());
    assert_eq!(all, expected);
    b.attached("b");
    assert_eq!(c.attached("b")["parent"], "b");
}

/// Somebody with a will.
fn mortal(member: &Member, id: &str, delay: u32) -> Client {
    let mut properties = PropertyBuf::new();
    properties.push_number(PropertyId::WillDelayInterval, delay);
    properties.push_user("who", id).unwrap();
    let mut will = Message::new("t/gone", id.to_owned()).qos(QoS::ExactlyOnce);
    will.properties = properties;
    let mut lasts = PropertyBuf::new();
    lasts.push_number(PropertyId::SessionExpiryInterval, delay);
    talk::connect(
        member.broker.tcp,
        Config {
            client_id: id.into(),
            will: Some(will),
            properties: lasts,
            ..Config::default()
        },
    )
}

/// What is left behind by clients whose sessions end with their connections is in the store: by who had
/// no time to say so, and not by who left properly. In a mesh, and alone.
#[test]
fn wills_without_a_session_outlive_kill_9() {
    for enabled in [true, false] {
        let data = TempDir::new().unwrap();
        let keys = format!(
            "will_wait = \"1s\"\nenabled = {enabled}\nid = \"a\"\nsecret_file = {:?}\njoin_wait = \"0s\"\n\
             [server]\ndata = {:?}",
            secret::FILE,
            data.path()
        );
        let a = Member::of(&keys, "off");
        let at_a = a.lasting("at-a");
        let at_a = subscribed(at_a, "t/#");
        let _gone = mortal(&a, "gone", 0);
        let mut well = mortal(&a, "well", 0);
        well.disconnect(ReasonCode::Success, &PropertyBuf::new())
            .unwrap();
        while let Ok(Some(_)) = well.next(Some(PATIENCE)) {}
        // It is let in again when that is on disk.
        drop(a.lasting("well"));
        drop(at_a);
        kill(a);
        let a = Member::of(&keys, "off");
        let (mut at_a, found) = a.returning("at-a");
        assert!(found);
        assert_eq!(payloads(&mut at_a, 1), ["gone"], "in a mesh: {enabled}");
        // It is published once.
        drop(at_a);
        kill(a);
        let a = Member::of(&keys, "off");
        let (mut at_a, _) = a.returning("at-a");
        publish(&mut a.client("publisher"), "t/now", "now", QoS::AtLeastOnce);
        assert_eq!(payloads(&mut at_a, 1), ["now"], "in a mesh: {enabled}");
    }
}

#[test]
fn wills_of_a_killed_broker_are_published_by_the_others() {
    let keys = "will_wait = \"1s\"";
    let a = Member::start("a", &format!("gamma = 1000000\n{keys}"), &[]);
    let b = Member::start("b", keys, &[&a]);
    let c = Member::start("c", keys, &[&b]);
    c.attached("a");
    let mut at_a = subscriber(&a, "at-a", "t/#");
    let _gone = mortal(&c, "gone", 0);
    let mut well = mortal(&c, "well", 0);
    let mut moved = mortal(&c, "moved", 1);
    c.until("all wills told", |status| status["wills"] == 3);
    // Who leaves properly leaves nothing behind.
    well.disconnect(ReasonCode::Success, &PropertyBuf::new())
        .unwrap();
    c.until("one will less", |status| status["wills"] == 2);
    // Who connects elsewhere is taken over, as by one broker.
    let _moved = mortal(&a, "moved", 1);
    let reason = loop {
        match moved.next(Some(PATIENCE)) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("still connected to c"),
            Err(error) => break error,
        }
    };
    let Error::Disconnected(farewell) = &reason else {
        panic!("{reason}");
    };
    assert_eq!(farewell.reason, ReasonCode::SessionTakenOver);
    c.until("one will", |status| status["wills"] == 1);
    // b keeps it, and the one at a.
    b.until("two kept", |status| status["wills_kept"] == 2);
    kill(c);
    let wills = received(&mut at_a, 1);
    let all: Vec<_> = wills
        .iter()
        .map(|will| (&*will.topic, &*will.payload, will.qos))
        .collect();
    assert_eq!(all, [("t/gone", &b"gone"[..], QoS::ExactlyOnce)]);
    let properties = wills[0].properties.as_properties();
    assert_eq!(properties.user().collect::<Vec<_>>(), [("who", "gone")]);
}

#[test]
fn topics_below_sys_tell_of_the_federation() {
    let a = Member::start("a", "gamma = 1000000", &[]);
    let b = Member::with_sys("b", "", &[&a], "1s");
    b.attached("a");
    b.until("a child of a", |status| status["parent"] == "a");
    let mut client = subscriber(&b, "client", "$SYS/federation/#");
    let wanted = [
        ("id", "b"),
        ("strategy", "subscription-table"),
        ("root", "a"),
        ("parent", "a"),
        ("attached", "1"),
        ("hops", "1"),
        ("brokers", "2"),
        ("links/a/state", "parent"),
        ("wills", "0"),
    ];
    let mut known = BTreeMap::new();
    let start = Instant::now();
    let is_so = |known: &BTreeMap<String, String>| {
        wanted.iter().all(|(topic, value)| {
            let topic = format!("$SYS/federation/{topic}");
            known.get(&topic).is_some_and(|known| known == value)
        })
    };
    while !is_so(&known) {
        assert!(start.elapsed() < PATIENCE, "{known:?}");
        if let Some(Event::Message(delivery)) = client.next(Some(PATIENCE)).unwrap() {
            let payload = String::from_utf8(delivery.message.payload).unwrap();
            known.insert(delivery.message.topic, payload);
        }
    }
}

/// Publishes a retained message, an empty one to remove what there is.
fn retain(publisher: &mut Client, topic: &str, payload: &str) {
    let message = Message::new(topic, payload.to_owned());
    publisher
        .publish(&message.qos(QoS::AtLeastOnce).retained())
        .unwrap();
    while !matches!(
        publisher.next(Some(PATIENCE)).unwrap(),
        Some(Event::Published { .. })
    ) {}
}

/// Waits until a broker retains these messages below `t/`.
#[track_caller]
fn retains(member: &Member, wanted: &[(&str, &str)]) {
    let start = Instant::now();
    loop {
        let page = member.broker.get("/api/v1/retained?filter=t/%23").ok();
        let messages = page["messages"].as_array().unwrap().iter();
        let topics: Vec<&str> = messages
            .map(|message| message["topic"].as_str().unwrap())
            .collect();
        let is_so = topics.len() == wanted.len()
            && wanted.iter().all(|(topic, payload)| {
                let path = format!("/api/v1/retained/{topic}");
                topics.contains(topic) && member.broker.get(&path).ok()["text"] == *payload
            });
        if is_so {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{page:#}, not {wanted:?}");
        std::thread::yield_now();
    }
}

#[test]
fn who_subscribes_late_finds_what_is_retained_at_every_broker() {
    let a = Member::start("a", "gamma = 1000000", &[]);
    let mut publisher = a.client("publisher");
    retain(&mut publisher, "t/before", "there");
    let b = Member::start("b", "", &[&a]);
    let c = Member::start("c", "", &[&b]);
    c.attached("a");
    // Of what there was before, and of what comes, whoever wants it.
    retains(&c, &[("t/before", "there")]);
    for (topic, payload) in [("t/1", "old"), ("t/1", "new"), ("t/2", "x"), ("t/2", "")] {
        retain(&mut publisher, topic, payload);
    }
    retain(&mut c.client("publisher-at-c"), "t/3", "from c");
    let all = [("t/1", "new"), ("t/3", "from c"), ("t/before", "there")];
    for member in [&a, &b, &c] {
        retains(member, &all);
    }
    for member in [&a, &b, &c] {
        let mut late = subscriber(member, "late", "t/#");
        let messages = received(&mut late, 3);
        let mut found: Vec<(&str, &str)> = messages
            .iter()
            .map(|message| {
                assert!(message.retain && message.properties.as_properties().is_empty());
                let payload = std::str::from_utf8(&message.payload).unwrap();
                (&*message.topic, payload)
            })
            .collect();
        found.sort_unstable();
        assert_eq!(found, all);
    }
    // An operator removes one for all.
    b.broker.delete("/api/v1/retained/t/3").ok();
    for member in [&a, &b, &c] {
        retains(member, &[("t/1", "new"), ("t/before", "there")]);
    }
}

#[test]
fn of_all_members_of_a_shared_subscription_one_gets_a_message() {
    const SHARED: &str = "$share/g/t/#";
    let a = Member::start("a", "gamma = 1000000", &[]);
    let b = Member::start("b", "", &[&a]);
    let c = Member::start("c", "", &[&b]);
    c.attached("a");
    let members = [(&b, "at-b"), (&c, "at-c")];
    let mut members = members.map(|(member, id)| subscriber(member, id, SHARED));
    let mut plain = subscriber(&c, "plain", "t/#");
    let knows = |member: &Member, others: &[&str]| {
        member.until("who has members", |status| {
            let brokers = status["shared"][SHARED].as_array();
            brokers.is_some_and(|brokers| brokers == others)
        });
    };
    knows(&a, &["b", "c"]);
    knows(&b, &["c"]);
    a.wants("b");
    b.wants("c");
    // The publisher's broker has none: others take turns.
    let mut publisher = a.client("publisher");
    for i in 0..20 {
        publish(&mut publisher, "t/1", &i.to_string(), QoS::ExactlyOnce);
    }
    let mut got: Vec<u32> = Vec::new();
    for member in &mut members {
        let here = payloads(member, 10);
        assert_eq!(here.len(), 10);
        got.extend(here.iter().map(|payload| payload.parse::<u32>().unwrap()));
    }
    got.sort_unstable();
    assert_eq!(got, (0..20).collect::<Vec<_>>());
    assert_eq!(payloads(&mut plain, 20).len(), 20);
    // One that has gets it itself.
    let mut publisher = b.client("publisher-at-b");
    for i in 0..10 {
        publish(&mut publisher, "t/1", &i.to_string(), QoS::ExactlyOnce);
    }
    assert_eq!(payloads(&mut members[0], 10).len(), 10);
    assert_eq!(payloads(&mut plain, 10).len(), 10);
    assert_eq!(payloads(&mut members[1], 0), [""; 0]);
}

/// Brokers in a row, each of which is killed and starts again with its store while the
/// next one is away: what was acknowledged arrives, once.
#[test]
fn what_was_acknowledged_survives_the_death_of_every_broker() {
    let data = TempDir::new().unwrap();
    let keys = |id: &str| {
        let path = data.path().join(id);
        format!("heal = \"10m\"\n[server]\ndata = \"{}\"", path.display())
    };
    let a = Member::start("a", &keys("a"), &[]);
    let b = Member::start("b", &keys("b"), &[&a]);
    let c = Member::start("c", &keys("c"), &[&b]);
    c.attached("a");
    drop(subscribed(c.lasting("subscriber"), "t/#"));
    a.wants("b");
    kill(c);
    let mut count = 0;
    let mut publish_some = |member: &Member| {
        let mut publisher = member.client("publisher");
        for _ in 0..20 {
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][count % 2];
            publish(&mut publisher, "t/1", &count.to_string(), qos);
            count += 1;
        }
    };
    // To b, who keeps it for c.
    publish_some(&a);
    b.until("kept for c", |status| status["healing"][0] == "c");
    a.until("left with nothing", |_| {
        let link = a.broker.get("/api/v1/clients/$mesh%2Fb").ok();
        link["inflight_messages"] == 0 && link["queued_messages"] == 0
    });
    kill(b);
    // a keeps it for b.
    publish_some(&a);
    kill(a);
    let a = Member::start("a", &keys("a"), &[]);
    publish_some(&a);
    let b = Member::start("b", &keys("b"), &[&a]);
    let c = Member::start("c", &keys("c"), &[&b]);
    c.attached("a");
    let mut subscriber = c.lasting("subscriber");
    // The origin starts again in between, so the order is not promised.
    let mut numbers: Vec<u32> = payloads(&mut subscriber, 60)
        .iter()
        .map(|payload| payload.parse().unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..60).collect::<Vec<u32>>());
}

/// A broker is away for longer than `mesh.heal`: what its persistent sessions are to get is kept for
/// it, and what nobody there is to get is not.
#[test]
fn what_persistent_sessions_await_is_kept_for_long() {
    let data = TempDir::new().unwrap();
    let keys = |id: &str| {
        let path = data.path().join(id);
        format!("heal = \"1s\"\n[server]\ndata = \"{}\"", path.display())
    };
    let a = Member::start("a", &keys("a"), &[]);
    let b = Member::start("b", &keys("b"), &[&a]);
    let c = Member::start("c", &keys("c"), &[&b]);
    c.attached("a");
    drop(subscribed(c.lasting("subscriber"), "t/#"));
    let _fleeting = subscriber(&c, "fleeting", "u");
    let filters = |member: &Member, of: &str| {
        let links = member.status()["links"].clone();
        let links = links.as_array().unwrap().iter();
        let of = links.filter(|link| link["peer"] == *of);
        of.map(|link| link["filters"].as_u64().unwrap())
            .sum::<u64>()
    };
    a.until("wants both", |_| filters(&a, "b") == 2);
    kill(c);
    let mut publisher = a.client("publisher");
    let mut count = 0;
    let mut publish_some = || {
        for _ in 0..20 {
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][count % 2];
            publish(&mut publisher, "t/1", &count.to_string(), qos);
            publish(&mut publisher, "u", "x", qos);
            count += 1;
        }
    };
    publish_some();
    b.until("away", |status| status["away"][0] == "c");
    a.until("wants one", |_| filters(&a, "b") == 1);
    publish_some();
    // Who keeps it may start again.
    a.until("left with nothing", |_| {
        let link = a.broker.get("/api/v1/clients/$mesh%2Fb").ok();
        link["inflight_messages"] == 0 && link["queued_messages"] == 0
    });
    kill(b);
    let b = Member::start("b", &keys("b"), &[&a]);
    b.attached("a");
    publish_some();
    b.until("away again", |status| status["away"][0] == "c");
    publish_some();
    let c = Member::start("c", &keys("c"), &[&b]);
    let numbers: Vec<u32> = payloads(&mut c.lasting("subscriber"), 80)
        .iter()
        .map(|payload| payload.parse().unwrap())
        .collect();
    // In order with each QoS.
    let (with_1, with_2): (Vec<u32>, Vec<u32>) =
        numbers.iter().partition(|number| *number % 2 == 0);
    assert_eq!(with_1, (0..80).step_by(2).collect::<Vec<u32>>());
    assert_eq!(with_2, (1..80).step_by(2).collect::<Vec<u32>>());
    b.until("nobody away", |status| status["away"] == json!([]));
}

/// An operator knows that a broker does not come back: what waits for its persistent sessions is
/// dropped and counted, also over a restart, and it is a broker like any other when it comes.
#[test]
fn who_does_not_come_back_is_forgotten_on_demand() {
    let data = TempDir::new().unwrap();
    let keys = |id: &str| {
        let path = data.path().join(id);
        format!("heal = \"1s\"\n[server]\ndata = \"{}\"", path.display())
    };
    let a = Member::start("a", &keys("a"), &[]);
    let b = Member::start("b", &keys("b"), &[&a]);
    let c = Member::start("c", &keys("c"), &[&b]);
    c.attached("a");
    drop(subscribed(c.lasting("subscriber"), "t/#"));
    a.wants("b");
    let refused = |member: &Member, name: &str, why: &str, remedy: &str| {
        let output = command(member, &["forget", name]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(why) && said.contains(remedy), "{said}");
    };
    for present in ["a", "b", "c"] {
        refused(&b, present, "is not away", "stop it first");
    }
    refused(&b, "nobody", "nothing is kept", "punctual mesh status");
    refused(&b, "no/name", "is no name of a broker", "write its mesh.id");
    kill(c);
    b.until("away", |status| status["away"][0] == "c");
    for number in 0..7 {
        let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][number % 2];
        publish(&mut b.client("publisher"), "t/1", "x", qos);
    }
    // Nothing waits for it there, but it is missed.
    assert_eq!(printed(&a, &["forget", "c"]), "");
    refused(&a, "c", "nothing is kept", "names it as away");
    assert_eq!(printed(&b, &["forget", "c"]), "");
    let said = b.broker.logged("mesh: c is given up, ");
    let wanted = "as c does not come back: 7 messages that waited for it are dropped";
    assert_eq!(said, wanted);
    let metrics = b.broker.get("/metrics").body;
    let dropped = "\npunctual_messages_dropped_total{reason=\"session_ended\"} 7\n";
    assert!(metrics.contains(dropped), "{metrics}");
    let status = b.status();
    assert_eq!(
        (&status["away"], &status["healing"]),
        (&json!([]), &json!([]))
    );
    refused(&b, "c", "nothing is kept", "punctual mesh status");
    kill(b);
    let b = Member::start("b", &keys("b"), &[&a]);
    b.attached("a");
    assert_eq!(b.status()["healing"], json!([]));
    let c = Member::start("c", &keys("c"), &[&b]);
    b.wants("c");
    publish(&mut b.client("publisher"), "t/1", "new", QoS::AtLeastOnce);
    assert_eq!(payloads(&mut c.lasting("subscriber"), 1), ["new"]);
}

/// A client with a session goes from one broker to the other and finds what waited for it there,
/// in order and once, and its subscription; and back again.
#[test]
fn a_session_follows_its_client() {
    for stored in [false, true] {
        let data = TempDir::new().unwrap();
        let keys = |id: &str| match stored {
            true => format!("[server]\ndata = \"{}\"", data.path().join(id).display()),
            false => String::new(),
        };
        let a = Member::start("a", &keys("a"), &[]);
        let b = Member::start("b", &keys("b"), &[&a]);
        b.attached("a");
        a.attached("a");
        let has = |member: &Member| member.broker.get("/api/v1/clients/subscriber").status == 200;
        let (first, present) = a.returning("subscriber");
        assert!(!present);
        drop(subscribed(first, "t/#"));
        b.wants("a");
        let mut at_a = a.client("at a");
        let mut at_b = b.client("at b");
        let mut count = 0;
        let mut homes = [&a, &b];
        for _ in 0..2 {
            let [from, to] = homes;
            let before = count;
            for _ in 0..40 {
                let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][count % 2];
                publish(&mut at_a, "t/a", &count.to_string(), qos);
                publish(&mut at_b, "t/b", &count.to_string(), qos);
                count += 1;
            }
            from.until("all of them wait", |_| {
                let client = from.broker.get("/api/v1/clients/subscriber").ok();
                client["queued_messages"].as_u64() == Some(80)
            });
            let (mut subscriber, present) = to.returning("subscriber");
            assert!(present, "stored: {stored}");
            publish(&mut at_a, "t/a", &count.to_string(), QoS::ExactlyOnce);
            publish(&mut at_b, "t/b", &count.to_string(), QoS::ExactlyOnce);
            count += 1;
            let came = received(&mut subscriber, 82);
            for topic in ["t/a", "t/b"] {
                let of = came.iter().filter(|message| message.topic == topic);
                let number = |message: &Message| -> usize {
                    std::str::from_utf8(&message.payload)
                        .unwrap()
                        .parse()
                        .unwrap()
                };
                let numbers: Vec<usize> = of.map(number).collect();
                // In order with each QoS.
                let [even, odd] = [0, 1].map(|rest| {
                    let these = numbers.iter().copied().filter(|number| number % 2 == rest);
                    these.collect::<Vec<usize>>()
                });
                assert!(even.is_sorted() && odd.is_sorted(), "{topic}: {numbers:?}");
                let mut all = [even, odd].concat();
                all.sort_unstable();
                let wanted: Vec<usize> = (before..count).collect();
                assert_eq!(all, wanted, "{topic}, stored: {stored}");
            }
            from.until("without it", |_| !has(from));
            assert!(has(to));
            homes = [to, from];
        }
        for member in [&a, &b] {
            member.until("it came and went", |status| {
                status["sessions_in"] == 1 && status["sessions_out"] == 1
            });
        }
    }
}

/// Every broker of a row is told to end, and starts again, one after the other, while others
/// publish: what was acknowledged arrives, once.
#[test]
fn a_rolling_restart_loses_nothing() {
    let data = TempDir::new().unwrap();
    let start = |id: &str, neighbours: &[&Member]| {
        let path = data.path().join(id);
        let keys = format!("heal = \"10m\"\n[server]\ndata = \"{}\"", path.display());
        Member::start(id, &keys, neighbours)
    };
    let end = |mut member: Member| {
        member.broker.signal(libc::SIGTERM);
        assert!(member.broker.ended_well());
    };
    let a = start("a", &[]);
    let b = start("b", &[&a]);
    let c = start("c", &[&b]);
    c.attached("a");
    let subscriber = subscribed(c.lasting("subscriber"), "t/#");
    a.wants("b");
    let mut count = 0;
    let mut publish_some = |member: &Member| {
        let mut publisher = member.client(&format!("publisher-{count}"));
        for _ in 0..20 {
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][count % 2];
            publish(&mut publisher, "t/1", &count.to_string(), qos);
            count += 1;
        }
    };
    publish_some(&a);
    end(b);
    publish_some(&a);
    let b = start("b", &[&a, &c]);
    c.attached("a");
    drop(subscriber);
    end(c);
    publish_some(&b);
    let c = start("c", &[&b]);
    end(a);
    publish_some(&c);
    let a = start("a", &[&b]);
    publish_some(&a);
    for member in [&a, &b, &c] {
        member.attached("a");
    }
    let mut subscriber = c.lasting("subscriber");
    let mut numbers: Vec<u32> = payloads(&mut subscriber, count)
        .iter()
        .map(|payload| payload.parse().unwrap())
        .collect();
    numbers.sort_unstable();
    let all = 0..u32::try_from(count).unwrap();
    assert_eq!(numbers, all.collect::<Vec<u32>>());
}

/// Adds a neighbour at run time.
fn add(member: &Member, neighbour: &str) -> broker::support::Answer {
    let body = format!("{{\"neighbour\": \"{neighbour}\"}}");
    member.broker.send(&format!(
        "POST /api/v1/mesh/neighbours HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        member.broker.http,
        body.len()
    ))
}

#[test]
fn a_neighbour_that_is_added_lasts_if_a_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("neighbours");
    let keys = format!("neighbours_file = \"{}\"", file.display());
    let a = Member::start("a", "gamma = 1000000", &[]);
    let b = Member::start("b", &keys, &[]);
    assert_eq!(add(&b, &a.broker.tcp.to_string()).status, 204);
    b.attached("a");
    drop(b);
    let b = Member::start("b", &keys, &[]);
    b.attached("a");
    let path = format!("/api/v1/mesh/neighbours/{}", a.broker.tcp);
    assert_eq!(b.broker.delete(&path).status, 204);
    drop(b);
    let b = Member::start("b", &keys, &[]);
    assert_eq!(b.status()["neighbours"].as_array().unwrap().len(), 0);
    // One that cannot be is not kept.
    let refused = add(&b, "tls://127.0.0.1:1");
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.body.contains("set mesh.ca_file"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
}

/// Added and removed until the next start all the same; asked again once it can be written, for good.
#[test]
fn a_file_of_neighbours_that_cannot_be_written_is_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let keeping = directory.path().join("keeping");
    let file = keeping.join("neighbours");
    let keys = format!("neighbours_file = \"{}\"", file.display());
    std::fs::create_dir(&keeping).unwrap();
    let a = Member::start("a", &keys, &[]);
    let address = "127.0.0.1:1";
    let path = format!("/api/v1/mesh/neighbours/{address}");
    let neighbours = || a.status()["neighbours"].as_array().unwrap().len();
    let kept = || std::fs::read_to_string(&file).unwrap();
    let lose = || std::fs::remove_dir_all(&keeping).unwrap();
    let restore = || std::fs::create_dir(&keeping).unwrap();
    let told = |answer: broker::support::Answer| {
        let why = answer.refused(503)["error"].to_string();
        assert!(why.contains("mesh.neighbours_file = "), "{why}");
    };
    lose();
    told(add(&a, address));
    assert_eq!(neighbours(), 1);
    restore();
    assert_eq!(add(&a, address).status, 204);
    assert_eq!(kept(), format!("{address}\n"));
    lose();
    told(a.broker.delete(&path));
    assert_eq!(neighbours(), 0);
    told(a.broker.delete(&path));
    restore();
    assert_eq!(a.broker.delete(&path).status, 204);
    assert_eq!(kept(), "");
    a.broker.delete(&path).refused(404);
}

#[test]
fn neighbours_come_and_go_at_run_time() {
    let a = Member::start("a", "", &[]);
    let b = Member::start("b", "", &[]);
    assert_eq!(b.attached("b")["links"].as_array().unwrap().len(), 0);
    let answer = add(&b, &a.broker.tcp.to_string());
    assert_eq!(answer.status, 204, "{answer:?}");
    b.attached("a");
    let path = format!("/api/v1/mesh/neighbours/{}", a.broker.tcp);
    assert_eq!(b.broker.delete(&path).status, 204);
    b.attached("b");
    b.broker.delete(&path).refused(404);
}

/// What a broker's link to another one costs, in microseconds.
fn cost(status: &Value, peer: &str) -> Option<u64> {
    let mut links = status["links"].as_array().unwrap().iter();
    links.find(|link| link["peer"] == *peer)?["cost_us"].as_u64()
}

/// How often links came up, as the log says.
fn ups(member: &Member) -> usize {
    let lines = member.broker.log.take();
    lines.iter().filter(|line| line.ends_with(" is up")).count()
}

#[test]
fn a_neighbour_that_is_named_twice_is_connected_once() {
    let a = Member::start("a", "gamma = 1000000", &[]);
    let b = Member::start("b", "", &[&a]);
    b.attached("a");
    b.until("measured", |status| {
        status["links"][0]["rtt_us"].is_number()
    });
    // What was there before does not count.
    ups(&b);
    // The same address changes nothing but the weight.
    assert_eq!(add(&b, &a.broker.tcp.to_string()).status, 204);
    let heavy = format!("{} weight=1000", a.broker.tcp);
    assert_eq!(add(&b, &heavy).status, 204);
    b.until("a long way", |status| cost(status, "a") > Some(20_000));
    assert_eq!(ups(&b), 0);
    // By another address it is the same broker: of both connections one stays.
    let other = format!("localhost:{}", a.broker.tcp.port());
    assert_eq!(add(&b, &other).status, 204);
    let epoch = |status: &Value| status["epoch"].as_u64().unwrap();
    let start = epoch(&a.status());
    a.until("ten epochs later", |status| epoch(status) > start + 10);
    let ups = ups(&b);
    assert!(ups <= 3, "{ups} connections");
    b.attached("a");
}

#[test]
fn the_weight_counts_whoever_connected() {
    let a = Member::start("a", "", &[]);
    let b = Member::start("b", "", &[]);
    assert_eq!(add(&a, &b.broker.tcp.to_string()).status, 204);
    b.attached("a");
    let heavy = format!("{} weight=1000", a.broker.tcp);
    assert_eq!(add(&b, &heavy).status, 204);
    b.until("a long way", |status| cost(status, "a") > Some(20_000));
    assert_eq!(ups(&b), 1);
}

/// In a triangle; what is published meanwhile arrives, once.
#[test]
fn a_weight_moves_the_tree_at_run_time() {
    let a = Member::start("a", "gamma = 1000000", &[]);
    let b = Member::start("b", "", &[&a]);
    let c = Member::start("c", "", &[&a, &b]);
    let mut at_c = subscriber(&c, "at-c", "t");
    let mut publisher = a.client("publisher");
    // The way that a message from a to c takes, as it is known at a.
    let way = || -> Vec<Value> {
        let trace = a.broker.get("/api/v1/mesh/trace/t").ok();
        let mut answers = trace.as_array().unwrap().iter();
        let of_c = answers.find(|answer| answer["broker"] == "c");
        let path = of_c.and_then(|answer| answer["path"].as_array());
        let path = path.into_iter().flatten();
        path.map(|hop| hop[0].clone()).collect()
    };
    a.until("a way to c", |_| !way().is_empty());
    c.until("two links", |status| {
        status["links"].as_array().unwrap().len() == 2
    });
    let mut count = 0;
    for (weight, parent, hops) in [
        ("0.001", "a", &["a", "c"][..]),
        ("1000", "b", &["a", "b", "c"]),
        ("0.001", "a", &["a", "c"]),
    ] {
        let address = format!("{} weight={weight}", a.broker.tcp);
        assert_eq!(add(&c, &address).status, 204);
        // On its way while the tree changes, and after that.
        publish(&mut publisher, "t", &count.to_string(), QoS::ExactlyOnce);
        count += 1;
        c.until(&format!("a child of {parent}"), |status| {
            status["parent"] == *parent && status["attached"] == true
        });
        a.until(&format!("the way {hops:?}"), |_| way() == hops);
        publish(&mut publisher, "t", &count.to_string(), QoS::ExactlyOnce);
        count += 1;
    }
    let all: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    let mut came = payloads(&mut at_c, all.len());
    came.sort_unstable();
    assert_eq!(came, all);
}

#[test]
fn two_brokers_of_one_name_are_told_of() {
    let a = Member::start("a", "", &[]);
    let _b = Member::start("b", "", &[&a]);
    let _other = Member::start("b", "", &[&a]);
    let why = a.broker.logged("two brokers are called ");
    assert!(why.starts_with("b:") && why.contains("mesh.id"), "{why}");
}

#[test]
fn a_broker_that_gets_a_name_of_its_own_is_found() {
    let a = Member::start("a", "", &[]);
    let same = Member::start("a", "", &[]);
    let address = same.broker.tcp;
    assert_eq!(add(&a, &address.to_string()).status, 204);
    let why = a.broker.logged("is not connected: ");
    assert!(why.contains("mesh.id"), "{why}");
    kill(same);
    let config = NamedTempFile::with_suffix(".toml").unwrap();
    let text = format!(
        "[mesh]\nenabled = true\nid = \"b\"\nsecret_file = {:?}\n",
        secret::FILE
    );
    std::fs::write(config.path(), text).unwrap();
    let listen = format!("tcp://{address}");
    let path = config.path().to_str().unwrap();
    let _b = Broker::with_arguments(&["--config", path, "--listen", &listen]);
    a.broker.logged("link to b is up");
}

#[test]
fn what_is_no_broker_is_refused() {
    let a = Member::start("a", "", &[]);
    let mut client = a.client("client");
    // Topics of the mesh are not for clients.
    client
        .publish(&Message::new("$mesh/1", "x").qos(QoS::AtLeastOnce))
        .unwrap();
    let refused = loop {
        if let Some(Event::Published { reason, .. }) = client.next(Some(PATIENCE)).unwrap() {
            break reason.is_error();
        }
    };
    assert!(refused);
    // A broker that is in no mesh takes no neighbours.
    let plain = Broker::start();
    plain.get("/api/v1/mesh").refused(409);
    let b = Member::start("b", "", &[]);
    add(&b, &plain.tcp.to_string());
    let why = b.broker.logged("is not connected: ");
    let wanted = "not allowed to connect as a neighbour broker";
    assert!(why.contains(wanted), "{why}");
    b.until("a reason in the status", |status| {
        let why = &status["unconnected"][plain.tcp.to_string()];
        why.as_str().is_some_and(|why| why.contains(wanted))
    });
    let metrics = b.broker.get("/metrics").body;
    assert!(
        metrics.contains("\npunctual_mesh_unconnected 1\n"),
        "{metrics}"
    );
    // Nor do brokers that forward otherwise; both say so, once.
    let c = Member::start("c", "strategy = \"flooding\"", &[]);
    assert_eq!(add(&c, &b.broker.tcp.to_string()).status, 204);
    c.until("a reason in the status", |status| {
        let why = &status["unconnected"][b.broker.tcp.to_string()];
        why.as_str()
            .is_some_and(|why| why.contains("mesh.strategy"))
    });
    b.broker
        .logged("c is no neighbour: it forwards by flooding");
    c.broker
        .logged("b is no neighbour: it forwards by subscription-table");
    let epoch = |status: &Value| status["epoch"].as_u64().unwrap();
    let start = epoch(&c.status());
    c.until("three epochs later", |status| epoch(status) > start + 3);
    for member in [&b, &c] {
        let lines = member.broker.log.take();
        assert!(!lines.iter().any(|line| line.contains("is no neighbour")));
    }
}

/// Runs `punctual mesh` with a broker.
fn command(member: &Member, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_punctual"))
        .arg("mesh")
        .args(words)
        .args(["--broker", &member.broker.http.to_string()])
        .output()
        .unwrap()
}

/// What it prints when all is well.
#[track_caller]
fn printed(member: &Member, words: &[&str]) -> String {
    let output = command(member, words);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn operators_see_the_mesh_and_change_it() {
    let a = Member::start("a", "gamma = 1000000", &[]);
    let b = Member::start("b", "", &[]);
    let address = a.broker.tcp.to_string();
    assert_eq!(printed(&b, &["add", &address]), "");
    b.until("a child of a", |status| status["parent"] == "a");
    let _at_a = subscriber(&a, "at-a", "t/+");
    b.wants("a");
    let status = printed(&b, &["status"]);
    assert!(status.starts_with("b (child of a), capacity "), "{status}");
    assert!(status.contains("\nroot a, "), "{status}");
    assert!(
        status.contains("  a                    parent "),
        "{status}"
    );
    let end = format!("\n2 brokers in the tree: a, b\nconnects to: {address}\n");
    assert!(status.ends_with(&end), "{status}");
    let json: Value = serde_json::from_str(&printed(&b, &["status", "--json"])).unwrap();
    assert_eq!(json["root"], "a");
    let way = printed(&b, &["trace", "t/1"]);
    assert!(way.contains(" a: subscribed, "), "{way}");
    let nobody = printed(&b, &["trace", "u"]);
    assert!(nobody.contains("nobody has subscribed to it"), "{nobody}");
    assert_eq!(printed(&b, &["remove", &address]), "");
    b.attached("b");
    let again = command(&b, &["remove", &address]);
    assert_eq!(again.status.code(), Some(1));
    let why = String::from_utf8(again.stderr).unwrap();
    assert!(why.contains("no such neighbour is kept connected"), "{why}");
    let nobody = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["mesh", "status", "--broker", "127.0.0.1:1"])
        .output()
        .unwrap();
    let why = String::from_utf8(nobody.stderr).unwrap();
    assert!(why.contains("server.http with --broker"), "{why}");
}

/// Writes a file, and returns its path.
fn file(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Files with users, whose password is `secret`, and with their rights, and the lines of a configuration
/// that name these files.
fn accounts(users: &[&str], rights: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let passwords = file(directory.path(), "users", "");
    for user in users {
        let words = ["passwd", "-b", &passwords, user, "secret"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        assert!(command.args(words).output().unwrap().status.success());
    }
    let acl = file(directory.path(), "acl", rights);
    let keys = format!("[auth]\npassword_file = {passwords:?}\nacl_file = {acl:?}");
    (directory, keys)
}

#[test]
fn a_neighbour_needs_the_right_password_and_the_role() {
    let rights = "user partner\nbroker b d\nuser guest\ntopic #\n";
    let (directory, keys) = accounts(&["partner", "guest"], rights);
    let a = Member::start("a", &keys, &[]);
    let [right, wrong] =
        ["secret", "guessed"].map(|text| file(directory.path(), text, &format!("{text}\n")));
    let keys =
        |user: &str, password: &str| format!("user = \"{user}\"\npassword_file = {password:?}");
    let refused = |id: &str, user: &str, password: &str, why: &str| {
        let member = Member::start(id, &keys(user, password), &[&a]);
        let said = member.broker.logged("is not connected: it refused: ");
        assert!(said.contains(why), "{said}");
    };
    refused("b", "partner", &wrong, "authentication failed");
    refused(
        "c",
        "guest",
        &right,
        "not allowed to connect as a neighbour broker",
    );
    let d = Member::start("d", &keys("partner", &right), &[&a]);
    d.attached("a");
}

/// What a broker says to who connects with that identifier and these credentials.
fn refusal(at: &Member, id: &str, credentials: Option<(&str, &str)>) -> ReasonCode {
    let options = Options {
        endpoint: Url::parse(&format!("mqtt://{}", at.broker.tcp))
            .unwrap()
            .endpoint,
        config: Config {
            client_id: id.into(),
            username: credentials.map(|(user, _)| user.into()),
            password: credentials.map(|(_, password)| password.into()),
            ..Config::default()
        },
        reconnect: None,
    };
    match Client::connect(options) {
        Ok(_) => ReasonCode::Success,
        Err(Error::Refused(farewell)) => farewell.reason,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn who_knows_no_secret_is_no_broker() {
    let a = Member::start("a", "", &[]);
    let refused = ReasonCode::NotAuthorized;
    let known = Some((secret::USER, secret::SECRET));
    assert_eq!(refusal(&a, "client", None), ReasonCode::Success);
    assert_eq!(refusal(&a, "$mesh/b", None), refused);
    assert_eq!(
        refusal(&a, "$mesh/b", Some(("mallory", secret::SECRET))),
        refused
    );
    let wrong = Some((secret::USER, "known to nobody at all"));
    assert_eq!(
        refusal(&a, "$mesh/b", wrong),
        ReasonCode::BadUserNameOrPassword
    );
    assert_eq!(refusal(&a, "$mesh/a", known), refused, "its own name");
    for name in ["", "b/c", "b c", "#"] {
        let reason = ReasonCode::ClientIdentifierNotValid;
        assert_eq!(
            refusal(&a, &format!("$mesh/{name}"), known),
            reason,
            "{name}"
        );
    }
    assert_eq!(refusal(&a, "$mesh/b", known), ReasonCode::Success);
    assert_eq!(a.status()["links"], json!([]));
}

#[test]
fn a_broker_has_the_names_that_its_user_may_have() {
    let rights = "user berlin\nbroker\nuser sites\nbroker x y berlin\nuser alice\ntopic #\n";
    let (_directory, keys) = accounts(&["berlin", "sites", "alice"], rights);
    let a = Member::start("a", &keys, &[]);
    let refused = ReasonCode::NotAuthorized;
    let is = |name: &str, user: &str| refusal(&a, &format!("$mesh/{name}"), Some((user, "secret")));
    assert_eq!(is("alice", "alice"), refused);
    assert_eq!(is("x", "berlin"), refused);
    assert_eq!(is("z", "sites"), refused);
    assert_eq!(is("a", "sites"), refused, "its own name");
    assert_eq!(is("x", "sites"), ReasonCode::Success);
    assert_eq!(is("berlin", "berlin"), ReasonCode::Success);
    // While one is connected, only who has the same credentials takes its place.
    let connect = |user: &str| {
        let config = Config {
            client_id: "$mesh/berlin".into(),
            username: Some(user.into()),
            password: Some("secret".into()),
            ..Config::default()
        };
        talk::connect(a.broker.tcp, config)
    };
    let _berlin = connect("berlin");
    assert_eq!(is("berlin", "sites"), refused);
    assert_eq!(is("berlin", "berlin"), ReasonCode::Success);
}

#[test]
fn a_mesh_that_lets_everybody_in_does_not_start() {
    let config = NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(config.path(), "[mesh]\nenabled = true\nid = \"a\"\n").unwrap();
    let path = config.path().to_str().unwrap();
    for words in [
        vec!["config", "check", path],
        vec!["serve", "--config", path],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        let output = command.args(&words).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        for remedy in ["mesh.secret_file", "auth.acl_file", "brokers = \"deny\""] {
            assert!(said.contains(remedy), "{said}");
        }
    }
}

/// What a neighbour says first that speaks these versions.
fn opening(name: &str, versions: (u8, u8)) -> Open {
    Open {
        versions,
        id: BrokerId::new(name).unwrap(),
        instance: 1,
        strategy: Strategy::SubscriptionTable,
        dialled: true,
    }
}

fn say(neighbour: &mut Client, message: &wire::Message) {
    let message = Message::new(wire::TOPIC, message.encode());
    neighbour.publish(&message.qos(QoS::AtMostOnce)).unwrap();
}

/// There is no second version yet.
#[test]
fn neighbours_speak_a_version_that_both_know() {
    let a = Member::start("a", "", &[]);
    let mut both = a.neighbour("both");
    say(&mut both, &wire::Message::Open(opening("both", (1, 2))));
    let status = a.until("a link", |status| status["links"][0]["peer"] == "both");
    assert_eq!(status["links"][0]["version"], 1);

    let mut newer = a.neighbour("newer");
    say(&mut newer, &wire::Message::Open(opening("newer", (2, 2))));
    let why = "speaks versions 2 to 2 of the mesh protocol, this broker 1 to 1: none in common";
    let said = a.broker.logged("mesh: newer is no neighbour: it ");
    assert_eq!(said, why);
    let reason = loop {
        match newer.next(Some(PATIENCE)) {
            Ok(_) => {}
            Err(reason) => break reason,
        }
    };
    let Error::Disconnected(farewell) = &reason else {
        panic!("{reason}");
    };
    assert_eq!(farewell.text(), Some(why));
}

/// A neighbour that calls itself root, and never takes a child.
#[test]
fn who_waits_for_its_parent_is_not_ready() {
    let config = NamedTempFile::with_suffix(".toml").unwrap();
    let text = format!(
        "[mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"a\"\nhello = \"1m\"\nsecret_file = {:?}\n",
        secret::FILE
    );
    std::fs::write(config.path(), text).unwrap();
    let broker = Broker::with_arguments(&["--config", config.path().to_str().unwrap()]);
    let a = Member {
        broker,
        _config: config,
    };
    assert_eq!(a.broker.get("/readyz").status, 200);
    let mut silent = a.neighbour("silent");
    let id = BrokerId::new("silent").unwrap();
    let open = opening("silent", (*wire::VERSIONS.start(), *wire::VERSIONS.end()));
    let advert = Advert {
        number: 1,
        root: Rank {
            capacity: u64::MAX,
            id,
        },
        epoch: 1,
        cost: 0,
        hops: 0,
        age: Nanos(0),
        asks: 0,
        answered: 0,
        held: false,
        epoch_request: None,
    };
    let hello = Hello {
        advert,
        sent: 0,
        // It hears the broker.
        echo: Some((0, 0)),
        clock: None,
    };
    for message in [wire::Message::Open(open), wire::Message::Hello(hello)] {
        say(&mut silent, &message);
    }
    a.until("waiting for its parent", |status| {
        status["root"] == "silent" && status["attached"] == false
    });
    let why = a.broker.get("/readyz").refused(503);
    assert!(
        why.to_string().contains("not attached to the tree"),
        "{why}"
    );
    drop(silent);
    a.attached("a");
    assert_eq!(a.broker.get("/readyz").status, 200);
}

#[test]
fn what_is_given_up_is_told_of() {
    let a = Member::start("a", "heal = \"1s\"", &[]);
    let b = Member::start("b", "", &[&a]);
    b.attached("a");
    // Who reaches nobody gives up nobody.
    let c = Member::start("c", "", &[&a]);
    c.attached("a");
    let _subscriber = subscriber(&b, "at-b", "t");
    a.wants("b");
    kill(b);
    publish(&mut a.client("publisher"), "t", "x", QoS::AtLeastOnce);
    let said = a.broker.logged("mesh: b is given up, ");
    let wanted =
        "away for longer than mesh.heal or mesh.keep: 1 messages that waited for it are dropped";
    assert_eq!(said, wanted);
}

/// One accepts connections and says nothing, the other is a broker of another kind.
#[test]
fn who_says_nothing_of_a_mesh_is_told_of() {
    let a = Member::start("a", "", &[]);
    for (answer, why) in [
        (&[][..], "it does not answer within 2 s"),
        (
            &[0x20, 3, 0, 0, 0][..],
            "for a broker of another kind there are bridges",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(add(&a, &address).status, 204);
        let (mut connection, _) = listener.accept().unwrap();
        connection.write_all(answer).unwrap();
        a.until("a reason", |status| {
            let said = status["unconnected"][&address].as_str();
            said.is_some_and(|said| said.contains(why))
        });
    }
}

#[test]
fn by_the_root_everybody_hears_once() {
    // a has what c published from b; b from c, and from a; c from the publisher, and from b.
    everybody_hears_once("root-relay", [1, 2, 2, 1]);
}

#[test]
fn by_flooding_everybody_hears_once() {
    everybody_hears_once("flooding", [1; 4]);
}

/// `came`: how often brokers get what a client of the third one publishes, and nobody wants.
#[track_caller]
fn everybody_hears_once(strategy: &str, came: [u64; 4]) {
    let strategy = format!("strategy = {strategy:?}");
    let a = Member::start("a", &format!("gamma = 1000000\n{strategy}"), &[]);
    let b = Member::start("b", &strategy, &[&a]);
    let c = Member::start("c", &strategy, &[&b]);
    let d = Member::start("d", &strategy, &[&a]);
    let members = [&a, &b, &c, &d];
    for member in members {
        member.attached("a");
    }
    for (member, peer) in [
        (&a, "b"),
        (&a, "d"),
        (&b, "a"),
        (&b, "c"),
        (&c, "b"),
        (&d, "a"),
    ] {
        member.wants(peer);
    }
    let mut heard: Vec<Client> = ["at-a", "at-b", "at-c", "at-d"]
        .iter()
        .zip(members)
        .map(|(id, member)| subscriber(member, id, "t/#"))
        .collect();
    let publishers = [
        (&a, "from-a"),
        (&b, "from-b"),
        (&c, "from-c"),
        (&d, "from-d"),
    ];
    let mut publishers = publishers.map(|(member, id)| member.client(id));
    for (i, publisher) in publishers.iter_mut().enumerate() {
        publish(publisher, "t/1", &format!("{i} once"), QoS::ExactlyOnce);
        publish(publisher, "t/1", &format!("{i} at least"), QoS::AtLeastOnce);
    }
    for client in &mut heard {
        let mut all = payloads(client, 8);
        all.sort();
        let expected = (0..4).flat_map(|i| [format!("{i} at least"), format!("{i} once")]);
        assert_eq!(all, expected.collect::<Vec<_>>());
    }
    // Nobody wants this, and it goes to everybody.
    let before = members.map(Member::received_with_qos_1);
    publish(&mut publishers[2], "unwanted", "x", QoS::AtLeastOnce);
    for ((member, before), more) in members.iter().zip(before).zip(came) {
        let start = Instant::now();
        while member.received_with_qos_1() < before + more {
            assert!(
                start.elapsed() < PATIENCE,
                "{} of {more}",
                member.received_with_qos_1() - before
            );
            std::thread::yield_now();
        }
        assert_eq!(member.received_with_qos_1(), before + more);
    }
}
