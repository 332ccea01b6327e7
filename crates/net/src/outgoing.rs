//! Connections that this broker opens, plain or TLS: blocking until both ends know each other,
//! then handed over to a shard by [`Handle::link`](crate::Handle::link).
//!
//! A server's certificate is judged by its chain and its name; the authority has to be named,
//! since a mesh of brokers has its own.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use punctual_tls::{TlsError, authorities, certificates, private_key, provider};
use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;

use crate::layer::Layer;

/// How TLS connections are opened. Cloning is cheap.
#[derive(Clone)]
pub struct TlsConnector {
    config: Arc<ClientConfig>,
}

impl TlsConnector {
    /// Trusts the authorities in the file `ca`; with `identity`, the files of a certificate and its
    /// key, this end has one too.
    ///
    /// # Errors
    /// [`TlsError`] names the file, the problem and the remedy.
    pub fn load(ca: &Path, identity: Option<(&Path, &Path)>) -> Result<Self, TlsError> {
        let roots = Arc::new(authorities(ca)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|error| TlsError::Library(rustls::Error::General(error.to_string())))?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .map_err(TlsError::Library)?
            .with_webpki_verifier(verifier);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|error| TlsError::of_identity(error, certificate, key))?,
        };
        Ok(Self {
            config: Arc::new(config),
        })
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector").finish_non_exhaustive()
    }
}

/// A connection that blocks, up to the time-outs of its socket.
#[derive(Debug)]
pub struct Outgoing {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
}

impl Outgoing {
    /// Plain bytes.
    pub fn plain(stream: TcpStream) -> Self {
        Self { stream, tls: None }
    }

    /// Does the handshake with the server, which has to be `host`.
    ///
    /// # Errors
    /// What the socket or the library says.
    pub fn tls(mut stream: TcpStream, host: &str, connector: &TlsConnector) -> io::Result<Self> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(connector.config.clone(), name);
        let mut tls = Box::new(tls.map_err(io::Error::other)?);
        while tls.is_handshaking() {
            tls.complete_io(&mut stream)?;
        }
        Ok(Self {
            stream,
            tls: Some(tls),
        })
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// The socket, what lies on it, and, at the end of `unread`, what was received already.
    pub(crate) fn into_parts(self, unread: &mut Vec<u8>) -> (TcpStream, Layer) {
        let Some(mut tls) = self.tls else {
            return (self.stream, Layer::plain());
        };
        let mut chunk = [0; 4096];
        // It says that it would block when there is nothing left.
        while let Ok(n @ 1..) = tls.reader().read(&mut chunk) {
            unread.extend_from_slice(&chunk[..n]);
        }
        (self.stream, Layer::client(*tls))
    }
}

impl Read for Outgoing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.stream.read(buffer),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).read(buffer),
        }
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.stream.write(bytes),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => self.stream.flush(),
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).flush(),
        }
    }
}
