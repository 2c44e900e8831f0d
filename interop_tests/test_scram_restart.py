"""Logins by SCRAM after `kill -9`: keys are in the log, and the salts of unknown users, too."""

from __future__ import annotations

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.conftest import StartServer
from interop_tests.mqtt5_wire import Kind, P, R, auth
from interop_tests.mqtt_conformance.client import Client
from interop_tests.people import PASSWORD, Admin
from interop_tests.scram import ScramClient

METHOD = (P.AUTH_METHOD, "SCRAM-SHA-256")


def log_in(port: int, user: str) -> tuple[int, bytes]:
    """The reason code of CONNACK, and the salt that the server has for the user."""
    client, scram = Client(port), ScramClient(user, PASSWORD)
    client.send(wire.connect("c", props=[METHOD, (P.AUTH_DATA, scram.first())]))
    (challenge,) = client.read_kind(Kind.AUTH).values(P.AUTH_DATA)
    assert isinstance(challenge, bytes)
    client.send(auth(R.CONTINUE, [METHOD, (P.AUTH_DATA, scram.final(challenge))]))
    found = client.read_kind(Kind.CONNACK)
    client.socket.close()
    return found.reason, scram.salt


@pytest.mark.slow
def test_a_killed_server_knows_everybody_again(start_server: StartServer) -> None:
    server = start_server()
    Admin(server).add("ann", "admin")
    before = [log_in(server.mqtt_port, user) for user in ("ann", "nobody")]
    assert [reason for reason, _ in before] == [R.SUCCESS, R.NOT_AUTHORIZED]
    server.kill()
    (server.data_directory / "state.db").unlink(missing_ok=True)
    server.start()
    assert [log_in(server.mqtt_port, user) for user in ("ann", "nobody")] == before
