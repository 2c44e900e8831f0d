"""The settings of services that are asked: what those about logins and about permissions have in
common, and those about permissions."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, model_validator

from polymq.outside_urls import check_url
from polymq.setting_kinds import Live, Section

URL_BYTES_MAX: Final = 2_048


class AskedSettings(Section):
    """A service, or a plugin of amqtt, that is asked."""

    url: Live[Annotated[str, Field(max_length=URL_BYTES_MAX)]] = ""
    """The URL that is asked: with POST and a JSON object. https; http only to this machine and to
    `plain_hosts`. Redirects are not followed. Empty: nobody is asked."""
    plain_hosts: Live[list[str]] = Field(default=[])
    """Hosts that may be asked without TLS, although what is asked crosses the network unencrypted
    then."""
    ca: Live[str] = ""
    """PEM file with the authorities that have to have issued the service's certificate. Empty:
    those that the system trusts."""
    header_file: Live[str] = ""
    """File with one header that is sent with each question, mode 0600, such as
    `Authorization: Bearer 6f1c...`: the service knows by it who asks. Empty: none is sent."""
    amqtt_plugin: str = ""
    """Instead of `url`: the class of a plugin of amqtt, with its module."""
    amqtt_config_file: str = ""
    """TOML file with the configuration of the plugin: the fields of its class `Config`. Empty: it
    has none."""
    timeout_seconds: Live[Annotated[float, Field(gt=0, le=10)]] = 4.0
    """How long a question may wait for its turn, and how long the service may take to answer
    it."""
    calls_max: Live[Annotated[int, Field(ge=1, le=1_000)]] = 16
    """How many questions are with the service at a time."""
    waiting_max: Live[Annotated[int, Field(ge=1, le=100_000)]] = 1_000
    """How many others wait for their turn. What asks further ones is refused for the moment."""
    cache_max: Live[Annotated[int, Field(ge=1, le=1_000_000)]] = 10_000
    """How many answers are remembered."""
    cache_seconds: Live[Annotated[float, Field(ge=0, le=86_400)]] = 60.0
    """How long an answer is remembered. 0: not at all."""
    denied_cache_seconds: Live[Annotated[float, Field(ge=0, le=86_400)]] = 5.0
    """How long the answer `deny` is remembered. 0: not at all."""

    @property
    def enabled(self) -> bool:
        """Whether anything is asked."""
        return bool(self.url or self.amqtt_plugin)

    @property
    def _of_plugin(self) -> bool:
        """Whether a setting is set that only a plugin has."""
        return bool(self.amqtt_config_file)

    @property
    def _other_url(self) -> str:
        """What `ca` and `plain_hosts` may be for, instead of `url`."""
        return ""

    @model_validator(mode="after")
    def _whole(self) -> AskedSettings:
        if self.url and self.amqtt_plugin:
            raise ValueError("set only one of url and amqtt_plugin")
        if self._of_plugin and not self.amqtt_plugin:
            raise ValueError("amqtt_plugin has to be set, too")
        if not self.url:
            of_url = not self._other_url and (self.ca or self.plain_hosts)
            if of_url or self.header_file:
                raise ValueError("url has to be set, too")
            return self
        try:
            check_url(self.url, self.plain_hosts)
        except ValueError as error:
            hint = ", which plain_hosts does not list" if "another machine" in str(error) else ""
            raise ValueError(f"url {error}{hint}") from error
        return self


class PermissionServiceSettings(AskedSettings):
    """An HTTP service, or a plugin of amqtt, that decides about topics of MQTT clients."""

    url: Live[Annotated[str, Field(max_length=URL_BYTES_MAX)]] = ""
    """The URL that is asked: with POST and a JSON object, for each topic and filter of an MQTT
    client that no stored or granted rule speaks of, and that is not remembered. https; http only to
    this machine and to `plain_hosts`. Redirects are not followed. Empty: what no rule allows is
    refused. If it is set, clients have to log in even while there are no users."""
    amqtt_plugin: str = ""
    """Instead of `url`: the class of a topic plugin of amqtt, with its module, such as
    `amqtt.plugins.topic_checking.TopicAccessControlListPlugin`. Needs `polymq[amqtt]`. The plugin
    runs in a thread of this server."""
    timeout_seconds: Live[Annotated[float, Field(gt=0, le=10)]] = 4.0
    """How long a question may wait for its turn, and how long the service may take to answer it.
    The client that it is about waits, and nobody else."""
    waiting_max: Live[Annotated[int, Field(ge=1, le=100_000)]] = 10_000
    """How many others wait for their turn; each client has a few at a time. What asks further ones
    is refused for the moment."""
    cache_seconds: Live[Annotated[float, Field(ge=0, le=86_400)]] = 60.0
    """How long the answers `allow` and `ignore` are remembered. A publisher is asked about again
    after that; a subscription, when the client connects the next time. 0: not at all, so that each
    read of a publisher is a question."""
