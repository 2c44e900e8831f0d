"""RocketMQ's remoting protocol spoken byte by byte, for what no library at hand does."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

WAIT_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class Frame:
    """One command as it came."""

    header: dict[str, Any]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.header["code"])

    @property
    def fields(self) -> dict[str, str]:
        return self.header.get("extFields") or {}


@dataclass(frozen=True)
class Message:
    """One record of a pull answer."""

    topic: str
    offset: int
    position: int
    flag: int
    system_flag: int
    times: int
    body: bytes
    properties: dict[str, str]


class Client:
    """A blocking client. Requests of the server are kept in `asked`."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection((host, port), WAIT_SECONDS_MAX)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._stream = self.socket.makefile("rb")
        self._opaques = itertools.count(1)
        self.asked: list[Frame] = []

    def close(self) -> None:
        self._stream.close()
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, code: int, body: bytes = b"", flag: int = 0, /, **fields: object) -> int:
        opaque = next(self._opaques)
        header = {
            "code": code,
            "language": "OTHER",
            "version": 479,
            "opaque": opaque,
            "flag": flag,
            "extFields": {name: str(value) for name, value in fields.items()},
        }
        data = json.dumps(header).encode()
        self.socket.sendall(struct.pack(">iI", 4 + len(data) + len(body), len(data)) + data + body)
        return opaque

    def read(self) -> Frame:
        length, header_size = struct.unpack(">iI", self._stream.read(8))
        data = self._stream.read(length - 4)
        return Frame(json.loads(data[:header_size]), data[header_size:])

    def ask(self, code: int, body: bytes = b"", flag: int = 0, /, **fields: object) -> Frame:
        """A request and its answer."""
        opaque = self.send(code, body, flag, **fields)
        while True:
            frame = self.read()
            if frame.header["flag"] & 1:
                assert frame.header["opaque"] == opaque
                return frame
            self.asked.append(frame)

    def until_asked(self, code: int) -> Frame:
        """The next request of the server with this code."""
        while not any(frame.code == code for frame in self.asked):
            self.asked.append(self.read())
        found = next(frame for frame in self.asked if frame.code == code)
        self.asked.remove(found)
        return found

    # --- what the tests do often ----------------------------------------------------------

    def publish(
        self, topic: str, body: bytes, *, system_flag: int = 0, code: int = 310, **more: str
    ) -> Frame:
        """Send one message; `more` are its properties."""
        return self.ask(
            code,
            body,
            a="producers",
            b=topic,
            c="TBW102",
            d=4,
            e=0,
            f=system_flag,
            g=1_700_000_000_000,
            h=0,
            i="".join(f"{name}\x01{value}\x02" for name, value in more.items()),
            j=0,
        )

    def pull(
        self,
        topic: str,
        offset: int = 0,
        *,
        group: str = "readers",
        wait_ms: int = 0,
        tags: str | None = None,
        queue_id: int = 0,
    ) -> tuple[Frame, list[Message]]:
        """One pull of a queue."""
        wanted = {} if tags is None else {"subscription": tags}
        frame = self.ask(
            11,
            consumerGroup=group,
            topic=topic,
            queueId=queue_id,
            queueOffset=offset,
            maxMsgNums=32,
            sysFlag=(2 if wait_ms else 0) | (0 if tags is None else 4),
            commitOffset=0,
            suspendTimeoutMillis=wait_ms,
            subVersion=0,
            **wanted,
        )
        return frame, messages_of(frame.body)

    def beat(
        self, client_id: str, *, consumers: Iterable[object] = (), producers: Iterable[object] = ()
    ) -> Frame:
        """A heartbeat."""
        body = {
            "clientID": client_id,
            "consumerDataSet": list(consumers),
            "producerDataSet": list(producers),
        }
        return self.ask(34, json.dumps(body).encode())


def consumer(group: str, *topics: str) -> dict[str, object]:
    """A consumer for a heartbeat."""
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [
            {"topic": topic, "subString": "*", "subVersion": 1} for topic in topics
        ],
    }


def batch(*messages: tuple[bytes, dict[str, str]]) -> bytes:
    """The body of a batch."""
    parts = []
    for body, properties in messages:
        pairs = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        head = struct.pack(">iiiii", 22 + len(body) + len(pairs), 0, 0, 0, len(body))
        parts.append(head + body + struct.pack(">h", len(pairs)) + pairs)
    return b"".join(parts)


def messages_of(records: bytes) -> list[Message]:
    """The records of a pull answer."""
    found = []
    at = 0
    while at < len(records):
        size, magic, _, _, flag, offset, position, system_flag = struct.unpack_from(
            ">IIIiiqqi", records, at
        )
        assert magic == 0xDAA320A7
        times = struct.unpack_from(">i", records, at + 72)[0]
        (body_size,) = struct.unpack_from(">I", records, at + 84)
        body_end = at + 88 + body_size
        topic_end = body_end + 1 + records[body_end]
        pairs = records[topic_end + 2 : at + size].decode().split("\x02")
        found.append(
            Message(
                topic=records[body_end + 1 : topic_end].decode(),
                offset=offset,
                position=position,
                flag=flag,
                system_flag=system_flag,
                times=times,
                body=records[at + 88 : body_end],
                properties=dict(pair.split("\x01", 1) for pair in pairs if pair),
            )
        )
        at += size
    return found
