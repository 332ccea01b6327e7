//! What must hold for any file that says who a client is and what it may do: the check of the fuzz
//! target `accounts`, which `crates/auth/tests/replay.rs` also runs over the seeds.

use punctual_auth::{Acl, FileError, PasswordFile, Secret};

/// Users of a file that are looked at, so that one input takes little time.
const USERS: usize = 4;

/// Takes the first line as a topic, the second as a client identifier, and the rest as an ACL file,
/// as a password file and as a file with a secret.
pub fn accounts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.splitn(3, '\n');
    let mut next = || parts.next().unwrap_or_default();
    let (topic, client, text) = (next(), next(), next());
    rights(topic, client, text);
    passwords(text);
    match Secret::parse(text) {
        Ok(secret) => assert!(secret.is(secret.as_bytes())),
        Err(error) => named(&[error], text),
    }
}

/// What is read decides, and what no line grants is not granted.
fn rights(topic: &str, client: &str, text: &str) {
    let acl = match Acl::parse(text) {
        Ok(acl) => acl,
        Err(errors) => return named(&errors, text),
    };
    named(acl.warnings(), text);
    if topic.is_empty() || topic.contains(['+', '#', '\0']) {
        return;
    }
    let lines = text.lines().map(str::trim);
    let users = lines.filter_map(|line| line.strip_prefix("user "));
    let users: Vec<_> = users.map(str::trim).take(USERS).collect();
    let all = users.into_iter().map(Some).chain([None, Some("nobody")]);
    let nothing = !text.contains("topic") && !text.contains("pattern");
    for user in all {
        let rights = acl.for_client(user, client);
        let (receive, publish) = (rights.may_receive(topic), rights.may_publish(topic));
        assert!(!nothing || !(receive || publish), "nothing grants this");
        assert!(!receive || rights.may_subscribe(topic), "{topic}");
        if receive && !topic.starts_with('$') {
            assert!(rights.may_subscribe("#"), "{topic}");
        }
        assert!(!rights.may_publish("$SYS/broker/uptime"));
        assert!(!rights.may_publish("$share/group/topic"));
        assert!(acl.has_brokers() || !rights.may_be_broker(client));
        let _ = (rights.rt_rights(), rights.rt_rights_on(topic));
    }
}

/// What is read is written as it was read; nothing shows a hash.
fn passwords(text: &str) {
    let mut file = match PasswordFile::parse(text) {
        Ok(file) => file,
        Err(errors) => return named(&errors, text),
    };
    let written = file.to_string();
    let again = PasswordFile::parse(&written).expect("what was written is read");
    // A carriage return at the end of a blank line or a comment is a part of the line's end.
    let plain = |text: &str| text.replace('\r', "");
    assert_eq!(plain(&again.to_string()), plain(&written));
    let users: Vec<_> = file.users().map(str::to_owned).collect();
    assert!(again.users().eq(users.iter().map(String::as_str)));
    for user in users.iter().take(USERS) {
        assert!(file.agrees_with(&again, user));
        assert!(file.remove(user) && !file.remove(user));
        assert!(!file.agrees_with(&again, user));
    }
}

/// Errors name a line that is there, and nothing in them acts on a terminal.
fn named(errors: &[FileError], text: &str) {
    for error in errors {
        let lines = text.lines().count().max(1);
        assert!((1..=lines).contains(&error.line), "{error} of {lines}");
        assert!(!error.problem.is_empty() && !error.remedy.is_empty());
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
    }
}
