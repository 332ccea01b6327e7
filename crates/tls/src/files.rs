//! PEM files: each reader returns at least one item or an error that names the file.

use std::path::Path;

use rustls::RootCertStore;
use rustls_pki_types::pem::{Error as PemError, PemObject};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::TlsError;

/// A certificate chain, the owner's first.
///
/// # Errors
/// [`TlsError`] names the file, the problem and the remedy.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    items(file, || TlsError::NoCertificate {
        file: file.to_owned(),
    })
}

/// The first private key of the file.
///
/// # Errors
/// [`TlsError`] names the file, the problem and the remedy.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = read(file)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| match error {
        PemError::NoItemsFound if is_encrypted(&pem) => TlsError::KeyEncrypted {
            file: file.to_owned(),
        },
        PemError::NoItemsFound => TlsError::NoKey {
            file: file.to_owned(),
        },
        // The old format marks encryption with headers, which are no Base64.
        PemError::Base64Decode(_) if is_encrypted(&pem) => TlsError::KeyEncrypted {
            file: file.to_owned(),
        },
        error => broken(file, &error),
    })
}

/// CA certificates as trust anchors.
///
/// # Errors
/// [`TlsError`] names the file, the problem and the remedy.
pub fn authorities(file: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|_| TlsError::CertificateFormat {
                file: file.to_owned(),
            })?;
    }
    Ok(roots)
}

/// Certificate revocation lists.
///
/// # Errors
/// [`TlsError`] names the file, the problem and the remedy.
pub fn revocation_lists(
    file: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    items(file, || TlsError::NoRevocationList {
        file: file.to_owned(),
    })
}

fn items<T: PemObject>(file: &Path, none: impl Fn() -> TlsError) -> Result<Vec<T>, TlsError> {
    let pem = read(file)?;
    let items = T::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| broken(file, &error))?;
    if items.is_empty() {
        return Err(none());
    }
    Ok(items)
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|error| TlsError::Read {
        file: file.to_owned(),
        problem: error.to_string(),
    })
}

fn broken(file: &Path, error: &PemError) -> TlsError {
    let problem = match error {
        PemError::MissingSectionEnd { end_marker } => {
            format!("no `-----END {}-----`", String::from_utf8_lossy(end_marker))
        }
        PemError::IllegalSectionStart { line } => {
            format!("bad line {:?}", String::from_utf8_lossy(line))
        }
        // Others hold at most one character of the content, never a key.
        error => error.to_string(),
    };
    TlsError::Pem {
        file: file.to_owned(),
        problem,
    }
}

fn is_encrypted(pem: &[u8]) -> bool {
    [
        &b"BEGIN ENCRYPTED PRIVATE KEY"[..],
        b"Proc-Type: 4,ENCRYPTED",
    ]
    .iter()
    .any(|mark| memchr::memmem::find(pem, mark).is_some())
}
