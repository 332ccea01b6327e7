//! Two managers over TLS: each touches only what is its own.

use std::net::SocketAddrV4;
use std::path::Path;

use punctual_model::srt::State;
use punctual_southbound::ovsdb::operation::{Condition, Operation};
use punctual_southbound::ovsdb::value::{Datum, Row};
use punctual_southbound::ovsdb::{Client, Endpoint, Error, Options, TlsOptions};
use punctual_southbound::srt::rows::{CHANNEL, REQUEST, of_channel, of_request};
use punctual_southbound::srt::{DATABASE, MANAGER_ROLE, ManagerOptions, ManagerSide};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::server::{Server, free_address};
use crate::{LONG, admit_all, admitted, controller, manager_options, need_ovs, request, run, soon};

/// An authority, and certificates by it as files.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    address: SocketAddrV4,
}

impl Authority {
    fn new(directory: &Path, address: SocketAddrV4) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.join("ca.pem"), certificate.pem()).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            address,
        }
    }

    fn certify(&self, directory: &Path, name: &str) -> TlsOptions {
        let mut params = CertificateParams::new(vec![self.address.ip().to_string()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |end: &str| directory.join(format!("{name}-{end}.pem"));
        std::fs::write(file("cert"), certificate.pem()).unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        TlsOptions {
            ca: directory.join("ca.pem"),
            certificate: file("cert"),
            key: file("key"),
            check_name: true,
        }
    }
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "one sequence of requests against one switch"
)]
fn managers_touch_only_what_is_their_own() {
    need_ovs!();
    run(async {
        let mut server = Server::start();
        let address = free_address();
        let directory = server.directory().to_owned();
        let authority = Authority::new(&directory, address);
        let of_server = authority.certify(&directory, "server");
        let (side, inbox) = controller(&server);
        side.prepare("c").await.unwrap();
        // The role hangs on the listener.
        let insert = vec![
            Operation::Insert {
                table: "Connection".into(),
                row: Row::default()
                    .with(
                        "target",
                        format!("pssl:{}:{}", address.port(), address.ip()),
                    )
                    .with("role", MANAGER_ROLE),
                name: Some("new".into()),
            },
            Operation::Update {
                table: "Global".into(),
                conditions: vec![],
                row: Row::default().with(
                    "connections",
                    Datum::from(punctual_southbound::ovsdb::value::Atom::NamedUuid(
                        "new".into(),
                    )),
                ),
            },
        ];
        let options = Options::new(vec![server.endpoint()], DATABASE, vec![]);
        let (admin, _events) = Client::start(options).unwrap();
        admin.transact(insert, LONG).await.unwrap();
        server.kill();
        let file = |path: &Path| path.display().to_string();
        server.listen(
            format!("db:{DATABASE},Global,connections"),
            vec![
                format!("--private-key={}", file(&of_server.key)),
                format!("--certificate={}", file(&of_server.certificate)),
                format!("--ca-cert={}", file(&of_server.ca)),
            ],
        );
        server.run();

        let admitting = tokio::spawn(admit_all(side.clone(), inbox));
        let endpoint: Endpoint = format!("ssl:{address}").parse().unwrap();
        let secure = |name: &str| ManagerOptions {
            endpoints: vec![endpoint.clone()],
            tls: Some(authority.certify(&directory, name)),
            ..manager_options(&server, name)
        };
        let a = ManagerSide::start(secure("edge-a")).unwrap();
        let b = ManagerSide::start(secure("edge-b")).unwrap();
        for manager in [&a, &b] {
            let channel = soon(manager.ask(request("f"))).await;
            assert_eq!(channel.state, State::Admitted, "{}", channel.reason);
        }
        let mut changed = request("f");
        changed.deadline_ns += 1;
        assert_eq!(
            soon(a.ask(changed)).await.state,
            State::Admitted,
            "it changes its own"
        );

        // One that says it is another.
        let liar = ManagerSide::start(ManagerOptions {
            name: "edge-b".into(),
            ..secure("edge-a")
        })
        .unwrap();
        let channel = soon(liar.ask(request("g"))).await;
        assert_eq!(channel.state, State::BestEffort);
        assert!(
            channel.reason.contains("permission error"),
            "{}",
            channel.reason
        );

        let options = Options {
            tls: Some(authority.certify(&directory, "edge-a")),
            ..Options::new(vec![endpoint.clone()], DATABASE, vec![])
        };
        let (raw, _events) = Client::start(options).unwrap();
        let of_b = || vec![Condition::equal("manager", "edge-b")];
        let mut foreign = request("h");
        foreign.manager = "edge-b".into();
        let mut own = request("f");
        own.manager = "edge-a".into();
        for (what, operation) in [
            (
                "insert as another",
                Operation::insert(REQUEST, of_request(&foreign)),
            ),
            (
                "delete another's",
                Operation::Delete {
                    table: REQUEST.into(),
                    conditions: of_b(),
                },
            ),
            (
                "update another's",
                Operation::Update {
                    table: REQUEST.into(),
                    conditions: of_b(),
                    row: Row::default().with("qos", 2),
                },
            ),
            (
                "give away its own",
                Operation::Update {
                    table: REQUEST.into(),
                    conditions: vec![Condition::equal("manager", "edge-a")],
                    row: Row::default().with("manager", "edge-b"),
                },
            ),
            (
                "decide",
                Operation::insert(CHANNEL, of_channel(&admitted(&own))),
            ),
            (
                "change a decision",
                Operation::Update {
                    table: CHANNEL.into(),
                    conditions: vec![],
                    row: Row::default().with("reason", "because"),
                },
            ),
            (
                "widen its rights",
                Operation::Delete {
                    table: "RBAC_Role".into(),
                    conditions: vec![],
                },
            ),
        ] {
            match raw.transact(vec![operation], LONG).await {
                Err(Error::Refused(failure)) => {
                    assert_eq!(failure.error, "permission error", "{what}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        let flows: Vec<_> = side
            .requests()
            .into_iter()
            .map(|r| (r.manager, r.flow))
            .collect();
        let pair = |manager: &str| (manager.to_owned(), "f".to_owned());
        assert_eq!(flows, [pair("edge-a"), pair("edge-b")]);

        // A certificate of somebody else opens nothing.
        let elsewhere = tempfile::tempdir().unwrap();
        let stranger =
            Authority::new(elsewhere.path(), address).certify(elsewhere.path(), "edge-a");
        let options = Options {
            tls: Some(TlsOptions {
                ca: of_server.ca.clone(),
                ..stranger
            }),
            ..Options::new(vec![endpoint], DATABASE, vec![])
        };
        let (stranger, _events) = Client::start(options).unwrap();
        let patience = std::time::Duration::from_secs(1);
        let refused = stranger.transact(vec![], patience).await;
        assert!(matches!(refused, Err(Error::Away(_))), "{refused:?}");
        admitting.abort();
    });
}
