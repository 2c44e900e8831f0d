"""What operators want to know of the log and its disk: as a JSON value, as metrics, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polymq.broker.engine import Engine
from polymq.broker.port import display_name
from polymq.broker.retention.retention import Holder
from polymq.core_log.cut_copy import list_cuts
from polymq.core_log.files import RealFiles
from polymq.core_log.store import Store
from polymq.metrics.registry import Probe, counter, gauge
from polymq.terminal import size


def store_value(engine: Engine, store: Store, cut_directory: str) -> dict[str, Any]:
    """The log, its disk, who holds the oldest segment, and what was cut and kept."""
    cuts = list_cuts(RealFiles(), cut_directory)
    disk, retention, log = engine.core.disk, engine.retention, store.log
    segments = store.segments()
    holder = retention.holder
    return {
        "state": "failed" if engine.core.failure is not None else disk.state.value,
        "reason": str(engine.core.failure or disk.reason),
        "free_bytes": disk.free_bytes,
        "disk_bytes": disk.size_bytes,
        "reserve_bytes": disk.reserve_bytes,
        "early_bytes": disk.early_bytes,
        "ballast_bytes": max(store.ballast.held_bytes, 0),
        "start": log.start,
        "end": log.appended,
        "segments": len(segments),
        "segment_bytes": store.segment_bytes,
        "size_bytes": retention.size_bytes,
        "log_bytes_max": disk.settings.log_bytes_max,
        "excess_bytes": retention.excess_bytes,
        "held_by": None if holder is None else {"kind": holder.kind, "name": _owner(holder)},
        "held_position": None if holder is None else holder.position,
        "deleted_bytes": retention.deleted_bytes,
        "trimmed_messages": retention.trimmed_count,
        "trimmed_early_messages": retention.early_count,
        "dropped_messages": retention.dropped_count,
        "copied_messages": retention.copied_count,
        "cut_files": len(cuts),
        "cut_bytes": sum(size for _, size in cuts),
    }


def _owner(holder: Holder) -> str:
    return display_name(holder.name) if holder.kind == "topic" else holder.name


def describe_store(value: Mapping[str, Any]) -> list[str]:
    """The same as lines for people."""
    segments = "segment" if value["segments"] == 1 else "segments"
    log = (
        f"log: {size(value['end'] - value['start'])} in {value['segments']} {segments} of"
        f" {size(value['segment_bytes'])}, positions {value['start']:,} to {value['end']:,}"
    )
    disk = (
        f"disk: {value['state']}, {size(value['free_bytes'])} of {size(value['disk_bytes'])} free;"
        f" deletes early below {size(value['early_bytes'])}, refuses publishers below"
        f" {size(value['reserve_bytes'])}"
    )
    lines = [log, *_limit(value), disk]
    if value["reason"]:
        lines.append(f"  {value['reason']}")
    held = value["held_by"]
    if held is not None:
        lines.append(f"oldest segment: held by {_holder(held)}")
    elif value["segments"] > 1:
        lines.append("oldest segment: not held; it is deleted when the state has been saved")
    else:
        lines.append("oldest segment: the one that is being written")
    lines.append(
        f"since the start: {size(value['deleted_bytes'])} of the log deleted, "
        f"{value['trimmed_messages']:,} messages removed by retention, "
        f"{value['dropped_messages']:,} dropped from queues, {value['copied_messages']:,} retained "
        "messages copied forward"
    )
    if value["cut_files"]:
        lines.append(
            f"copies of what was cut: {size(value['cut_bytes'])} in {value['cut_files']} files "
            "(`polymq store cut list`)"
        )
    return lines


def _limit(value: Mapping[str, Any]) -> list[str]:
    """How large the log may be, if that was said."""
    most, used, excess = value["log_bytes_max"], value["size_bytes"], value["excess_bytes"]
    if not most:
        return []
    if excess:
        return [f"limit: {size(most)}, exceeded by {size(excess)}: topics lose messages early"]
    return [f"limit: {size(most)}, {size(used)} used; above it topics lose messages early"]


def _holder(held: Mapping[str, str]) -> str:
    name = held["name"]
    return {
        "topic": f"topic {name}: its retention keeps messages there",
        "queue": f"queue {name}: a message there is not settled",
        "session": f"the MQTT session of client {name}: a message there is not acknowledged",
        "system": f"{name} whose time has not come",
        "retained": f"retained messages, such as that of {name}",
        "backup": "a backup that is being taken",
    }.get(held["kind"], f"{held['kind']} {name}")


def store_probes(engine: Engine, store: Store) -> list[Probe]:
    """The same as metrics."""
    core, retention, log = engine.core, engine.retention, store.log
    gauges = {
        "polymq_log_start_bytes": ("First position of the log.", lambda: log.start),
        "polymq_log_size_bytes": (
            "Size of the log, without the unused part of its last segment.",
            lambda: log.appended - log.start,
        ),
        "polymq_log_bytes_max": (
            "Limit for the size of all segments together (storage.log_bytes_max). 0: no limit.",
            lambda: core.disk.settings.log_bytes_max,
        ),
        "polymq_log_excess_bytes": (
            "By how much the segments exceed this limit.",
            lambda: retention.excess_bytes,
        ),
        "polymq_disk_free_bytes": ("Free space for the log.", lambda: core.disk.free_bytes),
        "polymq_disk_reserve_bytes": (
            "Free space below which publishers are refused.",
            lambda: core.disk.reserve_bytes,
        ),
        "polymq_disk_ballast_bytes": (
            "Room that is set aside for saving and deleting when the disk is full.",
            lambda: max(store.ballast.held_bytes, 0),
        ),
        "polymq_disk_full": (
            "1 while the disk is full or nearly full, and publishers are refused.",
            lambda: float(core.full),
        ),
    }
    counters = {
        "polymq_log_deleted_bytes": (
            "Bytes of the log that were deleted.",
            lambda: retention.deleted_bytes,
        ),
        "polymq_retention_messages": (
            "Messages that retention has made unreadable by offset.",
            lambda: retention.trimmed_count,
        ),
        "polymq_retention_early_messages": (
            "Of these, messages that were deleted early because the log was above its limit.",
            lambda: retention.early_count,
        ),
        "polymq_dropped_messages": (
            "Unsettled messages that queues and sessions lost for lack of space.",
            lambda: retention.dropped_count,
        ),
    }
    probes = [gauge(name, text, read) for name, (text, read) in gauges.items()]
    probes += [counter(name, text, read) for name, (text, read) in counters.items()]
    probes.append(
        gauge(
            "polymq_log_held_position",
            "The oldest position that is still needed, by kind of holder, as of the last check.",
            lambda: {} if (holder := retention.holder) is None else {holder.kind: holder.position},
            label="kind",
        )
    )
    return probes
