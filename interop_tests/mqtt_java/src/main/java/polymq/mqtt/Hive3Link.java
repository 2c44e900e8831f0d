package polymq.mqtt;

import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt3.Mqtt3AsyncClient;
import com.hivemq.client.mqtt.mqtt3.Mqtt3Client;
import com.hivemq.client.mqtt.mqtt3.Mqtt3ClientBuilder;
import com.hivemq.client.mqtt.mqtt3.message.connect.Mqtt3Connect;
import com.hivemq.client.mqtt.mqtt3.message.connect.Mqtt3ConnectBuilder;
import com.hivemq.client.mqtt.mqtt3.message.publish.Mqtt3Publish;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** HiveMQ's client with MQTT 3.1.1. */
final class Hive3Link implements Link {
  private final int port;
  private final String name;
  private final BlockingQueue<Message> messages = new LinkedBlockingQueue<>();
  private Mqtt3AsyncClient client;

  Hive3Link(int port, String name) {
    this.port = port;
    this.name = name;
  }

  @Override
  public boolean connect(Options options) throws Exception {
    Mqtt3ClientBuilder builder =
        Mqtt3Client.builder().identifier(name).serverHost("127.0.0.1").serverPort(port);
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
    Mqtt3ConnectBuilder wanted = Mqtt3Connect.builder().cleanSession(options.clean);
    if (options.will != null) {
      wanted.willPublish(packed(options.will));
    }
    return HiveLink.wait(client.connect(wanted.build())).isSessionPresent();
  }

  @Override
  public void subscribe(String filter, int qos, boolean noLocal, boolean retainAsPublished)
      throws Exception {
    HiveLink.wait(
        client.subscribeWith().topicFilter(filter).qos(MqttQos.fromCode(qos)).send());
  }

  @Override
  public void unsubscribe(String filter) throws Exception {
    HiveLink.wait(client.unsubscribeWith().topicFilter(filter).send());
  }

  private static Mqtt3Publish packed(Message message) {
    return Mqtt3Publish.builder()
        .topic(message.topic)
        .payload(message.body)
        .qos(MqttQos.fromCode(message.qos))
        .retain(message.retain)
        .build();
  }

  private static Message unpacked(Mqtt3Publish came, Options options) {
    Message message =
        new Message(came.getTopic().toString(), came.getPayloadAsBytes(), came.getQos().getCode());
    message.retain = came.isRetain();
    if (options.manual) {
      message.acknowledge = came::acknowledge;
    }
    return message;
  }

  @Override
  public void publish(Message message) throws Exception {
    HiveLink.wait(client.publish(packed(message)));
  }

  @Override
  public Message receive(long milliseconds) throws InterruptedException {
    return messages.poll(milliseconds, TimeUnit.MILLISECONDS);
  }

  @Override
  public void disconnect() throws Exception {
    HiveLink.wait(client.disconnect());
  }

  @Override
  public void abandon() {
    client.disconnect();
  }
}
