package polymq.mqtt;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.eclipse.paho.mqttv5.client.IMqttToken;
import org.eclipse.paho.mqttv5.client.MqttAsyncClient;
import org.eclipse.paho.mqttv5.client.MqttCallback;
import org.eclipse.paho.mqttv5.client.MqttConnectionOptions;
import org.eclipse.paho.mqttv5.client.MqttDisconnectResponse;
import org.eclipse.paho.mqttv5.client.persist.MemoryPersistence;
import org.eclipse.paho.mqttv5.common.MqttException;
import org.eclipse.paho.mqttv5.common.MqttMessage;
import org.eclipse.paho.mqttv5.common.MqttSubscription;
import org.eclipse.paho.mqttv5.common.packet.MqttProperties;
import org.eclipse.paho.mqttv5.common.packet.UserProperty;

/** Eclipse's Paho for MQTT 5. */
final class PahoLink implements Link, MqttCallback {
  private static final long MILLISECONDS_MAX = 20_000;

  private final MqttAsyncClient client;
  private final BlockingQueue<Message> messages = new LinkedBlockingQueue<>();
  private boolean manual;

  PahoLink(int port, String name) throws MqttException {
    client = new MqttAsyncClient("tcp://127.0.0.1:" + port, name, new MemoryPersistence());
    client.setCallback(this);
  }

  @Override
  public boolean connect(Options options) throws MqttException {
    MqttConnectionOptions wanted = new MqttConnectionOptions();
    wanted.setCleanStart(options.clean);
    wanted.setSessionExpiryInterval(options.expirySeconds);
    wanted.setAutomaticReconnect(options.reconnects);
    wanted.setAutomaticReconnectDelay(1, 1);
    if (options.receiveMax > 0) {
      wanted.setReceiveMaximum(options.receiveMax);
    }
    // Not topicAliasMaximum: Paho gives the application an empty topic where the server uses one.
    if (options.will != null) {
      wanted.setWill(options.will.topic, packed(options.will));
      wanted.setWillMessageProperties(packed(options.will).getProperties());
    }
    manual = options.manual;
    client.setManualAcks(manual);
    IMqttToken token = client.connect(wanted);
    token.waitForCompletion(MILLISECONDS_MAX);
    return token.getSessionPresent();
  }

  @Override
  public void subscribe(String filter, int qos, boolean noLocal, boolean retainAsPublished)
      throws MqttException {
    MqttSubscription subscription = new MqttSubscription(filter, qos);
    subscription.setNoLocal(noLocal);
    subscription.setRetainAsPublished(retainAsPublished);
    IMqttToken token = client.subscribe(subscription);
    token.waitForCompletion(MILLISECONDS_MAX);
    if (token.getReasonCodes()[0] != qos) {
      throw new IllegalStateException("granted " + token.getReasonCodes()[0]);
    }
  }

  @Override
  public void unsubscribe(String filter) throws MqttException {
    client.unsubscribe(filter).waitForCompletion(MILLISECONDS_MAX);
  }

  private static MqttMessage packed(Message message) {
    MqttProperties properties = new MqttProperties();
    List<UserProperty> pairs = new ArrayList<>();
    for (int at = 0; at < message.userProperties.size(); at += 2) {
      List<String> all = message.userProperties;
      pairs.add(new UserProperty(all.get(at), all.get(at + 1)));
    }
    properties.setUserProperties(pairs);
    properties.setContentType(message.contentType);
    properties.setResponseTopic(message.responseTopic);
    properties.setCorrelationData(message.correlation);
    properties.setMessageExpiryInterval(message.expirySeconds);
    return new MqttMessage(message.body, message.qos, message.retain, properties);
  }

  @Override
  public void publish(Message message) throws MqttException {
    client.publish(message.topic, packed(message)).waitForCompletion(MILLISECONDS_MAX);
  }

  @Override
  public Message receive(long milliseconds) throws InterruptedException {
    return messages.poll(milliseconds, TimeUnit.MILLISECONDS);
  }

  @Override
  public void disconnect() throws MqttException {
    client.disconnect().waitForCompletion(MILLISECONDS_MAX);
    client.close();
  }

  @Override
  public void abandon() {
    try {
      client.disconnectForcibly(0, 0, false);
      client.close(true);
    } catch (MqttException gone) {
      // It is over.
    }
  }

  @Override
  public void messageArrived(String topic, MqttMessage came) {
    Message message = new Message(topic, came.getPayload(), came.getQos());
    message.retain = came.isRetained();
    MqttProperties properties = came.getProperties();
    for (UserProperty pair : properties.getUserProperties()) {
      message.userProperties.add(pair.getKey());
      message.userProperties.add(pair.getValue());
    }
    message.contentType = properties.getContentType();
    message.responseTopic = properties.getResponseTopic();
    message.correlation = properties.getCorrelationData();
    message.expirySeconds = properties.getMessageExpiryInterval();
    if (manual) {
      message.acknowledge =
          () -> {
            try {
              client.messageArrivedComplete(came.getId(), came.getQos());
            } catch (MqttException failed) {
              throw new IllegalStateException(failed);
            }
          };
    }
    messages.add(message);
  }

  @Override
  public void disconnected(MqttDisconnectResponse response) {}

  @Override
  public void mqttErrorOccurred(MqttException exception) {
    exception.printStackTrace();
  }

  @Override
  public void deliveryComplete(IMqttToken token) {}

  @Override
  public void connectComplete(boolean reconnect, String uri) {}

  @Override
  public void authPacketArrived(int reason, MqttProperties properties) {}
}
