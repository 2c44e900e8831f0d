"""Asks a plugin of amqtt: an authentication plugin about logins (`LoginService`), a topic plugin
about permissions (`PermissionService`). Needs `polymq[amqtt]`.

Rules:

* A plugin is somebody else's code, and some of them block. It has a thread and a loop of its own,
  so that it holds up nothing but other questions to it.
* True is `allow`, False is `deny`, None is `ignore`. An exception of whatever kind, another value,
  and no answer in time decide nothing. A question that has timed out is not taken back: the plugin
  may still be busy with it, and when too many of these are left, further ones fail at once.
* A plugin that stops its loop, or ends it by SystemExit in a task of its own, gets it back after a
  pause, which becomes longer if that happens again. If it has closed the loop, it is made anew.
* An authentication plugin says nothing about permissions. Whoever it lets in has those that the
  settings name.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
import time
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
PAUSE_SECONDS: Final = 0.1
"""Before a loop that has ended goes on; twice as long each time, until it has run for a while."""
PAUSE_SECONDS_MAX: Final = 30.0
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
        self._given = self._configured()
        self._session_class: Any = importlib.import_module("amqtt.session").Session
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="polymq-amqtt", daemon=True)
        self._plugin: Any = None
        self._left = 0
        self._unanswered: dict[object, Callable[[V | str], None]] = {}
        self._ending = threading.Event()
        self._is_down = False
        self._tasks: set[asyncio.Task[None]] = set()  # of the plugin's loop
        self.failures = dict.fromkeys(("timeout", "error"), 0)

    def _configured(self) -> Any:
        """The configuration as the plugin gets it. Raises Failure."""
        base = importlib.import_module("amqtt.plugins.base").BasePlugin
        if self._class.Config is base.Config and not self._needs_none:
            return {self.config_section: self._config}  # of plugins without a Config
        dacite = importlib.import_module("dacite")
        strict = dacite.Config(strict=True, cast=[Path])
        try:
            return dacite.from_dict(self._class.Config, self._config, config=strict)
        except Exception as error:  # of a Config, too
            file, text = self._settings.amqtt_config_file, str(error) or type(error).__name__
            raise self._wrong(f"amqtt_config_file {file} is wrong: {text}") from error

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        pause = PAUSE_SECONDS
        while True:
            began, cause = time.monotonic(), None
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001  (it is logged below, and the loop goes on)
                cause = error
            self._is_down = True
            if self._ending.is_set():
                break
            if time.monotonic() - began > PAUSE_SECONDS_MAX:
                pause = PAUSE_SECONDS
            logging.getLogger(_LOGGER).error(
                "the plugin has ended its event loop, which goes on in %g seconds",
                pause,
                exc_info=cause,
            )
            if self._ending.wait(pause):
                break
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
            if not self._loop.is_closed() or self._is_made_anew():
                self._is_down = False
        self._loop.close()

    def _is_made_anew(self) -> bool:
        """Make the plugin with a new loop, as its own is closed. Returns whether that is done."""
        for tell in list(self._unanswered.values()):
            tell("the plugin has closed its event loop")
        self._tasks.clear()
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._make(loop))
        except (Exception, SystemExit, KeyboardInterrupt):
            logging.getLogger(_LOGGER).exception("the plugin cannot be made anew")
            loop.close()
            return False
        self._loop = loop
        return True

    def prepare(self, settings: AskedSettings) -> Callable[[], None]:
        """What goes on with the limits of other settings: the plugin stays as it is."""

        def apply() -> None:
            self._settings = settings

        return apply

    def start(self) -> None:
        """Make the plugin, in its own thread. Raises Failure: USAGE, it cannot be made."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        made = asyncio.run_coroutine_threadsafe(self._make(self._loop), self._loop)
        try:
            made.result(START_SECONDS_MAX)
        except Exception as error:
            text = f"amqtt_plugin {self._settings.amqtt_plugin} cannot be made: "
            raise self._wrong(text + (str(error) or type(error).__name__)) from error

    async def _make(self, loop: asyncio.AbstractEventLoop) -> None:
        context = importlib.import_module("amqtt.contexts").BaseContext()
        context.loop, context.logger = loop, logging.getLogger(_LOGGER)
        context.config = self._given
        try:
            self._plugin = self._class(context)
        except (SystemExit, KeyboardInterrupt) as error:  # it would end the loop
            raise RuntimeError(repr(error)) from error

    @property
    def _needs_none(self) -> bool:
        """Whether a plugin without a configuration has its empty `Config`, as amqtt's own server
        gives it."""
        return False

    async def stop(self) -> None:
        """Close the plugin, if it lets itself be closed in time."""
        self._ending.set()
        if not self._thread.is_alive():
            return
        if self._is_down:
            await asyncio.to_thread(self._thread.join, STOP_SECONDS_MAX)
            return
        closing: Future[None] = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await asyncio.wrap_future(closing)
        except Exception:
            logging.getLogger(_LOGGER).warning("the plugin was not closed", exc_info=True)
        if not self._is_down:
            self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, STOP_SECONDS_MAX)

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._plugin is not None:
            try:
                await self._plugin.close()
            except (SystemExit, KeyboardInterrupt) as error:  # it would end the loop
                raise RuntimeError(repr(error)) from error

    def ask(self, question: Q, answer: Callable[[V | str], None]) -> None:
        """See `AskedService`."""
        loop = asyncio.get_running_loop()
        if self._left >= LEFT_MAX_FACTOR * self._settings.calls_max:
            self.failures["timeout"] += 1
            loop.call_soon(answer, "the plugin has not answered the questions before")
            return
        if self._is_down:
            self.failures["error"] += 1
            loop.call_soon(answer, "the plugin has ended its event loop")
            return
        self._left += 1
        waiting = [answer]
        this = object()

        def late() -> None:
            self.failures["timeout"] += 1
            seconds = self._settings.timeout_seconds
            waiting.pop()(f"the plugin has not answered within {seconds:g} seconds")

        timer = loop.call_later(self._settings.timeout_seconds, late)

        def known(found: V | str) -> None:
            if self._unanswered.pop(this, None) is None:
                return  # it was told that the loop is closed
            self._left -= 1
            timer.cancel()
            if waiting:
                if isinstance(found, str):
                    self.failures["error"] += 1
                waiting.pop()(found)

        def tell(found: V | str) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(known, found)

        self._unanswered[this] = tell
        try:
            self._loop.call_soon_threadsafe(self._begin, question, tell)
        except RuntimeError:
            tell("the plugin has closed its event loop")

    # --- in the plugin's thread -----------------------------------------------------------

    def _begin(self, question: Q, tell: Callable[[V | str], None]) -> None:
        task = self._loop.create_task(self._decide(question, tell))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _decide(self, question: Q, tell: Callable[[V | str], None]) -> None:
        found: V | str = "the plugin was closed"
        loop = asyncio.get_running_loop()
        try:
            result = await self._call(self._plugin, question)
            if isinstance(result, bool | None):
                found = self._verdict(question, _RESULTS[result])
            else:
                name = type(result).__name__
                found = f"the plugin answers {name}, which is none of bool and None"
        except (asyncio.CancelledError, GeneratorExit) as error:
            if self._ending.is_set() or loop.is_closed():
                raise
            logging.getLogger(_LOGGER).warning("the plugin failed", exc_info=True)
            found = f"the plugin failed: {error!r}"
        except BaseException as error:  # SystemExit would end the loop, and all questions with it
            logging.getLogger(_LOGGER).warning("the plugin failed", exc_info=True)
            text = str(error) if isinstance(error, Exception) else repr(error)
            found = f"the plugin failed: {text or type(error).__name__}"
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
