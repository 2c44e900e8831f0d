"""Both forms of a stream do the same with the same bytes, calls and errors."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from polymq.net.kernels import streams
from tests.harness.forms import form_id, forms_of

FORMS = forms_of(streams.__name__)
SEEDS = range(60)


class Loop:
    """Keeps what is to be called."""

    def __init__(self, log: list[Any]) -> None:
        self.soon: list[Any] = []
        self._log = log

    def call_soon(self, callback: Any) -> None:
        self._log.append("scheduled")
        self.soon.append(callback)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._log.append(("error", repr(context["exception"])))

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class Wire:
    """Notes what is written."""

    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def write(self, data: bytes) -> None:
        self._log.append(("sent", bytes(data)))


def layer_of(form: ModuleType, log: list[Any]) -> Any:
    """A layer that drops the bytes 0xff, of which no frame has one."""

    class Sieve(form.Layer):  # type: ignore[name-defined, misc]
        room = 100_000

        def take(self, buffer: bytearray, start: int, end: int) -> int:
            data = bytes(buffer[start:end]).replace(b"\xff", b"")
            buffer[start : start + len(data)] = data
            return start + len(data)

        def taken(self) -> None:
            log.append("taken")

        def wrap(self, data: bytes) -> bytes:
            return b"<" + data + b">"

        def drained(self) -> None:
            log.append("layer drained")

    return Sieve()


def run(form: ModuleType, seed: int, *, is_layered: bool = False) -> list[Any]:
    """A random life of one stream; returns all that could be seen of it."""
    dice = random.Random(seed)
    log: list[Any] = []
    loop = Loop(log)
    context = form.Iteration(loop)

    class Frames(form.Stream):  # type: ignore[name-defined, misc]
        """Frames of two bytes of length and a body. A body that begins with E is an error."""

        def consume(self, buffer: bytearray, start: int, end: int) -> int:
            while end - start >= 3:
                size = int.from_bytes(buffer[start : start + 3], "big")
                if end - start - 3 < size:
                    break
                body = bytes(buffer[start + 3 : start + 3 + size])
                log.append((len(body), body[:8]))
                start += 3 + size
                if body[:1] == b"E":
                    raise LookupError
                if body[:1] == b"W":
                    self.write(body)
                if body[:1] == b"S":
                    self.starved = True
                    self.write(b"more?")
            return start

        def drained(self) -> None:
            log.append("drained")

        def fed(self) -> None:
            log.append("fed")
            self.write(b"fed")

    stream = Frames(context)
    stream.write(b"nobody is there yet")
    stream.transport = Wire(log)
    frames = [
        dice.choice([b"W", b"S", b"E", b"x", b""]) * min(1, size) + b"y" * (size - 1)
        for size in (dice.choice([0, 1, 2, 9, 300, 70_000, 140_000, 400_000]) for _ in range(12))
    ]
    data = b"".join(len(frame).to_bytes(3, "big") + frame for frame in frames)
    if is_layered:
        stream.layer = layer_of(form, log)
        data = b"\xff".join(data[at : at + 999] for at in range(0, len(data), 999))
    at = 0
    while at < len(data):
        match dice.randrange(12):
            case 0:
                stream.write(b"aside")
            case 1:
                loop.turn()
            case 2:
                stream.pause_writing()
            case 3:
                stream.resume_writing()
            case 4:
                context.call_soon(lambda: stream.write(b"soon"))
            case 5:
                context.call_soon(lambda: 1 / 0)
            case 6:
                context.within(lambda: context.call_soon(lambda: stream.write(b"within")))
            case 7:
                log.append(attempt(stream.consume_again))
            case _:
                room = memoryview(stream.get_buffer(-1))
                size = min(len(room), dice.choice([1, 2, 100, 65_536, 262_144]), len(data) - at)
                room[:size] = data[at : at + size]
                room.release()
                log.append(attempt(stream.buffer_updated, size))
                at += size
        log.append((len(stream.rest), stream.rest[:9], stream.turn_bytes, stream.written_bytes))
        log.append((stream.paused, stream.closing, stream.starved))
    loop.turn()
    stream.closing = bool(seed % 2)
    stream.write(b"closing?")
    log.append(attempt(stream.buffer_updated, 0))
    stream.forget()
    stream.write(b"gone")
    loop.turn()
    log.append((stream.rest, stream.closing, stream.transport))
    return log


def attempt(call: Any, *args: Any) -> str:
    """How it ended."""
    try:
        call(*args)
    except LookupError as error:
        return repr(error)
    return "done"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_life_looks_the_same_in_both_forms(seed: int) -> None:
    """Frames from nothing to larger than the shared buffer, cut anywhere, between writes, pauses,
    ends of iterations and errors."""
    lives = [run(form, seed) for form in FORMS]
    assert all(lifetime == lives[0] for lifetime in lives)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_life_behind_a_layer_looks_the_same(seed: int) -> None:
    """What is consumed is what the layer leaves, and what is sent is what it wraps."""
    lives = [run(form, seed, is_layered=True) for form in FORMS]
    assert all(lifetime == lives[0] for lifetime in lives)
    sent = [entry[1] for entry in lives[0] if entry[0] == "sent"]
    assert all(data[:1] + data[-1:] == b"<>" for data in sent)
    consumed = [entry[1] for entry in lives[0] if isinstance(entry[0], int) and len(entry) == 2]
    assert consumed
    assert not any(b"\xff" in data for data in consumed)


def test_the_lives_have_seen_everything() -> None:
    """What no seed brings about would be compared with nothing."""
    seen = {str(entry) for seed in SEEDS for entry in run(FORMS[0], seed)}
    assert {"scheduled", "drained", "fed", "LookupError()"} <= seen
    assert "('error', \"ZeroDivisionError('division by zero')\")" in seen
    assert "(400000, b'yyyyyyyy')" in seen or "(400000, b'xyyyyyyy')" in seen


def run_count(form: ModuleType, used: int) -> str:
    class Liar(form.Stream):  # type: ignore[name-defined, misc]
        def consume(self, buffer: bytearray, start: int, end: int) -> int:
            return used

    stream = Liar(form.Iteration(Loop([])))
    stream.get_buffer(-1)[:5] = b"12345"
    try:
        stream.buffer_updated(5)
    except ValueError as error:
        return str(error)
    return repr(stream.rest)


@pytest.mark.parametrize("used", [-1, -(1 << 40), 0, 3, 5, 6, 1 << 40])
def test_a_count_that_is_impossible_touches_no_other_memory(used: int) -> None:
    """`consume` is a gateway's: what it returns is checked before it is a place in memory."""
    assert len({run_count(form, used) for form in FORMS}) == 1


@pytest.mark.parametrize("form", FORMS)
def test_what_the_shortcut_took_does_not_come_again(form: ModuleType) -> None:
    """Also where a part of it had come before, and was kept."""
    seen: list[bytes] = []

    class Short(getattr(form, "Shortcut")):  # type: ignore[misc]  # noqa: B009
        def take(self, buffer: bytearray, start: int, end: int) -> bool:
            seen.append(bytes(buffer[start:end]))
            return end - start == 4

    class Pairs(form.Stream):  # type: ignore[name-defined, misc]
        def consume(self, buffer: bytearray, start: int, end: int) -> int:
            return start

    loop = Loop([])
    loop.time = lambda: 7.0  # type: ignore[attr-defined]
    stream = Pairs(form.Iteration(loop))
    stream.shortcut = Short()
    for data in (b"ab", b"cd", b"efgh", b"i"):
        stream.get_buffer(-1)[: len(data)] = data
        stream.buffer_updated(len(data))
    assert seen == [b"ab", b"abcd", b"efgh", b"i"]
    assert (stream.rest, stream.heard_at) == (b"i", 7.0)


@pytest.mark.parametrize("form", FORMS)
def test_who_is_heard_within_an_iteration_is_dated_by_its_end(form: ModuleType) -> None:
    """A client of which the shortcut takes everything would else be silent, and closed."""

    class Short(getattr(form, "Shortcut")):  # type: ignore[misc]  # noqa: B009
        def take(self, buffer: bytearray, start: int, end: int) -> bool:
            return True

    loop = Loop([])
    iteration = form.Iteration(loop)
    streams = [form.Stream(iteration) for _ in range(2)]

    def read() -> None:
        for stream in streams:
            stream.shortcut = Short()
            stream.get_buffer(-1)[:1] = b"x"
            stream.buffer_updated(1)

    for now in (7.0, 9.0):
        loop.time = lambda now=now: now  # type: ignore[attr-defined]
        iteration.within(read)
        assert [stream.heard_at for stream in streams] == [now, now]


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_what_is_left_of_a_large_read_is_presented_again_whole(form: ModuleType) -> None:
    """A frame that needs a buffer of its own may have more behind it than the shared one holds."""
    log: list[Any] = []
    presented: list[int] = []
    context = form.Iteration(Loop(log))
    head = form.BUFFER_BYTES

    class Waits(form.Stream):  # type: ignore[name-defined, misc]
        """Takes the frame when it is whole, and then nothing until it is told to."""

        reported = False

        def consume(self, buffer: bytearray, start: int, end: int) -> int:
            presented.append(end - start)
            if self.reported:
                assert buffer[start:end] == b"r" * (end - start)
                return end
            return start + head + 1 if end - start > head else start

    stream = Waits(context)
    stream.transport = Wire(log)
    for byte, size in ((b"f", head), (b"r", 3 * head)):
        left = size
        while left:
            view = memoryview(stream.get_buffer(-1))
            count = min(len(view), left)
            view[:count] = (b"f" if byte == b"f" else b"r") * count
            view.release()
            stream.buffer_updated(count)
            left -= count
    stream.reported = True
    stream.consume_again()
    assert presented[-1] == 3 * head - 1
    assert len(context.buffer) == form.BUFFER_BYTES


class Notes:
    """A transport that notes whose bytes it takes."""

    def __init__(self, name: object, taken: list[object]) -> None:
        self._name = name
        self._taken = taken

    def write(self, data: bytes) -> None:
        self._taken.append((self._name, data))


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_a_message_to_thousands_leaves_room_for_answers(form: ModuleType) -> None:
    """In each iteration those that were written to first and last, and some of the rest, in order:
    the answer to a read comes before what is shown to everybody, and that to a commit behind it."""
    loop = Loop([])
    context = form.Iteration(loop)
    taken: list[Any] = []
    count = 3 * form.WRITERS_AT_ONCE

    def stream(name: object) -> Any:
        made = form.Stream(context)
        made.transport = Notes(name, taken)
        return made

    crowd = [stream(number) for number in range(count)]

    def iteration() -> None:
        stream("read").write(b"1")
        for one in crowd:
            one.write(b"m")
        crowd[-1].write(b"n")
        stream("committed").write(b"2")

    context.within(iteration)
    half = form.WRITERS_AT_ONCE // 2
    between = [(number, b"m") for number in range(half - 1, count - half + 1)]
    at_once, later = between[: form.WRITERS_AT_ONCE], between[form.WRITERS_AT_ONCE :]
    assert taken[0] == ("read", b"1")
    assert taken[form.WRITERS_AT_ONCE - 2 : form.WRITERS_AT_ONCE] == [
        (count - 1, b"mn"),
        ("committed", b"2"),
    ]
    assert taken[form.WRITERS_AT_ONCE :] == at_once
    del taken[:]
    crowd[0].write(b"next")
    context.within(lambda: stream("read").write(b"3"))
    assert taken[:2] == [(0, b"next"), ("read", b"3")]
    assert taken[2:] == later[: form.WRITERS_AT_ONCE]
    while loop.soon:
        loop.turn()
    assert taken[2:] == later
    assert not loop.soon


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_bytes_of_a_connection_that_waits_for_its_turn_stay_in_order(form: ModuleType) -> None:
    """What is written meanwhile leaves behind them, and what a close hands over leaves once."""
    loop = Loop([])
    context = form.Iteration(loop)
    taken: list[Any] = []
    crowd = []
    for number in range(4 * form.WRITERS_AT_ONCE):
        crowd.append(form.Stream(context))
        crowd[-1].transport = Notes(number, taken)
    context.within(lambda: [one.write(b"a") for one in crowd])
    waiting = [number for number in range(len(crowd)) if (number, b"a") not in taken]
    first, second = waiting[0], waiting[1]
    crowd[first].write(b"b")
    crowd[second].write_gathered()
    crowd[second].write(b"c")
    while loop.soon:
        loop.turn()
    assert [data for number, data in taken if number == first] == [b"ab"]
    assert [data for number, data in taken if number == second] == [b"a", b"c"]
    assert len({number for number, _ in taken}) == len(crowd)


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_what_waits_does_not_grow_with_the_number_of_connections(form: ModuleType) -> None:
    """However many are written to, in turn, in each iteration some: each is soon handed over."""
    loop = Loop([])
    context = form.Iteration(loop)
    taken: list[Any] = []
    crowd = []
    for number in range(100 * form.WRITERS_AT_ONCE):
        crowd.append(form.Stream(context))
        crowd[-1].transport = Notes(number, taken)
    each = 10 * form.WRITERS_AT_ONCE
    written = 0
    for turn in range(100):
        some = [crowd[(turn * each + index) % len(crowd)] for index in range(each)]
        context.within(lambda some=some: [one.write(b"a") for one in some])
        written += each
        assert written - sum(len(data) for _, data in taken) <= FORMS[0].LEFT_PARTS * each
