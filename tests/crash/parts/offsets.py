"""Offsets of RocketMQ's consumer groups: what was committed a while ago is there, or something that
was committed later; nothing that belongs to another group, topic or time."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Final

from tests.crash.checks import demand
from tests.crash.engine import LAZY_SECONDS, EngineActor
from tests.crash.parts.part import NEVER, Part

TOPIC: Final = "o"
NAMES: Final = ("g0", "g1", "g2")


@dataclass(slots=True)
class Group:
    """A group of some name, until it is deleted.

    Attributes:
        made: what the answer waits for.
        deleted: the same for its deletion; `NEVER` while it is there.
        settings: (position, settings) of each change.
        committed: by the topic's incarnation, all offsets in order.
        stored: so many of them are surely stored.
    """

    made: int
    deleted: int = NEVER
    settings: list[tuple[int, int]] = field(default_factory=list)
    committed: dict[int, list[int]] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)

    def settings_after(self, flushed: int) -> list[int]:
        """The last settings that are promised, and later ones."""
        sure = [at for at, (position, _) in enumerate(self.settings) if position <= flushed]
        return [value for _, value in self.settings[sure[-1] if sure else 0 :]]


class Offsets(Part):
    """Consumers of a topic, which say how far they have come; now and then the topic is deleted and
    made again.

    Attributes:
        groups: by name, oldest first: each was deleted before the next one was made.
        there: whether the topic is.
        running: whether what was committed, was so in the engine that runs.
    """

    name: ClassVar = "offsets of consumer groups"
    steps: ClassVar = {"put": 2, "commit": 6, "reset": 1, "wait": 2, "delete": 1, "again": 1}

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, list[Group]] = {}
        self.there = False
        self.running = False

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        self.running = True
        name = random.choice(NAMES)
        if not self.there:
            self._make_topic(actor)
        elif step == "put":
            self._put(actor, name)
        elif step in ("commit", "reset"):
            self._commit(actor, name, random, back=step == "reset")
        elif step == "wait":
            actor.flush(LAZY_SECONDS)
        elif step == "delete":
            group = self._living(name)
            if group is not None:
                group.deleted = int(actor.engine.port.groups.delete(name))
        else:
            actor.engine.port.topics.delete(TOPIC)
            self._make_topic(actor)

    def _make_topic(self, actor: EngineActor) -> None:
        actor.engine.port.topics.create(TOPIC, 1)
        self.there = True

    def _put(self, actor: EngineActor, name: str) -> None:
        """Make a group, or change what it is set to."""
        (body,) = self.bodies(1)
        position = int(actor.engine.port.groups.put(name, {"n": int(body)}))
        group = self._living(name)
        if group is None:
            group = Group(position)
            self.groups.setdefault(name, []).append(group)
        group.settings.append((position, int(body)))

    def _commit(self, actor: EngineActor, name: str, random: Random, *, back: bool) -> None:
        group, incarnation = self._living(name), incarnation_of(actor)
        if group is None or incarnation is None:
            return
        values = group.committed.setdefault(incarnation, [])
        last = values[-1] if values else 0
        value = random.randint(0, last) if back else last + random.randint(1, 9)
        values.append(value)
        actor.engine.port.groups.commit(name, TOPIC, 0, value)

    def _living(self, name: str) -> Group | None:
        """The group of this name, if there is one now."""
        groups = self.groups.get(name)
        return groups[-1] if groups and groups[-1].deleted == NEVER else None

    def run_ended(self) -> None:
        self.running = False

    def lazily_stored(self) -> None:
        for groups in self.groups.values() if self.running else ():
            for group in groups:
                group.stored = {at: len(values) for at, values in group.committed.items()}

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        incarnation = incarnation_of(actor)
        self.there = incarnation is not None
        for name, groups in self.groups.items():
            self.groups[name] = [group for group in groups if group.made <= remaining]
            for group in self.groups[name]:
                group.settings = [one for one in group.settings if one[0] <= remaining]
                if group.deleted > remaining:
                    group.deleted = NEVER
                group.committed.clear()  # the incarnations of lost topics are given again
                group.stored.clear()
            living, offset = self._living(name), offset_of(actor, name)
            if living is not None and incarnation is not None and offset is not None:
                living.committed[incarnation] = [offset]
                living.stored[incarnation] = 1

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        for name, groups in self.groups.items():
            possible = [group for group in groups if group.deleted > flushed]
            found = actor.engine.groups.info(name)
            if found is None:
                sure = [group for group in possible if group.made <= flushed]
                there = any(group.deleted == NEVER for group in sure)
                demand(not there, f"(a) the group {name} is gone")
                demand(offset_of(actor, name) is None, f"(b) {name} has an offset, and is gone")
                continue
            known = [
                group for group in possible if found.settings["n"] in group.settings_after(flushed)
            ]
            demand(bool(known), f"(c) the group {name} is set to {found.settings}")
            _check_offset(actor, name, known[0])
        if self.there and incarnation_of(actor) is not None:
            actor.engine.port.groups.put(NAMES[0], {"n": -1})
            actor.engine.port.groups.commit(NAMES[0], TOPIC, 0, 1 << 20)
            actor.flush(LAZY_SECONDS)
            demand(offset_of(actor, NAMES[0]) == 1 << 20, "(e) an offset is not kept")


def _check_offset(actor: EngineActor, name: str, group: Group) -> None:
    """It is the last one that is surely stored, or a later one."""
    incarnation = incarnation_of(actor)
    values, stored = [], 0
    if incarnation is not None:
        values = group.committed.get(incarnation, [])
        stored = group.stored.get(incarnation, 0)
    allowed = [*values[stored - 1 :]] if stored else [None, *values]
    offset = offset_of(actor, name)
    demand(offset in allowed, f"(a) {name} goes on at {offset}, not at one of {allowed}")


def incarnation_of(actor: EngineActor) -> int | None:
    """How often the topic was made; None if there is none."""
    found = actor.engine.topics.topics.get(TOPIC)
    return None if found is None else found.incarnation


def offset_of(actor: EngineActor, name: str) -> int | None:
    """Where a group goes on."""
    return actor.engine.port.groups.offset(name, TOPIC, 0)
