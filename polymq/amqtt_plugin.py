"""Logins that an authentication plugin of amqtt decides: `LoginService`. Needs `polymq[amqtt]`.

Rules:

* A plugin is somebody else's code, and some of them block. It has a thread and a loop of its own,
  so that it holds up nothing but other questions to it.
* True is `allow`, False is `deny`, None is `ignore`. An exception, another value, and no answer in
  time decide nothing. A question that has timed out is not taken back: the plugin may still be busy
  with it, and when too many of these are left, further ones fail at once.
* A plugin says nothing about permissions. Whoever it lets in has those that the settings name.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
import tomllib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from polymq.broker.accounts.granting import BadPermissions, parse_permissions
from polymq.broker.accounts.login_answers import Question, Result, Verdict
from polymq.errors import ExitCode, Failure
from polymq.login_settings import LoginServiceSettings

START_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 5.0
LEFT_MAX_FACTOR: Final = 4
"""Unfinished questions, in questions that may be asked at a time."""
_LOGGER: Final = "polymq.amqtt"
_RESULTS: Final = {True: Result.ALLOW, False: Result.DENY, None: Result.IGNORE}

Answer = Callable[[Verdict | str], None]


class AmqttPlugin:
    """See the head of this file.

    Raises:
        Failure: USAGE, there is no such plugin, or its files cannot be used.

    Attributes:
        failures: of questions, by kind (a metric).
    """

    def __init__(self, settings: LoginServiceSettings) -> None:
        self._settings = settings
        self._config = _config_of(settings.amqtt_config_file)
        self._class = _class_of(settings.amqtt_plugin)
        self._session_class: Any = importlib.import_module("amqtt.session").Session
        self._permissions = {"pub": settings.amqtt_publish, "sub": settings.amqtt_subscribe}
        try:
            parse_permissions(self._permissions, "user")
        except BadPermissions as error:
            raise _wrong(f"amqtt_publish or amqtt_subscribe is wrong: {error}") from error
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="polymq-amqtt", daemon=True)
        self._plugin: Any = None
        self._left = 0
        self._tasks: set[asyncio.Task[None]] = set()  # of the plugin's loop
        self.failures = dict.fromkeys(("timeout", "error"), 0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def start(self) -> None:
        """Make the plugin, in its own thread. Raises Failure: USAGE, it cannot be made."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        made = asyncio.run_coroutine_threadsafe(self._make(), self._loop)
        try:
            made.result(START_SECONDS_MAX)
        except Exception as error:
            text = f"amqtt_plugin {self._settings.amqtt_plugin} cannot be made: "
            raise _wrong(text + (str(error) or type(error).__name__)) from error

    async def _make(self) -> None:
        base = importlib.import_module("amqtt.plugins.base").BasePlugin
        context = importlib.import_module("amqtt.contexts").BaseContext()
        context.loop, context.logger = self._loop, logging.getLogger(_LOGGER)
        config: Any = {"auth": self._config}  # what plugins without a Config look into
        if self._class.Config is not base.Config:
            dacite = importlib.import_module("dacite")
            strict = dacite.Config(strict=True, cast=[Path])
            config = dacite.from_dict(self._class.Config, self._config, config=strict)
        context.config = config
        self._plugin = self._class(context)

    async def stop(self) -> None:
        """Close the plugin, if it lets itself be closed in time."""
        if not self._thread.is_alive():
            return
        closing: Future[None] = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await asyncio.wrap_future(closing)
        except Exception:
            logging.getLogger(_LOGGER).warning("the plugin was not closed", exc_info=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, STOP_SECONDS_MAX)

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._plugin is not None:
            await self._plugin.close()

    def ask(self, question: Question, answer: Answer) -> None:
        """See `LoginService`."""
        loop = asyncio.get_running_loop()
        if self._left >= LEFT_MAX_FACTOR * self._settings.calls_max:
            self.failures["timeout"] += 1
            loop.call_soon(answer, "the plugin has not answered the questions before")
            return
        self._left += 1
        waiting = [answer]

        def late() -> None:
            self.failures["timeout"] += 1
            seconds = self._settings.timeout_seconds
            waiting.pop()(f"the plugin has not answered within {seconds:g} seconds")

        timer = loop.call_later(self._settings.timeout_seconds, late)

        def known(found: Verdict | str) -> None:
            self._left -= 1
            timer.cancel()
            if waiting:
                if isinstance(found, str):
                    self.failures["error"] += 1
                waiting.pop()(found)

        def tell(found: Verdict | str) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(known, found)

        self._loop.call_soon_threadsafe(self._begin, question, tell)

    # --- in the plugin's thread -----------------------------------------------------------

    def _begin(self, question: Question, tell: Answer) -> None:
        task = self._loop.create_task(self._authenticate(question, tell))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _authenticate(self, question: Question, tell: Answer) -> None:
        found: Verdict | str = "the plugin was closed"
        try:
            session = self._session_class()
            session.client_id = question.origin.client_id
            session.username, session.password = question.user, question.password
            session.remote_address = question.address
            result = await self._plugin.authenticate(session=session)
            found = self._verdict(question.user, result)
        except Exception as error:
            logging.getLogger(_LOGGER).warning("the plugin failed", exc_info=True)
            found = f"the plugin failed: {str(error) or type(error).__name__}"
        finally:
            tell(found)

    def _verdict(self, user: str, result: object) -> Verdict | str:
        if not isinstance(result, bool | None):
            return f"the plugin answers {type(result).__name__}, which is none of bool and None"
        rules = parse_permissions(self._permissions, user) if result else ()
        return Verdict(result=_RESULTS[result], rules=rules)


def _class_of(name: str) -> Any:
    """The plugin's class. Raises Failure."""
    module, _, attribute = name.rpartition(".")
    try:
        base = importlib.import_module("amqtt.plugins.base").BaseAuthPlugin
    except ImportError as error:
        text = "amqtt_plugin needs amqtt: install it with `pip install 'polymq[amqtt]'`"
        raise _wrong(text) from error
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise _wrong(f"amqtt_plugin {name} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise _wrong(f"amqtt_plugin {name} is no amqtt.plugins.base.BaseAuthPlugin")
    return found


def _config_of(file: str) -> dict[str, Any]:
    if not file:
        return {}
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(f"amqtt_config_file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"amqtt_config_file {file} is not TOML: {error}") from error


def _wrong(text: str) -> Failure:
    return Failure(ExitCode.USAGE, " ".join(f"[login_service] {text}".split()))
