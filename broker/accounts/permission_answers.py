"""What a service is asked about one permission of an MQTT client, and what it answers. Pure.

`ignore` means that nobody has allowed it: the rules that are stored here were asked before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from polymq.broker.accounts.service_answers import Result, parse_result
from polymq.broker.port.principals import AskedAs


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionQuestion:
    """A permission that a service is asked about.

    Attributes:
        action: `publish` or `subscribe`.
        topic: a topic name, or a topic filter; the mount point is a part of it.
    """

    client: AskedAs
    action: str
    topic: str

    def content(self) -> bytes:
        """It as a JSON object."""
        client = self.client
        value = {
            "user": client.user,
            "client_id": client.client_id,
            "address": client.address,
            "mount_point": client.mount_point,
            "action": self.action,
            "topic": self.topic,
        }
        return json.dumps(value).encode()


def parse_permission(content: bytes) -> Result:
    """The answer about a permission.

    Raises:
        BadAnswer: it is none.
    """
    return parse_result(content, ())[0]
