//! The controller with switches that are Linux: nftables forwards, HTB queues.

use std::net::UdpSocket;
use std::process::Command;

use punctual_measure::http_get;
use punctual_testbed::netns::Namespace;
use serde_json::Value;

use crate::programs::{Program, Table};
use crate::until;

/// Where the controller tells about itself, in the switch.
const HTTP: &str = "127.0.0.1:8081";

const NETWORK: &str = r#"
nodes = [{ id = "s1" }, { id = "h1" }, { id = "h2" }, { id = "h3" }]
links = [
  { id = "h1>s1", from = "h1", to = "s1", rate = "20Mbit" },
  { id = "s1>h1", from = "s1", to = "h1", rate = "20Mbit" },
  { id = "h2>s1", from = "h2", to = "s1", rate = "20Mbit" },
  { id = "s1>h2", from = "s1", to = "h2", rate = "20Mbit" },
  { id = "h3>s1", from = "h3", to = "s1", rate = "20Mbit" },
  { id = "s1>h3", from = "s1", to = "h3", rate = "20Mbit" },
]
"#;

/// A switch and three hosts, which know each other's addresses.
struct Row {
    switch: Namespace,
    hosts: [Namespace; 3],
}

impl Row {
    fn build() -> Self {
        let switch = Namespace::new("s1").unwrap();
        let hosts = [1, 2, 3].map(|number: u8| {
            let host = Namespace::new("host").unwrap();
            switch
                .cable(&format!("s1-h{number}"), &host, "eth0")
                .unwrap();
            host.ip(&format!("link set eth0 address {}", mac(number)))
                .unwrap();
            host.address("eth0", [10, 79, 0, number].into(), 24)
                .unwrap();
            host
        });
        // As a new port: what the driver is to change is what is usual.
        switch.ip("link set s1-h2 gso_max_segs 65535").unwrap();
        Self { switch, hosts }
    }

    /// Packets that have left the port to the second host by a queue.
    fn sent(&self, queue: u64) -> u64 {
        let class = format!("-s class show dev s1-h2 classid 1:{:x}", 0x10 + queue);
        let text = self.switch.tc(&class).unwrap();
        let before = text.split(" pkt").next().unwrap();
        before.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

fn mac(host: u8) -> String {
    format!("02:00:00:00:00:{host:02x}")
}

/// A request becomes rules and queues of this machine; packets are in their queue, and other
/// packets in the last; and what was there before a restart is there afterwards.
#[test]
fn this_machine_can_be_the_switch() {
    if Namespace::is_missing() || punctual_testbed::Ovs::is_missing() {
        return;
    }
    let row = Row::build();
    let table = Table::start(&row.switch);
    let document = table.path("network.toml");
    std::fs::write(&document, NETWORK).unwrap();
    let socket = format!("unix:{}", table.socket().display());
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        command
            .args(["controller", "--driver", "linux", "--http", HTTP])
            .args(["--ovsdb", &socket, "--network"])
            .arg(&document);
        for number in [1, 2, 3] {
            let host = format!("h{number}=10.79.0.{number}@{}", mac(number));
            command.args(["--host", &host]);
        }
        Program::start(&row.switch, &mut command, Some("requirements is there"))
    };
    let answer = || {
        let text = table.dump("Channel", &["state", "queue"]);
        let line = text.lines().find(|line| line.contains("admitted"))?;
        line.split(',')
            .find_map(|word| word.trim().parse::<u64>().ok())
    };
    let controller = start();
    let members = ["udp:10.79.0.2:5000", "udp:10.79.0.3:5000"];
    table.request("udp:10.79.0.1:4000", members);
    let queue = until("the answer", answer);
    assert!(queue > 0);
    let port = row.switch.ip("-d link show s1-h2").unwrap();
    assert!(
        port.contains("gso_max_segs 1 ") && port.contains("gro_max_size 1 "),
        "{port}"
    );

    let open = |host: usize, port: u16| {
        let address = format!("10.79.0.{}", host + 1);
        let bind = || UdpSocket::bind((address.as_str(), port)).unwrap();
        row.hosts[host].enter(bind).unwrap()
    };
    let (publisher, other) = (open(0, 4000), open(0, 4001));
    let subscribers = [open(1, 5000), open(2, 5000)];
    for subscriber in &subscribers {
        subscriber.set_read_timeout(Some(crate::LONG)).unwrap();
    }
    let group = until("the group", || table.group());
    row.hosts[0].ip("route add 224.0.0.0/4 dev eth0").unwrap();
    let send = |times: u64| {
        let before = [row.sent(queue), row.sent(0)];
        let receive = |subscriber: &UdpSocket| {
            let mut received = [0; 200];
            let length = subscriber.recv(&mut received).unwrap();
            assert_eq!(received[..length], [7; 100]);
        };
        for _ in 0..times {
            // For a group that nobody asked for: it comes to nobody.
            other.send_to(&[9; 100], ("239.1.1.1", 5000)).unwrap();
            publisher
                .send_to(&[7; 100], (group.as_str(), 5000))
                .unwrap();
            subscribers.iter().for_each(receive);
            other.send_to(&[7; 100], ("10.79.0.2", 5000)).unwrap();
            receive(&subscribers[0]);
        }
        let [urgent, usual] = [row.sent(queue) - before[0], row.sent(0) - before[1]];
        assert_eq!(urgent, times);
        assert!(usual >= times, "{usual}");
    };
    send(5);
    // What was admitted needs no controller, and none changes it.
    drop(controller);
    send(5);
    let _controller = start();
    let decides = || {
        let status = row
            .switch
            .enter(|| http_get(HTTP.parse().unwrap(), "/api/v1/controller"));
        status.unwrap().is_ok_and(|text| {
            let status: Value = serde_json::from_str(&text).unwrap();
            status["deciding"] == true
        })
    };
    while !decides() {
        send(1);
    }
    send(5);
    assert_eq!(until("the answer", answer), queue);
}
