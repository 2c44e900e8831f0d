"""What decides about logins and permissions outside of this server, as it is configured: the keys
of tokens, and services that are asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from polymq.asked_settings import AskedSettings
from polymq.broker.accounts.outside import Outside
from polymq.broker.accounts.service_calls import ServiceLimits
from polymq.logins.amqtt_plugin import AmqttLoginPlugin, AmqttTopicPlugin
from polymq.logins.jwks import KeySet
from polymq.logins.ldap_logins import LdapLogins
from polymq.logins.login_service import HttpLoginService
from polymq.logins.permission_service import HttpPermissionService
from polymq.logins.tokens import make_tokens
from polymq.metrics.registry import Probe, counter
from polymq.settings import Settings


class OutsideLogins:
    """Makes and runs it.

    Raises:
        Failure: USAGE, a setting or a file cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._tokens = make_tokens(settings.jwt)
        self._key_set: KeySet | None = None
        if self._tokens is not None and settings.jwt.jwks_url:
            self._key_set = KeySet(settings.jwt, self._tokens.take_set)
            self._tokens.want_keys = self._key_set.want
        self._service: HttpLoginService | AmqttLoginPlugin | LdapLogins | None = None
        if settings.login_service.url:
            self._service = HttpLoginService(settings.login_service)
        elif settings.login_service.amqtt_plugin:
            self._service = AmqttLoginPlugin(settings.login_service)
        elif settings.login_service.ldap_url:
            self._service = LdapLogins(settings.login_service)
        self._permissions: HttpPermissionService | AmqttTopicPlugin | None = None
        if settings.permission_service.url:
            self._permissions = HttpPermissionService(settings.permission_service)
        elif settings.permission_service.amqtt_plugin:
            self._permissions = AmqttTopicPlugin(settings.permission_service)

    def for_engine(self, settings: Settings) -> Outside:
        """What `Engine` has to be given."""
        return Outside(
            token_checker=self._tokens,
            tokens_grant=bool(settings.jwt.permissions_claim),
            service=self._service,
            service_limits=service_limits(settings.login_service),
            permission_service=self._permissions,
            permission_limits=service_limits(settings.permission_service),
        )

    def start(self) -> None:
        """Begin, on the running loop. Raises Failure: USAGE, a plugin cannot be made."""
        if self._key_set is not None:
            self._key_set.start()
        for service in (self._service, self._permissions):
            if service is not None:
                service.start()

    def prepare(self, settings: Settings) -> list[Callable[[], None]]:
        """Read the files that these settings name, maybe in a thread. What is asked is of the same
        kinds as before.

        Returns:
            What goes on with them, on the loop.

        Raises:
            Failure: USAGE, a file cannot be used.
        """
        found: list[Callable[[], None]] = []
        tokens = make_tokens(settings.jwt)
        if self._tokens is not None and tokens is not None:
            found.append(partial(self._tokens.take_over, tokens))
        if self._key_set is not None:
            found.append(self._key_set.prepare(settings.jwt))
        if self._service is not None:
            found.append(self._service.prepare(settings.login_service))
        if self._permissions is not None:
            found.append(self._permissions.prepare(settings.permission_service))
        return found

    async def stop(self) -> None:
        """End what is under way."""
        if self._key_set is not None:
            await self._key_set.stop()
        for service in (self._service, self._permissions):
            if service is not None:
                await service.stop()

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
        permissions = self._permissions
        if permissions is not None:
            found.append(
                counter(
                    "polymq_permission_service_failures",
                    "Questions to the permission service without an answer that could be used.",
                    lambda: permissions.failures,
                    label="kind",
                )
            )
        return found


def service_limits(wanted: AskedSettings) -> ServiceLimits:
    """For the engine."""
    return ServiceLimits(
        calls_max=wanted.calls_max,
        waiting_max=wanted.waiting_max,
        wait_seconds_max=wanted.timeout_seconds,
        cache_max=wanted.cache_max,
        cache_seconds=wanted.cache_seconds,
        denied_cache_seconds=wanted.denied_cache_seconds,
    )
