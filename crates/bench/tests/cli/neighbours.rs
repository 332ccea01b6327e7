//! `punctual bench neighbours --units`: the work that each kind of neighbour has the broker do in one
//! piece, which does not depend on time.

use tempfile::tempdir;

use super::run;

#[test]
fn no_neighbour_has_a_longer_piece_of_work_done() {
    let place = tempdir().unwrap();
    let directory = place.path().display().to_string();
    let run = run(["neighbours", "--units", "--directory", &directory]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    // They have done what they are for.
    for (kind, work) in [
        ("subscribe", "filters"),
        ("unsubscribe", "filters"),
        ("retained", "retained_lookup"),
        ("reconnect-retained", "retained_lookup"),
        ("reload", "rights"),
        ("ends", "session_end"),
    ] {
        let begin = format!("| {kind} |");
        let row = run.out.lines().find(|line| line.starts_with(&begin));
        assert!(row.unwrap().contains(work), "{kind}: {}", run.out);
    }
}
