"""Test certificates, made with openssl: a CA, a server (127.0.0.1, ::1, localhost), a client."""

import fcntl
import os
import subprocess
from pathlib import Path

_FILES = ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")
# A day less than the certificates' life, so that a cached set never ends during a run.
_RENEW_WITHIN_SECONDS = 86400
_DAYS = "30"


def make(directory: Path):
    """Fill `directory` with a fresh set of certificates unless a valid one is there."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (all((directory / name).exists() for name in _FILES) and _valid(directory)):
            _make(directory)


def _make(directory):
    _openssl(directory, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", _DAYS, "-subj", "/CN=Interop test CA",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign",
             "-keyout", "ca.key", "-out", "ca.crt")
    _issue(directory, "server", "serverAuth", "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost")
    _issue(directory, "client", "clientAuth", "subjectAltName=DNS:interop-client")


def _valid(directory):
    for name in ("ca", "server", "client"):
        check = subprocess.run(
            ["openssl", "x509", "-in", directory / f"{name}.crt", "-noout",
             "-checkend", str(_RENEW_WITHIN_SECONDS)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if check.returncode != 0:
            return False
    return True


def _issue(directory, name, usage, alternative):
    _openssl(directory, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
             "-subj", f"/CN=interop-{name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    extensions = directory / f"{name}.ext"
    extensions.write_text(
        f"basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n"
        f"extendedKeyUsage={usage}\n{alternative}\n")
    _openssl(directory, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
             "-CAcreateserial", "-days", _DAYS, "-extfile", extensions.name, "-out", f"{name}.crt")
    os.chmod(directory / f"{name}.key", 0o644)


def _openssl(directory, *arguments):
    done = subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]}: {done.stderr.strip()}")
