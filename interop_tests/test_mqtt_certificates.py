"""Clients' certificates at MQTT listeners: who they are, revocation, and files that change."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from interop_tests.authority import Authority
from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import (
    SECONDS,
    addresses,
    client_tls,
    connect_code,
    connected,
    refusal,
    start_with,
    until,
)
from interop_tests.mqtt_wire import connect
from interop_tests.people import Admin

SUBJECT = "/O=Plant, Ltd/CN=sensor7"
ALTERNATIVES = "email:ann@plant.example,DNS:one.plant.example,DNS:two.plant.example"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def own_files(authority: Authority, name: str = "server") -> dict[str, Any]:
    certificate, key = authority.issue(name, "/CN=localhost", "DNS:localhost")
    return {
        "tls.certificate": str(certificate),
        "tls.key": str(key),
        "tls.client_ca": str(authority.certificate),
        "mqtt.tls_port": 0,
        "amqp.tls_port": 0,
        "http.tls_port": 0,
        "rocketmq.tls_port": 0,
        "server.allow_insecure": True,
    }


def is_rejected(port: int, tls: ssl.SSLContext) -> bool:
    """Whether the handshake fails; with TLS 1.3 the client learns that when it reads."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as raw:
        try:
            with tls.wrap_socket(raw, server_hostname="localhost") as client:
                client.sendall(connect("rejected"))
                return client.recv(4) == b""
        except (ssl.SSLError, ConnectionError):
            return True


def log_counts(server: Server, text: str) -> int:
    return sum(text in line for line in server.log_lines())


@pytest.mark.slow
def test_users_from_certificates(start_server: StartServer, authority: Authority) -> None:
    """Each part of the certificate names a user, who needs no password, and has to exist and be
    enabled. Where certificates are optional, a client without one logs in with its password."""
    parts = {
        "cn": "sensor7",
        "san_dns": "one.plant.example",
        "san_email": "ann@plant.example",
        "subject": "CN=sensor7,O=Plant\\, Ltd",
    }
    listeners = [{"name": part, "tls": True, "user_from_certificate": part} for part in parts]
    optional = {"name": "both", "tls": True, "user_from_certificate": "cn"}
    listeners.append({**optional, "tls_client_certificates": "optional"})
    server = start_with(start_server, *listeners, **own_files(authority))
    where = addresses(server)
    with_one = client_tls(authority.certificate, authority.issue("c", SUBJECT, ALTERNATIVES))
    without = client_tls(authority.certificate)
    admin = Admin(server)
    admin.add("boss", "admin", password="secret-9351")
    for part, user in parts.items():
        assert connect_code(where[part], tls=with_one) == "Not authorized"
        admin.add(user, "admin")
        assert connect_code(where[part], tls=with_one) == "Success"
    assert is_rejected(where["cn"], without)
    assert connect_code(where["both"], tls=with_one) == "Success"
    assert connect_code(where["both"], tls=without) == "Not authorized"
    logged_in = connect_code(where["both"], tls=without, user="boss", password="secret-9351")
    assert logged_in == "Success"
    nameless = client_tls(authority.certificate, authority.issue("n", "/O=Plant"))
    assert connect_code(where["both"], tls=nameless) == "Not authorized"
    assert log_counts(server, "its certificate names no user (cn)") == 1
    admin.change("sensor7", disabled=True)
    assert connect_code(where["cn"], tls=with_one) == "Not authorized"


@pytest.mark.slow
def test_revocation_and_renewal_without_a_restart(
    start_server: StartServer, authority: Authority
) -> None:
    """A client is revoked, and the server gets another certificate: SIGHUP is enough. Connections
    that are there continue; files that cannot be used change nothing."""
    authority.write_crl()
    files = own_files(authority)
    server = start_server(**files, **{"tls.crl": str(authority.crl), "tls.check_files_seconds": 0})
    port = server_port(server)
    good, bad = (authority.issue(name, f"/CN={name}") for name in ("good", "bad"))
    of_good, of_bad = (client_tls(authority.certificate, pair) for pair in (good, bad))
    with connected(port, "bad", tls=of_bad) as running:
        running.subscribe("t")
        authority.revoke(bad[0])
        assert connect_code(port, tls=of_bad) == "Success"  # nobody has said so yet
        server.process.send_signal(signal.SIGHUP)
        until(server, lambda: log_counts(server, "TLS files were read again") == 1)
        assert is_rejected(port, client_tls(authority.certificate, bad))
        assert connect_code(port, tls=of_good) == "Success"
        with connected(port, "good", tls=of_good) as publisher:
            publisher.publish("t", b"hello")
        assert running.message() == ("t", b"hello")
        whole = Path(files["tls.certificate"]).read_text()
        Path(files["tls.certificate"]).write_text("nothing")
        server.process.send_signal(signal.SIGHUP)
        until(server, lambda: log_counts(server, "reload failed, and nothing was changed") == 1)
        assert connect_code(port, tls=of_good) == "Success"
        Path(files["tls.certificate"]).write_text(whole)


def server_port(server: Server) -> int:
    """The port for MQTT with TLS."""
    found = json.loads((server.data_directory / "server.json").read_text())
    return int(found["mqtts"])


@pytest.mark.slow
def test_changed_files_are_noticed(start_server: StartServer, authority: Authority) -> None:
    """A certificate of another authority comes into effect by itself."""
    files = own_files(authority)
    server = start_server(**{**files, "tls.client_ca": "", "tls.check_files_seconds": 0.2})
    port = server_port(server)
    other = Authority(authority.directory / "other")
    certificate, key = other.issue("server", "/CN=localhost", "DNS:localhost")
    assert connect_code(port, tls=client_tls(authority.certificate)) == "Success"
    shutil.copy(key, files["tls.key"])
    shutil.copy(certificate, files["tls.certificate"])
    until(server, lambda: log_counts(server, "TLS files were read again") >= 1)
    assert connect_code(port, tls=client_tls(other.certificate)) == "Success"
    assert is_rejected(port, client_tls(authority.certificate))


@pytest.mark.slow
def test_wrong_files_are_one_line(start_server: StartServer, authority: Authority) -> None:
    files = own_files(authority)
    tls = {"name": "a", "tls": True}
    crl = {**tls, "tls_crl": files["tls.certificate"]}
    assert "holds no certificate revocation lists" in refusal(start_server, crl, **files)
    missing = {**tls, "tls_certificate": "/none", "tls_key": "/none"}
    line = refusal(start_server, missing, **files)
    assert "mqtt listener a: tls.certificate: /none cannot be read" in line
    named = {**tls, "user_from_certificate": "cn", "tls_client_certificates": "none"}
    line = refusal(start_server, named, **files)
    assert "mqtt listener a: user_from_certificate needs tls_client_ca" in line
