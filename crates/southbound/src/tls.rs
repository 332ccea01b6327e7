//! TLS 1.3 with certificates on both sides, for the database and for switches.

use std::sync::Arc;

use punctual_tls::{ChainOnly, authorities, certificates, private_key, provider};
use rustls::client::WebPkiServerVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, ServerConfig};

pub use punctual_tls::TlsError;

use crate::ovsdb::TlsOptions;

/// For connections that are opened here.
///
/// # Errors
/// A file cannot be read, or is not what it should be.
pub fn client(options: &TlsOptions) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = Arc::new(authorities(&options.ca)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider())
        .build()
        .map_err(of_authorities)?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Library)?;
    let builder = match options.check_name {
        true => builder.with_webpki_verifier(verifier),
        false => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ChainOnly(verifier))),
    };
    builder
        .with_client_auth_cert(
            certificates(&options.certificate)?,
            private_key(&options.key)?,
        )
        .map(Arc::new)
        .map_err(|error| TlsError::of_identity(error, &options.certificate, &options.key))
}

/// For connections that are accepted here: peers need a certificate, too.
///
/// # Errors
/// A file cannot be read, or is not what it should be.
pub fn server(options: &TlsOptions) -> Result<Arc<ServerConfig>, TlsError> {
    let roots = Arc::new(authorities(&options.ca)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
        .build()
        .map_err(of_authorities)?;
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .map_err(TlsError::Library)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            certificates(&options.certificate)?,
            private_key(&options.key)?,
        )
        .map(Arc::new)
        .map_err(|error| TlsError::of_identity(error, &options.certificate, &options.key))
}

/// The authorities were parsed already, so this is not the fault of a file.
fn of_authorities(error: VerifierBuilderError) -> TlsError {
    TlsError::Library(rustls::Error::General(error.to_string()))
}
