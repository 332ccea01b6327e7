import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.lifecycle.MqttDisconnectSource;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperties;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperty;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5ConnAckException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5DisconnectException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5PubAckException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5PubRecException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5SubAckException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5UnsubAckException;
import com.hivemq.client.mqtt.mqtt5.message.Mqtt5ReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5SimpleAuth;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5ConnectBuilder;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PayloadFormatIndicator;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishBuilder;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishResult;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.Mqtt5Subscribe;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.Mqtt5Subscription;
import com.hivemq.client.mqtt.mqtt5.message.unsubscribe.Mqtt5Unsubscribe;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** A connection of the MQTT 5 client. */
final class Version5 implements Adapter.Connection {
    private final String name;
    private volatile boolean connected;
    private Mqtt5AsyncClient client;

    Version5(String name) {
        this.name = name;
    }

    @Override
    public CompletableFuture<JsonObject> connect(JsonObject request) throws Exception {
        client =
                Adapter.builder(request)
                        .useMqttVersion5()
                        .addDisconnectedListener(
                                context -> {
                                    if (connected && context.getSource() != MqttDisconnectSource.USER) {
                                        Adapter.closed(name, serverCode(context.getCause()));
                                    }
                                })
                        .buildAsync();
        client.publishes(MqttGlobalPublishFilter.ALL, this::received);
        Mqtt5ConnectBuilder connect =
                Mqtt5Connect.builder()
                        .cleanStart(Adapter.flag(request, "clean"))
                        .sessionExpiryInterval(request.get("session_expiry").getAsLong())
                        .keepAlive(request.get("keepalive").getAsInt());
        if (Adapter.optional(request, "username") != null) {
            connect =
                    connect.simpleAuth(
                            Mqtt5SimpleAuth.builder()
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
                                accepted.getAssignedClientIdentifier()
                                        .ifPresent(id -> answer.addProperty("assigned_id", id.toString()));
                            } else if (Adapter.cause(error) instanceof Mqtt5ConnAckException refused) {
                                int code = refused.getMqttMessage().getReasonCode().getCode();
                                answer.addProperty("code", code);
                            } else {
                                answer.addProperty("error", Adapter.cause(error).toString());
                            }
                            return answer;
                        });
    }

    /** The reason code of the server's DISCONNECT, if there was one. */
    private static Integer serverCode(Throwable cause) {
        return cause instanceof Mqtt5DisconnectException disconnect
                ? disconnect.getMqttMessage().getReasonCode().getCode()
                : null;
    }

    @Override
    public CompletableFuture<JsonObject> subscribe(JsonObject request) {
        List<Mqtt5Subscription> subscriptions = new ArrayList<>();
        for (JsonElement element : request.getAsJsonArray("filters")) {
            JsonObject filter = element.getAsJsonObject();
            subscriptions.add(
                    Mqtt5Subscription.builder()
                            .topicFilter(Adapter.text(filter, "filter"))
                            .qos(MqttQos.fromCode(filter.get("qos").getAsInt()))
                            .noLocal(Adapter.flag(filter, "no_local"))
                            .retainAsPublished(Adapter.flag(filter, "retain_as_published"))
                            .build());
        }
        return client.subscribe(Mqtt5Subscribe.builder().addSubscriptions(subscriptions).build())
                .handle(
                        (granted, error) -> {
                            JsonObject answer = new JsonObject();
                            if (error == null) {
                                answer.add("codes", codes(granted.getReasonCodes()));
                            } else if (Adapter.cause(error) instanceof Mqtt5SubAckException refused) {
                                answer.add("codes", codes(refused.getMqttMessage().getReasonCodes()));
                            } else {
                                answer.addProperty("error", Adapter.cause(error).toString());
                            }
                            return answer;
                        });
    }

    @Override
    public CompletableFuture<JsonObject> unsubscribe(JsonObject request) {
        String filter = request.getAsJsonArray("filters").get(0).getAsString();
        return client.unsubscribe(Mqtt5Unsubscribe.builder().topicFilter(filter).build())
                .handle(
                        (done, error) -> {
                            JsonObject answer = new JsonObject();
                            if (error == null) {
                                answer.add("codes", codes(done.getReasonCodes()));
                            } else if (Adapter.cause(error) instanceof Mqtt5UnsubAckException refused) {
                                answer.add("codes", codes(refused.getMqttMessage().getReasonCodes()));
                            } else {
                                answer.addProperty("error", Adapter.cause(error).toString());
                            }
                            return answer;
                        });
    }

    private static JsonArray codes(List<? extends Mqtt5ReasonCode> reasons) {
        JsonArray codes = new JsonArray();
        for (Mqtt5ReasonCode reason : reasons) {
            codes.add(reason.getCode());
        }
        return codes;
    }

    @Override
    public CompletableFuture<JsonObject> publish(JsonObject request, byte[] payload) {
        return client.publish(message(request, payload))
                .handle(
                        (done, error) -> {
                            JsonObject answer = new JsonObject();
                            if (error == null) {
                                answer.addProperty("code", code(done));
                            } else if (Adapter.cause(error) instanceof Mqtt5PubAckException refused) {
                                int code = refused.getMqttMessage().getReasonCode().getCode();
                                answer.addProperty("code", code);
                            } else if (Adapter.cause(error) instanceof Mqtt5PubRecException refused) {
                                int code = refused.getMqttMessage().getReasonCode().getCode();
                                answer.addProperty("code", code);
                            } else {
                                answer.addProperty("error", Adapter.cause(error).toString());
                            }
                            return answer;
                        });
    }

    private static Integer code(Mqtt5PublishResult done) {
        if (done instanceof Mqtt5PublishResult.Mqtt5Qos1Result acknowledged) {
            return acknowledged.getPubAck().getReasonCode().getCode();
        }
        if (done instanceof Mqtt5PublishResult.Mqtt5Qos2Result acknowledged) {
            return acknowledged.getPubRec().getReasonCode().getCode();
        }
        return null;
    }

    /** Topic aliases are the client's own business: it uses them as the server permits. */
    private static Mqtt5Publish message(JsonObject fields, byte[] payload) {
        Mqtt5PublishBuilder.Complete message =
                Mqtt5Publish.builder()
                        .topic(Adapter.text(fields, "topic"))
                        .qos(MqttQos.fromCode(fields.get("qos").getAsInt()))
                        .retain(Adapter.flag(fields, "retain"))
                        .payload(payload);
        JsonElement given = Adapter.optional(fields, "props");
        if (given == null) {
            return message.build();
        }
        JsonObject props = given.getAsJsonObject();
        if (props.has("user")) {
            List<Mqtt5UserProperty> user = new ArrayList<>();
            for (JsonElement element : props.getAsJsonArray("user")) {
                JsonArray pair = element.getAsJsonArray();
                user.add(Mqtt5UserProperty.of(pair.get(0).getAsString(), pair.get(1).getAsString()));
            }
            message = message.userProperties(Mqtt5UserProperties.of(user));
        }
        if (props.has("expiry")) {
            message = message.messageExpiryInterval(props.get("expiry").getAsLong());
        }
        if (props.has("content_type")) {
            message = message.contentType(Adapter.text(props, "content_type"));
        }
        if (props.has("format")) {
            message =
                    message.payloadFormatIndicator(
                            Mqtt5PayloadFormatIndicator.fromCode(props.get("format").getAsInt()));
        }
        if (props.has("response_topic")) {
            message = message.responseTopic(Adapter.text(props, "response_topic"));
        }
        if (props.has("correlation")) {
            message = message.correlationData(Adapter.decode(Adapter.text(props, "correlation")));
        }
        return message.build();
    }

    private void received(Mqtt5Publish p) {
        JsonObject props = new JsonObject();
        JsonArray user = new JsonArray();
        for (Mqtt5UserProperty property : p.getUserProperties().asList()) {
            JsonArray pair = new JsonArray();
            pair.add(property.getName().toString());
            pair.add(property.getValue().toString());
            user.add(pair);
        }
        if (!user.isEmpty()) {
            props.add("user", user);
        }
        p.getMessageExpiryInterval().ifPresent(left -> props.addProperty("expiry", left));
        p.getContentType().ifPresent(type -> props.addProperty("content_type", type.toString()));
        p.getPayloadFormatIndicator()
                .ifPresent(format -> props.addProperty("format", format.getCode()));
        p.getResponseTopic()
                .ifPresent(topic -> props.addProperty("response_topic", topic.toString()));
        p.getCorrelationData().ifPresent(data -> props.addProperty("correlation", encode(data)));
        Adapter.message(
                name,
                p.getTopic().toString(),
                p.getPayloadAsBytes(),
                p.getQos().getCode(),
                p.isRetain(),
                props);
    }

    private static String encode(ByteBuffer data) {
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        return Adapter.encode(bytes);
    }

    @Override
    public CompletableFuture<Void> disconnect() {
        return client.disconnect();
    }
}
