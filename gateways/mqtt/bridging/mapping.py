"""The names of a bridge's topics: here, and at the remote broker.

A message that goes out has the remote name in its PUBLISH, which is made once for each topic and
rule (`topic_field`). One that comes in is published to the local name, which is a part of its
template. So prefixes cost nothing for each message.

Each rule that goes out has a subscription of its own, with the rule's number as its Subscription
Identifier. By that it is known which rule a run of messages belongs to; the remote broker does not
get it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from polymq.broker.port import (
    Address,
    BrokerPort,
    Reason,
    Refused,
    RunMeta,
    SubscriptionOptions,
)
from polymq.gateways.mqtt.bridging.rules import BridgeRule, rule_of
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import TOPIC_BYTES_MAX, TopicMapping

Split = list[tuple[Sequence[str], BridgeRule]]
NO_RULE: Final = "no topic of the bridge matches it"


class BridgeMapping(TopicMapping):
    """Topic names of one bridge, and the templates of what comes in.

    Args:
        fixed_topic: as in `TopicMapping`.
        name: of the bridge.
        publisher: the client id that messages that come in name, so that they do not go out again.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        limits: Limits,
        fixed_topic: str | None,
        name: str,
        rules: Sequence[BridgeRule],
        publisher: str,
    ) -> None:
        super().__init__(port=port, limits=limits, fixed_topic=fixed_topic)
        self._from = publisher
        self._bridge = name
        self._out = [rule for rule in rules if rule.goes_out]
        self._by_local: Split = [(rule.local_filter.split("/"), rule) for rule in self._out]
        self._by_remote: Split = [
            (rule.remote_filter.split("/"), rule) for rule in rules if rule.comes_in
        ]
        self._chosen = -1
        self.choose(1)

    # --- going out --------------------------------------------------------------------------

    def subscriptions(self) -> dict[Address, SubscriptionOptions]:
        """What the bridge is subscribed to here. What came in by it does not go out again."""
        return {
            self.address(rule.local_filter): SubscriptionOptions(
                qos=rule.qos, no_local=True, retain_as_published=True, identifier=number
            )
            for number, rule in enumerate(self._out, 1)
        }

    def choose(self, identifier: int) -> bool:
        """What goes out now was delivered to the subscription with this identifier; 0, or one that
        there is not any more: it is not known to which. Returns whether that is another than
        before."""
        number = identifier if identifier <= len(self._out) else 0
        if number == self._chosen:
            return False
        self._chosen = number
        key = f"bridge {self._bridge} {number}"
        self.field_key = f"{key} topic"
        self.encoded_keys = (f"{key} 0", f"{key} 1")
        self.encoded_keys_5 = (f"{key} 5 0", f"{key} 5 1")
        return True

    def topic_field(self, meta: RunMeta) -> bytes:
        """See `TopicMapping`: the remote name."""
        cached: bytes | None = meta.cache.get(self.field_key)
        if cached is not None:
            return cached
        name = self.name(meta.topic, meta.tag)
        rule = self._out[self._chosen - 1] if self._chosen else rule_of(name, self._by_local)
        raw = (name if rule is None else rule.to_remote(name)).encode()
        if len(raw) > TOPIC_BYTES_MAX:
            raw = b"|h" + hashlib.sha256(raw).hexdigest().encode("ascii")
        field = len(raw).to_bytes(2, "big") + raw
        meta.cache[self.field_key] = field
        return field

    # --- coming in --------------------------------------------------------------------------

    def publishable(self, name: str) -> str:
        """The local name of what comes in. Raises Refused: FORBIDDEN, no rule matches it."""
        rule = rule_of(name, self._by_remote)
        if rule is None:
            raise Refused(Reason.FORBIDDEN, NO_RULE)
        local = rule.to_local(name)
        if not 0 < len(local.encode()) <= TOPIC_BYTES_MAX:
            raise Refused(Reason.BAD_NAME, "its local name is empty or too long")
        if local.startswith("$"):
            raise Refused(Reason.FORBIDDEN, "topics that begin with `$` belong to the server")
        self._check_levels(local)
        return local
