"""The foreign clients: how each is set up, once per change of its inputs, and started.

Every client lives in `.cache/interop/NAME`, where a stamp holds the hash of all that its
set-up read (sources, lock files, tool versions); an equal stamp makes the set-up a no-op.
"""

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path


# Commands of unfinished set-ups, each the leader of a process group.
_running = set()


def stop_set_ups():
    """End the commands of set-ups that an interrupt left unfinished."""
    for command in list(_running):
        try:
            os.killpg(command.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass


class Missing(Exception):
    """A tool that the client needs is not installed."""


class SetupFailed(Exception):
    """A set-up command failed; the text has the end of its output."""


class Client:
    name = ""
    # Version -> transports.
    offers = {}
    # Programs that must be on the PATH.
    tools = ()

    def __init__(self, adapters: Path, cache: Path):
        self.source = adapters / self.directory()
        self.cache = cache / self.name

    def directory(self):
        return self.name

    def inputs(self):
        """The files whose content decides whether the set-up must run again: by default all."""
        return sorted(p for p in self.source.rglob("*") if p.is_file())

    def tool_versions(self):
        return [_output([tool, "--version"]) for tool in self.tools]

    def install(self):
        """Fetch and build into `self.cache`."""

    def argv(self):
        raise NotImplementedError

    def environment(self):
        return {}

    def lack(self):
        """What stops the client from being set up on this machine, or None."""
        for tool in self.tools:
            if shutil.which(tool) is None:
                return f"`{tool}` is not installed (scripts/setup-interop installs it)"
        return None

    def set_up(self):
        lack = self.lack()
        if lack:
            raise Missing(lack)
        self.cache.mkdir(parents=True, exist_ok=True)
        with open(self.cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            wanted = self._fingerprint()
            stamp = self.cache / "stamp"
            if stamp.exists() and stamp.read_text() == wanted:
                return False
            stamp.unlink(missing_ok=True)
            self.install()
            stamp.write_text(wanted)
            return True

    def _fingerprint(self):
        state = hashlib.sha256(repr(self.tool_versions()).encode())
        for path in self.inputs():
            state.update(f"{path.relative_to(self.source)}\0".encode())
            state.update(path.read_bytes())
        return state.hexdigest()

    def run(self, *argv, **environment):
        command = subprocess.Popen([str(a) for a in argv], cwd=self.source, text=True,
                                   env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        _running.add(command)
        output, _ = command.communicate()
        _running.discard(command)
        if command.returncode != 0:
            tail = "\n".join(output.strip().splitlines()[-15:])
            raise SetupFailed(f"`{' '.join(str(a) for a in argv)}` failed:\n{tail}")


class Mosquitto(Client):
    name = "mosquitto"
    offers = {4: ("tcp", "tls"), 5: ("tcp", "tls")}
    tools = ("mosquitto_pub", "mosquitto_sub", "python3")

    def inputs(self):
        return []

    def tool_versions(self):
        return []

    def argv(self):
        return ["python3", str(self.source / "adapter.py")]


class PahoPython(Client):
    offers = {v: ("tcp", "tls", "ws", "wss") for v in (4, 5)}
    tools = ("python3",)

    def directory(self):
        return "paho-python"

    def inputs(self):
        return [self.source / f"requirements-{self.api}.txt"]

    def install(self):
        venv = self.cache / "venv"
        shutil.rmtree(venv, ignore_errors=True)
        self.run("python3", "-m", "venv", venv)
        self.run(venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check",
                 "--no-deps", "-r", self.source / f"requirements-{self.api}.txt")

    def argv(self):
        return [str(self.cache / "venv/bin/python"), str(self.source / "adapter.py")]


class PahoPython1(PahoPython):
    name = "paho-python-1"
    api = 1


class PahoPython2(PahoPython):
    name = "paho-python-2"
    api = 2


class Aioquic(Client):
    name = "aioquic"
    offers = {v: ("quic",) for v in (4, 5)}
    tools = ("python3",)

    def inputs(self):
        return [self.source / "requirements.txt"]

    def install(self):
        venv = self.cache / "venv"
        shutil.rmtree(venv, ignore_errors=True)
        self.run("python3", "-m", "venv", venv)
        self.run(venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check",
                 "--no-deps", "-r", self.source / "requirements.txt")

    def argv(self):
        return [str(self.cache / "venv/bin/python"), str(self.source / "adapter.py")]


class MqttJs(Client):
    name = "mqttjs"
    offers = {v: ("tcp", "tls", "ws", "wss") for v in (4, 5)}
    tools = ("node", "npm")

    def inputs(self):
        return [self.source / "package.json", self.source / "package-lock.json"]

    def install(self):
        for file in ("package.json", "package-lock.json"):
            shutil.copy(self.source / file, self.cache / file)
        self.run("npm", "ci", "--prefix", self.cache, "--no-audit", "--no-fund", "--ignore-scripts")

    def argv(self):
        return ["node", str(self.source / "adapter.js")]

    def environment(self):
        return {"NODE_PATH": str(self.cache / "node_modules")}


class Rumqttc(Client):
    name = "rumqttc"
    offers = {v: ("tcp", "tls", "ws", "wss") for v in (4, 5)}
    tools = ("cargo",)

    def install(self):
        self.run("cargo", "build", "--locked", "--quiet", CARGO_TARGET_DIR=str(self.cache / "target"))

    def argv(self):
        return [str(self.cache / "target/debug/interop-rumqttc")]


class HiveMq(Client):
    name = "hivemq"
    offers = {v: ("tcp", "tls", "ws", "wss") for v in (4, 5)}
    tools = ("java", "javac", "mvn")

    def install(self):
        libraries, classes = self.cache / "lib", self.cache / "classes"
        shutil.rmtree(libraries, ignore_errors=True)
        shutil.rmtree(classes, ignore_errors=True)
        self.run("mvn", "-q", "-B", "-f", self.source / "pom.xml", "dependency:copy-dependencies",
                 f"-DoutputDirectory={libraries}", f"-DbuildDirectory={self.cache / 'build'}")
        self.run("javac", "-Xlint:all", "-Xlint:-processing", "-Werror", "-proc:none", "-d", classes,
                 "-cp", f"{libraries}/*", *sorted((self.source / "src").rglob("*.java")))

    def argv(self):
        # A short-lived, small program: the first compiler tier and one GC thread suffice.
        return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp",
                f"{self.cache}/classes:{self.cache}/lib/*", "Adapter"]


class PahoGo(Client):
    tools = ("go",)

    def directory(self):
        return "go"

    def lack(self):
        lack = super().lack()
        if lack:
            return lack
        # Since 1.21 the go command fetches the version that go.mod asks for.
        version = re.search(r"go(\d+)\.(\d+)", self.tool_versions()[0])
        if version and (int(version[1]), int(version[2])) < (1, 21):
            return f"Go 1.21 or later is needed, {version[0]} is installed: see https://go.dev/dl"
        return None

    def tool_versions(self):
        return [_output(["go", "version"])]

    def install(self):
        self.run("go", "build", "-mod=readonly", "-o", self.cache / "adapter", f"./{self.package}")

    def argv(self):
        return [str(self.cache / "adapter")]


class PahoGo3(PahoGo):
    name = "paho-go-3"
    package = "mqtt3"
    offers = {4: ("tcp", "tls", "ws", "wss")}


class PahoGo5(PahoGo):
    name = "paho-go-5"
    package = "mqtt5"
    offers = {5: ("tcp", "tls", "ws", "wss")}


CLIENTS = (Mosquitto, PahoPython1, PahoPython2, Aioquic, MqttJs, Rumqttc, HiveMq, PahoGo3, PahoGo5)


def _output(argv):
    return subprocess.run(argv, capture_output=True, text=True).stdout.strip()
