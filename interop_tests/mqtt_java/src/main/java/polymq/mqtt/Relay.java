package polymq.mqtt;

import java.io.Closeable;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;

/** A listener in front of the server's, whose connections can be cut without a goodbye. */
final class Relay implements Closeable {
  private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
  private final List<Socket> sockets = new ArrayList<>();
  private final int target;

  Relay(int target) throws IOException {
    this.target = target;
    start(this::accept);
  }

  int port() {
    return listener.getLocalPort();
  }

  private static void start(Runnable work) {
    Thread thread = new Thread(work);
    thread.setDaemon(true);
    thread.start();
  }

  private void accept() {
    try {
      while (true) {
        Socket client = listener.accept();
        Socket server = new Socket(InetAddress.getLoopbackAddress(), target);
        synchronized (sockets) {
          sockets.add(client);
          sockets.add(server);
        }
        start(() -> copy(client, server));
        start(() -> copy(server, client));
      }
    } catch (IOException closed) {
      // It is over.
    }
  }

  private static void copy(Socket from, Socket to) {
    try (from; to) {
      from.getInputStream().transferTo(to.getOutputStream());
    } catch (IOException cut) {
      // It is over.
    }
  }

  /** Closes the listener and all connections. */
  @Override
  public void close() throws IOException {
    listener.close();
    synchronized (sockets) {
      for (Socket socket : sockets) {
        socket.close();
      }
    }
  }
}
