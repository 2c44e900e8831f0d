"""A name server that asks for an access key: who may change what it knows, and who may read it."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import trio
else:
    trio = pytest.importorskip("trio", reason="the name server needs trio")

from polymq.namesrv.login import CHANGES, HEADERS, READS, Login
from polymq.namesrv.requests import HANDLERS
from polymq.remoting.codes import ResponseCode
from polymq.remoting.driver_trio import open_trio_driver
from polymq.remoting.headers import Fields, wire_names
from polymq.remoting.signing import Credentials, sign
from polymq.remoting.steps import Address
from tests.namesrv.running import name_server
from tests.namesrv.speaking import Speaker
from tests.namesrv.test_names_server import register, route_code

KEY = Credentials(access_key="BROKERS", secret_key="what brokers know")
WRONG = (
    None,
    Credentials(access_key="BROKERS", secret_key="a guess"),
    Credentials(access_key="OTHERS", secret_key="what brokers know"),
)
FIELDS = {
    "namespace": "n", "key": "k", "value": "v", "brokerName": "b", "brokerAddr": "10.0.0.1:1",
    "clusterName": "c", "brokerId": "0", "haServerAddr": "", "topic": "t", "cluster": "c",
}  # fmt: skip
CERTIFICATE = Path(__file__).parents[1] / "gateways" / "mqtt" / "mqtt_tls_for_tests.pem"


def test_every_request_either_changes_something_or_reads() -> None:
    """Who adds one says which."""
    assert {*CHANGES, *READS} == set(HANDLERS)
    assert not CHANGES & set(READS)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("code", sorted(HANDLERS))
def test_only_who_knows_the_key_changes_anything(code: int, reads: bool) -> None:
    speaker = Speaker(Login(credentials=KEY, reads=reads))
    closed = code in CHANGES or reads
    sent = fields_of(code)
    for user in WRONG:
        fields = sent if user is None else sign(sent, b"", user)
        answer = speaker.ask(code, dict(fields))
        assert (answer.code == ResponseCode.NO_PERMISSION) is closed, answer
        assert answer.change is None
    assert speaker.requests.tables.broker_count == 0
    answer = speaker.ask(code, sign(sent, b"", KEY))
    assert answer.code not in (ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER)


def fields_of(code: int) -> dict[str, str]:
    known = wire_names(HEADERS.get(code, Fields))
    return {name: value for name, value in FIELDS.items() if name in known}


@pytest.mark.parametrize("code", sorted(HANDLERS))
def test_a_signed_request_has_no_unknown_fields(code: int) -> None:
    """The end of a value could be cut off and hidden in one: the signature would still fit."""
    speaker = Speaker(Login(credentials=KEY, reads=True))
    answer = speaker.ask(code, sign({**fields_of(code), "zz": ":9876"}, b"", KEY))
    assert (answer.code, answer.change) == (ResponseCode.INVALID_PARAMETER, None)
    assert f"{code} has no field 'zz'" in (answer.remark or "")
    assert speaker.requests.tables.broker_count == 0


def test_what_rocketmqs_brokers_send_besides_is_no_unknown_field() -> None:
    speaker = Speaker(Login(credentials=KEY))
    more = ("epoch", "maxOffset", "confirmOffset", "heartbeatTimeoutMills", "electionPriority")
    fields = {**fields_of(904), **dict.fromkeys(more, "1"), "ns": "", "bname": "b"}
    assert "not registered" in (speaker.ask(904, sign(fields, b"", KEY)).remark or "")


def test_brokers_sign_and_clients_read() -> None:
    """Over sockets, with the driver that brokers use."""

    async def scenario() -> None:
        async with (
            name_server(login=Login(credentials=KEY)) as (_, address),
            open_trio_driver(credentials=KEY) as broker,
            open_trio_driver() as client,
        ):
            refused = await client.run(register(address))
            assert refused.code == ResponseCode.NO_PERMISSION
            assert await route_code(client, address) == ResponseCode.TOPIC_NOT_EXIST
            assert (await broker.run(register(address))).code == ResponseCode.SUCCESS
            assert await route_code(client, address) == ResponseCode.SUCCESS

    trio.run(scenario)


def test_a_name_server_speaks_tls() -> None:
    """A client without it gets no answer, and those with it do not notice."""
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(CERTIFICATE)
    client_tls = ssl.create_default_context(cafile=str(CERTIFICATE))
    client_tls.check_hostname = False

    async def scenario() -> None:
        async with (
            name_server(tls=server_tls) as (server, address),
            open_trio_driver(tls=client_tls) as client,
        ):
            plain = await trio.open_tcp_stream(address.host, address.port)
            await plain.send_all(b"\x00\x00\x00\x04\x00\x00\x00\x00" * 10)
            answered = b""
            with contextlib.suppress(trio.BrokenResourceError):
                while data := await plain.receive_some():
                    answered += data
            assert b"extFields" not in answered  # an alert of TLS, at most
            await plain.aclose()
            where = Address("localhost", address.port)
            assert (await client.run(register(where))).code == ResponseCode.SUCCESS
            assert server.bug_count == 0

    trio.run(scenario)
