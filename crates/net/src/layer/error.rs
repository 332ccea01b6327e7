//! What a peer can do wrong below MQTT. Each error has a short, stable label for counters
//! ([`LayerError::label`]) and a sentence for the log. None of them can be caused by us, except
//! [`LayerError::NotEstablished`].

/// Why a connection cannot go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The first byte on a TLS listener does not begin a TLS record.
    #[error(
        "the peer does not speak TLS (first byte {first:#04x}); let it use TLS, or a listener without"
    )]
    NotTls {
        /// The first byte that came.
        first: u8,
    },
    /// TLS failed: handshake, certificate or record.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// No valid PROXY header came first.
    #[error("PROXY header: {0}")]
    Proxy(#[from] ProxyError),
    /// The HTTP request is no valid WebSocket upgrade for MQTT.
    #[error("WebSocket upgrade: {0}")]
    Upgrade(#[from] UpgradeError),
    /// A WebSocket frame breaks RFC 6455 or MQTT.
    #[error("WebSocket frame: {0}")]
    Frame(#[from] FrameError),
    /// Application bytes were sent before the handshake was done, or after the end.
    #[error("application bytes can only be sent between handshake and close")]
    NotEstablished,
}

impl LayerError {
    /// A short label for counters, without detail from the peer.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotTls { .. } => "not-tls",
            Self::Tls(
                rustls::Error::InvalidCertificate(_)
                | rustls::Error::InvalidCertRevocationList(_)
                | rustls::Error::NoCertificatesPresented,
            ) => "tls-client-certificate",
            Self::Tls(rustls::Error::AlertReceived(_)) => "tls-alert",
            Self::Tls(_) => "tls",
            Self::Proxy(_) => "proxy-header",
            Self::Upgrade(_) => "websocket-upgrade",
            Self::Frame(_) => "websocket-frame",
            Self::NotEstablished => "not-established",
        }
    }
}

/// Why a PROXY header was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The connection does not begin with a PROXY header.
    #[error(
        "the connection does not begin with one; switch it on in the proxy, or off for this listener"
    )]
    Missing,
    /// It begins like one, then breaks the format.
    #[error("malformed")]
    Malformed,
    /// Its announced length is above [`MAX_PROXY_BYTES`](super::MAX_PROXY_BYTES).
    #[error("{bytes} bytes long, at most {} are taken", super::MAX_PROXY_BYTES)]
    TooLong {
        /// Announced length of the whole header.
        bytes: usize,
    },
}

/// Why an HTTP request was not upgraded to WebSocket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpgradeError {
    /// Not HTTP at all, or broken HTTP. Answered with 400.
    #[error("not a valid HTTP/1.1 request")]
    NotHttp,
    /// The request is longer than [`MAX_UPGRADE_BYTES`](super::MAX_UPGRADE_BYTES) or has too many
    /// headers. Answered with 431.
    #[error(
        "the request has more than {} bytes or 64 headers",
        super::MAX_UPGRADE_BYTES
    )]
    TooLong,
    /// Not a GET request. Answered with 405.
    #[error("the method is not GET")]
    Method,
    /// The listener serves another path. Answered with 404.
    #[error("the path is not this listener's")]
    Path,
    /// The page that opens the connection is from an origin that is not allowed. Answered with 403.
    #[error(
        "a page of the origin {0:?} may not connect here; the operator can list it in the \
         listener's websocket_origins"
    )]
    Origin(String),
    /// An ordinary HTTP request, or another WebSocket version than 13. Answered with 426.
    #[error("no upgrade to WebSocket version 13")]
    NotUpgrade,
    /// `Sec-WebSocket-Key` is missing, doubled, or not 16 bytes in Base64. Answered with 400.
    #[error("Sec-WebSocket-Key is not 16 bytes in Base64")]
    Key,
    /// The client does not offer subprotocol `mqtt` [MQTT-6.0.0-3]. Answered with 400.
    #[error("the client does not offer the subprotocol mqtt")]
    Subprotocol,
}

/// Why a WebSocket frame was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Text data [MQTT-6.0.0-1]. Answered with close code 1003.
    #[error("text data; MQTT comes in binary frames")]
    Text,
    /// A client has to mask its frames (RFC 6455 section 5.1). Answered with close code 1002.
    #[error("not masked")]
    Unmasked,
    /// Reserved bits without an extension. Answered with close code 1002.
    #[error("reserved bits are set")]
    ReservedBits,
    /// An opcode that nobody has defined. Answered with close code 1002.
    #[error("opcode {0:#x} is reserved")]
    ReservedOpcode(u8),
    /// A control frame that is fragmented or longer than 125 bytes. Answered with close code 1002.
    #[error("a control frame is fragmented or longer than 125 bytes")]
    Control,
    /// A continuation of nothing, or a new message inside an unfinished one. Answered with close
    /// code 1002.
    #[error("continuation out of order")]
    Continuation,
    /// A length not in its shortest form, or beyond 63 bits. Answered with close code 1002.
    #[error("length not in its shortest form or too great")]
    Length,
    /// A close frame with a code that must not be sent, or half a code. Answered with close code
    /// 1002.
    #[error("invalid close code")]
    CloseCode,
    /// A close frame whose reason is not UTF-8. Answered with close code 1007.
    #[error("close reason is not UTF-8")]
    CloseReason,
}

impl FrameError {
    /// The WebSocket close code that tells the peer (RFC 6455 section 7.4.1).
    pub fn close_code(self) -> u16 {
        match self {
            Self::Text => 1003,
            Self::CloseReason => 1007,
            _ => 1002,
        }
    }
}
