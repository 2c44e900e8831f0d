"""What an operator decides about MQTT sessions: those whose client is away, and those that share a
subscription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

DROP_OLDEST: Final = "drop_oldest"
DROP_NEWEST: Final = "drop_newest"
Overflow = Literal["drop_oldest", "drop_newest"]

ROUND_ROBIN: Final = "round_robin"
STICKY: Final = "sticky"
HASH_CLIENT: Final = "hash_client"
HASH_TOPIC: Final = "hash_topic"
ShareStrategy = Literal["round_robin", "sticky", "hash_client", "hash_topic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """For all sessions of a broker.

    Attributes:
        expiry_seconds: how long a session waits for its client before it ends; 0: for ever, as the
            standard has it.
        keeps_qos_0: whether messages that would be sent with QoS 0 wait for a client that is away,
            too. They need not (3.1.1 part 3.1.2.4).
        waiting_max: how many messages may wait for a persistent session, over all its
            subscriptions; 0: any number. What is in flight does not count.
        waiting_bytes_max: how many bytes these may have, as they are stored; 0: any number.
        overflow: what gives way when there are more.
        share_strategy: which member of a shared subscription gets a message (`share_turns.py`).
    """

    expiry_seconds: float = 0.0
    keeps_qos_0: bool = False
    waiting_max: int = 0
    waiting_bytes_max: int = 0
    overflow: Overflow = DROP_OLDEST
    share_strategy: ShareStrategy = ROUND_ROBIN

    @property
    def bounds(self) -> tuple[int, int]:
        """How much may wait, in messages and in bytes."""
        return self.waiting_max, self.waiting_bytes_max

    @property
    def is_bounded(self) -> bool:
        """Whether what waits has a bound."""
        return any(self.bounds)
