//! What a reload takes from clients that are connected, and from what waits for them.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::auth::{SECRET, as_user, guarded_by};
use crate::broker::Broker;
use crate::build::{Connect, V5, V311, Will, ack, first};
use crate::conn::{Conn, Stream, unique};
use crate::parse::Packet;

const ALL: &str = "user wire\ntopic readwrite #\nuser loud\ntopic readwrite #\n";

/// After a reload that removes a user or gives one another password, nobody is connected with
/// the old one any more; all others are.
#[test]
fn passwords_that_are_gone_end_connections() {
    let other = SECRET.replace("Hd71", "Hd72");
    for users in [
        format!("wire:{SECRET}\n"),
        format!("wire:{SECRET}\nloud:{other}\n"),
    ] {
        let Some((broker, files)) = guarded_by(ALL, "") else {
            return;
        };
        let connect = |level, user| Conn::connect_to(&broker, &as_user(level, user)).0;
        let mut stay = [V311, V5].map(|level| connect(level, "wire"));
        let mut go = [V311, V5].map(|level| connect(level, "loud"));
        fs::write(files.path().join("passwd"), users).expect("write the password file");
        broker.reload();
        go.iter_mut().for_each(|conn| drop(conn.error(&[0x87])));
        stay.iter_mut().for_each(Conn::ping);
        Conn::ask(&broker, &as_user(V5, "loud")).refused(&[0x86]);
        connect(V5, "wire").ping();
    }
}

/// What was queued for a client, or sent and not acknowledged, is not sent to it once it may not
/// read it any more, and what follows comes.
#[test]
fn what_waits_is_not_for_who_may_not_read_it_any_more() {
    const LESS: &str = "user wire\ntopic readwrite open/#\nuser loud\ntopic readwrite #\n";
    for level in [V311, V5] {
        let Some((broker, files)) = guarded_by(ALL, "") else {
            return;
        };
        let reader = as_user(level, "wire").lasting(300);
        let (mut conn, _) = Conn::connect_to(&broker, &reader);
        conn.subscribe("#", 2);
        let (mut publisher, _) = Conn::connect_to(&broker, &as_user(V5, "loud"));
        // In flight when the connection ends,
        for qos in [1, 2] {
            publisher.publish("secret/sent", qos.to_string(), qos);
            conn.expect("secret/sent", qos.to_string());
        }
        drop(conn);
        // and queued.
        for qos in [1, 2] {
            publisher.publish("secret/queued", qos.to_string(), qos);
            publisher.publish("open/a", qos.to_string(), qos);
        }
        fs::write(files.path().join("acl"), LESS).expect("write the ACL file");
        broker.reload();
        let (mut conn, connack) = Conn::connect_to(&broker, &reader);
        assert!(connack.session_present);
        publisher.publish("open/a", "3", 1);
        let (mut came, mut released) = (Vec::new(), 0);
        while came.len() < 3 {
            match conn.next() {
                Packet::Publish(message) => {
                    conn.acknowledge(&message);
                    came.push(format!("{} {}", message.topic, message.text()));
                }
                // The client may have it already, and is not to take another one for it.
                Packet::Ack(it) if it.kind == first::PUBREL => {
                    released += 1;
                    conn.send(ack(first::PUBCOMP, it.id));
                }
                other => conn.fail("PUBLISH or PUBREL", &other),
            }
        }
        assert_eq!(came, ["open/a 1", "open/a 2", "open/a 3"]);
        assert_eq!(released, 1);
        conn.ping();
    }
}

/// What the retained messages are that a new subscriber gets, by payload.
#[track_caller]
fn retained(broker: &Broker) -> Vec<String> {
    let (mut conn, _) = Conn::connect_to(broker, &as_user(V5, "wire"));
    conn.subscribe("kept/#", 0);
    let mut marker = Conn::connect_to(broker, &as_user(V5, "wire")).0;
    marker.publish("kept/marker", "end", 0);
    conn.payloads_before("end")
}

/// Retained messages are not given out any more once their publisher has lost the right to the
/// topic, wills included, and also after a restart; they are when it has the right again.
#[test]
fn retained_messages_of_who_lost_the_right_are_kept_back() {
    const LESS: &str = "user wire\ntopic readwrite #\nuser loud\ntopic readwrite other/#\n";
    let data = tempfile::tempdir().expect("a directory for the store");
    let config = format!("[server]\ndata = {:?}\n", data.path().display().to_string());
    let Some((broker, files)) = guarded_by(ALL, &config) else {
        return;
    };
    let (mut wire, _) = Conn::connect_to(&broker, &as_user(V5, "wire"));
    let will = Will::new("kept/will", "will of loud").qos(1).retain();
    let (mut loud, _) = Conn::connect_to(&broker, &as_user(V5, "loud").will(will));
    wire.retain("kept/a", "of wire", 1);
    loud.retain("kept/b", "of loud", 1);
    wire.subscribe("kept/will", 0);
    drop(loud);
    wire.expect("kept/will", "will of loud");
    let all = ["of loud", "of wire", "will of loud"];
    assert_eq!(retained(&broker), all);
    let acl = files.path().join("acl");
    let rights = |text| {
        fs::write(&acl, text).expect("write the ACL file");
        broker.reload();
    };
    rights(LESS);
    assert_eq!(retained(&broker), ["of wire"]);
    rights(ALL);
    assert_eq!(retained(&broker), all);
    fs::write(&acl, LESS).expect("write the ACL file");
    drop(broker);
    let keep = |key: &str| {
        let path = |name: &str| files.path().join(name).display().to_string();
        let (passwd, acl) = (path("passwd"), path("acl"));
        let config =
            format!("{config}[auth]\n{key}password_file = {passwd:?}\nacl_file = {acl:?}\n");
        Broker::with_config(&config).expect("a broker of our own")
    };
    let broker = keep("");
    assert_eq!(retained(&broker), ["of wire"]);
    drop(broker);
    assert_eq!(retained(&keep("check_retain_source = false\n")), all);
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "Test CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("an authority")
}

/// Writes `NAME.pem` and `NAME.key` of who has that number.
fn issue(authority: &Authority, dir: &Path, name: &str, number: u64) {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names = vec![SanType::DnsName("localhost".try_into().expect("a name"))];
    params.serial_number = Some(SerialNumber::from(number));
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, authority).expect("a certificate");
    fs::write(dir.join(format!("{name}.pem")), certificate.pem()).expect("write it");
    fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).expect("write its key");
}

/// Writes the list of revoked numbers.
fn revoke(authority: &Authority, dir: &Path, numbers: &[u64]) {
    let revoked = numbers.iter().map(|number| RevokedCertParams {
        serial_number: SerialNumber::from(*number),
        revocation_time: date_time_ymd(2024, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(2999, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(authority).expect("a list");
    fs::write(dir.join("crl.pem"), list.pem().expect("its text")).expect("write it");
}

impl Stream for StreamOwned<ClientConnection, TcpStream> {
    fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.sock.set_read_timeout(Some(patience))
    }
}

/// A connection with that certificate, before CONNECT.
fn with_certificate(broker: &Broker, dir: &Path, name: &str) -> Conn {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(dir.join("ca.pem")).expect("the authority");
    roots.add(ca).expect("trust it");
    let certificate = CertificateDer::from_pem_file(dir.join(format!("{name}.pem")));
    let key = PrivateKeyDer::from_pem_file(dir.join(format!("{name}.key")));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![certificate.expect("its certificate")],
            key.expect("its key"),
        )
        .expect("a configuration");
    let tls = ClientConnection::new(Arc::new(config), "localhost".try_into().expect("a name"));
    let tcp = TcpStream::connect(broker.tcp()).expect("connect to the broker");
    let stream = StreamOwned::new(tls.expect("a TLS client"), tcp);
    Conn::over(Box::new(stream), broker, V5)
}

/// After a reload nobody is connected with a certificate that was revoked, or whose authority is not
/// trusted any more; all others are.
#[test]
fn certificates_that_are_revoked_end_connections() {
    let files = tempfile::tempdir().expect("a directory");
    let (dir, authority, other) = (files.path(), authority(), authority());
    fs::write(dir.join("ca.pem"), authority.pem()).expect("write it");
    fs::write(dir.join("clients.pem"), authority.pem()).expect("write it");
    for (name, number) in [("server", 1), ("good", 2), ("bad", 3)] {
        issue(&authority, dir, name, number);
    }
    revoke(&authority, dir, &[]);
    let file = |name: &str| format!("{:?}", dir.join(name).display().to_string());
    let config = format!(
        "[[listener]]\naddress = \"tls://127.0.0.1:0\"\ncertificate = {}\nkey = {}\n\
         client_ca = {}\nclient_crl = {}\nrequire_client_certificate = true\n\
         use_identity_as_username = true\n",
        file("server.pem"),
        file("server.key"),
        file("clients.pem"),
        file("crl.pem")
    );
    let Some(broker) = Broker::with_config(&config) else {
        return;
    };
    let connect = |name| {
        let mut conn = with_certificate(&broker, dir, name);
        conn.send(Connect::new(V5, unique("c")).encode());
        assert_eq!(conn.connack().code, 0);
        conn
    };
    let (mut good, mut bad, mut bad_too) = (connect("good"), connect("bad"), connect("bad"));
    revoke(&authority, dir, &[3]);
    broker.reload();
    bad.error(&[0x87]);
    bad_too.error(&[0x87]);
    good.ping();
    connect("good").ping();
    fs::write(dir.join("clients.pem"), other.pem()).expect("write it");
    revoke(&other, dir, &[]);
    broker.reload();
    good.error(&[0x87]);
}

/// After a reload no broker is connected whose user may not be it any more, or whose listener is not for
/// brokers; who knows the secret of the mesh needs no right.
#[test]
fn brokers_that_may_not_be_any_more_end() {
    let files = tempfile::tempdir().expect("a directory");
    let path = |name: &str| files.path().join(name).display().to_string();
    let write = |name: &str, text: &str| fs::write(path(name), text).expect("write a file");
    let secret = "known to the brokers of this mesh only";
    write("secret", secret);
    write("passwd", &format!("wire:{SECRET}\nloud:{SECRET}\n"));
    let config = |brokers: &str| {
        format!(
            "[mesh]\nenabled = true\njoin_wait = \"0s\"\nid = \"a\"\nsecret_file = {:?}\n\
             [auth]\npassword_file = {:?}\nacl_file = {:?}\n\
             [[listener]]\naddress = \"tcp://127.0.0.1:0\"\nbrokers = \"{brokers}\"\n",
            path("secret"),
            path("passwd"),
            path("acl"),
        )
    };
    write("acl", "user wire\nbroker b c\nuser loud\ntopic #\n");
    let Some(broker) = Broker::with_config(&config("allow")) else {
        return;
    };
    let connect = |name: &str, user: &str, password: &str| {
        let connect = Connect::new(V5, name).user(user).password(password);
        Conn::connect_to(&broker, &connect).0
    };
    let mut b = connect("$mesh/b", "wire", "secret");
    let mut c = connect("$mesh/c", "wire", "secret");
    let mut d = connect("$mesh/d", "$mesh", secret);
    let mut client = connect(&unique("c"), "loud", "secret");
    write("acl", "user wire\nbroker c\nuser loud\ntopic #\n");
    broker.reload();
    b.dismissed(0x87);
    client.ping();
    broker.reload_with(&config("deny"));
    c.dismissed(0x87);
    d.dismissed(0x87);
    client.ping();
    broker.reload_with(&config("only"));
    client.dismissed(0x87);
    let mut c = connect("$mesh/c", "wire", "secret");
    write("acl", "user wire\nbroker b\n");
    broker.reload();
    c.dismissed(0x87);
}

/// After a reload nobody is connected who has proven nothing where that does not do any more: clients
/// without a user name, and those that just named one before there were passwords.
#[test]
fn who_has_proven_nothing_ends_where_passwords_begin() {
    let files = tempfile::tempdir().expect("a directory");
    let passwd = files.path().join("passwd");
    fs::write(&passwd, format!("wire:{SECRET}\n")).expect("write the password file");
    let listener = "[[listener]]\naddress = \"tcp://127.0.0.1:0\"\n";
    let checked = format!("password_file = {:?}\n", passwd.display().to_string());
    let config = |lines: &str| format!("{listener}{lines}");
    let open = config("allow_anonymous = true\n");
    let [some, none] = ["true", "false"].map(|let_in| {
        let lines = format!("{checked}allow_anonymous = {let_in}\n");
        config(&lines)
    });
    for (before, then, nobody_stays) in [
        (&open, &none, true),
        (&open, &some, true),
        (&some, &none, true),
        (&open, &open, false),
    ] {
        let Some(broker) = Broker::with_config(before) else {
            return;
        };
        let mut connects = [V311, V5]
            .map(|level| Connect::new(level, unique("c")))
            .to_vec();
        if before == &open {
            connects.push(Connect::new(V5, unique("c")).user("wire"));
        }
        let mut conns: Vec<Conn> = connects
            .iter()
            .map(|connect| Conn::connect_to(&broker, connect).0)
            .collect();
        broker.reload_with(then);
        for conn in &mut conns {
            match nobody_stays {
                true => drop(conn.error(&[0x87])),
                false => conn.ping(),
            }
        }
        if then == &open {
            continue;
        }
        // Who has proven something stays whatever becomes of those.
        let (mut proven, _) = Conn::connect_to(&broker, &as_user(V5, "wire"));
        broker.reload_with(&none);
        proven.ping();
    }
}
