"""The commit log and its disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from polymq.admin.node import ShownNode
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.store_holders import HolderHandlers
from polymq.broker.port import Address
from polymq.replication_memory import CUT_DIRECTORY
from polymq.store_report import store_value


class Holder(Value):
    """What needs the oldest segment of the log.

    Attributes:
        kind: what it is: topic, queue, session, group, retained, backup, or system.
        name: its name.
    """

    kind: str
    name: str


class Store(Value):
    """The commit log and its disk.

    Attributes:
        state: ok; low: topics with a limit lose messages early; full: publishers are refused;
            failed: the disk failed, and nothing is accepted until a restart.
        reason: why, in words; empty if all is well.
        free_bytes: free space for the log.
        disk_bytes: the size of its disk.
        reserve_bytes: free space below which publishers are refused.
        early_bytes: free space below which topics with a limit lose messages early.
        ballast_bytes: room that is set aside for saving and deleting when the disk is full; it
            does not count as free.
        start: first position of the log.
        end: end of the log in memory.
        segments: how many segments it has.
        segment_bytes: the size of a segment.
        size_bytes: of all segments together.
        log_bytes_max: the setting storage.log_bytes_max; 0: no limit.
        excess_bytes: by how much the segments exceed it.
        held_by: what needs the oldest segment; null: nothing does.
        held_position: the oldest position that is needed.
        deleted_bytes: of the log, since the start.
        trimmed_messages: that retention has made unreadable by offset, since the start.
        trimmed_early_messages: of these, because the space ran out.
        dropped_messages: unsettled messages that queues and sessions lost for lack of space.
        copied_messages: retained messages that were copied forward.
        cut_files: copies of parts of the log that were cut (`polymq store cut list`).
        cut_bytes: their size.
    """

    state: Literal["ok", "low", "full", "failed"]
    reason: str
    free_bytes: int
    disk_bytes: int
    reserve_bytes: int
    early_bytes: int
    ballast_bytes: int
    start: int
    end: int
    segments: int
    segment_bytes: int
    size_bytes: int
    log_bytes_max: int
    excess_bytes: int
    held_by: Holder | None
    held_position: int | None
    deleted_bytes: int
    trimmed_messages: int
    trimmed_early_messages: int
    dropped_messages: int
    copied_messages: int
    cut_files: int
    cut_bytes: int


class StoreHandlers:
    """Carries out the operations on the store.

    Args:
        filter_name: the topic filter that an address stands for.
    """

    def __init__(self, node: ShownNode, filter_name: Callable[[Address], str]) -> None:
        self._node = node
        self._holders = HolderHandlers(node.engine, node.store, filter_name)

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="store",
            about="The commit log, its disk, and what keeps it from shrinking.",
            operations=[
                Operation(
                    method="GET",
                    path="/store",
                    name="getStore",
                    summary="Show the size of the log, the free space, and what needs the oldest "
                    "segment",
                    right="monitor",
                    handler=self._show,
                    answer=Store,
                ),
                self._holders.operation(),
            ],
        )

    async def _show(self, _call: Call[Given]) -> Store:
        node = self._node
        cuts = str(node.settings.server.data_directory / CUT_DIRECTORY)
        return msgspec.convert(store_value(node.engine, node.store, cuts), Store)
