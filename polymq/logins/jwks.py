"""The set of public keys that an issuer of tokens publishes (JWKS, RFC 7517), fetched and kept.

Rules:

* It is fetched at the start, then every `jwks_refresh_seconds`, and when a token names a key that
  is not in it, but that not more often than every `UNKNOWN_SECONDS`: anybody can write such a
  token.
* What cannot be fetched or used changes nothing: the last good set goes on. The next attempt comes
  sooner than the usual one, and each failure is logged and counted. Until then it is not known
  which keys there are.
* Keys are parsed in a thread: a hundred take tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from polymq.login_settings import JwtSettings
from polymq.logins.outside_http import Caller, CallFailed, client_tls
from polymq.logs import logger
from polymq.metrics.registry import Probe, counter, gauge

SET_BYTES_MAX: Final = 256 * 1024
FETCH_SECONDS_MAX: Final = 10.0
RETRY_SECONDS: Final = 5.0
"""After the first failure; twice as long after each further one."""
UNKNOWN_SECONDS: Final = 10.0


class KeySet:
    """Fetches the set, again and again.

    Args:
        take: uses what was fetched; called in a thread. Returns how many keys there are. Raises
            ValueError: it cannot be used.
    """

    def __init__(self, settings: JwtSettings, take: Callable[[bytes], int]) -> None:
        self._settings = settings
        self._take = take
        self._tls = client_tls(settings.jwks_ca, "jwt.jwks_ca")
        self._caller: Caller | None = None
        self._former: list[Caller] = []  # to be closed when nothing is fetched
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._fetching = False
        self._has_failed = False
        self._begun_at = float("-inf")
        self._keys_count = 0
        self._fetched_at = 0.0
        self._results = {"fetched": 0, "failed": 0}

    def start(self) -> None:
        """Begin, on the running loop."""
        self._call()
        self._fetching = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    def prepare(self, settings: JwtSettings) -> Callable[[], None]:
        """Read the files of other settings, maybe in a thread. Returns what goes on with them, on
        the loop: the set is fetched again. Raises Failure."""
        tls = client_tls(settings.jwks_ca, "jwt.jwks_ca")

        def apply() -> None:
            self._settings, self._tls = settings, tls
            if self._caller is not None:
                self._former.append(self._caller)
            self._call()
            self._fetching = True
            self._wake.set()

        return apply

    def _call(self) -> None:
        self._caller = Caller(
            self._settings.jwks_url,
            self._tls,
            connections_max=1,
            seconds_max=FETCH_SECONDS_MAX,
            size_max=SET_BYTES_MAX,
        )

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._caller is not None:
            self._former.append(self._caller)
        await self._close_former()

    async def _close_former(self) -> None:
        while self._former:
            await self._former.pop().close()

    def want(self) -> bool:
        """Somebody names a key that is not there. Returns whether it may be there in a moment: the
        set is being fetched now, or the last attempt has failed."""
        if not self._fetching and time.monotonic() - self._begun_at >= UNKNOWN_SECONDS:
            self._fetching = True
            self._wake.set()
        return self._fetching or self._has_failed

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            failures = 0 if await self._fetch() else failures + 1
            await self._close_former()
            seconds = self._settings.jwks_refresh_seconds
            if failures:
                seconds = min(seconds, RETRY_SECONDS * 2 ** min(failures - 1, 16))
            self._fetching = self._wake.is_set()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                self._fetching = True

    async def _fetch(self) -> bool:
        assert self._caller is not None
        self._begun_at = time.monotonic()
        try:
            body = await self._caller.call("GET")
            count = await asyncio.to_thread(self._take, body)
        except (CallFailed, ValueError) as error:
            self._results["failed"] += 1
            self._has_failed = True
            logger("polymq").warning(
                "the keys of tokens were not fetched",
                url=self._settings.jwks_url,
                reason=str(error),
                keys=self._keys_count,
            )
            return False
        self._results["fetched"] += 1
        self._has_failed = False
        self._fetched_at = time.time()
        if count != self._keys_count:
            logger("polymq").info("the keys of tokens were fetched", keys=count)
        self._keys_count = count
        return True

    def probes(self) -> list[Probe]:
        """What operators see."""
        return [
            counter(
                "polymq_jwks_fetches",
                "Attempts to fetch the keys of tokens (jwt.jwks_url).",
                lambda: self._results,
                label="result",
            ),
            gauge(
                "polymq_jwks_keys",
                "Keys of tokens that were fetched and are in use.",
                lambda: self._keys_count,
            ),
            gauge(
                "polymq_jwks_fetched_timestamp_seconds",
                "When the keys of tokens were last fetched, since the epoch. 0: not yet.",
                lambda: self._fetched_at,
            ),
        ]
