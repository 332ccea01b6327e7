# Set-up that the other scripts share. Source it; do not run it.
# Installs only what is missing, says what it installs, and needs root or sudo
# for Debian packages.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# as_root COMMAND ... : as root, by sudo where that is needed.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# can_install : whether packages can be installed.
can_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null 2>&1
}

apt_updated=

update_packages() {
    [ -z "$apt_updated" ] || return 0
    as_root apt-get update -qq
    apt_updated=1
}

install_packages() {
    can_install ||
        fail "missing, and to be installed by root (there is no sudo or no apt-get): $*"
    say "installing $*"
    update_packages
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# need_packages COMMAND=PACKAGE ... : installs the packages whose command is
# missing. A command with a slash is a file that the package has.
need_packages() {
    local pair command missing=()
    for pair in "$@"; do
        command=${pair%%=*}
        case $command in
        /*) [ -e "$command" ] || missing+=("${pair#*=}") ;;
        *) command -v "$command" >/dev/null 2>&1 || missing+=("${pair#*=}") ;;
        esac
    done
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
}

# has_candidate PACKAGE : apt can install it. `apt-cache show` succeeds for any name that another
# package mentions.
has_candidate() {
    apt-cache policy "$1" 2>/dev/null | grep -q '^  Candidate: [^(]'
}

# need_rust : a toolchain as rust-toolchain.toml pins it.
need_rust() {
    need_packages cc=build-essential
    export PATH="$HOME/.cargo/bin:$PATH"
    if ! command -v cargo >/dev/null 2>&1; then
        # Minimal installations have none, and rustup cannot do without.
        need_packages /etc/ssl/certs/ca-certificates.crt=ca-certificates
        if can_install && update_packages && has_candidate rustup; then
            install_packages rustup
        else
            need_packages curl=curl
            say "installing rustup"
            curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
                sh -s -- -y --profile minimal --default-toolchain none --no-modify-path
        fi
    fi
    # Installs the pinned toolchain on first use.
    cargo --version >/dev/null || fail "cargo does not work (see above)"
}

# need_components NAME ... : parts of the toolchain. One that rustup did not install has them or not.
need_components() {
    command -v rustup >/dev/null 2>&1 || return 0
    rustup component add "$@" >/dev/null 2>&1 || true
}

# need_venv DIRECTORY REQUIREMENTS : a Python environment with these packages.
need_venv() {
    local venv=$1 wanted=$2
    cmp -s "$wanted" "$venv/installed.txt" && return
    # Debian keeps what `python3 -m venv` needs in a package of its own.
    python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
    say "installing what $wanted names"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
        --requirement "$wanted"
    cp "$wanted" "$venv/installed.txt"
}
