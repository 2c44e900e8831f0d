"""The options of the format `polymq`, checked. `source` says what they mean.

An option that nobody knows is an error: it would be left out in silence, and a query that was to
read one topic would read all of them.
"""

from __future__ import annotations

import difflib
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polymq.remoting.driver_blocking import BlockingClient
from polymq.remoting.errors import LocalProtocolError
from polymq.remoting.signing import Credentials, credentials_from
from polymq.remoting.tls import Tls
from polymq.spark_sink.errors import BadOption
from polymq.spark_sink.offsets import (
    TASK_ROWS,
    Positions,
    Queue,
    Snapshot,
    Tasks,
    check_found,
    ending_positions,
    starting_positions,
    times_of,
)
from polymq.spark_sink.reading import Seen, connect, look, offsets_at, parse_brokers
from polymq.spark_sink.selection import Selection, parse_pattern

OPTIONS: Final = (
    *("broker", "topic", "topicPattern", "excludeTopic", "accessKey", "secretKey"),
    *("tls", "tlsCa", "tlsCheckNames"),
    *("assign", "startingOffsets", "endingOffsets", "failOnDataLoss"),
    *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("endingTimestamp", "endingOffsetsByTimestamp", "includeHeaders"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("maxRecordsPerTask", "minPartitions", "withRange"),
)
_SPARKS_OWN: Final = frozenset(("path", "serialization.format"))
"""Added by Spark: `load(path)` and tables in a catalog."""
_KAFKAS: Final = {
    "kafka.bootstrap.servers": "broker",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "maxrecordsperpartition": "maxRecordsPerTask",
}
"""What Spark's Kafka source calls them."""
_DELAY: Final = re.compile(r"([0-9]{1,9})\s*(ms|s|m|min|h)?")
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class Options:
    """The options of a query, checked. Names count in any case, as everywhere in Spark.

    Raises:
        BadOption: the text begins with the option's name.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        _check_names(given)
        if "broker" not in given:
            raise BadOption("broker: name the broker to read from, HOST:PORT")
        self.brokers = parse_brokers(given["broker"])
        self.credentials = _parse_keys(given)
        self.tls = _parse_tls(given)
        self.selection = _parse_selection(given)
        self.starting = _parse_edge(given, "starting", "earliest")
        self.ending = _parse_edge(given, "ending", "latest")
        self.fail_on_data_loss = _parse_bool(given, "failOnDataLoss", default=True)
        self.rows_per_trigger = _parse_count(given, "maxOffsetsPerTrigger")
        self.pace = _parse_pace(given, self.rows_per_trigger)
        self.tasks = Tasks(
            rows_max=_parse_count(given, "maxRecordsPerTask") or TASK_ROWS,
            count_min=_parse_count(given, "minPartitions"),
        )
        self.with_headers = _parse_bool(given, "includeHeaders", default=True)
        self.with_range = _parse_bool(given, "withRange", default=False)
        if self.with_range and not self.with_headers:
            raise BadOption("includeHeaders: the rows of withRange have all columns")

    def client(self) -> BlockingClient:
        """A client of these brokers."""
        return connect(self.brokers, self)

    def look(self, selection: Selection | None = None) -> Seen:
        """What the cluster has now, of the topics that the query reads unless others are given.
        Raises SinkError."""
        with self.client() as client:
            return look(client, selection or self.selection)

    def begin(self) -> Positions:
        """Where a new query begins, as of now. Raises SinkError."""
        with self.client() as client:
            return self._begin(client, look(client, self.selection).queues)

    def begin_and_end(self) -> tuple[Seen, Positions, Positions]:
        """What there is now, and where a batch query begins and ends in it. Raises SinkError."""
        with self.client() as client:
            seen = look(client, self.selection)
            at_time = _at_time(client, self.ending, seen.queues)
            end = ending_positions(self.ending.offsets, seen.queues, at_time)
            return seen, self._begin(client, seen.queues), end

    def _begin(self, client: BlockingClient, snapshot: Snapshot) -> Positions:
        at_time = _at_time(client, self.starting, snapshot)
        return starting_positions(self.starting.offsets, snapshot, at_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Where a query begins or ends.

    Attributes:
        offsets: see `offsets.starting_positions`.
        times: what stands for offsets where it is given (`offsets.times_of`), and
        times_option: the option that it was given by.
        must_be_found: a queue without a message of its time or later is an error.
    """

    offsets: str
    times: str = ""
    times_option: str = ""
    must_be_found: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When a batch of a stream may wait for more messages.

    Attributes:
        rows_min: it waits while there are fewer; None: it does not wait.
        delay_seconds_max: since the last batch.
    """

    rows_min: int | None = None
    delay_seconds_max: float = 15 * 60.0


def _at_time(client: BlockingClient, edge: Edge, snapshot: Snapshot) -> dict[Queue, int]:
    """The offsets of queues that begin or end at a time."""
    if not edge.times:
        return {}
    times = times_of(edge.times, snapshot, edge.times_option)
    found = offsets_at(client, times, snapshot)
    if edge.must_be_found:
        check_found(found, times, snapshot, edge.times_option)
    return found


def _parse_edge(given: Mapping[str, str], end: str, default: str) -> Edge:
    """The options `<end>Offsets`, `<end>Timestamp` and `<end>OffsetsByTimestamp`, of which one may
    be there."""
    names = [f"{end}Offsets", f"{end}Timestamp", f"{end}OffsetsByTimestamp"]
    found = [name for name in names if name.lower() in given]
    if len(found) > 1:
        raise BadOption(f"{found[1]}: {found[0]} is given, too; use one of the two")
    strategy = given.get(f"{end}OffsetsByTimestampStrategy".lower(), "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise BadOption(f"{end}OffsetsByTimestampStrategy: write error or latest")
    if not found or found[0] == names[0]:
        return Edge(offsets=given.get(names[0].lower(), default))
    text = given[found[0].lower()].strip()
    if found[0] == names[1] and not text.isdecimal():
        raise BadOption(f"{names[1]}: write milliseconds since 1970, not {text[:100]!r}")
    return Edge(
        offsets=default,
        times=text,
        times_option=found[0],
        must_be_found=end == "starting" and strategy == "error",
    )


def _parse_pace(given: Mapping[str, str], rows_max: int | None) -> Pace:
    rows_min = _parse_count(given, "minOffsetsPerTrigger")
    text = given.get("maxtriggerdelay")
    if rows_min is None:
        if text is not None:
            raise BadOption("maxTriggerDelay: it needs minOffsetsPerTrigger")
        return Pace()
    if rows_max is not None and rows_min > rows_max:
        raise BadOption("minOffsetsPerTrigger: it is more than maxOffsetsPerTrigger")
    if text is None:
        return Pace(rows_min=rows_min)
    match = _DELAY.fullmatch(text.strip().lower())
    if match is None:
        raise BadOption(f"maxTriggerDelay: write a time such as 90s, 15m or 1h, not {text!r}")
    return Pace(rows_min=rows_min, delay_seconds_max=int(match[1]) * _UNIT_SECONDS[match[2] or "s"])


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in OPTIONS}
    for name in sorted(given.keys() - known.keys() - _SPARKS_OWN):
        likely = _KAFKAS.get(name)
        if likely is None:
            found = difflib.get_close_matches(name, known, n=1)
            likely = known[found[0]] if found else None
        hint = f"did you mean {likely}?" if likely else f"there are {', '.join(OPTIONS[:-1])}"
        raise BadOption(f"{name}: there is no such option; {hint}")


def _parse_keys(given: Mapping[str, str]) -> Credentials | None:
    try:
        return credentials_from(given.get("accesskey"), given.get("secretkey"))
    except LocalProtocolError as error:
        raise BadOption(f"accessKey and secretKey: {error}") from error


def _parse_tls(given: Mapping[str, str]) -> Tls | None:
    authorities = given.get("tlsca", "")
    if not _parse_bool(given, "tls", default=bool(authorities)):
        return None
    if authorities and not authorities.lstrip().startswith("-----BEGIN"):
        try:
            authorities = Path(authorities).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise BadOption(f"tlsCa: {authorities} cannot be read: {error}") from error
    tls = Tls(
        authorities=authorities, check_names=_parse_bool(given, "tlsCheckNames", default=True)
    )
    try:
        tls.context()
    except ssl.SSLError as error:
        raise BadOption("tlsCa: it holds no certificates in PEM form") from error
    return tls


def _parse_selection(given: Mapping[str, str]) -> Selection:
    pattern = given.get("topicpattern")
    if "assign" in given:
        if others := [name for name in ("topic", "topicPattern") if name.lower() in given]:
            raise BadOption(f"assign: {others[0]} is given, too; use one of the two")
        assigned = _parse_assigned(given["assign"])
        return Selection(topics=frozenset(assigned), assigned=assigned)
    return Selection(
        topics=_parse_topics("topic", given["topic"]) if "topic" in given else None,
        pattern=None if pattern is None else parse_pattern(pattern),
        excluded=_parse_topics("excludeTopic", given["excludetopic"])
        if "excludetopic" in given
        else frozenset(),
    )


def _parse_assigned(text: str) -> dict[str, frozenset[int]]:
    """The option `assign`: topic to numbers of queues, as JSON."""
    try:
        document = json.loads(text)
        assigned = {topic: frozenset(numbers) for topic, numbers in document.items()}
        good = all(type(one) is int and one >= 0 for some in assigned.values() for one in some)
    except (ValueError, TypeError, AttributeError):
        assigned, good = {}, False
    if not (good and assigned and all(assigned.values())):
        raise BadOption(f'assign: write JSON such as {{"sensors": [0, 1]}}, not {text[:100]!r}')
    return assigned


def _parse_topics(option: str, text: str) -> frozenset[str]:
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise BadOption(f"{option}: {text[:100]!r} is not a JSON list") from error
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadOption(f"{option}: write names by commas or a JSON list, not {text[:100]!r}")
    return frozenset(names)


def _parse_bool(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise BadOption(f"{name}: write true or false, not {text!r}")
    return text == "true"


def _parse_count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise BadOption(f"{name}: write a positive number, not {text!r}")
    return int(text)
