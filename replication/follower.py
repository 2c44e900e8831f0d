"""The slave's side: bytes in, events out. Pure: no socket, clock or log inside.

It tells who it is and what it has; the master proves that it knows the secret, and says from where
the log follows. If that is before the slave's end, the slave has what its master never had. Whether
it may cut that is for others to decide; then it comes again.
"""

from __future__ import annotations

from dataclasses import dataclass

from polymq.core_log.epochs import term_of
from polymq.replication.common import LogExtent
from polymq.replication.frames import (
    ACK,
    Kind,
    PeerFault,
    Range,
    Side,
    decode_range,
    decode_values,
    encode,
    encode_values,
    is_proof,
    number_of,
    prove,
    text_of,
)
from polymq.replication.limits import (
    NAME_SIZE_MAX,
    RANGE_BYTES_MAX,
    TABLE_BYTES_MAX,
    VERSION,
)
from polymq.replication.source import Identity

TEXT_SIZE_MAX = 1_000
"""Of a sentence from the master."""


@dataclass(frozen=True, slots=True)
class Following:
    """The master sends its log from the slave's end on."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The log has to end at `position` before it can follow: close, cut if that is allowed, come
    again.

    Attributes:
        epoch: the master's.
    """

    position: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The connection ends, for this reason."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The other broker of a meeting has said what it is. The connection ends.

    Attributes:
        term, epoch: of its log.
        leads: whether it takes messages; a slave does not.
        end: how far it has the log on its disk; 0 if it did not say.
        name: its name, for people; may be empty.
    """

    term: int
    epoch: int = 0
    leads: bool = True
    end: int = 0
    name: str = ""


FollowerEvent = Following | Cut | Refused | Range | Answered


class Follower(Side[FollowerEvent]):
    """One connection to a master.

    Args:
        name: of this slave; no other slave of the master has it.
        process: random, the same for all connections of this process.
        nonce: random, never used before, as hexadecimal digits.
        extent: the slave's log, nothing of which waits to be flushed.
        segment_bytes: the size of its files.
        meets: of a master that only wants to know of another one, and to be known: its epoch.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        name: str,
        nonce: str,
        extent: LogExtent,
        segment_bytes: int,
        meets: int | None = None,
        process: str = "",
    ) -> None:
        super().__init__(Kind.CHALLENGE, TABLE_BYTES_MAX)
        self._process = process
        self._meets = meets
        self._epoch = 0
        self._identity = identity
        self._name = name
        self._nonce = nonce
        self._extent = extent
        self._segment_bytes = segment_bytes
        self._out.append(
            encode_values(
                Kind.HELLO,
                version=VERSION,
                cluster=identity.cluster,
                group=identity.group,
                name=name,
                nonce=nonce,
            )
        )

    def _take(self, kind: Kind, payload: bytes) -> list[FollowerEvent]:
        if kind is Kind.REFUSED:
            return [self._end(text_of(decode_values(payload), "text", TEXT_SIZE_MAX))]
        if kind is Kind.MET and self._meets is not None and self.due is Kind.START:
            self.due = None
            return [_answered(decode_values(payload))]
        self._check_due(kind)
        if kind is Kind.RANGE:
            piece = decode_range(payload)
            if piece.epoch != self._epoch:
                raise PeerFault(
                    f"a piece of epoch {piece.epoch} came from a master in epoch {self._epoch}"
                )
            return [piece]
        values = decode_values(payload)
        if kind is Kind.CHALLENGE:
            self._prove(values)
            return []
        return [self._start(number_of(values, "position"), number_of(values, "epoch"))]

    def _prove(self, values: dict[str, object]) -> None:
        mine = self._identity
        nonce = text_of(values, "nonce", NAME_SIZE_MAX)
        parts = (mine.cluster, mine.group, self._name, self._nonce, nonce)
        if not is_proof(
            text_of(values, "proof", NAME_SIZE_MAX), prove(mine.secret, "master", *parts)
        ):
            raise PeerFault("the master has another secret than this slave")
        proof = prove(mine.secret, "slave", *parts)
        self.due = Kind.START
        if self._meets is not None:
            self._out.append(encode_values(Kind.PROOF, proof=proof, meet=self._meets))
            return
        self._out.append(
            encode_values(
                Kind.PROOF,
                proof=proof,
                process=self._process,
                end=self._extent.end,
                epochs=[list(epoch) for epoch in self._extent.epochs],
                segment_bytes=self._segment_bytes,
            )
        )

    def _start(self, position: int, epoch: int) -> FollowerEvent:
        known = self._extent.epochs[-1][0] if self._extent.epochs else 0
        if term_of(epoch) < term_of(known):
            raise PeerFault(
                f"the master leads in term {term_of(epoch)}, and this log has term "
                f"{term_of(known)}: it was replaced, follow the broker that leads now"
            )
        self._epoch = epoch
        if position > self._extent.end:
            raise PeerFault(f"the master begins at {position}, behind this log's end")
        if position < self._extent.start:
            raise PeerFault(
                f"the master has this log up to {position} only, and what is left of it here "
                f"begins at {self._extent.start}: let it start with an empty data directory"
            )
        if position < self._extent.end:
            self.due = None
            return Cut(position, epoch)
        self.due = Kind.RANGE
        self._frames.size_max = RANGE_BYTES_MAX
        return Following()

    def _end(self, text: str) -> Refused:
        self.due = None
        return Refused(text)

    def ack(self, flushed: int, received: int) -> None:
        """Tell the master what is here: also when nothing has changed, as a heartbeat."""
        if self.due is Kind.RANGE:
            self._out.append(encode(Kind.ACK, ACK.pack(flushed, received)))


def _answered(values: dict[str, object]) -> Answered:
    """What a broker says of itself in a meeting. Raises PeerFault."""
    epoch = number_of(values, "epoch")
    if "leads" not in values:  # an earlier version, of which only masters listen
        return Answered(term_of(epoch), epoch)
    return Answered(
        term_of(epoch),
        epoch,
        leads=values["leads"] is not False,
        end=number_of(values, "end"),
        name=text_of(values, "name", NAME_SIZE_MAX),
    )
