//! Brokers of a mesh on cables that go silent, come back, or are slow.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use punctual_client::{Client, Config, Event, Message, QoS};
use punctual_measure::http_get;
use punctual_testbed::netns::{Namespace, Queue};
use serde_json::Value;

use crate::broker::{Broker, HTTP, PORT};
use crate::mqtt::PATIENCE;
use crate::secret;
use crate::talk::{self, payloads};

/// A broker on a host of its own.
struct Member {
    host: Namespace,
    name: &'static str,
    broker: Option<Broker>,
}

/// Hosts joined by cables, and a broker on each.
struct Mesh(Vec<Member>);

impl Mesh {
    /// Brokers named a, b, c and so on; the first is to be root. Of the two ends of a
    /// cable the first connects.
    fn start(names: &[&'static str], cables: &[(usize, usize)]) -> Self {
        Self::with_hello("200ms", names, cables)
    }

    /// The same, with that `mesh.hello`: who says nothing for three of them is given up.
    fn with_hello(hello: &str, names: &[&'static str], cables: &[(usize, usize)]) -> Self {
        Self::with_keys(&format!("hello = \"{hello}\""), names, cables)
    }

    /// The same, with these keys of `[mesh]` and tables behind it.
    fn with_keys(keys: &str, names: &[&'static str], cables: &[(usize, usize)]) -> Self {
        let mut members: Vec<Member> = names
            .iter()
            .map(|name| Member {
                host: Namespace::new(name).unwrap(),
                name,
                broker: None,
            })
            .collect();
        let mut neighbours = vec![Vec::new(); names.len()];
        for (n, (from, to)) in cables.iter().enumerate() {
            let devices = [to, from].map(|at| format!("to-{}", names[*at]));
            let (one, other) = (&members[*from].host, &members[*to].host);
            one.cable(&devices[0], other, &devices[1]).unwrap();
            let address = |end| Ipv4Addr::new(10, 78, n as u8, end);
            one.address(&devices[0], address(1).into(), 24).unwrap();
            other.address(&devices[1], address(2).into(), 24).unwrap();
            neighbours[*from].push(format!("\"{}:{PORT}\"", address(2)));
        }
        for (n, member) in members.iter_mut().enumerate() {
            let gamma = 1_000_000 / (n + 1);
            let keys = format!(
                "[mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"{}\"\ngamma = {gamma}\nsecret_file = {:?}\nclear_password = true\n\
                 neighbours = [{}]\n{keys}\n",
                member.name,
                secret::FILE,
                neighbours[n].join(", ")
            );
            member.broker = Some(Broker::start(&member.host, &keys));
        }
        Self(members)
    }

    /// Takes a cable away, or puts it back; nobody is told.
    fn plug(&self, from: usize, to: usize, plugged: bool) {
        let state = if plugged { "up" } else { "down" };
        let device = format!("to-{}", self.0[to].name);
        self.0[from]
            .host
            .ip(&format!("link set {device} {state}"))
            .unwrap();
    }

    /// Waits until those have that root and are attached.
    #[track_caller]
    fn have_root(&self, members: &[usize], root: &str) {
        for member in members {
            self.0[*member].until(root, |status| {
                status["root"] == *root && status["attached"] == true
            });
        }
    }
}

impl Member {
    #[track_caller]
    fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let text = self.host.enter(|| http_get(HTTP, "/api/v1/mesh")).unwrap();
            let status: Value = serde_json::from_str(&text.unwrap()).unwrap();
            if wanted(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "never {what}: {status:#}");
            std::thread::yield_now();
        }
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

    fn client(&self, id: &str) -> Client {
        let config = Config {
            client_id: format!("{id}-{}", self.name),
            ..Config::default()
        };
        let address = format!("127.0.0.1:{PORT}");
        self.host.enter(|| talk::connect(address, config)).unwrap()
    }

    fn subscriber(&self, filter: &str) -> Client {
        talk::subscribed(self.client("subscriber"), filter)
    }
}

#[track_caller]
fn publish(client: &mut Client, topic: &str, payload: &str) {
    talk::publish(client, topic, payload, QoS::ExactlyOnce);
}

#[test]
fn halves_go_on_and_become_one_again() {
    if Namespace::is_missing() {
        return;
    }
    // a and b, c and d, and one cable between the halves.
    let mesh = Mesh::start(&["a", "b", "c", "d"], &[(1, 0), (2, 1), (3, 2)]);
    let [a, b, c, d] = &mesh.0[..] else {
        unreachable!()
    };
    mesh.have_root(&[0, 1, 2, 3], "a");
    let mut at_b = b.subscriber("t");
    let mut at_d = d.subscriber("t");
    for (member, peer) in [(a, "b"), (b, "c"), (c, "b"), (c, "d")] {
        member.wants(peer);
    }
    let (mut from_a, mut from_c) = (a.client("publisher"), c.client("publisher"));
    publish(&mut from_a, "t", "one");
    assert_eq!(payloads(&mut at_b, 1), ["one"]);
    assert_eq!(payloads(&mut at_d, 1), ["one"]);

    for member in [a, d] {
        member.broker.as_ref().unwrap().logged("; brokers: 4");
    }
    mesh.plug(1, 2, false);
    mesh.have_root(&[2, 3], "c");
    mesh.have_root(&[0, 1], "a");
    let said = c.broker.as_ref().unwrap().logged("mesh: root a lost (");
    assert_eq!(said, "the link to the parent is down), electing: c");
    // Both halves say who is away, also the one that keeps its root.
    for (member, others) in [(a, "c, d"), (d, "a, b")] {
        let broker = member.broker.as_ref().unwrap();
        let said = broker.logged("mesh: not reached any more: ");
        assert_eq!(said, format!("{others}; brokers in this part: 2"));
    }
    publish(&mut from_a, "t", "left");
    publish(&mut from_c, "t", "right");
    assert_eq!(payloads(&mut at_b, 1), ["left"]);
    assert_eq!(payloads(&mut at_d, 1), ["right"]);

    mesh.plug(1, 2, true);
    mesh.have_root(&[0, 1, 2, 3], "a");
    c.broker
        .as_ref()
        .unwrap()
        .logged("mesh: new root a instead of c: ");
    for member in [a, d] {
        member.broker.as_ref().unwrap().logged("; brokers: 4");
    }
    b.wants("c");
    c.wants("b");
    // What waited for the other half comes now, unless it was given up meanwhile.
    publish(&mut from_a, "t", "two");
    publish(&mut from_c, "t", "three");
    for (client, own, other) in [(&mut at_b, "left", "right"), (&mut at_d, "right", "left")] {
        let mut all = payloads(client, 2);
        all.retain(|payload| payload != other);
        all.sort();
        assert_eq!(all, ["three", "two"], "and not {own} again");
    }
}

#[test]
fn a_slow_cable_holds_back_nobody_else() {
    if Namespace::is_missing() {
        return;
    }
    // Three of these pass by 90 KB of the bulk, of which there is twenty times as much;
    // a loaded machine does not take as long to give everybody a turn.
    let mesh = Mesh::with_hello("1s", &["a", "b", "c"], &[(1, 0), (2, 0)]);
    let [a, b, c] = &mesh.0[..] else {
        unreachable!()
    };
    mesh.have_root(&[0, 1, 2], "a");
    let mut slow = b.subscriber("slow");
    let mut fast = c.subscriber("fast");
    a.wants("b");
    a.wants("c");
    // Two megabytes take more than a minute.
    a.host.shape("to-b", 250_000, Queue::Fifo).unwrap();
    const BULK: usize = 200;
    let mut bulk = a.client("bulk");
    let filler = "x".repeat(10_000);
    for _ in 0..BULK {
        bulk.publish(&Message::new("slow", filler.clone()).qos(QoS::AtMostOnce))
            .unwrap();
    }
    let mut publisher = a.client("publisher");
    for i in 0..100 {
        publish(&mut publisher, "fast", &i.to_string());
    }
    assert_eq!(payloads(&mut fast, 100).len(), 100);
    let mut arrived = 0;
    while let Some(event) = slow.next(Some(Duration::ZERO)).unwrap() {
        arrived += usize::from(matches!(event, Event::Message(_)));
    }
    assert!(arrived < BULK, "the cable is not slow: {arrived}");
    let links = a.until("attached", |status| status["attached"] == true);
    assert_eq!(links["links"].as_array().unwrap().len(), 2, "{links:#}");
}

/// What waits for a neighbour that is cut off fills its queue; what another one sends for a third
/// goes on.
#[test]
fn a_full_queue_holds_back_nobody_else() {
    if Namespace::is_missing() {
        return;
    }
    let keys = "hello = \"1s\"\nheal = \"120s\"\n[limits]\nmax_queued_messages = 10";
    let mesh = Mesh::with_keys(keys, &["b", "a", "c", "d"], &[(1, 0), (2, 0), (3, 0)]);
    let [b, a, c, d] = &mesh.0[..] else {
        unreachable!()
    };
    mesh.have_root(&[0, 1, 2, 3], "b");
    let mut cut_off = c.subscriber("slow");
    let mut reached = d.subscriber("fast");
    a.until("both are wanted", |status| {
        status["links"][0]["filters"].as_u64() == Some(2)
    });
    mesh.plug(0, 2, false);
    b.broker.as_ref().unwrap().logged("mesh: link to c is down");
    let mut publisher = a.client("publisher");
    let send = |publisher: &mut Client, topic| {
        for i in 0..100 {
            talk::publish(publisher, topic, &i.to_string(), QoS::AtLeastOnce);
        }
    };
    send(&mut publisher, "slow");
    send(&mut publisher, "fast");
    let all: Vec<String> = (0..100).map(|i| i.to_string()).collect();
    assert_eq!(payloads(&mut reached, 100), all);
    let metrics = b
        .host
        .enter(|| http_get(HTTP, "/metrics"))
        .unwrap()
        .unwrap();
    let held = "punctual_mesh_messages_parked_total 9";
    assert!(metrics.contains(held), "90 or so are held");
    mesh.plug(0, 2, true);
    assert_eq!(payloads(&mut cut_off, 100), all);
}

#[test]
fn a_leaf_that_is_killed_comes_back() {
    if Namespace::is_missing() {
        return;
    }
    let mut mesh = Mesh::start(&["a", "b", "c"], &[(0, 1), (0, 2)]);
    mesh.have_root(&[0, 1, 2], "a");
    let mut at_b = mesh.0[1].subscriber("t");
    mesh.0[0].wants("b");
    let mut publisher = mesh.0[0].client("publisher");
    // Killed, and another one at the same address.
    mesh.0[2].broker = None;
    for i in 0..10 {
        publish(&mut publisher, "t", &i.to_string());
    }
    assert_eq!(payloads(&mut at_b, 10).len(), 10);
    mesh.0[0].until("without c", |status| {
        status["links"].as_array().unwrap().len() == 1
    });
    let keys = format!(
        "[mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"c\"\nhello = \"200ms\"\nsecret_file = {:?}\n",
        secret::FILE
    );
    mesh.0[2].broker = Some(Broker::start(&mesh.0[2].host, &keys));
    mesh.have_root(&[0, 1, 2], "a");
    let mut at_c = mesh.0[2].subscriber("t");
    mesh.0[0].wants("c");
    publish(&mut publisher, "t", "again");
    assert_eq!(payloads(&mut at_c, 1), ["again"]);
    assert_eq!(payloads(&mut at_b, 1), ["again"]);
}

#[test]
fn neighbours_come_by_tls_and_are_known_by_their_certificates() {
    if Namespace::is_missing() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    make_certificates(directory.path());
    std::fs::write(file("acl"), "user partner\nbroker b\n").unwrap();
    let [server, client, stranger] = ["a", "b", "x"].map(|name| Namespace::new(name).unwrap());
    for (n, host) in [&client, &stranger].into_iter().enumerate() {
        let device = format!("to-{n}");
        host.cable("eth0", &server, &device).unwrap();
        let address = |end| Ipv4Addr::new(10, 79, n as u8, end);
        host.address("eth0", address(1).into(), 24).unwrap();
        server.address(&device, address(2).into(), 24).unwrap();
    }
    let keys = format!(
        "[[listener]]\naddress = \"tls://*:8883\"\ncertificate = \"{}\"\nkey = \"{}\"\n\
         client_ca = \"{}\"\nrequire_client_certificate = true\nuse_identity_as_username = true\n\
         [auth]\nacl_file = \"{}\"\n[mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"a\"\ngamma = 1000000\n",
        file("server.pem"),
        file("server.key"),
        file("ca.pem"),
        file("acl"),
    );
    let _a = Broker::start(&server, &keys);
    let mesh = |id: &str, n: usize, certificate: &str| {
        format!(
            "[mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"{id}\"\nneighbours = [\"tls://10.79.{n}.2:8883\"]\n\
             secret_file = {:?}\nuser = \"{certificate}\"\nca_file = \"{}\"\ncert_file = \"{}\"\nkey_file = \"{}\"\n",
            secret::FILE,
            file("ca.pem"),
            file(&format!("{certificate}.pem")),
            file(&format!("{certificate}.key")),
        )
    };
    let b = Member {
        broker: Some(Broker::start(&client, &mesh("b", 0, "partner"))),
        host: client,
        name: "b",
    };
    b.until("attached", |status| {
        status["root"] == "a" && status["attached"] == true
    });
    // Its certificate is good, but it may not be a broker.
    let x = Broker::start(&stranger, &mesh("x", 1, "guest"));
    let why = x.logged("mesh: tls://10.79.1.2:8883 is not connected: ");
    assert!(
        why.contains("not allowed to connect as a neighbour broker"),
        "{why}"
    );
}

/// What lets a broker into the mesh goes to no other machine without TLS.
#[test]
fn the_secret_is_not_sent_in_clear() {
    if Namespace::is_missing() {
        return;
    }
    let [one, other] = ["a", "b"].map(|name| Namespace::new(name).unwrap());
    one.cable("eth0", &other, "eth0").unwrap();
    for (host, number) in [(&one, 1), (&other, 2)] {
        let address = Ipv4Addr::new(10, 80, 0, number);
        host.address("eth0", address.into(), 24).unwrap();
    }
    let mesh = |id: &str, neighbours: &str| {
        format!(
            "[mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"{id}\"\nsecret_file = {:?}\nneighbours = [{neighbours}]\n",
            secret::FILE
        )
    };
    let _b = Broker::start(&other, &mesh("b", ""));
    let there = format!("10.80.0.2:{PORT}");
    let a = Broker::start(&one, &mesh("a", &format!("{there:?}")));
    let why = a.logged(&format!("mesh: {there} is not connected: "));
    assert!(why.contains("mesh.clear_password"), "{why}");
}

/// An authority, a server's certificate, and those of two clients.
fn make_certificates(directory: &std::path::Path) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let named = |name: &str, hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let write = |name: String, text: String| std::fs::write(directory.join(name), text).unwrap();
    let mut params = named("authority", &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    write("ca.pem".into(), params.self_signed(&key).unwrap().pem());
    let authority = Issuer::new(params, key);
    for (name, hosts) in [
        ("server", &["10.79.0.2", "10.79.1.2"][..]),
        ("partner", &[]),
        ("guest", &[]),
    ] {
        let key = KeyPair::generate().unwrap();
        let certificate = named(name, hosts).signed_by(&key, &authority).unwrap();
        write(format!("{name}.pem"), certificate.pem());
        write(format!("{name}.key"), key.serialize_pem());
    }
}
