package polymq.interop;

import java.lang.reflect.Method;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers of all kinds. Each message that one receives is a line. */
final class Consumers {
    private static final int RETRY_IN_ONE_SECOND = 1;

    private final String names;
    private final Map<String, Integer> failures = new ConcurrentHashMap<>();

    Consumers(String names) {
        this.names = names;
    }

    void addTo(Map<String, Driver.Command> commands) {
        commands.put("consumer", this::push);
        commands.put("lite", this::lite);
        commands.put("pull", this::pull);
    }

    /** A push consumer; `orderly`, `broadcast`; each message fails `fail` times. */
    private Object push(Map<String, Object> given) throws Exception {
        String name = (String) given.get("name");
        int fail = Driver.number(given, "fail", 0);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            (String) given.get("group"), Signing.hook(given), new AllocateMessageQueueAveragely());
        Driver.configure(consumer, given, names);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (given.get("tries") != null) {
            consumer.setMaxReconsumeTimes(Driver.number(given, "tries", 16));
        }
        if (given.get("broadcast") != null) {
            setModel(consumer, "BROADCASTING");
        }
        String topic = (String) given.get("topic");
        if (given.get("sql") != null) {
            consumer.subscribe(topic, MessageSelector.bySql((String) given.get("sql")));
        } else {
            consumer.subscribe(topic, Driver.text(given, "tags", "*"));
        }
        if (given.get("orderly") != null) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(100);
                return take(name, messages, fail)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(RETRY_IN_ONE_SECOND);
                return take(name, messages, fail)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        Driver.opened(name, consumer::shutdown);
        return null;
    }

    /** The enum is in another package in 5.x than in 4.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setModel(Object consumer, String model) throws Exception {
        for (Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class<Enum>) method.getParameterTypes()[0], model));
            }
        }
    }

    private boolean take(String name, List<MessageExt> messages, int fail) {
        boolean good = true;
        for (MessageExt message : messages) {
            String body = Driver.encoded(message.getBody());
            boolean failed = failures.merge(name + body, 1, Integer::sum) <= fail;
            good = good && !failed;
            told(name, message, failed);
        }
        return good;
    }

    private static void told(String name, MessageExt message, boolean failed) {
        Driver.say(
            "consumer", name, "body", Driver.encoded(message.getBody()), "topic", message.getTopic(),
            "tag", message.getTags(), "keys", message.getKeys(), "queue", message.getQueueId(),
            "offset", message.getQueueOffset(), "id", message.getMsgId(), "failed", failed,
            "times", message.getReconsumeTimes(), "properties", message.getProperties(),
            "born", message.getBornTimestamp(), "now", System.currentTimeMillis());
    }

    /** A lite pull consumer, which polls until it is closed. */
    private Object lite(Map<String, Object> given) throws Exception {
        String name = (String) given.get("name");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer((String) given.get("group"));
        Driver.configure(consumer, given, names);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe((String) given.get("topic"), "*");
        consumer.start();
        Thread polling = new Thread(() -> {
            while (consumer.isRunning()) {
                for (MessageExt message : consumer.poll(200)) {
                    told(name, message, false);
                }
                consumer.commitSync();
            }
        });
        polling.start();
        Driver.opened(name, () -> {
            consumer.shutdown();
            polling.join();
        });
        return null;
    }

    /** All messages of a topic, queue by queue, by a pull consumer; answers how many there were. */
    @SuppressWarnings("deprecation")
    private Object pull(Map<String, Object> given) throws Exception {
        String name = (String) given.get("name");
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer((String) given.get("group"));
        Driver.configure(consumer, given, names);
        consumer.start();
        int count = 0;
        try {
            Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues((String) given.get("topic"));
            for (MessageQueue queue : queues) {
                long offset = consumer.minOffset(queue);
                while (offset < consumer.maxOffset(queue)) {
                    PullResult pulled =
                        consumer.pull(queue, Driver.text(given, "tags", "*"), offset, 32);
                    offset = pulled.getNextBeginOffset();
                    if (pulled.getMsgFoundList() != null) {
                        count += pulled.getMsgFoundList().size();
                        pulled.getMsgFoundList().forEach(message -> told(name, message, false));
                    }
                }
                consumer.updateConsumeOffset(queue, offset);
            }
        } finally {
            consumer.shutdown();
        }
        return Driver.map("count", count);
    }
}
