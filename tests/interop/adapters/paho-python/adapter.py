"""Adapter for paho-mqtt, both the 1.x API (1.6) and the 2.x API (callback version 2).

See ../../README.md for the protocol on standard input and output. The main thread reads
requests; each connection's network thread is paho's own.
"""

import base64
import hashlib
import json
import sys
import threading

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

try:
    from paho.mqtt import __version__ as VERSION
except ImportError:
    from paho.mqtt.client import __version__ as VERSION

API2 = hasattr(mqtt, "CallbackAPIVersion")
# The 2.x API translates 3.1.1 CONNACK codes to their MQTT 5 equivalents.
CONNACK_3 = {0x84: 1, 0x85: 2, 0x88: 3, 0x86: 4, 0x87: 5}

_output_lock = threading.Lock()


def say(**fields):
    with _output_lock:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def number(code):
    """A reason code as a number: paho hands out ints and objects."""
    return getattr(code, "value", code)


class Pending:
    """Joins a packet id with its request although the answer may come before the id is known."""

    def __init__(self):
        self._lock = threading.Lock()
        self._waiting = {}
        self._early = {}

    def expect(self, mid, done):
        with self._lock:
            if mid not in self._early:
                self._waiting[mid] = done
                return
            result = self._early.pop(mid)
        done(result)

    def complete(self, mid, result):
        with self._lock:
            done = self._waiting.pop(mid, None)
            if done is None:
                self._early[mid] = result
                return
        done(result)


class Client(mqtt.Client):
    """Ends with a TLS alert as with any other lost connection: paho 1.x lets its thread die."""

    def loop_forever(self, *arguments, **options):
        try:
            return super().loop_forever(*arguments, **options)
        except OSError as problem:
            return self.on_broken(problem)


class Connection:
    def __init__(self, request):
        self.name = request["conn"]
        self.v5 = request["version"] == 5
        self.pending = {kind: Pending() for kind in ("publish", "subscribe", "unsubscribe")}
        self._connect_id = request["id"]
        arguments = {
            "client_id": request["client_id"],
            "protocol": mqtt.MQTTv5 if self.v5 else mqtt.MQTTv311,
            "transport": "websockets" if request["transport"] in ("ws", "wss") else "tcp",
        }
        if not self.v5:
            arguments["clean_session"] = request["clean"]
        if API2:
            arguments["callback_api_version"] = mqtt.CallbackAPIVersion.VERSION2
        self.client = client = Client(**arguments)
        client.on_broken = self._end
        if request["transport"] in ("ws", "wss"):
            client.ws_set_options(path="/mqtt")
        if request["transport"] in ("tls", "wss"):
            client.tls_set(ca_certs=request["ca"], certfile=request.get("cert"),
                           keyfile=request.get("key"))
        if request["username"] is not None:
            client.username_pw_set(request["username"], request["password"])
        if request.get("will"):
            will = request["will"]
            client.will_set(will["topic"], will["payload"], will["qos"], will["retain"])
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        if API2:
            client.on_publish = lambda c, u, mid, code, p: self.pending["publish"].complete(
                mid, number(code))
            client.on_subscribe = lambda c, u, mid, codes, p: self.pending["subscribe"].complete(
                mid, [number(code) for code in codes])
            client.on_unsubscribe = lambda c, u, mid, codes, p: self.pending["unsubscribe"].complete(
                mid, [number(code) for code in codes])
        else:
            client.on_publish = lambda c, u, mid: self.pending["publish"].complete(mid, None)
            client.on_subscribe = lambda c, u, mid, codes, p=None: (
                self.pending["subscribe"].complete(mid, [number(code) for code in codes]))
            client.on_unsubscribe = self._on_unsubscribe_1
        options = {}
        if self.v5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = request["session_expiry"]
            options = {"clean_start": request["clean"], "properties": properties}
        client.connect(request["host"], request["port"], request["keepalive"], **options)
        client.loop_start()

    def publish(self, request, topic, payload, alias_known=False):
        properties = None
        if self.v5:
            properties = publish_properties(request["props"])
        info = self.client.publish("" if alias_known else topic, payload, request["qos"],
                                   request.get("retain", False), **(
                                       {"properties": properties} if self.v5 else {}))
        return info.mid

    def subscribe(self, request):
        filters = request["filters"]
        if not self.v5:
            _, mid = self.client.subscribe([(f["filter"], f["qos"]) for f in filters])
        else:
            properties = None
            if "identifier" in filters[0]:
                properties = Properties(PacketTypes.SUBSCRIBE)
                properties.SubscriptionIdentifier = filters[0]["identifier"]
            _, mid = self.client.subscribe(
                [(f["filter"], SubscribeOptions(
                    qos=f["qos"], noLocal=f.get("no_local", False),
                    retainAsPublished=f.get("retain_as_published", False))) for f in filters],
                properties=properties)
        self.pending["subscribe"].expect(mid, lambda codes: say(id=request["id"], codes=codes))

    def unsubscribe(self, request):
        _, mid = self.client.unsubscribe(request["filters"])
        self.pending["unsubscribe"].expect(mid, lambda codes: say(id=request["id"], codes=codes))

    def disconnect(self):
        self.client.disconnect()
        self.client.loop_stop()

    def _on_connect(self, client, userdata, flags, code, properties=None):
        present = flags.session_present if API2 else bool(flags["session present"])
        code = number(code)
        if API2 and not self.v5:
            code = CONNACK_3.get(code, code)
        say(id=self._connect_id, code=code, session_present=present,
            assigned_id=getattr(properties, "AssignedClientIdentifier", None))
        self._connect_id = None

    def _on_disconnect(self, client, userdata, *details):
        # paho 1.x: (rc[, properties]); 2.x: (flags, reason code, properties).
        if API2:
            code = number(details[1]) if details[0].is_disconnect_packet_from_server else None
        else:
            code = None if isinstance(details[0], int) else number(details[0])
        self._end(details, code)
        # paho would reconnect by itself unless told that the end is wanted.
        client.disconnect()

    def _end(self, why, code=None):
        if self._connect_id is not None:
            say(id=self._connect_id, error=f"connection closed before CONNACK ({why})")
            self._connect_id = None
        say(event="closed", conn=self.name, code=code)

    def _on_unsubscribe_1(self, client, userdata, mid, properties=None, codes=None):
        if codes is not None and not isinstance(codes, list):
            codes = [codes]
        self.pending["unsubscribe"].complete(mid, codes and [number(code) for code in codes])

    def _on_message(self, client, userdata, message):
        body = message.payload
        event = {"topic": message.topic, "size": len(body), "qos": message.qos,
                 "sha256": hashlib.sha256(body).hexdigest(), "retain": bool(message.retain),
                 "dup": bool(message.dup)}
        if len(body) <= 4096:
            event["payload"] = base64.b64encode(body).decode()
        if self.v5 and message.properties is not None:
            event["props"] = received_properties(message.properties)
        say(event="message", conn=self.name, **event)


def publish_properties(props):
    properties = Properties(PacketTypes.PUBLISH)
    if "user" in props:
        properties.UserProperty = [tuple(pair) for pair in props["user"]]
    for key, attribute in (("expiry", "MessageExpiryInterval"), ("content_type", "ContentType"),
                           ("format", "PayloadFormatIndicator"), ("topic_alias", "TopicAlias"),
                           ("response_topic", "ResponseTopic")):
        if key in props:
            setattr(properties, attribute, props[key])
    if "correlation" in props:
        properties.CorrelationData = base64.b64decode(props["correlation"])
    return properties


def received_properties(properties):
    props = {}
    for key, attribute in (("expiry", "MessageExpiryInterval"), ("content_type", "ContentType"),
                           ("format", "PayloadFormatIndicator"), ("topic_alias", "TopicAlias"),
                           ("response_topic", "ResponseTopic"),
                           ("identifiers", "SubscriptionIdentifier"), ("user", "UserProperty")):
        if hasattr(properties, attribute):
            props[key] = getattr(properties, attribute)
    if hasattr(properties, "CorrelationData"):
        props["correlation"] = base64.b64encode(properties.CorrelationData).decode()
    return props


class Burst:
    """Answers a burst request after its last acknowledgement."""

    def __init__(self, request):
        self._id = request["id"]
        self._left = request["count"]
        self._lock = threading.Lock()

    def done(self, _code):
        with self._lock:
            self._left -= 1
            finished = self._left == 0
        if finished:
            say(id=self._id)


def handle(connections, request):
    op = request["op"]
    if op == "connect":
        connections[request["conn"]] = Connection(request)
        return
    connection = connections[request["conn"]]
    if op == "subscribe":
        connection.subscribe(request)
    elif op == "unsubscribe":
        connection.unsubscribe(request)
    elif op == "publish":
        mid = connection.publish(request, request["topic"], base64.b64decode(request["payload"]))
        connection.pending["publish"].expect(mid, lambda code: say(id=request["id"], code=code))
    elif op == "burst":
        burst = Burst(request)
        aliased = "topic_alias" in request["props"]
        for index in range(request["count"]):
            mid = connection.publish(request, request["topic"], str(index), aliased and index > 0)
            connection.pending["publish"].expect(mid, burst.done)
    elif op == "disconnect":
        connections.pop(request["conn"]).disconnect()
        say(id=request["id"])
    else:
        raise ValueError(f"unknown request {op}")


def main():
    cannot = {}
    # The network thread looks at the keep-alive once a second only, so pings come late.
    say(hello="paho-mqtt", library=VERSION, keepalive=6, cannot=cannot)
    connections = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            handle(connections, request)
        except Exception as problem:
            say(id=request["id"], error=f"{type(problem).__name__}: {problem}")


main()
