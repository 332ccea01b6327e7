//! Files of TLS configurations: all kinds of keys, and errors that name file and remedy.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use punctual_net::tls::{
    ClientAuthority, ClientCertificates, TlsAcceptor, TlsError, TlsServerOptions,
};
use rcgen::date_time_ymd;
use rustls::time_provider::TimeProvider;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::support::{Pki, TlsClient, accept, client_of, data};

/// The certificates were made once and for all; whatever the machine's clock says, they are valid.
#[derive(Debug)]
struct The2030s;

impl TimeProvider for The2030s {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            2_000_000_000,
        )))
    }
}

#[test]
fn all_kinds_of_private_keys() {
    for name in ["pkcs1", "sec1"] {
        let acceptor = TlsAcceptor::load(&TlsServerOptions {
            certificate: data(&format!("{name}.pem")),
            key: data(&format!("{name}.key")),
            ..Pki::new().server_options()
        })
        .unwrap();
        let mut layer = accept(&acceptor);
        let trusted = CertificateDer::from_pem_file(data(&format!("{name}.pem"))).unwrap();
        let mut config = client_of(rustls::ALL_VERSIONS, trusted).with_no_client_auth();
        config.time_provider = Arc::new(The2030s);
        TlsClient::new(&config.into())
            .talk(&mut layer, usize::MAX)
            .unwrap();
        assert!(layer.established(), "{name}");
    }
}

#[test]
fn key_and_certificate_may_share_a_file() {
    let pki = Pki::new();
    let read = |name| std::fs::read_to_string(pki.path(name)).unwrap();
    let both = pki.write("both.pem", &(read("server.key") + &read("server.pem")));
    TlsAcceptor::load(&TlsServerOptions {
        certificate: both.clone(),
        key: both,
        ..pki.server_options()
    })
    .unwrap();
}

#[test]
fn the_expiry_of_the_certificate_is_known() {
    let pki = Pki::new();
    pki.issue("server", |params| {
        params.not_after = date_time_ymd(2100, 1, 1);
    });
    let acceptor = TlsAcceptor::load(&pki.server_options()).unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    assert_eq!(acceptor.expires(), SystemTime::UNIX_EPOCH + 47_482 * day);
}

/// Asserts that the error names the file and says what to do.
#[track_caller]
fn explains(error: &TlsError, file: &Path, remedy: &str) {
    let text = error.to_string();
    assert!(text.contains(&file.display().to_string()), "{text}");
    assert!(text.contains(remedy), "{text}");
}

#[test]
fn bad_server_files_are_explained() {
    let pki = Pki::new();
    pki.issue("other", |_| {});
    let load = |certificate: &Path, key: &Path| {
        TlsAcceptor::load(&TlsServerOptions {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            ..pki.server_options()
        })
        .unwrap_err()
    };
    let (certificate, key) = (pki.path("server.pem"), pki.path("server.key"));
    let other = pki.path("other.key");
    let missing = pki.path("missing.pem");

    let error = load(&missing, &key);
    assert!(matches!(error, TlsError::Read { .. }));
    explains(&error, &missing, "check path and permissions");

    let error = load(&certificate, &other);
    assert!(matches!(error, TlsError::KeyMismatch { .. }));
    explains(&error, &other, "made together");
    explains(&error, &certificate, "made together");

    let error = load(&key, &key);
    assert!(matches!(error, TlsError::NoCertificate { .. }));
    explains(&error, &key, "openssl x509 -inform DER");

    let error = load(&certificate, &certificate);
    assert!(matches!(error, TlsError::NoKey { .. }));
    explains(&error, &certificate, "openssl pkey -inform DER");

    for name in ["encrypted.key", "encrypted-old.key"] {
        let error = load(&certificate, &data(name));
        assert!(matches!(error, TlsError::KeyEncrypted { .. }), "{error}");
        explains(&error, &data(name), "decrypt it with");
    }

    let whole = std::fs::read_to_string(&certificate).unwrap();
    let cut = pki.write("cut.pem", &whole[..whole.len() / 2]);
    let error = load(&cut, &key);
    assert!(matches!(error, TlsError::Pem { .. }));
    explains(&error, &cut, "END CERTIFICATE");

    let pem = |kind: &str, base64: &str| {
        format!("-----BEGIN {kind}-----\n{base64}\n-----END {kind}-----\n")
    };
    let nonsense = pki.write("nonsense.pem", &pem("CERTIFICATE", "MAMCAQE="));
    let error = load(&nonsense, &key);
    assert!(
        matches!(error, TlsError::CertificateFormat { .. }),
        "{error}"
    );
    explains(&error, &nonsense, "openssl x509 -text");

    let nonsense = pki.write("nonsense.key", &pem("PRIVATE KEY", "MAMCAQE="));
    let error = load(&certificate, &nonsense);
    assert!(matches!(error, TlsError::KeyFormat { .. }), "{error}");
    explains(&error, &nonsense, "ECDSA");
}

#[test]
fn bad_files_for_client_certificates_are_explained() {
    let pki = Pki::new();
    let load = |authority| {
        TlsAcceptor::load(&TlsServerOptions {
            clients: ClientCertificates::Required(authority),
            ..pki.server_options()
        })
        .unwrap_err()
    };
    let empty = pki.write("empty.pem", "");
    let error = load(ClientAuthority {
        ca: empty.clone(),
        crl: None,
    });
    assert!(matches!(error, TlsError::NoCertificate { .. }));
    explains(&error, &empty, "holds no certificate");

    let error = load(ClientAuthority {
        crl: Some(empty.clone()),
        ..pki.authority()
    });
    assert!(matches!(error, TlsError::NoRevocationList { .. }));
    explains(&error, &empty, "openssl crl -inform DER");

    let nonsense = pki.write(
        "nonsense.crl",
        "-----BEGIN X509 CRL-----\nMAMCAQE=\n-----END X509 CRL-----\n",
    );
    let error = load(ClientAuthority {
        crl: Some(nonsense.clone()),
        ..pki.authority()
    });
    assert!(matches!(error, TlsError::RevocationList { .. }));
    explains(&error, &nonsense, "issue it again");
}
