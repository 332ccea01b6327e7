//! Tests of the translation: what becomes of each kind of line.

use std::fs;
use std::time::Duration;

use super::*;
use crate::config::keys::{Anonymous, WhenFull};
use crate::config::units::Size;
use crate::config::value::Limit;
use crate::config::{Arguments, LogLevel, Switch};

/// Translates `text` and loads the result, which must have no mistakes.
fn loaded(text: &str) -> (Config, Vec<String>) {
    let (toml, notes) = translated(text);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("punctual.toml");
    fs::write(&path, &toml).unwrap();
    let config = Config::load(Some(&path), [], &Arguments::default());
    (config.unwrap_or_else(|e| panic!("{e}\n{toml}")), notes)
}

/// The TOML text and the notes, each without the directory of the file.
fn translated(text: &str) -> (String, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.conf");
    fs::write(&path, text).unwrap();
    let Imported { toml, notes } = import(&path).unwrap();
    let place = format!("{}/", directory.path().display());
    let notes = notes
        .iter()
        .map(|note| note.to_string().replace(&place, ""));
    (toml.replace(&place, ""), notes.collect())
}

fn addresses(config: &Config) -> Vec<String> {
    let listeners = config.listeners.iter();
    listeners
        .map(|listener| listener.address.to_string())
        .collect()
}

#[test]
fn an_empty_file_listens_on_this_machine_alone_as_mosquitto_2_does() {
    let (config, notes) = loaded("# nothing\n\n");
    assert_eq!(addresses(&config), ["tcp://localhost:1883"]);
    assert_eq!(config.listeners[0].allow_anonymous, Anonymous::Loopback);
    assert_eq!(notes, [""; 0]);
}

#[test]
fn listeners_and_their_options_are_translated() {
    let (config, notes) = loaded(
        "port 1884\nbind_address 127.0.0.1\npassword_file p\nacl_file a\n\
         listener 8883 ::1\ncertfile c\nkeyfile k\ncafile ca\ncrlfile crl\nrequire_certificate true\n\
         use_identity_as_username true\ntls_version tlsv1.3\nmax_connections 7\n\
         listener 9001\nprotocol websockets\nmax_connections -1\nsocket_domain ipv4\n\
         websockets_origin a\nwebsockets_origin b\nenable_proxy_protocol 1\n\
         listener 9883\nprotocol websockets\ncertfile c\nkeyfile k\n",
    );
    assert_eq!(notes, [""; 0]);
    assert_eq!(
        addresses(&config),
        [
            "tcp://127.0.0.1:1884",
            "tls://[::1]:8883",
            "ws://0.0.0.0:9001",
            "wss://*:9883"
        ]
    );
    let tls = &config.listeners[1];
    assert_eq!(tls.certificate, Some("c".into()));
    assert_eq!(tls.key, Some("k".into()));
    assert_eq!(tls.client_ca, Some("ca".into()));
    assert_eq!(tls.client_crl, Some("crl".into()));
    assert!(tls.require_client_certificate && tls.use_identity_as_username);
    assert_eq!(tls.max_connections, Limit::At(7));
    assert_eq!(config.listeners[2].max_connections, Limit::Unlimited);
    let origins = Some(vec!["a".into(), "b".into()]);
    assert_eq!(config.listeners[2].websocket_origins, origins);
    assert!(config.listeners[2].proxy_protocol);
    assert_eq!(config.auth.password_file, Some("p".into()));
    assert_eq!(config.auth.acl_file, Some("a".into()));
    let anonymous = config
        .listeners
        .iter()
        .map(|listener| listener.allow_anonymous);
    assert!(anonymous.into_iter().all(|who| who == Anonymous::Nobody));
}

#[test]
fn limits_are_translated_and_zero_becomes_a_word() {
    let (config, notes) = loaded(
        "listener 1883\nallow_anonymous true\nmessage_size_limit 1000\nmax_keepalive 600\n\
         max_inflight_messages 40\nmax_queued_messages 0\nmax_queued_bytes 2000000\n\
         persistent_client_expiration 2w\nqueue_qos0_messages true\nretain_available false\n\
         allow_zero_length_clientid false\nsys_interval 0\nmax_qos 1\nmax_topic_alias 9\n\
         global_max_connections 5\n",
    );
    assert_eq!(notes, [""; 0]);
    let limits = &config.limits;
    assert_eq!(limits.max_packet_size.0, 66_536);
    assert_eq!(limits.max_keep_alive, Limit::At(Duration::from_secs(600)));
    assert_eq!((limits.max_inflight, limits.receive_maximum), (40, 40));
    assert_eq!(limits.max_queued_messages, Limit::Unlimited);
    assert_eq!(limits.max_queued_bytes, Limit::At(Size(2_000_000)));
    let two_weeks = Duration::from_secs(14 * 86_400);
    assert_eq!(limits.max_session_expiry, Limit::At(two_weeks));
    assert_eq!(limits.topic_alias_maximum, 9);
    assert_eq!(limits.max_connections, Limit::At(5));
    assert!(config.queue.qos0_offline);
    assert!(!config.mqtt.retain);
    assert!(!config.mqtt.empty_client_id);
    assert_eq!(config.mqtt.maximum_qos, 1);
    assert_eq!(config.server.sys_interval, Switch::Off);
}

/// The result states the defaults of Mosquitto that differ from those of this broker: a full queue drops
/// new messages, no part of a queue is reserved, and sessions do not expire.
#[test]
fn what_mosquitto_does_without_a_line_is_written() {
    let (config, notes) = loaded("listener 1883\nallow_anonymous true\nmax_queued_messages 100\n");
    assert_eq!(notes, [""; 0]);
    assert_eq!(config.queue.full, WhenFull::DropNew);
    assert_eq!(config.queue.urgent_reserve, 0);
    assert_eq!(config.limits.max_queued_messages, Limit::At(100));
    assert_eq!(config.limits.max_session_expiry, Limit::Unlimited);
    let (config, _) = loaded("persistent_client_expiration 3d\n");
    let three_days = Duration::from_secs(3 * 86_400);
    assert_eq!(config.limits.max_session_expiry, Limit::At(three_days));
}

#[test]
fn the_log_and_persistence_are_translated() {
    let (config, notes) = loaded(
        "log_dest stderr\nlog_type error\nlog_type warning notice\nlog_type error\n\
         persistence true\npersistence_location /var/lib/mosquitto/\n",
    );
    assert_eq!(config.log.level, LogLevel::Info);
    // What is there is of another format.
    assert_eq!(config.server.data, None);
    let [first, second] = &notes[..] else {
        panic!("{notes:?}");
    };
    assert!(first.starts_with("m.conf:5: persistence true: "), "{first}");
    assert!(first.contains("server.data"), "{first}");
    assert!(
        second.starts_with("m.conf:6: persistence_location"),
        "{second}"
    );
    let (config, notes) = loaded("log_type all\npersistence false\n");
    assert_eq!(config.log.level, LogLevel::Debug);
    assert_eq!(notes, [""; 0]);
}

#[test]
fn lines_without_counterpart_are_noted_and_repeated_in_the_output() {
    let (toml, notes) = translated(
        "set_tcp_nodelay true\nconnection site\naddress a:1883\ntopic # both\nbridge_cafile x\n\
         log_dest file /var/log/m.log\nuser mosquitto\npsk_file f\nlisten 1883\nfoo bar\n",
    );
    for (line, word) in [
        ("m.conf:1: set_tcp_nodelay true:", "always"),
        ("m.conf:2: connection site:", "[mesh]"),
        ("m.conf:3: address a:1883:", "[mesh]"),
        ("m.conf:4: topic # both:", "[mesh]"),
        ("m.conf:5: bridge_cafile x:", "[mesh]"),
        ("m.conf:6: log_dest file /var/log/m.log:", "standard error"),
        ("m.conf:7: user mosquitto:", "start the service"),
        ("m.conf:8: psk_file f:", "certificates"),
        ("m.conf:9: listen 1883:", "is it listener?"),
        ("m.conf:10: foo bar:", "not an option"),
    ] {
        let note = notes.iter().find(|note| note.starts_with(line));
        let note = note.unwrap_or_else(|| panic!("{line} is not in {notes:#?}"));
        assert!(note.contains(word), "{note}");
        assert!(toml.contains(&format!("# {note}\n")), "{note}");
    }
    assert_eq!(notes.len(), 10, "{notes:#?}");
}

#[test]
fn secrets_are_not_repeated() {
    let (toml, notes) = translated("remote_password hush\nbridge_psk hush\nauth_opt_pass hush\n");
    assert_eq!(notes.len(), 3);
    assert!(!toml.contains("hush") && !notes.concat().contains("hush"));
}

#[test]
fn values_that_cannot_be_are_noted() {
    for (text, note) in [
        ("port x\n", "m.conf:1: port x: the port is not a number"),
        (
            "listener 0 /run/m.sock\nlistener 1\nallow_anonymous true\n",
            "no Unix sockets",
        ),
        (
            "max_keepalive soon\n",
            "m.conf:1: max_keepalive soon: the value is not a whole",
        ),
        (
            "max_keepalive 70000\n",
            "m.conf:1: limits.max_keep_alive = \"70000s\": the value is out",
        ),
        ("persistent_client_expiration 3x\n", "h, d, w, m or y"),
        ("persistent_client_expiration ä\n", "h, d, w, m or y"),
        ("persistence maybe\n", "not true or false"),
        (
            "listener 1\nallow_anonymous true\ntls_version tlsv1.1\n",
            "1.2",
        ),
        (
            "listener 1\nallow_anonymous true\nlistener 2\nprotocol mqttsn\n",
            "there are mqtt and websockets",
        ),
        ("socket_domain ipx\n", "ipv4 and ipv6"),
        ("enable_proxy_protocol 3\n", "versions 1 and 2"),
        ("log_type loud\n", "not a type of log"),
        (
            "max_connections 5\nlistener 1\nallow_anonymous true\n",
            "before the first `listener`",
        ),
        (
            "cafile ca\n",
            "m.conf:1: cafile ca: require_certificate is not true",
        ),
        (
            "listener 1\nallow_anonymous true\nmax_qos 1\nlistener 2\nmax_qos 1\n",
            "m.conf:5: max_qos 1: all",
        ),
    ] {
        let (_, notes) = loaded(text);
        assert_eq!(notes.len(), 1, "{text}{notes:#?}");
        assert!(notes[0].contains(note), "{text}{notes:#?}");
    }
}

#[test]
fn only_unusable_listeners_leave_the_default_one_with_a_note() {
    let (config, notes) = loaded("listener 0 /run/m.sock\n");
    assert_eq!(addresses(&config), ["tcp://localhost:1883"]);
    assert_eq!(notes.len(), 2);
    assert!(notes[1].contains("none is left"), "{notes:#?}");
}

#[test]
fn nobody_could_connect_is_said() {
    let (toml, notes) = translated("listener 1883\n");
    assert!(toml.contains("allow_anonymous = false"), "{toml}");
    assert!(notes[0].contains("nobody can connect"), "{notes:#?}");
    let (config, _) = loaded("listener 1883\n");
    assert_eq!(config.listeners[0].password_file, Some("/dev/null".into()));
}

#[test]
fn settings_per_listener_go_to_the_listener() {
    let (config, notes) = loaded(
        "per_listener_settings true\nlistener 1\nallow_anonymous true\nlistener 2\n\
         password_file p\nacl_file a\nallow_anonymous false\nlistener 3\npassword_file q\n\
         listener 4\nallow_anonymous false\n",
    );
    let [open, one, other, nobody] = &config.listeners[..] else {
        panic!("{config:?}");
    };
    assert_eq!(open.allow_anonymous, Anonymous::Everybody);
    assert_eq!((&open.password_file, &open.acl_file), (&None, &None));
    assert_eq!(one.allow_anonymous, Anonymous::Nobody);
    assert_eq!(one.password_file, Some("p".into()));
    assert_eq!(one.acl_file, Some("a".into()));
    assert_eq!(
        (&other.password_file, &other.acl_file),
        (&Some("q".into()), &None)
    );
    // No user of another listener is one of this.
    assert_eq!(nobody.password_file, Some("/dev/null".into()));
    assert_eq!(
        (&config.auth.password_file, &config.auth.acl_file),
        (&None, &None)
    );
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("nobody can connect here"), "{notes:#?}");
}

/// Translates `text`; whether protection was lost with it.
fn loses_protection(text: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.conf");
    fs::write(&path, text).unwrap();
    let notes = import(&path).unwrap().notes;
    notes.iter().any(Note::is_lost_protection)
}

/// However wrong what says that a listener is encrypted: it is encrypted, or it is not there.
#[test]
fn no_listener_loses_its_encryption() {
    for options in [
        "certfile\nkeyfile k\n",
        "certfile c\nkeyfile\n",
        "certfile c\n",
        "keyfile k\n",
        "psk_hint h\npsk_file f\n",
        "certfile c\nkeyfile k\nrequire_certificate true\n",
        "certfile c\nkeyfile k\nrequire_certificate true\ncapath /ca\n",
        "certfile c\nkeyfile k\nmax_connections 0\n",
        "certfile c\nkeyfile k\nprotocol http_api\n",
        "certfile c\nkeyfile k\nsocket_domain ipv4\nbind_interface eth0\n",
    ] {
        for host in ["", " 127.0.0.1", " not/a/host"] {
            let text = format!(
                "listener 1883 127.0.0.1\nallow_anonymous true\nlistener 8883{host}\n{options}"
            );
            let (config, notes) = loaded(&text);
            assert_eq!(
                addresses(&config),
                ["tcp://127.0.0.1:1883"],
                "{text}{notes:#?}"
            );
            assert!(loses_protection(&text), "{text}{notes:#?}");
            // Alone it does not make room for a plain one that others reach.
            let text = format!("password_file p\nlistener 8883{host}\n{options}");
            let (config, notes) = loaded(&text);
            assert_eq!(
                addresses(&config),
                ["tcp://localhost:1883"],
                "{text}{notes:#?}"
            );
        }
    }
}

#[test]
fn what_keeps_clients_out_is_not_lost_unnoticed() {
    let listener = "listener 1883 127.0.0.1\n";
    for lost in [
        "plugin /usr/lib/p.so\n",
        "auth_plugin p.so\nauth_opt_db x\n",
        "plugin_opt_x y\n",
        "acl_file\n",
        "password_file\n",
        "allow_anonymous perhaps\n",
        "psk_file f\n",
        "mount_point a/\n",
        "clientid_prefixes a\n",
        "use_username_as_clientid true\n",
        "use_subject_as_username true\n",
        "bind_interface eth0\n",
        "require_certificate perhaps\n",
        "websockets_origin\n",
        "use_identity_as_username true\n",
    ] {
        let text = format!("{listener}{lost}");
        assert!(loses_protection(&text), "{text}");
        loaded(&text);
    }
    for kept in [
        "allow_anonymous true\n",
        "password_file p\nacl_file a\n",
        "allow_anonymous false\n",
        "set_tcp_nodelay true\nlog_dest file x\nuser u\nfoo bar\n",
        "tls_version tlsv1.1\n",
    ] {
        let text = format!("{listener}{kept}");
        assert!(!loses_protection(&text), "{text}");
        loaded(&text);
    }
}

/// Who is kept out by what there is none of here stays out: the listener is left out, and where none
/// is left nobody is let in.
#[test]
fn no_listener_is_open_to_more_than_it_was() {
    for (option, reaches_all) in [
        ("plugin p.so", true),
        ("auth_plugin p.so", true),
        ("global_plugin p.so", true),
        ("clientid_prefixes a", true),
        ("mount_point a/", false),
        ("bind_interface eth0", false),
    ] {
        for per_listener in [false, true] {
            let text = format!(
                "per_listener_settings {per_listener}\nlistener 1 127.0.0.1\nallow_anonymous true\n\
                 listener 2 127.0.0.1\nallow_anonymous true\n{option}\n"
            );
            let (config, notes) = loaded(&text);
            let all = reaches_all && (!per_listener || option.starts_with("global"));
            let left = match all {
                true => "tcp://localhost:1883",
                false => "tcp://127.0.0.1:1",
            };
            assert_eq!(addresses(&config), [left], "{text}{notes:#?}");
            let listener = &config.listeners[0];
            assert_eq!(listener.password_file.is_some(), all, "{text}");
            assert!(loses_protection(&text), "{text}{notes:#?}");
        }
    }
}

/// Values that do not go together are left out, so that the result can be used.
#[test]
fn the_output_is_a_configuration_that_can_be_used() {
    for text in [
        "message_size_limit 0\nmax_queued_bytes 1000\n",
        "max_queued_bytes 1000\n",
        "max_packet_size 1\n",
        "listener 1 127.0.0.1\nallow_anonymous true\nlistener 1 127.0.0.1\nallow_anonymous true\n",
        "websockets_origin a\n",
    ] {
        let (_, notes) = loaded(text);
        assert!(!notes.is_empty(), "{text}");
        assert!(notes.len() < 5, "{text}{notes:#?}");
    }
}

#[test]
fn included_directories_are_read_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let conf_d = directory.path().join("conf.d");
    fs::create_dir(&conf_d).unwrap();
    fs::write(conf_d.join("b.conf"), "max_inflight_messages 2\nfoo 1\n").unwrap();
    fs::write(conf_d.join("a.conf"), "max_inflight_messages 1\n").unwrap();
    fs::write(conf_d.join("c.txt"), "max_inflight_messages 3\n").unwrap();
    let main = directory.path().join("m.conf");
    fs::write(&main, format!("include_dir {}\n", conf_d.display())).unwrap();
    let Imported { toml, notes } = import(&main).unwrap();
    assert!(toml.contains("max_inflight = 2  #"), "{toml}");
    assert!(notes[0].to_string().contains("conf.d/b.conf:2: foo 1"));

    fs::write(
        conf_d.join("a.conf"),
        format!("include_dir {}\n", conf_d.display()),
    )
    .unwrap();
    assert!(import(&main).unwrap_err().contains("include each other"));
    fs::write(&main, "include_dir /no/where\n").unwrap();
    assert!(
        import(&main)
            .unwrap_err()
            .contains("/no/where cannot be read")
    );
}

#[test]
fn every_option_that_is_special_is_handled() {
    for option in options::names() {
        let (_, notes) = translated(&format!("{option} 1\n"));
        let unhandled = format!("{option} is not handled");
        assert!(
            notes.iter().all(|note| !note.contains(&unhandled)),
            "{notes:?}"
        );
    }
}
