//! Every message comes back from its bytes; no bytes make the decoder panic.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod arbitrary;
mod compatible;

use arbitrary::envelope;
use proptest::collection::vec;
use proptest::prelude::*;
use punctual_openflow::{DecodeError, Envelope, HEADER, Message, Xid, split, xid_of};

fn decode(bytes: &[u8]) -> Envelope {
    Envelope::decode(bytes).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_message_comes_back(sent in envelope()) {
        let bytes = sent.to_bytes().unwrap();
        prop_assert_eq!(usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), bytes.len());
        prop_assert_eq!(xid_of(&bytes), sent.xid);
        let got = decode(&bytes);
        prop_assert_eq!(&got, &sent);
        prop_assert_eq!(got.to_bytes().unwrap(), bytes);
    }

    #[test]
    fn a_stream_is_cut_where_messages_end(
        sent in vec(envelope(), 1..5),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut stream = Vec::new();
        for message in &sent {
            message.encode(&mut stream).unwrap();
        }
        let cut = cut.index(stream.len() + 1);
        let (mut arrived, mut got) = (&stream[..cut], Vec::new());
        while let Some(frame) = split(arrived, u16::MAX).unwrap() {
            got.push(decode(frame));
            arrived = &arrived[frame.len()..];
        }
        prop_assert!(sent.starts_with(&got));
        prop_assert!(cut < stream.len() || got.len() == sent.len());
    }

    /// What is changed and still valid says the same in canonical bytes.
    #[test]
    fn damaged_messages_are_refused_or_mean_something(
        sent in envelope(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = sent.to_bytes().unwrap();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            if place != 2 && place != 3 {
                bytes[place] = value;
            }
        }
        match Envelope::decode(&bytes) {
            Err(error) => {
                error.reply();
                prop_assert!(!error.to_string().is_empty());
            }
            Ok(got) => {
                let canonical = got.to_bytes().unwrap();
                prop_assert_eq!(decode(&canonical), got);
            }
        }
    }

    #[test]
    fn noise_is_refused_or_means_something(kind in 0..32_u8, body in vec(any::<u8>(), 0..200)) {
        let length = (HEADER + body.len()) as u8;
        let mut bytes = vec![4, kind, 0, length, 0, 0, 0, 1];
        bytes.extend(body);
        if let Ok(got) = Envelope::decode(&bytes) {
            prop_assert_eq!(decode(&got.to_bytes().unwrap()), got);
        }
    }
}

#[test]
fn announced_lengths_are_bounded() {
    let echo = Envelope::new(Xid(1), Message::EchoRequest(vec![0; 100]));
    let bytes = echo.to_bytes().unwrap();
    assert_eq!(split(&bytes[..3], 1000), Ok(None));
    assert_eq!(split(&bytes[..107], 1000), Ok(None));
    assert_eq!(split(&bytes, 108), Ok(Some(&bytes[..])));
    let refused = DecodeError::TooLong {
        length: 108,
        limit: 107,
    };
    assert_eq!(split(&bytes[..4], 107), Err(refused));
    assert_eq!(split(&[4, 0, 0, 7], 107), Err(DecodeError::TooShort(7)));
    let long = Envelope::new(Xid(1), Message::EchoRequest(vec![0; 65_528]));
    let mut out = vec![7];
    assert!(long.encode(&mut out).is_err());
    assert_eq!(out, [7]);
}

#[test]
fn only_a_hello_and_an_error_may_be_of_another_version() {
    let mut bytes = Envelope::new(Xid(1), Message::BarrierRequest)
        .to_bytes()
        .unwrap();
    bytes[0] = 6;
    assert_eq!(Envelope::decode(&bytes), Err(DecodeError::Version(6)));
    let Message::Hello(hello) = decode(&[6, 0, 0, 8, 0, 0, 0, 1]).message else {
        panic!("not a hello");
    };
    assert!(hello.version == 6 && hello.accepts());
    // Bitmap: 1.0 and 1.5 only.
    let [high, low] = (1_u16 << 6 | 1 << 1).to_be_bytes();
    let bytes = [6, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, high, low];
    let Message::Hello(hello) = decode(&bytes).message else {
        panic!("not a hello");
    };
    assert!(!hello.accepts());
}
