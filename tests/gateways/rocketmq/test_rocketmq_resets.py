"""Setting a group back while its topic goes, or its disk: it is answered, the connection stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from polymq.broker.port import GroupInfo, Reason, Refused
from tests.gateways.rocketmq.rocketmq_spy_port import SpyPort
from tests.gateways.rocketmq.test_rocketmq_server import play, scene
from tests.harness.spy_port import operation


@dataclass(slots=True)
class GroupPort(SpyPort):
    """A port with one group; looking for a time ends when the test says so."""

    searches: list[Callable[[int | None], None]] = field(default_factory=list)
    committed: list[tuple[str, str, int, int]] = field(default_factory=list)

    def group(self, name: str) -> GroupInfo | None:
        return GroupInfo(name=name, settings={}) if name == "billing" else None

    @operation("queries.by_time")
    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, callback: Callable[[int | None], None]
    ) -> None:
        self.searches.append(callback)

    @operation("groups.offset")
    def group_offset(self, name: str, topic: str, queue_id: int) -> int | None:
        return None

    @operation("groups.commit")
    def commit_group_offset(self, name: str, topic: str, queue_id: int, offset: int) -> None:
        if topic not in self.topic_by_name:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {topic!r}")
        self.committed.append((name, topic, queue_id, offset))


def spy() -> GroupPort:
    port = GroupPort()
    port.create("t", queues=2)
    return port


RESET = {"group": "billing", "topic": "t", "timestamp": 5, "isForce": "true"}


def test_a_topic_that_is_deleted_during_the_search() -> None:
    """The client is told so, no offset is kept for a topic that is not there, and the next request
    of the connection is answered."""

    async def story() -> None:
        port = spy()
        async with scene(spy=port) as stage:
            peer = await stage.connect()
            peer.send(222, 1, **RESET)
            await stage.until(lambda: len(port.searches) == 2)
            port.searches[0](3)
            del port.topic_by_name["t"]
            port.searches[1](4)
            answer = await peer.answer()
            assert (answer.opaque, answer.code) == (1, 17)
            assert answer.remark is not None
            assert "there is no topic 't'" in answer.remark
            assert port.committed == []
            peer.send(222, 2, **RESET)
            assert (await peer.answer()).code == 17

    play(story)


def test_a_disk_that_can_not_be_read_sets_no_queue_back() -> None:
    """Neither those whose offset was found: a group is set back in all queues, or in none."""

    async def story() -> None:
        port = spy()
        async with scene(spy=port) as stage:
            peer = await stage.connect()
            peer.send(222, 1, **RESET)
            await stage.until(lambda: len(port.searches) == 2)
            port.searches[0](3)
            port.searches[1](None)
            assert (await peer.answer()).code == 1
            assert port.committed == []
            peer.send(222, 2, **RESET)
            await stage.until(lambda: len(port.searches) == 4)
            for search in port.searches[2:]:
                search(2)
            assert (await peer.answer()).code == 0
            assert port.committed == [("billing", "t", 0, 2), ("billing", "t", 1, 2)]

    play(story)
