//! PROXY headers of both versions, whole, cut, wrong and too long.

use std::net::SocketAddr;

use proptest::prelude::*;
use punctual_net::layer::{
    ClientAddress, Layer, LayerConfig, LayerError, MAX_PROXY_BYTES, PeerInfo, ProxyError,
};

use crate::support::{config, feed};

fn behind_proxy() -> Layer {
    let config = LayerConfig {
        proxy: true,
        ..LayerConfig::default()
    };
    config.accept().unwrap()
}

pub(crate) const LOCAL: u8 = 0x20;
pub(crate) const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const UNSPECIFIED: u8 = 0x00;

/// 192.0.2.7:50000 to 198.51.100.1:1883.
const ADDRESSES_4: &[u8] = b"\xc0\x00\x02\x07\xc6\x33\x64\x01\xc3\x50\x07\x5b";

pub(crate) fn version_2(command: u8, family: u8, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, family]);
    header.extend((body.len() as u16).to_be_bytes());
    header.extend(body);
    header
}

fn value(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut value = vec![kind];
    value.extend((content.len() as u16).to_be_bytes());
    value.extend(content);
    value
}

/// PP2_TYPE_SSL with everything in it; `flags` and `verify` as in the specification.
fn ssl(flags: u8, verify: u32) -> Vec<u8> {
    let content = [
        &[flags][..],
        &verify.to_be_bytes(),
        &value(0x21, b"TLSv1.3"),
        &value(0x22, b"robot-7"),
        &value(0x23, b"TLS_AES_128_GCM_SHA256"),
    ];
    value(0x20, &content.concat())
}

/// What the layer knows after a header and some MQTT, in every split.
fn told(header: &[u8]) -> PeerInfo {
    let bytes = [header, b"MQTT"].concat();
    let mut told = None;
    for step in [1, 2, 5, 13, 17, usize::MAX] {
        let mut layer = behind_proxy();
        assert!(!layer.is_plain() && !layer.established());
        let fed = feed(&mut layer, &bytes, step);
        assert_eq!(fed.error, None, "{bytes:x?}");
        assert_eq!(fed.app, b"MQTT");
        assert!(fed.wire.is_empty());
        assert!(layer.is_plain() && layer.established());
        let peer = layer.peer();
        assert_eq!(*told.get_or_insert_with(|| peer.clone()), peer);
    }
    told.unwrap()
}

#[test]
fn both_versions_tell_the_address() {
    let v4: SocketAddr = "192.0.2.7:50000".parse().unwrap();
    let v6: SocketAddr = "[2001:db8::7]:50000".parse().unwrap();
    let mut addresses_6 = Vec::new();
    addresses_6.extend(b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07");
    addresses_6.extend([0; 16]);
    addresses_6.extend(b"\xc3\x50\x07\x5b");
    for (header, address) in [
        (version_2(PROXY, TCP4, &[ADDRESSES_4]), v4),
        (version_2(PROXY, TCP6, &[&addresses_6]), v6),
        (
            b"PROXY TCP4 192.0.2.7 198.51.100.1 50000 1883\r\n".to_vec(),
            v4,
        ),
        (
            b"PROXY TCP6 2001:db8::7 2001:db8::1 50000 1883\r\n".to_vec(),
            v6,
        ),
    ] {
        let peer = told(&header);
        let expected = PeerInfo {
            client: ClientAddress::Told(address),
            ..PeerInfo::default()
        };
        assert_eq!(peer, expected);
    }
}

#[test]
fn a_header_without_an_address_tells_whether_it_is_the_proxy_itself() {
    let (proxy, untold) = (ClientAddress::Socket, ClientAddress::Untold);
    for (header, client) in [
        (version_2(LOCAL, UNSPECIFIED, &[]), proxy),
        (version_2(LOCAL, TCP4, &[ADDRESSES_4, &ssl(7, 0)]), proxy),
        (version_2(PROXY, UNSPECIFIED, &[]), untold),
        (version_2(PROXY, UNSPECIFIED, &[&ssl(7, 0)]), untold),
        (b"PROXY UNKNOWN\r\n".to_vec(), untold),
        (
            b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n".to_vec(),
            untold,
        ),
    ] {
        let expected = PeerInfo {
            client,
            ..PeerInfo::default()
        };
        assert_eq!(told(&header), expected, "{header:x?}");
    }
}

#[test]
fn the_proxy_may_have_ended_tls() {
    let header = |ssl: &[u8]| {
        let name = value(0x02, b"broker.example");
        let unknown = value(0xe0, b"anything");
        told(&version_2(
            PROXY,
            TCP4,
            &[ADDRESSES_4, &unknown, &name, ssl],
        ))
    };
    let verified = header(&ssl(0b111, 0));
    assert_eq!(verified.tls_version.as_deref(), Some("TLSv1.3"));
    assert_eq!(verified.cipher.as_deref(), Some("TLS_AES_128_GCM_SHA256"));
    assert_eq!(verified.server_name.as_deref(), Some("broker.example"));
    assert_eq!(verified.common_name.as_deref(), Some("robot-7"));
    // A resumed session shows the certificate of the first connection.
    assert_eq!(
        header(&ssl(0b101, 0)).common_name.as_deref(),
        Some("robot-7")
    );
    // A certificate that was not verified, or none, names nobody.
    for ssl in [ssl(0b111, 20), ssl(0b001, 0)] {
        let peer = header(&ssl);
        assert_eq!(peer.common_name, None);
        assert_eq!(peer.tls_version.as_deref(), Some("TLSv1.3"));
    }
    // No TLS at all.
    let peer = header(&ssl(0b110, 0));
    assert_eq!((peer.tls_version, peer.common_name), (None, None));
    // A name with NUL could be taken for another one.
    let forged = [&[0b111][..], &[0; 4], &value(0x22, b"admin\0x")].concat();
    let peer = header(&value(0x20, &forged));
    assert_eq!(peer.common_name, None);
    assert_eq!(peer.tls_version.as_deref(), Some("TLS"));
}

fn refused(bytes: &[u8]) -> ProxyError {
    let mut layer = behind_proxy();
    let fed = feed(&mut layer, bytes, 1);
    assert!(fed.app.is_empty() && fed.wire.is_empty());
    assert!(!layer.established());
    match fed.error {
        Some(LayerError::Proxy(error)) => error,
        other => panic!("{bytes:x?} gave {other:?}"),
    }
}

#[test]
fn other_protocols_are_refused_at_once() {
    for bytes in [
        &b"\x10"[..],
        b"\x16",
        b"G",
        b"PROXO",
        b"PROXYx",
        b"\r\n\r\n\0\r\nX",
    ] {
        assert_eq!(refused(bytes), ProxyError::Missing, "{bytes:x?}");
        // Not a byte earlier than what proves it.
        let early = feed(&mut behind_proxy(), &bytes[..bytes.len() - 1], 1);
        assert_eq!(early.error, None);
    }
}

#[test]
fn malformed_headers_are_refused() {
    let v2 = |command, family, body: &[u8]| version_2(command, family, &[body]);
    for bytes in [
        // Version 1, unknown command, unknown family.
        v2(0x11, TCP4, ADDRESSES_4),
        v2(0x22, TCP4, ADDRESSES_4),
        v2(PROXY, 0x41, ADDRESSES_4),
        v2(PROXY, 0x13, ADDRESSES_4),
        // Too short for its addresses.
        v2(PROXY, TCP4, &ADDRESSES_4[1..]),
        v2(PROXY, TCP4, &[]),
        v2(PROXY, TCP6, ADDRESSES_4),
        // Values that end after the header.
        v2(PROXY, TCP4, &[ADDRESSES_4, &[0x02, 0, 9, b'x']].concat()),
        v2(PROXY, TCP4, &[ADDRESSES_4, &[0x02]].concat()),
        v2(
            PROXY,
            TCP4,
            &[ADDRESSES_4, &value(0x20, &[1, 0, 0])].concat(),
        ),
        v2(PROXY, TCP4, &[ADDRESSES_4, &value(0x02, b"\xff")].concat()),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 50000\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.256 198.51.100.1 50000 1883\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 50000 65536\r\n".to_vec(),
        b"PROXY TCP6 192.0.2.7 198.51.100.1 50000 1883\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 50000 1883\n".to_vec(),
        b"PROXY UDP4 192.0.2.7 198.51.100.1 50000 1883\r\n".to_vec(),
        b"PROXY \r\n".to_vec(),
        [&b"PROXY UNKNOWN "[..], &[b'x'; 100]].concat(),
    ] {
        assert_eq!(refused(&bytes), ProxyError::Malformed, "{bytes:x?}");
    }
}

#[test]
fn long_headers_are_refused_before_they_come() {
    let padding = |bytes: usize| {
        let content = vec![0; bytes - 16 - ADDRESSES_4.len() - 3];
        version_2(PROXY, TCP4, &[ADDRESSES_4, &value(0x04, &content)])
    };
    let fits = padding(MAX_PROXY_BYTES);
    assert_eq!(fits.len(), MAX_PROXY_BYTES);
    assert_eq!(feed(&mut behind_proxy(), &fits, 1000).error, None);
    let bytes = MAX_PROXY_BYTES + 1;
    assert_eq!(
        refused(&padding(bytes)[..16]),
        ProxyError::TooLong { bytes }
    );
    let largest = version_2(PROXY, TCP4, &[&[0; 65_535]]);
    assert_eq!(
        refused(&largest[..16]),
        ProxyError::TooLong { bytes: 65_551 }
    );
}

#[test]
fn nothing_is_sent_before_the_header() {
    let mut layer = behind_proxy();
    let mut wire = Vec::new();
    assert_eq!(layer.send(b"x", &mut wire), Err(LayerError::NotEstablished));
    layer.close(&mut wire);
    assert!(wire.is_empty());
}

proptest! {
    #![proptest_config(config(300))]

    /// A changed header is understood or refused, and never takes more than its own bytes.
    #[test]
    fn changed_headers_do_not_confuse(
        at in 0..100_usize,
        to in any::<u8>(),
        cut in 0..200_usize,
        step in 1..100_usize,
    ) {
        let mut header = version_2(PROXY, TCP4, &[ADDRESSES_4, &ssl(7, 0), &value(2, b"name")]);
        let at = at % header.len();
        header[at] = to;
        header.truncate(cut);
        let mut bytes = header.clone();
        bytes.extend([0xaa; 5000]);
        let fed = feed(&mut behind_proxy(), &bytes, step);
        if fed.error.is_none() && !fed.app.is_empty() {
            prop_assert!(bytes.ends_with(&fed.app));
        }
        prop_assert!(fed.wire.is_empty());
    }
}
