//! Whether the files that a configuration names can be used.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use punctual_auth::{Acl, FileError, PasswordFile, Secret};
use punctual_net::tls::TlsAcceptor;

use super::document::Origin;
use super::durability::DurableRule;
use super::keys::Brokers;
use super::problem::{Problem, Problems};
use super::rule::Rule;
use super::secrecy::exposure;
use super::{Config, Listener};

/// Reads every file that the configuration names. Returns what is only worth
/// a warning.
///
/// # Errors
///
/// Every file that is not there or cannot be parsed, and every bad line of
/// the password and ACL files.
pub(crate) fn check_files(config: &Config) -> Result<Vec<Problem>, Problems> {
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
            remedy: "the first rule that matches a topic counts; put narrower filters first, \
                     or leave this one out"
                .into(),
        });
    };
    for (i, rule) in config.egress.rules.iter().enumerate() {
        if let Some(first) = Rule::hidden_by(&config.egress.rules, i) {
            hidden("egress.rules", rule.to_string(), first.to_string());
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
    check_mesh(config, &mut problems, &mut warnings);
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
    Ok(warnings)
}

/// The secrets of the mesh, and who may read them.
fn check_mesh(config: &Config, problems: &mut Problems, warnings: &mut Vec<Problem>) {
    let keys = &config.mesh;
    let files = [
        ("mesh.secret_file", &keys.secret_file),
        ("mesh.password_file", &keys.password_file),
    ];
    for (key, path) in files {
        if let Some(path) = path
            && let Some(what) = exposure(path)
        {
            warnings.push(unusable(path, key, what, "let nobody else read the file"));
        }
    }
    if let Some(path) = &keys.secret_file
        && let Some(text) = text_of(path, "mesh.secret_file", problems)
        && let Err(error) = Secret::parse(&text)
    {
        problems.push(in_line(path, error));
    }
    let has_password = keys.secret_file.is_some() || keys.password_file.is_some();
    let exposed = keys
        .neighbours
        .iter()
        .filter(|it| keys.enabled && has_password && it.is_exposed());
    warnings.extend(exposed.map(|neighbour| Problem {
        origin: None,
        key: "mesh.neighbours".into(),
        value: Some(format!("{:?}", neighbour.address)),
        what: "whoever is on the way there reads this broker's password and all messages".into(),
        remedy: format!(
            "write tls://{} where the network is not trusted",
            neighbour.target()
        ),
    }));
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
