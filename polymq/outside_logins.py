"""What decides about logins outside of this server, as it is configured: the keys of tokens."""

from __future__ import annotations

from typing import Any

from polymq.jwks import KeySet
from polymq.metrics import Probe
from polymq.settings import Settings
from polymq.tokens import make_tokens


class OutsideLogins:
    """Makes and runs it.

    Raises:
        Failure: USAGE, a setting or a file cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tokens = make_tokens(settings.jwt)
        self._key_set: KeySet | None = None
        if self._tokens is not None and settings.jwt.jwks_url:
            self._key_set = KeySet(settings.jwt, self._tokens.take_set)
            self._tokens.want_keys = self._key_set.want

    @property
    def engine_options(self) -> dict[str, Any]:
        """What `Engine` has to be given."""
        return {
            "token_checker": self._tokens,
            "outsiders": bool(self._settings.jwt.permissions_claim),
        }

    def start(self) -> None:
        """Begin, on the running loop."""
        if self._key_set is not None:
            self._key_set.start()

    async def stop(self) -> None:
        """End what is under way."""
        if self._key_set is not None:
            await self._key_set.stop()

    def probes(self) -> list[Probe]:
        """What operators see of it."""
        return [] if self._key_set is None else self._key_set.probes()
