"""Topic names and filters between MQTT and the engine: one-to-one, and what is refused."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polymq.broker.port import (
    ONE_LEVEL,
    REST,
    BrokerPort,
    Reason,
    Refused,
    RunMeta,
    pattern_of,
    shared_address,
)
from polymq.broker.routing.patterns import matches
from polymq.broker.routing.trie import address_of
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.kernels.codes import FLAG_RETAIN
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import (
    CONNECT_REASONS,
    PUBLISH_REASONS,
    SUBSCRIBE_REASONS,
    TopicMapping,
)
from polymq.gateways.mqtt.reason_codes import CONNECT_CODES_3
from tests.gateways.mqtt.mqtt_harness import SpyPort


def make_mapping(
    fixed_topic: str | None = None, *, limits: Limits | None = None, port: SpyPort | None = None
) -> TopicMapping:
    return TopicMapping(
        port=cast("BrokerPort", port or SpyPort()),
        limits=limits or Limits(),
        fixed_topic=fixed_topic,
    )


ADDRESSES = [
    ("sensors", "sensors", None),
    ("sensors/", "sensors", ""),
    ("sensors/room1/temp", "sensors", "room1.temp"),
    ("sensors//temp", "sensors", ".temp"),
    ("sensors/v1.2/temp", "sensors", "v1/2.temp"),
    ("a.b/c", "a.b", "c"),
    ("/", "", ""),
    ("/temp", "", "temp"),
    ("//", "", "."),
    ("Ü/ß", "Ü", "ß"),
    # what other protocols may have in their names and MQTT may not
    ("a|2fb/c", "a/b", "c"),
    ("a|2b|23", "a+#", None),
    ("a/x|2by/|23", "a", "x+y.#"),
    ("a/x|2fy", "a", "x|2fy"),
    ("a|7c2f", "a|2f", None),
    ("a|7c7c2f", "a|7c2f", None),
    ("a|7c", "a|7c", None),
    ("a|b", "a|b", None),
    ("||2f", "|/", None),
]


@pytest.mark.parametrize(("name", "topic", "tag"), ADDRESSES)
def test_places(name: str, topic: str, tag: str | None) -> None:
    mapping = make_mapping()
    assert mapping.topic_and_tag(name) == (topic, tag)
    assert mapping.name(topic, tag) == name


@pytest.mark.parametrize(
    ("name", "tag"),
    [("device7/temp", "device7.temp"), ("device7", "device7"), ("v1.2/x", "v1/2.x"), ("/", ".")],
)
def test_places_under_a_fixed_topic(name: str, tag: str) -> None:
    """A fleet whose first level is a device keeps its whole path in the tag."""
    mapping = make_mapping("telemetry")
    assert mapping.topic_and_tag(name) == ("telemetry", tag)
    assert mapping.name("telemetry", tag) == name


mqtt_names = st.text(
    st.sampled_from("ab/.|27cf3$é") | st.characters(codec="utf-8", exclude_characters="+#\0"),
    min_size=1,
)


@given(name=mqtt_names, fixed=st.sampled_from([None, "t"]))
@example(name="|7c2f/|7c7c23", fixed=None)
def test_every_topic_name_comes_back(name: str, fixed: str | None) -> None:
    mapping = make_mapping(fixed)
    assert mapping.name(*mapping.topic_and_tag(name)) == name


foreign_names = st.text(st.sampled_from("ab/.|27cf3b+#é") | st.characters(codec="utf-8"))


@given(topic=foreign_names.filter(lambda name: "\0" not in name), tag=st.none() | foreign_names)
def test_every_place_of_other_protocols_has_a_name_of_its_own(topic: str, tag: str | None) -> None:
    """Legal in MQTT, and it leads back to the same place, so that a client can answer there."""
    mapping = make_mapping()
    name = mapping.name(topic, tag)
    assert name
    assert not set(name) & set("+#\0")
    if (topic or tag is not None) and "\0" not in (tag or ""):
        assert mapping.topic_and_tag(name) == (topic, tag)


def test_names_that_mqtt_cannot_express_are_still_delivered() -> None:
    mapping = make_mapping()
    assert mapping.name("a\0b", None) == "a|00b"
    assert mapping.name("caf\udce9", "x\udcff") == "caf|e9/x|ff"
    assert mapping.name("", None) == "||"
    assert make_mapping("t").name("t", None) == "||"
    assert make_mapping("t").name("t", "") == "||"


FILTERS = [
    ("sensors/room1", ("sensors", "room1")),
    ("sensors/", ("sensors", "")),
    ("sensors/+/temp", ("sensors", ONE_LEVEL, "temp")),
    ("sensors/#", ("sensors", REST)),
    ("#", (REST,)),
    ("+", (ONE_LEVEL,)),
    ("+/+/#", (ONE_LEVEL, ONE_LEVEL, REST)),
    ("/+", ("", ONE_LEVEL)),
    ("sensors/v1.2", ("sensors", "v1/2")),
    ("a|2fb/x|2b", ("a/b", "x+")),
    ("$SYS/#", ("$SYS", REST)),
    ("$shared/x", ("$shared", "x")),
    ("$queued/x", ("$queued", "x")),
]


@pytest.mark.parametrize(("pattern", "address"), FILTERS)
def test_filters(pattern: str, address: tuple[str, ...]) -> None:
    assert make_mapping().address(pattern) == address


@pytest.mark.parametrize(
    ("pattern", "address"),
    [("#", ("t", REST)), ("+/x", ("t", ONE_LEVEL, "x")), ("d7/v1.2", ("t", "d7", "v1/2"))],
)
def test_filters_under_a_fixed_topic(pattern: str, address: tuple[str, ...]) -> None:
    assert make_mapping("t").address(pattern) == address


@pytest.mark.parametrize("fixed", [None, "t"])
@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        # 3.1.1 part 4.7.1.2 and 4.7.1.3, the standard's own examples
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("ACCOUNTS", "Accounts", False),  # [MQTT-4.7.3-4]: as they are
        ("a.b/c", "a/b/c", False),
        ("a/b.c", "a/b.c", True),
        ("a/b.c", "a/b/c", False),
    ],
)
def test_what_filters_match(fixed: str | None, pattern: str, name: str, expected: bool) -> None:
    mapping = make_mapping(fixed)
    assert matches(mapping.address(pattern), address_of(*mapping.topic_and_tag(name))) is expected


@pytest.mark.parametrize(
    ("pattern", "name"), [("#", "$SYS/x"), ("+/monitor/Clients", "$SYS/monitor/Clients")]
)
def test_leading_wildcards_leave_the_servers_topics_alone(pattern: str, name: str) -> None:
    """[MQTT-4.7.2-1]."""
    mapping = make_mapping()
    assert not matches(mapping.address(pattern), address_of(*mapping.topic_and_tag(name)))
    assert matches(mapping.address("$SYS/#"), address_of(*mapping.topic_and_tag("$SYS/x")))


@pytest.mark.parametrize(
    ("pattern", "name", "shared"),
    [
        ("$share/g/a", "g", "a"),
        ("$share/a b/#", "a b", "#"),
        ("$share/$share//+", "$share", "/+"),
        ("$queue/a/b", "$queue", "a/b"),
        ("$queue//+", "$queue", "/+"),
        ("$share/$queue/a", "$queue", "a"),
    ],
)
def test_a_shared_subscription_is_a_name_and_a_filter(pattern: str, name: str, shared: str) -> None:
    """Permissions and routing see the filter only."""
    mapping = make_mapping()
    address = mapping.address(pattern)
    assert address == shared_address(name, mapping.address(shared))
    assert pattern_of(address) == mapping.address(shared)


@pytest.mark.parametrize(
    "pattern",
    ["$share", "$share/", "$share/g", "$share/g/", "$share//a", "$share/g+/a", "$share/#/a",
     "$share/g/$share/h/a", "$queue", "$queue/", "$queue/$share/g/a", "$queue/$queue/a",
     "$share/g/$queue/a"],
)  # fmt: skip
def test_wrong_shared_subscriptions_are_refused(pattern: str) -> None:
    """An ordinary filter of that name would never match."""
    with pytest.raises(Refused, match="shared subscription"):
        make_mapping().address(pattern)


# --- templates -------------------------------------------------------------------------------


def test_a_template_is_made_once_per_topic_and_flags() -> None:
    port = SpyPort()
    mapping = make_mapping(port=port)
    first = mapping.template(b"a/b", 2)
    assert mapping.template(b"a/b", 2) is first
    assert mapping.template(b"a/b", 2 | FLAG_RETAIN) is not first
    assert mapping.template(b"a/b", 0) is not first
    assert port.templates_made == 3


def test_a_template_of_a_deleted_topic_is_made_anew() -> None:
    mapping = make_mapping()
    first = mapping.template(b"a", 0)
    first.valid = False  # type: ignore[misc]
    second = mapping.template(b"a", 0)
    assert second is not first
    assert mapping.template(b"a", 0) is second


def test_remembered_templates_are_bounded() -> None:
    port = SpyPort()
    mapping = make_mapping(port=port, limits=Limits(templates_max=4))
    for number in range(9):
        mapping.template(b"t%d" % number, 0)
    assert port.templates_made == 9
    mapping.template(b"t8", 0)
    assert port.templates_made == 9
    mapping.template(b"t0", 0)
    assert port.templates_made == 10


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        (b"", "MQTT-4.7.3-1"),
        (b"a/+", "MQTT-3.3.2-2"),
        (b"#", "MQTT-3.3.2-2"),
        (b"a\xff", "MQTT-1.5.3-1"),
        (b"a\xed\xbf\xbf", "MQTT-1.5.3-1"),
        (b"a\x00", "MQTT-1.5.3-2"),
        (b"a\x02b", "3.1.1 part 1.5.3"),
    ],
)
def test_topics_that_break_the_protocol(topic: bytes, rule: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        make_mapping().template(topic, 0)
    assert caught.value.rule == rule


def test_topics_of_the_server_and_deep_topics_are_refused() -> None:
    mapping = make_mapping(limits=Limits(topic_levels_max=3))
    for topic, reason in [
        (b"$SYS/x", Reason.FORBIDDEN),
        (b"$share/g/x", Reason.FORBIDDEN),
        (b"a/b/c/d", Reason.BAD_NAME),
    ]:
        with pytest.raises(Refused) as caught:
            mapping.template(topic, 0)
        assert caught.value.reason is reason
    mapping.template(b"a/b/c", 0)
    with pytest.raises(Refused):
        mapping.address("a/b/c/#")
    assert mapping.address("a/b/#") == ("a", "b", REST)


def test_the_names_of_templates_have_a_size_in_all() -> None:
    """Their number says little of the memory: a name may have 64 KiB."""
    port = SpyPort()
    mapping = make_mapping(port=port, limits=Limits(template_names_bytes_max=1000))
    short = [b"t/%03d" % number for number in range(50)]
    for topic in short:
        mapping.template(topic, 0)
    for number in range(20):
        mapping.template(b"t/" + b"x" * 700 + b"%d" % number, 2)
    found = [key for table in mapping.templates for key in table]
    assert sum(map(len, found)) <= 1000
    assert len(found) == 51
    assert mapping.template(short[0], 0).valid


def test_every_reason_has_a_reason_code_in_each_packet() -> None:
    """And a refused CONNECT has an answer in all versions."""
    for codes in (CONNECT_REASONS, PUBLISH_REASONS, SUBSCRIBE_REASONS):
        assert set(codes) == set(Reason)
    assert set(CONNECT_REASONS.values()) <= set(CONNECT_CODES_3)


# --- topic names on the wire -----------------------------------------------------------------


def test_the_topic_field_is_made_once_per_kind_and_mapping() -> None:
    meta = RunMeta(topic="t", tag="a.b", properties={}, prefix_size=0)
    plain, fixed = make_mapping(), make_mapping("t")
    assert plain.topic_field(meta) == b"\x00\x05t/a/b"
    assert fixed.topic_field(meta) == b"\x00\x03a/b"
    assert plain.topic_field(meta) is plain.topic_field(meta)
    assert plain.encoded_keys != fixed.encoded_keys


def test_a_topic_that_is_too_long_for_mqtt_becomes_a_hash() -> None:
    mapping = make_mapping()
    fields = {
        mapping.topic_field(RunMeta(topic="t", tag=tag, properties={}, prefix_size=0))
        for tag in ("#" * 30_000, "#" * 30_001)
    }
    assert len(fields) == 2
    for one in fields:
        assert one.startswith(b"\x00\x42|h")
        assert len(one) == 2 + 66
