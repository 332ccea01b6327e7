//! Kinds of neighbours that need files: a certificate, and hashed passwords.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use punctual_measure::{Error, Result};
use punctual_tls::{certificates, provider};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::Place;
use super::broker::SECRET;

const CERTIFICATE: &str = "neighbours.crt";
const KEY: &str = "neighbours.key";
/// A line as `punctual passwd` writes it; the password is not known.
const PASSWORDS: &str = "neighbour:$argon2id$v=19$m=19456,t=2,p=1$AEb5Q6Yor+oBhy/XBr+1AQ$Fd1LOCpWTbNgCxbg6VAUSxqZ0Qr5OasfS6atfSz0bw8\n";

/// A listener for TLS.
pub(super) const TLS: &str = "[[listener]]\n\
    address = \"tls://127.0.0.1:{tls}\"\n\
    allow_anonymous = true\n\
    certificate = \"{directory}/neighbours.crt\"\n\
    key = \"{directory}/neighbours.key\"\n";

/// Configuration that makes clients with a user name authenticate by password.
pub(super) const LOGINS: &str = "[auth]\n\
    password_file = \"{directory}/neighbours.passwords\"\n";

/// Writes the files to which configurations refer.
pub(in super::super) fn write(directory: &Path) -> Result<()> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
        .map_err(|error| failure("cannot make a certificate", error))?;
    for (name, text) in [
        (CERTIFICATE, made.cert.pem()),
        (KEY, made.signing_key.serialize_pem()),
        ("neighbours.passwords", PASSWORDS.to_owned()),
        ("neighbours.secret", SECRET.to_owned()),
    ] {
        let path = directory.join(name);
        fs::write(&path, text).map_err(Error::io(format!("cannot write {}", path.display())))?;
    }
    Ok(())
}

/// A full TLS handshake that verifies the certificate.
pub(super) fn handshake(place: &Place<'_>, _: u64) -> Result<()> {
    let what = "cannot connect by TLS";
    let config = trust(place.directory)?;
    let server = ServerName::try_from("localhost").map_err(|error| failure(what, error))?;
    let mut session =
        ClientConnection::new(config, server).map_err(|error| failure(what, error))?;
    let mut stream = TcpStream::connect(place.tls).map_err(Error::io(what))?;
    while session.is_handshaking() {
        session.complete_io(&mut stream).map_err(Error::io(what))?;
    }
    Ok(())
}

/// A TLS client that trusts the certificate, and does not resume sessions.
fn trust(directory: &Path) -> Result<Arc<ClientConfig>> {
    let what = "cannot trust the certificate";
    let mut roots = RootCertStore::empty();
    let path = directory.join(CERTIFICATE);
    for certificate in certificates(&path).map_err(|error| failure(what, error))? {
        roots
            .add(certificate)
            .map_err(|error| failure(what, error))?;
    }
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| failure(what, error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn failure(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::io(what)(io::Error::other(error))
}
