"""`polymq console`: where it listens, with which certificate, and whom it lets in."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from polymq.commands import console as console_command
from polymq.commands.console import console
from polymq.errors import ExitCode, Failure

pytest.importorskip("nicegui", reason="needs the extra `console`")

from polymq.console import app
from polymq.console.api import ApiError, Broker
from polymq.console.logins import Logins
from polymq.console.shell import Console, enter

FILES = Path(__file__).parents[3] / "interop_tests" / "certificates"


@pytest.fixture(autouse=True)
def _serves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that is not refused would be served until a signal."""

    def serve(*_: object, **__: object) -> None:
        raise AssertionError("it is served")

    monkeypatch.setattr(app, "serve_console", serve)
    monkeypatch.setattr(console_command, "_listen", lambda *_: socket.socket())


def refusal(*options: str) -> str:
    with pytest.raises(Failure) as refused:
        CliRunner().invoke(console, options, catch_exceptions=False)
    assert refused.value.code is ExitCode.USAGE
    return refused.value.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_tls_or_a_word(host: str) -> None:
    """Else passwords cross the network, and nobody has decided that they may."""
    text = refusal("--host", host)
    assert text == f"a console at {host} needs a certificate (--certificate), or --allow-plain"


def test_a_certificate_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    key = shutil.copy(FILES / "client.key", tmp_path)
    Path(key).chmod(0o600)
    missing, own = str(tmp_path / "none.pem"), str(FILES / "server.pem")
    assert "none.pem cannot be read: No such file" in refusal("--certificate", missing)
    assert "is not the key of the certificate" in refusal("--certificate", own, "--key", str(key))
    assert "TLS needs a certificate and a key" in refusal("--key", str(key))


class OpenBroker:
    """It has no users: whoever asks may do everything."""

    async def ask(self, *_: Any) -> Any:
        return {"name": "(nobody: there are no users)", "rights": ["monitor", "operate", "admin"]}


@pytest.mark.parametrize("user", ["", "ann"])
def test_other_machines_get_no_broker_without_users(user: str) -> None:
    """It trusts its own machine, where the console is, and not those that reach the console."""
    far = Console(cast(Broker, OpenBroker()), Logins(lambda: 0.0), is_local=False)
    with pytest.raises(ApiError, match="polymq user add"):
        asyncio.run(enter(far, user, "secret"))
