"""Starts the broker under test with TCP, TLS, WebSocket, WSS, QUIC and client-certificate
listeners.

All listeners demand a password (the file is made by mosquitto_passwd) and obey an ACL
file; both brokers read the same two files. The broker is ended by its own pid.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

USERNAME = "interop"
PASSWORD = "correct horse battery"
TRANSPORTS = ("tcp", "tls", "ws", "wss", "quic")
_LISTENERS = (*TRANSPORTS, "mtls")
_START_SECONDS = 20
_STOP_SECONDS = 15

# interop/#: everything the cases do. $SYS: read only. denied/#: nothing, explicitly. Whatever
# else: nothing, for lack of a grant.
_ACL = f"""user {USERNAME}
topic readwrite interop/#
topic read $SYS/#
topic deny denied/#
"""

# What mosquitto 2.0.11 does not do; the suite's own validation leaves these out.
_MOSQUITTO_GAPS = {
    "denied-subscription": "mosquitto 2.0 applies ACL files to messages and grants every subscription",
    "unbounded-qos2": "mosquitto 2.0 loses or reorders QoS 2 messages of 3.1.1 clients beyond "
                      "max_inflight_messages at once",
    "receive-maximum": "mosquitto_sub of 2.0.11 ends a QoS 2 connection to mosquitto 2.0.11 with a "
                       "protocol error when its Receive Maximum is reached",
    "shared-no-local": "mosquitto 2.0 accepts No Local on a shared subscription",
}


class Setting:
    """What a client must know to reach the broker, and what the broker is expected to do."""

    def __init__(self, ports, certs: Path, gaps):
        self.ports = ports
        self.ca = str(certs / "ca.crt")
        self.cert = str(certs / "client.crt")
        self.key = str(certs / "client.key")
        self.username = USERNAME
        self.password = PASSWORD
        self.gaps = gaps


class Broker:
    def __init__(self, kind, root: Path, certs: Path, directory: Path):
        self.kind = kind
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        # mosquitto has no QUIC.
        ports = _free_ports([name for name in _LISTENERS
                             if kind == "punctual" or name != "quic"])
        self._write_password_file()
        (directory / "acl").write_text(_ACL)
        argv = (self._mosquitto(ports, certs) if kind == "mosquitto"
                else self._punctual(root, ports, certs))
        self.setting = Setting(ports, certs, _MOSQUITTO_GAPS if kind == "mosquitto" else {})
        self.command = argv
        self.log_path = directory / "broker.log"
        with open(self.log_path, "wb") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self._wait_ready()
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self):
        return self._process.poll() is None

    def stop(self):
        """SIGTERM; returns a complaint unless the broker ended by itself with status 0."""
        if not self.alive:
            return f"the broker had ended with status {self._process.returncode}; " + self._tail()
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"the broker was still running {_STOP_SECONDS} s after SIGTERM"
        return None if status == 0 else f"the broker ended with status {status} after SIGTERM"

    def kill(self):
        if self.alive:
            self._process.kill()
        self._process.wait()

    def _tail(self):
        lines = self.log_path.read_text(errors="replace").splitlines()[-5:]
        return "its last words: " + " | ".join(lines)

    def _wait_ready(self):
        end = time.monotonic() + _START_SECONDS
        for name, port in self.setting.ports.items():
            if name == "quic":
                # Nobody can ask whether it is there; it is opened with the others.
                continue
            while True:
                if not self.alive:
                    raise RuntimeError(
                        f"{self.command[0]} ended with status {self._process.returncode} "
                        f"at start; {self._tail()}")
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if time.monotonic() > end:
                        raise RuntimeError(
                            f"the {name} listener on port {port} does not answer "
                            f"after {_START_SECONDS} s; {self._tail()}") from None
                    time.sleep(0.05)

    def _write_password_file(self):
        path = self._directory / "passwd"
        subprocess.run(["mosquitto_passwd", "-b", "-c", path, USERNAME, PASSWORD], check=True,
                       capture_output=True)

    def _mosquitto(self, ports, certs):
        tls = f"certfile {certs}/server.crt\nkeyfile {certs}/server.key\n"
        lines = [
            "per_listener_settings false", "allow_anonymous false",
            f"password_file {self._directory}/passwd", f"acl_file {self._directory}/acl",
            # The cases burst a thousand messages; mosquitto's default queue is exactly that.
            "max_queued_messages 10000",
        ]
        for name in ports:
            lines.append(f"listener {ports[name]} 127.0.0.1")
            if name in ("ws", "wss"):
                lines.append("protocol websockets")
            if name in ("tls", "wss", "mtls"):
                lines.append(tls)
            if name == "mtls":
                lines.append(f"cafile {certs}/ca.crt\nrequire_certificate true")
        if os.geteuid() == 0:
            # mosquitto would change to a user that may not read the files of this run.
            lines.insert(0, "user root")
        path = self._directory / "mosquitto.conf"
        path.write_text("\n".join(lines) + "\n")
        program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if not program:
            raise RuntimeError("mosquitto is not installed")
        return [program, "-c", str(path)]

    def _punctual(self, root, ports, certs):
        lines = [
            # A password file also ends anonymous connections.
            "[auth]",
            f"password_file = \"{self._directory}/passwd\"",
            f"acl_file = \"{self._directory}/acl\"",
        ]
        for name in _LISTENERS:
            scheme = "tls" if name == "mtls" else name
            lines += ["", "[[listener]]", f"address = \"{scheme}://127.0.0.1:{ports[name]}\""]
            if name in ("tls", "wss", "quic", "mtls"):
                lines += [f"certificate = \"{certs}/server.crt\"", f"key = \"{certs}/server.key\""]
            if name == "mtls":
                lines += [f"client_ca = \"{certs}/ca.crt\"", "require_client_certificate = true"]
        path = self._directory / "punctual.toml"
        path.write_text("\n".join(lines) + "\n")
        return [str(punctual_binary(root)), "serve", "--config", str(path),
                "--data", str(self._directory / "data"), "--http", "off"]


def punctual_binary(root: Path):
    """PUNCTUAL_BIN, or the newer of the workspace's release and debug builds."""
    given = os.environ.get("PUNCTUAL_BIN")
    if given:
        if not os.access(given, os.X_OK):
            raise RuntimeError(f"PUNCTUAL_BIN={given} is no executable file")
        return Path(given)
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    built = [p for kind in ("release", "debug") if (p := target / kind / "punctual").is_file()]
    if not built:
        raise RuntimeError(f"no punctual binary in {target}: run `cargo build --release -p punctual` "
                           "or set PUNCTUAL_BIN")
    return max(built, key=lambda p: p.stat().st_mtime)


def _free_ports(names):
    kinds = {"quic": socket.SOCK_DGRAM}
    sockets = {name: socket.socket(type=kinds.get(name, socket.SOCK_STREAM)) for name in names}
    try:
        for sock in sockets.values():
            sock.bind(("127.0.0.1", 0))
        return {name: sock.getsockname()[1] for name, sock in sockets.items()}
    finally:
        for sock in sockets.values():
            sock.close()
