import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.lifecycle.MqttDisconnectSource;
import com.hivemq.client.mqtt.mqtt3.Mqtt3AsyncClient;
import com.hivemq.client.mqtt.mqtt3.exceptions.Mqtt3ConnAckException;
import com.hivemq.client.mqtt.mqtt3.exceptions.Mqtt3SubAckException;
import com.hivemq.client.mqtt.mqtt3.message.auth.Mqtt3SimpleAuth;
import com.hivemq.client.mqtt.mqtt3.message.connect.Mqtt3Connect;
import com.hivemq.client.mqtt.mqtt3.message.connect.Mqtt3ConnectBuilder;
import com.hivemq.client.mqtt.mqtt3.message.publish.Mqtt3Publish;
import com.hivemq.client.mqtt.mqtt3.message.subscribe.Mqtt3Subscribe;
import com.hivemq.client.mqtt.mqtt3.message.subscribe.Mqtt3Subscription;
import com.hivemq.client.mqtt.mqtt3.message.subscribe.suback.Mqtt3SubAck;
import com.hivemq.client.mqtt.mqtt3.message.subscribe.suback.Mqtt3SubAckReturnCode;
import com.hivemq.client.mqtt.mqtt3.message.unsubscribe.Mqtt3Unsubscribe;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** A connection of the MQTT 3.1.1 client. */
final class Version3 implements Adapter.Connection {
    private final String name;
    private volatile boolean connected;
    private Mqtt3AsyncClient client;

    Version3(String name) {
        this.name = name;
    }

    @Override
    public CompletableFuture<JsonObject> connect(JsonObject request) throws Exception {
        client =
                Adapter.builder(request)
                        .useMqttVersion3()
                        .addDisconnectedListener(
                                context -> {
                                    if (connected && context.getSource() != MqttDisconnectSource.USER) {
                                        Adapter.closed(name, null);
                                    }
                                })
                        .buildAsync();
        client.publishes(
                MqttGlobalPublishFilter.ALL,
                p ->
                        Adapter.message(
                                name,
                                p.getTopic().toString(),
                                p.getPayloadAsBytes(),
                                p.getQos().getCode(),
                                p.isRetain(),
                                new JsonObject()));
        Mqtt3ConnectBuilder connect =
                Mqtt3Connect.builder()
                        .cleanSession(Adapter.flag(request, "clean"))
                        .keepAlive(request.get("keepalive").getAsInt());
        if (Adapter.optional(request, "username") != null) {
            connect =
                    connect.simpleAuth(
                            Mqtt3SimpleAuth.builder()
                                    .username(Adapter.text(request, "username"))
                                    .password(
                                            Adapter.text(request, "password")
                                                    .getBytes(StandardCharsets.UTF_8))
                                    .build());
        }
        JsonElement will = Adapter.optional(request, "will");
        if (will != null) {
            byte[] payload =
                    Adapter.text(will.getAsJsonObject(), "payload").getBytes(StandardCharsets.UTF_8);
            connect = connect.willPublish(message(will.getAsJsonObject(), payload));
        }
        return client.connect(connect.build())
                .handle(
                        (accepted, error) -> {
                            JsonObject answer = new JsonObject();
                            if (error == null) {
                                connected = true;
                                answer.addProperty("code", 0);
                                answer.addProperty("session_present", accepted.isSessionPresent());
                            } else if (Adapter.cause(error) instanceof Mqtt3ConnAckException refused) {
                                int code = refused.getMqttMessage().getReturnCode().getCode();
                                answer.addProperty("code", code);
                            } else {
                                answer.addProperty("error", Adapter.cause(error).toString());
                            }
                            return answer;
                        });
    }

    @Override
    public CompletableFuture<JsonObject> subscribe(JsonObject request) {
        List<Mqtt3Subscription> subscriptions = new ArrayList<>();
        for (JsonElement element : request.getAsJsonArray("filters")) {
            JsonObject filter = element.getAsJsonObject();
            subscriptions.add(
                    Mqtt3Subscription.builder()
                            .topicFilter(Adapter.text(filter, "filter"))
                            .qos(MqttQos.fromCode(filter.get("qos").getAsInt()))
                            .build());
        }
        return client.subscribe(Mqtt3Subscribe.builder().addSubscriptions(subscriptions).build())
                .handle(
                        (granted, error) -> {
                            JsonObject answer = new JsonObject();
                            if (error == null) {
                                answer.add("codes", codes(granted));
                            } else if (Adapter.cause(error) instanceof Mqtt3SubAckException refused) {
                                answer.add("codes", codes(refused.getMqttMessage()));
                            } else {
                                answer.addProperty("error", Adapter.cause(error).toString());
                            }
                            return answer;
                        });
    }

    private static JsonArray codes(Mqtt3SubAck granted) {
        JsonArray codes = new JsonArray();
        for (Mqtt3SubAckReturnCode code : granted.getReturnCodes()) {
            codes.add(code.getCode());
        }
        return codes;
    }

    @Override
    public CompletableFuture<JsonObject> unsubscribe(JsonObject request) {
        String filter = request.getAsJsonArray("filters").get(0).getAsString();
        return client.unsubscribe(Mqtt3Unsubscribe.builder().topicFilter(filter).build())
                .thenApply(done -> new JsonObject());
    }

    @Override
    public CompletableFuture<JsonObject> publish(JsonObject request, byte[] payload) {
        return client.publish(message(request, payload)).thenApply(done -> new JsonObject());
    }

    private static Mqtt3Publish message(JsonObject fields, byte[] payload) {
        return Mqtt3Publish.builder()
                .topic(Adapter.text(fields, "topic"))
                .qos(MqttQos.fromCode(fields.get("qos").getAsInt()))
                .retain(Adapter.flag(fields, "retain"))
                .payload(payload)
                .build();
    }

    @Override
    public CompletableFuture<Void> disconnect() {
        return client.disconnect();
    }
}
