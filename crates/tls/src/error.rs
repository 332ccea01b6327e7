//! What can be wrong with the files of a TLS configuration. Each error names the file and reads on
//! to the remedy; none holds key material.

use std::path::{Path, PathBuf};

use rustls::InconsistentKeys;

/// Why a TLS configuration cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: cannot be read ({problem}); check path and permissions", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The operating system's words.
        problem: String,
    },
    /// A file is not PEM.
    #[error("{}: broken PEM ({problem}); export it again, for instance with `openssl x509 -in FILE` or `openssl pkey -in FILE`", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// What breaks the format.
        problem: String,
    },
    /// A file has no certificate.
    #[error("{}: holds no certificate (`-----BEGIN CERTIFICATE-----`); a DER file is converted with `openssl x509 -inform DER -in FILE -out FILE.pem`", file.display())]
    NoCertificate {
        /// The file.
        file: PathBuf,
    },
    /// A certificate cannot be used.
    #[error("{}: holds a certificate that is malformed or not of X.509 version 3; look at it with `openssl x509 -text -in FILE`, then issue it again", file.display())]
    CertificateFormat {
        /// The file.
        file: PathBuf,
    },
    /// A file has no private key.
    #[error("{}: holds no private key (`-----BEGIN PRIVATE KEY-----` or `RSA` or `EC`); a DER file is converted with `openssl pkey -inform DER -in FILE -out FILE.pem`", file.display())]
    NoKey {
        /// The file.
        file: PathBuf,
    },
    /// The private key needs a passphrase.
    #[error("{}: the private key is encrypted; decrypt it with `openssl pkey -in FILE -out FILE.plain` and let nobody else read the result", file.display())]
    KeyEncrypted {
        /// The file.
        file: PathBuf,
    },
    /// The private key cannot be used.
    #[error("{}: the private key is malformed or of a kind that is not supported; use RSA of 2048 to 4096 bits, ECDSA (P-256, P-384) or Ed25519", file.display())]
    KeyFormat {
        /// The file.
        file: PathBuf,
    },
    /// Key and certificate do not belong together.
    #[error("{}: the private key does not belong to the certificate in {}; name a key and a certificate that were made together (the server's certificate comes first in its file)", key.display(), certificate.display())]
    KeyMismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// A file has no revocation list.
    #[error("{}: holds no revocation list (`-----BEGIN X509 CRL-----`); a DER file is converted with `openssl crl -inform DER -in FILE -out FILE.pem`", file.display())]
    NoRevocationList {
        /// The file.
        file: PathBuf,
    },
    /// A revocation list cannot be used.
    #[error("{}: holds a revocation list that cannot be used ({problem}); issue it again as version 2, complete (no delta), with a CRL number", file.display())]
    RevocationList {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The TLS library refuses; not the fault of a file.
    #[error("TLS library: {0}")]
    Library(rustls::Error),
}

impl TlsError {
    /// What rustls says about a certificate and its key.
    pub fn of_identity(error: rustls::Error, certificate: &Path, key: &Path) -> Self {
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => Self::KeyMismatch {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
            },
            rustls::Error::InvalidCertificate(_) => Self::CertificateFormat {
                file: certificate.to_owned(),
            },
            _ => Self::KeyFormat {
                file: key.to_owned(),
            },
        }
    }
}
