package polymq.mqtt;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * What clients do with a server, in one of the libraries. Arguments: the library (`paho`, `hivemq`
 * or `hivemq3`) and the server's port. Prints a line of JSON for each scenario: its name, and what
 * went wrong if something did. A line `{"kill": true}` asks for the server to be killed and started
 * again, and waits for a line on the standard input that says that this was done.
 */
public final class Scenarios {
  private interface Scenario {
    void run() throws Exception;
  }

  private static final long PATIENCE = 20_000;
  /** Milliseconds in which nothing comes where nothing may come. */
  private static final long QUIET = 300;

  private final String library;
  private final int port;
  private final BufferedReader answers =
      new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
  private final List<Link> opened = new ArrayList<>();

  private Scenarios(String library, int port) {
    this.library = library;
    this.port = port;
  }

  public static void main(String[] arguments) {
    new Scenarios(arguments[0], Integer.parseInt(arguments[1])).runAll();
    System.exit(0); // also where a library has left a thread
  }

  private void runAll() {
    boolean five = !library.equals("hivemq3");
    Map<String, Scenario> all = new LinkedHashMap<>();
    all.put("qos", this::qos);
    all.put("retained", this::retained);
    all.put("will", this::will);
    all.put("session", this::session);
    all.put("manual", this::manual);
    all.put("large", this::large);
    if (five) {
      all.put("properties", this::properties);
      all.put("expiry", this::expiry);
      all.put("aliases", this::aliases);
      all.put("receive_maximum", this::receiveMaximum);
      all.put("options", this::options);
      all.put("request", this::request);
    }
    all.put("kill", this::kill);
    all.forEach(
        (name, scenario) -> {
          String error = "";
          long began = System.nanoTime();
          try {
            scenario.run();
          } catch (Exception | AssertionError wrong) {
            wrong.printStackTrace();
            error = wrong.toString();
          }
          opened.forEach(Link::abandon);
          opened.clear();
          double seconds = (System.nanoTime() - began) / 100_000_000 / 10.0;
          say(
              String.format(
                  Locale.ROOT,
                  "{\"scenario\": \"%s\", \"error\": \"%s\", \"seconds\": %.1f}",
                  name,
                  escaped(error),
                  seconds));
        });
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  private static String escaped(String text) {
    return text.replaceAll("[\\\\\"\\p{Cntrl}]", " ");
  }

  // --- what scenarios use -----------------------------------------------------------------------

  private Link make(int port, String name) throws Exception {
    String identifier = library + "-" + name;
    switch (library) {
      case "paho":
        return new PahoLink(port, identifier);
      case "hivemq":
        return new HiveLink(port, identifier);
      default:
        return new Hive3Link(port, identifier);
    }
  }

  private Link open(String name, Link.Options options) throws Exception {
    Link link = make(port, name);
    link.connect(options);
    opened.add(link);
    return link;
  }

  private Link open(String name) throws Exception {
    return open(name, new Link.Options());
  }

  private void close(Link link) throws Exception {
    opened.remove(link);
    link.disconnect();
  }

  private static Link.Options lasting() {
    Link.Options options = new Link.Options();
    options.clean = false;
    options.expirySeconds = 300;
    return options;
  }

  private static void expect(Object wanted, Object found) {
    if (!Objects.equals(wanted, found)) {
      throw new AssertionError("expected " + wanted + ", found " + found);
    }
  }

  private static Message next(Link link) throws Exception {
    Message message = link.receive(PATIENCE);
    if (message == null) {
      throw new AssertionError("nothing came");
    }
    return message;
  }

  private static void expectNothing(Link link) throws Exception {
    Message message = link.receive(QUIET);
    expect(null, message == null ? null : message.topic + ": " + message.text());
  }

  // --- the scenarios ----------------------------------------------------------------------------

  /** Every quality in both directions, in order; and the end of a subscription. */
  private void qos() throws Exception {
    Link reader = open("reader");
    Link writer = open("writer");
    for (int qos = 0; qos < 3; qos++) {
      reader.subscribe("qos/" + qos + "/+", qos);
      for (int number = 0; number < 20; number++) {
        writer.publish(new Message("qos/" + qos + "/t", "" + number, qos));
      }
      for (int number = 0; number < 20; number++) {
        Message message = next(reader);
        expect("" + number, message.text());
        expect(qos, message.qos);
        expect("qos/" + qos + "/t", message.topic);
      }
    }
    reader.unsubscribe("qos/1/+");
    writer.publish(new Message("qos/1/t", "late", 1));
    writer.publish(new Message("qos/2/t", "end", 2));
    expect("end", next(reader).text());
  }

  /** What is retained comes with RETAIN, is replaced, and goes with an empty message. */
  private void retained() throws Exception {
    Link writer = open("writer");
    writer.publish(new Message("kept/a", "old", 1).retained());
    writer.publish(new Message("kept/a", "new", 2).retained());
    writer.publish(new Message("kept/b", "gone", 1).retained());
    writer.publish(new Message("kept/b", "", 1).retained());
    Link reader = open("reader");
    reader.subscribe("kept/#", 1);
    Message message = next(reader);
    expect("new", message.text());
    expect(true, message.retain);
    writer.publish(new Message("kept/a", "", 1).retained());
    Message live = next(reader);
    expect("", live.text());
    expect(false, live.retain);
    expectNothing(reader);
  }

  /** It comes when a connection is cut, and not when it is closed in order. */
  private void will() throws Exception {
    Link reader = open("reader");
    reader.subscribe("will/#", 1);
    Link.Options options = new Link.Options();
    options.will = new Message("will/polite", "never", 1);
    close(open("polite", options));
    options.will = new Message("will/cut", "gone", 1);
    options.will.userProperties = List.of("why", "cut");
    Relay relay = new Relay(port);
    Link mortal = make(relay.port(), "mortal");
    mortal.connect(options);
    relay.close();
    Message message = next(reader);
    expect("will/cut", message.topic);
    expect("gone", message.text());
    if (!library.equals("hivemq3")) {
      expect(List.of("why", "cut"), message.userProperties);
    }
    expectNothing(reader);
  }

  /** It is found again with what came meanwhile; a clean start forgets it. */
  private void session() throws Exception {
    Link away = make(port, "away");
    expect(false, away.connect(lasting()));
    away.subscribe("session/#", 2);
    away.disconnect();
    Link writer = open("writer");
    for (int number = 0; number < 20; number++) {
      writer.publish(new Message("session/t", "" + number, 1 + number % 2));
    }
    away = make(port, "away");
    expect(true, away.connect(lasting()));
    for (int number = 0; number < 20; number++) {
      Message message = next(away);
      expect("" + number, message.text());
      expect(1 + number % 2, message.qos);
    }
    away.disconnect();
    away = make(port, "away");
    expect(false, away.connect(new Link.Options()));
    writer.publish(new Message("session/t", "lost", 1));
    expectNothing(away);
    away.disconnect();
    away = make(port, "away");
    expect(false, away.connect(lasting()));
    away.disconnect();
  }

  /** What was not acknowledged comes again with the next connection, and what was does not. */
  private void manual() throws Exception {
    Link.Options options = lasting();
    options.manual = true;
    Relay relay = new Relay(port);
    Link reader = make(relay.port(), "manual");
    reader.connect(options);
    reader.subscribe("manual/t", 1);
    Link writer = open("writer");
    for (int number = 0; number < 4; number++) {
      writer.publish(new Message("manual/t", "" + number, 1));
    }
    for (int number = 0; number < 4; number++) {
      Message message = next(reader);
      if (number < 2) {
        message.acknowledge.run();
      }
    }
    writer.publish(new Message("manual/t", "4", 1));
    expect("4", next(reader).text());
    // An acknowledgement has no answer, but what is published behind it has.
    reader.publish(new Message("manual/other", "", 1));
    relay.close();
    reader.abandon();
    reader = make(port, "manual");
    expect(true, reader.connect(options));
    for (String text : List.of("2", "3", "4")) {
      Message message = next(reader);
      expect(text, message.text());
      message.acknowledge.run();
    }
    reader.disconnect();
  }

  /** One and three MiB at QoS 2, in both directions. */
  private void large() throws Exception {
    Link reader = open("reader");
    Link writer = open("writer");
    reader.subscribe("large", 2);
    for (int size : new int[] {1 << 20, 3 << 20}) {
      byte[] body = new byte[size];
      for (int at = 0; at < size; at++) {
        body[at] = (byte) (at * 31 + (at >> 8));
      }
      writer.publish(new Message("large", body, 2));
      expect(true, Arrays.equals(body, next(reader).body));
    }
  }

  /** All properties of a message arrive as they were sent, in order. */
  private void properties() throws Exception {
    Link reader = open("reader");
    Link writer = open("writer");
    reader.subscribe("properties", 1);
    Message message = new Message("properties", "body", 1);
    message.userProperties = List.of("k", "1", "k", "2", "grüße", "\u4f60\u597d", "empty", "");
    message.contentType = "text/plain";
    message.responseTopic = "answers/here";
    message.correlation = new byte[] {0, 1, (byte) 255};
    writer.publish(message);
    Message came = next(reader);
    expect(message.userProperties, came.userProperties);
    expect("text/plain", came.contentType);
    expect("answers/here", came.responseTopic);
    expect(true, Arrays.equals(message.correlation, came.correlation));
    expect(null, came.expirySeconds);
  }

  /** An expiry interval counts down while a message waits; and what has expired does not come. */
  private void expiry() throws Exception {
    Link away = make(port, "sleeper");
    away.connect(lasting());
    away.subscribe("expiry", 1);
    away.disconnect();
    Link writer = open("writer");
    Message brief = new Message("expiry", "brief", 1);
    brief.expirySeconds = 1L;
    writer.publish(brief);
    Message lasting = new Message("expiry", "lasting", 1);
    lasting.expirySeconds = 100L;
    writer.publish(lasting);
    Thread.sleep(1500);
    away = make(port, "sleeper");
    away.connect(lasting());
    Message came = next(away);
    expect("lasting", came.text());
    expect(true, came.expirySeconds > 0 && came.expirySeconds <= 99);
    away.disconnect();
  }

  /** Publishes to few topics again and again; the libraries set and use aliases as they may. */
  private void aliases() throws Exception {
    Link.Options options = new Link.Options();
    options.aliasMax = 3;
    Link reader = open("reader", options);
    Link writer = open("writer", options);
    reader.subscribe("alias/#", 1);
    for (int number = 0; number < 40; number++) {
      writer.publish(new Message("alias/a/rather/long/topic/" + number % 5, "" + number, 1));
    }
    for (int number = 0; number < 40; number++) {
      Message message = next(reader);
      expect("alias/a/rather/long/topic/" + number % 5, message.topic);
      expect("" + number, message.text());
    }
  }

  /** No more than so many come without an acknowledgement, and all of them in the end. */
  private void receiveMaximum() throws Exception {
    Link.Options options = new Link.Options();
    options.manual = true;
    options.receiveMax = 3;
    Link reader = open("reader", options);
    reader.subscribe("receive/t", 1);
    Link writer = open("writer");
    for (int number = 0; number < 12; number++) {
      writer.publish(new Message("receive/t", "" + number, 1));
    }
    List<Message> held = new ArrayList<>();
    for (int number = 0; number < 12; number++) {
      if (held.size() == 3) {
        expectNothing(reader);
        held.forEach(message -> message.acknowledge.run());
        held.clear();
      }
      Message message = next(reader);
      expect("" + number, message.text());
      held.add(message);
    }
    held.forEach(message -> message.acknowledge.run());
  }

  /** No Local and Retain As Published. */
  private void options() throws Exception {
    Link both = open("both");
    Link other = open("other");
    both.subscribe("options/quiet", 1, true, false);
    both.subscribe("options/as", 1, false, true);
    both.publish(new Message("options/quiet", "mine", 1));
    other.publish(new Message("options/quiet", "yours", 1));
    expect("yours", next(both).text());
    other.publish(new Message("options/as", "x", 1).retained());
    expect(true, next(both).retain);
    other.publish(new Message("options/as", "", 1).retained());
    expect(true, next(both).retain);
    expectNothing(both);
  }

  /** A request says where its answer goes, and the answer to what it belongs. */
  private void request() throws Exception {
    Link asking = open("asking");
    Link answering = open("answering");
    asking.subscribe("answers/mine", 1);
    answering.subscribe("questions", 1);
    for (int number = 0; number < 5; number++) {
      Message question = new Message("questions", "" + number, 1);
      question.responseTopic = "answers/mine";
      question.correlation = new byte[] {(byte) number};
      asking.publish(question);
      Message asked = next(answering);
      Message answer = new Message(asked.responseTopic, asked.text() + "!", 1);
      answer.correlation = asked.correlation;
      answering.publish(answer);
      Message came = next(asking);
      expect(number + "!", came.text());
      expect(number, (int) came.correlation[0]);
    }
  }

  /** The server is killed while a client publishes: readers come back by themselves, and nothing
   * that was acknowledged is lost; at QoS 2 nothing comes twice. */
  private void kill() throws Exception {
    Link.Options options = lasting();
    options.reconnects = true;
    Link reader = open("survivor", options);
    reader.subscribe("kill/#", 2);
    Set<String> acknowledged = new LinkedHashSet<>();
    Thread publishing = new Thread(() -> publishForEver(acknowledged));
    publishing.start();
    await(acknowledged, 100);
    say("{\"kill\": true}");
    try {
      answers.readLine();
    } catch (IOException gone) {
      throw new AssertionError(gone);
    }
    int before;
    synchronized (acknowledged) {
      before = acknowledged.size();
    }
    await(acknowledged, before + 100);
    publishes = false;
    publishing.interrupt();
    publishing.join(PATIENCE);
    Set<String> missing; // the order between topics is not promised
    synchronized (acknowledged) {
      missing = new HashSet<>(acknowledged);
    }
    Set<String> found = new HashSet<>();
    while (!missing.isEmpty()) {
      Message message = reader.receive(PATIENCE);
      if (message == null) {
        throw new AssertionError("lost: " + missing);
      }
      missing.remove(message.text());
      boolean fresh = found.add(message.text());
      // Paho gives a message of QoS 2 to the application before it is released, and gives it again
      // if the connection ends in between.
      if (message.qos == 2 && !fresh && !library.equals("paho")) {
        throw new AssertionError("twice: " + message.text());
      }
    }
  }

  /** Whether `publishForEver` goes on: a library may take the interruption for a failure. */
  private volatile boolean publishes = true;

  /** Publishes numbers at QoS 1 and 2 until `publishes` is false and the thread is interrupted. */
  private void publishForEver(Set<String> acknowledged) {
    // After a reconnection Paho repeats what it had in flight with the topic aliases of the
    // connection before, which no server can know (eclipse-paho/paho.mqtt.java, issue 1104). So its
    // publisher begins anew each time.
    boolean anew = library.equals("paho");
    Link.Options options = anew ? new Link.Options() : lasting();
    options.reconnects = !anew;
    Link writer = null;
    try {
      for (int number = 0; publishes; number++) {
        try {
          if (writer == null) {
            writer = make(port, "publisher");
            writer.connect(options);
          }
          writer.publish(new Message("kill/" + (1 + number % 2), "" + number, 1 + number % 2));
          synchronized (acknowledged) {
            acknowledged.add("" + number);
          }
        } catch (InterruptedException over) {
          return;
        } catch (Exception failed) { // there is no connection just now
          if (anew && writer != null) {
            writer.abandon();
            writer = null;
          }
          Thread.sleep(50);
        }
        if (Thread.interrupted()) {
          return;
        }
      }
    } catch (InterruptedException over) {
      // It is over.
    } finally {
      if (writer != null) {
        writer.abandon();
      }
    }
  }

  private static void await(Set<String> grows, int size) throws InterruptedException {
    long end = System.nanoTime() + PATIENCE * 1_000_000;
    while (true) {
      synchronized (grows) {
        if (grows.size() >= size) {
          return;
        }
      }
      if (System.nanoTime() > end) {
        throw new AssertionError("no more than " + grows.size() + " of " + size);
      }
      Thread.sleep(5);
    }
  }
}
