"""Documents of definitions over an engine, without HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from polymq.admin.gateways import Gateways
from polymq.broker.accounts import passwords
from polymq.definitions.document import read_document, write_document
from polymq.definitions.group import kinds_of
from polymq.definitions.importing import Importer, Plan, Side
from tests.harness.broker import Broker
from tests.polymq.admin.harness import committed

HASH = passwords.make_hash(b"secret", b"0123456789abcdef", scram_iterations=4096)
OTHER_HASH = passwords.make_hash(b"other", b"0123456789abcdef", scram_iterations=0)


def exported(broker: Broker) -> bytes:
    """All definitions of a broker."""
    kinds = kinds_of(broker.engine, Gateways())
    return b"".join(part for part in write_document(kinds) if part is not None)


def definitions(broker: Broker) -> dict[str, Any]:
    """The same as a value."""
    value: dict[str, Any] = json.loads(exported(broker))
    return value


def document(**sections: list[dict[str, Any]]) -> bytes:
    """A document that somebody wrote by hand."""
    return json.dumps({"format": "polymq-definitions", "version": 1, **sections}).encode()


def imported(
    broker: Broker, content: bytes, prefer: Side | None = None, *, dry_run: bool = False
) -> dict[str, int]:
    """Import a document; how many definitions there were of each outcome, but for none."""
    counts = plan_of(broker, content, prefer, dry_run=dry_run).counts()
    return {outcome: count for outcome, count in counts.items() if count}


def plan_of(
    broker: Broker, content: bytes, prefer: Side | None = None, *, dry_run: bool = False
) -> Plan:
    """Import a document. Raises Refused."""
    found = finished(read_document(content))
    importer = Importer(kinds_of(broker.engine, Gateways()), committed)
    return asyncio.run(importer.run(found, prefer, dry_run=dry_run, by="test"))


def finished(steps: Iterator[None]) -> Any:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
