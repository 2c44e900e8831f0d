"""What the first version of the sink wrote, and how its lakes are continued.

That version named a file by queue and range alone:

    topic=<topic>/date=<YYYY-MM-DD>/hour=<HH>/q<queue>-<first>-<end>[.<part>].parquet

Nothing is renamed. A batch that this version planned may have been half written when it was
killed, so it is finished under the names that it had then; all later batches get the names of
`layout`. Positions tell which batch is whose: the old ones have format 1, and Spark keeps them in
its checkpoint. Remove this file, and what refers to it, when no such batch can be left.

That version also knew the MQTT topics that begin with `/` as the topic with the empty name. Now
the server calls it `||`, and a topic that is really named `||` has one more bar (see
`broker.names.display_name`).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from polymq.spark_sink.layout import NAME_BYTES_MAX, SUFFIX, Span, hour_directory

_EMPTY_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""What stands for an empty value in such directories, since Hive."""
_NO_NAME: Final = "||"


def current_topic(name: str) -> str:
    """What a topic is called now that was called `name` then."""
    if not name:
        return _NO_NAME
    return f"{name}|" if _is_bars(name) else name


def former_path(span: Span, hour: int, part: int = 0) -> str | None:
    """What that version called a file, from the output directory; None if it could not write
    the topic at all."""
    directory = "topic=" + (quote(_former_topic(span.topic), safe="") or _EMPTY_VALUE)
    if len(directory) > NAME_BYTES_MAX:
        return None
    suffix = f".{part}{SUFFIX}" if part else SUFFIX
    name = f"q{span.queue_id}-{span.first}-{span.end}{suffix}"
    return f"{directory}/{hour_directory(hour)}/{name}"


def _former_topic(name: str) -> str:
    """The inverse of `current_topic`."""
    if name == _NO_NAME:
        return ""
    return name[:-1] if _is_bars(name) else name


def _is_bars(name: str) -> bool:
    return len(name) >= len(_NO_NAME) and not name.strip("|")
