"""Holds the books of publishers against what a reader got.

What is a fault:

* lost: acked to its publisher, and not read;
* unexpected: read, and never sent;
* reordered: the first occurrences of a publisher's messages are not in the order in which it
  published them, or the log goes back within what one connection sent;
* repeated: the log has a message more often than its outcome was unknown, plus once; or a reader
  got it more often than the log has it, without being told that it may be a repeat, on one
  connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from interop_tests.ledger.books import Line, What

Key = tuple[str, int]
"""A publisher and its number of a message."""
SHOWN = 5


@dataclass(slots=True)
class Faults:
    """What is wrong, in words. Empty is what we want."""

    texts: list[str] = field(default_factory=list)

    def add(self, what: str, keys: Iterable[object]) -> None:
        """Take note, if there is anything."""
        found = list(keys)
        if found:
            self.texts.append(f"{what}: {len(found)}, such as {found[:SHOWN]}")


@dataclass(slots=True)
class Published:
    """What the publishers' books say.

    Attributes:
        sent, acked: messages.
        unknown: how often the outcome of a message was unknown.
        losses: how often a publisher lost its connection.
    """

    sent: set[Key] = field(default_factory=set)
    acked: set[Key] = field(default_factory=set)
    unknown: Counter[Key] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    refused: list[Line] = field(default_factory=list)

    def add(self, lines: Iterable[Line]) -> None:
        """Take in a book."""
        for line in lines:
            key = line.actor, line.number
            if line.what is What.SENT:
                self.sent.add(key)
            elif line.what is What.ACKED:
                self.acked.add(key)
            elif line.what is What.UNKNOWN:
                self.unknown[key] += 1
            elif line.what is What.DISCONNECTED:
                self.losses[line.actor] += 1
            elif line.what is What.REFUSED:
                self.refused.append(line)


def judge_log(published: Published, log: Sequence[Key]) -> Faults:
    """Faults of the log itself, read by offset: each stored record once, in order."""
    faults = Faults()
    counts = Counter(log)
    _judge_contents(published, counts, faults)
    faults.add(
        "stored more often than unknown outcomes explain",
        (key for key, count in counts.items() if count > 1 + published.unknown[key]),
    )
    _judge_order(log, faults)
    last: dict[str, int] = {}
    backwards: Counter[str] = Counter()
    for actor, number in log:
        if number <= last.get(actor, -1):
            backwards[actor] += 1
        last[actor] = number
    faults.add(
        "publishers whose messages go back more often than they lost their connection",
        (actor for actor, count in backwards.items() if count > published.losses[actor]),
    )
    return faults


def judge_consumer(published: Published, log: Counter[Key], lines: Sequence[Line]) -> Faults:
    """Faults of a consumer's book."""
    faults = Faults()
    faults.add("corrupt", (line.note for line in lines if line.what is What.CORRUPT))
    faults.add("refused", (line.note for line in lines if line.what is What.REFUSED))
    got = [line for line in lines if line.what is What.GOT]
    _judge_contents(published, Counter((line.actor, line.number) for line in got), faults)
    _judge_order([(line.actor, line.number) for line in got], faults)
    for connection in _by_connection(lines):
        fresh = Counter((line.actor, line.number) for line in connection if line.note != "again")
        faults.add(
            "unflagged repeats on one connection",
            (key for key, count in fresh.items() if count > log[key]),
        )
    return faults


def unflagged_repeats(log: Counter[Key], lines: Sequence[Line]) -> list[Key]:
    """What a consumer got again without being told that it may be a repeat."""
    fresh = Counter(
        (line.actor, line.number)
        for line in lines
        if line.what is What.GOT and line.note != "again"
    )
    return [key for key, count in fresh.items() if count > log[key]]


def _by_connection(lines: Sequence[Line]) -> Iterator[list[Line]]:
    part: list[Line] = []
    for line in lines:
        if line.what is What.GOT:
            part.append(line)
        elif line.what is What.CONNECTED:
            yield part
            part = []
    yield part


def _judge_contents(published: Published, counts: Counter[Key], faults: Faults) -> None:
    faults.add("lost", sorted(published.acked - counts.keys()))
    faults.add("never sent", sorted(counts.keys() - published.sent))


def _judge_order(keys: Iterable[Key], faults: Faults) -> None:
    """First occurrences ascend, publisher by publisher."""
    seen: set[Key] = set()
    last: dict[str, int] = {}
    wrong = []
    for key in keys:
        if key in seen:
            continue
        seen.add(key)
        actor, number = key
        if number < last.get(actor, -1):
            wrong.append((*key, f"after {last[actor]}"))
        last[actor] = number
    faults.add("reordered", wrong)
