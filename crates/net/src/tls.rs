//! From files to the TLS configuration of a listener.
//!
//! Everything that can be wrong with a file is found when it is loaded, before a connection needs it, and named
//! with the file and what to do. An acceptor never changes: to reload, load a new one and give it
//! to the listener; connections that exist go on with the old one, which also ends with them.
//! TLS 1.2 and 1.3 by rustls with ring; PEM files as mosquitto and OpenSSL write them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use punctual_tls::{authorities, certificates, private_key, provider, revocation_lists};
use rustls::SupportedProtocolVersion;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

pub use punctual_tls::TlsError;

/// What a secret is derived for.
const DERIVED: &[u8] = b"punctual: proofs of a server that has lost its state";

static ONLY_1_3: &[&SupportedProtocolVersion] = &[&TLS13];

/// The lowest TLS version that is spoken; the highest is always 1.3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MinimumTls {
    /// TLS 1.2 and 1.3.
    #[default]
    V1_2,
    /// TLS 1.3 only.
    V1_3,
}

impl MinimumTls {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::V1_2 => rustls::ALL_VERSIONS,
            Self::V1_3 => ONLY_1_3,
        }
    }
}

/// Whether a listener asks its clients for certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Not asked for; one that is offered is ignored.
    #[default]
    Ignored,
    /// Asked for. A client may have none; one that is presented has to be valid.
    Optional(ClientAuthority),
    /// A client without a valid certificate is refused.
    Required(ClientAuthority),
}

/// Who may issue client certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuthority {
    /// PEM file with one or more CA certificates.
    pub ca: PathBuf,
    /// PEM file with certificate revocation lists, one for each CA that issues client certificates.
    /// A certificate that no list speaks for is refused, and so are all once the list has expired,
    /// as with mosquitto.
    pub crl: Option<PathBuf>,
}

/// What a TLS listener is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsServerOptions {
    /// PEM file with the server's certificate, followed by the intermediate ones.
    pub certificate: PathBuf,
    /// PEM file with its private key (PKCS#8, PKCS#1 or SEC1, not encrypted).
    pub key: PathBuf,
    /// Certificates of clients.
    pub clients: ClientCertificates,
    /// The lowest TLS version.
    pub minimum: MinimumTls,
    /// Bytes of content in a record that is sent, at most: 32 to [`MAX_RECORD`]. Clients that ask
    /// for less get less.
    pub max_record: usize,
}

/// The most bytes of content in one record (RFC 8446 section 5.1).
pub const MAX_RECORD: usize = 16 * 1024;
/// Bytes of a record's header, which the library's bound counts.
const RECORD_HEADER: usize = 5;

/// A loaded TLS configuration for connections that come in. Cloning is cheap.
#[derive(Clone)]
pub struct TlsAcceptor {
    config: Arc<ServerConfig>,
    /// Of certificates of clients; `None` if they are not asked for.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    expires: SystemTime,
    /// See [`Self::secret`].
    secret: [u8; 32],
}

impl TlsAcceptor {
    /// Loads all files.
    ///
    /// Session tickets are on. Their keys belong to this acceptor, so that after a reload nobody
    /// resumes a session that the new CA or revocation list would refuse.
    ///
    /// # Errors
    /// [`TlsError`] names the file, the problem and the remedy.
    pub fn load(options: &TlsServerOptions) -> Result<Self, TlsError> {
        let chain = certificates(&options.certificate)?;
        let key = private_key(&options.key)?;
        let expires = expiry(&chain[0]).ok_or_else(|| TlsError::CertificateFormat {
            file: options.certificate.clone(),
        })?;
        let verifier = match &options.clients {
            ClientCertificates::Ignored => None,
            ClientCertificates::Optional(authority) => Some(client_verifier(authority, true)?),
            ClientCertificates::Required(authority) => Some(client_verifier(authority, false)?),
        };
        let verifies = verifier.clone();
        let verifies = verifies.unwrap_or_else(WebPkiClientVerifier::no_client_auth);
        let secret = Sha256::digest([DERIVED, key.secret_der()].concat()).into();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(options.minimum.versions())
            .map_err(TlsError::Library)?
            .with_client_cert_verifier(verifies)
            .with_single_cert(chain, key)
            .map_err(|error| TlsError::of_identity(error, &options.certificate, &options.key))?;
        // Tickets keep the session at the client: nothing per client is kept here.
        config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(TlsError::Library)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.max_fragment_size = Some(options.max_record.min(MAX_RECORD) + RECORD_HEADER);
        // No ALPN list: `mqtt`, `http/1.1` (browsers over wss) and others are all let in. With a
        // list, rustls refuses every client that offers only other names.
        Ok(Self {
            config: Arc::new(config),
            verifier,
            expires,
            secret,
        })
    }

    /// When the server's certificate expires: worth a warning some weeks before.
    pub fn expires(&self) -> SystemTime {
        self.expires
    }

    /// Whether a client with that certificate, followed by intermediate ones, would be let in now.
    pub(crate) fn lets_in(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let (Some(verifier), Some((own, rest))) = (&self.verifier, chain.split_first()) else {
            return false;
        };
        verifier.verify_client_cert(own, rest, now).is_ok()
    }

    /// A secret that is the same whenever the key is, and tells nothing of it.
    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// The same with records of at most `limit` bytes of content; `None` if they are no larger
    /// anyway.
    pub(crate) fn limited(&self, limit: usize) -> Option<Arc<ServerConfig>> {
        let limit = Some(limit + RECORD_HEADER);
        (limit < self.config.max_fragment_size).then(|| {
            let mut config = ServerConfig::clone(&self.config);
            config.max_fragment_size = limit;
            Arc::new(config)
        })
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAcceptor")
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

fn client_verifier(
    authority: &ClientAuthority,
    optional: bool,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(authorities(&authority.ca)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    if let Some(crl) = &authority.crl {
        builder = builder
            .with_crls(revocation_lists(crl)?)
            .only_check_end_entity_revocation()
            .enforce_revocation_expiration();
    }
    if optional {
        builder = builder.allow_unauthenticated();
    }
    // The authorities were parsed already, so only a revocation list can be at fault.
    builder.build().map_err(|error| TlsError::RevocationList {
        file: authority
            .crl
            .clone()
            .unwrap_or_else(|| authority.ca.clone()),
        problem: error.to_string(),
    })
}

fn expiry(certificate: &[u8]) -> Option<SystemTime> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
