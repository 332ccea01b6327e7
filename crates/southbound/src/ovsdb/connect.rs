//! Opening a stream to a server.

use std::io;
use std::sync::Arc;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::endpoint::{Address, Endpoint};

/// Bytes in both directions.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects, handshake included.
pub(super) async fn connect(
    endpoint: &Endpoint,
    tls: Option<&Arc<rustls::ClientConfig>>,
) -> io::Result<Box<dyn Stream>> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Endpoint::Tcp(address) => Ok(Box::new(tcp(address).await?)),
        Endpoint::Ssl(address) => {
            let config = tls.ok_or_else(|| io::Error::other("there is no certificate for TLS"))?;
            let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
            let stream = tcp(address).await?;
            let connector = TlsConnector::from(config.clone());
            Ok(Box::new(connector.connect(name, stream).await?))
        }
    }
}

async fn tcp(address: &Address) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
