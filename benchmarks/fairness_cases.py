"""The table of loads. Each case has a part that prepares, and a part that is measured. Sizes are
those at which a broker that handles a read or an event as a whole stops for a second.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks import fairness_amqp as amqp
from benchmarks import fairness_http as http
from benchmarks import fairness_mqtt as mqtt
from benchmarks.fairness_stage import Case, Measured, Stage


def quiet(stage: Stage) -> Measured:
    """Nothing."""
    return lambda: time.sleep(stage.seconds)


CASES: Final = (
    Case("quiet", "no load", "all", quiet),
    Case("mqtt-flood", "50 publishers of QoS 1, window 100", "mqtt", mqtt.flood),
    Case("amqp-flood", "50 publishers with confirms, window 100", "amqp", amqp.flood),
    Case("amqp-catch-up", "one consumer gets a backlog of 1,000,000", "amqp", amqp.catch_up),
    Case("amqp-acks", "60,000 single acks, the last first", "amqp", amqp.single_acks),
    Case("amqp-queues", "10 x 1,000 publishes to 1,000 queues", "amqp", amqp.to_many_queues),
    Case("amqp-declare", "20,000 durable queues declared and deleted", "amqp", amqp.declare_queues),
    Case("mqtt-topics", "50,000 publishes to new first levels", "mqtt", mqtt.new_topics),
    Case("mqtt-tags", "50,000 publishes to new topics", "mqtt", mqtt.new_tags),
    Case("mqtt-once", "30,000 of QoS 2 in one piece", "mqtt", mqtt.once),
    Case("mqtt-acks", "8 x 8,000 PUBACK in reverse", "mqtt", mqtt.acks),
    Case("mqtt-filters", "10,000 filters, 1,000 in a packet", "mqtt", mqtt.subscriptions),
    Case("http-batches", "10 batches of 4,000 events of 4,000 types", "http", http.batches),
    Case("http-texts", "10 JSON events of 16 MiB of text", "http", http.large_texts),
    Case("http-values", "10 JSON events of 4,000,000 values", "http", http.many_values),
    Case("http-to-amqp", "one AMQP consumer gets 40,000 events", "http", http.events_to_amqp),
    Case("rocketmq-sends", "20,000 sends in one piece", "rocketmq", http.sends),
    Case("amqp-fanout", "100 publishes to 10,000 queues", "amqp", amqp.fanout_publish),
    Case("amqp-exchange", "delete an exchange with 10,000 bindings", "amqp", amqp.exchange_delete),
    Case("amqp-wildcards", "delete a queue with 10,000 bindings", "amqp", amqp.queue_delete),
    Case("amqp-headers", "100 publishes with 2,000 headers each", "amqp", amqp.large_headers),
    Case("mqtt-fanout", "5 x one message to 5,000 subscribers", "mqtt", mqtt.fanout),
    Case("mqtt-fanout-run", "200 messages to 5,000 subscribers", "mqtt", mqtt.fanout_run),
    Case("mqtt-away", "20 messages to 10,000 sessions away", "mqtt", mqtt.offline_sessions),
    Case("mqtt-retained", "100,000 retained messages are subscribed to", "mqtt", mqtt.retained),
    Case("mqtt-kept-filters", "1,000 filters over them", "mqtt", mqtt.many_retained),
    Case("mqtt-large", "20 bodies of 16 MiB", "mqtt", mqtt.large),
    Case("amqp-large", "20 bodies of 16 MiB", "amqp", amqp.large),
    Case(
        "retention",
        "a flood to a log that keeps 64 MiB",
        "mqtt",
        mqtt.flood,
        {
            "storage.segment_bytes": "16777216",
            "topics.retention_bytes": "16777216",
            "storage.retention_check_seconds": "1",
            # The topics of the paced clients hold the log's files, too: they never have 16 MiB.
            "storage.log_bytes_max": "67108864",
            "storage.save_seconds": "1",
        },
        "polymq_log_deleted_bytes_total",
    ),
    Case(
        "checkpoints",
        "60,000 messages to 20,000 queues, saved every second",
        "amqp",
        amqp.checkpoints,
        {"storage.save_seconds": "1"},
        "polymq_saves_total",
    ),
)
