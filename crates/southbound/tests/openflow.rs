//! Connections with a real Open vSwitch, whose packets are made up.
#![allow(clippy::unwrap_used, reason = "tests may")]

use std::ffi::OsStr;
use std::future::Future;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual_openflow::{FlowMod, Match, Message, OxmField, PortNo, Role, RoleMessage, TableId};
use punctual_southbound::openflow::{ListenOptions, SwitchEvent, Switches};
use punctual_southbound::ovsdb::TlsOptions;
use punctual_southbound::tls;
use punctual_testbed::{Datapath, Ovs};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;

const LONG: Duration = Duration::from_secs(30);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap()
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test);
}

async fn listen(port: u16, generation: u64) -> Switches {
    listen_with(port, generation, None).await
}

async fn listen_with(port: u16, generation: u64, tls: Option<Arc<ServerConfig>>) -> Switches {
    let options = ListenOptions {
        address: (Ipv4Addr::LOCALHOST, port).into(),
        tls,
        generation,
        probe_interval: Duration::from_secs(2),
    };
    // The listener before lets go of the address when its task ends.
    soon(async {
        loop {
            match Switches::listen(options.clone()).await {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    tokio::task::yield_now().await;
                }
                listening => return listening.unwrap(),
            }
        }
    })
    .await
}

fn set_controller(ovs: &Ovs, bridge: &str, switches: &Switches) {
    let target = format!("tcp:{}", switches.address());
    let backoff = ["max_backoff=1000", "inactivity_probe=5000"];
    ovs.vsctl(["set-controller", bridge, target.as_str()])
        .and_then(|_| {
            let set = ["set", "controller", bridge];
            ovs.vsctl(set.iter().chain(&backoff))
        })
        .unwrap();
}

async fn up(switches: &mut Switches) -> (u64, u32, usize) {
    loop {
        if let SwitchEvent::Up {
            datapath,
            meters,
            ports,
        } = soon(switches.next()).await.unwrap()
        {
            return (datapath, meters, ports.len());
        }
    }
}

async fn answer(switches: &mut Switches, number: u32) -> Message {
    loop {
        match soon(switches.next()).await.unwrap() {
            SwitchEvent::Message { xid, message, .. } if xid == number => return message,
            SwitchEvent::Down { why, .. } => panic!("{why}"),
            _ => {}
        }
    }
}

#[test]
fn a_switch_connects_obeys_and_comes_back() {
    if Ovs::is_missing() {
        return;
    }
    run(async {
        let ovs = Ovs::start(Datapath::Dummy).unwrap();
        ovs.bridge("br", 0x2a).unwrap();
        ovs.port("br", "p1", 1).unwrap();
        let mut switches = listen(0, 1).await;
        set_controller(&ovs, "br", &switches);
        let (datapath, meters, ports) = up(&mut switches).await;
        assert_eq!(datapath, 0x2a);
        assert!(meters > 0);
        assert_eq!(ports, 2, "the port and the switch's own");

        let sender = switches.sender();
        let flows = 1500;
        let began = Instant::now();
        for n in 0..flows {
            let matching = Match::new([OxmField::InPort(PortNo(n + 10))]).unwrap();
            let flow = FlowMod::add(TableId(0), 100, matching, Vec::new());
            sender.send(datapath, n, Message::FlowMod(flow));
        }
        sender.send(datapath, 9_999, Message::BarrierRequest);
        assert_eq!(answer(&mut switches, 9_999).await, Message::BarrierReply);
        println!(
            "{flows} flow-mods were acknowledged after {:?}",
            began.elapsed()
        );
        let installed = ovs.ofctl("dump-flows", "br", [""; 0]).unwrap();
        assert_eq!(
            installed
                .lines()
                .filter(|line| line.contains("in_port"))
                .count(),
            flows as usize
        );
        let role = RoleMessage {
            role: Role::NoChange,
            generation: 0,
        };
        sender.send(datapath, 5, Message::RoleRequest(role));
        let Message::RoleReply(role) = answer(&mut switches, 5).await else {
            panic!("another answer");
        };
        assert_eq!(role.role, Role::Master);

        sender.disconnect(datapath);
        assert!(matches!(
            soon(switches.next()).await,
            Some(SwitchEvent::Down { .. })
        ));
        assert!(!sender.send(datapath, 6, Message::BarrierRequest));
        assert_eq!(up(&mut switches).await.0, 0x2a);
        // A controller that starts again, at the same address.
        let address = switches.address();
        drop(switches);
        let mut again = listen(address.port(), 2).await;
        assert_eq!(up(&mut again).await.0, 0x2a);
        assert_eq!(again.sender().connected().len(), 1);
    });
}

/// An authority, and certificates by it as files: name and key, certificate.
fn certify(directory: &Path, names: &[&str]) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let file = |name: &str| directory.join(name);
    let pem = params.self_signed(&key).unwrap().pem();
    std::fs::write(file("ca.pem"), pem).unwrap();
    let issuer = Issuer::new(params, key);
    for name in names {
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, *name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(file(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(file(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[test]
fn switches_use_tls_and_show_a_certificate() {
    if Ovs::is_missing() {
        return;
    }
    run(async {
        let directory = tempfile::tempdir().unwrap();
        certify(directory.path(), &["controller", "switch"]);
        let file = |name: &str| directory.path().join(name);
        let tls = tls::server(&TlsOptions {
            ca: file("ca.pem"),
            certificate: file("controller.pem"),
            key: file("controller.key"),
            check_name: true,
        })
        .unwrap();
        let mut switches = listen_with(0, 1, Some(tls)).await;
        let ovs = Ovs::start(Datapath::Dummy).unwrap();
        ovs.bridge("br", 0x2a).unwrap();
        ovs.port("br", "p1", 1).unwrap();
        let [key, certificate, ca] = ["switch.key", "switch.pem", "ca.pem"].map(file);
        ovs.vsctl([
            OsStr::new("set-ssl"),
            key.as_os_str(),
            certificate.as_os_str(),
            ca.as_os_str(),
        ])
        .unwrap();
        let target = format!("ssl:{}", switches.address());
        ovs.vsctl(["set-controller", "br", target.as_str()])
            .unwrap();
        assert_eq!(up(&mut switches).await.0, 0x2a);
        let echo = Message::BarrierRequest;
        switches.sender().send(0x2a, 99, echo);
        assert_eq!(answer(&mut switches, 99).await, Message::BarrierReply);

        // One without a certificate, and one without TLS, get nowhere.
        let other = Ovs::start(Datapath::Dummy).unwrap();
        other.bridge("br", 0x2b).unwrap();
        let plain = format!("tcp:{}", switches.address());
        other
            .vsctl(["set-controller", "br", plain.as_str()])
            .unwrap();
        soon(async {
            loop {
                let query = ["get", "controller", "br", "status:last_error"];
                if other.vsctl(query).is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        while let Some(event) = switches.try_next() {
            let strange = matches!(event, SwitchEvent::Up { datapath: 0x2b, .. });
            assert!(!strange, "it was let in");
        }
    });
}
