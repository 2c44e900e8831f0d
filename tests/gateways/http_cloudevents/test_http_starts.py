"""Of webhooks that get messages at the same time, a few begin in each iteration of the loop."""

from __future__ import annotations

from collections.abc import Callable

from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from polymq.gateways.http_cloudevents.starts import Starts
from tests.gateways.http_cloudevents.http_harness import (
    BINARY,
    http,
    receiver,
    run,
    subscribe_webhook,
    until,
)


class Loop:
    """Iterations that come when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def iterate(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_a_few_in_each_iteration_and_in_order() -> None:
    loop = Loop()
    begun: list[int] = []
    starts = Starts(lambda call: loop.calls.append(call), count_max=3)
    loop_calls = [lambda number=number: begun.append(number) for number in range(8)]
    for each in loop_calls[:7]:
        starts.begin(each)
    assert begun == [0, 1, 2]
    loop.iterate()
    assert begun == [0, 1, 2, 3, 4, 5]
    starts.begin(loop_calls[7])
    assert begun == [0, 1, 2, 3, 4, 5]
    loop.iterate()
    assert begun == list(range(8))
    loop.iterate()
    assert loop.calls == [], "nothing is called while nothing waits"


def test_webhooks_wait_for_their_start() -> None:
    """Each of them delivers nevertheless."""

    async def scenario() -> None:
        async with http(limits=HttpLimits(webhook_starts_max=2)) as gateway, receiver() as sink:
            for number in range(9):
                await subscribe_webhook(gateway, sink, f"s{number}")
            registry = gateway.server._registry
            assert registry is not None
            waiting = registry._shared.starts._waiting
            most = 0

            def all_delivered() -> bool:
                nonlocal most
                most = max(most, len(waiting))
                return len(sink.deliveries) == 9

            assert await gateway.publish(b"x", BINARY) == (204, None)
            await until(all_delivered)
            assert most > 0
            assert not waiting

    run(scenario())
