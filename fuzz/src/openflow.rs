//! What must hold for any bytes from a switch or a controller: the check of the fuzz target
//! `openflow`, which `crates/openflow/tests/replay.rs` also runs over the seeds.

use punctual_model::Nanos;
use punctual_openflow::fake::{Limits, Switch};
use punctual_openflow::{DatapathId, Envelope, PortNo, split};

const LIMITS: Limits = Limits {
    tables: 3,
    flows: 16,
    groups: 16,
    buckets: 4,
    meters: 4,
    bands: 2,
    bundles: 2,
    bundled: 8,
};

/// Reads the input as messages to a switch, one after the other, and what is left as a packet.
pub fn openflow(data: &[u8]) {
    let mut switch = Switch::new(DatapathId(1), (1..4).map(PortNo), Nanos(0)).with_limits(LIMITS);
    let mut rest = data;
    while let Ok(Some(frame)) = split(rest, u16::MAX) {
        message(frame, &mut switch);
        rest = &rest[frame.len()..];
    }
    switch.packet(PortNo(1), rest, Nanos(1));
    switch.advance(Nanos::MAX);
}

/// What decodes says the same after encoding, in no more bytes, and every answer is a message.
fn message(frame: &[u8], switch: &mut Switch) {
    let envelope = match Envelope::decode(frame) {
        Ok(envelope) => envelope,
        Err(error) => {
            error.reply();
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let bytes = match envelope.to_bytes() {
        Ok(bytes) => bytes,
        Err(error) => panic!("{envelope:?} cannot be encoded: {error}"),
    };
    assert!(bytes.len() <= frame.len(), "encoding got longer");
    assert_eq!(Envelope::decode(&bytes).as_ref(), Ok(&envelope));
    for answer in switch.handle(&envelope, Nanos(0)) {
        match answer.to_bytes() {
            Ok(bytes) => assert_eq!(Envelope::decode(&bytes), Ok(answer)),
            Err(error) => panic!("{answer:?} cannot be encoded: {error}"),
        }
    }
}
