//! Hashes written by `mosquitto_passwd` 2.0.11 and by libargon2 are the known answers here;
//! `tests/mosquitto.rs` makes fresh ones.

use proptest::prelude::*;

use super::*;

/// `mosquitto_passwd -b pw alice secret`.
const ALICE: &str = "$7$101$b8hMz2r7XZMIQVCw$ad3+cdUCAOQp7oT12vHT187kEPkD/gh+90qFkVmwfMMmCpEILu1aXRQ2Y4bSoD1+Ve5+KFTibd6L4wH71/aDog==";
/// `mosquitto_passwd -H sha512 -b pw bob 'pa$$ wörd'`.
const BOB: &str = "$6$LNcnSouNjSr5gHWy$FPnRPTS8sozgQ64olYHDC5gmUvoZoPY0/3m8nBA9Yh6gFFUjF5kGJE5kfPXZcB+7eV9xx49TTXc5HqSKYADFow==";
/// `mosquitto_passwd -b pw empty ''`.
const EMPTY: &str = "$7$101$B0tBCe5mcI/0uYg3$dfqpshQS8baK0rmdTpTbx7/MDz26ZxWd1oGSsehiLZIlWT0s0pG1LaDD5hpZ7YfQFGZC0tN6G5uegEmEC/vAVA==";
/// Password "secret" by libargon2 with the parameters, salt and hash lengths of mosquitto 2.1.
const MOSQUITTO_2_1: &str = "$argon2id$v=19$m=47104,t=1,p=1$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw$jN8KVtBuy9rOg+xx4HEO7K//Ei2hf4aegEDgCD4okj4rugUys2dVUsAyHcBFDFrGlWl198NIEs4dtHiTXPgqvA";
/// Password "secret" by libargon2: cheap, four lanes, the shortest salt.
const CHEAP: &str =
    "$argon2id$v=19$m=64,t=3,p=4$AAECAwQFBgc$VDRz54NkbdPJWyjBmqRUN5yUu6hCK318cxGuswwUh6w";
/// Password "pa$$ wörd", salt 0..16, by libargon2 with the parameters of [`hash_argon2id`].
const OURS: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAECAwQFBgcICQoLDA0ODw$qKwsAJc2vidG9LF1q1lxFENdfdDyJg/G9ggDUuuYK+s";

fn file(text: &str) -> PasswordFile {
    PasswordFile::parse(text).expect(text)
}

fn only_error(text: &str) -> FileError {
    let mut errors = PasswordFile::parse(text).expect_err(text);
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

#[test]
fn all_three_formats_verify() {
    let passwords = file(&format!(
        "alice:{ALICE}\nbob:{BOB}\ncarol:{MOSQUITTO_2_1}\ndave:{CHEAP}\nerin:{OURS}\n"
    ));
    for (user, password) in [
        ("alice", "secret"),
        ("bob", "pa$$ wörd"),
        ("carol", "secret"),
        ("dave", "secret"),
        ("erin", "pa$$ wörd"),
    ] {
        assert_eq!(
            passwords.verify(user, password.as_bytes()),
            Verdict::Accepted,
            "{user}"
        );
        for wrong in ["", "Secret", "secret ", "pa$$ word"] {
            assert_eq!(
                passwords.verify(user, wrong.as_bytes()),
                Verdict::WrongPassword,
                "{user}"
            );
        }
    }
    assert_eq!(passwords.verify("mallory", b"secret"), Verdict::UnknownUser);
    assert_eq!(passwords.verify("Alice", b"secret"), Verdict::UnknownUser);
    assert_eq!(passwords.verify("", b""), Verdict::UnknownUser);
}

#[test]
fn new_hashes_are_those_of_libargon2() {
    let salt = std::array::from_fn(|index| index as u8);
    assert_eq!(hash_argon2id("pa$$ wörd".as_bytes(), salt), OURS);
}

#[test]
fn an_empty_password_is_never_accepted() {
    assert_eq!(
        file(&format!("u:{EMPTY}")).verify("u", b""),
        Verdict::WrongPassword
    );
}

#[test]
fn a_file_without_users_accepts_nobody() {
    let passwords = file("# nobody yet\n\n");
    assert_eq!(passwords.verify("alice", b"secret"), Verdict::UnknownUser);
    assert_eq!(passwords.users().count(), 0);
}

#[test]
fn an_unknown_user_always_pays_for_the_same_entry() {
    let passwords = file(&format!(
        "# comment\nalice:{ALICE}\n\nbob:{BOB}\ndave:{CHEAP}\n# end\n"
    ));
    let entries: Vec<&StoredHash> = (0..6).filter_map(|line| passwords.stored(line)).collect();
    let mut seen = vec![false; entries.len()];
    for number in 0..200 {
        let name = format!("nobody{number}");
        let decoy = passwords.decoy(&name).expect("the file has users");
        assert!(std::ptr::eq(
            decoy,
            passwords.decoy(&name).expect("the file has users")
        ));
        let at = entries.iter().position(|entry| std::ptr::eq(*entry, decoy));
        seen[at.expect("a decoy is an entry of the file")] = true;
    }
    assert_eq!(
        seen, [true; 3],
        "every kind of entry stands in for some name"
    );
}

#[test]
fn text_comes_back_and_edits_keep_the_rest() {
    let text =
        format!("# staff\nalice:{ALICE}\n\n# machines\nbob:{BOB}\n#old:{BOB}\ncarol:{CHEAP}");
    let mut passwords = file(&text);
    assert_eq!(passwords.to_string(), format!("{text}\n"));
    assert_eq!(
        passwords.users().collect::<Vec<_>>(),
        ["alice", "bob", "carol"]
    );

    assert_eq!(passwords.set("bob", ALICE), Ok(true));
    assert_eq!(passwords.set("dave", CHEAP), Ok(false));
    assert!(passwords.remove("alice"));
    assert!(!passwords.remove("alice"));
    let expected =
        format!("# staff\n\n# machines\nbob:{ALICE}\n#old:{BOB}\ncarol:{CHEAP}\ndave:{CHEAP}\n");
    assert_eq!(passwords.to_string(), expected);
    for user in ["bob", "carol", "dave"] {
        assert!(passwords.verify(user, b"secret").is_accepted(), "{user}");
    }
    assert_eq!(passwords.verify("alice", b"secret"), Verdict::UnknownUser);
    assert_eq!(file(&expected).to_string(), expected);
}

#[test]
fn edits_refuse_what_would_break_the_file() {
    let mut passwords = file(&format!("# c\nalice:{ALICE}\n"));
    let before = passwords.to_string();
    for user in [
        "",
        "a:b",
        "a\nb",
        "a\0",
        " a",
        "#a",
        "\u{feff}a",
        &"a".repeat(65_536),
    ] {
        let error = passwords.set(user, CHEAP).expect_err(user);
        assert_eq!((error.line, error.field), (3, "user name"));
    }
    assert_eq!(
        passwords
            .set("alice", "secret")
            .expect_err("not a hash")
            .line,
        2
    );
    assert!(
        passwords
            .set("bob", &format!("{CHEAP}\nmallory:{CHEAP}"))
            .is_err()
    );
    assert_eq!(passwords.to_string(), before);
}

#[test]
fn every_bad_line_is_reported_and_no_secret_is_shown() {
    let text = format!(
        "alice:hunter2\nhunter2\n# fine\n:{CHEAP}\nbob:{BOB}\nbob:{ALICE}\ncarol:$6$hunter2\n"
    );
    let errors = PasswordFile::parse(&text).expect_err("five bad lines");
    assert_eq!(
        errors.iter().map(|error| error.line).collect::<Vec<_>>(),
        [1, 2, 4, 6, 7]
    );
    for error in &errors {
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    assert_eq!(
        errors[0].to_string(),
        "line 1: password hash of user \"alice\" is missing: the text after the colon does not \
         begin with '$'; a password file holds no plain passwords, set this one with `punctual \
         passwd`"
    );
    assert_eq!(
        errors[3].to_string(),
        "line 6: user name \"bob\" already has a password in line 5; remove one of the two lines"
    );
    assert!(!format!("{:?}", file(&format!("bob:{BOB}"))).contains("$6$"));
}

#[test]
fn incomplete_and_unknown_hashes_are_refused_with_the_reason() {
    let salt = "AAECAwQFBgc";
    let hash = &CHEAP[CHEAP.len() - 43..];
    for (text, reason) in [
        ("", "missing"),
        ("secret", "missing"),
        ("$5$salt$hash", "unknown kind"),
        ("$6", "no salt"),
        ("$6$c2FsdHNhbHQ=", "no hash"),
        ("$6$?$?", "salt that is not base64"),
        ("$6$c2FsdA==$AAAA", "salt of 4 bytes"),
        ("$6$c2FsdHNhbHQ=$AAAA", "hash of 3 bytes"),
        (&*format!("{BOB}$more"), "after its end"),
        ("$7$x$c2FsdHNhbHQ=$AAAA", "iterations from 1"),
        ("$7$0$c2FsdHNhbHQ=$AAAA", "iterations from 1"),
        ("$7$1000001$c2FsdHNhbHQ=$AAAA", "to 1000000"),
        ("$7$99999999999999999999$c2FsdHNhbHQ=$AAAA", "to 1000000"),
        (&*CHEAP.replace("argon2id", "argon2i"), "variant"),
        (&*CHEAP.replace("v=19", "v=16"), "version 19"),
        (
            &*format!("$argon2id$m=64,t=3,p=4${salt}${hash}"),
            "version 19",
        ),
        (&*CHEAP.replace("m=64", "m=7"), "m from 8"),
        (&*CHEAP.replace("m=64", "m=262145"), "to 262144"),
        (&*CHEAP.replace("m=64,t=3", "m=262144,t=5"), "too much work"),
        (&*CHEAP.replace("t=3", "t=1048577"), "t from 1"),
        (&*CHEAP.replace("t=3", "t=0"), "t from 1"),
        (&*CHEAP.replace("p=4", "p=17"), "p from 1"),
        (&*CHEAP.replace("p=4", "p=9"), "8 times its p"),
        (&*CHEAP.replace("p=4", "p=4,data=AAAA"), "other than"),
        (&*CHEAP.replace("m=64,t=3", "t=3,m=64"), "m from 8"),
        (&*CHEAP.replace(salt, "AAEC"), "salt of 3 bytes"),
        (&*CHEAP.replace(hash, "AAEC"), "hash of 3 bytes"),
        (&*CHEAP.replace(hash, &"A".repeat(88)), "hash of 66 bytes"),
    ] {
        let error = only_error(&format!("u:{text}"));
        assert!(error.problem.contains(reason), "{text}: {error}");
        assert_eq!((error.line, &*error.value), (1, "u"));
    }
}

#[test]
fn the_most_expensive_accepted_parameters_are_accepted() {
    for text in [
        CHEAP.replace("m=64,t=3", "m=262144,t=4"),
        CHEAP.replace("m=64,t=3", "m=32,t=32768"),
        CHEAP.replace("m=64,t=3,p=4", "m=128,t=1,p=16"),
        ALICE.replace("$101$", "$1000000$"),
    ] {
        file(&format!("u:{text}"));
    }
}

#[test]
fn mosquittos_liberties_with_space_are_taken() {
    let passwords = file(&format!(
        "\u{feff} alice : {ALICE} \r\ncarol smith:{CHEAP}\r\n  # x\n \n"
    ));
    assert_eq!(
        passwords.users().collect::<Vec<_>>(),
        ["alice", "carol smith"]
    );
    assert!(passwords.verify("alice", b"secret").is_accepted());
    assert!(passwords.verify("carol smith", b"secret").is_accepted());
}

#[test]
fn a_password_file_is_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<PasswordFile>();
}

proptest! {
    #[test]
    fn any_text_parses_or_fails_without_panic(text in "(?s).{0,60}") {
        if let Ok(passwords) = PasswordFile::parse(&text) {
            prop_assert_eq!(passwords.users().count(), 0);
        }
    }

    #[test]
    fn any_hash_parses_or_fails_without_panic(hash in "\\$(6|7|argon2id)(\\$[a-z0-9=,+/A-Z]{0,12}){0,5}") {
        let _ = PasswordFile::parse(&format!("u:{hash}"));
    }

    #[test]
    fn names_that_pass_the_check_survive_a_round_trip(user in ".{1,12}") {
        prop_assume!(check_user_name(&user).is_ok());
        let mut passwords = PasswordFile::default();
        prop_assert_eq!(passwords.set(&user, CHEAP), Ok(false));
        let again = file(&passwords.to_string());
        prop_assert_eq!(again.users().collect::<Vec<_>>(), vec![&*user]);
    }
}
