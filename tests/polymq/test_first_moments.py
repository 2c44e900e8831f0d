"""What may go wrong while the program is still loading."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from polymq import name_server, serve
from polymq.__main__ import run


@pytest.fixture
def hangups() -> Iterator[None]:
    """Leaves the handler as it was."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize(
    ("command", "module", "function"),
    [("serve", serve, "run_server"), ("namesrv", name_server, "run_name_server")],
)
def test_a_hangup_is_ignored_before_there_is_a_server(
    command: str, module: object, function: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []

    def loading(*_: object, **__: object) -> int:
        found.append(signal.getsignal(signal.SIGHUP))
        return 0

    monkeypatch.setattr(module, function, loading)
    assert run([command, "--data-directory", str(tmp_path)]) == 0
    assert found == [signal.SIG_IGN]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.usefixtures("hangups")
def test_too_few_descriptors_are_one_line(
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wherever the first one is missing: while a module is loaded, say."""

    def loading(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number), "/somewhere/limits.py")

    monkeypatch.setattr(serve, "run_server", loading)
    assert run(["serve", "--data-directory", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "ulimit -n" in told
