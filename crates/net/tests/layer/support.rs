//! A certificate authority in a temporary directory, and a TLS client in memory.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::ProptestConfig;
use punctual_net::layer::{Layer, LayerConfig, LayerError, Received};
use punctual_net::tls::{
    ClientAuthority, ClientCertificates, MinimumTls, TlsAcceptor, TlsServerOptions,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use rustls::client::WantsClientCert;
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

/// What a layer made of some bytes.
#[derive(Debug, Default)]
pub(crate) struct Fed {
    pub(crate) app: Vec<u8>,
    pub(crate) wire: Vec<u8>,
    /// The peer said goodbye.
    pub(crate) ended: bool,
    pub(crate) error: Option<LayerError>,
}

/// Feeds `bytes` in parts of `step` bytes until the connection ends.
pub(crate) fn feed(layer: &mut Layer, bytes: &[u8], step: usize) -> Fed {
    let mut fed = Fed::default();
    for part in bytes.chunks(step) {
        match layer.received(part, &mut fed.app, &mut fed.wire) {
            Ok(Received::Open) => {}
            Ok(Received::Ended) => {
                fed.ended = true;
                break;
            }
            Err(error) => {
                fed.error = Some(error);
                break;
            }
        }
    }
    fed
}

/// Property tests print the failing input; a test of its own then keeps it, not a file.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub(crate) struct Pki {
    directory: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    /// An authority and a certificate for a server called `localhost`.
    pub(crate) fn new() -> Self {
        Self::named("Test CA")
    }

    /// The same under another name.
    pub(crate) fn named(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pki = Self {
            directory: TempDir::new().unwrap(),
            authority: CertifiedIssuer::self_signed(params, key).unwrap(),
        };
        pki.write("ca.pem", &pki.authority.pem());
        pki.issue("server", |params| {
            params.subject_alt_names =
                vec![rcgen::SanType::DnsName("localhost".try_into().unwrap())];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        });
        pki
    }

    /// Writes `NAME.pem` and `NAME.key`, with the name as common name.
    pub(crate) fn issue(&self, name: &str, adapt: impl FnOnce(&mut CertificateParams)) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        adapt(&mut params);
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Writes `crl.pem`, which revokes these serial numbers.
    pub(crate) fn revoke(&self, serials: &[u64], next_update: i32) -> PathBuf {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(next_update, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.authority).unwrap();
        self.write("crl.pem", &list.pem().unwrap())
    }

    pub(crate) fn write(&self, name: &str, content: &str) -> PathBuf {
        std::fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn server_options(&self) -> TlsServerOptions {
        TlsServerOptions {
            certificate: self.path("server.pem"),
            key: self.path("server.key"),
            clients: ClientCertificates::Ignored,
            minimum: MinimumTls::V1_2,
            max_record: punctual_net::tls::MAX_RECORD,
        }
    }

    pub(crate) fn server(&self, clients: ClientCertificates) -> TlsAcceptor {
        let options = TlsServerOptions {
            clients,
            ..self.server_options()
        };
        TlsAcceptor::load(&options).unwrap()
    }

    pub(crate) fn authority(&self) -> ClientAuthority {
        ClientAuthority {
            ca: self.path("ca.pem"),
            crl: None,
        }
    }

    /// A client that trusts the authority and shows the certificate `name`, if any.
    pub(crate) fn client(&self, name: Option<&str>) -> Arc<ClientConfig> {
        self.client_of(rustls::ALL_VERSIONS, name)
    }

    /// The same for some versions of TLS.
    pub(crate) fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        name: Option<&str>,
    ) -> Arc<ClientConfig> {
        let ca = CertificateDer::from_pem_file(self.path("ca.pem")).unwrap();
        let builder = client_of(versions, ca);
        let config = match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let certificate = CertificateDer::from_pem_file(self.path(&format!("{name}.pem")));
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key")));
                builder
                    .with_client_auth_cert(vec![certificate.unwrap()], key.unwrap())
                    .unwrap()
            }
        };
        Arc::new(config)
    }
}

/// Trusts one certificate, and what it has issued.
pub(crate) fn client_of(
    versions: &[&'static SupportedProtocolVersion],
    trusted: CertificateDer<'_>,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).unwrap();
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
}

/// A layer with nothing but TLS.
pub(crate) fn accept(acceptor: &TlsAcceptor) -> Layer {
    let config = LayerConfig {
        tls: Some(acceptor.clone()),
        ..LayerConfig::default()
    };
    config.accept().unwrap()
}

/// The peer of a TLS layer.
pub(crate) struct TlsClient {
    pub(crate) connection: ClientConnection,
    /// What the server sent, decrypted.
    pub(crate) received: Vec<u8>,
    /// What the layer delivered.
    pub(crate) delivered: Vec<u8>,
}

impl TlsClient {
    pub(crate) fn new(config: &Arc<ClientConfig>) -> Self {
        Self::named(config, "localhost")
    }

    pub(crate) fn named(config: &Arc<ClientConfig>, server: &str) -> Self {
        let name = server.to_owned().try_into().unwrap();
        Self {
            connection: ClientConnection::new(config.clone(), name).unwrap(),
            received: Vec::new(),
            delivered: Vec::new(),
        }
    }

    /// What the client has to say now.
    pub(crate) fn output(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut out).unwrap();
        }
        out
    }

    /// Takes what the server sent.
    pub(crate) fn input(&mut self, mut wire: &[u8]) -> Result<(), rustls::Error> {
        while !wire.is_empty() {
            if self.connection.read_tls(&mut wire).unwrap() == 0 {
                break;
            }
            let state = self.connection.process_new_packets()?;
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            self.connection.reader().read_exact(&mut plain).unwrap();
            self.received.extend_from_slice(&plain);
        }
        Ok(())
    }

    /// Lets both talk until neither has anything to say; `step` splits the client's bytes.
    pub(crate) fn talk(&mut self, layer: &mut Layer, step: usize) -> Result<Fed, LayerError> {
        let mut all = Fed::default();
        loop {
            let out = self.output();
            if out.is_empty() {
                return Ok(all);
            }
            let fed = feed(layer, &out, step);
            self.delivered.extend_from_slice(&fed.app);
            // An error of the client shows as the alert that it sends next.
            let _ = self.input(&fed.wire);
            if let Some(error) = fed.error {
                return Err(error);
            }
            all.ended |= fed.ended;
            all.app.extend_from_slice(&fed.app);
            all.wire.extend_from_slice(&fed.wire);
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.connection.set_buffer_limit(None);
        self.connection.writer().write_all(bytes).unwrap();
    }
}

/// Content of a file beside these tests.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/layer/data")
        .join(name)
}

/// A stream for tungstenite.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) to_read: VecDeque<u8>,
    pub(crate) sent: Vec<u8>,
}

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.to_read.read(buffer)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
