"""What a connection waits for, and what follows for its socket."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from polymq.net import flow
from polymq.net.flow import DISK, EFFECTS, LOGIN, TURN, Flow

README = Path(__file__).resolve().parents[2] / "net/README.md"


class Socket:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def stop_reading(self) -> None:
        self.calls.append("stop")

    def resume_reading(self) -> None:
        self.calls.append("resume")


def test_a_socket_is_read_while_all_that_is_waited_for_allows_it() -> None:
    """All sets of up to three waits, against the rows of the table."""
    socket = Socket()
    for waits in itertools.chain.from_iterable(
        itertools.combinations(EFFECTS, count) for count in range(4)
    ):
        found = Flow()
        for wait in waits:
            found.begin(wait)
        found.regulate(socket)
        assert found.is_reading is all(EFFECTS[wait].reads for wait in waits)
        assert found.handles is all(EFFECTS[wait].handles for wait in waits)


def test_the_socket_is_asked_only_where_something_changed() -> None:
    socket = Socket()
    found = Flow()
    assert not found.regulate(socket)
    found.begin(DISK)
    found.begin(TURN)
    assert found.regulate(socket)
    found.begin(DISK)
    assert not found.regulate(socket)
    found.end(TURN)
    assert not found.regulate(socket)  # the disk is still behind
    found.end(DISK)
    found.begin(LOGIN)  # its end has to be noticed
    assert found.regulate(socket)
    assert socket.calls == ["stop", "resume"]


@pytest.mark.parametrize("waits", [True, False])
def test_a_wait_is_set_by_a_condition(waits: bool) -> None:
    found = Flow()
    found.begin(flow.UNREAD)
    found.set(flow.UNREAD, waits)
    assert bool(found.waits) is waits


def test_each_wait_has_a_bit_of_its_own_and_a_row() -> None:
    bits = {
        value
        for name, value in vars(flow).items()
        if name.isupper() and not name.startswith("STOP_") and isinstance(value, int)
    }
    assert bits == set(EFFECTS)
    assert sum(bits) == (1 << len(bits)) - 1


def test_the_table_stands_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    for effect in EFFECTS.values():
        row = [effect.name, *("yes" if each else "no" for each in effect[1:])]
        assert f"| {' | '.join(row)} |" in text
