//! How QUIC is set up: one stream, small buffers, address validation.
//!
//! Sources: RFC 9000 (transport parameters in section 18.2), RFC 9001 section
//! 8.1 (ALPN is mandatory), RFC 9221 (DATAGRAM).

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use punctual_broker::Nanos;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{CryptoError, HmacKey};
use quinn_proto::{
    EndpointConfig, HashedConnectionIdGenerator, IdleTimeout, ServerConfig, TransportConfig, VarInt,
};
use sha2::Sha256;

use super::QuicOptions;
use crate::tls::TlsAcceptor;

/// MQTT on the first bidirectional stream that the client opens.
pub(super) const ALPN: &[u8] = b"mqtt";
/// The same, and messages with QoS 0 may travel in DATAGRAM frames.
pub(super) const ALPN_DATAGRAM: &[u8] = b"mqtt-datagram";

/// Bytes of the stream that may have arrived and wait for the broker: what a
/// client may send in one round trip.
const RECEIVE_WINDOW: u32 = 256 << 10;
/// Bytes of DATAGRAM frames that may wait for the broker; the oldest go first.
const DATAGRAMS: usize = 64 << 10;
/// Bytes that are handed to QUIC and not sent yet; see [`super::unsent`].
pub(super) const AHEAD: usize = 16 << 10;
/// Bytes that are sent and not acknowledged, and so kept. As much as a kernel
/// keeps for TCP.
const SEND_WINDOW: u64 = 4 << 20;
/// Beginnings of connections that wait to be decided about; they are decided
/// about at once.
const INCOMING: usize = 64;

/// The settings of connections that begin now.
///
/// # Errors
/// TLS has no cipher suite that QUIC begins with.
pub(super) fn server(tls: &TlsAcceptor, options: &QuicOptions) -> Result<ServerConfig, String> {
    let mut tls = rustls::ServerConfig::clone(&tls.config());
    tls.alpn_protocols = vec![ALPN_DATAGRAM.to_vec(), ALPN.to_vec()];
    let crypto = QuicServerConfig::try_from(tls).map_err(|error| error.to_string())?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport(options.idle)));
    config.max_incoming(INCOMING);
    config.migration(true);
    Ok(config)
}

/// The settings of an endpoint: what a server with the same key tells clients of
/// its predecessor, by a Stateless Reset (RFC 9000 section 10.3), is that their
/// connections are gone.
pub(super) fn endpoint(tls: &TlsAcceptor) -> EndpointConfig {
    let reset =
        ResetKey(Hmac::new_from_slice(tls.secret()).expect("HMAC takes keys of any length"));
    // By their own key connection IDs are told from noise, which gets no answer.
    let mut ids = [0; 32];
    reset.sign(b"connection IDs", &mut ids);
    let ids = u64::from_be_bytes(*ids.first_chunk().unwrap_or(&[0; 8]));
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    // The sockets read the largest datagrams there are; paths decide.
    let _ = config.max_udp_payload_size(65_527);
    config
}

/// HMAC-SHA256.
struct ResetKey(Hmac<Sha256>);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        let tag = self.0.clone().chain_update(data).finalize().into_bytes();
        signature.copy_from_slice(&tag);
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let mac = self.0.clone().chain_update(data);
        mac.verify_slice(signature).map_err(|_| CryptoError)
    }
}

fn transport(idle: Nanos) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let millis = u32::try_from(idle.0 / 1_000_000).unwrap_or(u32::MAX);
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOW))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOW))
        .send_window(SEND_WINDOW)
        .datagram_receive_buffer_size(Some(DATAGRAMS))
        .datagram_send_buffer_size(AHEAD)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(millis))))
        // Only a client that answers keeps its connection: MQTT's keep-alive
        // may be longer, or off.
        .keep_alive_interval(Some(Duration::from_millis(u64::from(millis) / 3)))
        .enable_segmentation_offload(false);
    transport
}
