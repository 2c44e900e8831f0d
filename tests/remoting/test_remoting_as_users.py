"""What a user's program does, against a whole server, with each of the three drivers."""

from __future__ import annotations

import asyncio
import functools
import http.server
import inspect
import itertools
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import trio
else:
    trio = pytest.importorskip("trio", reason="the name server and one of the drivers need trio")

from polymq.client import ClientOptions
from polymq.remoting import driver_asyncio, driver_threads, driver_trio
from polymq.remoting.consumer_settings import Begin, ConsumerSettings
from polymq.remoting.errors import LocalProtocolError, Unreachable
from polymq.remoting.messages import Message
from polymq.remoting.producer import ProducerSettings, Sent
from polymq.remoting.records import Record
from polymq.remoting.transactions import Decision
from tests.durability.running import Running, running

SECONDS_MAX = 30.0
FIRST = ConsumerSettings(begin=Begin.FIRST, look_seconds=0.1, pause_seconds=0.1)
numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory: Path = tmp_path_factory.mktemp("users")
    with running(directory, names__enabled=True, names__port=0) as started:
        yield started


class Users:
    """Programs of one kind. Their scenarios are written once: what a driver gives is awaited where
    that is its way.

    Attributes:
        names: the name servers.
    """

    def __init__(self, kind: str, server: Running) -> None:
        self.kind = kind
        self.names = f"127.0.0.1:{server.ports.names}"
        self._driver: Any = {
            "threads": driver_threads,
            "asyncio": driver_asyncio,
            "trio": driver_trio,
        }[kind]

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self.kind == "trio":
            trio.run(scenario)
        else:
            asyncio.run(scenario())

    @asynccontextmanager
    async def producer(self, **options: Any) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Call what is yielded with the name of a method and its arguments."""
        found = self._options(options)
        opened = self._driver.open_producer(f"shop-{self.kind}", found, **options)
        async with self._entered(opened) as made:

            async def call(method: str, *arguments: Any, **named: Any) -> Any:
                result = getattr(made, method)(*arguments, **named)
                return await result if inspect.isawaitable(result) else result

            yield call

    @asynccontextmanager
    async def consumer(
        self, group: str, topic: str, handle: Callable[[Record], None], **options: Any
    ) -> AsyncIterator[Any]:
        async def awaited(record: Record) -> None:
            handle(record)

        found = self._options(options)
        opened = self._driver.open_consumer(
            group,
            {topic: "*"},
            handle if self.kind == "threads" else awaited,
            found,
            **({"settings": FIRST} | options),
        )
        async with self._entered(opened) as made:
            yield made

    def _options(self, options: dict[str, Any]) -> ClientOptions:
        """The client's, taken out of the rest."""
        names = [field.name for field in fields(ClientOptions) if field.name in options]
        return ClientOptions(
            **{"name_servers": self.names, **{name: options.pop(name) for name in names}}
        )

    async def get(self, got: queue.SimpleQueue[Any]) -> Any:
        """The next that a handler has put there."""
        wait = functools.partial(got.get, timeout=SECONDS_MAX)
        if self.kind == "threads":
            return wait()
        return await (asyncio.to_thread if self.kind == "asyncio" else trio.to_thread.run_sync)(
            wait
        )

    @asynccontextmanager
    async def _entered(self, context: Any) -> AsyncIterator[Any]:
        if hasattr(context, "__aenter__"):
            async with context as value:
                yield value
        else:
            with context as value:
                yield value


@pytest.fixture(params=["threads", "asyncio", "trio"])
def users(request: pytest.FixtureRequest, server: Running) -> Users:
    return Users(request.param, server)


def new_name(ending: str) -> str:
    return f"{ending}-{next(numbers)}"


def test_what_is_sent_is_handled_as_it_was_sent(users: Users) -> None:
    """One by one, as a batch, without waiting; large bodies compressed underway."""
    topic, got = new_name("sent"), queue.SimpleQueue[Record]()
    large = b"large " * 10_000

    async def scenario() -> None:
        async with users.producer() as call:
            message = Message(topic=topic, body=large, tag="T", keys=["k"], properties={"p": "v"})
            sent: Sent = await call("send", message, key="customer")
            assert len(sent.message_id) == 32
            await call(
                "send_batch", [Message(topic=topic, body=b"1"), Message(topic=topic, body=b"2")]
            )
            await call("send_oneway", Message(topic=topic, body=b"oneway"))
        async with users.consumer(new_name("g"), topic, got.put) as consumer:
            records = [await users.get(got) for _ in range(4)]
            assert consumer.queues
        assert {record.body for record in records} == {large, b"1", b"2", b"oneway"}
        (first,) = (record for record in records if record.body == large)
        assert (first.topic, first.system_flag) == (topic, 0)

    users.run(scenario)


def test_a_group_goes_on_where_it_was(users: Users) -> None:
    """Also within a pull: the program ends after two of three messages of one queue."""
    topic, group, got = new_name("on"), new_name("g"), queue.SimpleQueue[bytes]()
    go_on = threading.Event()

    def handle(record: Record) -> None:
        got.put(record.body)
        if record.body == b"2":
            closing[0].close()
            assert users.kind != "threads" or go_on.wait(SECONDS_MAX)

    closing: list[Any] = []

    async def scenario() -> None:
        async with users.producer() as call:
            for body in (b"1", b"2", b"3"):
                await call("send", Message(topic=topic, body=body), key="one queue")
        async with users.consumer(group, topic, handle) as consumer:
            closing.append(consumer)
            assert [await users.get(got) for _ in range(2)] == [b"1", b"2"]
            go_on.set()
        assert got.empty()
        async with users.consumer(group, topic, handle):
            assert await users.get(got) == b"3"
        assert got.empty()

    users.run(scenario)


def test_what_is_handled_in_vain_comes_again_and_then_is_a_dead_letter(users: Users) -> None:
    topic, group = new_name("vain"), new_name("g")
    got, dead = queue.SimpleQueue[Record](), queue.SimpleQueue[Record]()

    def handle(record: Record) -> None:
        got.put(record)
        raise ValueError("not now")

    async def scenario() -> None:
        settings = ConsumerSettings(
            begin=Begin.FIRST, look_seconds=0.1, share_seconds=0.5, retries_max=1, retry_level=1
        )
        async with users.producer() as call:
            await call("send", Message(topic=topic, body=b"x"))
        async with users.consumer(group, topic, handle, settings=settings):
            records = [await users.get(got) for _ in range(2)]
            assert [record.reconsume_count for record in records] == [0, 1]
            assert {record.topic for record in records} == {topic}
            async with users.consumer(new_name("g"), f"%DLQ%{group}", dead.put):
                assert (await users.get(dead)).body == b"x"
        assert got.empty()

    users.run(scenario)


class Bank:
    """A listener that does what the body says."""

    def __init__(self) -> None:
        self.checked: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def execute(self, message: Message, _sent: Sent) -> Decision:
        if message.body.startswith(b"raise"):
            raise ValueError("the database is away")
        return Decision[message.body.decode()]

    def check(self, record: Record) -> Decision:
        self.checked.put(record.body)
        return Decision.COMMIT


@pytest.mark.slow
def test_transactions_are_seen_when_they_are_committed(server: Running) -> None:
    """Of all drivers at a time: a broker asks after six seconds, by the clock."""

    def one(kind: str) -> None:
        users, topic, bank = Users(kind, server), f"bank-of-{kind}", Bank()
        got: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        forgotten = b"raise " * 2_000  # is compressed

        async def scenario() -> None:
            async with users.producer(listener=bank) as call:
                decided = []
                for body in (b"ROLLBACK", b"COMMIT", forgotten):
                    message = Message(topic=topic, body=body)
                    _, decision = await call("send_in_transaction", message)
                    decided.append(decision)
                assert decided == [Decision.ROLLBACK, Decision.COMMIT, Decision.UNKNOWN]
                group = f"auditors-{kind}"  # members of one group subscribe to the same
                async with users.consumer(group, topic, lambda record: got.put(record.body)):
                    assert await users.get(got) == b"COMMIT"
                    assert await users.get(bank.checked) == forgotten
                    assert await users.get(got) == forgotten

        users.run(scenario)

    failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def guarded(kind: str) -> None:
        try:
            one(kind)
        except BaseException as error:  # noqa: BLE001  (raised below)
            failures.put(error)

    threads = [threading.Thread(target=guarded, args=[k]) for k in ("threads", "asyncio", "trio")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not failures.empty():
        raise failures.get()


def test_a_transaction_needs_a_listener(users: Users) -> None:
    async def scenario() -> None:
        async with users.producer() as call:
            with pytest.raises(LocalProtocolError, match="listener"):
                await call("send_in_transaction", Message(topic="t", body=b"x"))

    users.run(scenario)


def test_order_is_kept_over_failures_and_handovers(users: Users) -> None:
    """Two programs of a group: a second comes, the first goes; what fails is tried in its place.
    Of each queue, messages are handled one at a time, first in their order."""
    topic, group = new_name("order"), new_name("g")
    settings = ConsumerSettings(
        begin=Begin.FIRST, ordered=True, look_seconds=0.1, suspend_seconds=0.05,
        lock_retry_seconds=0.1, pull_count_max=3,
    )  # fmt: skip
    got: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    at_work: dict[int, int] = {}
    failed: set[tuple[int, int]] = set()
    first_seen: dict[int, list[int]] = {number: [] for number in range(4)}
    count = 0

    def handle(record: Record) -> None:
        record_key = record.queue_id, record.queue_offset
        assert at_work.setdefault(record.queue_id, threading.get_ident()) == threading.get_ident()
        try:
            if record.queue_offset % 5 == 2 and record_key not in failed:
                failed.add(record_key)
                raise ValueError("not now")
        finally:
            del at_work[record.queue_id]
        got.put(record_key)

    async def take(most: int) -> None:
        nonlocal count
        while count < most:
            number, offset = await users.get(got)
            if offset not in first_seen[number]:  # a handover may repeat, not skip or swap
                first_seen[number].append(offset)
                count += 1

    async def scenario() -> None:
        async with users.producer() as call:

            async def send(number: int) -> None:
                for _ in range(number):
                    await call("send", Message(topic=topic, body=b"x"))

            await send(40)
            async with users.consumer(group, topic, handle, settings=settings):
                await take(20)
                async with users.consumer(group, topic, handle, settings=settings):
                    await send(40)
                    await take(60)
                await send(20)
                await take(100)
        assert first_seen == {number: list(range(25)) for number in range(4)}
        assert len(failed) == 20

    users.run(scenario)


# --- name servers -------------------------------------------------------------------------------


@contextmanager
def address_server(text: str) -> Iterator[str]:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_address[1]}/rocketmq/nsaddr"
        served.shutdown()
        thread.join()


@pytest.mark.parametrize("way", ["option", "environment", "address server"])
def test_name_servers_are_found_in_three_ways(
    users: Users, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, got = new_name("ways"), queue.SimpleQueue[bytes]()
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    async def scenario(**option: str) -> None:
        async with users.producer(**option) as call:
            await call("send", Message(topic=topic, body=b"x"))
        group = new_name("g")
        async with users.consumer(group, topic, lambda r: got.put(r.body), **option):
            assert await users.get(got) == b"x"

    if way == "option":
        users.run(scenario)
    elif way == "environment":
        monkeypatch.setenv("NAMESRV_ADDR", users.names)
        users.run(functools.partial(scenario, name_servers=""))
    else:
        with address_server(users.names) as url:
            users.run(functools.partial(scenario, name_servers="", address_server=url))


def test_without_any_name_server_it_says_so(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    async def scenario() -> None:
        with pytest.raises(LocalProtocolError, match="NAMESRV_ADDR"):
            async with users.producer(name_servers=""):
                raise AssertionError("it was opened")
        with pytest.raises(Unreachable, match="no name server answers"):
            async with users.producer(name_servers="127.0.0.1:1") as call:
                await call("send", Message(topic="t", body=b"x"))

    users.run(scenario)


def test_what_the_program_raises_comes_out_as_it_is(users: Users) -> None:
    """Not as a group of errors, although there are tasks beside it."""

    async def scenario() -> None:
        with pytest.raises(ValueError, match="mine"):
            async with users.producer(settings=ProducerSettings(attempts_max=1)):
                raise ValueError("mine")
        with pytest.raises(ValueError, match="mine"):
            async with users.consumer("g", new_name("t"), lambda _: None):
                raise ValueError("mine")

    users.run(scenario)
