"""Options of the data source, and which topics they choose."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition

from polymq.remoting.signing import Credentials
from polymq.remoting.tls import Tls
from polymq.spark_sink.errors import BadOption
from polymq.spark_sink.options import OPTIONS, Options
from polymq.spark_sink.reading import parse_brokers
from polymq.spark_sink.selection import Selection, parse_pattern
from polymq.spark_sink.source import PolymqDataSource

CA = Path(__file__).parents[2] / "interop_tests" / "certificates" / "ca.pem"


def test_options_as_users_write_them() -> None:
    options = Options(
        {
            "broker": " a:1, b:2 ",
            "topic": "sensors, orders",
            "failOnDataLoss": "False",
            "maxOffsetsPerTrigger": "500",
        }
    )
    assert options.brokers == ("a:1", "b:2")
    assert options.selection.topics == frozenset(("orders", "sensors"))
    assert (options.fail_on_data_loss, options.rows_per_trigger) == (False, 500)
    assert Options({"broker": "a:1"}).selection == Selection()
    listed = Options({"broker": "a:1", "topic": '["a,b", " c"]'})
    assert listed.selection.topics == frozenset((" c", "a,b"))
    assert options.credentials is None
    signed = Options({"broker": "a:1", "accessKey": "K", "secretKey": "s"})
    assert signed.credentials == Credentials(access_key="K", secret_key="s")
    assert options.tls is None
    assert Options({"broker": "a:1", "tls": "true"}).tls == Tls()
    authorities = Tls(authorities=CA.read_text())
    assert Options({"broker": "a:1", "tlsCa": str(CA)}).tls == authorities
    assert Options({"broker": "a:1", "tlsCa": CA.read_text()}).tls == authorities
    strange = Options({"broker": "a:1", "tls": "true", "tlsCheckNames": "false"}).tls
    assert strange == Tls(check_names=False)
    assert pickle.loads(pickle.dumps(strange)) == strange


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "broker"),
        ({"broker": " , "}, "broker"),
        ({"broker": "a:1", "topic": ""}, "topic"),
        ({"broker": "a:1", "topic": "a,,b"}, "topic"),
        ({"broker": "a:1", "topic": "[1]"}, "topic"),
        ({"broker": "a:1", "topic": "["}, "topic"),
        ({"broker": "a:1", "accessKey": "K"}, "accessKey and secretKey"),
        ({"broker": "a:1", "secretKey": "s"}, "accessKey and secretKey"),
        ({"broker": "a:1", "tls": "yes"}, "tls"),
        ({"broker": "a:1", "tlsCa": "/no/none"}, "tlsCa"),
        ({"broker": "a:1", "tlsCa": str(CA.with_name("server.key"))}, "tlsCa"),
        ({"broker": "a:1", "excludeTopic": "a,,b"}, "excludeTopic"),
        ({"broker": "a:1", "topicPattern": "("}, "topicPattern"),
        ({"broker": "a:1", "topicPattern": ".*", "topic": "a"}, "topicPattern"),
        ({"broker": "a:1", "excludeTopic": "a", "topic": "a,b"}, "excludeTopic"),
        ({"broker": "a:1", "failOnDataLoss": "yes"}, "failOnDataLoss"),
        ({"broker": "a:1", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"broker": "a:1", "maxRecordsPerTask": "many"}, "maxRecordsPerTask"),
        ({"broker": "a:1", "minPartitions": "-1"}, "minPartitions"),
        ({"broker": "a:1", "assign": "t"}, "assign"),
        ({"broker": "a:1", "assign": '{"t": [true]}'}, "assign"),
        ({"broker": "a:1", "assign": '{"t": []}'}, "assign"),
        ({"broker": "a:1", "assign": "{}"}, "assign"),
        ({"broker": "a:1", "assign": '{"t": [0]}', "topic": "t"}, "assign"),
        ({"broker": "a:1", "startingTimestamp": "yesterday"}, "startingTimestamp"),
        (
            {"broker": "a:1", "startingTimestamp": "1", "startingOffsets": "latest"},
            "startingTimestamp",
        ),
        (
            {"broker": "a:1", "endingTimestamp": "1", "endingOffsetsByTimestamp": "{}"},
            "endingOffsetsByTimestamp",
        ),
        (
            {"broker": "a:1", "startingOffsetsByTimestampStrategy": "first"},
            "startingOffsetsByTimestampStrategy",
        ),
        ({"broker": "a:1", "maxTriggerDelay": "1m"}, "maxTriggerDelay"),
        (
            {"broker": "a:1", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"},
            "maxTriggerDelay",
        ),
        (
            {"broker": "a:1", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "minOffsetsPerTrigger",
        ),
        ({"broker": "a:1", "includeHeaders": "no"}, "includeHeaders"),
        ({"broker": "a:1", "includeHeaders": "false", "withRange": "true"}, "includeHeaders"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(BadOption, match=f"^{named}: "):
        Options(options)


def test_brokers() -> None:
    assert parse_brokers("a:1") == ("a:1",)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("topcs", "did you mean topic?"),
        ("startingOffset", "did you mean startingOffsets?"),
        ("maxBytesPerTrigger", "did you mean maxOffsetsPerTrigger?"),
        ("startingTimestamps", "did you mean startingTimestamp?"),
        ("subscribe", "did you mean topic?"),
        ("subscribePattern", "did you mean topicPattern?"),
        ("kafka.bootstrap.servers", "did you mean broker?"),
        ("zzz", "there are broker, topic, topicPattern, excludeTopic"),
    ],
)
def test_an_option_that_there_is_not_is_refused_with_a_hint(option: str, hint: str) -> None:
    """It would be left out in silence, and all topics be read."""
    with pytest.raises(BadOption, match="there is no such option; ") as refused:
        Options({"broker": "a:1", option: "x"})
    assert hint in str(refused.value)
    assert "withRange" not in str(refused.value)


def test_names_count_in_any_case_and_with_what_spark_adds() -> None:
    given = {"BROKER": "a:1", "TOPIC": "t", "FailOnDataLoss": "false", "path": "/x"}
    for options in (Options(given), Options(CaseInsensitiveDict(given))):
        assert options.selection.topics == frozenset("t")
        assert not options.fail_on_data_loss
    assert len({name.lower() for name in OPTIONS}) == len(OPTIONS)


def test_which_topics_a_selection_wants() -> None:
    topics = ["a", "ab", "b", "||"]
    chosen = [
        Selection(),
        Selection(topics=frozenset("a")),
        Selection(pattern=parse_pattern("a.?")),
        Selection(pattern=parse_pattern("a|b")),
        Selection(excluded=frozenset(("a", "||"))),
        Selection(pattern=parse_pattern("a.*"), excluded=frozenset("a")),
    ]
    assert [list(filter(selection.wants, topics)) for selection in chosen] == [
        topics,
        ["a"],
        ["a", "ab"],
        ["a", "b"],
        ["ab", "b"],
        ["ab"],
    ]


def test_what_spark_makes_of_no_partitions_has_no_rows() -> None:
    """One partition that nobody planned."""
    source = PolymqDataSource({"broker": "a:1"})
    assert list(source.reader(source.schema()).read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 900.0),
        ("90", 90.0),
        ("250ms", 0.25),
        ("2 min", 120.0),
        ("15M", 900.0),
        ("1h", 3600.0),
    ],
)
def test_how_long_a_batch_may_wait(text: str | None, seconds: float) -> None:
    given = {"broker": "a:1", "minOffsetsPerTrigger": "5"}
    pace = Options(given if text is None else {**given, "maxTriggerDelay": text}).pace
    assert pace.rows_min == 5
    assert pace.delay_seconds_max == pytest.approx(seconds)


def test_queues_that_are_assigned() -> None:
    selection = Options({"broker": "a:1", "assign": '{"t": [0, 2], "u": [1]}'}).selection
    wanted = [(topic, number) for topic in "tuv" for number in range(3)]
    assert [one for one in wanted if selection.wants_queue(*one)] == [("t", 0), ("t", 2), ("u", 1)]
