//! Holds `docs/conformance.md` to the tests.
//!
//! A row of its tables is `| id | binds | what it asks | tests or reason |`.
//! The last column is made from the doc comments of the tests, which name the
//! statements they prove; where no test does, it says why. It is rewritten by
//! `PUNCTUAL_UPDATE_CONFORMANCE=1 cargo test -p punctual --test wire conformance`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Statements in appendix B of MQTT 5.0 and of MQTT 3.1.1.
const STATEMENTS: [(&str, usize); 2] = [("MQTT 5.0", 251), ("MQTT 3.1.1", 141)];

/// Statement (with its edition) to the tests that name it, as `module::test`.
type Proofs = BTreeMap<(&'static str, String), BTreeSet<String>>;

/// Tests of what the binary has no settings for: enhanced authentication.
const OF_THE_CORE: &str = "crates/sim/tests/enhanced_auth.rs";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads the statements from the doc comments of all tests.
fn proofs() -> Proofs {
    let sources = root().join("crates/punctual/tests/wire");
    let mut proofs = Proofs::new();
    let entries = fs::read_dir(&sources).expect("the tests' sources");
    let of_the_wire = entries.map(|entry| entry.expect("an entry").path());
    for path in of_the_wire.chain([root().join(OF_THE_CORE)]) {
        let Some(module) = path.file_stem().and_then(|stem| stem.to_str()) else {
            continue;
        };
        let source = fs::read_to_string(&path).expect("a source file");
        for (name, comment) in tests_of(&source) {
            for statement in statements_in(&comment) {
                proofs
                    .entry(statement)
                    .or_default()
                    .insert(format!("{module}::{name}"));
            }
        }
    }
    proofs
}

/// The tests of a source file with their doc comments.
fn tests_of(source: &str) -> Vec<(String, String)> {
    let mut tests = Vec::new();
    let (mut comment, mut is_test) = (String::new(), false);
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("///") {
            comment += text;
        } else if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ")
            && is_test
        {
            let name = rest.split('(').next().unwrap_or_default();
            tests.push((name.to_owned(), std::mem::take(&mut comment)));
            is_test = false;
        } else {
            (comment, is_test) = (String::new(), false);
        }
    }
    tests
}

/// All `[MQTT-…]` and `[3.1.1 MQTT-…]` in a text.
fn statements_in(text: &str) -> Vec<(&'static str, String)> {
    let inside = text
        .split('[')
        .skip(1)
        .filter_map(|part| part.split(']').next());
    inside
        .filter_map(|part| {
            let old = part
                .strip_prefix("3.1.1 MQTT-")
                .map(|id| ("MQTT 3.1.1", id));
            let (edition, id) = old.or(part.strip_prefix("MQTT-").map(|id| ("MQTT 5.0", id)))?;
            Some((edition, id.to_owned()))
        })
        .collect()
}

/// The document with the last column made anew, and what is wrong with it.
fn regenerate(document: &str, proofs: &Proofs) -> (String, Vec<String>) {
    let mut problems = Vec::new();
    let mut listed: BTreeSet<(&str, String)> = BTreeSet::new();
    let mut edition = "";
    let mut lines = Vec::new();
    for line in document.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            edition = STATEMENTS
                .iter()
                .find_map(|(name, _)| (title == *name).then_some(*name))
                .unwrap_or("");
        }
        let Some((id, binds, asks, last)) = row(line) else {
            lines.push(line.to_owned());
            continue;
        };
        let statement = (edition, id.to_owned());
        let last = match proofs.get(&statement) {
            Some(tests) => {
                let tests: Vec<_> = tests.iter().map(|test| format!("`{test}`")).collect();
                tests.join(", ")
            }
            None if last.contains("::") => String::new(),
            None => last.to_owned(),
        };
        if last.is_empty() {
            problems.push(format!(
                "{edition} {id} ({binds}) has neither test nor reason"
            ));
        }
        if !["client", "server", "both"].contains(&binds) {
            problems.push(format!("{edition} {id} binds {binds:?}"));
        }
        if !listed.insert(statement) {
            problems.push(format!("{edition} {id} is listed twice"));
        }
        lines.push(format!("| {id} | {binds} | {asks} | {last} |"));
    }
    for (edition, expected) in STATEMENTS {
        let count = listed.iter().filter(|(name, _)| *name == edition).count();
        if count != expected {
            problems.push(format!(
                "{edition} has {expected} statements, {count} are listed"
            ));
        }
    }
    for (statement, tests) in proofs {
        if !listed.contains(statement) {
            let (edition, id) = statement;
            problems.push(format!(
                "{tests:?} name {edition} {id}, which does not exist"
            ));
        }
    }
    (lines.join("\n") + "\n", problems)
}

/// The four cells of a row about a statement.
fn row(line: &str) -> Option<(&str, &str, &str, &str)> {
    let cells: Vec<&str> = line
        .strip_prefix('|')?
        .strip_suffix('|')?
        .split('|')
        .collect();
    let [id, binds, asks, last] = cells[..] else {
        return None;
    };
    let id = id.trim();
    let is_id = id.starts_with(|first: char| first.is_ascii_digit()) && id.contains('-');
    is_id.then_some((id, binds.trim(), asks.trim(), last.trim()))
}

#[test]
fn the_table_of_statements_is_complete_and_true() {
    let path = root().join("docs/conformance.md");
    let document = fs::read_to_string(&path).expect("docs/conformance.md");
    let (expected, problems) = regenerate(&document, &proofs());
    if std::env::var_os("PUNCTUAL_UPDATE_CONFORMANCE").is_some() {
        fs::write(&path, &expected).expect("write docs/conformance.md");
    } else {
        for (is, should_be) in document.lines().zip(expected.lines()) {
            assert_eq!(is, should_be, "see the head of conformance.rs");
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn tests_and_their_statements_are_found() {
    let source = "\
/// [MQTT-1.1.1-1] and\n/// [3.1.1 MQTT-2.2.2-2].\n#[test]\nfn one() {\n}\n\
/// [MQTT-3.3.3-3]\nfn no_test() {}\n#[test]\nfn two() {}\n";
    let tests = tests_of(source);
    assert_eq!(tests.len(), 2);
    assert_eq!(
        statements_in(&tests[0].1),
        [
            ("MQTT 5.0", "1.1.1-1".to_owned()),
            ("MQTT 3.1.1", "2.2.2-2".to_owned())
        ]
    );
    assert_eq!(tests[1], ("two".to_owned(), String::new()));
}

#[test]
fn a_table_that_disagrees_is_noticed() {
    let statement = ("MQTT 5.0", "1.1.1-1".to_owned());
    let proofs = Proofs::from([(statement, BTreeSet::from(["m::t".to_owned()]))]);
    let document = "## MQTT 5.0\n| 1.1.1-1 | server | asks | `m::gone` |\n\
                    | 1.1.1-2 | client | asks | client only |\n| 1.1.1-3 | server | asks |  |\n";
    let (expected, problems) = regenerate(document, &proofs);
    assert!(expected.contains("| 1.1.1-1 | server | asks | `m::t` |"));
    assert!(expected.contains("| 1.1.1-2 | client | asks | client only |"));
    assert!(problems.iter().any(|problem| problem.contains("1.1.1-3")));
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("251 statements, 3 are listed"))
    );
}
