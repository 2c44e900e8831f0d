"""The name server over sockets: connections, limits, what is kept, and what the log says."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import trio
else:
    trio = pytest.importorskip("trio", reason="the name server needs trio")

from polymq.namesrv.errors import CannotKeep, CannotListen, InUse
from polymq.namesrv.keeping import FILE_NAME, DirectoryKeeper
from polymq.namesrv.key_values import KeyValues
from polymq.namesrv.limits import NameServerLimits
from polymq.namesrv.requests import Answer, Asked
from polymq.namesrv.server import open_listeners
from polymq.remoting.bodies import decode_route
from polymq.remoting.codes import RequestCode, ResponseCode, SerializeType
from polymq.remoting.driver_trio import TrioDriver, open_trio_driver
from polymq.remoting.errors import CallFailed
from polymq.remoting.frames import Command, encode_frame, take_frame
from polymq.remoting.headers import write_fields
from polymq.remoting.name_fields import RegisterFields
from polymq.remoting.registration import Registration, encode_registration
from polymq.remoting.steps import Address, Call, Steps
from tests.namesrv.running import Memory, SpyLog, name_server
from tests.namesrv.speaking import table


def ask(
    address: Address, code: int, fields: dict[str, str] | None = None, body: bytes = b""
) -> Steps[Command]:
    answer = yield Call(address=address, code=code, fields=fields or {}, body=body, seconds=10.0)
    assert answer is not None
    return answer


def register(address: Address, broker: str = "broker-a", **more: object) -> Steps[Command]:
    body, crc = encode_registration(Registration(topics=table("t", "u")))
    header = RegisterFields(
        cluster_name="c", broker_name=broker, broker_addr=f"{broker}:10911", body_crc32=crc,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return (yield from ask(address, RequestCode.REGISTER_BROKER, write_fields(header), body))


async def wait_closed(stream: trio.SocketStream) -> None:
    """By the server. What it had not read makes a reset of it."""
    try:
        assert await stream.receive_some() == b""
    except trio.BrokenResourceError:
        pass


async def route_code(driver: TrioDriver, address: Address) -> int:
    return (await driver.run(ask(address, RequestCode.GET_ROUTE, {"topic": "t"}))).code


def test_a_broker_registers_a_client_asks_and_a_closed_connection_takes_the_broker_out() -> None:
    async def scenario() -> None:
        spy_log = SpyLog()
        async with name_server(spy_log=spy_log) as (server, address), open_trio_driver() as client:
            async with open_trio_driver() as broker:
                assert (await broker.run(register(address))).code == 0
                answer = await client.run(ask(address, RequestCode.GET_ROUTE, {"topic": "t"}))
                route = decode_route(answer.body)
                assert route.broker_datas[0].broker_addrs == {"0": "broker-a:10911"}
            while await route_code(client, address) == 0:
                pass
            assert server.connection_count == 1
        assert spy_log.events() == ["broker joined", "broker left"]

    trio.run(scenario)


def test_a_silent_broker_is_taken_out_and_loses_its_connection() -> None:
    async def scenario() -> None:
        spy_log = SpyLog()
        async with (
            name_server(spy_log=spy_log, silence_seconds_floor=0.05, scan_seconds=0.01) as (
                server,
                address,
            ),
            open_trio_driver() as broker,
            open_trio_driver() as client,
        ):
            await broker.run(register(address, heartbeat_timeout_millis=50))
            while await route_code(client, address) == 0:
                pass
            assert await route_code(client, address) == ResponseCode.TOPIC_NOT_EXIST
            while server.connection_count > 1:
                await route_code(client, address)
            assert (await broker.run(register(address))).code == 0
        assert "broker is silent and was removed" in spy_log.events()

    trio.run(scenario)


def test_an_answer_comes_in_the_form_of_its_question_and_oneway_gets_none() -> None:
    async def scenario() -> None:
        async with name_server() as (_, address):
            stream = await trio.open_tcp_stream(address.host, address.port)
            oneway = Command(code=RequestCode.GET_ALL_TOPICS, opaque=1, flag=2)
            binary = Command(
                code=RequestCode.GET_ALL_TOPICS, opaque=2, serialize_type=SerializeType.ROCKETMQ
            )
            data = encode_frame(oneway) + encode_frame(binary)
            for part in (data[:5], data[5:40], data[40:]):
                await stream.send_all(part)
            buffer = b""
            while (taken := take_frame(buffer, 0, len(buffer))) is None:
                buffer += await stream.receive_some()
            answer, end = taken
            assert (answer.opaque, answer.code, answer.is_response) == (2, 0, True)
            assert answer.serialize_type == SerializeType.ROCKETMQ
            assert end == len(buffer)
            await stream.aclose()

    trio.run(scenario)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">iI", 17_000_000, 9), bytes(8)]
)
def test_who_speaks_something_else_is_shown_out(data: bytes) -> None:
    async def scenario() -> None:
        async with name_server() as (server, address), open_trio_driver() as client:
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(data)
                await wait_closed(stream)
            assert server.protocol_error_count == 1
            assert await route_code(client, address) == ResponseCode.TOPIC_NOT_EXIST

    trio.run(scenario)


def test_limits_of_connections_and_of_unfinished_frames() -> None:
    """The one too many is closed; those that are there are not touched."""

    async def scenario() -> None:
        async with name_server(connections_max=2, buffered_bytes_max=1000) as (server, address):
            first = await trio.open_tcp_stream(address.host, address.port)
            async with first, open_trio_driver() as client:
                await first.send_all(struct.pack(">iI", 100_000, 100) + bytes(800))
                assert await route_code(client, address) == ResponseCode.TOPIC_NOT_EXIST
                async with await trio.open_tcp_stream(address.host, address.port) as third:
                    await wait_closed(third)
                assert server.roster.refused_count == 1
                await first.send_all(bytes(300))
                await wait_closed(first)
                assert await route_code(client, address) == ResponseCode.TOPIC_NOT_EXIST
                assert server._buffered_bytes == 0

    trio.run(scenario)


def test_silent_connections_of_one_address_keep_nobody_out() -> None:
    """Some from the address that fills the server are closed; an address counts for itself."""
    flood, newcomer = "127.0.0.2", "127.0.0.3"

    async def dial(address: Address, source: str) -> trio.SocketStream:
        return await trio.open_tcp_stream(address.host, address.port, local_address=source)

    async def ask(stream: trio.SocketStream, code: int) -> None:
        await stream.send_all(encode_frame(Command(code=code, opaque=1)))
        assert await stream.receive_some()

    async def scenario() -> None:
        async with name_server(connections_max=100) as (server, address):
            old = await dial(address, flood)
            await ask(old, RequestCode.GET_BROKER_CLUSTER_INFO)
            assert server.roster.newcomers_count == 0
            unknown = await dial(address, newcomer)
            await ask(unknown, 4711)  # which proves nothing
            silent = [await dial(address, flood) for _ in range(120)]
            for source in (newcomer, flood):
                for _ in range(3):
                    stream = await dial(address, source)
                    await ask(stream, RequestCode.GET_BROKER_CLUSTER_INFO)
                    await stream.aclose()
            await wait_closed(silent[0])
            assert server.roster.newcomers_count == 49
            assert server.roster.crowded_out_count == 72
            assert server.roster.refused_count == 0
            await ask(old, RequestCode.GET_BROKER_CLUSTER_INFO)
            await ask(unknown, 4711)
            for stream in (old, unknown, *silent):
                await stream.aclose()
            while server.connection_count:
                await trio.lowlevel.checkpoint()

    trio.run(scenario)


class Lingering(trio.abc.Stream):
    """A stream that has ended, and takes long to close."""

    def __init__(self, may_close: trio.Event) -> None:
        self._may_close = may_close

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        raise trio.BrokenResourceError

    async def wait_send_all_might_not_block(self) -> None:
        raise trio.BrokenResourceError

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            await self._may_close.wait()


def test_connections_that_are_being_closed_give_way_to_nobody() -> None:
    """They are more than there is room for, and none of them is chosen to be closed again."""

    async def scenario() -> None:
        may_close = trio.Event()
        async with name_server(connections_max=100) as (server, _), trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(server.handle, Lingering(may_close))
            try:
                await trio.testing.wait_all_tasks_blocked()
                assert server.roster.crowded_out_count == 0
                assert server.connection_count == 0
            finally:
                may_close.set()

    trio.run(scenario)


def test_an_idle_connection_is_closed() -> None:
    async def scenario() -> None:
        async with name_server(idle_seconds_max=0.05) as (server, address):
            stream = await trio.open_tcp_stream(address.host, address.port)
            await stream.send_all(encode_frame(Command(code=206, opaque=1)))
            assert await stream.receive_some()
            await wait_closed(stream)
            await stream.aclose()
            assert server.protocol_error_count == 0

    trio.run(scenario)


@pytest.mark.parametrize("whole_before", [0, 2])
@pytest.mark.parametrize("begun", [b"", b"\x00\x00\x01\x00"])
def test_who_sends_no_whole_request_in_time_is_closed(whole_before: int, begun: bytes) -> None:
    """From connecting on, and from the begin of each request on; not between two of them."""

    async def scenario() -> None:
        async with name_server(first_frame_seconds_max=0.05, frame_seconds_max=0.05) as (
            server,
            address,
        ):
            stream = await trio.open_tcp_stream(address.host, address.port)
            for _ in range(whole_before):
                await stream.send_all(encode_frame(Command(code=206, opaque=1)))
                assert await stream.receive_some()
            await stream.send_all(begun)
            if whole_before and not begun:
                with trio.move_on_after(0.3) as open_still:
                    await stream.receive_some()
                assert open_still.cancelled_caught
            else:
                await wait_closed(stream)
                assert server.protocol_error_count == 1
            await stream.aclose()

    trio.run(scenario)


def test_a_bug_costs_one_connection() -> None:
    async def scenario() -> None:
        spy_log = SpyLog()

        def fail(asked: Asked) -> Answer:
            raise ZeroDivisionError

        async with name_server(spy_log=spy_log) as (server, address), open_trio_driver() as client:
            handle = server.requests.handle
            server.requests.handle = fail  # type: ignore[method-assign]
            with pytest.raises(CallFailed):
                await route_code(client, address)
            server.requests.handle = handle  # type: ignore[method-assign]
            assert await route_code(client, address) == ResponseCode.TOPIC_NOT_EXIST
            assert server.bug_count == 1
        assert spy_log.events() == ["bug"]

    trio.run(scenario)


PUT = {"namespace": "n", "key": "k", "value": "v"}
GET = {"namespace": "n", "key": "k"}


def test_a_key_is_kept_before_it_is_answered_and_read_at_the_next_start() -> None:
    async def scenario() -> None:
        memory = Memory()
        async with name_server(memory) as (_, address), open_trio_driver() as client:
            assert (await client.run(ask(address, RequestCode.PUT_KV_CONFIG, PUT))).code == 0
            assert memory.stored is not None
            memory.failure = CannotKeep("the disk is full")
            other = {**PUT, "value": "w"}
            answer = await client.run(ask(address, RequestCode.PUT_KV_CONFIG, other))
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the disk is full")
            answer = await client.run(ask(address, RequestCode.GET_KV_CONFIG, GET))
            assert answer.fields == {"value": "v"}, "what could not be kept was not done"
        async with name_server(memory) as (_, address), open_trio_driver() as client:
            answer = await client.run(ask(address, RequestCode.GET_KV_CONFIG, GET))
            assert answer.fields == {"value": "v"}

    trio.run(scenario)


def test_changes_at_the_same_time_lose_none() -> None:
    async def scenario() -> None:
        memory = Memory()
        async with name_server(memory) as (_, address), open_trio_driver() as client:

            async def put(number: int) -> None:
                fields = {"namespace": "n", "key": str(number), "value": "v"}
                async with open_trio_driver() as own:
                    await own.run(ask(address, RequestCode.PUT_KV_CONFIG, fields))

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(put, number)
            del client
        stored = KeyValues(NameServerLimits(), memory.stored).namespace("n")
        assert stored is not None
        assert len(stored) == 20

    trio.run(scenario)


def test_the_file_is_replaced_in_one_step_and_belongs_to_one_name_server(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    with DirectoryKeeper(directory) as keeper:
        assert keeper.load() is None
        trio.run(keeper.keep, b"1")
        trio.run(keeper.keep, b"22")
        assert keeper.load() == b"22"
        assert sorted(path.name for path in directory.iterdir()) == [FILE_NAME, "namesrv.lock"]
        with pytest.raises(InUse, match="in use by another name server"):
            DirectoryKeeper(directory)
    DirectoryKeeper(directory).close()
    (directory / FILE_NAME).chmod(0o600)
    (tmp_path / "file").touch()
    with pytest.raises(CannotKeep, match="cannot be read or written"):
        DirectoryKeeper(tmp_path / "file" / "x")


@pytest.mark.parametrize("stored", [b"", b"[]", b"{}", b'{"configTable": {"n": 1}}', b"\xff"])
def test_a_file_that_is_no_configuration_is_not_overwritten(stored: bytes) -> None:
    with pytest.raises(CannotKeep, match="not the configuration"):
        KeyValues(NameServerLimits(), stored)


def test_a_taken_port_is_an_error_of_its_own() -> None:
    async def scenario() -> None:
        async with name_server() as (_, address):
            with pytest.raises(CannotListen):
                await open_listeners("127.0.0.1", address.port)

    trio.run(scenario)
