package polymq.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * One Java machine with any number of unmodified clients, driven by lines of JSON: each command on
 * standard input has an id, which its answer on standard output repeats. What a consumer receives,
 * and what Apache's own programs print, are lines of their own.
 */
public final class Driver {
    interface Command {
        Object run(Map<String, Object> given) throws Exception;
    }

    interface Closing {
        void close() throws Exception;
    }

    /**
     * How long a request may take, which is three seconds by default. The first ones of a machine
     * that is busy with other tests take longer: they load classes, connect and ask for routes.
     */
    static final int TIMEOUT_MILLIS = 30_000;

    private static final PrintStream LINES = System.out;
    private static final Map<String, Command> COMMANDS = new HashMap<>();
    private static final Map<String, Closing> OPEN = new ConcurrentHashMap<>();

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        String names = arguments[0];
        System.setOut(new PrintStream(new Stage.Printed(), true, "UTF-8"));
        new Producers(names).addTo(COMMANDS);
        new Consumers(names).addTo(COMMANDS);
        Stage.addTo(COMMANDS);
        COMMANDS.put("close", Driver::close);
        say("ready", true);
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, Object> given = parse(line);
            workers.execute(() -> answer(given));
        }
        Runtime.getRuntime().halt(0); // clients that were not closed have threads of their own
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> parse(String line) {
        return RemotingSerializable.fromJson(line, HashMap.class);
    }

    private static void answer(Map<String, Object> given) {
        Object id = given.get("id");
        try {
            Object result = COMMANDS.get((String) given.get("command")).run(given);
            say("id", id, "result", result == null ? new HashMap<String, Object>() : result);
        } catch (MQBrokerException error) {
            say("id", id, "result", map("error", error.getErrorMessage(), "code", error.getResponseCode()));
        } catch (MQClientException error) {
            say("id", id, "result", map("error", error.getMessage(), "code", error.getResponseCode()));
        } catch (Throwable error) {
            error.printStackTrace();
            say("id", id, "error", String.valueOf(error));
        }
    }

    private static Object close(Map<String, Object> given) throws Exception {
        OPEN.remove((String) given.get("name")).close();
        return null;
    }

    /** Set what clients of all kinds have in common. */
    static void configure(ClientConfig client, Map<String, Object> given, String names) {
        client.setNamesrvAddr(text(given, "names", names));
        client.setInstanceName((String) given.get("name"));
        client.setMqClientApiTimeout(TIMEOUT_MILLIS);
    }

    /** Remember a client that `close` ends. */
    static void opened(String name, Closing closing) {
        OPEN.put(name, closing);
    }

    static void say(Object... pairs) {
        String line = RemotingSerializable.toJson(map(pairs), false);
        synchronized (LINES) {
            LINES.println(line);
            LINES.flush();
        }
    }

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> made = new LinkedHashMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            made.put((String) pairs[at], pairs[at + 1]);
        }
        return made;
    }

    static byte[] bytes(Object encoded) {
        return Base64.getDecoder().decode((String) encoded);
    }

    static String encoded(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    static int number(Map<String, Object> given, String key, int otherwise) {
        Object value = given.get(key);
        return value == null ? otherwise : ((Number) value).intValue();
    }

    static String text(Map<String, Object> given, String key, String otherwise) {
        Object value = given.get(key);
        return value == null ? otherwise : (String) value;
    }
}
