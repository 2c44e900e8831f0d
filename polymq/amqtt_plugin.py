"""Asks a plugin of amqtt: an authentication plugin about logins (`LoginService`), a topic plugin
about permissions (`PermissionService`). Needs `polymq[amqtt]`.

Rules:

* A plugin is somebody else's code, and some of them block. It has a thread and a loop of its own,
  so that it holds up nothing but other questions to it.
* True is `allow`, False is `deny`, None is `ignore`. An exception, another value, and no answer in
  time decide nothing. A question that has timed out is not taken back: the plugin may still be busy
  with it, and when too many of these are left, further ones fail at once.
* An authentication plugin says nothing about permissions. Whoever it lets in has those that the
  settings name.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
import tomllib
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from polymq.asked_settings import AskedSettings, PermissionServiceSettings
from polymq.broker.accounts.granting import BadPermissions, parse_permissions
from polymq.broker.accounts.login_answers import Question, Verdict
from polymq.broker.accounts.permission_answers import PermissionQuestion
from polymq.broker.accounts.service_answers import Result
from polymq.errors import ExitCode, Failure
from polymq.login_settings import LoginServiceSettings

START_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 5.0
LEFT_MAX_FACTOR: Final = 4
"""Unfinished questions, in questions that may be asked at a time."""
_LOGGER: Final = "polymq.amqtt"
_RESULTS: Final = {True: Result.ALLOW, False: Result.DENY, None: Result.IGNORE}

Q = TypeVar("Q")
V = TypeVar("V")


class AmqttPlugin(Generic[Q, V]):
    """See the head of this file.

    Raises:
        Failure: USAGE, there is no such plugin, or its files cannot be used.

    Attributes:
        failures: of questions, by kind (a metric).
    """

    section = ""
    """Of the settings, for errors."""
    base = ""
    """The class of amqtt that the plugin has to have as its base."""
    config_section = ""
    """Where plugins without a class `Config` look for their configuration."""

    def __init__(self, settings: AskedSettings) -> None:
        self._settings = settings
        self._config = self._config_of(settings.amqtt_config_file)
        self._class = self._class_of(settings.amqtt_plugin)
        self._session_class: Any = importlib.import_module("amqtt.session").Session
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
            raise self._wrong(text + (str(error) or type(error).__name__)) from error

    async def _make(self) -> None:
        base = importlib.import_module("amqtt.plugins.base").BasePlugin
        context = importlib.import_module("amqtt.contexts").BaseContext()
        context.loop, context.logger = self._loop, logging.getLogger(_LOGGER)
        config: Any = {self.config_section: self._config}  # of plugins without a Config
        if self._class.Config is not base.Config or self._needs_none:
            dacite = importlib.import_module("dacite")
            strict = dacite.Config(strict=True, cast=[Path])
            config = dacite.from_dict(self._class.Config, self._config, config=strict)
        context.config = config
        self._plugin = self._class(context)

    @property
    def _needs_none(self) -> bool:
        """Whether a plugin without a configuration has its empty `Config`, as amqtt's own server
        gives it."""
        return False

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

    def ask(self, question: Q, answer: Callable[[V | str], None]) -> None:
        """See `AskedService`."""
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

        def known(found: V | str) -> None:
            self._left -= 1
            timer.cancel()
            if waiting:
                if isinstance(found, str):
                    self.failures["error"] += 1
                waiting.pop()(found)

        def tell(found: V | str) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(known, found)

        self._loop.call_soon_threadsafe(self._begin, question, tell)

    # --- in the plugin's thread -----------------------------------------------------------

    def _begin(self, question: Q, tell: Callable[[V | str], None]) -> None:
        task = self._loop.create_task(self._decide(question, tell))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _decide(self, question: Q, tell: Callable[[V | str], None]) -> None:
        found: V | str = "the plugin was closed"
        try:
            result = await self._call(self._plugin, question)
            if isinstance(result, bool | None):
                found = self._verdict(question, _RESULTS[result])
            else:
                name = type(result).__name__
                found = f"the plugin answers {name}, which is none of bool and None"
        except Exception as error:
            logging.getLogger(_LOGGER).warning("the plugin failed", exc_info=True)
            found = f"the plugin failed: {str(error) or type(error).__name__}"
        finally:
            tell(found)

    @abstractmethod
    async def _call(self, plugin: Any, question: Q) -> object:
        """Call the plugin's method."""

    @abstractmethod
    def _verdict(self, question: Q, result: Result) -> V:
        """What its result means."""

    # --- its settings -----------------------------------------------------------------------

    def _class_of(self, name: str) -> Any:
        """The plugin's class. Raises Failure."""
        module, _, attribute = name.rpartition(".")
        try:
            base = getattr(importlib.import_module("amqtt.plugins.base"), self.base)
        except ImportError as error:
            text = "amqtt_plugin needs amqtt: install it with `pip install 'polymq[amqtt]'`"
            raise self._wrong(text) from error
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise self._wrong(f"amqtt_plugin {name} cannot be imported: {error}") from error
        if not (isinstance(found, type) and issubclass(found, base)):
            raise self._wrong(f"amqtt_plugin {name} is no amqtt.plugins.base.{self.base}")
        return found

    def _config_of(self, file: str) -> dict[str, Any]:
        if not file:
            return {}
        try:
            return tomllib.loads(Path(file).read_text(encoding="utf-8"))
        except OSError as error:
            text = f"amqtt_config_file {file} cannot be read: {error.strerror}"
            raise self._wrong(text) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise self._wrong(f"amqtt_config_file {file} is not TOML: {error}") from error

    def _wrong(self, text: str) -> Failure:
        return Failure(ExitCode.USAGE, " ".join(f"[{self.section}] {text}".split()))


class AmqttLoginPlugin(AmqttPlugin[Question, Verdict]):
    """An authentication plugin."""

    section = "login_service"
    base = "BaseAuthPlugin"
    config_section = "auth"

    def __init__(self, settings: LoginServiceSettings) -> None:
        super().__init__(settings)
        self._permissions = {"pub": settings.amqtt_publish, "sub": settings.amqtt_subscribe}
        try:
            parse_permissions(self._permissions, "user")
        except BadPermissions as error:
            text = f"amqtt_publish or amqtt_subscribe is wrong: {error}"
            raise self._wrong(text) from error

    async def _call(self, plugin: Any, question: Question) -> object:
        session = self._session_class()
        session.client_id = question.origin.client_id
        session.username, session.password = question.user, question.password
        session.remote_address = question.address
        found: object = await plugin.authenticate(session=session)
        return found

    def _verdict(self, question: Question, result: Result) -> Verdict:
        is_in = result is Result.ALLOW
        rules = parse_permissions(self._permissions, question.user) if is_in else ()
        return Verdict(result=result, rules=rules)


class AmqttTopicPlugin(AmqttPlugin[PermissionQuestion, Result]):
    """A topic plugin."""

    section = "permission_service"
    base = "BaseTopicPlugin"
    config_section = "topic-check"

    def __init__(self, settings: PermissionServiceSettings) -> None:
        super().__init__(settings)
        actions: Any = importlib.import_module("amqtt.contexts").Action
        self._actions = {"publish": actions.PUBLISH, "subscribe": actions.SUBSCRIBE}

    @property
    def _needs_none(self) -> bool:
        return not self._config

    async def _call(self, plugin: Any, question: PermissionQuestion) -> object:
        client = question.client
        session = self._session_class()
        session.client_id, session.remote_address = client.client_id, client.address
        session.username = client.user or None
        found: object = await plugin.topic_filtering(
            session=session, topic=question.topic, action=self._actions[question.action]
        )
        return found

    def _verdict(self, question: PermissionQuestion, result: Result) -> Result:
        return result
