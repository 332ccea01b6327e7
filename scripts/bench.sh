#!/bin/sh
# Compares brokers with each other and the floor: sets everything up, runs, writes the tables.
#
#   scripts/bench.sh            all brokers, all cases (about an hour)
#   scripts/bench.sh --quick    floor, punctual and mosquitto, one second per case
#   scripts/bench.sh urgency    instead: the goals for urgent messages beside what is measured
#                               (root; about half an hour; --short: a few minutes)
#   scripts/bench.sh against REVISION|PROGRAM
#                               instead: throughput and memory beside those of another state (root; minutes)
#
# Further options go to `punctual-bench compare`, see its --help. Peers are built once into
# target/bench/bin; PUNCTUAL_BIN, MOSQUITTO_BIN, RUMQTTD_BIN and MOCHI_BIN name other programs.
# The full run replaces the generated part of docs/performance.md.
set -eu
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
directory=$target/bench
bin=$directory/bin
quick=no
for argument in "$@"; do
    if [ "$argument" = --quick ]; then
        quick=yes
    fi
done
mkdir -p "$bin"

say() { printf '%s\n' "bench: $*" >&2; }

if [ -z "${PUNCTUAL_BIN:-}" ]; then
    cargo build --release -p punctual
    export PUNCTUAL_BIN="$target/release/punctual"
fi
cargo build --release -p punctual-bench
if [ "${1:-}" = against ]; then
    shift
    exec scripts/against "$@"
fi

if [ -z "${MOSQUITTO_BIN:-}" ] && [ ! -x /usr/sbin/mosquitto ] && ! command -v mosquitto >/dev/null; then
    sudo=
    if [ "$(id -u)" != 0 ]; then sudo=sudo; fi
    say "installing mosquitto"
    # The package would start a broker; the comparison starts its own.
    RUNLEVEL=1 $sudo apt-get install -y --no-install-recommends mosquitto >&2 ||
        say "mosquitto cannot be installed here and is left out"
fi

if [ "${1:-}" = urgency ]; then
    shift
    exec scripts/urgency "$@"
fi

if [ "$quick" = no ]; then
    if [ -z "${RUMQTTD_BIN:-}" ] && [ ! -x "$bin/rumqttd" ]; then
        say "building rumqttd"
        # Its lock file pins a metrics 0.22.1 that Rust 1.95 rejects, hence no --locked.
        cargo install rumqttd --version 0.20.0 --root "$directory" \
            --target-dir "$directory/build" >&2 ||
            say "rumqttd cannot be built here and is left out"
    fi
    if [ -z "${MOCHI_BIN:-}" ] && [ ! -x "$bin/mochi" ]; then
        if command -v go >/dev/null; then
            say "building mochi"
            out=$(cd "$bin" && pwd)/mochi
            (cd crates/bench/peers/mochi && go build -o "$out" .) >&2 ||
                say "mochi cannot be built here and is left out"
        else
            say "mochi needs Go, which is not here: left out"
        fi
    fi
    set -- --document docs/performance.md "$@"
fi

exec "$target/release/punctual-bench" compare \
    --directory "$directory" --json "$directory/results.json" "$@"
