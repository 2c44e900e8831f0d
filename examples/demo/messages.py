"""What the demo sends: bodies that are awkward on purpose, and how they are recognised again.

A message is named by its publisher and a number. That name is its topic path, routing key and
event type at once (`demo/mqtt/7`, `mqtt.7`), so that a receiver in any protocol can tell which
message it got without looking into the body. Bodies are made from a seed, so every process makes
the same bytes from the same few words.
"""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import dataclass

TOPIC = "demo"
PROTOCOLS = ("mqtt", "amqp", "http", "rocketmq")
CONTENT_TYPE = "application/octet-stream"
BIG = 256 * 1024

KINDS = ("text", "empty", "nul bytes", "invalid utf-8", "random", "all byte values", "256 KiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One message to send."""

    publisher: str
    number: int
    seed: int
    kind: str

    @property
    def tag(self) -> str:
        """The words behind the topic, as AMQP and CloudEvents write them."""
        return f"{self.publisher}.{self.number}"

    @property
    def identity(self) -> str:
        """What AMQP calls message_id, CloudEvents id, and RocketMQ a key."""
        return f"{self.publisher}-{self.number}-{self.seed:x}"

    @property
    def event_kind(self) -> str:
        """The kind as an attribute of an event in HTTP's headers, which has no spaces."""
        return self.kind.replace(" ", "-")

    def body(self) -> bytes:
        """The bytes to send."""
        source = random.Random(f"{self.seed} {self.publisher} {self.number}")
        some = source.randbytes(source.randrange(1, 2048))
        match self.kind:
            case "text":
                return f"Grüße, {source.random()} °C".encode()
            case "empty":
                return b""
            case "nul bytes":
                return b"\0\0" + some + b"\0"
            case "invalid utf-8":
                return b"\xff\xfe\xc0\x80" + some + b"\xe2\x82"
            case "random":
                return some
            case "all byte values":
                return bytes(range(256)) + some
            case _:
                return source.randbytes(BIG)

    def digest(self) -> str:
        """SHA-256 of the body."""
        return hashlib.sha256(self.body()).hexdigest()


def plan(publisher: str, count: int, seed: int) -> list[Item]:
    """`count` messages of one publisher, of every kind in turn."""
    return [
        Item(publisher=publisher, number=number, seed=seed, kind=KINDS[number % len(KINDS)])
        for number in range(count)
    ]


def stream_item(publisher: str, number: int, seed: int) -> Item:
    """Message `number` of an endless plan of small bodies: what is sent while the server dies."""
    kind = KINDS[number % (len(KINDS) - 1)]  # all but the big one
    return Item(publisher=publisher, number=number, seed=seed, kind=kind)


@functools.lru_cache(maxsize=100_000)
def stream_digest(publisher: str, number: int, seed: int) -> str:
    """SHA-256 of its body; every reader asks for it."""
    return stream_item(publisher, number, seed).digest()


def tag_of_path(path: str) -> str:
    """An MQTT topic name as a tag: `demo/mqtt/7` is `mqtt.7`."""
    return ".".join(path.split("/")[1:])
