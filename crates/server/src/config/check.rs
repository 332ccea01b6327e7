//! Whether the files that a configuration names can be used.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use punctual_auth::{Acl, FileError, PasswordFile, Secret};
use punctual_net::tls::TlsAcceptor;

use super::durability::DurableRule;
use super::keys::Brokers;
use super::origin::Origin;
use super::overflow::{QueueRule, SessionRule};
use super::problem::{Problem, Problems};
use super::rule::Rule;
use super::secrecy::exposure;
use super::{Config, Listener, Neighbour};

/// Reads every file that the configuration names. Returns what is only worth
/// a warning.
///
/// # Errors
///
/// Every file that is not there or cannot be parsed, and every bad line of
/// the password and ACL files.
pub fn check_files(config: &Config) -> Result<Vec<Problem>, Problems> {
    let mut problems = Problems::default();
    let mut warnings = Vec::new();
    for (i, listener) in config.listeners.iter().enumerate() {
        check_certificates(listener, i, &mut problems, &mut warnings);
        // Only a warning: the file may be checked on another machine.
        if let Err(error) = listener.address.resolve() {
            warnings.push(Problem {
                origin: None,
                key: format!("listener.{i}.address"),
                value: Some(listener.address.to_string()),
                what: format!("the host is not known here: {error}"),
                remedy: "write an IP address, or * for all addresses of the machine".into(),
            });
        }
    }
    let mut hidden = |key: &str, rule: String, first: String| {
        warnings.push(Problem {
            origin: None,
            key: key.into(),
            value: Some(rule),
            what: format!("it never applies: {first} comes before it"),
            remedy: "the first rule that fits counts; put narrower ones first, \
                     or leave this one out"
                .into(),
        });
    };
    for (i, rule) in config.egress.rules.iter().enumerate() {
        if let Some(first) = Rule::hidden_by(&config.egress.rules, i) {
            hidden("egress.rules", rule.to_string(), first.to_string());
        }
    }
    for (i, rule) in config.queue.rules.iter().enumerate() {
        if let Some(first) = QueueRule::hidden_by(&config.queue.rules, i) {
            hidden("queue.rules", rule.to_string(), first.to_string());
        }
    }
    for (i, rule) in config.queue.sessions.iter().enumerate() {
        if let Some(first) = SessionRule::hidden_by(&config.queue.sessions, i) {
            hidden("queue.sessions", rule.to_string(), first.to_string());
        }
    }
    for (i, rule) in config.store.rules.iter().enumerate() {
        if let Some(first) = DurableRule::hidden_by(&config.store.rules, i) {
            hidden("store.rules", rule.to_string(), first.to_string());
        }
    }
    let auth = &config.auth;
    let needs_right = config.mesh.enabled && config.mesh.secret_file.is_none();
    let admits = |listener: &Listener| needs_right && listener.brokers != Brokers::Deny;
    let mut common = config.listeners.iter().filter(|it| it.acl_file.is_none());
    let files = Files {
        passwords: &auth.password_file,
        acl: &auth.acl_file,
        for_brokers: common.any(admits),
    };
    check_auth("auth", &files, &mut problems, &mut warnings);
    for (i, listener) in config.listeners.iter().enumerate() {
        let files = Files {
            passwords: &listener.password_file,
            acl: &listener.acl_file,
            for_brokers: admits(listener),
        };
        let section = format!("listener.{i}");
        check_auth(&section, &files, &mut problems, &mut warnings);
    }
    check_mesh(config, &mut problems);
    if let Some(path) = &config.server.data
        && path.exists()
        && !path.is_dir()
    {
        problems.push(unusable(
            path,
            "server.data",
            "this is not a directory".into(),
            "name a directory",
        ));
    }
    problems.into_result()?;
    warnings.extend(secrets(config));
    warnings.extend(clear_passwords(config));
    Ok(warnings)
}

/// The secret of the mesh.
fn check_mesh(config: &Config, problems: &mut Problems) {
    if let Some(path) = &config.mesh.secret_file
        && let Some(text) = text_of(path, "mesh.secret_file", problems)
        && let Err(error) = Secret::parse(&text)
    {
        problems.push(in_line(path, error));
    }
}

/// Secrets that every user of the machine can read.
fn secrets(config: &Config) -> Vec<Problem> {
    let (auth, mesh) = (&config.auth, &config.mesh);
    let listeners = config.listeners.iter().enumerate();
    let own = listeners.flat_map(|(i, listener)| {
        [
            ("key", &listener.key),
            ("password_file", &listener.password_file),
        ]
        .map(|(key, file)| (format!("listener.{i}.{key}"), file))
    });
    let files = [
        ("auth.password_file", &auth.password_file),
        ("server.http_token_file", &config.server.http_token_file),
        ("mesh.secret_file", &mesh.secret_file),
        ("mesh.password_file", &mesh.password_file),
        ("mesh.key_file", &mesh.key_file),
        // Passwords of other brokers are in it.
        ("mesh.bridges", &mesh.bridges),
        ("admission.srt_key", &config.admission.srt_key),
    ];
    let files = files.into_iter().map(|(key, file)| (key.to_owned(), file));
    let exposed = own.chain(files).filter_map(|(key, file)| {
        let file = file.as_deref()?;
        let what = exposure(file)?;
        Some(unusable(file, &key, what, "let nobody else read the file"))
    });
    exposed.collect()
}

/// Neighbours to which the secret or the password would go in clear: they are not connected, unless
/// that is allowed.
fn clear_passwords(config: &Config) -> Vec<Problem> {
    let mesh = &config.mesh;
    if !mesh.enabled || mesh.secret_file.is_none() && mesh.password_file.is_none() {
        return Vec::new();
    }
    let elsewhere = mesh.neighbours.iter().filter(|it| it.is_exposed());
    let problem = |neighbour: &Neighbour| {
        let tls = format!("write tls://{}", neighbour.target());
        let (what, remedy) = match mesh.clear_password {
            true => (
                "whoever is on the way there reads this broker's password and all messages",
                format!("{tls} where the network is not trusted"),
            ),
            false => (
                "whoever is on the way there would read this broker's password; unless it is this \
                 machine it is not connected",
                format!("{tls}, or set mesh.clear_password = true where the network is trusted"),
            ),
        };
        Problem {
            origin: None,
            key: "mesh.neighbours".into(),
            value: Some(format!("{:?}", neighbour.address)),
            what: what.into(),
            remedy,
        }
    };
    elsewhere.map(problem).collect()
}

/// What a section says about who clients are, and what they may do.
struct Files<'a> {
    passwords: &'a Option<PathBuf>,
    acl: &'a Option<PathBuf>,
    /// Whether brokers may connect by a right that they have here, and by nothing else.
    for_brokers: bool,
}

/// Reads the password and ACL files that a section names.
fn check_auth(
    section: &str,
    files: &Files<'_>,
    problems: &mut Problems,
    warnings: &mut Vec<Problem>,
) {
    if let Some(path) = files.passwords
        && let Some(text) = text_of(path, &format!("{section}.password_file"), problems)
        && let Err(errors) = PasswordFile::parse(&text)
    {
        let errors = errors.into_iter();
        errors.for_each(|error| problems.push(in_line(path, error)));
    }
    if let Some(path) = files.acl
        && let Some(text) = text_of(path, &format!("{section}.acl_file"), problems)
    {
        match Acl::parse(&text) {
            Ok(acl) => {
                if !acl.has_brokers() && files.for_brokers {
                    warnings.push(unusable(
                        path,
                        &format!("{section}.acl_file"),
                        "no user has a line `broker`: no broker of the mesh can connect here"
                            .into(),
                        "add one below the name of each broker's user, or set mesh.secret_file",
                    ));
                }
                let found = acl.warnings().iter().cloned();
                warnings.extend(found.map(|error| in_line(path, error)));
            }
            Err(errors) => {
                let errors = errors.into_iter();
                errors.for_each(|error| problems.push(in_line(path, error)));
            }
        }
    }
}

/// Loads certificates and keys as the server does.
fn check_certificates(
    listener: &Listener,
    index: usize,
    problems: &mut Problems,
    warnings: &mut Vec<Problem>,
) {
    let Some(options) = listener.tls() else {
        return;
    };
    let problem = |what, remedy: &str| Problem {
        origin: None,
        key: format!("listener.{index}"),
        value: None,
        what,
        remedy: remedy.into(),
    };
    match TlsAcceptor::load(&options) {
        // It says itself which file it is and what to do.
        Err(error) => problems.push(problem(
            error.to_string(),
            "the keys certificate, key, client_ca and client_crl name the files",
        )),
        Ok(acceptor) if acceptor.expires() < SystemTime::now() => warnings.push(problem(
            format!("{} has expired", options.certificate.display()),
            "have the certificate issued again",
        )),
        Ok(_) => {}
    }
}

fn text_of(path: &Path, key: &str, problems: &mut Problems) -> Option<String> {
    match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) => {
            problems.push(unusable(
                path,
                key,
                format!("the file cannot be read: {error}"),
                "correct the path, or let the user that runs punctual read the file",
            ));
            None
        }
    }
}

fn unusable(path: &Path, key: &str, what: String, remedy: &str) -> Problem {
    Problem {
        origin: None,
        key: key.into(),
        value: Some(format!("{:?}", path.display().to_string())),
        what,
        remedy: remedy.into(),
    }
}

fn in_line(path: &Path, error: FileError) -> Problem {
    Problem {
        origin: Some(Origin::File {
            path: path.into(),
            line: error.line,
        }),
        key: String::new(),
        value: None,
        what: format!("{} {:?} {}", error.field, error.value, error.problem),
        remedy: error.remedy.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn keys(problems: &[Problem]) -> Vec<&str> {
        problems
            .iter()
            .map(|problem| problem.key.as_str())
            .collect()
    }

    #[test]
    fn secrets_that_every_user_can_read_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = Some(file.path().to_path_buf());
        let mut config = Config::default();
        config.listeners[0].key.clone_from(&path);
        config.listeners[0].password_file.clone_from(&path);
        config.auth.password_file.clone_from(&path);
        config.server.http_token_file.clone_from(&path);
        config.mesh.secret_file.clone_from(&path);
        config.mesh.password_file.clone_from(&path);
        config.mesh.key_file.clone_from(&path);
        config.mesh.bridges.clone_from(&path);
        config.admission.srt_key = path;
        assert_eq!(keys(&secrets(&config)), [""; 0]);
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o604)).unwrap();
        let expected = [
            "listener.0.key",
            "listener.0.password_file",
            "auth.password_file",
            "server.http_token_file",
            "mesh.secret_file",
            "mesh.password_file",
            "mesh.key_file",
            "mesh.bridges",
            "admission.srt_key",
        ];
        assert_eq!(keys(&secrets(&config)), expected);
    }

    #[test]
    fn neighbours_to_which_passwords_would_go_in_clear_are_named() {
        let mut config = Config::default();
        config.mesh.enabled = true;
        let neighbours = [
            "a:1883",
            "tls://a:8883",
            "127.0.0.1:1",
            "localhost:1",
            "[::1]:1",
            "10.0.0.1:1",
        ];
        config.mesh.neighbours = neighbours.map(|text| text.parse().unwrap()).into();
        assert!(clear_passwords(&config).is_empty());
        let mut named = |password: bool, clear| {
            let file = Some("p".into());
            let mesh = &mut config.mesh;
            (mesh.secret_file, mesh.password_file) = match password {
                true => (None, file),
                false => (file, None),
            };
            mesh.clear_password = clear;
            let named = clear_passwords(&config);
            let values: Vec<_> = named.iter().filter_map(|it| it.value.as_deref()).collect();
            assert_eq!(values, ["\"a:1883\"", "\"10.0.0.1:1\""]);
            named.iter().all(|it| it.what.contains("not connected"))
        };
        for password in [false, true] {
            assert!(named(password, false));
            assert!(!named(password, true));
        }
    }
}
