//! The commented default file and the reference, made from the declarations.
//!
//! In the file a key's line begins with `#` and no space, and an explanation
//! with `#` and a space: removing the former yields the defaults again.

use std::fmt::Write as _;

use super::environment;
use super::include;
use super::keys::{
    Admission, Auth, Egress, Limits, Listener, Log, Marking, Mesh, Mqtt, Queue, Realtime, Server,
    Store, Tcp,
};
use super::schema::{Effect, Key, Section};

/// A section, described.
struct Described {
    name: &'static str,
    header: String,
    doc: &'static [&'static str],
    keys: Vec<Key>,
}

fn described<S: Section>(header: String) -> Described {
    Described {
        name: S::NAME,
        header,
        doc: S::DOC,
        keys: S::keys(),
    }
}

/// All sections in the order in which the reference has them.
fn sections() -> [Described; 14] {
    fn table<S: Section>() -> Described {
        described::<S>(format!("[{}]", S::NAME))
    }
    [
        described::<Listener>(format!("[[{}]]", Listener::NAME)),
        table::<Server>(),
        table::<Auth>(),
        table::<Limits>(),
        table::<Mqtt>(),
        table::<Queue>(),
        table::<Egress>(),
        table::<Admission>(),
        table::<Tcp>(),
        table::<Marking>(),
        table::<Realtime>(),
        table::<Store>(),
        table::<Mesh>(),
        table::<Log>(),
    ]
}

/// Every key with its section.
pub fn key_names() -> impl Iterator<Item = String> {
    sections().into_iter().flat_map(|section| {
        let keys = section.keys.into_iter();
        keys.map(move |key| format!("{}.{}", section.name, key.name))
    })
}

/// The names that may stand at the top of a file.
pub(super) fn top_level() -> Vec<&'static str> {
    let sections = sections();
    let names = sections.iter().map(|section| section.name);
    names.chain([include::KEY]).collect()
}

const INCLUDE_DOC: [&str; 3] = [
    " A directory, relative to this file, whose *.toml files are read after it in",
    " the order of their names. Their values replace those of this file, their",
    " listeners are added.",
];

const INCLUDE_EXAMPLE: &str = "\"conf.d\"";

/// The default configuration as a commented TOML file.
pub fn toml() -> String {
    let mut out = String::from(
        "# Configuration of Punctual, with every key and its default.\n\
         #\n\
         # Remove the # before a key to set it. Durations have a unit (\"500us\", \"10ms\",\n\
         # \"30s\", \"5m\", \"1h\", \"7d\"), sizes too (\"64KiB\", \"1MiB\") or are a number of\n\
         # bytes. Check a file with `punctual config check FILE`.\n\n",
    );
    for line in INCLUDE_DOC {
        let _ = writeln!(out, "#{line}");
    }
    let _ = writeln!(out, "# Example: {} = {INCLUDE_EXAMPLE}", include::KEY);
    for section in sections() {
        out.push('\n');
        for line in section.doc {
            let _ = writeln!(out, "#{line}");
        }
        let _ = writeln!(out, "{}", section.header);
        for key in section.keys {
            out.push('\n');
            for line in key.doc {
                let _ = writeln!(out, "#{line}");
            }
            if let Some((low, high)) = &key.range {
                let _ = writeln!(out, "# From {low} to {high}{}.", or_word(&key));
            }
            let _ = match (&key.default, key.example) {
                (Some(default), _) => writeln!(out, "#{} = {default}", key.name),
                (None, example) => {
                    writeln!(
                        out,
                        "# Example: {} = {}",
                        key.name,
                        example.unwrap_or("...")
                    )
                }
            };
        }
    }
    out
}

/// The word that a ranged key also takes, as in `, or "unlimited"`.
fn or_word(key: &Key) -> &str {
    key.expects
        .rfind(", or \"")
        .map_or("", |at| &key.expects[at..])
}

/// The reference as Markdown.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         <!-- Made by `punctual config default --markdown`; edit the declarations in\n\
         crates/server/src/config/keys.rs instead. -->\n\n\
         `punctual serve --config FILE` reads a TOML file. Every key has a default, so a file\n\
         needs only what differs; `punctual config default` prints all of it as a file to start\n\
         from, `punctual config check FILE` looks for mistakes, `punctual config show` prints\n\
         what is in force, and `punctual config import mosquitto.conf` translates Mosquitto's.\n\n\
         Later layers replace earlier ones: defaults, the file, the files of its `include`\n\
         directory, environment variables, command line arguments.\n\n\
         An unknown key or a bad value is an error: the server does not start, and a running\n\
         one keeps the configuration that it has. Durations have a unit (`\"500us\"`, `\"10ms\"`,\n\
         `\"30s\"`, `\"5m\"`, `\"1h\"`, `\"7d\"`); sizes have one too (`\"64KiB\"`, `\"1MiB\"`, `\"5MB\"`) or\n\
         are a number of bytes. What has no bound is `\"unlimited\"`, what is switched off is\n\
         `\"off\"`; zero never stands for either. Paths are relative to the directory in which\n\
         the server is started, but that of `include` is relative to its file.\n\n\
         SIGHUP makes a running server read everything again, certificates, password and ACL\n\
         files included. Clients stay connected; what is agreed with a client when it connects\n\
         (limits that it was told, certificates) changes for new connections.\n\n",
    );
    let _ = writeln!(
        out,
        "Environment variables are named after the keys: `{0}LIMITS__MAX_PACKET_SIZE=1MiB`, and\n\
         `{0}LISTENER__0__ADDRESS=tcp://*:1883` for the first listener.\n",
        environment::PREFIX
    );
    let _ = writeln!(out, "## Top of the file\n\n### `{}`\n", include::KEY);
    paragraph(&mut out, &INCLUDE_DOC);
    let _ = writeln!(out, "- Value: a path, for example `{INCLUDE_EXAMPLE}`");
    out.push_str("- Default: absent\n- Since: 0.1.0\n");
    for section in sections() {
        let _ = writeln!(out, "\n## `{}`\n", section.header);
        paragraph(&mut out, section.doc);
        for key in &section.keys {
            let _ = writeln!(out, "### `{}.{}`\n", section.name, key.name);
            paragraph(&mut out, key.doc);
            facts(&mut out, key);
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

fn paragraph(out: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(out, "{}", line.trim_start());
    }
    out.push('\n');
}

fn facts(out: &mut String, key: &Key) {
    let _ = write!(out, "- Value: {}", key.expects);
    if let Some((low, high)) = &key.range {
        let _ = write!(out, "; from `{low}` to `{high}`");
    }
    let _ = match (&key.default, key.example) {
        (Some(default), _) => writeln!(out, "\n- Default: `{default}`"),
        (None, Some(example)) => {
            writeln!(out, ", for example `{example}`\n- Default: absent")
        }
        (None, None) => writeln!(out, "\n- Default: absent"),
    };
    let _ = writeln!(
        out,
        "- Takes effect: {}\n- Since: {}\n",
        match key.effect {
            Effect::Reload => "on reload (SIGHUP)",
            Effect::Restart => "at the next start",
        },
        key.since
    );
}
