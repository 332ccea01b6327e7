//! A cluster of RabbitMQ nodes with its MQTT plugin, in the place of the thesis' HiveMQ cluster.
//!
//! HiveMQ's community edition has no cluster; RabbitMQ's cluster is freely available (Debian:
//! rabbitmq-server). Every node is connected to every other one, as in the thesis.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, io};

use super::NAMES;
use punctual_measure::{Error, Result};

/// Environment variable with the path of RabbitMQ's start script.
const VARIABLE: &str = "RABBITMQ_BIN";
/// Path of the start script on Debian. The script in PATH clears the environment.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// Shared secret with which nodes authenticate each other.
const COOKIE: &str = "known_to_the_nodes_of_a_benchmark";

/// Path of RabbitMQ's start script.
///
/// # Errors
/// RabbitMQ is not installed.
pub(super) fn server() -> Result<PathBuf> {
    let named = env::var_os(VARIABLE).map(PathBuf::from);
    let script = named.unwrap_or_else(|| SERVER.into());
    match script.is_file() {
        true => Ok(script),
        false => Err(Error::Config {
            field: VARIABLE,
            value: script.display().to_string(),
            remedy: "install RabbitMQ (apt-get install rabbitmq-server), or name its start script \
                     there"
                .to_owned(),
        }),
    }
}

/// The address of a node, which is the same on all of its cables.
pub(super) fn address(at: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 10, 0, at as u8 + 1)
}

/// The directory of a node's files, below the experiment's directory.
fn home(directory: &Path, at: usize) -> PathBuf {
    directory.join(format!("node-{}", NAMES[at]))
}

/// Creates a node's files anew: a node that was in a cluster before would look for that cluster.
pub(super) fn prepare(directory: &Path, at: usize) -> Result<()> {
    let home = home(directory, at);
    let removed = match fs::remove_dir_all(&home) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    removed
        .and_then(|()| fs::create_dir_all(&home))
        .and_then(|()| fs::write(home.join("enabled_plugins"), "[rabbitmq_mqtt].\n"))
        .map_err(Error::io(format!("cannot prepare {}", home.display())))
}

/// Configuration of each node, which serves MQTT at `port`.
pub(super) fn configuration(port: u16) -> String {
    let mut text = format!(
        "listeners.tcp = none\nmqtt.listeners.tcp.1 = 0.0.0.0:{port}\nmqtt.allow_anonymous = true\n\
         mqtt.tcp_listen_options.nodelay = true\nlog.console = true\nlog.console.level = warning\n\
         log.file = false\n\
         cluster_formation.peer_discovery_backend = classic_config\n\
         cluster_formation.randomized_startup_delay_range.min = 0\n\
         cluster_formation.randomized_startup_delay_range.max = 1\n"
    );
    for at in 0..NAMES.len() {
        text += &format!(
            "cluster_formation.classic_config.nodes.{} = rabbit@{}\n",
            at + 1,
            address(at)
        );
    }
    text
}

/// The port mapper (epmd) that each node needs on its host. It runs in the foreground, so that it
/// ends with the experiment; one that a node starts would stay.
pub(super) fn names() -> Command {
    let mut command = Command::new("epmd");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    command
}

/// The command that starts a node.
pub(super) fn node(directory: &Path, configuration: &Path, at: usize) -> Result<Command> {
    // The node changes its working directory.
    let absolute = |path: &Path| fs::canonicalize(path).map_err(Error::io("cannot prepare a node"));
    let home = absolute(&home(directory, at))?;
    let mut command = Command::new(server()?);
    command
        // With this variable the script executes the node, so that both have one process id.
        .env("RUNNING_UNDER_SYSTEMD", "yes")
        .env("HOME", &home)
        .env("RABBITMQ_NODENAME", format!("rabbit@{}", address(at)))
        .env("RABBITMQ_USE_LONGNAME", "true")
        .env("RABBITMQ_CONFIG_FILE", absolute(configuration)?)
        .env(
            "RABBITMQ_ENABLED_PLUGINS_FILE",
            home.join("enabled_plugins"),
        )
        .env("RABBITMQ_MNESIA_BASE", home.join("data"))
        .env("RABBITMQ_LOG_BASE", home.join("log"))
        .env("RABBITMQ_PID_FILE", home.join("pid"))
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            format!("-setcookie {COOKIE} -start_epmd false"),
        );
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_named_to_every_other_one() {
        let text = configuration(1883);
        for line in [
            "cluster_formation.classic_config.nodes.1 = rabbit@10.10.0.1",
            "cluster_formation.classic_config.nodes.5 = rabbit@10.10.0.5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_node_begins_without_what_the_last_one_left() {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path(), 0).unwrap();
        let old = home(directory.path(), 0).join("data");
        fs::create_dir(&old).unwrap();
        prepare(directory.path(), 0).unwrap();
        assert!(!old.exists());
    }
}
