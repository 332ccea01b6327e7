//! The PROXY header that a load balancer writes before the client's first byte.
//!
//! The reader takes exactly the header's bytes and leaves the rest to the next stage; it refuses at
//! the first byte that cannot belong to a header and never keeps more than [`MAX_PROXY_BYTES`].
//! Source: HAProxy's `proxy-protocol.txt`, versions 1 (text) and 2 (binary), parsed by the
//! `proxy-header` crate.

use std::net::SocketAddr;

use proxy_header::{Error, ParseConfig, ProxyHeader};

use super::{PeerInfo, ProxyError};

/// The longest PROXY header that is taken, in bytes with its type-length-values.
pub const MAX_PROXY_BYTES: usize = 4096;

/// Signature of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const FIXED_BYTES: usize = 16;
/// How version 1 begins.
const TEXT: &[u8; 6] = b"PROXY ";
/// The longest version 1 header with its line end.
const MAX_TEXT_BYTES: usize = 107;

/// Where a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientAddress {
    /// Where the socket leads: it was opened by the client, or by the proxy for itself.
    #[default]
    Socket,
    /// The proxy told.
    Told(SocketAddr),
    /// Behind the proxy, which does not tell where.
    Untold,
}

impl ClientAddress {
    /// The address of the client as far as it is known: that of the socket if the proxy tells none.
    pub(crate) fn known(self, socket: SocketAddr) -> SocketAddr {
        match self {
            Self::Told(address) => address,
            Self::Socket | Self::Untold => socket,
        }
    }
}

/// What a PROXY header said.
#[derive(Debug, Default)]
pub(super) struct Proxied {
    pub(super) client: ClientAddress,
    tls: Option<ProxiedTls>,
}

#[derive(Debug)]
struct ProxiedTls {
    version: Option<String>,
    cipher: Option<String>,
    server_name: Option<String>,
    /// Only if the proxy verified the certificate.
    common_name: Option<String>,
}

impl Proxied {
    pub(super) fn describe(&self, info: &mut PeerInfo) {
        info.client = self.client;
        if let Some(tls) = &self.tls {
            // A proxy may leave the version out, but the connection was encrypted.
            info.tls_version = Some(tls.version.clone().unwrap_or_else(|| "TLS".to_owned()));
            info.cipher.clone_from(&tls.cipher);
            info.server_name.clone_from(&tls.server_name);
            info.common_name.clone_from(&tls.common_name);
        }
    }
}

/// Collects a header from any split of the byte stream.
#[derive(Debug, Default)]
pub(super) struct ProxyReader {
    buffer: Vec<u8>,
}

impl ProxyReader {
    /// Takes bytes until the header is complete; then returns what it said and how many of `bytes`
    /// belong to it.
    pub(super) fn received(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<(Proxied, usize)>, ProxyError> {
        let mut used = 0;
        loop {
            let wanted = match wanted(&self.buffer)? {
                Wanted::Bytes(wanted) => wanted,
                Wanted::Nothing => return Ok(Some((parse(&self.buffer)?, used))),
            };
            let take = wanted.min(bytes.len() - used);
            if take == 0 {
                return Ok(None);
            }
            self.buffer.extend_from_slice(&bytes[used..used + take]);
            used += take;
        }
    }
}

enum Wanted {
    /// So many bytes certainly belong to the header.
    Bytes(usize),
    Nothing,
}

fn wanted(header: &[u8]) -> Result<Wanted, ProxyError> {
    let begins = |signature: &[u8]| {
        let known = header.len().min(signature.len());
        header[..known] == signature[..known]
    };
    if begins(SIGNATURE) {
        let Some(length) = header.get(FIXED_BYTES - 2..FIXED_BYTES) else {
            return Ok(Wanted::Bytes(if header.len() < TEXT.len() {
                1
            } else {
                FIXED_BYTES - header.len()
            }));
        };
        let whole = FIXED_BYTES + usize::from(u16::from_be_bytes([length[0], length[1]]));
        if whole > MAX_PROXY_BYTES {
            return Err(ProxyError::TooLong { bytes: whole });
        }
        Ok(match whole - header.len() {
            0 => Wanted::Nothing,
            missing => Wanted::Bytes(missing),
        })
    } else if begins(TEXT) {
        // The end of the line is not known before it comes.
        if header.last() == Some(&b'\n') {
            Ok(Wanted::Nothing)
        } else if header.len() >= MAX_TEXT_BYTES {
            Err(ProxyError::Malformed)
        } else {
            Ok(Wanted::Bytes(1))
        }
    } else {
        Err(ProxyError::Missing)
    }
}

fn parse(header: &[u8]) -> Result<Proxied, ProxyError> {
    let malformed = |_: Error| ProxyError::Malformed;
    let (parsed, used) = ProxyHeader::parse(header, ParseConfig::default()).map_err(malformed)?;
    if used != header.len() {
        return Err(ProxyError::Malformed);
    }
    // Without an address the values say nothing about a client: it is the proxy itself (LOCAL: a
    // health check), or somebody behind it of an unknown family.
    let Some(address) = parsed.proxied_address() else {
        return Ok(Proxied {
            client: match is_local(header) {
                true => ClientAddress::Socket,
                false => ClientAddress::Untold,
            },
            tls: None,
        });
    };
    let mut authority = None;
    let mut ssl = None;
    for value in parsed.tlvs() {
        match value.map_err(malformed)? {
            proxy_header::Tlv::Authority(name) => authority = Some(name.into_owned()),
            proxy_header::Tlv::Ssl(info) => ssl = Some(info.into_owned()),
            _ => {}
        }
    }
    let tls = match ssl {
        Some(info) if info.client_ssl() => {
            let mut tls = ProxiedTls {
                version: None,
                cipher: None,
                server_name: authority,
                common_name: None,
            };
            let verified =
                info.verify() == 0 && (info.client_cert_conn() || info.client_cert_sess());
            for value in info.tlvs() {
                match value.map_err(malformed)? {
                    proxy_header::Tlv::SslVersion(version) => {
                        tls.version = Some(version.into_owned());
                    }
                    proxy_header::Tlv::SslCipher(cipher) => tls.cipher = Some(cipher.into_owned()),
                    proxy_header::Tlv::SslCn(name) if verified => {
                        tls.common_name = super::identity::usable(&name);
                    }
                    _ => {}
                }
            }
            Some(tls)
        }
        _ => None,
    };
    Ok(Proxied {
        client: ClientAddress::Told(address.source),
        tls,
    })
}

/// Whether the proxy says that it has opened a connection for itself, which version 1 cannot.
fn is_local(header: &[u8]) -> bool {
    const COMMAND: u8 = 0x0f;
    const LOCAL: u8 = 0;
    header.starts_with(SIGNATURE)
        && header
            .get(SIGNATURE.len())
            .is_some_and(|it| it & COMMAND == LOCAL)
}
