"""Asks an LDAP directory about logins: `LoginService` (`login_answers.py`). Needs `polymq[ldap]`.

A user comes in if the directory lets the user bind with the password. The entry is found by a
pattern of names, or by a search.

Rules:

* A bind without a password succeeds and proves nothing [RFC 4513 5.1.2], so it is never tried.
* A user name is only ever a value: it is escaped in names [RFC 4514] and in filters [RFC 4515].
* Only what says that the password or the entry is wrong denies. Whatever else goes wrong decides
  nothing.
* The library blocks, so questions are asked in threads, as many as may be with the directory at a
  time. A thread that is not answered in time gives up by itself a while later; its answer is not
  waited for.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from polymq.broker.accounts.granting import BadPermissions, parse_permissions
from polymq.broker.accounts.login_answers import Question, Verdict
from polymq.broker.accounts.service_answers import Result
from polymq.errors import ExitCode, Failure
from polymq.login_settings import USER, LoginServiceSettings
from polymq.logins.outside_http import client_tls
from polymq.secret_file import read_secret_file

PORTS: Final = {"ldap": 389, "ldaps": 636}
INVALID_CREDENTIALS: Final = 49
DENIALS: Final = {32, 34, 48, INVALID_CREDENTIALS}
"""Results of a user's bind that deny: no such entry, no such name, not with a password, and wrong
[RFC 4511 A.2]."""
SUCCESS: Final = 0
ENTRIES_MAX: Final = 2
"""That a search may find: two are one too many already."""


class CannotDecide(Exception):
    """The directory did not say who this is. The text says why."""


class LdapLogins:
    """See the head of this file.

    Raises:
        Failure: USAGE, a file or a setting cannot be used, or the library is not installed.

    Attributes:
        failures: of questions, by kind (a metric).
    """

    def __init__(self, settings: LoginServiceSettings) -> None:
        self._settings = settings
        self._ldap = self._library()
        self._bind_password = ""
        if settings.ldap_bind_password_file:
            file = settings.ldap_bind_password_file
            secret = read_secret_file(file, "login_service.ldap_bind_password_file", size_min=1)
            self._bind_password = secret.decode(errors="surrogateescape")
        self._permissions = {"pub": settings.ldap_publish, "sub": settings.ldap_subscribe}
        try:
            parse_permissions(self._permissions, "user")
        except BadPermissions as error:
            raise self._wrong(f"ldap_publish or ldap_subscribe is wrong: {error}") from error
        client_tls(settings.ca, "login_service.ca")  # the library would say it at the first login
        self._threads: ThreadPoolExecutor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.failures = dict.fromkeys(("timeout", "error"), 0)

    def prepare(self, settings: LoginServiceSettings) -> Callable[[], None]:
        """Read the files of other settings, maybe in a thread. Returns what goes on with them, on
        the loop. Raises Failure."""
        other = LdapLogins(settings)

        def apply() -> None:
            before = self._threads
            self._settings, self._bind_password = settings, other._bind_password
            self._permissions = other._permissions
            self.start()  # `calls_max` may be another one
            if before is not None:
                before.shutdown(wait=False)

        return apply

    def start(self) -> None:
        """Begin, on the running loop."""
        self._threads = ThreadPoolExecutor(self._settings.calls_max, "polymq-ldap")

    async def stop(self) -> None:
        """End what is under way, without waiting for the directory."""
        for task in list(self._tasks):
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def ask(self, question: Question, answer: Callable[[Verdict | str], None]) -> None:
        """See `AskedService`."""
        task = asyncio.get_running_loop().create_task(self._ask(question, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, question: Question, answer: Callable[[Verdict | str], None]) -> None:
        seconds = self._settings.timeout_seconds
        found: Verdict | str
        try:
            async with asyncio.timeout(seconds):
                found = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self.decide, question
                )
        except TimeoutError:
            self.failures["timeout"] += 1
            found = f"the directory has not answered within {seconds:g} seconds"
        except CannotDecide as error:
            self.failures["error"] += 1
            found = str(error)
        answer(found)

    # --- in a thread ------------------------------------------------------------------------

    def decide(self, question: Question) -> Verdict:
        """What the directory says. Raises CannotDecide."""
        if not question.password:
            return Verdict(result=Result.DENY)
        try:
            name = self._name_of(question.user)
            if name is None:
                return Verdict(result=Result.IGNORE)
            code, text = self._bind(name, question.password)
        except CannotDecide:
            raise
        except Exception as error:  # the library may fail at whatever a directory sends
            text = str(error) or type(error).__name__
            raise CannotDecide(f"the directory failed: {text}") from error
        if code in DENIALS:
            return Verdict(result=Result.DENY)
        if code != SUCCESS:
            raise CannotDecide(f"the directory does not let users bind: {text} ({code})")
        rules = parse_permissions(self._permissions, question.user)
        return Verdict(result=Result.ALLOW, rules=rules)

    def _name_of(self, user: str) -> str | None:
        """What the user binds as; None: there is no entry."""
        pattern = self._settings.ldap_user_dn
        if pattern:
            is_dn = "=" in pattern  # else it is a name as Active Directory takes it
            escape = importlib.import_module("ldap3.utils.dn").escape_rdn
            return pattern.replace(USER, escape(user) if is_dn else user)
        return self._search(user)

    def _search(self, user: str) -> str | None:
        settings = self._settings
        escape = importlib.import_module("ldap3.utils.conv").escape_filter_chars
        connection = self._connection(settings.ldap_bind_dn, self._bind_password)
        try:
            if not self._is_bound(connection):
                code, text = _result_of(connection)
                raise CannotDecide(f"the directory does not take ldap_bind_dn: {text} ({code})")
            connection.search(
                settings.ldap_search_base,
                settings.ldap_search_filter.replace(USER, escape(user)),
                attributes=["1.1"],
                size_limit=ENTRIES_MAX,
            )
            code, text = _result_of(connection)
            entries = [one for one in connection.response or () if one["type"] == "searchResEntry"]
        finally:
            connection.unbind()
        if len(entries) > 1:
            raise CannotDecide("ldap_search_filter finds several entries for a user")
        if code != SUCCESS:
            raise CannotDecide(f"the directory does not search: {text} ({code})")
        return str(entries[0]["dn"]) if entries else None

    def _bind(self, name: str, password: str) -> tuple[int, str]:
        connection = self._connection(name, password)
        try:
            self._is_bound(connection)
            return _result_of(connection)
        finally:
            connection.unbind()

    def _is_bound(self, connection: Any) -> bool:
        if self._settings.ldap_start_tls:
            connection.open(read_server_info=False)
            if not connection.start_tls(read_server_info=False):
                raise CannotDecide("the directory does not start TLS")
        return bool(connection.bind(read_server_info=False))

    def _connection(self, name: str, password: str) -> Any:
        return self._ldap.Connection(
            self._server(),
            user=name or None,
            password=password or None,
            receive_timeout=math.ceil(
                self._settings.timeout_seconds
            ),  # the library wants whole ones
            auto_referrals=False,  # a password goes to nobody else
            read_only=True,
        )

    # --- its settings -----------------------------------------------------------------------

    def _library(self) -> Any:
        try:
            return importlib.import_module("ldap3")
        except ImportError as error:
            text = "ldap_url needs ldap3: install it with `pip install 'polymq[ldap]'`"
            raise self._wrong(text) from error

    def _server(self) -> Any:
        """The directory. The library remembers in it that an address did not answer, so each
        connection has its own."""
        settings = self._settings
        parts = urlsplit(settings.ldap_url)
        tls = self._ldap.Tls(validate=ssl.CERT_REQUIRED, ca_certs_file=settings.ca or None)
        return self._ldap.Server(
            parts.hostname,
            parts.port or PORTS[parts.scheme],
            use_ssl=parts.scheme == "ldaps",
            tls=tls,
            get_info=self._ldap.NONE,
            connect_timeout=settings.timeout_seconds,
        )

    def _wrong(self, text: str) -> Failure:
        return Failure(ExitCode.USAGE, " ".join(f"[login_service] {text}".split()))


def _result_of(connection: Any) -> tuple[int, str]:
    """The code and the name of the last result."""
    result = connection.result
    return int(result["result"]), str(result["description"])
