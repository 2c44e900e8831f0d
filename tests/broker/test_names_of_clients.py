"""Names that would do something to a terminal are refused where they come into being."""

from __future__ import annotations

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.names import check_characters
from tests.broker.queue_bench import declare, exchange
from tests.harness.broker import Broker

BAD = ["\0", "\t", "\n", "\x1b]0;title\x07", "\x7f", "\x9b", "\u202eabc", "\u2066", "a\u2069"]
GOOD = ["", "plain", "ümläut", "日本", "a b", "\u2028", "\u200d", "\udcff", "a/b.c", "$x", "\xa0"]


@pytest.mark.parametrize("name", BAD)
def test_a_name_with_a_control_character_is_refused(broker: Broker, name: str) -> None:
    before = broker.store.log.appended
    for make in (
        lambda: declare(broker, f"q{name}"),
        lambda: exchange(broker, f"x{name}"),
        lambda: broker.port.topics.create(f"t{name}", 1),
        lambda: broker.port.topics.route(f"t{name}", "tag"),
        lambda: broker.port.exchanges.route("amq.topic", f"t{name}"),
    ):
        with pytest.raises(Refused) as raised:
            make()
        assert raised.value.reason is Reason.BAD_NAME
        assert raised.value.text.isprintable()
    assert broker.store.log.appended == before


@pytest.mark.parametrize("name", GOOD)
def test_other_names_are_not(name: str) -> None:
    check_characters("a queue", name)


def test_the_refusal_names_the_character() -> None:
    with pytest.raises(Refused) as raised:
        check_characters("a queue", "abc\u202e\x1b")
    assert "U+202E" in raised.value.text


def test_a_routing_key_is_no_name(broker: Broker) -> None:
    """It is a tag, which readers print with care."""
    exchange(broker, "x")
    assert broker.port.exchanges.route("x", "a\x1bb") is not None


def test_names_that_no_client_of_amqp_could_say_are_refused(broker: Broker) -> None:
    """A short string has 255 bytes."""
    longest = "\u20ac" * 85
    declare(broker, longest)
    exchange(broker, longest)
    for make in (declare, exchange):
        with pytest.raises(Refused, match="at most 255 bytes, and this one has 256") as raised:
            make(broker, f"{longest}x")
        assert raised.value.reason is Reason.BAD_NAME
