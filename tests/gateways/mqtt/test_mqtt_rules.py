"""What one listener asks of its clients: versions, logins, mount points and certificates."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop_tests import mqtt_wire as wire
from polymq.broker.port import ONE_LEVEL, REST, BrokerPort, Reason, Refused, RunMeta, shared_address
from polymq.broker.routing.patterns import matches
from polymq.broker.routing.trie import address_of
from polymq.gateways.mqtt.kernels.codes import FLAG_RETAIN
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import TopicMapping
from polymq.gateways.mqtt.rules import Rules
from polymq.net.connection import SocketConnection
from tests.gateways.mqtt.mqtt_harness import Broker, SpyPort

MOUNT = "plant/a.b/"


def mounted(fixed_topic: str | None = None) -> TopicMapping:
    port = cast("BrokerPort", SpyPort())
    return TopicMapping(port=port, limits=Limits(), fixed_topic=fixed_topic, mount_point=MOUNT)


def code_of(broker: Broker, connect: bytes) -> int:
    """How a CONNECT is answered."""
    peer = broker.peer(None)
    peer.send(connect)
    (answer,) = peer.receive()
    return answer[3]


# --- mount points ------------------------------------------------------------------------------


LEVELS = st.text(st.characters(codec="utf-8", exclude_characters="\0+#/"), max_size=5)
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@given(name=TOPICS, fixed_topic=st.sampled_from([None, "all"]))
def test_a_client_does_not_see_its_mount_point(name: str, fixed_topic: str | None) -> None:
    """What it publishes is below it, and comes back under the client's own name."""
    mapping = mounted(fixed_topic)
    topic, tag = mapping.topic_and_tag(name)
    assert mapping.name(topic, tag) == MOUNT + name
    field = mapping.topic_field(RunMeta(topic=topic, tag=tag, properties={}, prefix_size=0))
    assert field[2:].decode() == name


@given(
    pattern=st.lists(LEVELS | st.just("+"), max_size=4).map("/".join),
    rest=st.booleans(),
    name=TOPICS,
)
def test_no_filter_leads_out_of_a_mount_point(pattern: str, rest: bool, name: str) -> None:
    """It matches no name outside, not even the level that the mount point is below."""
    if rest:
        pattern = f"{pattern}/#" if pattern else "#"
    if not pattern or pattern.startswith("$"):
        return
    address = mounted().address(pattern)
    outside = TopicMapping(port=cast("BrokerPort", SpyPort()), limits=Limits(), fixed_topic=None)
    for other in (name, f"plant/{name}", "plant", "plant/a.b", f"plant/a/b/{name}"):
        if not other.startswith(MOUNT):
            assert not matches(address, address_of(*outside.topic_and_tag(other)))


def test_filters_of_a_mount_point() -> None:
    mapping = mounted()
    assert mapping.address("#") == ("plant", "a/b", ONE_LEVEL, REST)
    assert mapping.address("x/+") == ("plant", "a/b", "x", ONE_LEVEL)
    assert mapping.address("$SYS/x") == ("$SYS", "x")
    for pattern in ("#", "x/+", "$SYS/x"):
        shared = mapping.address(f"$share/group/{pattern}")
        assert shared == shared_address("group", mapping.address(pattern))


def test_what_subscribers_share_is_not_shared_over_mount_points() -> None:
    """A frame that was made for one mount point has its topic name in it."""
    plain = TopicMapping(port=cast("BrokerPort", SpyPort()), limits=Limits(), fixed_topic=None)
    assert not {plain.field_key, *plain.encoded_keys} & {
        mounted().field_key,
        *mounted().encoded_keys,
        *mounted().encoded_keys_5,
    }


def test_a_template_is_made_once_for_a_topic_of_a_mount_point() -> None:
    """The prefix costs nothing for each message."""
    mapping = mounted()
    template = mapping.template(b"x", FLAG_RETAIN)
    assert mapping.template(b"x", FLAG_RETAIN) is template


def test_sessions_belong_to_a_mount_point() -> None:
    """The same client id elsewhere is another session, and the client does not see the prefix."""
    broker = Broker(rules=Rules(mount_point="a/", other_mount_points=("a/b/", "c/")))
    assert code_of(broker, wire.connect("x")) == 0
    assert code_of(broker, wire.connect("c/x")) == 0
    assert code_of(broker, wire.connect("b/x")) == 2  # would be session x of a/b/
    assert [session.client_id for session in broker.port.connected] == ["a/x", "a/c/x"]
    broker = Broker(rules=Rules(other_mount_points=("a/",)))
    assert code_of(broker, wire.connect("a/x")) == 2
    assert code_of(broker, wire.connect("ax")) == 0


# --- who may come ------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "code"), [(3, 1), (4, 0)])
def test_a_version_that_a_listener_does_not_accept(level: int, code: int) -> None:
    broker = Broker(rules=Rules(levels=frozenset({4})))
    name = "MQIsdp" if level == 3 else "MQTT"
    assert code_of(broker, wire.connect("c", level=level, name=name)) == code
    assert broker.shared.counters.connects_refused == bool(code)


def test_nobody_is_let_in_where_logins_are_required_and_nobody_can_log_in() -> None:
    """The engine's port is that of everybody as long as there are no users."""
    broker = Broker(rules=Rules(allow_anonymous=False))
    assert code_of(broker, wire.connect("c")) == 5
    assert code_of(broker, wire.connect("c", user="ann", password=b"x")) == 4


def test_a_user_that_the_connection_proves() -> None:
    """Its password is not asked for; one that is unknown is not let in with another's password."""
    found: str | None = "ann"

    def user_of(_connection: SocketConnection) -> str | None:
        if found == "":
            raise Refused(Reason.NOT_AUTHENTICATED, "its certificate names no user")
        return found

    broker = Broker(rules=Rules(user_of=user_of))
    broker.port.users = {"bob": b"right"}
    right = wire.connect("c", user="bob", password=b"right")
    assert code_of(broker, wire.connect("c", user="bob", password=b"wrong")) == 0
    for found, code in (("nobody", 4), ("", 4), (None, 0)):  # noqa: B007  (user_of reads it)
        assert code_of(broker, right) == code
