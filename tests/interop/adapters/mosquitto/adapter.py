"""Adapter for the mosquitto_pub and mosquitto_sub commands.

See ../../README.md for the protocol on standard input and output. A subscription is a
mosquitto_sub process, each publish or burst a mosquitto_pub process of its own. What happened on
the wire is read from their `-d` lines. Because mosquitto_sub cannot connect without
subscribing, a connection that must exist before that (with a will, a keep-alive, a known session)
subscribes to a topic of no meaning at `connect`; all others start at `subscribe`.
"""

import base64
import hashlib
import json
import queue
import re
import subprocess
import sys
import threading

_output_lock = threading.Lock()

CONNACK = re.compile(r"^Client \S* ?received CONNACK \((\d+)\)")
SUBSCRIBED = re.compile(r"^Subscribed \(mid: \d+\): (.*)$")
PUBACK = re.compile(r"received PUB(?:ACK|REC|COMP) \(Mid: \d+, RC:(\d+)\)")
# One line for each message: mosquitto's JSON (flags, properties), then the body in hexadecimal.
FORMAT = "MSG %j\t%x"

CANNOT = {
    "assigned-client-id": "mosquitto_sub never sends an empty client id",
    "subscription-options": "mosquitto_sub has no flag for No Local",
    "bad-subscribe": "mosquitto_sub has no flag for No Local",
    "close-code": "mosquitto_sub does not print the reason of a DISCONNECT",
    "binary-correlation": "properties are command-line arguments, without NUL",
}


def say(**fields):
    with _output_lock:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


class Subscriber:
    """A running mosquitto_sub."""

    running = set()

    def __init__(self, connection, topics, extra=(), silent=False):
        self._connection = connection
        self._told = queue.SimpleQueue()
        self._closing = silent
        Subscriber.running.add(self)
        self._connacks = 0
        request = connection.request
        argv = ["mosquitto_sub", "-d", "-F", FORMAT, "-k", str(request["keepalive"]),
                *connection.common(request["client_id"]), *connection.session(), *extra]
        for topic in topics:
            argv += ["-t", topic]
        argv += ["-q", str(connection.qos)]
        will = request.get("will")
        if will:
            argv += ["--will-topic", will["topic"], "--will-payload", will["payload"],
                     "--will-qos", str(will["qos"])] + ["--will-retain"] * will["retain"]
        self._process = subprocess.Popen(
            ["stdbuf", "-oL", *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self, kind):
        """The detail of the next event of `kind`; None if the process ended before."""
        while True:
            told, detail = self._told.get()
            if told == kind:
                return detail
            if told == "end":
                return None

    def close(self):
        self._closing = True
        # mosquitto_sub answers SIGTERM with a DISCONNECT, unless it waits to connect again.
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        Subscriber.running.discard(self)

    def kill(self):
        self._closing = True
        self._process.kill()

    def _read(self):
        for line in self._process.stdout:
            line = line.rstrip("\n")
            if line.startswith("MSG "):
                # A signal can make mosquitto_sub print its last line twice.
                if not self._closing:
                    self._connection.message(line[4:])
            elif match := CONNACK.match(line):
                self._connacks += 1
                if self._connacks == 2:
                    # It lost its connection and came back by itself.
                    say(event="closed", conn=self._connection.name)
                self._told.put(("connack", int(match[1])))
            elif match := SUBSCRIBED.match(line):
                codes = [int(code) for code in match[1].split(",")]
                self._told.put(("subscribed", codes))
            elif "received UNSUBACK" in line:
                self._told.put(("unsubscribed", None))
        self._told.put(("end", None))
        if not self._closing:
            say(event="closed", conn=self._connection.name)


class Connection:
    # The topics of sessions that outlive their connection, by client id.
    sessions = {}

    def __init__(self, request):
        self.request = request
        self.name = request["conn"]
        self.qos = 2
        self.subscriber = None
        client_id, clean = request["client_id"], request["clean"]
        known = self.sessions.get(client_id)
        if clean:
            self.sessions.pop(client_id, None)
        code = 0
        if known and not clean:
            self.subscriber = Subscriber(self, known)
            code = self.subscriber.wait("connack")
        elif known or request.get("will") or request["keepalive"] != 60:
            self.subscriber = Subscriber(self, [request["prefix"] + "/idle"])
            code = self.subscriber.wait("connack")
            self.subscriber.wait("subscribed")
        elif request["probe"]:
            probe = Subscriber(self, [request["prefix"] + "/idle"], ["-E"], silent=True)
            code = probe.wait("connack")
            probe.close()
        if code is None:
            raise RuntimeError("mosquitto_sub ended without a CONNACK")
        say(id=request["id"], code=code)

    def common(self, client_id):
        request = self.request
        argv = ["-h", request["host"], "-p", str(request["port"]), "-i", client_id,
                "-V", "mqttv5" if request["version"] == 5 else "mqttv311"]
        if request["username"] is not None:
            argv += ["-u", request["username"], "-P", request["password"]]
        if request["transport"] == "tls":
            argv += ["--cafile", request["ca"]]
            if request.get("cert"):
                argv += ["--cert", request["cert"], "--key", request["key"]]
        return argv

    def session(self):
        argv = [] if self.request["clean"] else ["-c"]
        if self.request["version"] == 5:
            if self.request.get("receive_maximum"):
                argv += ["-D", "connect", "receive-maximum", str(self.request["receive_maximum"])]
            if not self.request["clean"]:
                argv += ["-x", str(self.request["session_expiry"])]
        return argv

    def subscribe(self, request):
        filters = request["filters"]
        topics = [f["filter"] for f in filters]
        self.qos = filters[0]["qos"]
        if not self.request["clean"]:
            self.sessions[self.request["client_id"]] = topics
        self.disconnect()
        self.subscriber = Subscriber(self, topics)
        codes = self.subscriber.wait("subscribed")
        if codes is None:
            raise RuntimeError("mosquitto_sub ended before SUBACK")
        say(id=request["id"], codes=codes)

    def unsubscribe(self, request):
        """A new mosquitto_sub takes over the session and unsubscribes in it."""
        client_id = self.request["client_id"]
        topics = [t for t in self.sessions[client_id] if t not in request["filters"]]
        self.sessions[client_id] = topics
        self.subscriber.close()
        self.subscriber = Subscriber(
            self, topics, [a for f in request["filters"] for a in ("-U", f)])
        self.subscriber.wait("unsubscribed")
        say(id=request["id"])

    def publish(self, request):
        body = base64.b64decode(request["payload"])
        output = self._mosquitto_pub(request, ["-s"] if body else ["-n"], body)
        codes = [int(code) for code in PUBACK.findall(output)]
        say(id=request["id"], code=codes[-1] if codes and self.request["version"] == 5 else None)

    def burst(self, request):
        lines = "".join(f"{number}\n" for number in range(request["count"]))
        self._mosquitto_pub(request, ["-l"], lines.encode())
        say(id=request["id"])

    def _mosquitto_pub(self, request, extra, body):
        argv = ["mosquitto_pub", "-d", *self.common(self.request["client_id"] + "-pub"),
                "-t", request["topic"], "-q", str(request["qos"]), *extra]
        if request.get("retain"):
            argv.append("-r")
        for name, value in publish_properties(request["props"]):
            argv += ["-D", "publish", name, *value]
        done = subprocess.run(argv, input=body, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            raise RuntimeError(f"mosquitto_pub ended with status {done.returncode}: "
                               f"{' | '.join(output.splitlines()[-3:])}")
        return output

    def message(self, line):
        described, hexadecimal = line.rsplit("\t", 1)
        fields = json.loads(described, object_pairs_hook=pairs_where_repeated, strict=False)
        body = bytes.fromhex(hexadecimal)
        event = {"topic": fields["topic"], "size": len(body), "qos": fields["qos"],
                 "sha256": hashlib.sha256(body).hexdigest(), "retain": bool(fields["retain"])}
        if len(body) <= 4096:
            event["payload"] = base64.b64encode(body).decode()
        event["props"] = received_properties(fields.get("properties", {}))
        say(event="message", conn=self.name, **event)

    def disconnect(self):
        if self.subscriber is not None:
            self.subscriber.close()
            self.subscriber = None


def pairs_where_repeated(pairs):
    """A JSON object as a dict, which also keeps its members in order under the key None."""
    return {**dict(pairs), None: [list(pair) for pair in pairs]}


def publish_properties(props):
    for pair in props.get("user", ()):
        yield "user-property", pair
    for key, name in (("expiry", "message-expiry-interval"), ("content_type", "content-type"),
                      ("format", "payload-format-indicator"), ("topic_alias", "topic-alias"),
                      ("response_topic", "response-topic")):
        if key in props:
            yield name, [str(props[key])]
    if "correlation" in props:
        yield "correlation-data", [base64.b64decode(props["correlation"]).decode()]


def received_properties(properties):
    props = {}
    for key, name in (("expiry", "message-expiry-interval"), ("content_type", "content-type"),
                      ("format", "payload-format-indicator"),
                      ("response_topic", "response-topic")):
        if name in properties:
            props[key] = properties[name]
    if "user-properties" in properties:
        props["user"] = properties["user-properties"][None]
    if "correlation-data" in properties:
        props["correlation"] = base64.b64encode(properties["correlation-data"].encode()).decode()
    return props


class Worker:
    """Serves the requests of one connection in order; connections do not wait for each other."""

    def __init__(self):
        self._requests = queue.SimpleQueue()
        self._connection = None
        self.put = self._requests.put
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            request = self._requests.get()
            try:
                if request["op"] == "connect":
                    self._connection = Connection(request)
                elif request["op"] == "disconnect":
                    if self._connection is not None:
                        self._connection.disconnect()
                    say(id=request["id"])
                    return
                else:
                    getattr(self._connection, request["op"])(request)
            except Exception as problem:
                say(id=request["id"], error=f"{type(problem).__name__}: {problem}")


def main():
    version = subprocess.run(["mosquitto_pub", "--help"], capture_output=True, text=True).stdout
    # mosquitto_sub accepts no keep-alive below five seconds.
    say(hello="mosquitto", library=" ".join(version.split()[10:13]), keepalive=5, cannot=CANNOT,
        disconnect="with-will")
    workers = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["conn"]
        if request["op"] == "connect":
            workers[name] = Worker()
        workers[name].put(request)
        if request["op"] == "disconnect":
            del workers[name]
    for subscriber in list(Subscriber.running):
        subscriber.kill()


main()
