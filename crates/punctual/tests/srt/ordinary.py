"""Ordinary MQTT 5 clients for tests, told what to do in lines of JSON on standard input.

{"subscribe": FILTER} is answered with {"granted": [CODE, ...]}, after which every message is told
as {"topic": TOPIC, "payload": TEXT}. {"publish": TOPIC, "client": NAME, "payload": TEXT,
"properties": [[NAME, VALUE], ...]} is answered with {"reason": CODE, "properties": [...],
"seconds": TIME} when the broker has acknowledged it; each client has a connection of its own.
"""

import json
import queue
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PATIENCE = 120


def say(**what):
    print(json.dumps(what), flush=True)


class Client:
    def __init__(self, name, address):
        self.events = queue.Queue()
        self.mqtt = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5
        )
        self.mqtt.on_connect = lambda _c, _u, _f, code, _p: self.events.put(code)
        self.mqtt.on_subscribe = lambda _c, _u, _m, codes, _p: self.events.put(codes)
        self.mqtt.on_publish = lambda _c, _u, _m, code, properties: self.events.put(
            (time.monotonic(), code, properties)
        )
        self.mqtt.on_message = lambda _c, _u, message: say(
            topic=message.topic, payload=message.payload.decode()
        )
        self.mqtt.connect(*address, keepalive=0)
        self.mqtt.loop_start()
        code = self.events.get(timeout=PATIENCE)
        if code.is_failure:
            sys.exit(f"refused: {code}")

    def subscribe(self, topic_filter):
        self.mqtt.subscribe(topic_filter, qos=1)
        codes = self.events.get(timeout=PATIENCE)
        say(granted=[code.value for code in codes])

    def publish(self, topic, payload, properties):
        sent = Properties(PacketTypes.PUBLISH)
        if properties:
            sent.UserProperty = [tuple(pair) for pair in properties]
        began = time.monotonic()
        self.mqtt.publish(topic, payload, qos=1, properties=sent)
        ended, code, answer = self.events.get(timeout=PATIENCE)
        say(
            reason=code.value,
            properties=getattr(answer, "UserProperty", []),
            seconds=ended - began,
        )


def main():
    address = (sys.argv[1], int(sys.argv[2]))
    clients = {}
    for line in sys.stdin:
        wanted = json.loads(line)
        name = wanted["client"]
        if name not in clients:
            clients[name] = Client(name, address)
        if "subscribe" in wanted:
            clients[name].subscribe(wanted["subscribe"])
        else:
            clients[name].publish(
                wanted["publish"], wanted["payload"], wanted["properties"]
            )


main()
