"""MQTT listeners with pre-shared keys: mosquitto_pub and openssl, whose identities are users."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import SECONDS, addresses, refusal, start_with, until
from interop_tests.people import Admin, MqttClient

KEY: Final = "9f" * 16
OTHER: Final = "3a" * 32
NO_KEYS: Final = not hasattr(ssl.SSLContext, "set_psk_server_callback")
NEEDS_KEYS: Final = pytest.mark.skipif(NO_KEYS, reason="this Python has no pre-shared keys")
MOSQUITTO_PUB: Final = shutil.which("mosquitto_pub")
OPENSSL: Final = shutil.which("openssl")


def key_file(folder: Path, text: str) -> Path:
    path = folder / "psk"
    path.write_text(text)
    path.chmod(0o600)
    return path


def listener(path: Path, **more: object) -> dict[str, Any]:
    return {"name": "devices", "port": 0, "tls": True, "tls_psk_file": str(path), **more}


def publish(server: Server, identity: str, key: str, *more: str) -> int:
    """The exit code of mosquitto_pub: 0 if the message was acknowledged."""
    assert MOSQUITTO_PUB is not None
    port = str(addresses(server)["devices"])
    arguments = [
        MOSQUITTO_PUB, "-h", "127.0.0.1", "-p", port, "--psk", key, "--psk-identity", identity,
        "-t", f"from/{identity}", "-m", identity, "-q", "1", "-r", *more,
    ]  # fmt: skip
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode


@NEEDS_KEYS
@pytest.mark.skipif(MOSQUITTO_PUB is None, reason="needs mosquitto_pub")
def test_an_identity_is_a_user(start_server: StartServer, tmp_path: Path) -> None:
    """Who has the key is the user that the identity names, with its rights and without a password,
    whatever user CONNECT names. Another key, another identity and a deleted user get nowhere."""
    path = key_file(tmp_path, f"# devices\nsensor7:{KEY}\nsensor8:{OTHER}\nghost:{KEY}\n")
    server = start_with(start_server, listener(path))
    admin = Admin(server)
    admin.add("root", "admin")
    for user in ("sensor7", "sensor8"):
        admin.add(user)
        admin.allow(user, "publish,create", "from.{user}")
    assert publish(server, "sensor7", KEY) == 0
    assert publish(server, "sensor8", OTHER, "-V", "mqttv5", "-u", "root", "-P", "x") == 0
    assert publish(server, "sensor7", OTHER) != 0, "the key of another identity"
    assert publish(server, "sensor9", KEY) != 0, "no such identity"
    assert publish(server, "ghost", KEY) != 0, "no such user"
    admin.change("sensor8", disabled=True)
    assert publish(server, "sensor8", OTHER) != 0
    reader = MqttClient(server, "root")
    assert reader.subscribe("from/#") == 1
    found = {reader.next()[0] for _ in range(2)}
    assert found == {"from/sensor7", "from/sensor8"}
    reader.close()


@NEEDS_KEYS
@pytest.mark.skipif(MOSQUITTO_PUB is None, reason="needs mosquitto_pub")
def test_the_keys_change_while_the_server_runs(start_server: StartServer, tmp_path: Path) -> None:
    """By a reload. A file that is wrong changes nothing, and the log says why."""
    path = key_file(tmp_path, f"sensor7:{KEY}\n")
    server = start_with(start_server, listener(path))
    admin = Admin(server)
    admin.add("root", "admin")
    admin.add("sensor7", "admin")
    assert publish(server, "sensor7", KEY) == 0

    def reload(text: str, said: str) -> None:
        path.write_text(text)
        server.process.send_signal(signal.SIGHUP)
        until(server, lambda: any(said in line for line in server.log_lines()))

    reload(f"sensor7:{OTHER}\n", "TLS files were read again")
    assert publish(server, "sensor7", KEY) != 0
    assert publish(server, "sensor7", OTHER) == 0
    reload("sensor7:xyz\n", "line 1: the key is not in hexadecimal digits")
    assert publish(server, "sensor7", OTHER) == 0


@NEEDS_KEYS
@pytest.mark.skipif(OPENSSL is None, reason="needs openssl")
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_connects(start_server: StartServer, tmp_path: Path, version: str) -> None:
    """With both versions of TLS; with 1.2 by a cipher that keeps what was sent secret if the key
    becomes known later. A client without a key does not get in."""
    server = start_with(
        start_server, listener(key_file(tmp_path, f"sensor7:{KEY}\n"), tls_psk_hint="plant")
    )
    Admin(server).add("sensor7")
    assert OPENSSL is not None
    address = f"127.0.0.1:{addresses(server)['devices']}"
    command = [OPENSSL, "s_client", "-connect", address, version]

    def connects(*more: str) -> tuple[bool, str]:
        """Whether it does, and what it shows."""
        done = subprocess.run(
            [*command, *more],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode == 0, done.stdout

    done, found = connects("-psk", KEY, "-psk_identity", "sensor7")
    assert done
    assert "Cipher is ECDHE-PSK-" in found or "TLSv1.3, Cipher is TLS_" in found
    if version == "-tls1_2":
        assert "PSK identity hint: plant" in found
    assert not connects("-psk", OTHER, "-psk_identity", "sensor7")[0]
    assert not connects()[0]


@NEEDS_KEYS
def test_files_that_are_wrong(start_server: StartServer, tmp_path: Path) -> None:
    """One line says what is wrong, and the server does not start."""
    cases = {
        "sensor7\n": "line 1: there is no colon",
        "# a\n\n:00\n": "line 3: an identity has 1 to 128 bytes",
        "a:00\n": "line 1: the key has 1 bytes: make it 16 to 256",
        f"a:{KEY}\nb:{KEY}\na:{OTHER}\n": "line 3: identity 'a' is there twice",
    }
    for text, said in cases.items():
        assert said in refusal(start_server, listener(key_file(tmp_path, text)))
    path = key_file(tmp_path, f"a:{KEY}\n")
    path.chmod(0o644)
    assert "can be read by others" in refusal(start_server, listener(path))
    assert "cannot be read" in refusal(start_server, listener(tmp_path / "none"))


@pytest.mark.skipif(not NO_KEYS, reason="this Python has pre-shared keys")
def test_a_python_without_them(start_server: StartServer, tmp_path: Path) -> None:
    """The server says which one it needs, and does not start."""
    line = refusal(start_server, listener(key_file(tmp_path, f"a:{KEY}\n")))
    assert "mqtt listener devices: tls_psk_file needs Python 3.13 or later" in line


def test_settings_that_contradict_each_other(start_server: StartServer, tmp_path: Path) -> None:
    """Keys and certificates at one listener, and keys where there is no TLS."""
    path = key_file(tmp_path, f"a:{KEY}\n")
    for more, said in (
        ({"tls_crl": "x"}, "tls_crl is not for a listener with tls_psk_file"),
        ({"tls": False}, "tls_psk_file is for a listener with TLS"),
        ({"type": "websocket"}, "tls_psk_file is for a listener of type tcp"),
        ({"tls_psk_file": "", "tls_psk_hint": "x"}, "tls_psk_hint needs tls_psk_file"),
    ):
        assert said in refusal(start_server, listener(path, **more))
