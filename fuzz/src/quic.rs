//! What must hold for any datagrams that come to a QUIC listener: the check of the fuzz target
//! `quic`, which `crates/net/src/quic/tests.rs` also runs over the seeds.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use super::rehearsal::{MOST_UNPROVEN, Rehearsal};
use super::tls::{ClientCertificates, MAX_RECORD, MinimumTls, TlsAcceptor, TlsServerOptions};

/// An address that proves nothing is sent so many times what has come from it, at most (RFC 9000
/// section 8.1).
const FACTOR: usize = 3;
/// Bytes of the first datagram of a connection.
const FIRST: usize = 1200;
/// Datagrams of one input, so that it takes little time.
const MOST: usize = 100;
/// Of a record: its bytes are the contents of an Initial packet, and not a datagram.
const SEALED: u8 = 1;
/// Of a record: the datagram is made as long as the first one of a connection has to be.
const PADDED: u8 = 2;

/// Takes the input as records of what is to be done (one byte), a length (two) and bytes, and sends
/// the datagrams that it describes to a listener with Retry and to one without.
///
/// Of the first byte, bit 0 is [`SEALED`] and bit 1 [`PADDED`]; bits 2 and 3 say which of four
/// addresses it comes from, 4 and 5 which of four connection IDs it goes to, 6 and 7 how much time
/// passes afterwards.
pub fn quic(data: &[u8]) {
    for retry in [false, true] {
        let _ = answered(data, retry);
    }
}

/// Sends the datagrams that an input describes; how many bytes are sent in answer to them.
pub fn answered(mut data: &[u8], retry: bool) -> usize {
    let mut listener = Rehearsal::new(tls(), retry).expect("TLS 1.3 is there");
    let mut counts = HashMap::new();
    let mut numbers = [0; 4];
    for _ in 0..MOST {
        let [what, high, low, rest @ ..] = data else {
            break;
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (bytes, rest) = rest.split_at(length.min(rest.len()));
        data = rest;
        let from = SocketAddr::from(([192, 0, 2, what >> 2 & 3], 4000));
        let id = what >> 4 & 3;
        let number = &mut numbers[usize::from(id)];
        let mut datagram = match what & SEALED != 0 {
            true => sealed(&listener, [0xC0 | id; 8], number, bytes, what & PADDED != 0),
            false => bytes.to_vec(),
        };
        if what & PADDED != 0 && datagram.len() < FIRST {
            datagram.resize(FIRST, 0);
        }
        counts.entry(from).or_insert((0, 0)).0 += datagram.len();
        let mut sent = listener.receive(from, &datagram);
        let passes = [0, 100, 1_000, 11_000][usize::from(what >> 6)];
        sent.extend(listener.pass(Duration::from_millis(passes)));
        for (to, datagram) in sent {
            assert!(!datagram.is_empty());
            let (received, sent) = counts.get_mut(&to).expect("nothing came from there");
            *sent += datagram.len();
            assert!(
                *sent <= FACTOR * *received,
                "{to}: {sent} bytes were sent for {received}"
            );
        }
        let most = if retry { 0 } else { MOST_UNPROVEN };
        assert!(listener.connections() <= most, "{retry}");
    }
    counts.values().map(|(_, sent)| sent).sum()
}

/// An Initial packet as a client would send it (RFC 9001 section 5.2), with what is in `contents`.
fn sealed(
    listener: &Rehearsal,
    destination: [u8; 8],
    number: &mut u32,
    contents: &[u8],
    padded: bool,
) -> Vec<u8> {
    /// Bytes of a packet's number, as they are written here, and of the tag behind it.
    const NUMBER: usize = 4;
    const TAG: usize = 16;
    let keys = listener.initial_keys(&destination).expect("version 1");
    let header = 1 + 4 + 1 + 8 + 1 + 8 + 1 + 2 + NUMBER;
    // A sample for the protection of the header is taken behind the number.
    let least = if padded { FIRST - header - TAG } else { NUMBER };
    let mut contents = contents.to_vec();
    contents.truncate((1 << 14) - 1 - NUMBER - TAG);
    contents.resize(contents.len().max(least), 0);
    let length = (NUMBER + contents.len() + TAG) as u16;
    let mut packet = vec![0xC3, 0, 0, 0, 1, 8];
    packet.extend_from_slice(&destination);
    packet.push(8);
    packet.extend_from_slice(b"a client");
    packet.push(0);
    packet.extend_from_slice(&(0x4000 | length).to_be_bytes());
    packet.extend_from_slice(&number.to_be_bytes());
    packet.extend_from_slice(&contents);
    packet.resize(packet.len() + TAG, 0);
    let keys = (keys.packet.remote, keys.header.remote);
    keys.0.encrypt(u64::from(*number), &mut packet, header);
    keys.1.encrypt(header - NUMBER, &mut packet);
    *number += 1;
    packet
}

/// A certificate that nobody trusts, the same for all inputs of a process.
fn tls() -> TlsAcceptor {
    static TLS: OnceLock<TlsAcceptor> = OnceLock::new();
    let make = || {
        let directory = tempfile::tempdir().expect("a directory");
        let made = rcgen::generate_simple_self_signed(["localhost".into()]).expect("a key");
        let certificate = directory.path().join("certificate.pem");
        let key = directory.path().join("key.pem");
        std::fs::write(&certificate, made.cert.pem()).expect("room");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("room");
        TlsAcceptor::load(&TlsServerOptions {
            certificate,
            key,
            clients: ClientCertificates::Ignored,
            minimum: MinimumTls::V1_3,
            max_record: MAX_RECORD,
        })
        .expect("they belong together")
    };
    TLS.get_or_init(make).clone()
}
