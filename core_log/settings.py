"""The store's sizes and limits, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from polymq.core_log.kernels.batch import BLANK_SIZE
from polymq.core_log.next_segment import SPARE_NAMES

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How large things may become. The defaults serve one broker on one disk; tests use tiny ones.

    Attributes:
        segment_bytes: one file of the log. 1 GiB as in RocketMQ: few files, and a directory entry
            is synced once per gigabyte. Reserved on the disk ahead of use.
        segments_zeroed: whether the next file is written with zeros ahead of use. Syncs are
            shorter then, and the disk writes twice as much (`next_segment.py`).
        zeroed_sync_bytes_max: above this average of syncs there are no zeros all the same: they
            cost more than they save. 50 publishers at full speed make syncs of 250 KiB, where the
            log's acks are as quick without zeros and cost a fifth less; a single one makes syncs of
            70, where they are a tenth quicker with them.
        spare_segments_max: how many files that retention has no use for are kept, to become the
            next segment again; 0 to 2. Only where files are written with zeros first.
        open_segments_max: how many of the log's files are open at a time, beside those that are
            written, synced or read just then. A closed one is opened again in microseconds; those
            who read history are few, and read one after the other.
        chunk_bytes: one piece of the memory tail: large enough that a run seldom ends at its
            border, small enough to give memory back in small steps.
        tail_bytes_max: how much of the newest log stays in memory for readers at the tail.
        unflushed_bytes_max: how much may wait for the disk before appends are refused
            (`StorageBusy`): about a second of a fast disk.
        write_slice_bytes: of a record that is larger than a chunk, handed to the operating system
            in one loop iteration: half a millisecond, or four where it has no memory at hand.
        read_bytes_max: one read of the disk, unless a record alone is larger, so that a lagging
            reader's memory stays small.
        message_bytes_max: a body's size. RocketMQ's default.
        index_file_entries: entries of one queue index file, as in RocketMQ. A file grows with its
            entries; only a full one has this size.
        index_packed_bytes_max: entries that one queue has in the shared packs before they move to
            files of its own: as much as one sync of a file is worth.
        key_slots, key_file_entries: size of one file of the key index: four entries a slot, as in
            RocketMQ, of which we take a tenth: 2 MB of slots in memory, 42 MB on the disk.
        index_slack_bytes: how much of a pack may be out of date beside as much again as counts,
            before it is written anew.
        ballast_bytes_min, ballast_bytes_max: the room that is set aside for saving and deleting on
            a full disk. Saving 10 or 1,000 changed queues took 45 and 250 KB, all of 100,000 took
            20 MB, beside a state of 20 MB.
        host, port: what records say where they were born and stored (IPv4).
    """

    segment_bytes: int = 1024 * MEBIBYTE
    segments_zeroed: bool = True
    zeroed_sync_bytes_max: int = 128 * 1024
    spare_segments_max: int = 1
    open_segments_max: int = 64
    chunk_bytes: int = 4 * MEBIBYTE
    tail_bytes_max: int = 64 * MEBIBYTE
    unflushed_bytes_max: int = 256 * MEBIBYTE
    write_slice_bytes: int = MEBIBYTE
    read_bytes_max: int = MEBIBYTE
    message_bytes_max: int = 4 * MEBIBYTE
    index_file_entries: int = 300_000
    index_packed_bytes_max: int = 64 * 1024
    index_slack_bytes: int = 8 * MEBIBYTE
    key_slots: int = 500_000
    key_file_entries: int = 2_000_000
    ballast_bytes_min: int = 4 * MEBIBYTE
    ballast_bytes_max: int = 128 * MEBIBYTE
    host: str = "127.0.0.1"
    port: int = 10911

    def __post_init__(self) -> None:
        if self.segment_bytes <= 4 * BLANK_SIZE or self.segment_bytes >= 1 << 31:
            raise ValueError("segment_bytes has to be a size below 2 GiB")  # RocketMQ: an int
        if not 0 <= self.spare_segments_max <= len(SPARE_NAMES):
            raise ValueError(f"spare_segments_max is 0 to {len(SPARE_NAMES)}")
        if self.open_segments_max < 1:
            raise ValueError("open_segments_max has to be positive")
        if min(self.chunk_bytes, self.index_file_entries, self.message_bytes_max) <= 0:
            raise ValueError("chunk_bytes, message_bytes_max and index_file_entries are positive")
        if min(self.index_packed_bytes_max, self.index_slack_bytes) < 0:
            raise ValueError("index_packed_bytes_max and index_slack_bytes cannot be negative")
        if self.key_slots <= 0 or not 2 <= self.key_file_entries < 1 << 32:
            raise ValueError("a key file has slots, and entries whose numbers fit four bytes")
        if min(self.tail_bytes_max, self.zeroed_sync_bytes_max) < 0:
            raise ValueError("tail_bytes_max and zeroed_sync_bytes_max cannot be negative")
        if min(self.unflushed_bytes_max, self.write_slice_bytes, self.read_bytes_max) <= 0:
            raise ValueError(
                "unflushed_bytes_max, write_slice_bytes and read_bytes_max have to be positive"
            )

    @property
    def spares_max(self) -> int:
        """How many spares there may be."""
        return self.spare_segments_max if self.segments_zeroed else 0
