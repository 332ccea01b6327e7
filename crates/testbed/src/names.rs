//! Names that others rely on, as a list in a file: whoever renames one sees it in the change.

use std::fs;
use std::path::Path;

use clap::Command;

/// Set to anything, it makes [`assert_names`] write the list instead of comparing with it.
const UPDATE: &str = "PUNCTUAL_UPDATE_NAMES";

/// The names of a command, its subcommands, their options and arguments, each with all words that
/// lead to it. Hidden ones are left out: nobody is told of them.
pub fn command_names(command: &Command) -> Vec<String> {
    let mut command = command.clone();
    command.build();
    let mut names = Vec::new();
    walk(&command, command.get_name(), &mut names);
    names
}

fn walk(command: &Command, words: &str, names: &mut Vec<String>) {
    names.push(words.to_owned());
    for argument in command.get_arguments().filter(|it| !it.is_hide_set()) {
        let short = argument.get_short().map(|short| format!("-{short}"));
        let long = argument.get_long().map(|long| format!("--{long}"));
        let spelled: Vec<String> = short.into_iter().chain(long).collect();
        let name = match spelled.is_empty() {
            true => format!("<{}>", argument.get_id()),
            false => spelled.join(", "),
        };
        names.push(format!("{words} {name}"));
    }
    let subcommands = command.get_subcommands().filter(|it| !it.is_hide_set());
    for subcommand in subcommands.filter(|it| it.get_name() != "help") {
        walk(
            subcommand,
            &format!("{words} {}", subcommand.get_name()),
            names,
        );
    }
}

/// Expects that `names`, sorted, are the lines of `file`.
///
/// # Panics
/// If they are not, with the difference and how to accept it.
#[track_caller]
pub fn assert_names(file: &Path, mut names: Vec<String>) {
    names.sort();
    names.dedup();
    let text = names.join("\n") + "\n";
    if std::env::var_os(UPDATE).is_some() {
        fs::write(file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        return;
    }
    let listed = fs::read_to_string(file).unwrap_or_default();
    let gone = listed
        .lines()
        .filter(|name| !names.iter().any(|it| it == name));
    let gone: Vec<String> = gone.map(|name| format!("- {name}")).collect();
    let come = names
        .iter()
        .filter(|name| !listed.lines().any(|it| it == *name));
    let come: Vec<String> = come.map(|name| format!("+ {name}")).collect();
    assert!(
        gone.is_empty() && come.is_empty(),
        "public names have changed:\n{}\nIf that is meant, run the test again with {UPDATE}=1, and \
         say it in CHANGELOG.md.",
        [gone, come].concat().join("\n")
    );
}
