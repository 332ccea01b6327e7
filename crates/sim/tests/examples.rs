//! The files in `examples/networks` are the networks of `network::families`.
//!
//! With `PUNCTUAL_WRITE_EXAMPLES=1` the test writes the files instead of comparing them.

use std::fs;
use std::path::Path;

use punctual_model::network::{Document, Network};
use punctual_sim::network::{families, to_toml};

#[test]
fn files_are_the_networks() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/networks");
    let write = std::env::var_os("PUNCTUAL_WRITE_EXAMPLES").is_some_and(|value| value == "1");
    for (name, document) in families::all() {
        let path = directory.join(format!("{name}.toml"));
        if write {
            fs::write(&path, to_toml(&document)).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        let read = Document::from_toml(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            Network::new(&read).unwrap(),
            Network::new(&document).unwrap(),
            "{name}"
        );
        assert_eq!(text, to_toml(&document), "{name}");
    }
    let files = fs::read_dir(&directory).unwrap();
    let networks = files.filter(|file| {
        let name = file.as_ref().unwrap().file_name();
        name.to_string_lossy().ends_with(".toml")
    });
    assert_eq!(networks.count(), families::all().len());
}
