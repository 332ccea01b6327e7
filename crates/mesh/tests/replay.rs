//! The check of the fuzz target `mesh` on a stable toolchain: over its seeds, over
//! changes of single bytes and cuts of them, and over any bytes.

#[path = "../../../fuzz/src/mesh.rs"]
#[allow(unreachable_pub, reason = "there it is part of a program")]
mod checks;

use std::path::Path;

use proptest::prelude::*;
use punctual_mesh::wire::Message;

fn seeds() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/mesh");
    let mut seeds: Vec<_> = std::fs::read_dir(dir)
        .expect("seeds are in the repository")
        .map(|entry| {
            let path = entry.expect("can be read").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read(path).expect("can be read"))
        })
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty());
    seeds
}

#[test]
fn seeds_and_what_is_close_to_them() {
    for (name, seed) in seeds() {
        assert!(Message::decode(&seed).is_ok(), "{name} is a message");
        checks::mesh(&seed);
        for at in 0..seed.len() {
            checks::mesh(&seed[..at]);
            for value in [0, 1, 2, 0x7f, 0x80, 0xff, seed[at] ^ 1] {
                let mut changed = seed.clone();
                changed[at] = value;
                checks::mesh(&changed);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(kind in 0..9u8, bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        checks::mesh(&[&[kind], &bytes[..]].concat());
    }
}
