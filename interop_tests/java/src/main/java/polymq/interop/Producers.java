package polymq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Producers of all kinds, and what can be asked through one: messages by key and by id. */
final class Producers {
    private final String names;
    private final Map<String, DefaultMQProducer> made = new ConcurrentHashMap<>();
    private final Map<String, Integer> checks = new ConcurrentHashMap<>();

    Producers(String names) {
        this.names = names;
    }

    void addTo(Map<String, Driver.Command> commands) {
        commands.put("producer", this::open);
        commands.put("send", this::send);
        commands.put("batch", this::batch);
        commands.put("transaction", this::transaction);
        commands.put("by_key", this::byKey);
        commands.put("by_id", this::byId);
    }

    private Object open(Map<String, Object> given) throws Exception {
        String name = (String) given.get("name");
        TransactionMQProducer producer =
            new TransactionMQProducer((String) given.get("group"), Signing.hook(given));
        Driver.configure(producer, given, names);
        producer.setSendMsgTimeout(Driver.TIMEOUT_MILLIS);
        producer.setTransactionListener(new Decisions());
        producer.start();
        made.put(name, producer);
        Driver.opened(name, producer::shutdown);
        return null;
    }

    private DefaultMQProducer producer(Map<String, Object> given) {
        return made.get((String) given.get("name"));
    }

    private static Message message(Map<String, Object> given, Object body) {
        Message message = new Message((String) given.get("topic"), Driver.bytes(body));
        if (given.get("tag") != null) {
            message.setTags((String) given.get("tag"));
        }
        if (given.get("keys") != null) {
            message.setKeys((String) given.get("keys"));
        }
        if (given.get("colour") != null) {
            message.putUserProperty("colour", (String) given.get("colour"));
        }
        if (given.get("delay") != null) {
            message.setDelayTimeLevel(Driver.number(given, "delay", 0));
        }
        return message;
    }

    /** One message: sync, or `way` async or oneway; with `shard`, to the queue that it chooses. */
    private Object send(Map<String, Object> given) throws Exception {
        DefaultMQProducer producer = producer(given);
        Message message = message(given, given.get("body"));
        String way = Driver.text(given, "way", "sync");
        if (way.equals("oneway")) {
            producer.sendOneway(message);
            return null;
        }
        if (way.equals("async")) {
            CompletableFuture<SendResult> sent = new CompletableFuture<>();
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent.complete(result);
                }

                @Override
                public void onException(Throwable error) {
                    sent.completeExceptionally(error);
                }
            });
            return told(sent.get(Driver.TIMEOUT_MILLIS, TimeUnit.MILLISECONDS));
        }
        if (given.get("shard") != null) {
            return told(producer.send(message, (queues, sent, shard) ->
                queues.get(((Number) shard).intValue() % queues.size()), given.get("shard")));
        }
        return told(producer.send(message));
    }

    private Object batch(Map<String, Object> given) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object body : (List<?>) given.get("bodies")) {
            messages.add(message(given, body));
        }
        return told(producer(given).send(messages));
    }

    /** A half message whose body says what becomes of it: see `Decisions`. */
    private Object transaction(Map<String, Object> given) throws Exception {
        return told(producer(given).sendMessageInTransaction(message(given, given.get("body")), null));
    }

    private static Map<String, Object> told(SendResult result) {
        MessageQueue queue = result.getMessageQueue();
        return Driver.map(
            "status", result.getSendStatus().name(), "id", result.getMsgId(),
            "place", result.getOffsetMsgId(), "offset", result.getQueueOffset(),
            "queue", queue.getQueueId(), "broker", queue.getBrokerName());
    }

    private Object byKey(Map<String, Object> given) throws Exception {
        long now = System.currentTimeMillis();
        QueryResult found = producer(given).queryMessage((String) given.get("topic"),
            (String) given.get("key"), 32, now - 3_600_000, now + 3_600_000);
        return bodies(found.getMessageList());
    }

    private Object byId(Map<String, Object> given) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        found.add(producer(given).viewMessage((String) given.get("topic"), (String) given.get("key")));
        return bodies(found);
    }

    private static Map<String, Object> bodies(List<MessageExt> messages) {
        List<String> bodies = new ArrayList<>();
        for (MessageExt message : messages) {
            bodies.add(Driver.encoded(message.getBody()));
        }
        return Driver.map("bodies", bodies);
    }

    /** `commit...`, `rollback...`, or `later...`, which is committed when the broker asks. */
    private final class Decisions implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            String body = new String(message.getBody());
            if (body.startsWith("commit")) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
            return body.startsWith("rollback")
                ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = new String(message.getBody());
            Driver.say("checked", body, "times", checks.merge(body, 1, Integer::sum));
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
