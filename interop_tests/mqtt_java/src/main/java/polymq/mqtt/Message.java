package polymq.mqtt;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** What is published and received, whichever library does it. */
final class Message {
  String topic;
  byte[] body = new byte[0];
  int qos;
  boolean retain;
  /** Names and values, in turn. */
  List<String> userProperties = new ArrayList<>();
  String contentType;
  String responseTopic;
  byte[] correlation;
  Long expirySeconds;
  /** Acknowledges it, where the client was asked not to do that by itself. */
  Runnable acknowledge = () -> {};

  Message(String topic, byte[] body, int qos) {
    this.topic = topic;
    this.body = body;
    this.qos = qos;
  }

  Message(String topic, String body, int qos) {
    this(topic, body.getBytes(StandardCharsets.UTF_8), qos);
  }

  Message retained() {
    retain = true;
    return this;
  }

  String text() {
    return new String(body, StandardCharsets.UTF_8);
  }
}
