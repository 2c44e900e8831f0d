"""The options of one subscription: what they are in the log, and what they say of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polymq.broker.kernels.delivery import LiveEnd
from polymq.broker.messages.runs import RunMeta
from polymq.broker.port.sessions import PUBLISHER_PROPERTY, SubscriptionOptions
from polymq.broker.topics.retained import RETAIN_PROPERTY


class OptionsEnd(LiveEnd):
    """A subscription, as far as its options go."""

    __slots__ = ("options",)

    def __init__(self, session: Any, options: SubscriptionOptions) -> None:
        super().__init__(session, options.qos)
        self.options = options
        self.set_options(options)

    def set_options(self, options: SubscriptionOptions) -> None:
        """SUBSCRIBE replaces all of them."""
        self.options = options
        self.qos = options.qos
        self.special = is_special(options)

    @property
    def identifiers(self) -> tuple[int, ...]:
        """The Subscription Identifier, if there is one."""
        identifier = self.options.identifier
        return (identifier,) if identifier else ()

    def is_own(self, meta: RunMeta) -> bool:
        """Whether the client published such messages itself, and does not want them."""
        if not self.options.no_local:
            return False
        client_id: str = self.session.client_id
        return meta.properties.get(PUBLISHER_PROPERTY) == client_id

    def sends_retain(self, meta: RunMeta) -> bool:
        """Whether such messages are sent with RETAIN, though they are new."""
        return self.options.retain_as_published and RETAIN_PROPERTY in meta.properties


def is_special(options: SubscriptionOptions) -> bool:
    """Whether they say of each message whether it is sent, or what is sent with it."""
    return options.no_local or options.retain_as_published or bool(options.identifier)


def options_row(options: SubscriptionOptions) -> dict[str, int]:
    """The options of a subscription beside its QoS, as the op `sub+` and the session's row have
    them: nothing for plain ones."""
    row = {"l": int(options.no_local), "p": int(options.retain_as_published)}
    row["x"] = int(options.exclusive)
    return {key: value for key, value in {**row, "i": options.identifier}.items() if value}


def options_of(row: Mapping[str, Any], qos: int) -> SubscriptionOptions:
    """The same from there. Former versions had plain ones."""
    return SubscriptionOptions(
        qos=qos,
        no_local=bool(row.get("l", 0)),
        retain_as_published=bool(row.get("p", 0)),
        identifier=row.get("i", 0),
        exclusive=bool(row.get("x", 0)),
    )
