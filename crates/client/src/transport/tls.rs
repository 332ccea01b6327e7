//! TLS by rustls, or nothing, over a socket.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use punctual_tls::{ChainOnly, provider};
use rustls::client::WebPkiServerVerifier;
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::Transport;
use super::socket::Socket;
use crate::Error;
use crate::endpoint::{Endpoint, TlsOptions, TlsVersion};
use crate::marking::Class;

/// Plain or encrypted bytes.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

impl Stream {
    /// Does the handshake, if there is one, blocking.
    pub(super) fn new(
        mut socket: Socket,
        mut tls: Option<Box<ClientConnection>>,
        endpoint: &Endpoint,
    ) -> Result<Self, Error> {
        if let Some(tls) = &mut tls {
            while tls.is_handshaking() {
                if let Err(error) = tls.complete_io(&mut socket) {
                    return Err(explain_handshake(error, endpoint));
                }
            }
        }
        Ok(Self { socket, tls })
    }

    pub(super) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.socket.read(buf);
        };
        loop {
            match tls.reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            if tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            tls.process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.socket.write(bytes);
        };
        // The buffer inside has a limit; above it nothing is taken.
        while tls.wants_write() {
            tls.write_tls(&mut self.socket)?;
        }
        tls.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        while tls.wants_write() {
            tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Transport for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Read::read(self, buf)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Write::flush(self)
    }

    fn finish(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            Write::flush(self)?;
        }
        self.socket.finish()
    }

    fn mark(&mut self, class: Class) {
        self.socket.mark(class);
    }

    fn waited(&self) -> Option<Duration> {
        self.socket.waited()
    }
}

/// A TLS session that has not begun.
pub(super) fn session(endpoint: &Endpoint) -> Result<Box<ClientConnection>, Error> {
    let options = &endpoint.tls;
    let name = options.server_name.as_ref().unwrap_or(&endpoint.host);
    let server_name = ServerName::try_from(name.clone()).map_err(|_| {
        Error::misuse(
            "server name",
            name,
            "is neither a host name nor an IP address",
        )
    })?;
    let config = Arc::new(client_config(options)?);
    match ClientConnection::new(config, server_name) {
        Ok(session) => Ok(Box::new(session)),
        Err(error) => Err(explain(&error, endpoint)),
    }
}

pub(crate) fn client_config(options: &TlsOptions) -> Result<ClientConfig, Error> {
    let versions: &[&rustls::SupportedProtocolVersion] = match options.version {
        None => rustls::ALL_VERSIONS,
        Some(TlsVersion::V12) => &[&rustls::version::TLS12],
        Some(TlsVersion::V13) => &[&rustls::version::TLS13],
    };
    let tls = |error: rustls::Error| Error::Tls(error.to_string());
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(tls)?;
    let roots = Arc::new(authorities(options)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider())
        .build()
        .map_err(|error| Error::Tls(error.to_string()))?;
    let builder = match options.insecure {
        false => builder.with_webpki_verifier(verifier),
        true => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ChainOnly(verifier))),
    };
    let mut config = match (&options.cert_file, &options.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let chain = certificates("client certificate", cert)?;
            let private = PrivateKeyDer::from_pem_file(key).map_err(|error| {
                let remedy = format!("cannot be read as a PEM private key: {error}");
                Error::misuse("client key", key.display().to_string(), remedy)
            })?;
            builder
                .with_client_auth_cert(chain, private)
                .map_err(|error| {
                    let remedy = format!("does not go with its key: {error}");
                    Error::misuse("client certificate", cert.display().to_string(), remedy)
                })?
        }
        (Some(cert), None) => {
            let value = cert.display().to_string();
            return Err(Error::misuse(
                "client certificate",
                value,
                "give its key too",
            ));
        }
        (None, Some(key)) => {
            let value = key.display().to_string();
            return Err(Error::misuse(
                "client key",
                value,
                "give its certificate too",
            ));
        }
    };
    config.alpn_protocols = options
        .alpn
        .iter()
        .map(|name| name.clone().into_bytes())
        .collect();
    Ok(config)
}

fn authorities(options: &TlsOptions) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let mut add = |field, path: &Path| {
        for certificate in certificates(field, path)? {
            roots.add(certificate).map_err(|error| {
                let remedy = format!("holds a certificate that cannot be trusted: {error}");
                Error::misuse(field, path.display().to_string(), remedy)
            })?;
        }
        Ok::<(), Error>(())
    };
    if let Some(file) = &options.ca_file {
        add("CA file", file)?;
    }
    if let Some(dir) = &options.ca_dir {
        let wrong =
            |remedy: String| Error::misuse("CA directory", dir.display().to_string(), remedy);
        let entries = std::fs::read_dir(dir).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        let mut found = false;
        for path in entries.flatten().map(|entry| entry.path()) {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if matches!(extension, Some("crt" | "pem")) {
                add("CA directory", &path)?;
                found = true;
            }
        }
        if !found {
            return Err(wrong("has no file named *.crt or *.pem".into()));
        }
    }
    if options.os_authorities || (options.ca_file.is_none() && options.ca_dir.is_none()) {
        let native = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(native.certs);
    }
    if roots.is_empty() {
        return Err(Error::misuse(
            "CA file",
            "",
            "this system trusts no authority by itself; give the file with the \
             certificate of the one that signed the server's",
        ));
    }
    Ok(roots)
}

fn certificates(field: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let wrong = |what: String| Error::misuse(field, path.display().to_string(), what);
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| wrong(format!("cannot be read as PEM: {error}")));
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(wrong("has no certificate in it".into()))
        }
        other => other,
    }
}

/// An error of the connection in the words of [`explain`], if TLS is its
/// cause.
pub(crate) fn explain_io(error: io::Error, endpoint: &Endpoint) -> Error {
    match error
        .get_ref()
        .and_then(|e| e.downcast_ref::<rustls::Error>())
    {
        Some(cause) => explain(cause, endpoint),
        None => Error::Lost(error),
    }
}

fn explain_handshake(error: io::Error, endpoint: &Endpoint) -> Error {
    match error.kind() {
        io::ErrorKind::TimedOut => Error::TimedOut("the TLS handshake did not end"),
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => Error::Tls(format!(
            "{endpoint} closed the connection during the handshake; is it a TLS port, \
             and does it want a client certificate?"
        )),
        _ => explain_io(error, endpoint),
    }
}

/// What is wrong, and helps, if a server shows the certificate of an authority:
/// what `openssl req -x509` makes unless told otherwise. The library has only
/// the name of its error for it.
pub(super) fn if_authority(reason: &str) -> Option<&'static str> {
    reason.contains("CaUsedAsEndEntity").then_some(
        "the server's certificate is that of an authority (CA:TRUE), which cannot be a server's: \
         sign one with it for the server (basicConstraints=CA:FALSE), as in docs/quic.md",
    )
}

fn explain(error: &rustls::Error, endpoint: &Endpoint) -> Error {
    use rustls::{AlertDescription, Error as Tls};
    if let Some(why) = if_authority(&error.to_string()) {
        return Error::Tls(format!("{endpoint}: {why}"));
    }
    let remedy = match error {
        Tls::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "give the CA file of the authority that signed it"
        }
        Tls::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "connect by a name that is in the certificate, or give it as the server name",
        Tls::InvalidMessage(_) => "is it a TLS port?",
        Tls::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure,
        ) => "the server may want a client certificate; give one with its key",
        _ => return Error::Tls(format!("{endpoint}: {error}")),
    };
    Error::Tls(format!("{endpoint}: {error}; {remedy}"))
}
