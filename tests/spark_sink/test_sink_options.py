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
