//! Links that take less than others: datagrams are not fragmented.

use crate::broker::Broker;
use crate::clients::{Subscriber, url};
use crate::mqtt::Client;
use crate::network::{BROKER, Network};

#[test]
fn a_datagram_is_no_larger_than_the_path_takes() {
    let Some(network) = Network::build() else {
        return;
    };
    let Network { broker, clients } = &network;
    for host in [broker, clients] {
        host.run("ip", &["link", "set", "eth0", "mtu", "1300"])
            .unwrap();
    }
    let listener = "[[listener]]\naddress = \"udp://*:1883\"\nallow_anonymous = true\n";
    let _broker = Broker::start(broker, listener);
    for address in BROKER {
        let mut publisher = Client::connect(clients, address, "publisher");
        let url = format!("{}/t", url("udp", address));
        let subscriber = Subscriber::start(clients, &url, &[]);
        // The first teaches the broker what the path takes; the second does not
        // fit any more; the third does.
        publisher.publish("t", &[], &"a".repeat(1350));
        publisher.publish("t", &[], &"b".repeat(1350));
        let fits = "c".repeat(1200);
        publisher.publish("t", &[], &fits);
        assert_eq!(subscriber.message().trim_end(), fits);
    }
}
