//! What each option of Mosquitto (2.0 and 2.1) becomes.
//!
//! Options that several lines decide together (listeners, persistence, the log)
//! are `Special` and handled where their state is kept.

use super::super::units::Size;
use super::super::value::Scalar;

/// Turns the text of an option into a value, or says why it cannot.
pub(super) type Convert = fn(&str) -> Result<Scalar, String>;

/// What becomes of an option.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    /// This section's key.
    Key(&'static str, &'static str, Convert),
    /// A key of the current listener.
    Listener(&'static str, Convert),
    /// Handled by itself.
    Special,
    /// Of no effect here, for this reason.
    None(&'static str),
    /// As `None`; the value is a secret, and not repeated.
    Secret(&'static str),
}

use Meaning::{Key, Listener, None, Secret, Special};

const BRIDGE: &str = "bridges are read from such a file: name it as bridges in [mesh]";
const PLUGIN: &str = "there are no plugins; see auth.password_file and auth.acl_file";
const PSK: &str = "there is no TLS with pre-shared keys; use certificates";
const CIPHERS: &str = "ciphers are those that rustls considers secure, and cannot be chosen";
const NOTHING: &str = "it has no counterpart";
const JOURNAL: &str = "the log goes to standard error, with the time";
pub(super) const STORED_ELSEWHERE: &str = "what is to survive is kept with server.data (--data), in a \
    directory of its own; what Mosquitto has stored is not read";
const IDS: &str = "the server chooses by itself the ids that it gives";
const NOT_NEEDED: &str = "it is not needed";

/// What `option` becomes; nothing if Mosquitto has no such option.
pub(super) fn meaning(option: &str) -> Option<Meaning> {
    if option.starts_with("bridge_") {
        return Some(match option {
            "bridge_psk" => Secret(BRIDGE),
            _ => None(BRIDGE),
        });
    }
    let is_plugin_option = ["plugin_opt_", "auth_opt_"]
        .iter()
        .any(|prefix| option.starts_with(prefix));
    if is_plugin_option {
        return Some(Secret(PLUGIN));
    }
    OPTIONS
        .iter()
        .find(|(name, _)| *name == option)
        .map(|(_, meaning)| *meaning)
}

/// Whether an option says who is kept out, or from which topics: where it is not taken over, less
/// is protected than was.
pub(super) fn protects(option: &str) -> bool {
    PROTECTION.contains(&option)
        || option.starts_with("plugin_opt_")
        || option.starts_with("auth_opt_")
}

const PROTECTION: &[&str] = &[
    "acl_file",
    "allow_anonymous",
    "auth_plugin",
    "auth_plugin_deny_special_chars",
    "bind_address",
    "bind_interface",
    "cafile",
    "capath",
    "certfile",
    "clientid_prefixes",
    "crlfile",
    "global_plugin",
    "keyfile",
    "listener_allow_anonymous",
    "mount_point",
    "password_file",
    "per_listener_settings",
    "plugin",
    "plugin_load",
    "plugin_use",
    "protocol",
    "proxy_protocol_v2_require_tls",
    "psk_file",
    "psk_hint",
    "require_certificate",
    "socket_domain",
    "use_identity_as_username",
    "use_subject_as_username",
    "use_username_as_clientid",
    "websockets_origin",
];

/// For which listeners an option counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The one that it stands below.
    Listener,
    /// The same with `per_listener_settings`, otherwise all.
    Setting,
    All,
}

/// Options without which a listener would be open to more than it is, and which cannot be taken
/// over: the listener is left out.
pub(super) const RESTRICTIONS: &[(&str, Reach, &str)] = &[
    ("auth_plugin", Reach::Setting, PLUGIN_RIGHTS),
    ("bind_interface", Reach::Listener, "an interface of its own"),
    (
        "clientid_prefixes",
        Reach::Setting,
        "client identifiers of its own",
    ),
    ("global_plugin", Reach::All, PLUGIN_RIGHTS),
    (
        "mount_point",
        Reach::Listener,
        "a part of the topics for its clients",
    ),
    ("plugin", Reach::Setting, PLUGIN_RIGHTS),
    ("plugin_use", Reach::Listener, PLUGIN_RIGHTS),
    ("psk_hint", Reach::Listener, "TLS with pre-shared keys"),
];

const PLUGIN_RIGHTS: &str = "a plugin that may say who is let in, and to which topics";

/// All names, to find the one that was meant.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|(name, _)| *name)
}

const OPTIONS: &[(&str, Meaning)] = &[
    (
        "accept_protocol_versions",
        None("all versions of MQTT are accepted"),
    ),
    ("acl_file", Special),
    ("address", None(BRIDGE)),
    ("addresses", None(BRIDGE)),
    ("allow_anonymous", Special),
    (
        "allow_duplicate_messages",
        None("it was removed from Mosquitto too"),
    ),
    (
        "allow_zero_length_clientid",
        Key("mqtt", "empty_client_id", boolean),
    ),
    ("auth_plugin", None(PLUGIN)),
    ("auth_plugin_deny_special_chars", None(PLUGIN)),
    ("auto_id_prefix", None(IDS)),
    ("autosave_interval", None(STORED_ELSEWHERE)),
    ("autosave_on_changes", None(STORED_ELSEWHERE)),
    ("bind_address", Special),
    (
        "bind_interface",
        None("write the address of the interface in the listener's address"),
    ),
    ("cafile", Special),
    (
        "capath",
        None("join the certificates in one file, and name it as client_ca"),
    ),
    ("certfile", Listener("certificate", text)),
    (
        "check_retain_source",
        Key("auth", "check_retain_source", boolean),
    ),
    ("ciphers", None(CIPHERS)),
    ("ciphers_tls1.3", None(CIPHERS)),
    ("cleansession", None(BRIDGE)),
    ("clientid", None(BRIDGE)),
    (
        "clientid_prefixes",
        None("use an ACL file to limit what a client may do"),
    ),
    ("connection", None(BRIDGE)),
    (
        "connection_messages",
        None("clients that come and go are logged at log.level = \"debug\""),
    ),
    ("crlfile", Special),
    ("dhparamfile", None(CIPHERS)),
    (
        "disable_client_cert_date_checks",
        None("certificates that have expired are refused"),
    ),
    ("enable_control_api", None("see server.http")),
    ("enable_proxy_protocol", Special),
    (
        "global_max_clients",
        Key("limits", "max_sessions", count_or_minus_one),
    ),
    (
        "global_max_connections",
        Key("limits", "max_connections", count_or_minus_one),
    ),
    ("global_plugin", None(PLUGIN)),
    ("http_api", None("see server.http")),
    ("http_dir", None("files are not served")),
    ("idle_timeout", None(BRIDGE)),
    ("keepalive_interval", None(BRIDGE)),
    ("keyfile", Listener("key", text)),
    ("listener", Special),
    ("listener_allow_anonymous", Special),
    ("listener_auto_id_prefix", None(IDS)),
    ("local_cleansession", None(BRIDGE)),
    ("local_clientid", None(BRIDGE)),
    ("local_password", Secret(BRIDGE)),
    ("local_username", None(BRIDGE)),
    ("log_dest", Special),
    ("log_facility", None(JOURNAL)),
    ("log_timestamp", None(JOURNAL)),
    ("log_timestamp_format", None(JOURNAL)),
    ("log_type", Special),
    (
        "max_connections",
        Listener("max_connections", count_or_minus_one),
    ),
    ("max_inflight_bytes", Special),
    ("max_inflight_messages", Special),
    (
        "max_keepalive",
        Key("limits", "max_keep_alive", seconds_or_zero),
    ),
    ("max_packet_size", Key("limits", "max_packet_size", number)),
    ("max_qos", Special),
    (
        "max_queued_bytes",
        Key("limits", "max_queued_bytes", count_or_zero),
    ),
    (
        "max_queued_messages",
        Key("limits", "max_queued_messages", count_or_zero),
    ),
    ("max_topic_alias", Special),
    (
        "max_topic_alias_broker",
        None("see limits.topic_alias_maximum"),
    ),
    (
        "memory_limit",
        None("memory has a bound for each of its uses; see [limits]"),
    ),
    ("message_size_limit", Special),
    (
        "mount_point",
        None("topics are not changed; use an ACL file to keep clients apart"),
    ),
    ("notification_topic", None(BRIDGE)),
    ("notifications", None(BRIDGE)),
    ("notifications_local_only", None(BRIDGE)),
    ("packet_buffer_size", None(NOT_NEEDED)),
    ("packet_max_auth", Key("limits", "max_connect_size", number)),
    (
        "packet_max_connect",
        Key("limits", "max_connect_size", number),
    ),
    ("packet_max_simple", None(NOT_NEEDED)),
    ("packet_max_sub", None("see limits.max_packet_size")),
    ("packet_max_un_sub", None("see limits.max_packet_size")),
    ("password", Secret(BRIDGE)),
    ("password_file", Special),
    ("per_listener_settings", Special),
    ("persistence", Special),
    (
        "persistence_file",
        None("Mosquitto's file is not read, and nothing is stored in place of it"),
    ),
    ("persistence_location", None(STORED_ELSEWHERE)),
    (
        "persistent_client_expiration",
        Key("limits", "max_session_expiry", expiry),
    ),
    ("pid_file", None("the service manager knows the process id")),
    ("plugin", None(PLUGIN)),
    ("plugin_load", None(PLUGIN)),
    ("plugin_use", None(PLUGIN)),
    ("port", Special),
    ("protocol", Special),
    ("proxy_protocol_v2_require_tls", None(NOTHING)),
    ("psk_file", None(PSK)),
    ("psk_hint", None(PSK)),
    ("queue_qos0_messages", Key("queue", "qos0_offline", boolean)),
    ("remote_clientid", None(BRIDGE)),
    ("remote_password", Secret(BRIDGE)),
    ("remote_username", None(BRIDGE)),
    (
        "require_certificate",
        Listener("require_client_certificate", boolean),
    ),
    ("restart_timeout", None(BRIDGE)),
    ("retain_available", Key("mqtt", "retain", boolean)),
    (
        "retain_expiry_interval",
        None("retained messages expire as their publisher asks"),
    ),
    ("round_robin", None(BRIDGE)),
    ("set_tcp_nodelay", Special),
    ("socket_domain", Special),
    ("start_type", None(BRIDGE)),
    ("sys_interval", Key("server", "sys_interval", interval)),
    ("threshold", None(BRIDGE)),
    ("tls_engine", None("keys are read from files")),
    (
        "tls_engine_kpass_sha1",
        Secret("keys are read from files without a pass phrase"),
    ),
    ("tls_keyform", None("keys are read from files")),
    ("tls_version", Special),
    ("topic", None(BRIDGE)),
    ("try_private", None(BRIDGE)),
    (
        "upgrade_outgoing_qos",
        None("a message is never delivered with a higher QoS than published"),
    ),
    (
        "use_identity_as_username",
        Listener("use_identity_as_username", boolean),
    ),
    (
        "use_subject_as_username",
        None("only the common name can be the user name"),
    ),
    (
        "use_username_as_clientid",
        None("set auth.client_id = \"user\", and let clients use their user name as identifier"),
    ),
    ("user", None("start the service as that user")),
    ("username", None(BRIDGE)),
    ("websockets_headers_size", None(NOT_NEEDED)),
    ("websockets_log_level", None(NOT_NEEDED)),
    ("websockets_origin", Special),
];

/// `true`, `false`, `1` or `0`.
pub(super) fn boolean(value: &str) -> Result<Scalar, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(Scalar::Boolean(true)),
        "false" | "0" => Ok(Scalar::Boolean(false)),
        _ => Err("the value is not true or false".into()),
    }
}

/// Text, for example a path.
pub(super) fn text(value: &str) -> Result<Scalar, String> {
    match value {
        "" => Err("the value is missing".into()),
        value => Ok(Scalar::Text(value.into())),
    }
}

/// A whole number.
pub(super) fn number(value: &str) -> Result<Scalar, String> {
    match value.parse() {
        Ok(number) => Ok(Scalar::Integer(number)),
        Err(_) => Err("the value is not a whole number".into()),
    }
}

/// `value` as a number, where one number stands for no bound.
fn unless(value: &str, unlimited: i128) -> Result<Scalar, String> {
    Ok(match number(value)? {
        Scalar::Integer(number) if number == unlimited => Scalar::Text("unlimited".into()),
        number => number,
    })
}

fn count_or_zero(value: &str) -> Result<Scalar, String> {
    unless(value, 0)
}

fn count_or_minus_one(value: &str) -> Result<Scalar, String> {
    unless(value, -1)
}

/// A number of seconds as a duration.
fn seconds(value: &str) -> Result<Scalar, String> {
    number(value).map(|number| Scalar::Text(format!("{number}s")))
}

fn seconds_or_zero(value: &str) -> Result<Scalar, String> {
    match value {
        "0" => Ok(Scalar::Text("unlimited".into())),
        value => seconds(value),
    }
}

fn interval(value: &str) -> Result<Scalar, String> {
    match value {
        "0" => Ok(Scalar::Text("off".into())),
        value => seconds(value),
    }
}

/// `6h`, `2d`, `1w`, `3m` (of 30 days) or `1y` (of 365).
fn expiry(value: &str) -> Result<Scalar, String> {
    let wrong = || "the value is not a number with h, d, w, m or y".to_owned();
    let split = value.len().saturating_sub(1);
    let (number, unit) = value.split_at_checked(split).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let (unit, scale) = match unit {
        "h" => ("h", 1),
        "d" => ("d", 1),
        "w" => ("d", 7),
        "m" => ("d", 30),
        "y" => ("d", 365),
        _ => return Err(wrong()),
    };
    Ok(Scalar::Text(format!(
        "{}{unit}",
        number.saturating_mul(scale)
    )))
}

/// The packet that has room for a payload of `value` bytes, and 64 KiB for the
/// topic and the properties; without a limit, the largest packet of MQTT.
pub(super) fn packet_of_payload(value: &str) -> Result<Scalar, String> {
    const LARGEST: u64 = 268_435_460;
    let payload: u64 = value
        .parse()
        .map_err(|_| "the value is not a number of bytes".to_owned())?;
    let packet = match payload {
        0 => LARGEST,
        payload => LARGEST.min(payload.saturating_add(65_536)),
    };
    Ok(Scalar::Text(Size(packet).to_string()))
}
