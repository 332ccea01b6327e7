//! Tests of loading: layers, defaults, and what is said about mistakes.

use std::fs;
use std::time::Duration;

use super::keys::Anonymous;
use super::units::Size;
use super::value::Limit;
use super::*;

/// Loads `text` as a file named `test.toml`, with variables.
fn load_with(text: &str, variables: &[(&str, &str)]) -> Result<Config, Problems> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.toml");
    fs::write(&path, text).unwrap();
    let variables = variables
        .iter()
        .map(|(name, value)| (String::from(*name), String::from(*value)));
    Config::load(Some(&path), variables, &Arguments::default())
}

fn load(text: &str) -> Result<Config, Problems> {
    load_with(text, &[])
}

/// The problems of `text`, each as shown, without the directory of the file.
fn problems(text: &str) -> Vec<String> {
    shown(load(text))
}

fn shown(loaded: Result<Config, Problems>) -> Vec<String> {
    let problems = loaded.expect_err("the configuration has mistakes");
    let shown = problems.iter().map(ToString::to_string);
    shown
        .map(|text| match text.find("test.toml") {
            Some(at) => text[at..].to_owned(),
            None => text,
        })
        .collect()
}

#[test]
fn nothing_at_all_yields_the_defaults() {
    let loaded = Config::load(None, [], &Arguments::default());
    assert_eq!(loaded, Ok(Config::default()));
    assert_eq!(load(""), Ok(Config::default()));
}

#[test]
fn the_commented_default_file_yields_the_defaults() {
    assert_eq!(load(&toml()), Ok(Config::default()));
}

#[test]
fn the_default_file_with_every_key_uncommented_yields_the_defaults() {
    let mut uncommented = 0;
    let text: String = toml()
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => {
                uncommented += 1;
                format!("{rest}\n")
            }
            _ => format!("{line}\n"),
        })
        .collect();
    assert_eq!(load(&text), Ok(Config::default()));
    assert_eq!(uncommented, Config::default().values().len());
}

/// The reference with all examples but those of `without` as if they were set.
fn with_examples(without: impl Fn(&str) -> bool) -> Config {
    let text: String = toml()
        .lines()
        .map(|line| line.strip_prefix("# Example: ").unwrap_or(line))
        .filter(|line| !line.starts_with("include") && !without(line))
        .map(|line| format!("{line}\n"))
        .collect();
    let text = text.replace(
        "\n[[listener]]\n",
        "\n[[listener]]\naddress = \"wss://*\"\n",
    );
    load(&text).unwrap()
}

#[test]
fn examples_of_absent_keys_can_be_read() {
    // The table of a controller and flows of its own exclude each other.
    let config = with_examples(|line| line.starts_with("srt"));
    assert_eq!(config.auth.acl_file, Some("/etc/punctual/acl".into()));
    assert_eq!(
        config.listeners[0].key,
        Some("/etc/punctual/server.key".into())
    );
    let config = with_examples(|line| line.starts_with("network =") || line.starts_with("file ="));
    assert!(
        config
            .admission
            .srt
            .is_some_and(|servers| servers.starts_with("ssl:"))
    );
}

#[test]
fn the_reference_names_every_key_once() {
    let text = markdown();
    for (name, _) in Config::default().values() {
        let heading = format!("### `{}`\n", name.replace("listener.0", "listener"));
        assert_eq!(text.matches(&heading).count(), 1, "{heading}");
    }
}

#[test]
fn docs_configuration_md_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    assert!(
        fs::read_to_string(path).unwrap() == markdown(),
        "run `punctual config default --markdown > docs/configuration.md`"
    );
}

#[test]
fn every_kind_of_value_is_read() {
    let config = load(
        r#"
        [[listener]]
        address = "wss://*:443/mqtt"
        certificate = "a.crt"
        key = "a.key"
        allow_anonymous = true
        [[listener]]
        address = "tcp://127.0.0.1:1884"
        [server]
        shards = 3
        http = "off"
        connect_timeout = "500ms"
        [limits]
        max_packet_size = "64KiB"
        max_queued_bytes = 100_000
        max_sessions = "unlimited"
        [queue]
        full = "drop-oldest"
        [log]
        level = "debug"
        "#,
    )
    .unwrap();
    assert_eq!(config.listeners.len(), 2);
    assert_eq!(config.listeners[0].address.path, "/mqtt");
    assert_eq!(config.listeners[0].allow_anonymous, Anonymous::Everybody);
    assert_eq!(config.server.shards, Auto::Fixed(3));
    assert_eq!(config.server.http, Switch::Off);
    assert_eq!(config.server.connect_timeout, Duration::from_millis(500));
    assert_eq!(config.limits.max_packet_size, Size(65_536));
    assert_eq!(config.limits.max_queued_bytes, Limit::At(Size(100_000)));
    assert_eq!(config.limits.max_sessions, Limit::Unlimited);
    assert_eq!(config.log.level, LogLevel::Debug);
    let values = config.values();
    assert!(values.contains(&("queue.full".into(), "\"drop-oldest\"".into())));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
    assert_eq!(
        problems("\n[limits]\nmax_packet_sise = 1\n"),
        [
            "test.toml:3: limits.max_packet_sise: there is no such key\n  \
         remedy: did you mean limits.max_packet_size?"
        ]
    );
    assert_eq!(
        problems("[limtis]\n"),
        ["test.toml:1: limtis: there is no such key\n  remedy: did you mean limits?"]
    );
    assert_eq!(
        problems("[server]\ncolour = \"red\"\n"),
        ["test.toml:2: server.colour: there is no such key\n  \
         remedy: `punctual config default` lists every key"]
    );
}

#[test]
fn a_value_of_the_wrong_kind_is_named_with_what_is_expected() {
    assert_eq!(
        problems("[limits]\nmax_packet_size = \"ten\"\n"),
        [
            "test.toml:2: limits.max_packet_size = \"ten\": expected a size such as \"64KiB\" or \
         \"1MiB\", or a whole number of bytes\n  \
         remedy: correct the value, or leave the key out to have its default"
        ]
    );
    assert_eq!(
        problems("[server]\nconnect_timeout = 10\n"),
        [
            "test.toml:2: server.connect_timeout = 10: a duration needs a unit, for example \
         \"10s\" or \"10ms\"\n  remedy: write a duration such as \"500us\", \"10ms\", \"30s\" or \
         \"5m\""
        ]
    );
}

#[test]
fn a_value_out_of_range_is_named_with_the_range() {
    assert_eq!(
        problems("[limits]\nmax_packet_size = \"1GiB\"\n"),
        [
            "test.toml:2: limits.max_packet_size = \"1GiB\": the value is out of range\n  \
         remedy: write a value from \"64B\" to \"268435460B\""
        ]
    );
    assert_eq!(problems("[limits]\nmax_sessions = 0\n").len(), 1);
}

#[test]
fn all_problems_are_reported_at_once() {
    let found = problems(
        "[server]\nshards = 0\nrealtime = \"yes\"\n[log]\nlevel = \"loud\"\nwat = 1\n[queue]\nfull = 1\n",
    );
    assert_eq!(found.len(), 5, "{found:#?}");
    let text = load("[server]\nshards = 0\nrealtime = 3\n").unwrap_err();
    assert!(text.to_string().ends_with("\n2 problems"));
}

#[test]
fn broken_toml_is_reported_with_its_line() {
    let found = problems("[server]\nshards = = 2\n[log]\nlevel = \"loud\"\n");
    assert!(
        found[0].starts_with("test.toml:2: this is not TOML"),
        "{found:#?}"
    );
    assert!(found.iter().any(|problem| problem.contains("log.level")));
    assert!(problems("[server]\nshards = 1\nshards = 2\n")[0].starts_with("test.toml:3"));
}

#[test]
fn a_section_where_a_value_belongs_and_the_other_way_round() {
    assert!(problems("limits = 3\n")[0].contains("write [limits] on a line of its own"));
    assert!(problems("[listener]\naddress = \"tcp://*\"\n")[0].contains("[[listener]]"));
    assert!(problems("listener = []\n")[0].contains("[[listener]]"));
    assert!(problems("[log.level]\nx = 1\n")[0].contains("a value, not a table"));
    assert!(problems("[[log]]\nlevel = \"info\"\n")[0].contains("write [log]"));
}

#[test]
fn it_has_to_be_said_who_may_be_a_broker() {
    let mesh = "[mesh]\nenabled = true\n";
    let found = problems(mesh);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("mesh.secret_file") && found[0].contains("auth.acl_file"));
    let acl = "[auth]\nacl_file = \"acl\"\n";
    assert!(problems(&format!("{mesh}{acl}"))[0].contains("nothing proves who a user is"));
    for good in [
        "secret_file = \"secret\"\n",
        "[auth]\nacl_file = \"acl\"\npassword_file = \"users\"\n",
        "[[listener]]\nbrokers = \"deny\"\n",
        "[[listener]]\nacl_file = \"acl\"\npassword_file = \"users\"\n",
        "[[listener]]\nacl_file = \"acl\"\n[auth]\npassword_file = \"users\"\n",
    ] {
        assert!(load(&format!("{mesh}{good}")).is_ok(), "{good}");
    }
    // Names that one listener proves are no proof at another, and a closed one says nothing.
    let apart = "[[listener]]\nacl_file = \"acl\"\naddress = \"tcp://*:1\"\n\
         [[listener]]\npassword_file = \"users\"\naddress = \"tcp://*:2\"\n";
    let found = problems(&format!("{mesh}{apart}"));
    assert!(
        found[0].contains("nothing proves who a user is"),
        "{found:?}"
    );
    let closed = "[[listener]]\naddress = \"tcp://*:1\"\n[[listener]]\nbrokers = \"deny\"\n\
         acl_file = \"acl\"\npassword_file = \"users\"\naddress = \"tcp://*:2\"\n";
    let found = problems(&format!("{mesh}{closed}"));
    assert!(found[0].contains("nothing says which brokers"), "{found:?}");
    let only = "[[listener]]\nbrokers = \"only\"\nallow_anonymous = false\n";
    assert!(problems(only)[0].contains("mesh.enabled = true"));
    let good = format!("{mesh}secret_file = \"secret\"\n{only}");
    assert!(load(&good).is_ok());
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let problems = Config::load(Some(Path::new("/no/such.toml")), [], &Arguments::default());
    let text = problems.unwrap_err().to_string();
    assert!(text.contains("/no/such.toml cannot be read"), "{text}");
    assert!(text.contains("punctual config default"), "{text}");
}

#[test]
fn the_environment_replaces_the_file_and_adds_listeners() {
    let config = load_with(
        "[limits]\nmax_inflight = 5\nreceive_maximum = 6\n[[listener]]\naddress = \"tcp://*:1\"\n",
        &[
            ("PUNCTUAL__LIMITS__MAX_INFLIGHT", "7"),
            ("PUNCTUAL__LISTENER__0__ADDRESS", "tcp://*:2"),
            ("PUNCTUAL__LISTENER__0__ALLOW_ANONYMOUS", "true"),
            ("PUNCTUAL__LISTENER__1__ADDRESS", "ws://*:3"),
            ("PUNCTUAL__SERVER__REALTIME", "true"),
            ("PUNCTUAL_SERVICE_HOST", "not ours"),
        ],
    )
    .unwrap();
    assert_eq!(config.limits.max_inflight, 7);
    assert_eq!(config.limits.receive_maximum, 6);
    assert_eq!(config.listeners[0].address.to_string(), "tcp://*:2");
    assert_eq!(config.listeners[0].allow_anonymous, Anonymous::Everybody);
    assert_eq!(config.listeners[1].address.to_string(), "ws://*:3");
    assert!(config.server.realtime);
}

#[test]
fn listeners_of_the_environment_count_as_numbers() {
    let names: Vec<_> = (0..12)
        .map(|i| format!("PUNCTUAL__LISTENER__{i}__ADDRESS"))
        .collect();
    let values: Vec<_> = (0..12).map(|i| format!("tcp://*:{}", i + 1)).collect();
    let variables: Vec<_> = names
        .iter()
        .zip(&values)
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let config = load_with("", &variables).unwrap();
    let ports = config
        .listeners
        .iter()
        .map(|listener| listener.address.port);
    assert!(ports.eq(1..13));
}

#[test]
fn mistakes_in_the_environment_name_the_variable() {
    let variable = |name, value| shown(load_with("", &[(name, value)])).remove(0);
    assert!(
        variable("PUNCTUAL__LIMITS__MAX_INFLIGTH", "1")
            .starts_with("PUNCTUAL__LIMITS__MAX_INFLIGTH: limits.max_infligth: there is no such")
    );
    assert!(variable("PUNCTUAL__LOG__LEVEL", "loud").contains("log.level = loud: expected"));
    assert!(variable("PUNCTUAL__LISTENER__1__ADDRESS", "tcp://*").contains("there are 0"));
    assert!(variable("PUNCTUAL__LEVEL", "info").contains("PUNCTUAL__SECTION__KEY"));
    assert!(variable("PUNCTUAL__A__B__C__D", "info").contains("PUNCTUAL__SECTION__KEY"));
}

#[test]
fn arguments_replace_everything() {
    let value = |option, section, key, text: &str| (option, section, key, text.to_owned());
    let mut arguments = Arguments {
        listen: vec![ListenAddress::parse("tcp://127.0.0.1:9").unwrap()],
        values: vec![
            value("--http", "server", "http", "off"),
            value("--data", "server", "data", "d"),
            value("--shards", "server", "shards", "2"),
            value("--realtime", "server", "realtime", "true"),
            value("--log-level", "log", "level", "warn"),
        ],
        ..Arguments::default()
    };
    let variables = [("PUNCTUAL__LOG__LEVEL".to_owned(), "trace".to_owned())];
    let config = Config::load(None, variables.clone(), &arguments).unwrap();
    assert_eq!(config.listeners.len(), 1);
    assert_eq!(config.listeners[0].address.port, 9);
    assert_eq!(config.server.http, Switch::Off);
    assert_eq!(config.server.data, Some("d".into()));
    assert_eq!(config.server.shards, Auto::Fixed(2));
    assert!(config.server.realtime);
    assert_eq!(config.log.level, LogLevel::Warn);

    arguments.values = vec![value("--shards", "server", "shards", "0")];
    let found = shown(Config::load(None, variables, &arguments));
    assert!(found[0].starts_with("--shards: server.shards = 0: the value is out of range"));
}

#[test]
fn an_encrypted_listener_of_the_command_line_takes_its_certificate_from_there() {
    let mut arguments = Arguments {
        listen: vec![
            ListenAddress::parse("tls://*").unwrap(),
            ListenAddress::parse("tcp://*").unwrap(),
        ],
        ..Arguments::default()
    };
    let found = shown(Config::load(None, [], &arguments));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found[0].starts_with("--listen: listener.0.certificate"),
        "{found:#?}"
    );
    arguments.certificate = Some("a.crt".into());
    arguments.key = Some("a.key".into());
    let config = Config::load(None, [], &arguments).unwrap();
    assert_eq!(config.listeners[0].certificate, Some("a.crt".into()));
    assert_eq!(config.listeners[1].certificate, None);
}

#[test]
fn included_files_replace_values_and_add_listeners() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    fs::create_dir(directory.path().join("conf.d")).unwrap();
    write(
        "test.toml",
        "include = \"conf.d\"\n[limits]\nmax_inflight = 1\nreceive_maximum = 2\n[[listener]]\naddress = \"tcp://*:1\"\n",
    );
    write("conf.d/20.toml", "[limits]\nmax_inflight = 20\n");
    write(
        "conf.d/10.toml",
        "[limits]\nmax_inflight = 10\n[[listener]]\naddress = \"tcp://*:2\"\n",
    );
    write("conf.d/notes.txt", "not read");
    let path = directory.path().join("test.toml");
    let load = || Config::load(Some(&path), [], &Arguments::default());
    let config = load().unwrap();
    assert_eq!(config.limits.max_inflight, 20);
    assert_eq!(config.limits.receive_maximum, 2);
    let ports = config
        .listeners
        .iter()
        .map(|listener| listener.address.port);
    assert!(ports.eq([1, 2]));

    write("conf.d/20.toml", "\n[limits]\nmax_inflight = 0\n");
    let found = load().unwrap_err().to_string();
    assert!(
        found.contains("20.toml:3: limits.max_inflight = 0"),
        "{found}"
    );
    write("conf.d/20.toml", "include = \"x\"\n");
    let found = load().unwrap_err().to_string();
    assert!(found.contains("20.toml:1: include"), "{found}");
    write("test.toml", "include = \"nowhere\"\n");
    assert!(load().unwrap_err().to_string().contains("nowhere"));
    write("test.toml", "include = 1\n");
    assert!(
        load()
            .unwrap_err()
            .to_string()
            .contains("path of a directory")
    );
}

#[test]
fn combinations_that_cannot_work_are_refused() {
    for (text, words) in [
        (
            "[[listener]]\naddress = \"tls://*\"\nkey = \"k\"\n",
            "listener.0.certificate",
        ),
        ("[[listener]]\nkey = \"k\"\n", "test.toml:2: listener.0.key"),
        (
            "[[listener]]\nrequire_client_certificate = true\n",
            "is not encrypted",
        ),
        (
            "[[listener]]\nwebsocket_origins = [\"a\"]\n",
            "opens no WebSockets",
        ),
        (
            "[[listener]]\naddress = \"tls://*\"\ncertificate = \"c\"\nkey = \"k\"\nrequire_client_certificate = true\n",
            "client_ca",
        ),
        (
            "[[listener]]\n[[listener]]\n",
            "test.toml:2: listener.1.address",
        ),
        (
            "[[listener]]\nallow_anonymous = false\n",
            "nobody can connect",
        ),
        ("[mqtt]\nkeep_alive = \"1.5s\"\n", "whole number of seconds"),
        ("[limits]\nmax_queued_bytes = \"1MiB\"\n", "would never fit"),
    ] {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{text}{found:#?}");
        assert!(found[0].contains(words), "{text}{found:#?}");
    }
    let free_ports =
        "[[listener]]\naddress = \"tcp://*:0\"\n[[listener]]\naddress = \"tcp://*:0\"\n";
    assert!(load(free_ports).is_ok());
}

#[test]
fn without_a_word_only_this_machine_is_anonymous_and_only_without_passwords() {
    let who = |text: &str| {
        let config = load(text).unwrap();
        config.listeners[0].anonymous(&config.auth)
    };
    assert_eq!(who(""), Anonymous::Loopback);
    assert_eq!(who("[auth]\npassword_file = \"p\"\n"), Anonymous::Nobody);
    let everybody = "[[listener]]\nallow_anonymous = true\n[auth]\npassword_file = \"p\"\n";
    assert_eq!(who(everybody), Anonymous::Everybody);
}

#[test]
fn a_damaged_file_is_refused_or_read_and_never_ends_the_program() {
    let whole: String = toml().replace("\n#", "\n").replace("\n ", "\n# ");
    assert_eq!(load(&whole), Ok(Config::default()), "every key is set");
    let (mut read, mut refused) = (0, 0);
    for (at, _) in whole.char_indices().step_by(41) {
        for damage in ["", "\"", "[", "=", "\n", "9", "\u{0}", "é"] {
            let mut text = whole.clone();
            text.replace_range(at..at + 1, damage);
            let mut reader = Reader::default();
            let table = document::parse(&text, Path::new("test.toml"), &mut reader.problems);
            let config = Config::read(table, &mut reader);
            validate::validate(&config, &mut reader);
            match reader.problems.into_result() {
                Ok(()) => read += 1,
                Err(problems) => {
                    refused += 1;
                    let problems = problems.iter();
                    assert!({ problems }.all(|problem| !problem.remedy.is_empty()));
                }
            }
        }
    }
    assert!(read > 0 && refused > 0, "{read} {refused}");
}

#[test]
fn depth_takes_no_stack() {
    let many = 100_000;
    for text in [
        format!("x = {}{}\n", "[".repeat(many), "]".repeat(many)),
        format!("x = {}{}\n", "{a=".repeat(many), "}".repeat(many)),
        format!("{}x = 1\n", "a.".repeat(many)),
        format!("[{}x]\n", "a.".repeat(many)),
        format!("[[{}x]]\n", "a.".repeat(many)),
    ] {
        assert!(!problems(&text).is_empty());
    }
}

#[test]
fn what_needs_a_restart_is_named() {
    let before = Config::default();
    assert_eq!(before.restart_needed(&before), [""; 0]);
    let after = load("[server]\nshards = 2\ndata = \"d\"\n[limits]\nmax_sessions = 5\n").unwrap();
    assert_eq!(
        before.restart_needed(&after),
        ["server.shards", "server.data"]
    );
    let after = load("[[listener]]\n[[listener]]\naddress = \"tcp://*:1\"\n").unwrap();
    assert_eq!(before.restart_needed(&after), ["listener.1.address"]);
    assert_eq!(after.restart_needed(&before), ["listener.1.address"]);
}

#[test]
fn what_needs_a_restart_does_not_change_before_it() {
    let before = Config::default();
    let text =
        "[limits]\nmax_sessions = 5\n[egress]\npolicy = \"edf\"\noverflow = \"refuse-new\"\n";
    let new = load(text).unwrap();
    assert_eq!(before.restart_needed(&new), ["egress.policy"]);
    let in_effect = before.reloaded(&new);
    assert_eq!(in_effect.egress.policy, before.egress.policy);
    assert_eq!(in_effect.egress.overflow, new.egress.overflow);
    assert_eq!(in_effect.limits, new.limits);
    // Nothing else is pending, whatever is changed.
    assert_eq!(before.restart_needed(&in_effect), [""; 0]);
    assert_eq!(new.reloaded(&new), new);
}

/// Listeners have the order in which they were opened, and what the new configuration says of them.
#[test]
fn listeners_stay_in_the_order_in_which_they_were_opened() {
    let listener = |port: u8, more: &str| {
        format!("[[listener]]\naddress = \"tcp://127.0.0.1:{port}\"\n{more}")
    };
    let before = listener(1, "") + &listener(2, "password_file = \"old\"\n") + &listener(3, "");
    let new = listener(3, "password_file = \"new\"\ndurability = \"sync\"\n") + &listener(1, "");
    let opened = load(&before).unwrap().opened(&load(&new).unwrap());
    let ports = opened.iter().map(|it| it.address.port);
    assert_eq!(ports.collect::<Vec<_>>(), [1, 2, 3]);
    let files = opened.iter().map(|it| it.password_file.as_deref());
    let files: Vec<_> = files.map(|it| it.and_then(Path::to_str)).collect();
    assert_eq!(files, [None, Some("old"), Some("new")]);
    assert_eq!(opened[2].durability, None);
}
