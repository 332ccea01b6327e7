"""The cases, written once for every client.

A case gets a `Job` (one client, protocol version and transport) and raises `Failure`
when the broker, seen through that client, does not do what MQTT demands. All topics and
client ids carry the job's and the case's name, so that jobs can share one broker.
Nothing waits for a fixed time, except where elapsed time is what is tested.
"""

import base64
import itertools
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from .adapter import DEADLINE, Conn, Failure, Refused, Unsupported, digest
from .relay import Relay

SIZES = (1, 1024, 300 * 1024)
ORDERED = 1000
FAN_OUT = 20
FAN_OUT_MESSAGES = 50
REFUSED_TOGETHER = 8
REFUSED_EACH = 4
# Messages in flight that every broker bears, of clients that know no bound of their own.
SMALL_WINDOW = 20
NO_RECEIVE_MAXIMUM = 65535

NOT_AUTHORISED = {4: (4, 5), 5: (0x86, 0x87)}
SUBSCRIBE_DENIED = {4: 0x80, 5: 0x87}
NO_SUBSCRIPTION_EXISTED = 0x11
SESSION_TAKEN_OVER = 0x8E
NO_MATCHING_SUBSCRIBERS = 0x10

ALL = []


def case(name, versions=(4, 5), transports=None, waits=False):
    """`waits`: the case mostly lets time pass, and runs beside the job's others."""
    def register(function):
        ALL.append(Case(name, versions, transports, waits, function))
        return function
    return register


class Case:
    def __init__(self, name, versions, transports, waits, run):
        self.name = name
        self.versions = versions
        self.transports = transports
        self.waits = waits
        self.run = run

    def applies(self, version, transport):
        return version in self.versions and (
            self.transports is None or transport in self.transports)


class Job:
    """What a case needs: connections of the client under test, names, expectations."""

    def __init__(self, label, case_name, adapter, version, transport, setting):
        self.label = label
        self.adapter = adapter
        self.version = version
        self.transport = transport
        self.setting = setting
        self._case = case_name
        self._numbers = itertools.count(1)
        self._conns = []
        self._relays = []

    def end(self):
        for conn in self._conns:
            conn.discard()
        for relay in self._relays:
            relay.cut()
        self._conns.clear()
        self._relays.clear()

    def topic(self, rest=""):
        base = f"interop/{self.label}/{self._case}"
        return f"{base}/{rest}" if rest else base

    def client_id(self, role):
        return f"{self.label}-{self._case}-{role}".replace("/", "-")

    def cannot(self, feature):
        """The reason why the client cannot do `feature`, or None."""
        return (self.adapter.hello.get("cannot") or {}).get(feature)

    def require(self, feature):
        reason = self.cannot(feature)
        if reason:
            raise Unsupported(reason)

    def demand(self, rule):
        """Skip where the broker is known not to keep `rule`: only ever for other brokers."""
        if rule in self.setting.gaps:
            raise Unsupported(self.setting.gaps[rule])

    def trait(self, name, default=None):
        return self.adapter.hello.get(name, default)

    def connect(self, role, expect=0, **fields):
        conn = self.attempt(role, probe=False, **fields)
        check(conn.code == expect, f"CONNACK code {conn.code} for {role}, expected {expect}")
        return conn

    def attempt(self, role, relay=None, client_id=None, probe=True, **fields):
        """Connect as `role`; whatever CONNACK says is in the connection's `code`.

        Without `probe` a client that connects only in order to do something may wait.
        """
        port = relay.port if relay else self.setting.ports[self.transport]
        large = self.version == 5 and "receive-maximum" in self.setting.gaps
        small = self.version == 4 and "unbounded-qos2" in self.setting.gaps
        request = {
            "host": "127.0.0.1", "port": port, "transport": self.transport,
            "version": self.version, "client_id": role_id(self, role, client_id),
            "username": self.setting.username, "password": self.setting.password,
            "clean": True, "session_expiry": 0, "keepalive": 60, "ca": self.setting.ca,
            "prefix": self.topic(), "probe": probe,
            "window": SMALL_WINDOW if small else None,
            "receive_maximum": NO_RECEIVE_MAXIMUM if large else None, **fields,
        }
        conn = Conn(self.adapter, f"{self._case}-{role}-{next(self._numbers)}", request)
        self._conns.append(conn)
        return conn

    def relay(self):
        if self.transport == "quic":
            raise Unsupported("the relay is for TCP")
        relay = Relay(self.setting.ports[self.transport])
        self._relays.append(relay)
        return relay


def role_id(job, role, given):
    return job.client_id(role) if given is None else given


def check(holds, text):
    if not holds:
        raise Failure(text)


def same(what, got, expected):
    check(got == expected, f"{what}: got {shorten(got)}, expected {shorten(expected)}")


def shorten(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"


def granted(codes, *expected):
    """SUBACK codes, for clients that tell them."""
    if codes is not None:
        same("SUBACK codes", codes, list(expected))


def is_message(message, topic, payload, qos, retain=False):
    expected = payload.encode() if isinstance(payload, str) else payload
    same("topic", message.topic, topic)
    same("payload size", message.size, len(expected))
    check(message.sha256 == digest(expected), f"the payload of {message} is not what was sent")
    same(f"QoS of {message}", message.qos, qos)
    same(f"retain flag of {message}", message.retain, retain)
    check(not message.dup, f"DUP is set on the first delivery of {message}")


def completed(code, *allowed):
    """A publish handshake's reason code, for clients that tell it."""
    check(code is None or code in (allowed or (0,)), f"publish completed with reason code {code}")


def round_trip(job, qos):
    subscriber = job.connect("sub")
    publisher = job.connect("pub")
    topic = job.topic("t")
    granted(subscriber.subscribe({"filter": topic, "qos": qos}), qos)
    source = random.Random(f"{job.label}{qos}")
    for size in SIZES:
        payload = source.randbytes(size)
        completed(publisher.publish(topic, payload, qos=qos))
        is_message(subscriber.next(f"the {size} B message"), topic, payload, qos)


def ordered(job, qos):
    subscriber = job.connect("sub")
    publisher = job.connect("pub")
    topic = job.topic("t")
    granted(subscriber.subscribe({"filter": topic, "qos": qos}), qos)
    publisher.burst(topic, ORDERED, qos=qos)
    expect_sequence(subscriber, topic, ORDERED, qos)


def expect_sequence(subscriber, topic, count, qos):
    for number in range(count):
        message = subscriber.next(f"message {number} of {count}")
        check(message.text == str(number),
              f"message {number} of {count} expected, got {message}")
        is_message(message, topic, str(number), qos)


@case("roundtrip-qos0")
def roundtrip_qos0(job):
    round_trip(job, 0)


@case("roundtrip-qos1")
def roundtrip_qos1(job):
    round_trip(job, 1)


@case("roundtrip-qos2")
def roundtrip_qos2(job):
    round_trip(job, 2)


@case("order-qos0")
def order_qos0(job):
    ordered(job, 0)


@case("order-qos1")
def order_qos1(job):
    ordered(job, 1)


@case("order-qos2")
def order_qos2(job):
    ordered(job, 2)


@case("qos-downgrade")
def qos_downgrade(job):
    """A message is delivered at the lower of its own and the subscription's QoS."""
    publisher = job.connect("pub")
    topic = job.topic("t")
    for granted_qos, published, delivered in ((1, 2, 1), (0, 1, 0), (2, 1, 1), (0, 2, 0)):
        subscriber = job.connect(f"sub{granted_qos}{published}")
        granted(subscriber.subscribe({"filter": topic, "qos": granted_qos}), granted_qos)
        completed(publisher.publish(topic, "x", qos=published))
        is_message(subscriber.next(), topic, "x", delivered)
        subscriber.disconnect()


@case("retained")
def retained(job):
    publisher = job.connect("pub")
    topic = job.topic("t")
    completed(publisher.publish(topic, "first", retain=True), 0, NO_MATCHING_SUBSCRIBERS)
    early = job.connect("early")
    early.subscribe(topic)
    is_message(early.next("the retained message"), topic, "first", 1, retain=True)
    completed(publisher.publish(topic, "second", retain=True))
    is_message(early.next("the live message"), topic, "second", 1, retain=False)
    late = job.connect("late")
    late.subscribe(topic)
    is_message(late.next("the replaced retained message"), topic, "second", 1, retain=True)
    completed(publisher.publish(topic, b"", retain=True))
    is_message(early.next("the clearing message"), topic, b"", 1, retain=False)
    after = job.connect("after")
    after.subscribe(topic)
    completed(publisher.publish(topic, "live"))
    is_message(after.next("the live message after clearing"), topic, "live", 1, retain=False)


@case("will")
def will(job):
    """A broken connection publishes the will with its QoS and retain flag, DISCONNECT does not.

    A v5 client may ask for its will even so with DISCONNECT 0x04, as mosquitto_sub does.
    """
    observer = job.connect("observer")
    observer.subscribe(job.topic("will/+"))
    broken, clean = job.topic("will/broken"), job.topic("will/clean")
    relay = job.relay()
    job.connect("broken", relay=relay,
                will={"topic": broken, "payload": "gone", "qos": 1, "retain": True})
    leaver = job.connect("clean", will={"topic": clean, "payload": "x", "qos": 1, "retain": True})
    leaver.disconnect()
    if job.version == 5 and job.trait("disconnect") == "with-will":
        is_message(observer.next("the will of DISCONNECT 0x04"), clean, "x", 1, retain=False)
        completed(job.connect("clearing").publish(clean, b"", retain=True))
        is_message(observer.next("the clearing message"), clean, b"", 1, retain=False)
    relay.cut()
    is_message(observer.next("the will"), broken, "gone", 1, retain=False)
    late = job.connect("late")
    late.subscribe(job.topic("will/+"))
    is_message(late.next("the retained will"), broken, "gone", 1, retain=True)
    publisher = job.connect("pub")
    end = job.topic("will/end")
    completed(publisher.publish(broken, b"", retain=True))
    completed(publisher.publish(end, "end"))
    for subscriber in (observer, late):
        same("messages after the will",
             [(m.topic, m.size) for m in subscriber.until(end)], [(broken, 0)])


@case("session")
def session(job):
    """QoS 1 and 2 messages wait for a client that is away."""
    kept = {"clean": False, "session_expiry": 600}
    topic = job.topic("t")
    first = job.connect("kept", **kept)
    check(not first.session_present, "session present on the first connection")
    granted(first.subscribe({"filter": topic, "qos": 2}), 2)
    first.disconnect()
    publisher = job.connect("pub")
    for number in range(6):
        completed(publisher.publish(topic, f"queued {number}", qos=1 + number % 2))
    second = job.connect("kept", **kept)
    check(second.session_present in (True, None), "no session present on the second connection")
    # Order is promised among messages of one QoS only [MQTT-4.6.0-6].
    queued = [second.next(f"queued message {number}") for number in range(6)]
    for qos in (1, 2):
        same(f"queued QoS {qos} messages", [m.text for m in queued if m.qos == qos],
             [f"queued {n}" for n in range(6) if 1 + n % 2 == qos])
    check(not any(m.retain for m in queued), "a queued message has the retain flag")
    completed(publisher.publish(topic, "live", qos=2))
    is_message(second.next("a live message in the resumed session"), topic, "live", 2)
    second.disconnect()
    third = job.connect("kept", clean=True)
    check(not third.session_present, "session present after a clean start")


@case("wildcards")
def wildcards(job):
    expected = {
        "+/t": {"a/t", "b/t"},
        "a/#": {"a", "a/t", "a/x/y"},
        "+": {"a"},
        "+/+/y": {"a/x/y"},
        "#": {"a", "a/t", "b/t", "a/x/y", "c/z/w"},
    }
    end = job.topic("end/end/end")
    subscribers = {}
    for number, pattern in enumerate(expected):
        subscriber = job.connect(f"sub{number}")
        granted(subscriber.subscribe({"filter": job.topic(pattern), "qos": 1},
                                     {"filter": end, "qos": 1}), 1, 1)
        subscribers[pattern] = subscriber
    publisher = job.connect("pub")
    for name in ("a", "a/t", "b/t", "a/x/y", "c/z/w"):
        completed(publisher.publish(job.topic(name), name))
    completed(publisher.publish(end, "end"))
    for pattern, subscriber in subscribers.items():
        received = sorted(m.topic for m in subscriber.until(end))
        same(f"topics for {pattern}", received, sorted(job.topic(t) for t in expected[pattern]))


@case("dollar-topics")
def dollar_topics(job):
    """A leading wildcard does not match $SYS; a filter that names it does."""
    topic = "$SYS/broker/version"
    direct = job.connect("direct")
    direct.subscribe({"filter": topic, "qos": 0})
    message = direct.next("the retained $SYS/broker/version")
    check(message.topic == topic and message.size > 0 and message.retain,
          f"got {message} for {topic}")
    end = job.topic("end")
    leading = job.connect("leading")
    leading.subscribe({"filter": "+/broker/version", "qos": 0}, {"filter": end, "qos": 1})
    completed(job.connect("pub").publish(end, "end"))
    same("messages for +/broker/version", [str(m) for m in leading.until(end)], [])


@case("shared", versions=(5,))
def shared(job):
    """Each message goes to one member of the group and to every ordinary subscriber."""
    job.require("shared")
    topic, end = job.topic("t"), job.topic("end")
    members = [job.connect("member1"), job.connect("member2")]
    for member in members:
        granted(member.subscribe({"filter": f"$share/{job.label.replace('/', '-')}/{topic}", "qos": 1},
                                 {"filter": end, "qos": 1}), 1, 1)
    ordinary = job.connect("ordinary")
    ordinary.subscribe({"filter": topic, "qos": 1})
    publisher = job.connect("pub")
    count = 40
    publisher.burst(topic, count, qos=1)
    expect_sequence(ordinary, topic, count, 1)
    completed(publisher.publish(end, "end"))
    received = [m.text for member in members for m in member.until(end)]
    same("messages in the group", sorted(received, key=int), [str(n) for n in range(count)])


@case("user-properties", versions=(5,))
def user_properties(job):
    """User properties arrive in order and unmodified, with the other PUBLISH properties."""
    adjacent = [["a", "1"], ["a", "2"], ["a", ""], ["grüße", "schöne Welt 🌍"], ["z", "x" * 2000],
                ["b", "a b:c;d=e"]]
    interleaved = [*adjacent, ["a", "3"], ["", "empty name"], ["b", "a b:c;d=e"]]
    grouped = job.trait("user_properties") == "grouped"
    pairs = adjacent if grouped else interleaved
    subscriber = job.connect("sub")
    topic = job.topic("t")
    subscriber.subscribe(topic)
    publisher = job.connect("pub")
    sent = {"user": pairs, "content_type": "text/plain; charset=utf-8", "format": 1}
    completed(publisher.publish(topic, "grüße", props=sent))
    message = subscriber.next()
    is_message(message, topic, "grüße", 1)
    same("user properties", message.props.get("user"), pairs)
    same("content type", message.props.get("content_type"), sent["content_type"])
    same("payload format indicator", message.props.get("format"), 1)


@case("request-response", versions=(5,))
def request_response(job):
    correlation = b"\x00\xff\x01binary" if not job.cannot("binary-correlation") else b"text-17"
    correlation = base64.b64encode(correlation).decode()
    request, reply = job.topic("request"), job.topic("reply")
    requester, responder = job.connect("requester"), job.connect("responder")
    requester.subscribe(reply)
    responder.subscribe(request)
    completed(requester.publish(
        request, "question", props={"response_topic": reply, "correlation": correlation}))
    asked = responder.next("the request")
    is_message(asked, request, "question", 1)
    same("response topic", asked.props.get("response_topic"), reply)
    same("correlation data of the request", asked.props.get("correlation"), correlation)
    completed(responder.publish(asked.props["response_topic"], "answer",
                                props={"correlation": asked.props["correlation"]}))
    answered = requester.next("the reply")
    is_message(answered, reply, "answer", 1)
    same("correlation data of the reply", answered.props.get("correlation"), correlation)


@case("message-expiry", versions=(5,), waits=True)
def message_expiry(job):
    """Of two queued messages the expired one is gone, the other's interval has shrunk."""
    kept = {"clean": False, "session_expiry": 600}
    topic = job.topic("t")
    first = job.connect("kept", **kept)
    first.subscribe(topic)
    first.disconnect()
    publisher = job.connect("pub")
    completed(publisher.publish(topic, "short", props={"expiry": 1}))
    completed(publisher.publish(topic, "long", props={"expiry": 3600}))
    published = time.monotonic()
    # Elapsed time is what is tested here: a broker that counts whole seconds needs two.
    while (left := published + 2.2 - time.monotonic()) > 0:
        time.sleep(left)
    second = job.connect("kept", **kept)
    message = second.next("the unexpired message")
    is_message(message, topic, "long", 1)
    remaining = message.props.get("expiry")
    waited = time.monotonic() - published
    check(remaining is not None and 3600 - waited - 2 <= remaining <= 3598,
          f"expiry interval {remaining} after {waited:.1f} s of 3600")
    second.disconnect()
    job.connect("kept", clean=True)


@case("topic-alias", versions=(5,))
def topic_alias(job):
    """Messages that name their topic by an alias only reach the topic's subscribers."""
    job.require("topic-alias")
    subscriber = job.connect("sub")
    topic = job.topic("t")
    subscriber.subscribe({"filter": topic, "qos": 1})
    job.connect("pub").burst(topic, 20, qos=1, props={"topic_alias": 1})
    expect_sequence(subscriber, topic, 20, 1)


@case("subscription-options", versions=(5,))
def subscription_options(job):
    """No Local keeps own messages away; Retain As Published keeps the flag; identifiers return."""
    job.require("subscription-options")
    topic, end = job.topic("t"), job.topic("end")
    client, other = job.connect("client"), job.connect("other")
    identified = not job.cannot("subscription-identifier")
    client.subscribe({"filter": topic, "qos": 1, "no_local": True, "retain_as_published": True,
                      **({"identifier": 7} if identified else {})})
    client.subscribe({"filter": end, "qos": 1})
    completed(client.publish(topic, "own"), 0, NO_MATCHING_SUBSCRIBERS)
    completed(client.publish(end, "end"))
    same("own messages", [str(m) for m in client.until(end)], [])
    completed(other.publish(topic, "theirs", retain=True))
    message = client.next("the other client's message")
    is_message(message, topic, "theirs", 1, retain=True)
    if identified:
        same("subscription identifiers", message.props.get("identifiers"), [7])
    completed(other.publish(topic, b"", retain=True))


@case("assigned-client-id", versions=(5,))
def assigned_client_id(job):
    job.require("assigned-client-id")
    first, second = (job.connect(role, client_id="") for role in ("one", "two"))
    check(first.assigned_id and second.assigned_id and first.assigned_id != second.assigned_id,
          f"assigned client ids {first.assigned_id!r} and {second.assigned_id!r}")


@case("denied")
def denied(job):
    """The ACL file's limits: a filter that it denies, or grants nothing of, is refused; no message
    passes either way."""
    forbidden, ungranted = f"denied/{job.label}", f"ungranted/{job.label}"
    end = job.topic("end")
    client = job.connect("client")
    refused = 1 if "denied-subscription" in job.setting.gaps else SUBSCRIBE_DENIED[job.version]
    filters = [{"filter": f, "qos": 1} for f in (end, forbidden, ungranted)]
    granted(client.subscribe(*filters), 1, refused, refused)
    publisher = job.connect("pub")
    for topic in (forbidden, ungranted):
        # Some clients report a refusal as an error instead of a code.
        try:
            code = publisher.publish(topic, "x")
            check(job.version == 4 or code in (0x87, None), f"PUBACK code {code}, expected 135")
        except Refused as refusal:
            check(job.version == 5, str(refusal))
    completed(job.connect("pub2").publish(end, "end"))
    same("forbidden messages", [str(m) for m in client.until(end)], [])


@case("bad-subscribe", versions=(5,))
def bad_subscribe(job):
    """No Local on a shared subscription is a protocol error [MQTT-3.8.3-4]."""
    job.require("bad-subscribe")
    job.demand("shared-no-local")
    relay = job.relay()
    client = job.connect("client", relay=relay)
    try:
        client.subscribe({"filter": f"$share/g/{job.topic('t')}", "qos": 1, "no_local": True})
    except Failure:
        pass
    check(relay.wait_end(DEADLINE), "the broker kept the connection")
    if not job.cannot("close-code"):
        client.wait_closed()
        check(client.close_code in (0x82, None), f"DISCONNECT code {client.close_code}, expected 130")


@case("unsubscribe")
def unsubscribe(job):
    job.require("unsubscribe")
    gone, kept, end = job.topic("gone"), job.topic("kept"), job.topic("end")
    client = job.connect("client", clean=False, session_expiry=60)
    client.subscribe({"filter": gone, "qos": 1}, {"filter": kept, "qos": 1},
                     {"filter": end, "qos": 1})
    publisher = job.connect("pub")
    completed(publisher.publish(gone, "before"))
    is_message(client.next(), gone, "before", 1)
    codes = client.unsubscribe(gone)
    if codes:
        same("UNSUBACK codes", codes, [0])
    completed(publisher.publish(gone, "after"), 0, NO_MATCHING_SUBSCRIBERS)
    completed(publisher.publish(kept, "kept"))
    completed(publisher.publish(end, "end"))
    same("messages after unsubscribing", [(m.topic, m.text) for m in client.until(end)],
         [(kept, "kept")])
    if codes:
        same("UNSUBACK codes the second time", client.unsubscribe(gone),
             [NO_SUBSCRIPTION_EXISTED])
    client.disconnect()
    job.connect("client", clean=True)


@case("takeover")
def takeover(job):
    """A second connection with the same client id ends the first and inherits the session."""
    kept = {"clean": False, "session_expiry": 600}
    topic = job.topic("t")
    relay = job.relay()
    first = job.connect("twin", relay=relay, **kept)
    first.subscribe({"filter": topic, "qos": 1})
    second = job.connect("twin", **kept)
    check(relay.wait_end(DEADLINE), "the broker kept the first connection")
    if job.version == 5 and not job.cannot("close-code"):
        first.wait_closed()
        check(first.close_code in (SESSION_TAKEN_OVER, None),
              f"DISCONNECT code {first.close_code}, expected {SESSION_TAKEN_OVER}")
    check(second.session_present in (True, None), "the second connection has no session")
    completed(job.connect("pub").publish(topic, "x"))
    is_message(second.next("a message in the inherited session"), topic, "x", 1)
    second.disconnect()
    job.connect("twin", clean=True)


@case("keep-alive", waits=True)
def keep_alive(job):
    """An idle client that pings stays, one that fell silent is dropped and its will sent."""
    # As short as the client's own timer is sure to keep on a busy machine.
    seconds = job.trait("keepalive")
    observer = job.connect("observer")
    observer.subscribe(job.topic("will"))
    topic = job.topic("t")
    idle = job.connect("idle", keepalive=seconds)
    idle.subscribe({"filter": topic, "qos": 1})
    relay = job.relay()
    job.connect("silent", relay=relay, keepalive=seconds,
                will={"topic": job.topic("will"), "payload": "silent", "qos": 1, "retain": False})
    relay.hold()
    is_message(observer.next("the silent client's will", deadline=DEADLINE + 2 * seconds),
               job.topic("will"), "silent", 1)
    check(not idle.closed, "the idle client lost its connection")
    completed(job.connect("pub").publish(topic, "x"))
    is_message(idle.next("a message for the idle client"), topic, "x", 1)


@case("auth")
def auth(job):
    allowed = NOT_AUTHORISED[job.version]
    for role, username, password in (
            ("wrong", job.setting.username, "not the password"),
            ("unknown", "nobody", job.setting.password), ("anonymous", None, None)):
        conn = job.attempt(role, username=username, password=password)
        check(conn.code in allowed, f"CONNACK code {conn.code} for the {role} user, "
                                    f"expected one of {allowed}")
    good = job.connect("good")
    good.subscribe({"filter": job.topic("t"), "qos": 1})
    completed(good.publish(job.topic("t"), "x"))
    is_message(good.next(), job.topic("t"), "x", 1)


@case("refused-together")
def refused_together(job):
    """Everyone gets the CONNACK that refuses, however many come at once."""
    allowed = NOT_AUTHORISED[job.version]
    codes = Counter()

    def intrude(number):
        for attempt in range(REFUSED_EACH):
            conn = job.attempt(f"{number}-{attempt}", password="not the password")
            codes[conn.code] += 1

    with ThreadPoolExecutor(REFUSED_TOGETHER) as pool:
        for done in [pool.submit(intrude, number) for number in range(REFUSED_TOGETHER)]:
            done.result()
    check(set(codes) <= set(allowed), f"CONNACK codes {dict(codes)}, expected {allowed} only")


@case("client-certificate", transports=("tls",))
def client_certificate(job):
    """A listener that demands a client certificate lets in its bearer only."""
    port = job.setting.ports["mtls"]
    topic = job.topic("t")
    bearer = job.connect("bearer", port=port, cert=job.setting.cert, key=job.setting.key)
    bearer.subscribe({"filter": topic, "qos": 1})
    completed(bearer.publish(topic, "x"))
    is_message(bearer.next(), topic, "x", 1)
    try:
        stranger = job.attempt("stranger", port=port)
    except Refused:
        return
    raise Failure(f"connected without a certificate (CONNACK code {stranger.code})")


@case("fan-out")
def fan_out(job):
    topic = job.topic("t")
    subscribers = [job.connect(f"sub{n}") for n in range(FAN_OUT)]
    for subscriber in subscribers:
        granted(subscriber.subscribe({"filter": topic, "qos": 1}), 1)
    job.connect("pub").burst(topic, FAN_OUT_MESSAGES, qos=1)
    for subscriber in subscribers:
        expect_sequence(subscriber, topic, FAN_OUT_MESSAGES, 1)
