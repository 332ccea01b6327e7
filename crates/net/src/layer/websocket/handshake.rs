//! The HTTP/1.1 request that becomes a WebSocket (RFC 6455 section 4.2), and its answer.
//!
//! At most [`MAX_UPGRADE_BYTES`] are kept. Every refusal is answered with a status that tells a
//! browser, a proxy or a person with curl what to do.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use super::WebSocketOptions;
use crate::layer::UpgradeError;

/// The longest upgrade request that is taken, in bytes with all headers.
pub const MAX_UPGRADE_BYTES: usize = 8 * 1024;

const MAX_HEADERS: usize = 64;
const END: &[u8; 4] = b"\r\n\r\n";
/// RFC 6455 section 1.3.
const ACCEPT_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Subprotocols in order of preference; the second is the one of MQTT 3.1, as mosquitto has it.
const SUBPROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

/// Collects the request and answers it.
#[derive(Debug)]
pub(super) struct Upgrade {
    options: WebSocketOptions,
    request: Vec<u8>,
}

impl Upgrade {
    pub(super) fn new(options: WebSocketOptions) -> Self {
        Self {
            options,
            request: Vec::new(),
        }
    }

    /// Takes bytes until the request is complete; then writes the answer and returns how many of
    /// `bytes` belong to the request.
    pub(super) fn received(
        &mut self,
        bytes: &[u8],
        wire: &mut Vec<u8>,
    ) -> Result<Option<usize>, UpgradeError> {
        let result = self.collect(bytes).and_then(|used| match used {
            Some(used) => {
                accept(&self.request, &self.options, wire)?;
                Ok(Some(used))
            }
            None => Ok(None),
        });
        if let Err(error) = &result {
            refuse(error, wire);
        }
        result
    }

    fn collect(&mut self, bytes: &[u8]) -> Result<Option<usize>, UpgradeError> {
        let before = self.request.len();
        let take = bytes.len().min(MAX_UPGRADE_BYTES - before);
        self.request.extend_from_slice(&bytes[..take]);
        // Another protocol on the wrong port shows at once: a method begins with a capital letter,
        // TLS and MQTT with a control character.
        if self
            .request
            .first()
            .is_some_and(|first| !first.is_ascii_uppercase())
        {
            return Err(UpgradeError::NotHttp);
        }
        let from = before.saturating_sub(END.len() - 1);
        if let Some(end) = memchr::memmem::find(&self.request[from..], END) {
            let length = from + end + END.len();
            self.request.truncate(length);
            return Ok(Some(length - before));
        }
        if self.request.len() == MAX_UPGRADE_BYTES {
            return Err(UpgradeError::TooLong);
        }
        Ok(None)
    }
}

fn accept(
    request: &[u8],
    options: &WebSocketOptions,
    wire: &mut Vec<u8>,
) -> Result<(), UpgradeError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(UpgradeError::TooLong),
        Ok(httparse::Status::Partial) | Err(_) => return Err(UpgradeError::NotHttp),
    }
    if parsed.method != Some("GET") {
        return Err(UpgradeError::Method);
    }
    let target = parsed.path.unwrap_or_default();
    if let Some(wanted) = &options.path
        && path_of(target) != &**wanted
    {
        return Err(UpgradeError::Path);
    }
    let headers = Headers(parsed.headers);
    if parsed.version != Some(1)
        || !headers.lists("Connection", "upgrade")
        || !headers.lists("Upgrade", "websocket")
        || headers.only("Sec-WebSocket-Version") != Some("13")
    {
        return Err(UpgradeError::NotUpgrade);
    }
    let host = headers.only("Host");
    let mut pages = headers.all("Origin");
    if let Some(origin) = pages.find(|origin| !options.origins.allow(origin, host)) {
        return Err(UpgradeError::Origin(origin.to_owned()));
    }
    let key = headers.only("Sec-WebSocket-Key").ok_or(UpgradeError::Key)?;
    if STANDARD.decode(key).map(|key| key.len()) != Ok(16) {
        return Err(UpgradeError::Key);
    }
    let subprotocol = SUBPROTOCOLS
        .into_iter()
        .find(|known| headers.offers("Sec-WebSocket-Protocol", known))
        .ok_or(UpgradeError::Subprotocol)?;

    let digest = Sha1::new_with_prefix(key)
        .chain_update(ACCEPT_SUFFIX)
        .finalize();
    for part in [
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ",
        &STANDARD.encode(digest),
        "\r\nSec-WebSocket-Protocol: ",
        subprotocol,
        "\r\n\r\n",
    ] {
        wire.extend_from_slice(part.as_bytes());
    }
    Ok(())
}

/// The path of a request target, which may be absolute (RFC 9112 section 3.2), without query.
fn path_of(target: &str) -> &str {
    let path = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("/", |slash| &rest[slash..])
        }
        _ => target,
    };
    path.split('?').next().unwrap_or_default()
}

struct Headers<'a>(&'a [httparse::Header<'a>]);

impl<'a> Headers<'a> {
    /// All values of a header; one that is not UTF-8 is empty, thus equal to nothing that we want.
    fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name))
            .map(|header| std::str::from_utf8(header.value).unwrap_or_default())
            .map(str::trim)
    }

    /// The value of a header that must not come twice.
    fn only(&self, name: &str) -> Option<&'a str> {
        let mut values = self.all(name);
        values.next().filter(|_| values.next().is_none())
    }

    fn elements(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.all(name)
            .flat_map(|value| value.split(','))
            .map(str::trim)
    }

    /// Whether the comma-separated header has the token, in any case.
    fn lists(&self, name: &str, token: &str) -> bool {
        self.elements(name)
            .any(|element| element.eq_ignore_ascii_case(token))
    }

    /// Whether the comma-separated header has exactly this element.
    fn offers(&self, name: &str, element: &str) -> bool {
        self.elements(name).any(|offered| offered == element)
    }
}

fn refuse(error: &UpgradeError, wire: &mut Vec<u8>) {
    let (status, header) = match error {
        UpgradeError::NotHttp | UpgradeError::Key | UpgradeError::Subprotocol => {
            ("400 Bad Request", "")
        }
        UpgradeError::Origin(_) => ("403 Forbidden", ""),
        UpgradeError::Path => ("404 Not Found", ""),
        UpgradeError::Method => ("405 Method Not Allowed", "Allow: GET\r\n"),
        UpgradeError::NotUpgrade => (
            "426 Upgrade Required",
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        ),
        UpgradeError::TooLong => ("431 Request Header Fields Too Large", ""),
    };
    let connection = match error {
        UpgradeError::NotUpgrade => "Upgrade, close",
        _ => "close",
    };
    let body = format!("This is a listener for MQTT over WebSocket: {error}.\n");
    let answer = format!(
        "HTTP/1.1 {status}\r\n{header}Connection: {connection}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    wire.extend_from_slice(answer.as_bytes());
}
