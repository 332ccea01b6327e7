// Adapter for MQTT.js.
//
// See ../../README.md for the protocol on standard input and output. Reconnecting and
// resubscribing are off: a lost connection stays lost and is reported.

"use strict";

const crypto = require("node:crypto");
const fs = require("node:fs");
const readline = require("node:readline");
const mqtt = require("mqtt");

const { version } = require("mqtt/package.json");

const SCHEMES = { tcp: "mqtt", tls: "mqtts", ws: "ws", wss: "wss" };

// Key in the protocol, name in MQTT.js.
const PROPERTIES = [
  ["expiry", "messageExpiryInterval"],
  ["content_type", "contentType"],
  ["response_topic", "responseTopic"],
  ["topic_alias", "topicAlias"],
];

function say(fields) {
  process.stdout.write(JSON.stringify(fields) + "\n");
}

class Connection {
  constructor(request) {
    this.name = request.conn;
    this.v5 = request.version === 5;
    const options = {
      clientId: request.client_id,
      protocolVersion: request.version,
      clean: request.clean,
      keepalive: request.keepalive,
      reconnectPeriod: 0,
      resubscribe: false,
      queueQoSZero: false,
      connectTimeout: 15000,
    };
    if (request.username !== null) {
      options.username = request.username;
      options.password = request.password;
    }
    if (this.v5) {
      options.properties = { sessionExpiryInterval: request.session_expiry };
    }
    if (request.transport === "tls" || request.transport === "wss") {
      options.ca = fs.readFileSync(request.ca);
      if (request.cert) {
        options.cert = fs.readFileSync(request.cert);
        options.key = fs.readFileSync(request.key);
      }
    }
    if (request.will) {
      const { topic, payload, qos, retain } = request.will;
      options.will = { topic, payload: Buffer.from(payload), qos, retain };
    }
    const path = request.transport.startsWith("ws") ? "/mqtt" : "";
    const url = `${SCHEMES[request.transport]}://${request.host}:${request.port}${path}`;
    this.connecting = request.id;
    this.code = null;
    this.window = request.window ?? Infinity;
    this.client = mqtt.connect(url, options);
    this.client.on("connect", (packet) => this.connected(packet));
    this.client.on("message", (topic, payload, packet) => this.received(topic, payload, packet));
    this.client.on("disconnect", (packet) => {
      this.code = packet.reasonCode ?? null;
    });
    this.client.on("error", (error) => this.failed(error));
    this.client.on("close", () => this.closed());
  }

  connected(packet) {
    if (this.v5) {
      this.window = packet.properties?.receiveMaximum ?? 65535;
    }
    say({
      id: this.connecting,
      code: 0,
      session_present: packet.sessionPresent,
      assigned_id: packet.properties?.assignedClientIdentifier ?? null,
    });
    this.connecting = null;
  }

  failed(error) {
    if (this.connecting === null) {
      return;
    }
    if (typeof error.code === "number" && error.code > 0) {
      say({ id: this.connecting, code: error.code });
    } else {
      say({ id: this.connecting, error: error.message || String(error) });
    }
    this.connecting = null;
    this.client.end(true);
  }

  closed() {
    if (this.connecting !== null) {
      say({ id: this.connecting, error: "connection closed before CONNACK" });
      this.connecting = null;
    }
    say({ event: "closed", conn: this.name, code: this.code });
  }

  received(topic, payload, packet) {
    const event = {
      event: "message",
      conn: this.name,
      topic,
      size: payload.length,
      sha256: crypto.createHash("sha256").update(payload).digest("hex"),
      qos: packet.qos,
      retain: packet.retain,
      dup: packet.dup,
      props: receivedProperties(packet.properties ?? {}),
    };
    if (payload.length <= 4096) {
      event.payload = payload.toString("base64");
    }
    say(event);
  }

  subscribe(request) {
    const filters = {};
    for (const f of request.filters) {
      filters[f.filter] = this.v5
        ? { qos: f.qos, nl: f.no_local ?? false, rap: f.retain_as_published ?? false }
        : { qos: f.qos };
    }
    const options = {};
    if (request.filters[0].identifier !== undefined) {
      options.properties = { subscriptionIdentifier: request.filters[0].identifier };
    }
    this.client.subscribe(filters, options, (error, granted, packet) => {
      if (packet?.granted) {
        say({ id: request.id, codes: Array.from(packet.granted) });
      } else {
        say({ id: request.id, error: String(error) });
      }
    });
  }

  unsubscribe(request) {
    this.client.unsubscribe(request.filters, (error, packet) => {
      if (error) {
        say({ id: request.id, error: String(error) });
      } else {
        say({ id: request.id, codes: this.v5 ? Array.from(packet.granted) : null });
      }
    });
  }

  publish(request) {
    const payload = Buffer.from(request.payload, "base64");
    this.send(request, request.topic, payload, (error, packet) => {
      if (error && typeof error.code !== "number") {
        say({ id: request.id, error: String(error) });
      } else {
        // On success MQTT.js hands out its own PUBLISH, which has no reason code.
        say({ id: request.id, code: error ? error.code : null });
      }
    });
  }

  // MQTT.js itself heeds no Receive Maximum, so the application must.
  burst(request) {
    let next = 0;
    let acknowledged = 0;
    const more = () => {
      while (next < request.count && next - acknowledged < this.window) {
        const number = next;
        // Before sending: a callback may come at once.
        next += 1;
        const aliased = request.props.topic_alias !== undefined && number > 0;
        this.send(request, aliased ? "" : request.topic, String(number), done);
      }
    };
    const done = (error) => {
      acknowledged += 1;
      if (error) {
        say({ id: request.id, error: String(error) });
      } else if (acknowledged === request.count) {
        say({ id: request.id });
      } else {
        more();
      }
    };
    more();
  }

  send(request, topic, payload, done) {
    const options = { qos: request.qos, retain: request.retain ?? false };
    if (this.v5) {
      options.properties = publishProperties(request.props);
    }
    this.client.publish(topic, payload, options, done);
  }

  disconnect(request) {
    this.client.end(false, {}, () => say({ id: request.id }));
  }
}

function publishProperties(props) {
  const properties = {};
  for (const [key, name] of PROPERTIES) {
    if (props[key] !== undefined) {
      properties[name] = props[key];
    }
  }
  if (props.format !== undefined) {
    properties.payloadFormatIndicator = props.format === 1;
  }
  if (props.correlation !== undefined) {
    properties.correlationData = Buffer.from(props.correlation, "base64");
  }
  if (props.user !== undefined) {
    properties.userProperties = {};
    for (const [key, value] of props.user) {
      (properties.userProperties[key] ??= []).push(value);
    }
  }
  return properties;
}

function receivedProperties(properties) {
  const props = {};
  for (const [key, name] of PROPERTIES) {
    if (properties[name] !== undefined) {
      props[key] = properties[name];
    }
  }
  if (properties.payloadFormatIndicator !== undefined) {
    props.format = Number(properties.payloadFormatIndicator);
  }
  if (properties.correlationData !== undefined) {
    props.correlation = properties.correlationData.toString("base64");
  }
  if (properties.subscriptionIdentifier !== undefined) {
    props.identifiers = [properties.subscriptionIdentifier].flat();
  }
  if (properties.userProperties !== undefined) {
    props.user = Object.entries(properties.userProperties).flatMap(([key, values]) =>
      [values].flat().map((value) => [key, value]),
    );
  }
  return props;
}

const connections = new Map();

function handle(request) {
  if (request.op === "connect") {
    connections.set(request.conn, new Connection(request));
    return;
  }
  const connection = connections.get(request.conn);
  switch (request.op) {
    case "subscribe":
    case "unsubscribe":
    case "publish":
    case "burst":
    case "disconnect":
      connection[request.op](request);
      break;
    default:
      throw new Error(`unknown request ${request.op}`);
  }
}

say({
  hello: "mqttjs",
  library: version,
  // Pings go out at half of the keep-alive.
  keepalive: 5,
  // User properties are an object: equal names come together.
  user_properties: "grouped",
  cannot: {},
});

const input = readline.createInterface({ input: process.stdin });
input.on("line", (line) => {
  const request = JSON.parse(line);
  try {
    handle(request);
  } catch (error) {
    say({ id: request.id, error: String(error) });
  }
});
input.on("close", () => process.exit(0));
