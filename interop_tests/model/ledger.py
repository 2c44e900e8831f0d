"""What clients sent, what they were promised, and what readers got. Held against each other.

A *message* is known by its key, which stands in its body. Its outcome is what its publisher was
told:

* ACKED: the server has promised to keep it; every reader has to get it.
* UNKNOWN: the connection ended before the answer; readers may get it, all of them or none.
* REFUSED or ROLLED_BACK: no reader may get it.
* UNPROMISED: nothing was to be promised (QoS 0).

Messages of one `unit` belong together (a transaction, an HTTP batch): all of them are stored or
none. What is judged is said at `Ledger.judge`.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

CLOCK_SECONDS = 0.001
"""The server counts whole milliseconds: what comes within one begins with it."""
SHOWN = 5


class Outcome(enum.Enum):
    """What the publisher of a message was told."""

    ACKED = "acked"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    ROLLED_BACK = "rolled back"
    UNPROMISED = "unpromised"


@dataclass(slots=True)
class Sent:
    """A message as its publisher knows it.

    Attributes:
        publisher, number: its key.
        outcome: as long as the publisher waits, UNKNOWN.
        unit: what it belongs together with.
        once: whether it may be stored only once although its outcome was unknown (QoS 2).
        due: wall clock time before which no reader may get it.
        expires: wall clock time after which no subscriber may get it.
    """

    publisher: str
    number: int
    outcome: Outcome = Outcome.UNKNOWN
    unit: str = ""
    once: bool = False
    due: float = 0.0
    expires: float = 0.0

    @property
    def key(self) -> str:
        """As it stands in the body."""
        return f"{self.publisher}:{self.number}"


@dataclass(slots=True)
class Got:
    """One delivery to a reader.

    Attributes:
        again: the server said that it may be a repeat.
        once: it must not be repeated (QoS 2).
        note: what else was seen of it.
    """

    key: str
    at: float
    again: bool
    once: bool = False
    note: str = ""


@dataclass(slots=True)
class Reader:
    """What one reader got.

    Attributes:
        by_offset: it reads the log by offset: it sees what has expired, and nothing twice.
        got: its deliveries, in order.
        faults: what was wrong with a delivery by itself.
    """

    name: str
    by_offset: bool = False
    got: list[Got] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Ledger:
    """The books of one run. Used by the threads of all clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: dict[str, Sent] = {}
        self.readers: list[Reader] = []
        self.notes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.kills: list[float] = []
        """When the server was killed."""

    def reader(self, name: str, *, by_offset: bool = False) -> Reader:
        """A new reader of everything."""
        made = Reader(name, by_offset=by_offset)
        self.readers.append(made)
        return made

    def send(self, message: Sent) -> Sent:
        """A message is about to be sent."""
        with self._lock:
            assert message.key not in self.sent
            self.sent[message.key] = message
        return message

    def note(self, what: str) -> None:
        """Count something worth knowing, such as a refusal."""
        with self._lock:
            self.notes[what] += 1

    def fault(self, text: str) -> None:
        """Something that is wrong by itself."""
        with self._lock:
            self.faults.append(text)

    def got(self, reader: Reader, got: Got) -> None:
        """A reader got a message."""
        reader.got.append(got)

    def acked(self) -> list[Sent]:
        """The messages that every reader has to get."""
        with self._lock:
            return [one for one in self.sent.values() if one.outcome is Outcome.ACKED]

    def missing(self, reader: Reader) -> set[str]:
        """What the reader still has to get."""
        wanted = {one.key for one in self.acked() if reader.by_offset or not one.expires}
        return wanted - {one.key for one in list(reader.got)}

    # --- the verdict ----------------------------------------------------------------------

    def judge(self) -> list[str]:
        """What is wrong, in words; nothing if all promises were kept.

        * lost: acked, and a reader did not get it;
        * unexpected: never sent, refused or rolled back, and read;
        * torn: of one unit some were read and some not;
        * repeated: delivered twice with QoS 2, or stored twice although it was acked;
        * unflagged: delivered again without the flag that says so, although the server was not
          killed in between (what was handed out just before a kill comes without it);
        * early, late: delivered before it was due, or after it had expired;
        * reordered: first deliveries are not in their publisher's order. What comes first as a
          repeat was lost on its way to the reader, and comes when its place is free again.
        """
        faults = list(self.faults)
        for reader in self.readers:
            faults += [f"{reader.name}: {text}" for text in reader.faults]
            faults += self._judge_reader(reader)
        return faults

    def _judge_reader(self, reader: Reader) -> list[str]:
        found: dict[str, list[str]] = defaultdict(list)
        found["lost"] = sorted(self.missing(reader))
        counts: Counter[str] = Counter()
        last: dict[str, int] = {}
        first: dict[str, float] = {}
        for one in reader.got:
            sent = self.sent.get(one.key)
            if sent is None or sent.outcome in (Outcome.REFUSED, Outcome.ROLLED_BACK):
                found["unexpected"].append(one.key)
                continue
            counts[one.key] += 1
            first.setdefault(one.key, one.at)
            if one.at < sent.due - CLOCK_SECONDS:
                found["early"].append(one.key)
            if self._is_late(sent, one) and not reader.by_offset:
                found["late"].append(one.key)
            if counts[one.key] == 1:
                if self._has_an_order(sent) and not one.again:
                    if sent.number > last.get(sent.publisher, -1):
                        last[sent.publisher] = sent.number
                    else:
                        found["reordered"].append(one.key)
            elif one.once or (reader.by_offset and sent.outcome is Outcome.ACKED):
                found["repeated"].append(one.key)
            elif not reader.by_offset and not one.again and not self._killed_since(first[one.key]):
                found["unflagged"].append(one.key)
        found["torn"] = self._torn(counts)
        return [
            f"{reader.name}: {what}: {len(keys)}, such as {keys[:SHOWN]}"
            for what, keys in found.items()
            if keys
        ]

    @staticmethod
    def _has_an_order(sent: Sent) -> bool:
        """What was delayed comes when it is due. QoS 0 does not wait for the disk, so a session may
        get it earlier than what was sent before it [MQTT-4.6.0-6: order holds for one QoS]."""
        return not sent.due and sent.outcome is not Outcome.UNPROMISED

    @staticmethod
    def _is_late(sent: Sent, one: Got) -> bool:
        """A delivery that began in time is brought to its end."""
        return bool(sent.expires) and one.at > sent.expires and not one.again

    def _killed_since(self, at: float) -> bool:
        return any(kill >= at for kill in self.kills)

    def _torn(self, counts: Counter[str]) -> list[str]:
        units: dict[str, list[Sent]] = defaultdict(list)
        for one in self.sent.values():
            if one.unit and not one.expires:
                units[one.unit].append(one)
        return [
            unit
            for unit, members in units.items()
            if len({bool(counts[one.key]) for one in members}) == 2
        ]

    def history(self, keys: Iterable[str]) -> list[str]:
        """All that is known of some messages, for who looks for a mistake."""
        lines = []
        for key in keys:
            lines.append(f"{key}: {self.sent.get(key)}")
            for reader in self.readers:
                lines += [
                    f"  {reader.name} at {one.at:.3f}, number {number}{', again' * one.again}"
                    f"{one.note}"
                    for number, one in enumerate(reader.got)
                    if one.key == key
                ]
        return lines

    def figures(self) -> str:
        """How much was done."""
        outcomes = Counter(one.outcome.value for one in self.sent.values())
        reported = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        notes = ", ".join(f"{count} {name}" for name, count in sorted(self.notes.items()))
        return f"{len(self.sent)} sent ({reported}); {notes}"


def settle(messages: Iterable[Sent], outcome: Outcome) -> None:
    """Their publisher was told."""
    for one in messages:
        one.outcome = outcome
