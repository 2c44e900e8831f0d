"""The settings of who may log in: passwords, tokens, and a service that decides."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from polymq.asked_settings import URL_BYTES_MAX, AskedSettings
from polymq.broker.accounts.scram import ITERATIONS_MAX as SCRAM_ITERATIONS_MAX
from polymq.broker.accounts.scram import ITERATIONS_MIN as SCRAM_ITERATIONS_MIN
from polymq.outside_urls import check_directory_url, check_url
from polymq.setting_kinds import Live, Section

USER: Final = "{user}"
"""What a user's name takes the place of."""


def _checked_iterations(count: int) -> int:
    if count and not SCRAM_ITERATIONS_MIN <= count <= SCRAM_ITERATIONS_MAX:
        raise ValueError(f"must be 0, or from {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}")
    return count


def _checked_url(text: str) -> str:
    if text:
        check_url(text)
    return text


class LoginSettings(Section):
    """How clients log in, at all listeners."""

    scram_iterations: Live[Annotated[int, AfterValidator(_checked_iterations)]] = 16_384
    """The cost of the keys for SCRAM-SHA-256, by which MQTT 5 clients can log in without sending
    their password. The keys are stored with a password when it is set, and when it is used for the
    first time after an upgrade. A client spends this time at each login: 4096 is the least that the
    standard allows, for small devices. 0: no keys are stored, and MQTT does not offer the
    method."""


class JwtSettings(Section):
    """JSON Web Tokens in the place of passwords, at all listeners. Needs `polymq[jwt]`."""

    secret_file: Live[str] = ""
    """File with the secret that tokens are signed with (HS256): at least 32 bytes, mode 0600. Only
    one of the three files and `jwks_url` can be set. If none is, passwords are passwords whatever
    they look like."""
    public_key_file: Live[str] = ""
    """PEM file with the public key of who signs tokens: RSA (RS256), P-256 (ES256) or Ed25519
    (EdDSA)."""
    jwks_file: Live[str] = ""
    """JSON file with several such public keys (RFC 7517), which tokens name by `kid`."""
    jwks_url: Live[
        Annotated[str, AfterValidator(_checked_url), Field(max_length=URL_BYTES_MAX)]
    ] = ""
    """URL of such a set of keys. It is fetched at the start, periodically, and when a token names a
    key that is not in it. https; http only to this machine. Redirects are not followed. Tokens are
    refused until the set has been fetched once; after that the last set that could be fetched
    counts."""
    jwks_ca: Live[str] = ""
    """PEM file with the authorities that have to have issued the certificate of `jwks_url`. Empty:
    those that the system trusts."""
    jwks_refresh_seconds: Live[Annotated[float, Field(ge=10, le=86_400)]] = 300.0
    """How often the set of `jwks_url` is fetched again."""
    issuer: Live[str] = ""
    """What the claim `iss` of a token has to be. Required."""
    audience: Live[str] = ""
    """What the claim `aud` of a token has to be, or has to contain. Required."""
    user_claim: Live[Annotated[str, Field(min_length=1)]] = "sub"
    """The claim with the name of the user. The user has to exist, unless the token has the claim
    that `permissions_claim` names."""
    permissions_claim: str = ""
    """The claim with permissions of the token's bearer, beside those of the stored user. A user of
    a token with this claim need not exist. Empty: tokens grant nothing. If it is set, clients have
    to log in even while there are no users."""
    leeway_seconds: Live[Annotated[float, Field(ge=0, le=3600)]] = 30.0
    """By how much the clocks of issuer and server may differ: a token holds longer by that."""

    @property
    def enabled(self) -> bool:
        """Whether tokens are accepted."""
        return any(self._sources)

    @property
    def _sources(self) -> list[str]:
        return [self.secret_file, self.public_key_file, self.jwks_file, self.jwks_url]

    @model_validator(mode="after")
    def _whole(self) -> JwtSettings:
        if sum(map(bool, self._sources)) > 1:
            raise ValueError("set only one of secret_file, public_key_file, jwks_file and jwks_url")
        if self.enabled and not (self.issuer and self.audience):
            raise ValueError("issuer and audience have to be set, too")
        if self.permissions_claim and not self.enabled:
            raise ValueError("permissions_claim needs keys: set jwks_url or one of the files")
        if self.jwks_ca and not self.jwks_url:
            raise ValueError("jwks_ca is for jwks_url, which is not set")
        return self


class LoginServiceSettings(AskedSettings):
    """An HTTP service, or a plugin of amqtt, that decides about logins with a password."""

    url: Live[Annotated[str, Field(max_length=URL_BYTES_MAX)]] = ""
    """The URL that is asked: with POST and a JSON object, for each login that is not remembered.
    https; http only to this machine and to `plain_hosts`. Redirects are not followed. Empty: only
    the stored users decide. If it is set, clients have to log in even while there are no users."""
    plain_hosts: Live[list[str]] = []
    """Hosts that may be asked without TLS, although passwords cross the network unencrypted
    then."""
    amqtt_plugin: str = ""
    """Instead of `url`: the class of an authentication plugin of amqtt, with its module, such as
    `amqtt.plugins.authentication.FileAuthPlugin`. Needs `polymq[amqtt]`. The plugin runs in a
    thread of this server."""
    amqtt_publish: list[str] = []
    """Topic filters that the clients which the plugin lets in may publish to, beside the
    permissions of a stored user, such as `devices/${username}/#`."""
    amqtt_subscribe: list[str] = []
    """Topic filters that they may subscribe to."""
    ldap_url: Annotated[str, Field(max_length=URL_BYTES_MAX)] = ""
    """Instead of `url`: an LDAP directory, such as "ldaps://ldap.example.com". A user comes in who
    can bind with the password. ldap:// without `ldap_start_tls` only to this machine and to
    `plain_hosts`. `ca` has its authorities. Needs `polymq[ldap]`."""
    ldap_start_tls: bool = False
    """Whether TLS begins after the connection is made (StartTLS)."""
    ldap_user_dn: str = ""
    """What a user binds as, with {user} for the name, such as
    "uid={user},ou=people,dc=example,dc=com", or "{user}@example.com" for Active Directory. Empty:
    the entry is searched for."""
    ldap_search_base: str = ""
    """Below which entry users are searched for."""
    ldap_search_filter: str = "(uid={user})"
    """The filter that finds the entry of a user. Groups can be a part of it. Users that it does not
    find are left to the users that are stored here."""
    ldap_bind_dn: str = ""
    """Who searches. Empty: nobody in particular (an anonymous bind)."""
    ldap_bind_password_file: str = ""
    """File with the password of `ldap_bind_dn`, mode 0600."""
    ldap_publish: list[str] = []
    """Topic filters that the clients which the directory lets in may publish to, beside the
    permissions of a stored user, such as `devices/${username}/#`."""
    ldap_subscribe: list[str] = []
    """Topic filters that they may subscribe to."""
    timeout_seconds: Live[Annotated[float, Field(gt=0, le=10)]] = 4.0
    """How long a question may wait for its turn, and how long the service may take to answer
    it. MQTT and AMQP clients have about ten seconds to log in."""
    waiting_max: Live[Annotated[int, Field(ge=1, le=100_000)]] = 1_000
    """How many others wait for their turn. Further logins are refused for the moment."""
    cache_seconds: Live[Annotated[float, Field(ge=0, le=86_400)]] = 60.0
    """How long an answer is remembered, unless its `expires_in` is shorter. 0: not at all."""

    @property
    def _of_plugin(self) -> bool:
        return bool(self.amqtt_config_file or self.amqtt_publish or self.amqtt_subscribe)

    @property
    def enabled(self) -> bool:
        """Whether anything is asked."""
        return bool(self.url or self.amqtt_plugin or self.ldap_url)

    @property
    def _other_url(self) -> str:
        return self.ldap_url

    @model_validator(mode="after")
    def _whole_ldap(self) -> LoginServiceSettings:
        if not self.ldap_url:
            fields = type(self).model_fields.items()
            own = [(name, field.default) for name, field in fields if name.startswith("ldap_")]
            if any(getattr(self, name) != default for name, default in own):
                raise ValueError("ldap_url has to be set, too")
            return self
        if self.url or self.amqtt_plugin:
            raise ValueError("set only one of url, amqtt_plugin and ldap_url")
        if bool(self.ldap_user_dn) == bool(self.ldap_search_base):
            raise ValueError("set one of ldap_user_dn and ldap_search_base")
        pattern = self.ldap_user_dn or self.ldap_search_filter
        if USER not in pattern:
            name = "ldap_user_dn" if self.ldap_user_dn else "ldap_search_filter"
            raise ValueError(f"{name} has to contain {USER}")
        if bool(self.ldap_bind_dn) != bool(self.ldap_bind_password_file):
            raise ValueError("ldap_bind_dn and ldap_bind_password_file belong together")
        try:
            check_directory_url(self.ldap_url, self.plain_hosts, start_tls=self.ldap_start_tls)
        except ValueError as error:
            raise ValueError(f"ldap_url {error}") from error
        return self
