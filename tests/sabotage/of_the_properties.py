"""Sabotages of what crosses from MQTT 5 to other protocols, and back."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_TABLE = "tests/gateways/test_property_table.py"
_BLOCKS = "tests/broker/test_mqtt_properties.py"

OF_THE_PROPERTIES = (
    Sabotage(
        name="user-properties-in-another-order",
        why="applications that give the order a meaning read another message",
        path="broker/messages/mqtt_properties.py",
        old="                found.user_properties.append((_text(reader), _text(reader)))\n",
        new="                found.user_properties.insert(0, (_text(reader), _text(reader)))\n",
        tests=(_BLOCKS,),
    ),
    Sabotage(
        name="a-broken-block-fails-its-reader",
        why="one message with a damaged block keeps all behind it from every reader",
        path="broker/messages/mqtt_properties.py",
        old="    except (KeyError, TooShort):\n",
        new="    except KeyError:\n",
        tests=(_BLOCKS,),
    ),
    Sabotage(
        name="control-characters-to-mqtt",
        why="a subscriber closes its connection for a message, and gets it again, for ever",
        path="broker/messages/mqtt_properties.py",
        old="        text = text.translate(_ESCAPES)\n",
        new="        pass\n",
        tests=(_BLOCKS,),
    ),
    Sabotage(
        name="blocks-without-a-bound",
        why="a message with many headers becomes a packet of any size",
        path="broker/messages/mqtt_properties.py",
        old="    if len(block) + size > BLOCK_BYTES_MAX or",
        new="    if",
        tests=(_BLOCKS,),
    ),
    Sabotage(
        name="attributes-keep-their-prefix",
        why="over MQTT 5 an event is no event: its attributes have other names",
        path="broker/messages/mqtt_properties.py",
        old="            found[name.removeprefix(_CE_PREFIX)] = value\n",
        new="            found[name] = value\n",
        tests=(_BLOCKS, _TABLE),
    ),
    Sabotage(
        name="dead-letters-that-expire",
        why="an MQTT client drops a dead letter, which nothing else has",
        path="broker/messages/mqtt_properties.py",
        old="    if DEATH_PROPERTY in properties:\n",
        new="    if DEATH_PROPERTY in ():\n",
        tests=(_BLOCKS,),
    ),
    Sabotage(
        name="answers-to-a-cut-queue-name",
        why="the answer to an AMQP client whose queue's name has a `/` goes to another topic",
        path="broker/messages/mqtt_properties.py",
        old=' or (of_queue and "/" in name):\n',
        new=":\n",
        tests=(_BLOCKS,),
    ),
    Sabotage(
        name="binary-correlation-ids-are-text",
        why="a client cannot tell which of its requests an answer is for",
        path="broker/messages/amqp_content.py",
        old='errors = "surrogateescape" if name == "correlation_id" else "replace"',
        new='errors = "replace"',
        tests=(_BLOCKS,),
    ),
    Sabotage(
        name="mqtt-5-is-alike",
        why="AMQP's consumers get messages of MQTT 5 without their properties",
        path="gateways/amqp/mapping.py",
        old='CONSTANT_ORIGINS: Final = frozenset({"amqp", "mqtt"})\n',
        new='CONSTANT_ORIGINS: Final = frozenset({"amqp", "mqtt", "mqtt5"})\n',
        tests=("tests/gateways/amqp/test_amqp_mqtt5.py",),
    ),
    Sabotage(
        name="one-value-of-each-user-property",
        why="AMQP's consumers get the last of several values of one name",
        path="gateways/amqp/mapping.py",
        old="            headers[name] = [known, value]\n",
        new="            headers[name] = value\n",
        tests=(_TABLE, "tests/gateways/amqp/test_amqp_mqtt5.py"),
    ),
    Sabotage(
        name="headers-exchanges-without-mqtt-5",
        why="a queue behind a headers exchange gets nothing of what MQTT 5 clients publish",
        path="broker/topics/header_routing.py",
        old="reader.of_properties({packed_name: packed, **template.meta.properties})",
        new="reader.of_properties(template.meta.properties)",
        tests=("tests/gateways/amqp/test_amqp_mqtt5.py",),
    ),
    Sabotage(
        name="an-attribute-twice-is-an-event",
        why="two readers of one message see two events",
        path="gateways/http_cloudevents/mapping.py",
        old="        if len(names) != len(set(names)):\n",
        new="        if not names:\n",
        tests=("tests/gateways/http_cloudevents/test_http_mapping.py",),
    ),
    Sabotage(
        name="the-content-type-has-no-say",
        why="the media type of an event over MQTT 5 is what a user property claims",
        path="gateways/http_cloudevents/mapping.py",
        old='        found["datacontenttype"] = content.content_type\n    return found\n',
        new='        found.setdefault("datacontenttype", content.content_type)\n    return found\n',
        tests=("tests/gateways/http_cloudevents/test_http_mapping.py",),
    ),
    Sabotage(
        name="given-back-without-properties",
        why="a message that a RocketMQ consumer gives back comes again without its properties",
        path="gateways/rocketmq/retries.py",
        old="    return replace(sent, extra=raw + sent.extra)\n",
        new="    return sent\n",
        tests=("tests/gateways/rocketmq/test_rocketmq_foreign_messages.py",),
    ),
    Sabotage(
        name="user-properties-are-orders",
        why="an MQTT client's user property delays a message that a RocketMQ client sends on",
        path="gateways/rocketmq/foreign_messages.py",
        old="        if name and name not in NO_HEADERS and not name.startswith(RESERVED):\n",
        new="        if name:\n",
        tests=("tests/gateways/rocketmq/test_rocketmq_foreign_messages.py",),
    ),
    Sabotage(
        name="no-row-of-a-broken-block",
        why="one message with a damaged block stops the sink",
        path="spark_sink/envelope.py",
        old="            mqtt = decode_mqtt_properties(packed)\n        except ValueError:\n",
        new="            mqtt = decode_mqtt_properties(packed)\n        except KeyError:\n",
        tests=("tests/spark_sink/test_sink_envelope.py",),
    ),
)
