"""The options of the format `polymq`, checked. `source` says what they mean.

An option that nobody knows is an error: it would be left out in silence, and a query that was to
read one topic would read all of them.
"""

from __future__ import annotations

import difflib
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from polymq.remoting.driver_blocking import BlockingClient
from polymq.remoting.errors import LocalProtocolError
from polymq.remoting.signing import Credentials, credentials_from
from polymq.remoting.tls import Tls
from polymq.spark_sink.errors import BadOption
from polymq.spark_sink.offsets import TASK_ROWS, Tasks
from polymq.spark_sink.reading import Seen, connect, look, parse_brokers
from polymq.spark_sink.selection import Selection, parse_pattern

OPTIONS: Final = (
    *("broker", "topic", "topicPattern", "excludeTopic", "accessKey", "secretKey"),
    *("tls", "tlsCa", "tlsCheckNames"),
    *("startingOffsets", "endingOffsets", "failOnDataLoss"),
    *("maxOffsetsPerTrigger", "maxRecordsPerTask", "minPartitions", "withRange"),
)
_SPARKS_OWN: Final = frozenset(("path", "serialization.format"))
"""Added by Spark: `load(path)` and tables in a catalog."""
_KAFKAS: Final = {
    "kafka.bootstrap.servers": "broker",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "assign": "topic",
    "maxrecordsperpartition": "maxRecordsPerTask",
}
"""What Spark's Kafka source calls them."""


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
        self.starting = given.get("startingoffsets", "earliest")
        self.ending = given.get("endingoffsets", "latest")
        self.fail_on_data_loss = _parse_bool(given, "failOnDataLoss", default=True)
        self.rows_per_trigger = _parse_count(given, "maxOffsetsPerTrigger")
        self.tasks = Tasks(
            rows_max=_parse_count(given, "maxRecordsPerTask") or TASK_ROWS,
            count_min=_parse_count(given, "minPartitions"),
        )
        self.with_range = _parse_bool(given, "withRange", default=False)

    def client(self) -> BlockingClient:
        """A client of these brokers."""
        return connect(self.brokers, self)

    def look(self, selection: Selection | None = None) -> Seen:
        """What the cluster has now, of the topics that the query reads unless others are given.
        Raises SinkError."""
        with self.client() as client:
            return look(client, selection or self.selection)


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
    return Selection(
        topics=_parse_topics("topic", given["topic"]) if "topic" in given else None,
        pattern=None if pattern is None else parse_pattern(pattern),
        excluded=_parse_topics("excludeTopic", given["excludetopic"])
        if "excludetopic" in given
        else frozenset(),
    )


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
