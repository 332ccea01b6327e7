//! The whole controller: eight switches in a row, the table, a manager.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use punctual_controller::plan::Mac;
use punctual_controller::{End, KnownHost, Settings};
use punctual_model::srt::{Peer, Request, State};
use punctual_southbound::openflow::{ListenOptions, Switches};
use punctual_southbound::service::{Observer, Service};
use punctual_southbound::srt::ManagerSide;
use punctual_testbed::{Datapath, Ovs};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::server::Server;
use crate::{controller, manager_options, need_ovs, request, run, soon};

const SWITCHES: u64 = 8;
/// Port of the hosts.
const HOST: u32 = 10;

fn host(number: u8, datapath: u64) -> KnownHost {
    KnownHost {
        name: format!("h{number}"),
        mac: Some(Mac([2, 0, 0, 0, 0, number])),
        addresses: vec![Ipv4Addr::new(10, 0, 0, number).into()],
        at: Some(End {
            datapath,
            port: HOST,
        }),
    }
}

fn network() -> Ovs {
    let ovs = Ovs::start(Datapath::Dummy).unwrap();
    for number in 1..=SWITCHES {
        let bridge = format!("s{number}");
        ovs.bridge(&bridge, number).unwrap();
        ovs.port(&bridge, &format!("h{number}"), HOST).unwrap();
    }
    let patch = |from: u64, to: u64, port: u32| {
        let (bridge, name) = (format!("s{from}"), format!("p{from}-{to}"));
        ovs.vsctl([
            "add-port",
            &bridge,
            &name,
            "--",
            "set",
            "interface",
            &name,
            "type=patch",
            &format!("options:peer=p{to}-{from}"),
            &format!("ofport_request={port}"),
        ])
        .unwrap();
    };
    for number in 1..SWITCHES {
        patch(number, number + 1, 2);
        patch(number + 1, number, 1);
    }
    ovs
}

async fn start(
    server: &Server,
    port: u16,
    generation: u64,
) -> (Observer, u16, watch::Sender<bool>, JoinHandle<()>) {
    let settings = Settings {
        hosts: vec![host(1, 1), host(8, SWITCHES)],
        ..Settings::default()
    };
    let switches = Switches::listen(ListenOptions {
        address: (Ipv4Addr::LOCALHOST, port).into(),
        tls: None,
        generation,
        probe_interval: Duration::from_secs(5),
    })
    .await
    .unwrap();
    let port = switches.address().port();
    let service = Service::new(&settings, controller(server), switches);
    let (stop, stopped) = watch::channel(false);
    let observer = service.observer();
    let running = tokio::spawn(service.run(stopped, Duration::from_secs(5)));
    (observer, port, stop, running)
}

fn datagrams(number: u16) -> Request {
    Request {
        publisher: Peer::udp(Ipv4Addr::new(10, 0, 0, 1), 4_000 + number),
        subscribers: [Peer::udp(Ipv4Addr::new(10, 0, 0, 8), 5_000)].into(),
        broker: None,
        period_ns: 1_000_000_000,
        deadline_ns: 500_000_000,
        ..request(&format!("f{number}"))
    }
}

/// Entries of flows on a switch in the middle.
fn entries(ovs: &Ovs) -> usize {
    let nothing: [&str; 0] = [];
    let text = ovs.ofctl("dump-flows", "s4", nothing).unwrap();
    text.lines()
        .filter(|line| line.contains("tp_src=4"))
        .count()
}

async fn until(observer: &Observer, what: impl Fn(&punctual_controller::Status) -> bool) {
    soon(async {
        while !observer.look(|controller| what(&controller.status())) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[test]
fn requests_become_entries_on_eight_switches() {
    need_ovs!();
    run(async {
        let ovs = network();
        let server = Server::start();
        let (observer, port, stop, running) = start(&server, 0, 1).await;
        for number in 1..=SWITCHES {
            let target = format!("tcp:127.0.0.1:{port}");
            ovs.vsctl(["set-controller", &format!("s{number}"), &target])
                .unwrap();
        }
        let links = usize::try_from(2 * (SWITCHES - 1)).unwrap();
        until(&observer, |status| {
            let between = status
                .links
                .iter()
                .filter(|link| link.up && link.from.port != HOST);
            status.deciding
                && status.switches.iter().filter(|s| s.reconciled).count() as u64 == SWITCHES
                && between.count() >= links
        })
        .await;

        let manager = ManagerSide::start(manager_options(&server, "m")).unwrap();
        let flows = 200;
        let mut times = Vec::new();
        for number in 0..flows {
            let began = Instant::now();
            let channel = soon(manager.ask(datagrams(number))).await;
            times.push(began.elapsed());
            assert_eq!(channel.state, State::Admitted, "{}", channel.reason);
            assert!(channel.bound_ns().is_some_and(|bound| bound > 0));
        }
        times.sort();
        println!(
            "a channel over {SWITCHES} switches: p50 {:?}, p99 {:?}, longest {:?}",
            times[times.len() / 2],
            times[times.len() * 99 / 100],
            times[times.len() - 1]
        );
        assert_eq!(entries(&ovs), usize::from(flows));

        // It starts again: nothing on the switches goes meanwhile or after.
        stop.send_replace(true);
        running.await.unwrap();
        assert_eq!(entries(&ovs), usize::from(flows));
        let (observer, _, stop, running) = start(&server, port, 2).await;
        until(&observer, |status| status.admitted == usize::from(flows)).await;
        assert_eq!(entries(&ovs), usize::from(flows));

        for number in 1..flows {
            manager.withdraw(&format!("f{number}"));
        }
        soon(async {
            while entries(&ovs) != 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        stop.send_replace(true);
        running.await.unwrap();
    });
}
