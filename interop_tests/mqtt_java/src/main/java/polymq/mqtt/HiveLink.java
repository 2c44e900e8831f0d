package polymq.mqtt;

import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5Client;
import com.hivemq.client.mqtt.mqtt5.Mqtt5ClientBuilder;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperties;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserPropertiesBuilder;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5ConnectBuilder;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishBuilder;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishResult;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5WillPublish;
import java.nio.ByteBuffer;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** HiveMQ's client with MQTT 5. */
final class HiveLink implements Link {
  private static final long SECONDS_MAX = 20;

  private final int port;
  private final String name;
  private final BlockingQueue<Message> messages = new LinkedBlockingQueue<>();
  private Mqtt5AsyncClient client;

  HiveLink(int port, String name) {
    this.port = port;
    this.name = name;
  }

  static <T> T wait(CompletableFuture<T> future) throws Exception {
    return future.get(SECONDS_MAX, TimeUnit.SECONDS);
  }

  @Override
  public boolean connect(Options options) throws Exception {
    Mqtt5ClientBuilder builder =
        Mqtt5Client.builder().identifier(name).serverHost("127.0.0.1").serverPort(port);
    if (options.reconnects) {
      builder
          .automaticReconnect()
          .initialDelay(100, TimeUnit.MILLISECONDS)
          .maxDelay(500, TimeUnit.MILLISECONDS)
          .applyAutomaticReconnect();
    }
    client = builder.buildAsync();
    client.publishes(
        MqttGlobalPublishFilter.ALL, came -> messages.add(unpacked(came, options)), options.manual);
    Mqtt5ConnectBuilder wanted =
        Mqtt5Connect.builder()
            .cleanStart(options.clean)
            .sessionExpiryInterval(options.expirySeconds);
    if (options.receiveMax > 0) {
      wanted.restrictions().receiveMaximum(options.receiveMax).applyRestrictions();
    }
    if (options.aliasMax > 0) {
      wanted
          .restrictions()
          .topicAliasMaximum(options.aliasMax)
          .sendTopicAliasMaximum(options.aliasMax)
          .applyRestrictions();
    }
    if (options.will != null) {
      wanted.willPublish((Mqtt5WillPublish) packed(options.will).asWill());
    }
    return wait(client.connect(wanted.build())).isSessionPresent();
  }

  @Override
  public void subscribe(String filter, int qos, boolean noLocal, boolean retainAsPublished)
      throws Exception {
    wait(
        client
            .subscribeWith()
            .topicFilter(filter)
            .qos(MqttQos.fromCode(qos))
            .noLocal(noLocal)
            .retainAsPublished(retainAsPublished)
            .send());
  }

  @Override
  public void unsubscribe(String filter) throws Exception {
    wait(client.unsubscribeWith().topicFilter(filter).send());
  }

  private static Mqtt5Publish packed(Message message) {
    Mqtt5PublishBuilder.Complete builder =
        Mqtt5Publish.builder()
            .topic(message.topic)
            .payload(message.body)
            .qos(MqttQos.fromCode(message.qos))
            .retain(message.retain);
    Mqtt5UserPropertiesBuilder pairs = Mqtt5UserProperties.builder();
    for (int at = 0; at < message.userProperties.size(); at += 2) {
      pairs.add(message.userProperties.get(at), message.userProperties.get(at + 1));
    }
    builder.userProperties(pairs.build());
    builder.contentType(message.contentType).responseTopic(message.responseTopic);
    builder.correlationData(message.correlation);
    if (message.expirySeconds != null) {
      builder.messageExpiryInterval(message.expirySeconds);
    }
    return builder.build();
  }

  private static Message unpacked(Mqtt5Publish came, Options options) {
    Message message =
        new Message(came.getTopic().toString(), came.getPayloadAsBytes(), came.getQos().getCode());
    message.retain = came.isRetain();
    came.getUserProperties()
        .asList()
        .forEach(
            pair -> {
              message.userProperties.add(pair.getName().toString());
              message.userProperties.add(pair.getValue().toString());
            });
    message.contentType = came.getContentType().map(Object::toString).orElse(null);
    message.responseTopic = came.getResponseTopic().map(Object::toString).orElse(null);
    message.correlation = came.getCorrelationData().map(HiveLink::bytes).orElse(null);
    if (came.getMessageExpiryInterval().isPresent()) {
      message.expirySeconds = came.getMessageExpiryInterval().getAsLong();
    }
    if (options.manual) {
      message.acknowledge = came::acknowledge;
    }
    return message;
  }

  private static byte[] bytes(ByteBuffer buffer) {
    byte[] data = new byte[buffer.remaining()];
    buffer.duplicate().get(data);
    return data;
  }

  @Override
  public void publish(Message message) throws Exception {
    Mqtt5PublishResult result = wait(client.publish(packed(message)));
    if (result.getError().isPresent()) {
      throw new IllegalStateException(result.getError().get());
    }
  }

  @Override
  public Message receive(long milliseconds) throws InterruptedException {
    return messages.poll(milliseconds, TimeUnit.MILLISECONDS);
  }

  @Override
  public void disconnect() throws Exception {
    wait(client.disconnectWith().send());
  }

  @Override
  public void abandon() {
    client.disconnectWith().send();
  }
}
