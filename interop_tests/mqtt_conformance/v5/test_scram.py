"""Enhanced authentication (part 4.12) with SCRAM-SHA-256, by a client that checks the server, too.
Against a server of its own, because there have to be users."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.conftest import Server
from interop_tests.mqtt5_wire import Kind, P, Packet, R, auth
from interop_tests.mqtt_conformance.client import PEER, Case, Client
from interop_tests.mqtt_conformance.statements_5 import shows
from interop_tests.mqtt_wire import PINGREQ
from interop_tests.people import PASSWORD, Admin
from interop_tests.scram import ScramClient

pytestmark = pytest.mark.skipif(PEER != "polymq", reason="this peer offers no method")
METHOD = (P.AUTH_METHOD, "SCRAM-SHA-256")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the users ann and bob, who may do everything."""
    server = Server(tmp_path_factory.mktemp("scram"), {}, {}, (sys.executable, "-m", "polymq"))
    server.start()
    for name in ("ann", "bob"):
        Admin(server).add(name, "admin")
    yield server
    server.close(sys.stdout)


@pytest.fixture
def case(locked: Server) -> Iterator[Case]:
    with Case(locked.mqtt_port) as made:
        yield made


def data_of(packet: Packet) -> bytes:
    """Authentication Data of a packet that has the method of CONNECT."""
    assert packet.values(P.AUTH_METHOD) == ["SCRAM-SHA-256"]
    (data,) = packet.values(P.AUTH_DATA)
    assert isinstance(data, bytes)
    return data


def begin(case: Case, scram: ScramClient, **options: object) -> tuple[Client, bytes]:
    """A client that has sent CONNECT, and the server's challenge."""
    client = case.open()
    client.client_id = case.client_id()
    props = [METHOD, (P.AUTH_DATA, scram.first())]
    client.send(wire.connect(client.client_id, props=props, **options))  # type: ignore[arg-type]
    found = client.read()
    assert (found.kind, found.reason) == (Kind.AUTH, R.CONTINUE)
    return client, data_of(found)


def proof(data: bytes) -> bytes:
    return auth(R.CONTINUE, [METHOD, (P.AUTH_DATA, data)])


def connect(case: Case, user: str = "ann", header: str = "n,,") -> Client:
    """A client that has proven itself, and to which the server has."""
    scram = ScramClient(user, PASSWORD, header=header)
    client, challenge = begin(case, scram)
    client.send(proof(scram.final(challenge)))
    found = client.read()
    assert (found.kind, found.reason) == (Kind.CONNACK, R.SUCCESS)
    assert scram.trusts(data_of(found))
    return client


def authenticate_again(client: Client, user: str, password: str = PASSWORD) -> ScramClient:
    """Up to the last message; what it is answered with is for the test."""
    scram = ScramClient(user, password)
    client.send(auth(R.AUTHENTICATE_AGAIN, [METHOD, (P.AUTH_DATA, scram.first())]))
    found = client.read_kind(Kind.AUTH)
    assert found.reason == R.CONTINUE
    client.send(proof(scram.final(data_of(found))))
    return scram


@shows(
    "MQTT-4.12.0-2",
    "MQTT-4.12.0-3",
    "MQTT-4.12.0-5",
    "MQTT-3.15.2-1",
    "MQTT-3.15.2-2",
    "MQTT-3.15.2-3",
    "MQTT-3.2.0-1",
)
@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=ann,"])
def test_client_and_server_prove_themselves(case: Case, header: str) -> None:
    """With or without channel binding in the client: the server has none."""
    client = connect(case, header=header)
    client.follow((case.topic("a"), 1))
    client.send_message(case.topic("a"), b"x")
    assert client.message().body == b"x"


@shows("MQTT-4.12.0-2", "MQTT-4.12.0-5")
def test_the_first_message_may_come_after_connect(case: Case) -> None:
    scram = ScramClient("ann", PASSWORD)
    client = case.open()
    client.send(wire.connect(case.client_id(), props=[METHOD]))
    found = client.read()
    assert (found.kind, found.reason, data_of(found)) == (Kind.AUTH, R.CONTINUE, b"")
    client.send(proof(scram.first()))
    client.send(proof(scram.final(data_of(client.read()))))
    assert scram.trusts(data_of(client.read_kind(Kind.CONNACK)))


@shows("MQTT-4.12.0-4", "MQTT-3.14.0-1")
@pytest.mark.parametrize("user", ["ann", "nobody"])
def test_a_wrong_proof_closes(case: Case, user: str) -> None:
    scram = ScramClient(user, "wrong")
    client, challenge = begin(case, scram)
    client.send(proof(scram.final(challenge)))
    client.expect_refused(R.NOT_AUTHORIZED)


@shows("MQTT-4.12.0-4")
def test_who_is_not_there_cannot_be_told_from_who_is(case: Case) -> None:
    """The same salt each time, as a user has, of the same size."""
    salts = []
    for _ in range(2):
        scram = ScramClient("nobody", PASSWORD)
        _, challenge = begin(case, scram)
        scram.final(challenge)
        salts.append(scram.salt)
    known = ScramClient("ann", PASSWORD)
    known.final(begin(case, known)[1])
    assert salts[0] == salts[1] != known.salt
    assert len(salts[0]) == len(known.salt)


@shows("MQTT-4.12.0-4")
@pytest.mark.parametrize(
    "first", [b"p=tls-unique,,n=ann,r=abc", b"n,a=bob,n=ann,r=abc", b"n,,m=x,n=ann,r=abc", b"x"]
)
def test_what_scram_does_not_allow_closes(case: Case, first: bytes) -> None:
    client = case.open()
    client.send(wire.connect(case.client_id(), props=[METHOD, (P.AUTH_DATA, first)]))
    client.expect_refused(R.NOT_AUTHORIZED)


@shows("MQTT-4.12.0-4")
def test_connect_cannot_name_another_user(case: Case) -> None:
    scram = ScramClient("ann", PASSWORD)
    client, challenge = begin(case, scram, user="bob")
    client.send(proof(scram.final(challenge)))
    client.expect_refused(R.NOT_AUTHORIZED)


@shows("MQTT-3.1.2-30")
@pytest.mark.parametrize(
    "sent", [PINGREQ, wire.subscribe(1, ("a", 0)), wire.publish("a", b"x"), wire.connect("x")]
)
def test_only_auth_and_disconnect_come_before_connack(case: Case, sent: bytes) -> None:
    client, _ = begin(case, ScramClient("ann", PASSWORD))
    client.send(sent)
    client.expect_refused(R.PROTOCOL_ERROR)


@shows("MQTT-3.1.2-30")
def test_a_client_may_leave_before_connack(case: Case) -> None:
    client, _ = begin(case, ScramClient("ann", PASSWORD))
    client.send(wire.disconnect())
    client.expect_closed()


@shows("MQTT-4.12.0-3", "MQTT-4.12.0-5")
@pytest.mark.parametrize(
    "step",
    [
        auth(R.AUTHENTICATE_AGAIN, [METHOD, (P.AUTH_DATA, b"x")]),
        auth(R.CONTINUE, [(P.AUTH_METHOD, "SCRAM-SHA-1"), (P.AUTH_DATA, b"x")]),
        auth(R.SUCCESS, [METHOD]),
    ],
)
def test_a_step_that_is_none_closes(case: Case, step: bytes) -> None:
    client, _ = begin(case, ScramClient("ann", PASSWORD))
    client.send(step)
    client.expect_refused(R.PROTOCOL_ERROR)


@shows("MQTT-4.12.0-5", "MQTT-3.15.2-1", "MQTT-4.12.1-1")
def test_authenticating_again(case: Case) -> None:
    client = connect(case)
    for _ in range(2):
        scram = authenticate_again(client, "ann")
        found = client.read()
        assert (found.kind, found.reason) == (Kind.AUTH, R.SUCCESS)
        assert scram.trusts(data_of(found))
    client.nothing()


@shows("MQTT-4.12.1-1")
def test_other_packets_may_come_between_its_steps(case: Case) -> None:
    client = connect(case)
    client.follow((case.topic("a"), 1))
    scram = ScramClient("ann", PASSWORD)
    client.send(auth(R.AUTHENTICATE_AGAIN, [METHOD, (P.AUTH_DATA, scram.first())]))
    challenge = data_of(client.read())
    client.send_message(case.topic("a"), b"x")
    assert client.message().body == b"x"
    client.send(proof(scram.final(challenge)))
    assert client.read().reason == R.SUCCESS


@shows("MQTT-4.12.1-2")
@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("bob", PASSWORD)])
def test_failing_to_authenticate_again_closes(case: Case, user: str, password: str) -> None:
    client = connect(case)
    authenticate_again(client, user, password)
    client.expect_error(R.NOT_AUTHORIZED)


@shows("MQTT-4.12.1-1", "MQTT-4.12.1-2")
@pytest.mark.parametrize(
    "send",
    [
        lambda: auth(R.CONTINUE, [METHOD, (P.AUTH_DATA, b"x")]),
        lambda: auth(R.AUTHENTICATE_AGAIN, [(P.AUTH_METHOD, "SCRAM-SHA-1")]),
        lambda: auth(R.AUTHENTICATE_AGAIN, [METHOD]) * 2,
    ],
)
def test_a_step_out_of_order_closes(case: Case, send: Callable[[], bytes]) -> None:
    client = connect(case)
    client.send(send())
    found = client.read()
    if found.kind == Kind.AUTH:  # the answer to the first of two
        client.expect_error(R.PROTOCOL_ERROR)
    else:
        assert found.reason == R.PROTOCOL_ERROR
        client.expect_closed()


@shows("MQTT-4.12.0-5")
def test_an_empty_connection_may_not_authenticate_as_somebody(case: Case) -> None:
    """A client without a method logs in by its password, and gets no method."""
    client = case.open()
    client.send(wire.connect(case.client_id(), user="ann", password=PASSWORD.encode()))
    found = client.read()
    assert (found.reason, found.values(P.AUTH_METHOD)) == (R.SUCCESS, [])
    client.send(auth(R.AUTHENTICATE_AGAIN, [METHOD]))
    client.expect_error(R.PROTOCOL_ERROR)
