"""Finding records whose messages belong to a sampled trace, in plain Python. The twin is
`traced.pyx`.

A message says so by a `traceparent` of W3C Trace Context, whose last digit is odd then: as a
property, or among the properties that an AMQP or MQTT 5 client sent, which records have in base64.
Nothing is made of any other record.
"""

from __future__ import annotations

import binascii
from typing import Final

from polymq.core_log.kernels.batch import PROPERTY_CRC_SIZE
from polymq.core_log.kernels.layout import SYSTEM_TOPIC
from polymq.core_log.kernels.record_keys import BASE64, ENCODED_MAX
from polymq.core_log.kernels.walking import _has_topic, _properties_start, _size_of
from polymq.core_log.kernels.writing import Memory

NAME: Final = b"traceparent"
PACKED: Final = (b"PMQ_AMQP", b"PMQ_MQTT5")
"""Properties with a client's own, in base64."""
SKIPPED: Final = (2, 5)
"""Bytes between name and value: the size in MQTT, kind and size in AMQP."""
VALUE_SIZE: Final = 55
FLAG_AT: Final = 54
DASHES_AT: Final = (2, 35, 52)
SAMPLED: Final = b"13579bdf"


def find_sampled(memory: Memory, start: int, end: int) -> list[int]:
    """Starts of the sound records in memory[start:end] whose messages belong to a sampled trace.
    System records do not.

    Raises:
        ValueError: something there is not a record.
    """
    found = []
    at = start
    while at < end:
        size = _size_of(memory, at, end)
        properties = _properties_start(memory, at)
        if not _has_topic(memory, properties, SYSTEM_TOPIC):
            if _has_sampled(bytes(memory[properties : at + size - PROPERTY_CRC_SIZE])):
                found.append(at)
        at += size
    return found


def _has_sampled(properties: bytes) -> bool:
    for pair in properties.split(b"\x02"):
        name, separator, value = pair.partition(b"\x01")
        if not separator:
            continue
        if name == NAME and _is_sampled(value, 0):
            return True
        if name in PACKED and _contains_sampled(_decoded(value)):
            return True
    return False


def _decoded(encoded: bytes) -> bytes:
    if len(encoded) > ENCODED_MAX or not BASE64.fullmatch(encoded):
        return b""
    return binascii.a2b_base64(encoded)


def _contains_sampled(raw: bytes) -> bool:
    """Whether a sampled value is behind the name, wherever it is."""
    at = raw.find(NAME)
    while at >= 0:
        if any(_is_sampled(raw, at + len(NAME) + skipped) for skipped in SKIPPED):
            return True
        at = raw.find(NAME, at + 1)
    return False


def _is_sampled(raw: bytes, at: int) -> bool:
    return (
        at + VALUE_SIZE <= len(raw)
        and all(raw[at + dash] == ord("-") for dash in DASHES_AT)
        and raw[at + FLAG_AT] in SAMPLED
    )
