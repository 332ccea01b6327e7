//! The wall clock is set: by hand, by a leap, by a machine that woke up. The
//! broker's own time is monotonic; the wall clock is read for the time stamps
//! of the log, for the validity of certificates, once at the start with a
//! store, which keeps times that outlive the process, and in a mesh for the
//! versions of retained messages, which never go back; for nothing else.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use punctual_client::Scheme;

use crate::broker::{Broker, Setup, eventually};
use crate::client::{Pair, connected, expect, open};

/// What reads the wall clock.
const WALL_CLOCK: [&str; 4] = [
    "SystemTime::now",
    "Utc::now",
    "Local::now",
    "CLOCK_REALTIME",
];
/// Where it may be read: for `pub` and `sub`, which are clients, for a warning
/// about a certificate at the start, for the generation of a controller, which
/// is no broker, for what a store says of times, also where it is exported, and for the versions
/// by which brokers of a mesh agree which retained message is the newest.
const ALLOWED: [&str; 8] = [
    "net/src/server.rs",
    "punctual/src/cli/controller.rs",
    "punctual/src/cli/pubsub/",
    "punctual/src/cli/store/",
    "server/src/config/check.rs",
    "server/src/mesh/clock.rs",
    "server/src/store/",
    "southbound/src/srt/manager.rs",
];
/// What the broker is made of.
const CRATES: [&str; 16] = [
    "analysis",
    "auth",
    "broker",
    "codec",
    "federation",
    "manager",
    "mesh",
    "model",
    "net",
    "openflow",
    "punctual",
    "server",
    "southbound",
    "store",
    "tls",
    "udp",
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// No part of the broker can ask what time of day it is.
#[test]
fn the_wall_clock_is_not_asked() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for name in CRATES {
        sources(&crates.join(name).join("src"), &mut files);
    }
    let mut read = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&crates).unwrap().display().to_string();
        if WALL_CLOCK.iter().any(|clock| text.contains(clock)) {
            read.push(name);
        }
    }
    for allowed in ALLOWED {
        assert!(
            read.iter().any(|name| name.starts_with(allowed)),
            "{read:?}"
        );
    }
    read.retain(|name| !ALLOWED.iter().any(|allowed| name.starts_with(allowed)));
    assert_eq!(read, [""; 0], "these read the wall clock");
}

/// `libfaketime`, which shows a program another wall clock.
fn faketime() -> Option<PathBuf> {
    let places = fs::read_dir("/usr/lib").ok()?;
    let candidates = places.filter_map(|place| {
        let library = place.ok()?.path().join("faketime/libfaketime.so.1");
        library.exists().then_some(library)
    });
    let found = candidates.last();
    if found.is_none() {
        let why = "there is no libfaketime (apt-get install faketime)";
        punctual_testbed::skip("PUNCTUAL_REQUIRE_FAKETIME", why);
    }
    found
}

/// The wall clock goes ten years ahead and twenty back: the stamps of the log
/// follow it; keep-alive, time-outs and everybody's connection do not.
#[test]
fn the_wall_clock_is_set() {
    let Some(library) = faketime() else {
        return;
    };
    let offset = tempfile::NamedTempFile::new().unwrap();
    let set = |years: i64| fs::write(offset.path(), format!("{:+}d\n", years * 365)).unwrap();
    set(0);
    let path = |path: &Path| path.display().to_string();
    let broker = Broker::start(Setup {
        config: "[server]\nconnect_timeout = \"1s\"\n[log]\nlevel = \"debug\"\n",
        listen: &["udp://127.0.0.1:0"],
        variables: &[
            ("LD_PRELOAD", &path(&library)),
            ("FAKETIME_TIMESTAMP_FILE", &path(offset.path())),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ],
        ..Setup::default()
    });
    let year = |broker: &Broker| {
        let log = broker.log();
        let last = log.lines().last().and_then(|line| line.get(..4));
        last.and_then(|year| year.parse::<i64>().ok())
    };
    let datagrams = eventually("the log has the port for datagrams", || {
        broker.log().lines().find_map(|line| {
            let (_, port) = line.split_once("listening on udp://127.0.0.1:")?;
            port.parse().ok()
        })
    });
    let mut pair = Pair::new(&broker, "early");
    let mut by_udp = Pair::by(Scheme::Udp, datagrams, "early-udp");
    for pair in [&mut pair, &mut by_udp] {
        pair.exchange();
        pair.exchange_due("3600s");
    }
    let mut silent = connected(&broker, "silent");
    let now = year(&broker).expect("a stamp in the log");
    for years in [10, -10] {
        set(years);
        for pair in [&mut pair, &mut by_udp] {
            pair.exchange();
            // An hour has not passed.
            pair.exchange_due("3600s");
        }
        Pair::by(Scheme::Udp, datagrams, "late-udp").exchange();
        // Timers go on as before: none fires early, none is late.
        let mut late = open(&broker);
        assert_eq!(
            late.read(&mut [0]).unwrap(),
            0,
            "closed for want of CONNECT"
        );
        Pair::new(&broker, "late").exchange();
        eventually("the log has the new time", || {
            (year(&broker)? - now - years).abs().le(&1).then_some(())
        });
        silent.write_all(&[0xC0, 0]).unwrap();
        expect(&mut silent, &[0xD0, 0]);
        pair.exchange();
    }
    assert!(broker.stop());
}
