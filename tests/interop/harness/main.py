"""The command: set-up, broker, jobs, one line per case, a closing count."""

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import broker as brokers
from . import cases, certs, clients
from .adapter import Adapter, Failure, Unsupported

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
VERSIONS = {4: "3.1.1", 5: "5.0"}


def main():
    arguments = parse_arguments()
    # Also where a shell has started the suite in the background, with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cache = ROOT / ".cache" / "interop"
    run = cache / "run" / str(os.getpid())
    remove_old_runs(cache / "run")
    run.mkdir(parents=True)
    report = Report()
    broker = None
    adapters = Adapters(run)
    try:
        ready = set_up(arguments, cache, report)
        if arguments.setup_only or not ready:
            return report.close()
        certs.make(cache / "certs")
        broker = brokers.Broker(arguments.broker, ROOT, cache / "certs", run / "broker")
        run_jobs(arguments, ready, broker, adapters, report)
        complaint = broker.stop()
        report.line("FAIL" if complaint else "ok", "broker", "-", "-", "stops-on-sigterm", complaint)
        return report.close()
    except (RuntimeError, OSError) as problem:
        print(f"interop: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interop: interrupted", file=sys.stderr)
        return 130
    finally:
        report.end()
        clients.stop_set_ups()
        adapters.kill_all()
        if broker is not None:
            broker.kill()
        if report.failed or arguments.keep:
            print(f"logs: {run.relative_to(ROOT)}", file=sys.stderr)
        else:
            shutil.rmtree(run, ignore_errors=True)


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="tests/interop/run",
        description="Real MQTT clients against the broker, over TCP, TLS, WebSocket, WSS and QUIC.")
    parser.add_argument("--broker", choices=("punctual", "mosquitto"), default="punctual",
                        help="the broker to test; mosquitto validates the suite itself")
    parser.add_argument("--client", action="append", metavar="NAME",
                        choices=[c.name for c in clients.CLIENTS],
                        help="only this client (repeatable): " + ", ".join(
                            c.name for c in clients.CLIENTS))
    parser.add_argument("--mqtt", choices=list(VERSIONS.values()), help="only this MQTT version")
    parser.add_argument("--transport", choices=brokers.TRANSPORTS, action="append",
                        help="only this transport (repeatable)")
    parser.add_argument("--case", action="append", metavar="NAME", choices=[c.name for c in cases.ALL],
                        help="only this case (repeatable)")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 2),
                        help="jobs at a time (default: %(default)s)")
    parser.add_argument("--allow-missing", action="store_true",
                        help="skip clients whose tools are not installed instead of failing")
    parser.add_argument("--setup-only", action="store_true", help="set up all clients and stop")
    parser.add_argument("--keep", action="store_true", help="keep logs even if all cases pass")
    return parser.parse_args()


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._ended = False

    def end(self):
        """Whatever fails from now on fails because everything is being ended."""
        with self._lock:
            self._ended = True

    def line(self, result, client, version, transport, case, detail=None, seconds=None):
        with self._lock:
            if self._ended:
                return
            if result == "ok":
                self.passed += 1
            elif result == "FAIL":
                self.failed += 1
            else:
                self.skipped += 1
            text = f"{result:<4} {client:<14} {version:<5} {transport:<4} {case}"
            if seconds is not None:
                text += f" ({seconds:.1f} s)"
            print(f"{text}: {detail}" if detail else text, flush=True)

    def close(self):
        seconds = time.monotonic() - self._started
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped "
              f"in {seconds:.0f} s")
        return 1 if self.failed else 0


class Adapters:
    """All client processes of this run, so that none outlives it."""

    def __init__(self, run):
        self._run = run
        self._lock = threading.Lock()
        self._open = set()
        self._closed = False

    def start(self, client, label):
        log = open(self._run / f"{label.replace('/', '-')}.log", "ab")
        with log:
            adapter = Adapter(client.argv(), {**os.environ, **client.environment()}, log)
        with self._lock:
            self._open.add(adapter)
            if self._closed:
                adapter.kill()
        return adapter

    def stop(self, adapter):
        adapter.close()
        with self._lock:
            self._open.discard(adapter)

    def kill_all(self):
        with self._lock:
            self._closed = True
            for adapter in self._open:
                adapter.kill()


def remove_old_runs(directory):
    """Logs of earlier runs whose process has ended."""
    if directory.is_dir():
        for old in directory.iterdir():
            if old.name.isdigit() and not Path(f"/proc/{old.name}").exists():
                shutil.rmtree(old, ignore_errors=True)


def set_up(arguments, cache, report):
    """Set up the wanted clients side by side; returns those that are ready."""
    wanted = [c(HERE / "adapters", cache) for c in clients.CLIENTS
              if not arguments.client or c.name in arguments.client]
    ready = []
    if not arguments.allow_missing and (lacks_tools() or any(c.lack() for c in wanted)):
        subprocess.run([ROOT / "scripts" / "setup-interop"], check=False)

    def one(client):
        started = time.monotonic()
        try:
            if client.set_up():
                print(f"set up {client.name} in {time.monotonic() - started:.0f} s", flush=True)
            ready.append(client)
        except clients.Missing as missing:
            result = "skip" if arguments.allow_missing else "FAIL"
            report.line(result, client.name, "-", "-", "set-up", str(missing))
        except (clients.SetupFailed, OSError) as problem:
            report.line("FAIL", client.name, "-", "-", "set-up", str(problem))

    # Daemon threads: an interrupt must not wait for a download.
    threads = [threading.Thread(target=one, args=(c,), daemon=True) for c in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [c for c in wanted if c in ready]


def lacks_tools():
    """The programs that every run needs, whichever the clients."""
    return any(shutil.which(tool) is None for tool in ("openssl", "mosquitto_passwd"))


def run_jobs(arguments, ready, broker, adapters, report):
    jobs = queue.SimpleQueue()
    for client in ready:
        for version, transports in client.offers.items():
            for transport in transports:
                if arguments.mqtt not in (None, VERSIONS[version]):
                    continue
                if arguments.transport and transport not in arguments.transport:
                    continue
                if transport not in broker.setting.ports:
                    continue
                jobs.put((client, version, transport))
    if jobs.empty():
        raise RuntimeError("no client offers that MQTT version and transport")

    def work():
        while True:
            try:
                client, version, transport = jobs.get_nowait()
            except queue.Empty:
                return
            run_job(arguments, client, version, transport, broker, adapters, report)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(arguments.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_job(arguments, client, version, transport, broker, adapters, report):
    """All cases of one client, version and transport, through one adapter process."""
    label = f"{client.name}/{VERSIONS[version]}/{transport}"
    wanted = [c for c in cases.ALL if c.applies(version, transport)
              and (not arguments.case or c.name in arguments.case)]
    process = Process(client, label, adapters)

    def run_some(some):
        for case in some:
            result, detail = "ok", None
            started = time.monotonic()
            try:
                if not broker.alive:
                    raise Failure("the broker is not running any more")
                run_case(case, cases.Job(label, case.name, process.get(), version, transport,
                                         broker.setting))
            except Unsupported as reason:
                result, detail = "skip", str(reason)
            except Failure as failure:
                result, detail = "FAIL", str(failure)
            except Exception as problem:
                result, detail = "FAIL", f"the suite itself: {problem!r}"
            report.line(result, client.name, VERSIONS[version], transport, case.name, detail,
                        time.monotonic() - started)

    waiting = [threading.Thread(target=run_some, args=([c],), daemon=True)
               for c in wanted if c.waits]
    for thread in waiting:
        thread.start()
    run_some([c for c in wanted if not c.waits])
    for thread in waiting:
        thread.join()
    process.stop()


def run_case(case, job):
    try:
        case.run(job)
    finally:
        job.end()


class Process:
    """A job's adapter process, started again for the next case if it has ended."""

    def __init__(self, client, label, adapters):
        self._client = client
        self._label = label
        self._adapters = adapters
        self._lock = threading.Lock()
        self._adapter = None

    def get(self):
        with self._lock:
            if self._adapter is None or not self._adapter.alive:
                self._drop()
                self._adapter = self._adapters.start(self._client, self._label)
            return self._adapter

    def stop(self):
        with self._lock:
            self._drop()

    def _drop(self):
        if self._adapter is not None:
            self._adapters.stop(self._adapter)
            self._adapter = None
