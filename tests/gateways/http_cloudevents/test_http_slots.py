"""Which webhook request is sent next: bounds, turns, and requests that are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from polymq.gateways.http_cloudevents.sinks import _host_of
from polymq.gateways.http_cloudevents.slots import Reputation, Slots
from tests.gateways.http_cloudevents.http_harness import run, until

PROVEN, NEW, DOUBTFUL = Reputation
SLOW_SECONDS = 5.0


class Timer:
    """A call that the slots asked for."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call

    def cancel(self) -> None:
        self.call = lambda: None


class Requests:
    """Requests that hold their slots until the test ends them, by a clock of the test's."""

    def __init__(self, count_max: int, per_host_max: int) -> None:
        self.seconds = 0.0
        self.timers: list[Timer] = []
        self.slots = Slots(
            count_max=count_max,
            per_host_max=per_host_max,
            slow_seconds=SLOW_SECONDS,
            now=lambda: self.seconds,
            call_at=self._call_at,  # type: ignore[arg-type]  # cancel is all that is used
        )
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def _call_at(self, at: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at, call))
        return self.timers[-1]

    async def pass_time(self, seconds: float) -> None:
        """Set the clock forward and end the timers that are due."""
        self.seconds += seconds
        due = [timer for timer in self.timers if timer.at <= self.seconds]
        self.timers = [timer for timer in self.timers if timer.at > self.seconds]
        for timer in due:
            timer.call()
        await settle()

    def send(
        self, name: str, host: str, reputation: Reputation = PROVEN, *, port: int = 443
    ) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._request(name, host, port, reputation))

    async def _request(self, name: str, host: str, port: int, reputation: Reputation) -> None:
        async with self.slots.slot(host, port, reputation):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self.tasks[name]
        await settle()

    async def end_all(self) -> None:
        for name in list(self.tasks):
            self._ends[name].set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert (self.slots.under_way, self.slots.waiting) == (0, 0)
        assert not any(self.slots._hosts)
        assert not any(self.slots._turns)
        assert not self.slots._quick
        assert (self.slots._quick_new, self.slots._doubtful) == (0, 0)


async def settle() -> None:
    """Let everything happen that can."""
    for _ in range(5):
        await asyncio.sleep(0)


def scenario(
    count_max: int, per_host_max: int
) -> Callable[[Callable[[Requests], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """A test of `Slots` with these bounds, which must be empty when it ends."""

    def decorate(test: Callable[[Requests], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def decorated() -> None:
            async def whole() -> None:
                requests = Requests(count_max, per_host_max)
                await test(requests)
                await requests.end_all()

            run(whole())

        decorated.__doc__ = test.__doc__
        return decorated

    return decorate


@scenario(count_max=8, per_host_max=2)
async def _one_host(requests: Requests) -> None:
    for name in "abcd":
        requests.send(name, "slow")
    requests.send("x", "other")
    await settle()
    assert requests.begun == ["a", "b", "x"]
    assert requests.slots.waiting == 2
    await requests.end("b")
    assert requests.begun == ["a", "b", "x", "c"]


def test_a_host_has_its_share_and_serves_its_requests_in_order() -> None:
    _one_host()


@scenario(count_max=2, per_host_max=2)
async def _turns(requests: Requests) -> None:
    for name in ("a1", "a2", "a3", "a4"):
        requests.send(name, "a")
    await settle()
    requests.send("b1", "b")
    requests.send("c1", "c")
    await settle()
    await requests.end("a1")
    await requests.end("a2")
    assert requests.begun[:2] == ["a1", "a2"]
    assert set(requests.begun[2:]) != {"a3", "a4"}, "others have their turn"
    await requests.end(*requests.begun[2:4])
    assert set(requests.begun) >= {"b1", "c1"}


def test_hosts_take_turns() -> None:
    """A host with many waiting requests does not keep the others waiting."""
    _turns()


@scenario(count_max=8, per_host_max=8)
async def _doubtful(requests: Requests) -> None:
    for number in range(6):
        requests.send(f"hung{number}", f"host{number}", DOUBTFUL)
    await settle()
    assert requests.begun == ["hung0", "hung1"]
    requests.send("sound", "host9")
    requests.send("new", "host8", NEW)
    await settle()
    assert requests.begun[2:] == ["sound", "new"]
    await requests.end("hung0")
    assert requests.begun[-1] == "hung2"


def test_doubtful_subscriptions_share_a_quarter() -> None:
    """However many sinks hang, the rest of the slots stays for those that answer, and for new
    ones."""
    _doubtful()


@scenario(count_max=8, per_host_max=8)
async def _new(requests: Requests) -> None:
    for number in range(6):
        requests.send(f"new{number}", f"host{number}", NEW)
    requests.send("doubtful", "host8", DOUBTFUL)
    await settle()
    assert requests.begun == ["new0", "new1", "new2", "new3"]
    requests.send("sound", "host9")
    await settle()
    assert requests.begun[-1] == "sound"
    await requests.end("new1", "new2")
    assert requests.begun[5:] == ["new4", "doubtful"], "they take turns"


def test_new_and_doubtful_subscriptions_share_half() -> None:
    """Nobody knows whether they answer: those that do are not delayed by them."""
    _new()


@scenario(count_max=12, per_host_max=2)
async def _ports(requests: Requests) -> None:
    for port in range(8):
        requests.send(f"new{port}", "hung", NEW, port=port)
        requests.send(f"old{port}", "hung", DOUBTFUL, port=port)
    await settle()
    assert sorted(requests.begun) == ["new0", "new1", "old0", "old1"]
    requests.send("proven", "hung", port=7)
    await settle()
    assert requests.begun[-1] == "proven"
    await requests.end("old0", "new0")
    assert sorted(requests.begun[-2:]) == ["new2", "old2"]
    requests.send("other", "elsewhere", NEW)
    await settle()
    assert requests.begun[-1] == "other"


def test_many_ports_of_a_host_have_one_share() -> None:
    """What answers at one port of it is not delayed by the others."""
    _ports()


@scenario(count_max=8, per_host_max=8)
async def _slow(requests: Requests) -> None:
    for number in range(4):
        requests.send(f"hung{number}", "gateway")
    await settle()
    requests.send("doubtful0", "host0", DOUBTFUL)
    requests.send("doubtful1", "host1", DOUBTFUL)
    await settle()
    assert len(requests.begun) == 6
    requests.send("doubtful2", "host2", DOUBTFUL)
    requests.send("other0", "host3")
    requests.send("other1", "host4")
    requests.send("more", "gateway")
    await settle()
    assert len(requests.begun) == 6, "a quarter is kept until the others have proven to be slow"
    await requests.pass_time(SLOW_SECONDS)
    assert requests.begun[6:] == ["other0", "other1"], "slow ones count among the doubtful"
    await requests.end("doubtful0", "doubtful1")
    assert len(requests.begun) == 8
    await requests.end("hung0", "hung1", "hung2")
    assert requests.begun[8:] == ["doubtful2"]
    await requests.end("hung3")
    assert requests.begun[8:] == ["doubtful2", "more"]


def test_a_request_counts_as_slow_before_it_ends() -> None:
    """Sinks that have always answered hang all at once: they hold the others up for
    `slow_seconds` at most, not until their timeouts, and get no further slots."""
    _slow()


@scenario(count_max=8, per_host_max=8)
async def _aged(requests: Requests) -> None:
    for number in range(4):
        requests.send(f"hung{number}", f"host{number}", NEW)
    await settle()
    assert not requests.timers, "nothing waits"
    requests.send("new", "host5", NEW)
    requests.send("doubtful", "host6", DOUBTFUL)
    await settle()
    assert len(requests.timers) == 1, "one timer for all"
    await requests.pass_time(SLOW_SECONDS)
    requests.send("proven", "host7")
    await settle()
    assert requests.begun[4:] == ["proven"], "they still have the share of the others"
    await requests.end("hung0")
    assert requests.begun[5:] == ["new"]
    await requests.end("hung1", "hung2")
    assert requests.begun[5:] == ["new", "doubtful"]


def test_new_subscriptions_that_hang_count_on_when_they_are_slow() -> None:
    _aged()


@scenario(count_max=2, per_host_max=1)
async def _cancelled(requests: Requests) -> None:
    requests.send("a", "a")
    requests.send("b", "b")
    await settle()
    requests.send("gone", "c")
    requests.send("c", "c")
    await settle()
    requests.tasks["gone"].cancel()
    requests._ends["a"].set()  # the slot is given on in the iteration of the cancellation
    await until(lambda: "c" in requests.begun)
    assert "gone" not in requests.begun
    # Cancelled after it was granted, before it ran: the slot is not lost.
    requests.send("d", "d")
    await settle()
    requests._ends["b"].set()
    await until(lambda: requests.slots.waiting == 0)
    requests.tasks["d"].cancel()
    await settle()
    requests.send("e", "e")
    await until(lambda: "e" in requests.begun)


def test_requests_that_are_given_up_lose_no_slot() -> None:
    _cancelled()


@scenario(count_max=1, per_host_max=1)
async def _all_cancelled(requests: Requests) -> None:
    requests.send("a", "a")
    await settle()
    for number in range(50):
        requests.send(f"w{number}", "b")
        await settle()
        requests.tasks[f"w{number}"].cancel()
        await settle()
    assert requests.slots.waiting == 0
    assert len(requests.slots._turns[0]) <= 1
    await requests.end("a")
    requests.send("z", "b")
    await until(lambda: "z" in requests.begun)


def test_a_host_whose_requests_all_were_given_up_is_forgotten() -> None:
    """What is remembered does not grow with requests that come and go while there is no slot."""
    _all_cancelled()


@pytest.mark.parametrize(
    "url",
    [
        "https://App.example/a",
        "https://app.example:443/b?c",
        "https://app.example./",
        "https://APP.EXAMPLE.:443",
    ],
)
def test_a_host_has_one_share_however_it_is_spelt(url: str) -> None:
    assert _host_of(url) == ("app.example", 443)
