//! `punctual passwd`: users of a password file, as `mosquitto_passwd` does it.
//!
//! The file is replaced in one step, so a broker that reads it meanwhile sees
//! the old one or the new one; its mode and owner stay as they are.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};

use clap::Args;
use punctual_auth::{PasswordFile, check_user_name, hash_argon2id};
use punctual_server::files::write_atomically;

use super::{Failure, print};

/// Arguments of `punctual passwd`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Make a new file. One that exists is overwritten.
    #[arg(short, conflicts_with = "delete")]
    create: bool,
    /// Take the password from the command line, where others may see it.
    #[arg(short, requires = "password", conflicts_with = "delete")]
    batch: bool,
    /// Remove the user.
    #[arg(short = 'D')]
    delete: bool,
    /// The password file.
    file: PathBuf,
    /// The user's name.
    user: String,
    /// The password, with -b. Without it you are asked for it; when standard
    /// input is not a terminal, its first line is taken.
    #[arg(requires = "batch")]
    password: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { file, user, .. } = arguments;
    check_user_name(user).map_err(|wrong| format!("the user name {user:?} {wrong}"))?;
    let mut users = match arguments.create {
        true => PasswordFile::default(),
        false => read(file)?,
    };
    let done = if arguments.delete {
        if !users.remove(user) {
            return Err(format!("{}: there is no user {user:?}", file.display()).into());
        }
        "removed"
    } else {
        let password = match &arguments.password {
            Some(password) => password.clone(),
            None => ask()?,
        };
        if password.is_empty() {
            return Err("the password is empty, and would never be accepted; choose one".into());
        }
        let mut salt = [0; 16];
        getrandom::fill(&mut salt)?;
        match users.set(user, &hash_argon2id(password.as_bytes(), salt))? {
            true => "has a new password",
            false => "added",
        }
    };
    write_atomically(file, &users.to_string())
        .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
    print(&format!("{user} {done}\n"))
}

fn read(file: &Path) -> Result<PasswordFile, Failure> {
    let place = file.display();
    let text = fs::read_to_string(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{place} does not exist; -c makes it"),
        _ => format!("{place} cannot be read: {error}"),
    })?;
    PasswordFile::parse(&text).map_err(|errors| {
        let lines: String = errors.iter().map(|error| format!("\n  {error}")).collect();
        format!("{place} is not a password file and is left as it is:{lines}").into()
    })
}

/// Asks for a password twice, or reads it from standard input.
fn ask() -> Result<String, Failure> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let mut line = String::new();
        stdin
            .lock()
            .read_line(&mut line)
            .map_err(|error| format!("the password cannot be read from standard input: {error}"))?;
        return Ok(line.trim_end_matches(['\r', '\n']).into());
    }
    let prompt = |text| {
        rpassword::prompt_password(text)
            .map_err(|error| format!("the terminal cannot be read: {error}; use -b"))
    };
    let password = prompt("Password: ")?;
    if prompt("Again: ")? != password {
        return Err("the two passwords differ; nothing was changed".into());
    }
    Ok(password)
}
