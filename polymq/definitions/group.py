"""The operations of the admin API on definitions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from aiohttp import web

from polymq.admin.commits import Commits
from polymq.admin.gateways import Gateways
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.written_answers import Steps, written
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.definitions.accounts import (
    ban_kind,
    permission_kind,
    rabbitmq_permission_kind,
    user_kind,
)
from polymq.definitions.document import STEP_LINES, read_document, write_document
from polymq.definitions.importing import OUTCOMES, Importer, Outcome, Plan
from polymq.definitions.kinds import AnyKind
from polymq.definitions.models import SECTIONS, Document
from polymq.definitions.subscriptions import Subscriptions
from polymq.definitions.topology import (
    Bindings,
    consumer_group_kind,
    exchange_kind,
    queue_kind,
    topic_kind,
)
from polymq.management.json_values import encode
from polymq.steps import in_steps

PATH: Final = "/definitions"
DOCUMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a document that is imported: some hundred thousand queues with their bindings."""
BODY_SECONDS_MAX: Final = 120.0
"""For the whole document to come: meanwhile nobody else can import."""
_TOO_LARGE: Final = f"a document of definitions has at most {DOCUMENT_BYTES_MAX:,} bytes"


class ImportQuery(Given):
    """How a document is imported.

    Attributes:
        dry_run: only say what would become of each definition.
        prefer: which side wins where a definition differs from what is there; without it, such a
            definition stops the import before anything is changed.
    """

    dry_run: bool = False
    prefer: Literal["file", "server"] | None = None


class ImportedDefinition(Value):
    """What became of a definition.

    Attributes:
        section: of the document.
        name: of what it defines.
        outcome: `equal` if it was there already, `created`, `changed`, `kept` if the server was
            preferred, or `conflict`.
        difference: what differs from what is there; empty if nothing does.
    """

    section: str
    name: str
    outcome: Outcome
    difference: str


class ImportAnswer(Value):
    """What became of a document, or would.

    Attributes:
        dry_run: nothing was changed.
        counts: definitions by outcome.
        definitions: all of them, in the order in which they are imported.
    """

    dry_run: bool
    counts: dict[str, int]
    definitions: list[ImportedDefinition]


def kinds_of(engine: Engine, gateways: Gateways) -> list[AnyKind]:
    """All sections, in the order of the document."""
    kinds: list[AnyKind] = [
        user_kind(engine),
        permission_kind(engine),
        rabbitmq_permission_kind(engine),
        ban_kind(engine),
        topic_kind(engine),
        exchange_kind(engine),
        queue_kind(engine),
        Bindings(engine).kind(),
        consumer_group_kind(engine),
        Subscriptions(engine, gateways.webhooks).kind(),
    ]
    assert tuple(kind.section for kind in kinds) == SECTIONS
    return kinds


class DefinitionHandlers:
    """Carries out the operations on definitions."""

    def __init__(self, engine: Engine, gateways: Gateways) -> None:
        self._kinds: Sequence[AnyKind] = kinds_of(engine, gateways)
        self._importer = Importer(self._kinds, Commits(engine).committed)
        self._importing = False

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="definitions",
            about="Everything that operators have configured in the log, as one document.",
            operations=[
                Operation(
                    method="GET",
                    path=PATH,
                    name="exportDefinitions",
                    summary="Export all definitions",
                    about="The answer has secrets: hashes of passwords, access keys, and the URLs "
                    "of webhooks.",
                    right="admin",
                    handler=self._export,
                    answer=Document,
                ),
                Operation(
                    method="POST",
                    path=PATH,
                    name="importDefinitions",
                    summary="Import definitions",
                    about="Nothing is deleted. What is equal already stays as it is, so that an "
                    "import can be repeated.",
                    right="admin",
                    handler=self._import,
                    query=ImportQuery,
                    body=Document,
                    reads_body=True,
                    answer=ImportAnswer,
                ),
            ],
        )

    async def _export(self, call: Call[Given]) -> web.StreamResponse:
        audit.note("definitions exported", by=call.caller)
        return await written(call.request, write_document(self._kinds))

    async def _import(self, call: Call[ImportQuery]) -> web.StreamResponse:
        asked = call.query
        if self._importing:
            raise Refused(Reason.IN_USE, "another import is under way: try again later")
        self._importing = True
        try:
            found = await in_steps(read_document(await _content(call.request)))
            plan = await self._importer.run(
                found, asked.prefer, dry_run=asked.dry_run, by=call.caller
            )
        finally:
            self._importing = False
        return await written(call.request, _write_answer(plan, dry_run=asked.dry_run))


async def _content(request: web.Request) -> bytes:
    """The document. Raises Refused: it is too large, or does not come."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.content.iter_any():
                size += len(part)
                if size > DOCUMENT_BYTES_MAX:
                    raise Refused(Reason.TOO_LARGE, _TOO_LARGE)
                parts.append(part)
    except TimeoutError:
        text = f"the document has to come within {BODY_SECONDS_MAX:.0f} seconds"
        raise Refused(Reason.BAD_ARGUMENT, text) from None
    return b"".join(parts)


def _write_answer(plan: Plan, *, dry_run: bool) -> Steps:
    """An ImportAnswer, in parts."""
    head = {"dry_run": dry_run, "counts": plan.counts()}
    yield encode(head)[:-1] + b',"definitions":['
    separator = b""
    rows: list[object] = []
    for section in plan.sections:
        for at, name in enumerate(section.names):
            outcome = OUTCOMES[section.outcomes[at]]
            difference = section.differences.get(at, "")
            one = ImportedDefinition(section.name, name, outcome, difference)
            rows.append(msgspec.to_builtins(one))
            if len(rows) == STEP_LINES:
                yield separator + encode(rows)[1:-1]
                separator, rows = b",", []
    if rows:
        yield separator + encode(rows)[1:-1]
    yield b"]}"
