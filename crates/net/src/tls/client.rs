//! TLS configurations for connections that go out.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{MinimumTls, PROVIDER, TlsError, files};

/// What a client trusts and who it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsClientOptions {
    /// PEM file with the CA certificates that may have issued the server's (mosquitto's `--cafile`).
    pub ca: Option<PathBuf>,
    /// PEM file with the client's certificate and intermediate ones (`--cert`).
    pub certificate: Option<PathBuf>,
    /// PEM file with the client's private key (`--key`).
    pub key: Option<PathBuf>,
    /// With `ca`: do not compare the certificate's names with the server's, as mosquitto's
    /// `--insecure`. Without: accept every certificate, whatever its issuer, name and dates; the
    /// connection is encrypted, but anybody in between can read it.
    pub insecure: bool,
    /// Names for ALPN, such as `mqtt`; empty sends none.
    pub alpn: Vec<Vec<u8>>,
    /// The lowest TLS version.
    pub minimum: MinimumTls,
}

/// Loads all files.
///
/// # Errors
/// [`TlsError`] names the file, the problem and the remedy; [`TlsError::NoAuthority`] if neither a
/// CA nor `insecure` is given.
pub fn client_config(options: &TlsClientOptions) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_protocol_versions(options.minimum.versions())
        .map_err(TlsError::Library)?;
    let builder = match (&options.ca, options.insecure) {
        (Some(ca), false) => builder.with_root_certificates(files::authorities(ca)?),
        (Some(ca), true) => {
            let roots = Arc::new(files::authorities(ca)?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, PROVIDER.clone())
                .build()
                .map_err(|error| TlsError::Library(rustls::Error::General(error.to_string())))?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyName(verifier)))
        }
        (None, true) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(PROVIDER.clone()))),
        (None, false) => return Err(TlsError::NoAuthority),
    };
    let mut config = match (&options.certificate, &options.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => builder
            .with_client_auth_cert(files::certificates(certificate)?, files::private_key(key)?)
            .map_err(|error| TlsError::of_identity(error, certificate, key))?,
        _ => return Err(TlsError::HalfIdentity),
    };
    config.alpn_protocols.clone_from(&options.alpn);
    Ok(Arc::new(config))
}

/// Checks everything but the name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            self.0
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is checked last, so the chain is good.
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
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Checks only that the peer has the key of the certificate that it shows.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
