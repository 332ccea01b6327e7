//! Properties of requirements: what is written is read as the same, and no
//! input does harm.

use std::time::Duration;

use proptest::prelude::*;
use punctual_model::{
    Late, Requirements, format_bandwidth, format_duration, is_requirement_key, parse_bandwidth,
    parse_duration,
};

fn positive() -> impl Strategy<Value = Duration> {
    prop_oneof![1..=u64::MAX, 1..=10_000_u64]
        .prop_flat_map(|n| {
            let scales = vec![1, 1_000, 1_000_000, 1_000_000_000];
            prop::sample::select(scales).prop_map(move |scale| n.saturating_mul(scale))
        })
        .prop_map(Duration::from_nanos)
}

prop_compose! {
    fn requirements()(
        deadline in prop::option::of(positive()),
        period in prop::option::of(positive()),
        priority in prop::option::of(0..=7_u8),
        size in prop::option::of(0..=268_435_455_u32),
        transmission_time in prop::option::of(positive()),
        bandwidth in prop::option::of(1..=u64::MAX),
        jitter in prop::option::of(prop_oneof![Just(Duration::ZERO), positive()]),
        late in prop::option::of(prop::sample::select(&[Late::Deliver, Late::Drop][..])),
        message_priority in prop::option::of(any::<u64>()),
    ) -> Requirements {
        Requirements {
            deadline,
            period,
            priority,
            size,
            transmission_time,
            bandwidth,
            jitter,
            late,
            message_priority,
        }
    }
}

/// Bytes near what is valid, and far from it.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[0-9]{0,25}(\\.[0-9]{0,25})?(ns|us|ms|s|bit|kbit|Mbit|Gbit|x)?"
            .prop_map(String::into_bytes),
        "(deliver|drop|[0-9 +-.eE]{1,8})".prop_map(String::into_bytes),
    ]
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(&[
            "priority", "rt-deadline", "rt-period", "rt-priority", "rt-size",
            "rt-transmission-time", "rt-bandwidth", "rt-jitter", "rt-late",
        ][..]).prop_map(|key| key.as_bytes().to_vec()),
        1 => "rt-[a-z]{0,9}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_as_the_same(requirements in requirements()) {
        let mut read = Requirements::default();
        for (key, value) in requirements.user_properties() {
            prop_assert!(is_requirement_key(key.as_bytes()));
            prop_assert_eq!(read.set(key.as_bytes(), value.as_bytes()), Ok(true));
        }
        prop_assert_eq!(read, requirements);
        if !requirements.is_empty() {
            prop_assert_eq!(requirements.to_string().parse(), Ok(requirements));
        }
    }

    /// Whatever comes: no panic; a value that is refused changes nothing, one
    /// that is accepted says the same when it is written again; a key that is
    /// not ours is left alone.
    #[test]
    fn any_input_is_read_or_refused(pairs in prop::collection::vec((key(), bytes()), 0..12)) {
        let mut all = Requirements::default();
        for (key, value) in &pairs {
            let before = all;
            match all.set(key, value) {
                Ok(true) => prop_assert_ne!(all, before),
                Ok(false) => prop_assert_eq!(all, before),
                Err(error) => {
                    prop_assert_eq!(all, before);
                    prop_assert!(is_requirement_key(key));
                    prop_assert!(error.to_string().chars().count() < 1000);
                }
            }
        }
        let mut again = Requirements::default();
        for (key, value) in all.user_properties() {
            prop_assert_eq!(again.set(key.as_bytes(), value.as_bytes()), Ok(true));
        }
        prop_assert_eq!(again, all);
    }

    #[test]
    fn a_second_value_is_refused(requirements in requirements()) {
        let mut read = requirements;
        for (key, value) in requirements.user_properties() {
            let error = read.set(key.as_bytes(), value.as_bytes()).unwrap_err();
            prop_assert!(error.remedy().contains("given twice"));
        }
        prop_assert_eq!(read, requirements);
    }

    /// A decimal fraction is the exact number, against arithmetic on 128 bits.
    #[test]
    fn fractions_are_exact(whole in 0..1_000_000_u64, micros in 0..1_000_u64) {
        let text = format!("{whole}.{micros:03}ms");
        let expected = Duration::from_micros(whole * 1000 + micros);
        prop_assert_eq!(parse_duration(text.as_bytes()), Ok(expected));
    }

    #[test]
    fn units_round_trip(n in any::<u64>()) {
        let duration = Duration::from_nanos(n);
        prop_assert_eq!(parse_duration(format_duration(duration).as_bytes()), Ok(duration));
        prop_assert_eq!(parse_bandwidth(format_bandwidth(n).as_bytes()), Ok(n));
    }
}
