"""What the messages of a run have in common, which stand one after the other in the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RunMeta:
    """What the messages of a run have in common. Shared by runs of the same kind.

    Attributes:
        topic, tag: as in `Route`.
        properties: the constant properties by RocketMQ's names (`content-type`, `PMQ_QOS`, ...).
        prefix_size: bytes of the constant properties at the start of a record's properties; the
            per-message extra property, if any, follows at once.
        ttl_code: the messages' own time to live in ms and one more; 0 for none.
        priority: 0 to 255.
        compressed: the bodies are, as their RocketMQ producer sent them (`compressed.py`).
        long: AMQP properties stand in front of the bodies (`long_properties.py`).
        rewritten: one of both, so that records are written anew before most readers get them.
        cache: a gateway keeps what it derived (encoded topic, headers) under a key of its own.
    """

    topic: str
    tag: str | None
    properties: Mapping[str, str]
    prefix_size: int
    ttl_code: int = 0
    priority: int = 0
    compressed: bool = False
    long: bool = False
    cache: dict[str, Any] = field(default_factory=dict)
    rewritten: bool = field(init=False)

    def __post_init__(self) -> None:
        self.rewritten = self.compressed or self.long


TakesApart = Callable[[RunMeta], bool]
"""Whether a consumer decodes each message of this kind by itself, which takes some 50 us and more
the more properties it has. What is not taken apart is encoded run by run in a kernel."""
