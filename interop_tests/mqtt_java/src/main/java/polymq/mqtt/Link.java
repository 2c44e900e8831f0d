package polymq.mqtt;

/** A client of one of the libraries. Calls wait until the server has answered. */
interface Link {
  /** What a connection asks for. */
  final class Options {
    boolean clean = true;
    long expirySeconds = 0;
    /** 0: as many as the library has. */
    int receiveMax = 0;
    int aliasMax = 0;
    boolean manual = false;
    boolean reconnects = false;
    Message will;
  }

  /** Returns whether the server had the session. */
  boolean connect(Options options) throws Exception;

  void subscribe(String filter, int qos, boolean noLocal, boolean retainAsPublished)
      throws Exception;

  default void subscribe(String filter, int qos) throws Exception {
    subscribe(filter, qos, false, false);
  }

  void unsubscribe(String filter) throws Exception;

  /** Returns once the server has acknowledged it; at QoS 0 at once. */
  void publish(Message message) throws Exception;

  /** The next message; null if none comes in this time. */
  Message receive(long milliseconds) throws Exception;

  void disconnect() throws Exception;

  /** Ends it whatever state it is in. */
  void abandon();
}
