"""Topics, and what is stored in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from polymq.admin.commits import Committed
from polymq.admin.operations import Call, Given, Group, Made, Operation, Value
from polymq.admin.pages import Listing, Numbers, Page, PageQuery, each, page_of
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.names import QUEUES_TOPIC
from polymq.broker.port import TopicInfo, display_name, parse_display_name
from polymq.broker.topics.topic import Topic as BrokerTopic
from polymq.steps import in_steps

QUEUES_MAX: Final = 1024
"""Of one topic: more readers in parallel than any group has."""


class TopicQueue(Value):
    """A queue of a topic, as readers by offset see it.

    Attributes:
        queue: its number.
        first_offset: of the oldest message that can be read.
        end_offset: one past the newest.
    """

    queue: int
    first_offset: int
    end_offset: int


class Topic(Value):
    """A topic.

    Attributes:
        name: as clients write it.
        message_count: messages that can be read by offset, in all queues.
        queues: in the order of their numbers.
        settings: what holds for the topic, by name.
        own_settings: names of the settings that were chosen for this topic; the others are the
            broker's defaults.
    """

    name: str
    message_count: int
    queues: list[TopicQueue]
    settings: dict[str, str | int]
    own_settings: list[str]


class TopicsQuery(PageQuery):
    """Which topics.

    Attributes:
        sort: by name, or by the number of messages or queues, the largest first.
    """

    sort: Literal["name", "messages", "queues"] = "name"


class NewTopic(Given):
    """What a new topic has.

    Attributes:
        queues: how many queues, at most 1,024.
        settings: values by name; the others are the broker's defaults.
    """

    queues: Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)] = 1
    settings: dict[str, str] = msgspec.field(default_factory=dict)


class TopicChange(Given):
    """New values of settings.

    Attributes:
        settings: values by name; `default` takes a setting back to the broker's default.
    """

    settings: dict[str, str]


_NUMBERS: Final[Mapping[str, Numbers[BrokerTopic]]] = {
    "messages": each(
        lambda topic: sum(queue.flushed - queue.index.first_offset for queue in topic.queues)
    ),
    "queues": each(lambda topic: len(topic.queues)),
}


class TopicHandlers:
    """Carries out the operations on topics.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._topics = engine.topics
        self._committed = committed

    def group(self) -> Group:
        """The operations."""
        named = {"name": "the topic, as clients write it"}
        return Group(
            name="topics",
            about="Where messages are stored. An exchange of AMQP and the first level of an MQTT "
            "topic are topics.",
            operations=[
                Operation(
                    method="GET",
                    path="/topics",
                    name="listTopics",
                    summary="List topics",
                    right="monitor",
                    handler=self._list,
                    query=TopicsQuery,
                    answer=Page[Topic],
                ),
                Operation(
                    method="GET",
                    path="/topics/{name}",
                    name="getTopic",
                    summary="Show a topic",
                    right="monitor",
                    handler=self._show,
                    answer=Topic,
                    on_topic=True,
                    path_about=named,
                ),
                Operation(
                    method="PUT",
                    path="/topics/{name}",
                    name="createTopic",
                    summary="Create a topic",
                    about="A topic that is there stays as it is.",
                    right="admin",
                    handler=self._create,
                    body=NewTopic,
                    answer=Topic,
                    may_make=True,
                    on_topic=True,
                    path_about=named,
                ),
                Operation(
                    method="PATCH",
                    path="/topics/{name}",
                    name="changeTopic",
                    summary="Change settings of a topic",
                    right="admin",
                    handler=self._change,
                    body=TopicChange,
                    answer=Topic,
                    on_topic=True,
                    path_about=named,
                ),
                Operation(
                    method="DELETE",
                    path="/topics/{name}",
                    name="deleteTopic",
                    summary="Delete a topic with its messages",
                    right="admin",
                    handler=self._delete,
                    on_topic=True,
                    path_about=named,
                ),
            ],
        )

    async def _list(self, call: Call[TopicsQuery]) -> Page[Topic]:
        listing = Listing(
            names=self._topics.topics,
            find=self._topics.find,
            wants_name=lambda name: name != QUEUES_TOPIC,
            row=lambda _name, topic: _shown(topic.info()),
            numbers=_NUMBERS.get(call.query.sort),
        )
        return await in_steps(page_of(listing, call.query))

    async def _show(self, call: Call[Given]) -> Topic:
        return self._shown(parse_display_name(call.path["name"]))

    async def _create(self, call: Call[Given]) -> Topic | Made:
        name, wanted = parse_display_name(call.path["name"]), call.body
        if self._topics.info(name) is not None:
            return self._shown(name)
        position = self._topics.create(name, wanted.queues, wanted.settings)
        audit.note("topic created", topic=display_name(name), by=call.caller)
        await self._committed(position)
        return Made(self._shown(name))

    async def _change(self, call: Call[Given]) -> Topic:
        name = parse_display_name(call.path["name"])
        position = self._topics.set(name, call.body.settings)
        audit.note(
            "topic changed",
            topic=display_name(name),
            settings=" ".join(sorted(call.body.settings)),
            by=call.caller,
        )
        await self._committed(position)
        return self._shown(name)

    async def _delete(self, call: Call[Given]) -> None:
        name = parse_display_name(call.path["name"])
        position = self._topics.delete(name)
        audit.note("topic deleted", topic=display_name(name), by=call.caller)
        await self._committed(position)

    def _shown(self, name: str) -> Topic:
        topic = self._topics.info(name)
        if topic is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {display_name(name)!r}")
        return _shown(topic)


def _shown(topic: TopicInfo) -> Topic:
    bounds: list[Any] = list(zip(topic.min_offsets, topic.max_offsets, strict=True))
    return Topic(
        name=display_name(topic.name),
        message_count=sum(end - first for first, end in bounds),
        queues=[
            TopicQueue(queue=number, first_offset=first, end_offset=end)
            for number, (first, end) in enumerate(bounds)
        ],
        settings=dict(topic.settings),
        own_settings=list(topic.own_settings),
    )
