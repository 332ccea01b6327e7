//! TLS 1.3 with certificates on both sides, for the database and for switches.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::ovsdb::TlsOptions;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct TlsError {
    file: String,
    problem: String,
}

impl TlsError {
    fn new(file: &Path, problem: impl fmt::Display) -> Self {
        Self {
            file: file.display().to_string(),
            problem: problem.to_string(),
        }
    }
}

/// For connections that are opened here.
///
/// # Errors
/// A file cannot be read, or is not what it should be.
pub fn client(options: &TlsOptions) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(authorities(&options.ca)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|error| TlsError::new(&options.ca, error))?;
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| TlsError::new(&options.certificate, error))?;
    let builder = match options.check_name {
        true => builder.with_webpki_verifier(verifier),
        false => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyName(verifier, provider))),
    };
    builder
        .with_client_auth_cert(certificates(&options.certificate)?, key(&options.key)?)
        .map(Arc::new)
        .map_err(|error| TlsError::new(&options.certificate, error))
}

/// For connections that are accepted here: peers need a certificate, too.
///
/// # Errors
/// A file cannot be read, or is not what it should be.
pub fn server(options: &TlsOptions) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(authorities(&options.ca)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|error| TlsError::new(&options.ca, error))?;
    ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .map_err(|error| TlsError::new(&options.certificate, error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&options.certificate)?, key(&options.key)?)
        .map(Arc::new)
        .map_err(|error| TlsError::new(&options.certificate, error))
}

fn authorities(file: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::new(file, error))?;
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(list) if list.is_empty() => Err(TlsError::new(
            file,
            "holds no certificate; it has to be PEM",
        )),
        other => other.map_err(|error| TlsError::new(file, error)),
    }
}

fn key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| TlsError::new(file, error))
}

/// Trusts a certificate for any name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>, Arc<CryptoProvider>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self
            .0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp, now);
        match verified {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.1.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.1.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.signature_verification_algorithms.supported_schemes()
    }
}
