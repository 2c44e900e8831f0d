"""Logins that a plugin of amqtt decides: what it is given, what its answers mean, and that a plugin
that fails, blocks or is none lets nobody in."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.accounts.login_answers import Question, Verdict
from polymq.broker.accounts.service_answers import Result
from polymq.broker.port import Origin
from polymq.errors import Failure
from polymq.login_settings import LoginServiceSettings
from polymq.logins.amqtt_plugin import LEFT_MAX_FACTOR, PAUSE_SECONDS, AmqttLoginPlugin
from polymq.open_store import open_store
from polymq.settings import ServerSettings, Settings

Base: Any = pytest.importorskip(
    "amqtt.plugins.base", reason="polymq[amqtt] is not installed"
).BaseAuthPlugin

HERE = f"{__name__}."
blocked = threading.Event()


ENDS = {
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
    "cancel": asyncio.CancelledError(),
    "base": BaseException("of its own"),
}


def close_when_stopped(loop: asyncio.AbstractEventLoop) -> None:
    while loop.is_running():
        pass
    loop.close()


class Answering(Base):  # type: ignore[misc]  # amqtt has no types
    """Answers what its configuration says about the user."""

    @dataclass
    class Config:
        answers: dict[str, Any]

    async def authenticate(self, *, session: Any) -> Any:
        answer = self.config.answers[session.username]
        if answer == "none":
            return None
        if answer == "session":
            return [session.username, session.password, session.client_id, session.remote_address]
        if answer == "block":
            return blocked.wait()
        if answer == "hang":
            await asyncio.Event().wait()
        if answer in ENDS:
            raise ENDS[answer]
        if answer == "exit in a task":
            asyncio.get_running_loop().call_soon(sys.exit, 4)
            return True
        if answer == "stop":
            asyncio.get_running_loop().stop()
            return True
        if answer == "close":
            loop = asyncio.get_running_loop()
            loop.stop()
            closing = threading.Thread(target=close_when_stopped, args=(loop,))
            closing.start()
            await asyncio.Event().wait()
        return answer


class Old(Base):  # type: ignore[misc]
    """Without a Config: looks into the section `auth`."""

    async def authenticate(self, *, session: Any) -> Any:
        return session.username in self.auth_config["users"]


class Broken(Base):  # type: ignore[misc]
    def __init__(self, context: Any) -> None:
        raise RuntimeError("it has no database")


class Leaving(Base):  # type: ignore[misc]
    def __init__(self, context: Any) -> None:
        sys.exit(1)


def plugin_of(
    tmp_path: Path, name: str = "Answering", text: str = "", **more: Any
) -> AmqttLoginPlugin:
    file = tmp_path / "plugin.toml"
    file.write_text(text or 'answers = {yes = true, no = false, nobody = "none"}')
    return AmqttLoginPlugin(
        LoginServiceSettings(amqtt_plugin=HERE + name, amqtt_config_file=str(file), **more)
    )


async def answer_of(plugin: AmqttLoginPlugin, user: str) -> Verdict | str:
    known: asyncio.Future[Verdict | str] = asyncio.get_running_loop().create_future()
    question = Question(user=user, password="pw", address="10.0.0.1", origin=Origin(client_id="c"))
    plugin.ask(question, known.set_result)
    return await known


def run(plugin: AmqttLoginPlugin, act: Callable[[], Awaitable[None]]) -> None:
    """With the plugin started; and stopped, whatever comes."""

    async def main() -> None:
        plugin.start()
        try:
            await act()
        finally:
            blocked.set()
            await plugin.stop()
            blocked.clear()

    asyncio.run(main())


def test_answers(tmp_path: Path) -> None:
    plugin = plugin_of(tmp_path, amqtt_publish=["${username}/#"], amqtt_subscribe=["b"])

    async def act() -> None:
        found = await answer_of(plugin, "yes")
        assert isinstance(found, Verdict)
        assert [str(rule) for rule in found.rules] == [
            "allow yes publish {exact}/{user}/#",
            "allow yes create {exact}/{user}/#",
            "allow yes subscribe b",
        ]
        assert await answer_of(plugin, "no") == Verdict(result=Result.DENY)
        assert await answer_of(plugin, "nobody") == Verdict(result=Result.IGNORE)
        assert await answer_of(plugin, "unknown") == "the plugin failed: 'unknown'"
        assert plugin.failures == {"timeout": 0, "error": 1}

    run(plugin, act)


def test_what_is_no_answer_decides_nothing(tmp_path: Path) -> None:
    plugin = plugin_of(tmp_path, text='answers = {a = 1, b = "yes", c = "session"}')

    async def act() -> None:
        for user in "abc":
            found = await answer_of(plugin, user)
            assert isinstance(found, str)
            assert "none of bool and None" in found

    run(plugin, act)


def test_what_the_plugin_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = plugin_of(tmp_path, text='answers = {ann = "session"}')
    given: list[object] = []

    call = plugin._call

    async def note(made: object, question: Question) -> object:
        given.append(await call(made, question))
        return None

    monkeypatch.setattr(plugin, "_call", note)

    async def act() -> None:
        await answer_of(plugin, "ann")
        assert given == [["ann", "pw", "c", "10.0.0.1"]]

    run(plugin, act)


def test_a_plugin_of_the_old_style(tmp_path: Path) -> None:
    plugin = plugin_of(tmp_path, "Old", 'users = ["ann"]')

    async def act() -> None:
        found = [await answer_of(plugin, user) for user in ("ann", "bob")]
        assert found == [Verdict(result=Result.ALLOW), Verdict(result=Result.DENY)]

    run(plugin, act)


@pytest.mark.parametrize("way", ["hang", "block"])
def test_a_plugin_that_does_not_answer(tmp_path: Path, way: str) -> None:
    """The loop goes on, and too many questions that are left are not added to."""
    plugin = plugin_of(
        tmp_path, text=f'answers = {{ann = "{way}"}}', timeout_seconds=0.2, calls_max=2
    )

    async def act() -> None:
        longest = LEFT_MAX_FACTOR * 2
        began = time.monotonic()
        found = await asyncio.gather(*(answer_of(plugin, "ann") for _ in range(longest + 1)))
        assert time.monotonic() - began < 2
        assert found[:-1] == ["the plugin has not answered within 0.2 seconds"] * longest
        assert found[-1] == "the plugin has not answered the questions before"
        assert plugin.failures["timeout"] == longest + 1
        if way == "block":  # it goes on, and so do the questions
            blocked.set()
            while plugin._left:
                await asyncio.to_thread(bool)  # for the loop to take what came
            blocked.clear()

    run(plugin, act)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("exit", "the plugin failed: SystemExit(3)"),
        ("interrupt", "the plugin failed: KeyboardInterrupt()"),
        ("generator", "the plugin failed: GeneratorExit()"),
        ("cancel", "the plugin failed: CancelledError()"),
        ("base", "the plugin failed: BaseException('of its own')"),
    ],
)
def test_an_exception_that_would_end_a_program_is_one_of_one_login(
    tmp_path: Path, way: str, text: str
) -> None:
    plugin = plugin_of(tmp_path, text=f'answers = {{ann = "{way}", bob = true}}')

    async def act() -> None:
        assert await answer_of(plugin, "ann") == text
        assert await answer_of(plugin, "bob") == Verdict(result=Result.ALLOW)
        assert plugin.failures == {"timeout": 0, "error": 1}

    run(plugin, act)


@pytest.mark.parametrize("way", ["exit in a task", "stop", "close"])
def test_a_loop_that_the_plugin_ends_goes_on(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After a pause, in which nobody comes in."""
    text = f'answers = {{ann = "{way}", bob = true}}'
    plugin = plugin_of(tmp_path, text=text, timeout_seconds=2)

    async def act() -> None:
        for _ in range(2):
            if way == "close":
                assert await answer_of(plugin, "ann") == "the plugin has closed its event loop"
            else:
                assert await answer_of(plugin, "ann") == Verdict(result=Result.ALLOW)
            async with asyncio.timeout(10):
                while (found := await answer_of(plugin, "bob")) != Verdict(result=Result.ALLOW):
                    assert found in (
                        "the plugin has ended its event loop",
                        "the plugin has closed its event loop",
                    )
        assert plugin._left == 0
        assert plugin.failures["timeout"] == 0

    run(plugin, act)
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    said = [each.message for each in errors if each.name == "polymq.amqtt"]
    assert said == [
        f"the plugin has ended its event loop, which goes on in {pause:g} seconds"
        for pause in (PAUSE_SECONDS, 2 * PAUSE_SECONDS)
    ]


def test_a_plugin_that_ends_its_loop_can_be_stopped(tmp_path: Path) -> None:
    """While it waits to go on, too."""
    plugin = plugin_of(tmp_path, text='answers = {ann = "stop"}')

    async def act() -> None:
        await answer_of(plugin, "ann")
        while not plugin._is_down:
            await asyncio.to_thread(bool)

    run(plugin, act)
    assert not plugin._thread.is_alive()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Nothing", "cannot be imported"),
        ("HERE", "is no amqtt.plugins.base.BaseAuthPlugin"),
        ("Verdict", "is no amqtt.plugins.base.BaseAuthPlugin"),
    ],
)
def test_what_is_no_plugin(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(Failure, match=text):
        plugin_of(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("Broken", "", "it has no database"),
        ("Leaving", "", "SystemExit"),
    ],
)
def test_a_plugin_that_cannot_be_made(tmp_path: Path, name: str, config: str, text: str) -> None:
    plugin = plugin_of(tmp_path, name, config)

    async def main() -> None:
        with pytest.raises(Failure, match=text):
            plugin.start()
        await plugin.stop()

    asyncio.run(main())


@pytest.mark.parametrize("text", ["answers = 1", "answer = {}", "answers = {}\nmore = 1"])
def test_a_configuration_that_the_plugin_does_not_take(tmp_path: Path, text: str) -> None:
    """It is said with the other settings: before there is a data directory."""
    with pytest.raises(Failure, match=r"amqtt_config_file .*plugin\.toml is wrong: ") as caught:
        plugin_of(tmp_path, text=text)
    assert "\n" not in str(caught.value)
    data = tmp_path / "data"
    service = LoginServiceSettings(
        amqtt_plugin=HERE + "Answering", amqtt_config_file=str(tmp_path / "plugin.toml")
    )
    settings = Settings(server=ServerSettings(data_directory=data), login_service=service)
    with pytest.raises(Failure, match="is wrong: "):
        open_store(settings)
    assert not data.exists()


def test_files_and_filters_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="is not TOML"):
        plugin_of(tmp_path, text="answers = {")
    with pytest.raises(Failure, match="amqtt_publish or amqtt_subscribe is wrong"):
        plugin_of(tmp_path, amqtt_publish=["$SYS/#"])
    wanted = LoginServiceSettings(
        amqtt_plugin=HERE + "Old", amqtt_config_file=str(tmp_path / "none")
    )
    with pytest.raises(Failure, match="cannot be read"):
        AmqttLoginPlugin(wanted)
    with pytest.raises(ValueError, match="only one of url and amqtt_plugin"):
        LoginServiceSettings(url="https://a/", amqtt_plugin="a.B")
    with pytest.raises(ValueError, match="amqtt_plugin has to be set"):
        LoginServiceSettings(amqtt_publish=["a"])
