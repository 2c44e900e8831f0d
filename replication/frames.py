"""The frames between a master and a slave, and the proofs that they know one secret. Pure.

    frame     size of the payload (4 bytes), kind (1), payload
    HELLO     slave:  version, cluster, group, name, nonce                          (JSON)
    CHALLENGE master: nonce, proof over both nonces and all names                   (JSON)
    PROOF     slave:  proof, end of its log, its epochs                             (JSON)
                     or, of another master: proof, its epoch as `meet`
    MET       master: its epoch                                                     (JSON)
    START     master: its epoch, the position from which the log follows            (JSON)
    REFUSED   either: one sentence                                                  (JSON)
    RANGE     master: position, epoch, the master's flushed and in-sync ends, where its log begins,
                      CRC-32 of all of it (4), bytes
    ACK       slave:  flushed, received

All numbers are big-endian; positions have 8 bytes. A RANGE without bytes is a heartbeat.

Rule: nothing of a frame is believed before its size was found to be allowed in the state that the
connection is in, and nothing of a peer's log before its proof was found right.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import struct
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, NamedTuple, TypeVar
from zlib import crc32

HEAD: Final = struct.Struct(">IB")
RANGE_HEAD: Final = struct.Struct(">QQQQQ")
CRC: Final = struct.Struct(">I")
RANGE_HEAD_BYTES: Final = RANGE_HEAD.size + CRC.size
ACK: Final = struct.Struct(">QQ")

Event = TypeVar("Event")


class Kind(enum.IntEnum):
    """What a frame is."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    START = 4
    REFUSED = 5
    RANGE = 6
    ACK = 7
    MET = 8


class PeerFault(Exception):
    """The peer does not speak as it should, or is not whom we want; the text is a sentence."""


class Range(NamedTuple):
    """A piece of the log.

    Attributes:
        position, epoch: where it stands.
        flushed, in_sync: the master's points.
        data: the bytes; empty in a heartbeat.
        log_start: where the master's log begins.
    """

    position: int
    epoch: int
    flushed: int
    in_sync: int
    data: bytes
    log_start: int = 0


def encode(kind: Kind, payload: bytes) -> bytes:
    """A frame."""
    return HEAD.pack(len(payload), kind) + payload


def encode_values(kind: Kind, **values: Any) -> bytes:
    """A frame of the handshake."""
    return encode(kind, json.dumps(values, separators=(",", ":")).encode())


def encode_range(piece: Range) -> bytes:
    """A piece of the log, with its checksum."""
    head = RANGE_HEAD.pack(*piece[:4], piece.log_start)
    crc = CRC.pack(crc32(piece.data, crc32(head)))
    return HEAD.pack(RANGE_HEAD_BYTES + len(piece.data), Kind.RANGE) + head + crc + piece.data


def decode_range(payload: bytes) -> Range:
    """Raises PeerFault."""
    if len(payload) < RANGE_HEAD_BYTES:
        raise PeerFault("a piece of the log is cut short")
    position, epoch, flushed, in_sync, log_start = RANGE_HEAD.unpack_from(payload)
    (crc,) = CRC.unpack_from(payload, RANGE_HEAD.size)
    data = payload[RANGE_HEAD_BYTES:]
    if crc32(data, crc32(payload[: RANGE_HEAD.size])) != crc:
        raise PeerFault("a piece of the log was damaged on its way")
    return Range(position, epoch, flushed, in_sync, data, log_start)


class Frames:
    """Cuts what comes into frames.

    Attributes:
        size_max: of a payload, as the connection's state has it.
    """

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """More bytes."""
        self._rest += data

    def next(self) -> tuple[Kind, bytes] | None:
        """The next whole frame, or None. Raises PeerFault."""
        if len(self._rest) < HEAD.size:
            return None
        size, kind = HEAD.unpack_from(self._rest)
        if size > self.size_max:
            raise PeerFault(f"a frame of {size} bytes; {self.size_max} are allowed here")
        if kind not in Kind.__members__.values():
            raise PeerFault(f"an unknown frame {kind}: is this PolyMQ's port for replication?")
        end = HEAD.size + size
        if len(self._rest) < end:
            return None
        payload = bytes(memoryview(self._rest)[HEAD.size : end])
        del self._rest[:end]
        return Kind(kind), payload


class Side(ABC, Generic[Event]):
    """One side of a connection: bytes in, events out.

    Attributes:
        due: what has to come next; None: nothing more is taken.
    """

    def __init__(self, due: Kind, size_max: int) -> None:
        self.due: Kind | None = due
        self._frames = Frames(size_max)
        self._out: list[bytes] = []

    @property
    def closed(self) -> bool:
        """Nothing more is taken."""
        return self.due is None

    def outgoing(self) -> bytes:
        """What has to be sent, once."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def receive(self, data: bytes) -> list[Event]:
        """Bytes of the other side."""
        events: list[Event] = []
        if not self.closed:
            self._frames.feed(data)
        try:
            while not self.closed and (frame := self._frames.next()) is not None:
                events += self._take(*frame)
        except PeerFault as fault:
            events.append(self._end(str(fault)))
        return events

    def _check_due(self, kind: Kind) -> None:
        if kind is not self.due:
            due = "nothing" if self.due is None else self.due.name
            raise PeerFault(f"{kind.name} came where {due} was due")

    @abstractmethod
    def _take(self, kind: Kind, payload: bytes) -> list[Event]:
        """Take one frame. Raises PeerFault."""

    @abstractmethod
    def _end(self, text: str) -> Event:
        """The connection ends, for this reason."""


def decode_values(payload: bytes) -> dict[str, Any]:
    """The values of a frame of the handshake. Raises PeerFault."""
    try:
        values = json.loads(payload)
    except (ValueError, RecursionError):
        raise PeerFault("a frame of the handshake is not JSON") from None
    if not isinstance(values, dict):
        raise PeerFault("a frame of the handshake is not a JSON object")
    return values


def text_of(values: dict[str, Any], name: str, size_max: int) -> str:
    """A text of the handshake. Raises PeerFault."""
    value = values.get(name)
    if not isinstance(value, str) or not len(value) <= size_max:
        raise PeerFault(f"the handshake has no proper {name!r}")
    return value


def number_of(values: dict[str, Any], name: str) -> int:
    """A number of the handshake. Raises PeerFault."""
    value = values.get(name)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise PeerFault(f"the handshake has no proper {name!r}")
    return value


def prove(secret: bytes, role: str, *parts: str) -> str:
    """What only somebody who knows the secret can say of these parts (RFC 2104, SHA-256).

    Args:
        role: of the side that proves, so that nobody can send a proof back.
    """
    text = "\x00".join((role, *parts)).encode("utf-8", "surrogatepass")
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def is_proof(given: str, expected: str) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
