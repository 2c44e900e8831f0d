"""The master's side of one slave: bytes in, events out. Pure: no socket, clock or log inside.

    HELLO -> CHALLENGE, PROOF -> START (or REFUSED), then RANGE after RANGE, and ACKs come back

Rules:

* The slave proves that it knows the secret before it is told anything of the log; the master proves
  it first, so that a slave never takes records from a stranger.
* What is sent was written here, maybe not flushed: both disks work at the same time. A slave's ack
  says what *it* has flushed.
* At most `WINDOW_BYTES` are sent that the slave has not received.
* A broker that does not lead ships nothing. It answers a meeting, and refuses slaves by saying whom
  it follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polymq.core_log.epochs import term_of
from polymq.replication.common import LogExtent, common_end, epochs_from
from polymq.replication.frames import (
    ACK,
    Kind,
    PeerFault,
    Range,
    Side,
    decode_values,
    encode_range,
    encode_values,
    is_proof,
    number_of,
    prove,
    text_of,
)
from polymq.replication.limits import (
    HELLO_BYTES_MAX,
    NAME_SIZE_MAX,
    RANGE_BYTES,
    TABLE_BYTES_MAX,
    VERSION,
    WINDOW_BYTES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose log it is, and who may have it.

    Attributes:
        cluster, group: the names of the cluster, and of the master and its slaves in it.
        secret: what all of them know.
    """

    cluster: str
    group: str
    secret: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The slave follows from `position` on."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """The slave has more than this log, behind `position`, and was told so. It comes again when it
    has cut that, if it may. The connection ends."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Acked:
    """The slave has everything before `flushed` on its disk."""

    name: str
    flushed: int
    received: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The connection ends, for this reason; send what is to be sent, then close."""

    text: str


@dataclass(frozen=True, slots=True)
class Outranked:
    """The peer, which has proved that it is of the group, knows of a higher term: this broker is
    the master no more."""

    name: str
    term: int


@dataclass(frozen=True, slots=True)
class Met:
    """Another broker, in no higher term, which knows ours now. The connection ends."""

    name: str
    term: int


SourceEvent = Joined | Ahead | Acked | Rejected | Outranked | Met


class Source(Side[SourceEvent]):
    """One slave's connection.

    Args:
        nonce: random, never used before, as hexadecimal digits.
        extent: the log as it is now; asked once, when the slave has proved who it is.
        admit: why a slave may not join, by its name and its process; empty if it may.
        segment_bytes: of the log; the slave's has to be equal.
        name: of this broker.
        follows: of a broker that does not lead: what slaves are told. Empty: it leads.

    Attributes:
        name, process: of the slave, once it has said them. The process is a random text: a slave
            that connects again has the same, and another broker of the same name has another.
        sent: up to where the log was sent.
        received, flushed: what the slave said last.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        nonce: str,
        extent: Callable[[], LogExtent],
        admit: Callable[[str, str], str],
        segment_bytes: int,
        name: str = "",
        follows: str = "",
    ) -> None:
        super().__init__(Kind.HELLO, HELLO_BYTES_MAX)
        self._identity = identity
        self._own_name = name
        self._follows = follows
        self._nonce = nonce
        self._extent = extent
        self._admit = admit
        self._segment_bytes = segment_bytes
        self._expected = ""
        self.name = ""
        self.process = ""
        self.sent = self.received = self.flushed = 0

    @property
    def has_spoken(self) -> bool:
        """Whether a proper first frame came."""
        return self.due is not Kind.HELLO

    def _take(self, kind: Kind, payload: bytes) -> list[SourceEvent]:
        self._check_due(kind)
        if kind is Kind.ACK:
            return [self._take_ack(payload)]
        values = decode_values(payload)
        if kind is Kind.HELLO:
            self._challenge(values)
            return []
        return self._start(values)

    def _challenge(self, values: dict[str, object]) -> None:
        if values.get("version") != VERSION:
            theirs = values.get("version")
            raise PeerFault(f"this master speaks version {VERSION}, the slave {theirs!r:.20}")
        mine = self._identity
        names = [text_of(values, name, NAME_SIZE_MAX) for name in ("cluster", "group", "name")]
        nonce = text_of(values, "nonce", NAME_SIZE_MAX)
        if names[:2] != [mine.cluster, mine.group]:
            raise PeerFault(
                f"this is the master of cluster {mine.cluster!r}, group {mine.group!r}, not of "
                f"{names[0]!r}, {names[1]!r}"
            )
        if not names[2]:
            raise PeerFault("a slave needs a name")
        self.name = names[2]
        parts = (*names, nonce, self._nonce)
        self._expected = prove(mine.secret, "slave", *parts)
        proof = prove(mine.secret, "master", *parts)
        self._out.append(encode_values(Kind.CHALLENGE, nonce=self._nonce, proof=proof))
        self.due = Kind.PROOF
        self._frames.size_max = TABLE_BYTES_MAX

    def _start(self, values: dict[str, object]) -> list[SourceEvent]:
        if not is_proof(text_of(values, "proof", NAME_SIZE_MAX), self._expected):
            raise PeerFault(f"the slave {self.name!r} has another secret than this master")
        mine = self._extent()
        epoch = mine.epochs[-1][0] if mine.epochs else 0
        if "meet" in values:
            term = term_of(number_of(values, "meet"))
            self.due = None
            self._out.append(
                encode_values(
                    Kind.MET,
                    epoch=epoch,
                    leads=not self._follows,
                    end=mine.flushed,
                    name=self._own_name,
                )
            )
            higher = term > term_of(epoch)
            return [Outranked(self.name, term) if higher else Met(self.name, term)]
        if self._follows:
            raise PeerFault(self._follows)
        epochs = epochs_from(values.get("epochs"))
        if epochs and term_of(epochs[-1][0]) > term_of(epoch):
            term = term_of(epochs[-1][0])
            text = (
                f"this broker leads in term {term_of(epoch)}, and {self.name!r} knows term {term}"
            )
            return [Outranked(self.name, term), self._end(text)]
        if "process" in values:  # a slave of an earlier version does not say it
            self.process = text_of(values, "process", NAME_SIZE_MAX)
        refusal = self._admit(self.name, self.process)
        if refusal:
            raise PeerFault(refusal)
        if number_of(values, "segment_bytes") != self._segment_bytes:
            raise PeerFault(
                f"the segments of this log have {self._segment_bytes} bytes: set "
                f"storage.segment_bytes of slave {self.name!r} to that"
            )
        theirs = LogExtent(start=0, end=number_of(values, "end"), epochs=epochs)
        position = common_end(mine, theirs)
        if position is None:
            raise PeerFault(
                f"the log of slave {self.name!r} is not a copy of this one: let it start with an "
                "empty data directory"
            )
        if position < mine.start:
            raise PeerFault(
                f"slave {self.name!r} has this log up to {position}, and what is left of it here "
                f"begins at {mine.start}: let it start with a copy of this data directory"
            )
        self._out.append(encode_values(Kind.START, position=position, epoch=epoch))
        if position < theirs.end:
            self.due = None
            return [Ahead(self.name, position)]
        self.sent = self.received = position
        self.due = Kind.ACK
        self._frames.size_max = ACK.size
        return [Joined(self.name, position)]

    def _take_ack(self, payload: bytes) -> SourceEvent:
        if len(payload) != ACK.size:
            raise PeerFault("an ack is cut short")
        flushed, received = ACK.unpack(payload)
        if not self.flushed <= flushed <= received <= self.sent or received < self.received:
            raise PeerFault(
                f"the slave acks {flushed} of {received}, and {self.sent} was sent to it"
            )
        self.flushed, self.received = flushed, received
        return Acked(self.name, flushed, received)

    @property
    def room(self) -> int:
        """How many bytes may be sent now; 0 while the window is full, or nobody follows."""
        if self.due is not Kind.ACK:
            return 0
        return RANGE_BYTES if self.sent - self.received < WINDOW_BYTES else 0

    def send(
        self,
        start: int,
        data: bytes,
        end: int,
        *,
        epoch: int,
        points: tuple[int, int],
        log_start: int = 0,
    ) -> None:
        """Send a piece of the log, or a heartbeat if it is empty.

        Args:
            start: where it stands: `sent`, or behind that where a segment ended.
            end: the place behind it: where a segment ends with it, the start of the next one.
            points: flushed and in-sync, as they are now.
            log_start: where the log begins now.
        """
        assert self.due is Kind.ACK
        self._out.append(encode_range(Range(start, epoch, *points, data, log_start)))
        if data:
            self.sent = end

    def reject(self, text: str) -> None:
        """End the connection with a sentence for the slave."""
        self._end(text)

    def _end(self, text: str) -> Rejected:
        self.due = None
        self._out.append(encode_values(Kind.REFUSED, text=text))
        return Rejected(text)
