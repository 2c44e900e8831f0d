"""Files of TLS that change while a server runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from polymq.errors import Failure
from polymq.settings import TlsSettings
from polymq.tls_files import TlsFiles, TlsWatch

FILES = Path(__file__).parents[2] / "interop_tests" / "certificates"


class Stage:
    """Two listeners with one certificate."""

    def __init__(self, directory: Path) -> None:
        self.certificate, self.key = directory / "a.pem", directory / "a.key"
        self.stamp = 1
        self.put("server", "server")
        self.settings = TlsSettings(certificate=str(self.certificate), key=str(self.key))
        self.files = TlsFiles()
        sources = [self.files.source(self.settings, (), owner) for owner in ("", "one")]
        self.sources = [source for source in sources if source is not None]
        self.files.begin()

    def put(self, certificate: str = "", key: str = "") -> None:
        """Write a certificate, a key, or both."""
        self.stamp += 1
        for name, path in ((f"{certificate}.pem", self.certificate), (f"{key}.key", self.key)):
            if len(name) > 4:
                shutil.copy(FILES / name, path)
                os.utime(path, (self.stamp, self.stamp))
        self.key.chmod(0o600)

    def contexts(self) -> list[ssl.SSLContext]:
        return [source() for source in self.sources]

    def results(self) -> object:
        return self.files.probes()[0].read()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_what_has_not_changed_is_not_read_again(stage: Stage) -> None:
    assert stage.files.changed() is None
    assert stage.files.changed() is None
    assert stage.results() == {"renewed": 0, "failed": 0}


def test_a_change_is_taken_up_when_two_looks_have_found_it(stage: Stage) -> None:
    """By all listeners together; and once."""
    before = stage.contexts()
    stage.put("server", "server")
    assert stage.files.changed() is None
    apply = stage.files.changed()
    assert apply is not None
    assert stage.contexts() == before
    apply()
    assert not set(stage.contexts()) & set(before)
    assert stage.files.changed() is None
    assert stage.results() == {"renewed": 1, "failed": 0}


def test_a_pair_that_does_not_match_is_told_and_counted_once(stage: Stage) -> None:
    """The former one stays in use. The right key makes it whole."""
    before = stage.contexts()
    stage.put(key="client")
    with capture_logs() as logged:
        for _ in range(5):
            assert stage.files.changed() is None
    assert [line["event"] for line in logged] == ["TLS goes on with the former files"]
    assert "is not the key of" in logged[0]["error"]
    assert stage.contexts() == before
    assert stage.results() == {"renewed": 0, "failed": 1}
    stage.put(key="server")
    assert stage.files.changed() is None
    apply = stage.files.changed()
    assert apply is not None
    apply()
    assert stage.results() == {"renewed": 1, "failed": 1}


def test_a_reload_reads_at_once_or_fails_whole(stage: Stage) -> None:
    before = stage.contexts()
    stage.put(key="client")
    with pytest.raises(Failure, match="is not the key of"):
        stage.files.prepare(lambda _owner: stage.settings)
    assert stage.contexts() == before
    stage.put(key="server")
    stage.files.prepare(lambda _owner: stage.settings)()
    assert not set(stage.contexts()) & set(before)


def test_a_look_that_a_reload_overtook_changes_nothing(stage: Stage) -> None:
    """What it has read may be older."""
    stage.put("server", "server")
    stage.files.changed()
    late = stage.files.changed()
    assert late is not None
    stage.files.prepare(lambda _owner: stage.settings)()
    after = stage.contexts()
    late()
    assert stage.contexts() == after


def test_the_interval_of_looks_may_change(stage: Stage) -> None:
    """From never to often."""
    before = stage.contexts()

    async def main() -> None:
        watch = TlsWatch(stage.files, 0)
        watch.start()
        stage.put("server", "server")
        watch.every(0.001)
        async with asyncio.timeout(30):
            while stage.contexts() == before:
                await asyncio.sleep(0)
        await watch.stop()

    asyncio.run(main())
