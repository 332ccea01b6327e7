//! The check of the fuzz target `store` on a stable toolchain: over its seeds,
//! over changes of single bytes and cuts of them, and over any bytes.
#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

#[path = "../../../fuzz/src/store.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;

use std::path::Path;

use proptest::prelude::*;

fn seeds() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/store");
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

#[test]
fn seeds_and_what_is_close_to_them() {
    for seed in seeds() {
        checks::store(&seed);
        for at in 0..seed.len() {
            // Segments begin with much that is not used.
            if seed[at] == 0 && seed.len() > 1000 && at % 64 != 0 {
                continue;
            }
            checks::store(&seed[..at]);
            for value in [0, 0x80, seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::store(&changed);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        checks::store(&data);
    }
}
