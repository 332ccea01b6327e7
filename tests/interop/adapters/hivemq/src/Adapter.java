import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.hivemq.client.mqtt.MqttClientBuilder;
import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttClientSslConfig;
import com.hivemq.client.mqtt.MqttWebSocketConfig;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.TrustManagerFactory;

/**
 * Adapter for the HiveMQ MQTT client, both versions of MQTT.
 *
 * <p>See ../../../README.md for the protocol on standard input and output. This class holds what
 * does not depend on the version: the protocol, the transports and TLS. The client does not
 * reconnect unless told to, so a lost connection stays lost and is reported.
 */
public final class Adapter {
    private static final int LARGEST_SHOWN = 4096;
    private static final char[] NO_PASSWORD = new char[0];
    private static final Gson GSON = new Gson();
    private static final PrintStream OUTPUT =
            new PrintStream(System.out, false, StandardCharsets.UTF_8);

    /** One MQTT connection. Answers come as the futures complete. */
    interface Connection {
        CompletableFuture<JsonObject> connect(JsonObject request) throws Exception;

        CompletableFuture<JsonObject> subscribe(JsonObject request);

        CompletableFuture<JsonObject> unsubscribe(JsonObject request);

        CompletableFuture<JsonObject> publish(JsonObject request, byte[] payload);

        CompletableFuture<Void> disconnect();
    }

    private Adapter() {}

    public static void main(String[] arguments) throws Exception {
        JsonObject hello = new JsonObject();
        hello.addProperty("hello", "hivemq-mqtt-client");
        hello.addProperty("keepalive", 6);
        JsonObject cannot = new JsonObject();
        cannot.addProperty("bad-subscribe", "the client refuses No Local on a shared subscription");
        cannot.addProperty("subscription-identifier", "the client keeps identifiers to itself");
        hello.add("cannot", cannot);
        say(hello);
        Map<String, Connection> connections = new HashMap<>();
        Map<String, Integer> windows = new HashMap<>();
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonObject request = GSON.fromJson(line, JsonObject.class);
            try {
                serve(connections, windows, request);
            } catch (Exception error) {
                fail(request, error);
            }
        }
        // Threads of the client's own would keep the process alive.
        System.exit(0);
    }

    private static void serve(
            Map<String, Connection> connections, Map<String, Integer> windows, JsonObject request)
            throws Exception {
        String name = text(request, "conn");
        String operation = text(request, "op");
        if (operation.equals("connect")) {
            Connection connection =
                    request.get("version").getAsInt() == 5 ? new Version5(name) : new Version3(name);
            connections.put(name, connection);
            // The MQTT 3.1.1 client itself knows no bound on messages in flight.
            if (optional(request, "window") != null) {
                windows.put(name, request.get("window").getAsInt());
            }
            answer(request, connection.connect(request));
            return;
        }
        Connection connection = connections.get(name);
        if (connection == null) {
            throw new IllegalStateException("no connection " + name);
        }
        switch (operation) {
            case "subscribe" -> answer(request, connection.subscribe(request));
            case "unsubscribe" -> answer(request, connection.unsubscribe(request));
            case "publish" -> answer(
                    request, connection.publish(request, decode(text(request, "payload"))));
            case "burst" -> {
                List<CompletableFuture<JsonObject>> sent = new ArrayList<>();
                int window = windows.getOrDefault(name, Integer.MAX_VALUE);
                for (int number = 0; number < request.get("count").getAsInt(); number++) {
                    if (number >= window) {
                        sent.get(number - window).join();
                    }
                    byte[] payload = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
                    sent.add(connection.publish(request, payload));
                }
                answer(
                        request,
                        CompletableFuture.allOf(sent.toArray(new CompletableFuture<?>[0]))
                                .thenApply(done -> new JsonObject()));
            }
            case "disconnect" -> {
                connections.remove(name);
                answer(request, connection.disconnect().thenApply(done -> new JsonObject()));
            }
            default -> throw new IllegalArgumentException("unknown request " + operation);
        }
    }

    private static void answer(JsonObject request, CompletableFuture<JsonObject> result) {
        result.whenComplete(
                (fields, error) -> {
                    if (error != null) {
                        fail(request, error);
                        return;
                    }
                    fields.add("id", request.get("id"));
                    say(fields);
                });
    }

    private static void fail(JsonObject request, Throwable error) {
        JsonObject answer = new JsonObject();
        answer.add("id", request.get("id"));
        answer.addProperty("error", cause(error).toString());
        say(answer);
    }

    /** What a future's completion wraps. */
    static Throwable cause(Throwable error) {
        return error instanceof CompletionException && error.getCause() != null
                ? error.getCause()
                : error;
    }

    static synchronized void say(JsonObject fields) {
        OUTPUT.print(GSON.toJson(fields) + "\n");
        OUTPUT.flush();
    }

    static void closed(String name, Integer code) {
        JsonObject event = new JsonObject();
        event.addProperty("event", "closed");
        event.addProperty("conn", name);
        event.addProperty("code", code);
        say(event);
    }

    static void message(
            String name, String topic, byte[] payload, int qos, boolean retain, JsonObject props) {
        JsonObject event = new JsonObject();
        event.addProperty("event", "message");
        event.addProperty("conn", name);
        event.addProperty("topic", topic);
        event.addProperty("size", payload.length);
        event.addProperty("sha256", hash(payload));
        event.addProperty("qos", qos);
        event.addProperty("retain", retain);
        event.add("props", props);
        if (payload.length <= LARGEST_SHOWN) {
            event.addProperty("payload", encode(payload));
        }
        say(event);
    }

    /** A client builder with address, transport and TLS set. */
    static MqttClientBuilder builder(JsonObject request) throws Exception {
        String transport = text(request, "transport");
        MqttClientBuilder builder =
                MqttClient.builder()
                        .serverHost(text(request, "host"))
                        .serverPort(request.get("port").getAsInt())
                        .executorConfig()
                        .nettyThreads(1)
                        .applyExecutorConfig();
        String identifier = text(request, "client_id");
        if (!identifier.isEmpty()) {
            builder = builder.identifier(identifier);
        }
        if (transport.equals("tls") || transport.equals("wss")) {
            builder = builder.sslConfig(tls(request));
        }
        if (transport.equals("ws") || transport.equals("wss")) {
            builder =
                    builder.webSocketConfig(MqttWebSocketConfig.builder().serverPath("mqtt").build());
        }
        return builder;
    }

    private static MqttClientSslConfig tls(JsonObject request) throws Exception {
        KeyStore authorities = KeyStore.getInstance(KeyStore.getDefaultType());
        authorities.load(null, null);
        authorities.setCertificateEntry("ca", certificate(text(request, "ca")));
        TrustManagerFactory trust =
                TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(authorities);
        KeyManagerFactory keys = null;
        if (request.has("cert")) {
            KeyStore own = KeyStore.getInstance(KeyStore.getDefaultType());
            own.load(null, null);
            Certificate[] chain = {certificate(text(request, "cert"))};
            own.setKeyEntry("client", key(text(request, "key")), NO_PASSWORD, chain);
            keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            keys.init(own, NO_PASSWORD);
        }
        return MqttClientSslConfig.builder().trustManagerFactory(trust).keyManagerFactory(keys).build();
    }

    private static Certificate certificate(String path) throws Exception {
        try (InputStream file = new FileInputStream(path)) {
            return CertificateFactory.getInstance("X.509").generateCertificate(file);
        }
    }

    private static PrivateKey key(String path) throws Exception {
        String pem = Files.readString(Path.of(path)).replaceAll("-----[A-Z ]+-----|\\s", "");
        return readKey(new PKCS8EncodedKeySpec(decode(pem)));
    }

    private static PrivateKey readKey(PKCS8EncodedKeySpec encoded) throws GeneralSecurityException {
        return KeyFactory.getInstance("EC").generatePrivate(encoded);
    }

    static String text(JsonObject object, String name) {
        return object.get(name).getAsString();
    }

    /** A member that may be missing or null. */
    static JsonElement optional(JsonObject object, String name) {
        JsonElement element = object.get(name);
        return element == null || element.isJsonNull() ? null : element;
    }

    static boolean flag(JsonObject object, String name) {
        JsonElement element = optional(object, name);
        return element != null && element.getAsBoolean();
    }

    static byte[] decode(String text) {
        return Base64.getDecoder().decode(text);
    }

    static String encode(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static String hash(byte[] payload) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte b : MessageDigest.getInstance("SHA-256").digest(payload)) {
                text.append(String.format("%02x", b));
            }
            return text.toString();
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError(impossible);
        }
    }
}
