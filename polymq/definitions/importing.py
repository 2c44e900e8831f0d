"""Importing a document of definitions: what would change, and changing it.

Rules:

* Everything is looked at before anything is changed: a definition that cannot be read, refers to
  what is neither here nor in the document, or is in conflict with what is here, stops the import
  while nothing is done. `prefer` says which side wins a conflict.
* Nothing is deleted. What the document does not name stays as it is.
* Each definition is one record of the log. An import that was interrupted has taken some of the
  definitions, whole, and those are equal when it is repeated.
* Definitions stay texts, and what became of them one byte each (`document.py` has the reason).
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Literal, get_args

from polymq.admin.commits import Committed
from polymq.broker.accounts import audit
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Position
from polymq.definitions.document import definition_of
from polymq.definitions.kinds import AnyKind, Need, differing
from polymq.definitions.models import Definition
from polymq.management.definitions_file import Definitions
from polymq.steps import SLICE_SECONDS, in_steps

Outcome = Literal["equal", "created", "changed", "kept", "conflict"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""What becomes of definitions; the numbers of `Section.outcomes` are places in it."""
EQUAL, CREATED, CHANGED, STAYING, CONFLICT = range(len(OUTCOMES))
COMMIT_DEFINITIONS: Final = 500
"""Definitions that are taken before the disk is waited for."""
CONFLICTS_SHOWN: Final = 10
"""Of an import that was refused."""
NOTED: Final = ("users", "permissions", "bans", "subscriptions")
"""Sections of which the audit log has a line for each definition that was made."""

Side = Literal["file", "server"]


@dataclass(frozen=True, slots=True)
class Section:
    """What becomes of the definitions of one section.

    Attributes:
        names: of the definitions.
        outcomes: one for each name.
        differences: the members that differ, by the place of the definition.
    """

    name: str
    names: list[str] = field(default_factory=list)
    outcomes: bytearray = field(default_factory=bytearray)
    differences: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an import does.

    Attributes:
        sections: in the order of the import.
    """

    sections: list[Section]

    def counts(self) -> dict[str, int]:
        """How many definitions there are of each outcome."""
        found = [section.outcomes for section in self.sections]
        return {
            name: sum(outcomes.count(number) for outcomes in found)
            for number, name in enumerate(OUTCOMES)
        }

    def conflicts(self) -> list[str]:
        """A sentence for each definition that is in conflict."""
        return [
            f"{section.name}: {section.names[at]}: {section.differences[at]}"
            for section in self.sections
            for at, outcome in enumerate(section.outcomes)
            if outcome == CONFLICT
        ]


class Importer:
    """Imports documents, one at a time.

    Args:
        kinds: in the order of the import.
        committed: waits until a change is on the disk.
    """

    def __init__(self, kinds: Sequence[AnyKind], committed: Committed) -> None:
        self._kinds = kinds
        self._committed = committed

    async def run(self, found: Definitions, prefer: Side | None, *, dry_run: bool, by: str) -> Plan:
        """Import what was read, or only say what that would do. Raises Refused.

        Args:
            by: who imports, for the audit log.
        """
        plan = await in_steps(self._planned(found, prefer))
        if dry_run:
            return plan
        _check_free_of_conflicts(plan)
        taken = [0]
        try:
            await self._take(plan, found, prefer, by, taken)
        finally:
            counts = plan.counts()
            audit.note(
                "definitions imported",
                taken=taken[0],
                of=counts["created"] + counts["changed"],
                equal=counts["equal"],
                left=counts["kept"],
                by=by,
            )
        return plan

    # --- looking --------------------------------------------------------------------------

    def _planned(self, found: Definitions, prefer: Side | None) -> Generator[None, None, Plan]:
        names: dict[str, set[str]] = {}
        sections = []
        for kind in self._kinds:
            section = Section(kind.section)
            sections.append(section)
            known = names[kind.section] = set()
            for text in found.get(kind.section, ()):
                wanted = self._checked(kind, text)
                name = kind.name(wanted)
                if name in known:
                    raise _wrong(kind, name, "it is in the document twice", Reason.BAD_ARGUMENT)
                known.add(name)
                outcome, difference = _compared(kind, wanted, prefer)
                if difference:
                    section.differences[len(section.names)] = difference
                section.names.append(name)
                section.outcomes.append(outcome)
                yield
        yield from self._needs_met(found, names)
        return Plan(sections)

    def _checked(self, kind: AnyKind, text: str) -> Definition:
        raw: Definition = definition_of(kind, text)
        try:
            wanted: Definition = kind.check(raw)
        except Refused as error:
            raise _wrong(kind, kind.name(raw), error.text, error.reason) from None
        return wanted

    def _needs_met(
        self, found: Definitions, names: dict[str, set[str]]
    ) -> Generator[None, None, None]:
        """Whether everything that definitions refer to is there, or will be. Raises Refused."""
        exists = {kind.section: kind.exists for kind in self._kinds}
        for kind in self._kinds:
            for text in found.get(kind.section, ()):
                wanted = definition_of(kind, text)
                for need in kind.needs(wanted):
                    in_document = need.name in names[need.section] or need.topic in names["topics"]
                    if not in_document and not exists[need.section](need.name):
                        raise _wrong(kind, kind.name(wanted), _missing(need), Reason.NOT_FOUND)
                yield

    # --- changing -------------------------------------------------------------------------

    async def _take(
        self, plan: Plan, found: Definitions, prefer: Side | None, by: str, taken: list[int]
    ) -> None:
        position, waiting = Position(0), 0
        begin = perf_counter()
        for kind, section in zip(self._kinds, plan.sections, strict=True):
            for at, text in enumerate(found.get(kind.section, ())):
                if section.outcomes[at] in (CREATED, CHANGED):
                    position = max(position, await self._put(kind, text, prefer, by))
                    taken[0] += 1
                    waiting += 1
                if waiting == COMMIT_DEFINITIONS:
                    await self._committed(position)
                    waiting = 0
                if perf_counter() - begin > SLICE_SECONDS:
                    await asyncio.sleep(0)
                    begin = perf_counter()
        await self._committed(position)

    async def _put(self, kind: AnyKind, text: str, prefer: Side | None, by: str) -> Position:
        """Take one definition, as things are now: clients change them meanwhile."""
        wanted = self._checked(kind, text)
        name = kind.name(wanted)
        outcome, difference = _compared(kind, wanted, prefer)
        if outcome == CONFLICT:
            raise _wrong(kind, name, f"it was changed meanwhile: {difference}", Reason.DIFFERENT)
        if outcome not in (CREATED, CHANGED):
            return Position(0)
        try:
            position: Position = await kind.put(wanted, kind.find(wanted))
        except Refused as error:
            text = f"{error.text} (definitions before this one are imported: import again)"
            raise _wrong(kind, name, text, error.reason) from None
        if outcome == CHANGED or kind.section in NOTED:
            audit.note(
                f"definition {OUTCOMES[outcome]}", section=kind.section, definition=name, by=by
            )
        return position


def _compared(kind: AnyKind, wanted: Definition, prefer: Side | None) -> tuple[int, str]:
    """What becomes of a definition, and what is different."""
    current = kind.find(wanted)
    if current is None:
        return CREATED, ""
    members = differing(wanted, current)
    if not members:
        return EQUAL, ""
    text = f"other {', '.join(members)} here"
    if prefer == "server":
        return STAYING, text
    fixed = [member for member in members if member not in kind.changing]
    if fixed:
        return CONFLICT, f"{text}, and {', '.join(fixed)} cannot change: delete it first"
    return (CHANGED if prefer == "file" else CONFLICT), text


def _check_free_of_conflicts(plan: Plan) -> None:
    conflicts = plan.conflicts()
    if not conflicts:
        return
    shown = "; ".join(conflicts[:CONFLICTS_SHOWN])
    more = f"; and {len(conflicts) - CONFLICTS_SHOWN:,} more" * (len(conflicts) > CONFLICTS_SHOWN)
    raise Refused(
        Reason.DIFFERENT,
        f"nothing was imported: {len(conflicts):,} definitions differ from what is here: "
        f"{shown}{more}. Say with prefer whether the file or the server wins",
    )


def _missing(need: Need) -> str:
    what = need.section.removesuffix("s")
    article = "an" if what[0] in "aeio" else "a"
    return f"it refers to {article} {what} {need.name!r}, which is neither here nor in the document"


def _wrong(kind: AnyKind, name: str, text: str, reason: Reason) -> Refused:
    return Refused(reason, f"{kind.section}: {name}: {text}")
