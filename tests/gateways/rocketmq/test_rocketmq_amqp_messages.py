"""AMQP messages in RocketMQ's words: what an unusual message becomes. The usual ones meet a whole
server in `interop_tests/test_rocketmq_with_others.py`."""

from __future__ import annotations

import base64
import struct

from gateways.rocketmq.amqp_messages import in_rocketmq_words
from remoting.messages import PROPERTIES_BYTES_MAX
from remoting.records import encode_record, iterate_records, parse_properties


def packed(headers: dict[str, str]) -> str:
    """Content properties with headers of long strings."""
    table = b"".join(
        struct.pack(">B", len(name)) + name.encode() + b"S" + struct.pack(">I", len(raw)) + raw
        for name, value in headers.items()
        for raw in [value.encode()]
    )
    return base64.b64encode(struct.pack(">HI", 0x2000, len(table)) + table).decode()


def record(body: bytes, properties: dict[str, str]) -> bytes:
    """One record."""
    return encode_record(
        topic="t", body=body, properties=properties, queue_offset=0, position=0, born_ms=1
    )  # fmt: skip


def words_of(records: bytes) -> list[dict[str, str]]:
    """The properties of what comes out, which has to be whole records with sound bodies."""
    return [parse_properties(one.properties) for one in iterate_records(in_rocketmq_words(records))]


def test_only_what_came_over_amqp_is_written_anew() -> None:
    """Also where another message's body looks like it."""
    plain = record(b"PMQ_AMQP\x01abc\x02", {"n": "1"})
    amqp = record(b"x", {"PMQ_AMQP": packed({"n": "2"})})
    assert in_rocketmq_words(plain) == plain
    assert [words["n"] for words in words_of(plain + amqp + plain)] == ["1", "2", "1"]


def test_separators_are_escaped() -> None:
    words = words_of(record(b"", {"PMQ_AMQP": packed({"a": "1\x012\x023", "b": "4"})}))
    assert (words[0]["a"], words[0]["b"]) == ("1%012%023", "4")


def test_what_is_there_stays_and_no_header_becomes_an_order() -> None:
    headers = {"n": "theirs", "DELAY": "18", "KEYS": "k", "PMQ_S": "1", "TAGS": "t"}
    given = {"PMQ_AMQP": packed(headers), "n": "ours"}
    assert words_of(record(b"", given)) == [given]


def test_what_does_not_fit_is_left_out() -> None:
    headers = {"long": "x" * 15_000, "short": "y"}
    (words,) = words_of(record(b"", {"PMQ_AMQP": packed(headers)}))
    assert "long" not in words
    assert words["short"] == "y"
    assert len(words["PMQ_AMQP"]) < PROPERTIES_BYTES_MAX


def test_damaged_properties_are_handed_on() -> None:
    given = {"PMQ_AMQP": "no base64!"}
    assert words_of(record(b"b", given)) == [given]
