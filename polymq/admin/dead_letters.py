"""Dead letters of all protocols: where they are, why they are there, and sending them on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from time import perf_counter
from typing import Annotated, Any, Final, Literal

import msgspec

from polymq.admin.commits import Committed
from polymq.admin.dead_letter_values import DEAD_LETTER_PREFIX, RETRY_PREFIX, Target
from polymq.admin.messages import check_queue
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import STEP_ENTRIES, Listing, Page, PageQuery, page_of
from polymq.admin.redriving import SCAN_MAX, Letter, Location, QueueLocation, Sender, TopicLocation
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import PASSING, Reason, Refused
from polymq.broker.moves.set_aside import ASIDE_TOPIC
from polymq.broker.port import REST, display_name, parse_display_name
from polymq.steps import SLICE_SECONDS, in_steps

Kind = Literal["amqp", "rocketmq", "retry", "http", "set_aside"]
LIMIT_MAX: Final = 10_000
GROUPS_MAX: Final = 1_000
"""Reasons and sources that are told apart in one place."""
HTTP_DOCUMENTS: Final = "http.subscription"
OTHERS: Final = "(others)"


class DeadLetterLocation(Value):
    """Where dead letters are.

    Attributes:
        location: `queue:` or `topic:` and a name.
        kind: `amqp`: a queue that a dead letter exchange leads to; `rocketmq`: what a consumer
            group gave up; `retry`: what a group gets again by itself; `http`: what a subscription
            gave up; `set_aside`: what the broker had to move, and fits nowhere.
        messages: how many there are. What was sent on from a topic is not counted any more, though
            it can be read there until the topic's retention removes it.
    """

    location: str
    kind: Kind
    messages: int


class DeadLetterGroup(Value):
    """Dead letters with one reason and source.

    Attributes:
        reason: why they are dead letters.
        source: the queue, topic or group that gave them up; empty: that is not known.
        target: where they were published first, for people; null: that is not known, and a
            redrive has to name a target.
        messages: how many.
        oldest_ms: when the oldest was stored here, in milliseconds since the epoch.
    """

    reason: str
    source: str
    target: str | None
    messages: int
    oldest_ms: int


class DeadLetterDetails(Value):
    """What is in a place.

    Attributes:
        location: `queue:` or `topic:` and a name.
        messages: how many there are.
        groups: those that were looked at, by reason, source and target, the most first.
        looked_at: how many were looked at, at most 100,000.
    """

    location: str
    messages: int
    groups: list[DeadLetterGroup]
    looked_at: int


class RedriveBody(Given):
    """Which dead letters are sent on, and where.

    Attributes:
        reason: only those with this reason.
        source: only those of this source.
        limit: at most so many.
        exchange: send them to this exchange of AMQP, with the routing key; empty: the default
            exchange.
        routing_key: with exchange.
        topic: send them to this topic, with the tag. Without exchange and topic each goes where it
            was published first.
        tag: with topic.
        dry_run: only count them.
    """

    reason: str | None = None
    source: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = 1_000
    exchange: str | None = None
    routing_key: str = ""
    topic: str | None = None
    tag: str | None = None
    dry_run: bool = False


class Redriven(Value):
    """What became of dead letters.

    Attributes:
        location: where they were.
        messages: that were sent on; in a dry run, that would be tried.
        failed: that were not, by the reason.
        looked_at: all that were looked at, at most 100,000.
        complete: false: there are more than were looked at, or than `limit`.
        dry_run: nothing has happened.
    """

    location: str
    messages: int
    failed: dict[str, int]
    looked_at: int
    complete: bool
    dry_run: bool


class DeadLetterHandlers:
    """Carries out the operations on dead letters.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._engine = engine
        self._committed = committed
        self._busy: set[str] = set()  # places that are being redriven

    def group(self) -> Group:
        """The operations."""
        named = {"location": "`queue:` or `topic:` and a name, from the list"}
        return Group(
            name="dead-letters",
            about="Messages that could not be delivered, of all protocols.",
            operations=[
                Operation(
                    method="GET",
                    path="/dead-letters",
                    name="listDeadLetters",
                    summary="List the queues and topics that have dead letters",
                    right="monitor",
                    handler=self._list,
                    query=PageQuery,
                    answer=Page[DeadLetterLocation],
                ),
                Operation(
                    method="GET",
                    path="/dead-letters/{location}",
                    name="getDeadLetters",
                    summary="Show dead letters by reason and source",
                    about="For callers who may subscribe to what the place collects.",
                    right="monitor",
                    handler=self._show,
                    answer=DeadLetterDetails,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/dead-letters/{location}/redrive",
                    name="redriveDeadLetters",
                    summary="Send dead letters on",
                    about="Each is stored anew and leaves its place in one step, also over a "
                    "crash. The caller has to have the right to publish at the target.",
                    right="operate",
                    handler=self._redrive,
                    body=RedriveBody,
                    answer=Redriven,
                    path_about=named,
                ),
            ],
        )

    # --- which there are ------------------------------------------------------------------------

    async def _list(self, call: Call[PageQuery]) -> Page[DeadLetterLocation]:
        return await in_steps(self._page(call.query))

    def _page(self, query: PageQuery) -> Generator[Any, Any, Page[DeadLetterLocation]]:
        found: dict[str, Kind] = {}
        for name in self._topics():
            found[f"topic:{display_name(name)}"] = self._kind_of(name)
        found |= dict.fromkeys((yield from self._queues()), "amqp")
        listing: Listing[Kind, DeadLetterLocation] = Listing(
            names=found,
            find=lambda name: found[name] if self._location(name) is not None else None,
            row=lambda name, kind: DeadLetterLocation(
                location=name, kind=kind, messages=self._need_location(name).count()
            ),
        )
        return (yield from page_of(listing, query))

    def _topics(self) -> list[str]:
        """Topics that have dead letters, or retries."""
        chosen = {
            parse_display_name(name)
            for document in self._engine.documents.of_kind(HTTP_DOCUMENTS).values()
            if (name := document["config"].get("deadLetterTopic"))
        }
        prefixes = (DEAD_LETTER_PREFIX, RETRY_PREFIX)
        topics = self._engine.topics.topics
        return [name for name in list(topics) if name.startswith(prefixes) or name in chosen]

    def _kind_of(self, topic: str) -> Kind:
        if topic == ASIDE_TOPIC:
            return "set_aside"
        if topic.startswith(RETRY_PREFIX):
            return "retry"
        group = topic.removeprefix(DEAD_LETTER_PREFIX)
        is_group = topic != group and self._engine.groups.info(group) is not None
        return "rocketmq" if is_group else "http"

    def _queues(self) -> Generator[None, None, list[str]]:
        """Queues that are bound to a dead letter exchange, or named by a dead letter key."""
        queues = self._engine.named_queues.queues
        exchanges: set[str] = set()
        named: set[str] = set()
        for number, found in enumerate(list(queues.values())):
            settings = found.terms.settings
            if settings.dead_letter_exchange:
                exchanges.add(settings.dead_letter_exchange)
            elif settings.dead_letter_exchange is not None and settings.dead_letter_key:
                named.add(settings.dead_letter_key)
            if number % STEP_ENTRIES == 0:
                yield
        locations = []
        for number, (name, found) in enumerate(list(queues.items())):
            if name in named or (
                exchanges and any(key[0] in exchanges for key, _ in found.bindings.pairs())
            ):
                locations.append(f"queue:{name}")
            if number % STEP_ENTRIES == 0:
                yield
        return locations

    def _location(self, identity: str) -> Location | None:
        try:
            return self._need_location(identity)
        except Refused:
            return None

    def _need_location(self, identity: str) -> Location:
        """Raises Refused: NOT_FOUND."""
        kind, _, name = identity.partition(":")
        if kind == "queue":
            return QueueLocation(self._engine, name)
        if kind == "topic":
            return TopicLocation(self._engine, parse_display_name(name))
        raise Refused(Reason.NOT_FOUND, f"{identity!r} does not begin with queue: or topic:")

    def _readable(self, call: Call[Any]) -> Location:
        """The place that a call names, whose contents the caller may see. Raises Refused."""
        location = self._need_location(call.path["location"])
        if isinstance(location, QueueLocation):
            check_queue(call.port, location.name)
        elif isinstance(location, TopicLocation):
            call.port.principal.check_read((location.name, REST))
        return location

    # --- what is in one -------------------------------------------------------------------------

    async def _show(self, call: Call[Given]) -> DeadLetterDetails:
        location = self._readable(call)
        groups: dict[tuple[str, str, str | None], DeadLetterGroup] = {}
        looked_at = 0
        async for letter in _scanned(location):
            looked_at += 1
            cause = letter.cause
            target = None if cause.origin is None else cause.origin.text
            key = cause.reason, cause.source, target
            if key not in groups and len(groups) >= GROUPS_MAX:
                key = OTHERS, "", None
            found = groups.get(key)
            if found is None:
                found = groups[key] = DeadLetterGroup(
                    reason=key[0],
                    source=key[1],
                    target=key[2],
                    messages=0,
                    oldest_ms=letter.stored_ms,
                )
            found.messages += 1
            found.oldest_ms = min(found.oldest_ms, letter.stored_ms)
        return DeadLetterDetails(
            location=location.id,
            messages=location.count(),
            groups=sorted(groups.values(), key=lambda one: -one.messages),
            looked_at=looked_at,
        )

    # --- sending on -----------------------------------------------------------------------------

    async def _redrive(self, call: Call[Given]) -> Redriven:
        wanted: RedriveBody = call.body
        location, target = self._readable(call), _target(wanted)
        if isinstance(location, TopicLocation) and location.name.startswith(RETRY_PREFIX):
            raise Refused(Reason.LOCKED, "its group gets these again by itself")
        sender = Sender(self._engine, call.port, target, location.id)
        if wanted.dry_run:
            return await self._count(location, wanted, sender)
        if location.id in self._busy:
            raise Refused(
                Reason.LOCKED, f"dead letters of {location.id} are being sent on: try later"
            )
        self._engine.core.check_writable()
        self._busy.add(location.id)
        try:
            outcome = await location.move(lambda one: _passes(one, wanted), sender, wanted.limit)
        finally:
            self._busy.discard(location.id)
        audit.note(
            "dead letters sent on",
            location=location.id,
            messages=outcome.moved,
            failed=sum(outcome.failed.values()),
            reason=wanted.reason,
            source=wanted.source,
            to=None if target is None else target.text,
            by=call.caller,
        )
        await self._committed(outcome.position)
        return Redriven(
            location=location.id,
            messages=outcome.moved,
            failed=outcome.failed,
            looked_at=outcome.looked_at,
            complete=outcome.complete,
            dry_run=False,
        )

    async def _count(self, location: Location, wanted: RedriveBody, sender: Sender) -> Redriven:
        count = looked_at = 0
        failed: dict[str, int] = {}
        complete = True
        async for letter in _scanned(location):
            if count == wanted.limit:
                complete = False
                break
            looked_at += 1
            if not _passes(letter, wanted):
                continue
            try:
                sender.check(letter)
            except Refused as refused:
                if refused.reason in PASSING:
                    raise
                failed[refused.text] = failed.get(refused.text, 0) + 1
                continue
            count += 1
        return Redriven(
            location=location.id,
            messages=count,
            failed=failed,
            looked_at=looked_at,
            complete=complete and looked_at < SCAN_MAX,
            dry_run=True,
        )


async def _scanned(location: Location) -> AsyncIterator[Letter]:
    """At most SCAN_MAX letters, with the loop's other work in between."""
    left, begin = SCAN_MAX, perf_counter()
    async for letters in location.scan():
        for letter in letters[:left]:
            yield letter
        left -= len(letters)
        if left <= 0:
            return
        if perf_counter() - begin > SLICE_SECONDS:
            await asyncio.sleep(0)
            begin = perf_counter()


def _passes(letter: Letter, wanted: RedriveBody) -> bool:
    return (wanted.reason is None or letter.cause.reason == wanted.reason) and (
        wanted.source is None or letter.cause.source == wanted.source
    )


def _target(wanted: RedriveBody) -> Target | None:
    """Raises Refused: BAD_ARGUMENT."""
    if wanted.exchange is not None and wanted.topic is not None:
        raise Refused(Reason.BAD_ARGUMENT, "name an exchange or a topic, not both")
    if wanted.exchange is not None:
        return Target(exchange=wanted.exchange, routing_key=wanted.routing_key)
    if wanted.topic is not None:
        return Target(topic=parse_display_name(wanted.topic), tag=wanted.tag)
    if wanted.routing_key or wanted.tag is not None:
        raise Refused(Reason.BAD_ARGUMENT, "routing_key is for exchange, and tag for topic")
    return None
