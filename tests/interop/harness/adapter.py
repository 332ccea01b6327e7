"""Drives one adapter process: a foreign client behind one JSON object per line.

Requests go to its standard input and carry an `id`; answers repeat the `id`; events
(`message`, `closed`) carry the connection's name. README.md describes every field.
A `Conn` keeps what arrived, in order, and every wait has a deadline.
"""

import base64
import hashlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque

DEADLINE = float(os.environ.get("INTEROP_DEADLINE", "30"))


class Failure(Exception):
    """A case's expectation does not hold; the text is what the report says."""


class Refused(Failure):
    """The client reported an error for a request."""


class Unsupported(Exception):
    """The client library has no way to do this; the text is the reason."""


class Message:
    """A received application message. Bodies above 4 KiB come as hash and size only."""

    def __init__(self, event):
        self.topic = event["topic"]
        self.qos = event["qos"]
        self.retain = bool(event["retain"])
        self.dup = event.get("dup")
        self.size = event["size"]
        self.sha256 = event["sha256"]
        self.props = event.get("props") or {}
        body = event.get("payload")
        self.payload = None if body is None else base64.b64decode(body)

    @property
    def text(self):
        return None if self.payload is None else self.payload.decode("utf-8", "replace")

    def __str__(self):
        shown = f"{self.size} B" if self.payload is None or self.size > 60 else repr(self.payload)
        return f"{self.topic} {shown} qos={self.qos} retain={int(self.retain)}"


class Adapter:
    def __init__(self, argv, env, log):
        self._process = subprocess.Popen(
            argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            encoding="utf-8", start_new_session=True)
        self._ids = itertools.count(1)
        self._write_lock = threading.Lock()
        self._changed = threading.Condition()
        self._answers = {}
        self._conns = {}
        self._gone = False
        self.hello = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait(lambda: self.hello is not None, DEADLINE * 2, "the adapter's greeting")

    @property
    def alive(self):
        return not self._gone

    def close(self):
        """End the process: by closing its input, by force after a grace period."""
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            pass
        self.kill()
        self._process.wait()
        self._reader.join(3)

    def kill(self):
        """End the process and whatever it started (it leads a process group of its own)."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def begin(self, op, **fields):
        """Send a request and return its id, for `finish`."""
        number = next(self._ids)
        line = json.dumps({"id": number, "op": op, **fields}, ensure_ascii=False)
        try:
            with self._write_lock:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
        except (OSError, ValueError):
            raise Failure(f"{op}: the client process ended") from None
        return number

    def finish(self, number, op, deadline=None):
        self._wait(lambda: number in self._answers, deadline or DEADLINE, f"{op} to complete")
        answer = self._answers.pop(number)
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        if "error" in answer:
            raise Refused(f"{op}: {answer['error']}")
        return answer

    def call(self, op, deadline=None, **fields):
        return self.finish(self.begin(op, **fields), op, deadline)

    def register(self, conn):
        self._conns[conn.name] = conn

    def forget(self, conn):
        self._conns.pop(conn.name, None)

    def wait_for(self, ready, deadline, what):
        self._wait(ready, deadline, what)

    def _wait(self, ready, deadline, what):
        end = time.monotonic() + deadline
        with self._changed:
            while not ready():
                if self._gone:
                    raise Failure(f"the client process ended (status {self._process.poll()}) "
                                  f"while waiting for {what}")
                left = end - time.monotonic()
                if left <= 0:
                    raise Failure(f"no sign of {what} within {deadline:g} s")
                self._changed.wait(left)

    def _read(self):
        for line in self._process.stdout:
            try:
                data = json.loads(line)
            except ValueError:
                continue
            with self._changed:
                self._dispatch(data)
                self._changed.notify_all()
        self._process.wait()
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _dispatch(self, data):
        if "hello" in data:
            self.hello = data
        elif "id" in data:
            self._answers[data["id"]] = data
        elif "event" in data:
            conn = self._conns.get(data.get("conn"))
            if conn is None:
                return
            if data["event"] == "message":
                conn.inbox.append(Message(data))
            elif data["event"] == "closed":
                conn.closed = True
                conn.close_code = data.get("code")


class Conn:
    """One MQTT connection of the foreign client."""

    def __init__(self, adapter, name, fields):
        self.adapter = adapter
        self.name = name
        self.inbox = deque()
        self.closed = False
        self.close_code = None
        self._ended = False
        adapter.register(self)
        try:
            answer = adapter.call("connect", conn=name, **fields)
        except Refused:
            self.discard()
            raise
        self.code = answer.get("code", 0)
        self.session_present = answer.get("session_present")
        self.assigned_id = answer.get("assigned_id")

    def subscribe(self, *filters):
        """Filters are strings (QoS 2) or dicts; returns the SUBACK codes as the client tells them."""
        asked = [{"filter": f, "qos": 2} if isinstance(f, str) else f for f in filters]
        return self.adapter.call("subscribe", conn=self.name, filters=asked).get("codes")

    def unsubscribe(self, *filters):
        return self.adapter.call("unsubscribe", conn=self.name, filters=list(filters)).get("codes")

    def publish(self, topic, payload, qos=1, retain=False, props=None):
        """Returns once the QoS handshake is complete: the reason code, None where untold."""
        body = payload.encode() if isinstance(payload, str) else payload
        return self.adapter.call(
            "publish", conn=self.name, topic=topic, payload=base64.b64encode(body).decode(),
            qos=qos, retain=retain, props=props or {}).get("code")

    def burst(self, topic, count, qos=1, props=None):
        """Publish the decimal numbers 0 to count-1, pipelined; returns when all are acknowledged."""
        self.adapter.call("burst", conn=self.name, topic=topic, count=count, qos=qos,
                          props=props or {}, deadline=DEADLINE * 2)

    def next(self, what="a message", deadline=None):
        """The next received message, in the order of arrival."""
        self.adapter.wait_for(lambda: self.inbox or self.closed, deadline or DEADLINE,
                              f"{what} on {self.name}")
        if not self.inbox:
            raise Failure(f"the connection {self.name} closed (code {self.close_code}) "
                          f"while waiting for {what}")
        return self.inbox.popleft()

    def until(self, topic, what="the last message"):
        """All messages up to and without the first on `topic`."""
        received = []
        while True:
            message = self.next(what)
            if message.topic == topic:
                return received
            received.append(message)

    def wait_closed(self):
        self.adapter.wait_for(lambda: self.closed, DEADLINE, f"the end of connection {self.name}")

    def disconnect(self):
        self._ended = True
        self.adapter.call("disconnect", conn=self.name)

    def discard(self):
        """Forget the connection whatever its state; failures no longer matter here."""
        try:
            if self.adapter.alive and not self._ended:
                self.adapter.call("disconnect", conn=self.name, deadline=5)
        except (Failure, Unsupported):
            pass
        self.adapter.forget(self)


def digest(payload):
    return hashlib.sha256(payload).hexdigest()
