"""Apache's own Java programs, unchanged from Maven Central: the examples, the benchmark, `mqadmin`.

They run in one Java machine, and what they print is what is looked at. Those that have another
address than the configured one written into them are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pytest

from interop_tests.java_side import Side, open_side
from interop_tests.remoting_wire import Client

pytestmark = [pytest.mark.java_clients, pytest.mark.slow(seconds=15)]

SENT = "sendStatus=SEND_OK"
GOT = "commitLogOffset="
LATER = "ms later"


@pytest.fixture(scope="module", params=["4", "5"])
def side(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Side]:
    """One whose machine has sent a message: the programs give each request three seconds, also
    the first one, which loads the client's classes."""
    with open_side(request.param, tmp_path_factory.mktemp("java")) as made:
        made.producer()(made.make_topic("first"), b"loads the classes")
        yield made


def count(side: Side, program: str, text: str) -> int:
    """How often a program has printed this."""
    return sum(line.count(text) for line in side.driver.printed(program))


def wait(side: Side, program: str, text: str, number: int) -> None:
    """Until a program has printed something this often."""
    try:
        side.until(lambda: count(side, program, text) >= number)
    except AssertionError as error:
        seen = count(side, program, text)
        raise AssertionError(f"{program} printed {text!r} {seen} of {number} times") from error


def test_examples_send_and_receive(side: Side) -> None:
    """Sent one by one, async, in order by a key, in a batch, with tags, in transactions, traced;
    pushed, in order, to everybody, by tag, and pulled."""
    for topic in ("TopicTest", "TagFilterTest"):
        side.make_topic(topic)
    received = {
        "quickstart.Consumer": 256,
        "simple.PushConsumer": 256,
        "ordermessage.Consumer": 60,  # it pauses for three seconds at a time
        "filter.TagFilterConsumer": 40,
        "simple.LitePullConsumerSubscribe": 100,
    }
    everybody = side.driver.run("example.broadcast.PushConsumer")  # begins at the end
    receivers = {side.driver.run(f"example.{name}"): number for name, number in received.items()}
    sent = {
        "simple.Producer": 128,
        "tracemessage.TraceProducer": 128,
        "ordermessage.Producer": 100,
        "filter.TagFilterProducer": 60,
        "transaction.TransactionProducer": 10,
    }
    senders = {side.driver.run(f"example.{name}"): number for name, number in sent.items()}
    async_sender = side.driver.run("example.simple.AsyncProducer")
    batch = side.driver.run("example.batch.SimpleBatchProducer")
    for program, number in senders.items():
        wait(side, program, SENT, number)
    wait(side, async_sender, " OK ", 100)
    for program, number in receivers.items():
        wait(side, program, GOT, number)
    lines = side.driver.printed("example.filter.TagFilterConsumer")
    assert not [line for line in lines if "TAGS=TagB" in line]
    again = 0
    while not count(side, everybody, GOT):
        again += 1
        assert again < 5
        wait(side, side.driver.run("example.simple.Producer", named=f"again{again}"), SENT, 128)
    side.until(lambda: side.driver.ended(batch) or count(side, batch, SENT))
    with Client(side.server.host, side.server.rocketmq_port) as client:
        # Of `TraceProducer`, which chooses among the topic's queues.
        side.until(
            lambda: any(client.pull("RMQ_SYS_TRACE_TOPIC", queue_id=at)[1] for at in range(8))
        )
    for program in (*senders, async_sender, batch):
        assert all(line.get("threw") is None for line in side.driver.ended(program)), program


def test_delayed_examples_arrive_when_they_are_due_and_the_benchmark_runs(side: Side) -> None:
    """Ten seconds after they were sent, by level and by time. Meanwhile the benchmark, which asks
    for binary headers, prints its figures of ten seconds."""
    if side.generation == "4":
        pytest.skip("4.x has no examples of delays, and the same benchmark")
    receivers = {
        side.driver.run("example.schedule.ScheduledMessageConsumer"): 100,
        side.driver.run("example.schedule.TimerMessageConsumer"): 10,
    }
    side.driver.run("example.schedule.ScheduledMessageProducer")
    side.driver.run("example.schedule.TimerMessageProducer")
    shared = ["-t", side.make_topic("BenchmarkTest")]
    drain = side.driver.run("example.benchmark.Consumer", *shared, "-g", "benchmark")
    source = side.driver.run("example.benchmark.Producer", *shared, "-w", "2", "-s", "128")
    for receiver, wanted in receivers.items():
        wait(side, receiver, LATER, wanted)
        lines = " ".join(side.driver.printed(receiver))
        delays = [int(found) for found in re.findall(rf"(\d+) *{LATER}", lines)]
        assert min(delays) >= 8_000  # counted from when the first send began to connect
    for program, figure in ((source, "Send TPS"), (drain, "onsume TPS")):
        side.until(partial(rates, side, program, figure))
        print(program, rates(side, program, figure))


def rates(side: Side, program: str, figure: str) -> list[str]:
    """What a benchmark printed of it, where it is not zero."""
    return re.findall(rf"{figure}: *([1-9]\d*)", " ".join(side.driver.printed(program)))


def test_mqadmin_administers(side: Side) -> None:
    """What docs/rocketmq.md says of its commands, but for those that need a name server's own."""
    send = side.producer()
    topic, group = side.name("administered"), side.name("group")
    cluster = ["-c", "DefaultCluster"]
    broker = ["-b", f"{side.server.host}:{side.server.rocketmq_port}"]

    def begin(*arguments: str) -> str:
        return side.driver.run(
            "tools.command.MQAdminStartup", *arguments, "-n", side.names, named=side.name("mqadmin")
        )

    def admin(wanted: str, *arguments: str) -> None:
        """Its client may take three seconds to end, for which nobody waits."""
        program = begin(*arguments)

        def found() -> object:
            return re.search(wanted, "\n".join(side.driver.printed(program)))

        side.until(lambda: found() or side.driver.ended(program))
        assert found(), (arguments, side.driver.printed(program))

    def listed() -> bool:
        program = begin("topicList")
        side.until(lambda: side.driver.ended(program))
        return topic in side.driver.printed(program)

    admin("success", "updateTopic", *cluster, "-t", topic, "-r", "4", "-w", "4")
    side.until(listed)
    admin("success", "updateSubGroup", *cluster, "-g", group, "-r", "3")
    sent = send(topic, b"x", tag="t", keys="k1")
    consumer = side.consumer(topic, group)
    side.until(lambda: side.bodies(consumer))
    queue = sent["queue"]
    admin('"readQueueNums":4', "topicRoute", "-t", topic)
    admin(rf"broker-a +{queue} +0 +1 ", "topicStatus", "-t", topic)
    admin("DefaultCluster", "topicClusterList", "-t", topic)
    admin("PolyMQ", "clusterList")
    admin("brokerActive", "brokerStatus", *broker)
    admin("brokerName", "getBrokerConfig", *broker)
    named = ["-t", topic] if side.generation == "5" else []
    admin(r"Keys: +\[k1\]", "queryMsgById", *named, "-i", sent["place"])
    admin(sent["id"], "queryMsgByKey", "-t", topic, "-k", "k1")
    where = ["-b", "broker-a", "-i", str(queue), "-o", "0"]
    admin(sent["place"], "queryMsgByOffset", "-t", topic, *where)
    admin(topic, "consumerConnection", "-g", group)
    admin(rf"broker-a +{queue} +1", "resetOffsetByTime", "-g", group, "-t", topic, "-s", "-1")
    admin(group, "consumerProgress")
    admin(rf"{topic} +broker-a +{queue} +1 +1 +", "consumerProgress", "-g", group)
    copy = side.name("group")
    admin("success", "updateSubGroup", *cluster, "-g", copy)
    admin("success", "cloneGroupOffset", "-s", group, "-d", copy, "-t", topic)
    if side.generation == "5":  # asks a name server; the broker's listener keeps no values
        admin("success", "updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
        admin("success", "deleteKvConfig", "-s", "space", "-k", "key")
    admin("success", "deleteSubGroup", *cluster, "-g", group)
    admin("success", "deleteTopic", *cluster, "-t", topic)
    side.until(lambda: not listed())
