"""What the fairness benchmark counts, and what not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping

import pytest

from benchmarks.fairness import ATTEMPTS, at_rest, fairness_line, fairness_table
from benchmarks.fairness_probe import PER_SECOND, Paced
from benchmarks.fairness_wire import AmqpSpeaker
from benchmarks.machine import Theft

STEP = 1 / PER_SECOND


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_a_late_answer_makes_the_next_request_late(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A server that stops for a second makes twenty requests late."""
    near, far = pair
    paced = Paced(near, lambda _: b"?", lambda got: got == b"!", 0.0)
    paced.send_if_due(0.0)
    assert paced.waiting(0.9) == 0.9
    far.send(b"!")
    paced.receive(1.0)
    paced.send_if_due(1.0)
    far.send(b"!")
    paced.receive(1.1)
    assert paced.seconds == pytest.approx([1.0, 1.1 - STEP])


def test_what_the_client_is_late_itself_does_not_count(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    paced = Paced(near, lambda _: b"?", lambda got: got == b"!", 0.0)
    for now in (0.0, STEP + 0.4):
        paced.send_if_due(now)
        far.send(b"!")
        paced.receive(now + 0.01)
    assert paced.seconds == pytest.approx([0.01, 0.01])


def test_deliveries_are_counted_wherever_they_are_cut(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    speaker = AmqpSpeaker.__new__(AmqpSpeaker)
    speaker.socket, speaker._got = near, b"xx.\xce"

    def send() -> None:
        for each in b"head" + b"x.\xce" * 9:
            far.send(bytes((each,)))

    sender = threading.Thread(target=send)
    sender.start()
    speaker.receive(10, b"xx.")
    sender.join()
    near.setblocking(False)
    with pytest.raises(BlockingIOError):
        near.recv(1)


def test_the_table_compares_what_speaks_the_same_protocol() -> None:
    ours = {"ping": (1, 2), "mqtt": (3, 4), "amqp": (50, 60), "http": (7, 9), "rocketmq": (5, 5)}

    def figures(clients: Mapping[str, tuple[float, float]], own: float = 0.0) -> dict[str, object]:
        return {
            "seconds": 1.0,
            "done": True,
            "own": {"worst_ms": own},
            "stolen": 0.0,
            "clients": {
                kind: {"p99_ms": p99, "worst_ms": worst} for kind, (p99, worst) in clients.items()
            },
        }

    found = {
        "quiet": {
            "PolyMQ": figures(ours),
            "mosquitto": figures({"ping": (1, 1), "mqtt": (2, 8)}),
            "RabbitMQ": {"failure": "it ended"},
        }
    }
    assert list(fairness_table(found))[2:] == ["| quiet | 50 / 60 | 3 / 4 | 2 / 8 | 50 / 60 |  |"]
    assert "late by 30 themselves" in fairness_line("PolyMQ", figures({}, own=30.0))
    assert "not done" in fairness_line("PolyMQ", {**figures({}), "done": False})
    assert "took 30% of a core" in fairness_line("PolyMQ", {**figures({}), "stolen": 0.3})


@pytest.mark.parametrize(
    ("stolen", "reported", "attempts"),
    [
        ([0.01, 0.0], 0.01, 1),
        ([0.3, 0.02, 0.0], 0.02, 2),
        ([0.3, 0.1, 0.2, 0.4, 0.0], 0.1, ATTEMPTS),
    ],
)
def test_a_case_is_measured_again_while_others_have_the_processor(
    stolen: list[float], reported: float, attempts: int
) -> None:
    left = iter(stolen)
    assert at_rest(lambda: {"stolen": next(left)}) == {"stolen": reported}
    assert len(list(left)) == len(stolen) - attempts


def test_a_case_that_fails_is_not_measured_again() -> None:
    found: list[dict[str, object]] = [{"stolen": 0.5}, {"failure": "it ended"}]
    assert at_rest(iter(found).__next__) == {"failure": "it ended"}


def test_the_time_that_other_machines_take_is_a_share() -> None:
    assert 0 <= Theft().share() <= 1
