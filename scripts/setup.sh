# Set-up that the other scripts share. Source it; do not run it.
# Installs only what is missing, says what it installs, and needs root or sudo
# for Debian packages.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt_updated=

# need_packages COMMAND=PACKAGE ... : installs the packages whose command is
# missing.
need_packages() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null 2>&1 || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} = 0 ] && return
    say "installing ${missing[*]}"
    [ -n "$apt_updated" ] || as_root apt-get update -qq
    apt_updated=1
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# need_rust : a toolchain as rust-toolchain.toml pins it.
need_rust() {
    need_packages cc=build-essential
    export PATH="$HOME/.cargo/bin:$PATH"
    if ! command -v cargo >/dev/null 2>&1; then
        if apt-cache show rustup >/dev/null 2>&1; then
            need_packages rustup=rustup
        else
            need_packages curl=curl
            say "installing rustup"
            curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
                sh -s -- -y --profile minimal --default-toolchain none --no-modify-path
        fi
    fi
    # Installs the pinned toolchain on first use.
    cargo --version >/dev/null
}

# need_venv DIRECTORY REQUIREMENTS : a Python environment with these packages.
need_venv() {
    local venv=$1 wanted=$2
    cmp -s "$wanted" "$venv/installed.txt" && return
    # Debian keeps what `python3 -m venv` needs in a package of its own.
    python3 -c 'import ensurepip' 2>/dev/null || need_packages no-such-command=python3-venv
    say "installing what $wanted names"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
        --requirement "$wanted"
    cp "$wanted" "$venv/installed.txt"
}
