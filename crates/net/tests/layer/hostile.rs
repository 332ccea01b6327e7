//! Peers that mean harm: random and changed bytes, lengths that are never fulfilled. Nothing
//! panics, and memory stays within the bounds that the module's documentation names.

use std::cell::RefCell;

use proptest::prelude::*;
use punctual_net::layer::{
    Layer, LayerConfig, MAX_PROXY_BYTES, MAX_UPGRADE_BYTES, WebSocketOptions,
};
use punctual_net::tls::{ClientCertificates, TlsAcceptor};

use crate::memory::held;
use crate::proxy::{PROXY, version_2};
use crate::support::{Pki, TlsClient, accept, config, feed};
use crate::websocket::{BINARY, FIN, PING, REQUEST, frame};

/// A TLS record with its header and tag.
const RECORD: isize = 16 * 1024 + 5 + 256;
/// A handshake message.
const HANDSHAKE: isize = 64 * 1024;
/// Vectors grow by doubling.
const GROWTH: isize = 2;

/// Sends the same bytes until a mebibyte has passed or the connection ends, and returns by how much
/// the memory held has grown at most while it lived.
fn growth(layer: &mut Layer, bytes: &[u8]) -> isize {
    let before = held();
    let mut most = 0;
    for _ in 0..(1 << 20) / bytes.len() {
        let fed = feed(layer, bytes, 1000);
        if fed.ended || fed.error.is_some() {
            break;
        }
        drop(fed);
        most = most.max(held() - before);
    }
    most
}

fn websocket(proxy: bool, tls: Option<TlsAcceptor>) -> Layer {
    let config = LayerConfig {
        proxy,
        tls,
        websocket: Some(WebSocketOptions::default()),
    };
    config.accept().unwrap()
}

#[test]
fn a_plain_connection_costs_a_few_words() {
    assert!(size_of::<Layer>() <= 4 * size_of::<usize>());
    let before = held();
    let layer = LayerConfig::default().accept().unwrap();
    assert!(layer.is_plain());
    assert_eq!(held(), before);
}

#[test]
fn endless_upgrade_requests_are_bounded() {
    let bound = GROWTH * MAX_UPGRADE_BYTES as isize;
    for bytes in [&b"G"[..], b"GET / HTTP/1.1\r\nX: ", b"A: b\r\n"] {
        let most = growth(&mut websocket(false, None), bytes);
        assert!(most <= bound, "{bytes:?}: {most}");
    }
}

#[test]
fn endless_proxy_headers_are_bounded() {
    let bound = GROWTH * MAX_PROXY_BYTES as isize;
    let config = LayerConfig {
        proxy: true,
        ..LayerConfig::default()
    };
    let cut = version_2(PROXY, 0x11, &[&[0; MAX_PROXY_BYTES - 16]]);
    for bytes in [
        &cut[..cut.len() - 1],
        b"PROXY ",
        b"PROXY UNKNOWN xxxxxxxxxxxx",
    ] {
        let most = growth(&mut config.accept().unwrap(), bytes);
        assert!(most <= bound, "{bytes:?}: {most}");
    }
}

#[test]
fn endless_frames_keep_nothing() {
    // A frame of 2^62 bytes, a message of endless fragments, pings whose payload does not end,
    // and pings that do.
    let mut endless = vec![FIN | BINARY, 0xff, 0x40, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    endless.extend([0x82; 5000]);
    let mut begun = websocket(false, None);
    assert_eq!(feed(&mut begun, REQUEST.as_bytes(), 100).error, None);
    assert!(growth(&mut begun, &endless) <= 0);

    for (first, bytes) in [
        (
            Some(frame(BINARY, b"begin", [1; 4])),
            frame(0, b"more", [2; 4]),
        ),
        (None, frame(FIN | PING, &[1; 125], [2; 4])),
        (
            None,
            [frame(FIN | PING, b"", [0; 4]), vec![FIN | PING]].concat()[..6].to_vec(),
        ),
    ] {
        let mut layer = websocket(false, None);
        assert_eq!(feed(&mut layer, REQUEST.as_bytes(), 100).error, None);
        if let Some(first) = first {
            assert_eq!(feed(&mut layer, &first, 100).error, None);
        }
        let most = growth(&mut layer, &bytes);
        assert!(most <= GROWTH * 125, "{most}");
    }
}

#[test]
fn endless_records_and_handshakes_are_bounded() {
    let pki = Pki::new();
    let acceptor = pki.server(ClientCertificates::Optional(pki.authority()));
    // Handshake messages that announce up to 64 KiB, and one that announces more.
    for announced in [[0, 0x80, 0], [0, 0xff, 0xff], [1, 0, 0]] {
        for length in [4_u16, 100, 16_384] {
            let [high, low] = length.to_be_bytes();
            let record = |start: &[u8]| {
                let mut record = [&[22, 3, 1, high, low], start].concat();
                record.resize(5 + usize::from(length), 0);
                record
            };
            let begin = record(&[&[1][..], &announced].concat());
            let mut layer = accept(&acceptor);
            let before = held();
            let fed = feed(&mut layer, &begin, 1000);
            assert_eq!(fed.error.is_some(), announced[0] > 0);
            drop(fed);
            let most = held() - before + growth(&mut layer, &record(&[]));
            assert!(most <= GROWTH * HANDSHAKE, "{announced:?} {length}: {most}");
        }
    }

    // A record that never ends, on an established connection.
    let mut layer = accept(&acceptor);
    let mut client = TlsClient::new(&pki.client(None));
    client.talk(&mut layer, usize::MAX).unwrap();
    client.send(&[0; 16_384]);
    let record = client.output();
    let before = held();
    for byte in &record[..record.len() - 1] {
        let fed = feed(&mut layer, &[*byte], 1);
        assert_eq!((fed.app.len(), fed.wire.len(), fed.error), (0, 0, None));
    }
    let most = held() - before;
    assert!(most <= GROWTH * RECORD, "{most}");
    let fed = feed(&mut layer, &record[record.len() - 1..], 1);
    assert_eq!(fed.app.len(), 16_384);
    drop(fed);
    assert!(held() <= before + 1024, "{} kept", held() - before);
}

#[test]
fn an_idle_tls_connection_is_small() {
    let pki = Pki::new();
    pki.issue("robot-7", |_| {});
    let acceptor = pki.server(ClientCertificates::Optional(pki.authority()));
    for name in [None, Some("robot-7")] {
        let before = held();
        let mut layer = accept(&acceptor);
        let mut client = TlsClient::new(&pki.client(name));
        client.talk(&mut layer, usize::MAX).unwrap();
        client.send(&[0; 100_000]);
        client.talk(&mut layer, usize::MAX).unwrap();
        let mut wire = Vec::new();
        layer.send(&[0; 100_000], &mut wire).unwrap();
        drop((client, wire));
        let kept = held() - before;
        assert!(layer.established());
        assert!(kept <= 9 * 1024, "{name:?}: {kept}");
    }
}

/// All stacks, with the bytes that bring them to their last layer.
fn stacks(acceptor: &TlsAcceptor) -> Vec<Layer> {
    let mut layers = Vec::new();
    for proxy in [false, true] {
        for tls in [None, Some(acceptor.clone())] {
            layers.push(websocket(proxy, tls.clone()));
            let config = LayerConfig {
                proxy,
                tls,
                websocket: None,
            };
            layers.push(config.accept().unwrap());
        }
    }
    let mut open = websocket(false, None);
    assert_eq!(feed(&mut open, REQUEST.as_bytes(), 100).error, None);
    layers.push(open);
    layers
}

thread_local! {
    /// Made once a thread: making keys is slow.
    static PKI: (Pki, RefCell<Option<TlsAcceptor>>) = (Pki::new(), RefCell::new(None));
}

fn acceptor() -> TlsAcceptor {
    PKI.with(|(pki, made)| {
        made.borrow_mut()
            .get_or_insert_with(|| pki.server(ClientCertificates::Optional(pki.authority())))
            .clone()
    })
}

/// What an error or an end promises: silence.
fn is_dead(layer: &mut Layer, bytes: &[u8]) -> bool {
    let fed = feed(layer, bytes, 100);
    let mut wire = Vec::new();
    let sent = layer.send(b"x", &mut wire);
    fed.app.is_empty() && fed.wire.is_empty() && fed.error.is_none() && sent.is_err()
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn random_bytes_do_no_harm(
        start in prop_oneof![
            Just(Vec::new()),
            Just(b"\x16\x03\x01".to_vec()),
            Just(b"GET ".to_vec()),
            Just(b"PROXY ".to_vec()),
            Just(b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec()),
            Just(vec![FIN | BINARY, 0x80]),
        ],
        random in proptest::collection::vec(any::<u8>(), 0..2000),
        step in 1..500_usize,
    ) {
        let bytes = [start, random].concat();
        for mut layer in stacks(&acceptor()) {
            let fed = feed(&mut layer, &bytes, step);
            prop_assert!(fed.app.len() <= bytes.len());
            prop_assert!(fed.wire.len() <= bytes.len() + 1024);
            let peer = layer.peer();
            prop_assert!(peer.common_name.is_none() && peer.subject.is_none());
            if fed.error.is_some() {
                prop_assert!(is_dead(&mut layer, &bytes), "{:?}", layer);
            }
            layer.close(&mut Vec::new());
        }
    }

    /// Bytes of a right conversation with some of them changed, left out or doubled.
    #[test]
    fn changed_conversations_do_no_harm(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        doubled in any::<prop::sample::Index>(),
        step in 1..500_usize,
    ) {
        let hello = PKI.with(|(pki, _)| TlsClient::new(&pki.client(None)).output());
        let header = version_2(PROXY, 0x11, &[&[9; 12], b"\x02\0\x04name"]);
        let frames = [
            frame(FIN | BINARY, &[3; 200], [1, 2, 3, 4]),
            frame(FIN | PING, b"ping", [1, 2, 3, 4]),
            frame(BINARY, &[3; 20], [1, 2, 3, 4]),
            frame(FIN, &[3; 20], [1, 2, 3, 4]),
        ]
        .concat();
        let request = REQUEST.as_bytes().to_vec();
        for conversation in [
            hello.clone(),
            [header.clone(), hello].concat(),
            [header, request.clone(), frames.clone()].concat(),
            [request, frames.clone()].concat(),
            frames,
        ] {
            let mut bytes = conversation;
            for (at, to) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *to;
            }
            let again = doubled.index(bytes.len());
            let copy = bytes[again..].to_vec();
            bytes.truncate(cut.index(bytes.len()));
            bytes.extend(copy);
            for mut layer in stacks(&acceptor()) {
                let fed = feed(&mut layer, &bytes, step);
                prop_assert!(fed.app.len() <= bytes.len());
                prop_assert!(fed.wire.len() <= bytes.len() + 4096);
                if fed.error.is_some() {
                    prop_assert!(is_dead(&mut layer, &bytes), "{:?}", layer);
                }
                layer.close(&mut Vec::new());
            }
        }
    }
}
