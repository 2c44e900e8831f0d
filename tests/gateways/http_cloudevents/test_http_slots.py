"""Which webhook request is sent next: bounds, turns, and requests that are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateways.http_cloudevents.sinks import _host_of
from gateways.http_cloudevents.slots import Slots
from tests.gateways.http_cloudevents.http_harness import run, until


class Requests:
    """Requests that hold their slots until the test ends them."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def send(self, name: str, host: str, *, doubtful: bool = False) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._request(name, host, doubtful))

    async def _request(self, name: str, host: str, doubtful: bool) -> None:
        async with self.slots.slot(host, doubtful=doubtful):
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
        assert not self.slots._hosts
        assert not any(self.slots._turns)


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
                requests = Requests(Slots(count_max=count_max, per_host_max=per_host_max))
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


@scenario(count_max=4, per_host_max=4)
async def _doubtful(requests: Requests) -> None:
    for number in range(6):
        requests.send(f"hung{number}", f"host{number}", doubtful=True)
    await settle()
    assert requests.slots.under_way == 2
    requests.send("sound", "host9")
    await settle()
    assert requests.begun[-1] == "sound"
    await requests.end("hung0")
    assert requests.begun[-1] == "hung2"


def test_doubtful_subscriptions_share_half() -> None:
    """However many sinks hang, the other half of the slots stays for those that answer."""
    _doubtful()


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
    assert _host_of(url) == "app.example:443"
