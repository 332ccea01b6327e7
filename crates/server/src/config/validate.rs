//! What must hold between keys.

use std::path::PathBuf;

use punctual_model::srt::MAX_MANAGER;
use punctual_southbound::ovsdb::Endpoint;

use super::Config;
use super::address::Transport;
use super::keys::{Anonymous, Brokers, EgressPolicy, HttpAuth, Listener};
use super::origin::Origin;
use super::problem::Problem;
use super::schema::Reader;
use super::value::{Limit, Ranged, Setting, Switch};

/// Reports combinations of values, each allowed by itself, that cannot work.
pub(super) fn validate(config: &Config, reader: &mut Reader) {
    for (i, listener) in config.listeners.iter().enumerate() {
        let path = format!("listener.{i}");
        encryption(listener, &path, reader);
        if listener.websocket_origins.is_some() && !listener.address.transport.is_websocket() {
            report(
                reader,
                &format!("{path}.websocket_origins"),
                None,
                &format!(
                    "{} opens no WebSockets and cannot use this",
                    listener.address
                ),
                "write ws:// or wss:// in its address, or remove this key",
            );
        }
        datagrams(listener, &path, reader);
        anonymous(config, listener, &path, reader);
        let same = |other: &&Listener| {
            other.address.port != 0
                && (&other.address.host, other.address.port)
                    == (&listener.address.host, listener.address.port)
                // TCP and UDP have ports of their own.
                && other.address.transport.is_over_udp()
                    == listener.address.transport.is_over_udp()
        };
        if config.listeners.iter().take(i).any(|other| same(&other)) {
            report(
                reader,
                &format!("{path}.address"),
                Some(listener.address.to_string()),
                "another listener has this address and port",
                "give each listener a port of its own",
            );
        }
    }
    mesh(config, reader);
    http(config, reader);
    whole_seconds(config, reader);
    admission(config, reader);
    let egress = &config.egress;
    let shares = [
        egress.min_share_priority,
        egress.min_share_normal,
        egress.min_share_bulk,
    ];
    let sum: u8 = shares.iter().sum();
    if sum > 50 {
        report(
            reader,
            "egress.min_share_priority",
            shares[0].show(),
            &format!("the three shares are {sum} per cent together"),
            "lower min_share_priority, min_share_normal or min_share_bulk: at most 50 together",
        );
    }
    let open = 100 - u64::from(config.queue.urgent_reserve);
    if let Limit::At(bytes) = config.limits.max_queued_bytes
        && bytes.0.saturating_mul(open) / 100 < config.limits.max_packet_size.0
    {
        report(
            reader,
            "limits.max_queued_bytes",
            bytes.show(),
            &format!(
                "a message of limits.max_packet_size ({}) would never fit",
                config.limits.max_packet_size
            ),
            "raise this limit, or lower limits.max_packet_size or queue.urgent_reserve",
        );
    }
}

/// Without authentication everybody who reaches the interface is an administrator.
fn http(config: &Config, reader: &mut Reader) {
    let Switch::On(address) = &config.server.http else {
        return;
    };
    if config.server.http_auth == HttpAuth::Off && !address.is_local() {
        report(
            reader,
            "server.http_auth",
            config.server.http_auth.show(),
            &format!("{address} can be reached from other machines (server.http)"),
            "remove this key, or have the interface on 127.0.0.1 or a Unix socket",
        );
    }
}

/// What bounds assume of the rest.
fn admission(config: &Config, reader: &mut Reader) {
    let keys = &config.admission;
    if keys.enabled && config.egress.policy != EgressPolicy::FixedPriority {
        report(
            reader,
            "egress.policy",
            config.egress.policy.show(),
            "admission promises deadlines for fixed priorities only",
            "write policy = \"fixed-priority\", or admission.enabled = false",
        );
    }
    if keys.lowest_priority > keys.highest_priority {
        report(
            reader,
            "admission.lowest_priority",
            keys.lowest_priority.show(),
            &format!("is above highest_priority, {}", keys.highest_priority),
            "lower it, or raise highest_priority",
        );
    }
    table(config, reader);
}

/// The table of the controller and how it is reached.
fn table(config: &Config, reader: &mut Reader) {
    let keys = &config.admission;
    let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let files = [
        ("admission.srt_ca", &keys.srt_ca),
        ("admission.srt_certificate", &keys.srt_certificate),
        ("admission.srt_key", &keys.srt_key),
    ];
    let Some(servers) = &keys.srt else {
        for (key, path) in files.iter().filter(|(_, path)| path.is_some()) {
            let remedy = "name the servers in admission.srt, or remove this key";
            report(
                reader,
                key,
                text(path),
                "there is no table to use it for",
                remedy,
            );
        }
        return;
    };
    let endpoints = match Endpoint::parse_list(servers) {
        Ok(endpoints) => endpoints,
        Err(error) => {
            let remedy = "write unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT, several with commas";
            let value = Some(servers.clone());
            return report(reader, "admission.srt", value, &error.to_string(), remedy);
        }
    };
    let encrypted = endpoints.iter().any(Endpoint::is_tls);
    for (key, path) in files {
        if path.is_none() && encrypted {
            let remedy = "give srt_ca, srt_certificate and srt_key";
            report(
                reader,
                key,
                None,
                "is needed for ssl: in admission.srt",
                remedy,
            );
        }
    }
    for (key, path) in [
        ("admission.network", &keys.network),
        ("admission.file", &keys.file),
    ] {
        if path.is_some() {
            let what = "has no effect: the controller knows the network, and its table keeps flows";
            report(reader, key, text(path), what, "remove it, or admission.srt");
        }
    }
    if keys.srt_name.is_empty() || keys.srt_name.chars().count() > MAX_MANAGER {
        report(
            reader,
            "admission.srt_name",
            Some(keys.srt_name.clone()),
            &format!("must have 1 to {MAX_MANAGER} characters"),
            "choose a name that no other broker or manager has",
        );
    }
}

/// MQTT carries these in seconds.
fn whole_seconds(config: &Config, reader: &mut Reader) {
    let limits = &config.limits;
    for (key, duration) in [
        (
            "limits.max_session_expiry",
            limits.max_session_expiry.unit(),
        ),
        ("limits.max_keep_alive", limits.max_keep_alive.unit()),
        ("mqtt.keep_alive", config.mqtt.keep_alive.unit()),
    ] {
        if let Some(duration) = duration
            && duration.subsec_nanos() != 0
        {
            report(
                reader,
                key,
                duration.show(),
                "MQTT counts this in seconds",
                "write a whole number of seconds, such as \"90s\"",
            );
        }
    }
}

/// Certificates where they are needed, and only there.
fn encryption(listener: &Listener, path: &str, reader: &mut Reader) {
    let address = &listener.address;
    let files = [
        ("certificate", &listener.certificate),
        ("key", &listener.key),
        ("client_ca", &listener.client_ca),
        ("client_crl", &listener.client_crl),
    ];
    let switches = [
        (
            "require_client_certificate",
            listener.require_client_certificate,
        ),
        (
            "use_identity_as_username",
            listener.use_identity_as_username,
        ),
    ];
    if listener.tls_max_record != Listener::default().tls_max_record
        && (!address.transport.is_encrypted() || address.transport == Transport::Quic)
    {
        report(
            reader,
            &format!("{path}.tls_max_record"),
            listener.tls_max_record.show(),
            &format!("{address} has no TLS records and cannot use this"),
            "write tls:// or wss:// in its address, or remove this key",
        );
    }
    if !address.transport.is_encrypted() {
        let files = files.into_iter().map(|(key, file)| (key, file.is_some()));
        for (key, _) in files.chain(switches).filter(|(_, set)| *set) {
            report(
                reader,
                &format!("{path}.{key}"),
                None,
                &format!("{address} is not encrypted and cannot use this"),
                "write tls://, wss:// or quic:// in its address, or remove this key",
            );
        }
        return;
    }
    for (key, file) in &files[..2] {
        if file.is_none() {
            report(
                reader,
                &format!("{path}.{key}"),
                None,
                &format!("{address} is encrypted and needs a certificate and its key"),
                &format!("add {key} = \"FILE\", or use --certificate and --key with --listen"),
            );
        }
    }
    let crl = ("client_crl", listener.client_crl.is_some());
    for (key, _) in switches.into_iter().chain([crl]).filter(|(_, set)| *set) {
        if listener.client_ca.is_none() {
            report(
                reader,
                &format!("{path}.{key}"),
                None,
                "nothing says which client certificates are good",
                "add client_ca = \"FILE\" with the authorities that vouch for clients",
            );
        }
    }
}

/// What only UDP and QUIC have, and what they have not.
fn datagrams(listener: &Listener, path: &str, reader: &mut Reader) {
    let default = Listener::default();
    let address = &listener.address;
    let transport = address.transport;
    if transport.is_over_udp() && listener.proxy_protocol {
        report(
            reader,
            &format!("{path}.proxy_protocol"),
            Some("true".into()),
            &format!("{address} takes datagrams, which have no PROXY header"),
            "remove this key",
        );
    }
    if transport == Transport::Udp {
        return;
    }
    for (key, set) in [
        ("seal", listener.seal != default.seal),
        (
            "max_datagram",
            listener.max_datagram != default.max_datagram,
        ),
        ("rate", listener.rate != default.rate),
    ] {
        if set {
            report(
                reader,
                &format!("{path}.{key}"),
                None,
                &format!("{address} is no UDP listener and cannot use this"),
                "write udp:// in its address, or remove this key",
            );
        }
    }
    if transport == Transport::Quic {
        return;
    }
    for (key, set) in [
        ("cookie", listener.cookie != default.cookie),
        ("send_buffer", listener.send_buffer != default.send_buffer),
        (
            "idle_timeout",
            listener.idle_timeout != default.idle_timeout,
        ),
    ] {
        if set {
            report(
                reader,
                &format!("{path}.{key}"),
                None,
                &format!("{address} is no UDP or QUIC listener and cannot use this"),
                "write udp:// or quic:// in its address, or remove this key",
            );
        }
    }
}

/// Who may connect as a broker must have been said.
fn mesh(config: &Config, reader: &mut Reader) {
    let keys = &config.mesh;
    let only = |listener: &Listener| listener.brokers == Brokers::Only;
    if let Some(at) = config.listeners.iter().position(only)
        && !keys.enabled
    {
        report(
            reader,
            &format!("listener.{at}.brokers"),
            Some("\"only\"".into()),
            "nobody can connect here: the broker is in no mesh",
            "set mesh.enabled = true, or remove this key",
        );
    }
    if !config.admits_brokers() || keys.secret_file.is_some() {
        return;
    }
    let open = config.listeners.iter();
    let mut with_rights = open
        .filter(|listener| listener.brokers != Brokers::Deny)
        .filter(|listener| listener.rights(&config.auth).is_some())
        .peekable();
    let what = match with_rights.peek() {
        None => "nothing says which brokers may connect here",
        Some(_) => {
            let is_proven = |listener: &Listener| {
                listener.passwords(&config.auth).is_some() || listener.use_identity_as_username
            };
            if with_rights.any(is_proven) {
                return;
            }
            "brokers may connect here by a right of their users, and nothing proves who a user is"
        }
    };
    report(
        reader,
        "mesh.enabled",
        Some("true".into()),
        what,
        "give all brokers of the mesh the same mesh.secret_file (`openssl rand -hex 32 > FILE`); or \
         set auth.acl_file, with a line `broker` for each broker's user, and auth.password_file or \
         use_identity_as_username, or the files of one listener; or write brokers = \"deny\" in every listener",
    );
}

/// Somebody must be able to connect.
fn anonymous(config: &Config, listener: &Listener, path: &str, reader: &mut Reader) {
    if listener.brokers != Brokers::Only
        && listener.anonymous(&config.auth) == Anonymous::Nobody
        && listener.passwords(&config.auth).is_none()
        && !listener.use_identity_as_username
    {
        report(
            reader,
            &format!("{path}.allow_anonymous"),
            Some("false".into()),
            "nobody can connect here: no user has a password",
            "set auth.password_file (`punctual passwd -c FILE USER` makes one), \
             or use_identity_as_username, or allow_anonymous = \"loopback\"",
        );
    }
}

fn report(reader: &mut Reader, key: &str, value: Option<String>, what: &str, remedy: &str) {
    let origin = place(reader, key);
    reader.problems.push(Problem {
        origin,
        key: key.into(),
        value,
        what: what.into(),
        remedy: remedy.into(),
    });
}

/// Where the key, or the innermost section around it, was written.
fn place(reader: &Reader, key: &str) -> Option<Origin> {
    let mut name = key;
    loop {
        if let Some(origin) = reader.origins.get(name) {
            return Some(origin.clone());
        }
        (name, _) = name.rsplit_once('.')?;
    }
}
