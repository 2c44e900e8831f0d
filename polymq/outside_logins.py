"""What decides about logins outside of this server, as it is configured: the keys of tokens, and a
service that is asked."""

from __future__ import annotations

from polymq.amqtt_plugin import AmqttPlugin
from polymq.broker.accounts.outside import Outside
from polymq.broker.accounts.service_logins import ServiceLimits
from polymq.jwks import KeySet
from polymq.login_service import HttpLoginService
from polymq.metrics import Probe, counter
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
        self._service: HttpLoginService | AmqttPlugin | None = None
        if settings.login_service.url:
            self._service = HttpLoginService(settings.login_service)
        elif settings.login_service.amqtt_plugin:
            self._service = AmqttPlugin(settings.login_service)

    @property
    def for_engine(self) -> Outside:
        """What `Engine` has to be given."""
        wanted = self._settings.login_service
        return Outside(
            token_checker=self._tokens,
            tokens_grant=bool(self._settings.jwt.permissions_claim),
            service=self._service,
            service_limits=ServiceLimits(
                calls_max=wanted.calls_max,
                waiting_max=wanted.waiting_max,
                wait_seconds_max=wanted.timeout_seconds,
                cache_max=wanted.cache_max,
                cache_seconds=wanted.cache_seconds,
                denied_cache_seconds=wanted.denied_cache_seconds,
            ),
        )

    def start(self) -> None:
        """Begin, on the running loop. Raises Failure: USAGE, a plugin cannot be made."""
        if self._key_set is not None:
            self._key_set.start()
        if self._service is not None:
            self._service.start()

    async def stop(self) -> None:
        """End what is under way."""
        if self._key_set is not None:
            await self._key_set.stop()
        if self._service is not None:
            await self._service.stop()

    def probes(self) -> list[Probe]:
        """What operators see of it."""
        found = [] if self._key_set is None else self._key_set.probes()
        service = self._service
        if service is not None:
            found.append(
                counter(
                    "polymq_login_service_failures",
                    "Questions to the login service without an answer that could be used.",
                    lambda: service.failures,
                    label="kind",
                )
            )
        return found
