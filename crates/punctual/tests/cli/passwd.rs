//! `punctual passwd`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use punctual_auth::{PasswordFile, Verdict};
use tempfile::{TempDir, tempdir};

use crate::{run, run_with};

fn place() -> (TempDir, PathBuf) {
    let directory = tempdir().unwrap();
    let file = directory.path().join("passwd");
    (directory, file)
}

fn verify(file: &Path, user: &str, password: &str) -> Verdict {
    let users = PasswordFile::parse(&fs::read_to_string(file).unwrap()).unwrap();
    users.verify(user, password.as_bytes())
}

fn add(file: &Path, user: &str, password: &str) -> String {
    let file = file.to_str().unwrap();
    run(["passwd", "-b", file, user, password]).ok()
}

fn create(file: &Path, user: &str, password: &str) {
    let path = file.to_str().unwrap();
    run(["passwd", "-c", "-b", path, user, password]).ok();
}

#[test]
fn users_are_added_changed_and_removed() {
    let (_directory, file) = place();
    create(&file, "alice", "one");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(verify(&file, "alice", "one"), Verdict::Accepted);
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .starts_with("alice:$argon2id$")
    );
    assert_eq!(add(&file, "bob", "two"), "bob added\n");
    assert_eq!(add(&file, "alice", "three"), "alice has a new password\n");
    assert_eq!(verify(&file, "alice", "one"), Verdict::WrongPassword);
    assert_eq!(verify(&file, "alice", "three"), Verdict::Accepted);
    assert_eq!(verify(&file, "bob", "two"), Verdict::Accepted);
    let path = file.to_str().unwrap();
    assert_eq!(run(["passwd", "-D", path, "bob"]).ok(), "bob removed\n");
    assert_eq!(verify(&file, "bob", "two"), Verdict::UnknownUser);
    run(["passwd", "-D", path, "bob"]).fails(1, &["there is no user \"bob\""]);
}

#[test]
fn the_password_is_read_from_standard_input() {
    let (_directory, file) = place();
    let path = file.to_str().unwrap();
    run_with(["passwd", "-c", path, "alice"], "with space \r\nnot this\n").ok();
    assert_eq!(verify(&file, "alice", "with space "), Verdict::Accepted);
    run(["passwd", path, "bob"]).fails(1, &["the password is empty"]);
    assert_eq!(verify(&file, "bob", ""), Verdict::UnknownUser);
}

#[test]
fn two_users_with_one_password_have_different_hashes() {
    let (_directory, file) = place();
    create(&file, "alice", "same");
    add(&file, "bob", "same");
    let text = fs::read_to_string(&file).unwrap();
    let hashes: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .collect();
    assert_eq!(hashes.len(), 2);
    assert_ne!(hashes[0].1, hashes[1].1);
}

#[test]
fn mode_comments_links_and_other_users_stay() {
    let (directory, file) = place();
    create(&file, "alice", "one");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("# users of the plant\n{text}")).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let link = directory.path().join("link");
    symlink("passwd", &link).unwrap();
    add(&link, "bob", "two");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
    let changed = fs::read_to_string(&file).unwrap();
    assert!(changed.starts_with(&format!("# users of the plant\n{text}bob:$argon2id$")));
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "nothing temporary is left: {left:?}");
}

#[test]
fn creating_overwrites() {
    let (_directory, file) = place();
    create(&file, "alice", "one");
    create(&file, "bob", "two");
    assert_eq!(verify(&file, "alice", "one"), Verdict::UnknownUser);
    assert_eq!(verify(&file, "bob", "two"), Verdict::Accepted);
}

#[test]
fn wrong_input_changes_nothing() {
    let (directory, file) = place();
    let path = file.to_str().unwrap();
    run(["passwd", "-b", path, "a", "b"]).fails(1, &["does not exist; -c makes it"]);
    assert!(!file.exists());
    create(&file, "alice", "one");
    let before = fs::read_to_string(&file).unwrap();
    run(["passwd", "-b", path, "a:b", "p"]).fails(1, &["\"a:b\"", "colon"]);
    run(["passwd", "-b", path, "", "p"]).fails(1, &["is empty"]);
    run(["passwd", "-b", path, "bob", ""]).fails(1, &["the password is empty"]);
    run(["passwd", "-b", path, "bob"]).fails(2, &["PASSWORD"]);
    run(["passwd", path, "bob", "p"]).fails(2, &["-b"]);
    run(["passwd", "-D", "-c", path, "bob"]).fails(2, &["-c"]);
    run(["passwd"]).fails(2, &["<FILE>"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), before);

    fs::write(&file, "# mine\nalice:plain\n").unwrap();
    run(["passwd", "-b", path, "bob", "p"]).fails(1, &["is left as it is", "line 2"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\nalice:plain\n");

    let nowhere = directory.path().join("no/passwd");
    let nowhere = nowhere.to_str().unwrap();
    run(["passwd", "-c", "-b", nowhere, "a", "b"]).fails(1, &["cannot be written"]);
}
