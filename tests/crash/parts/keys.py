"""Messages with keys: a query finds what a scan of the topic finds."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Final

from tests.crash.checks import demand
from tests.crash.engine import EngineActor
from tests.crash.parts.part import Part, Stream
from tests.harness.stores import decode_all

TOPIC: Final = "k"
KEYS: Final = ("k0", "k1", "k2", "k3", "k4")


class Keys(Part):
    """Messages with one or two keys, and queries in between, which make the index."""

    name: ClassVar = "key index"
    steps: ClassVar = {"publish": 8, "query": 2}

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream(TOPIC)

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        if step == "publish":
            keys = " ".join(random.sample(KEYS, random.randint(1, 2)))
            self.stream.publish(
                actor, "x", self.bodies(random.randint(1, 5)), properties={"KEYS": keys}
            )
        elif self.stream.messages:
            query(actor, random.choice(KEYS))

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        self.stream.forget_lost(actor, remaining)

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        if not self.stream.messages or self.stream.messages[0].position > flushed:
            return
        _, records = self.stream.check(actor, flushed)
        for key in KEYS:
            wanted = [r.body for r in records[::-1] if key in r.properties["KEYS"].split()]
            found = query(actor, key)
            demand(
                found == wanted[: actor.engine.core.limits.query_count_max],
                f"(c) the query for {key} finds {found}, the log has {wanted}",
            )


def query(actor: EngineActor, key: str) -> list[bytes]:
    """The bodies of all messages that have the key, newest first."""
    answers: list[bytes | None] = []
    actor.engine.port.queries.by_key(
        TOPIC, key, count_max=1000, begin_ms=0, end_ms=1 << 60, callback=answers.append
    )
    actor.iterate()
    actor.wait_for(answers)
    (found,) = answers
    may_fail = actor.disk.fault is not None
    demand(found is not None or may_fail, f"(c) the query for {key} cannot be answered")
    return [record.body for record in decode_all(found or b"")]
