//! What every end of a TLS connection needs, whoever opens or accepts it: one provider of
//! cryptography (rustls with ring), PEM files as mosquitto and OpenSSL write them, and the judgement
//! of a server's certificate by its chain alone.
//!
//! Everything that can be wrong with a file is found when it is read, and named with the file and
//! what to do.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod chain;
mod error;
mod files;

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, ring};

pub use chain::ChainOnly;
pub use error::TlsError;
pub use files::{authorities, certificates, private_key, revocation_lists};

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(ring::default_provider()));

/// One provider for all configurations; it has no state.
pub fn provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}
