"""AMQP's content properties as JSON, both ways."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.management.bindings import Binding, arguments_of
from polymq.management.errors import Problem
from polymq.management.properties import decode_properties, encode_properties

ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": 1, "b": [True, None, "x"], "c": {"d": -(2**40)}},
    "delivery_mode": 2,
    "priority": 255,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "100",
    "message_id": "m",
    "timestamp": 2**63,
    "type": "t",
    "user_id": "ann",
    "app_id": "a",
    "cluster_id": "",
}


def test_every_property_comes_back() -> None:
    assert decode_properties(encode_properties(ALL)) == ALL
    for name, value in ALL.items():
        assert decode_properties(encode_properties({name: value})) == {name: value}
    assert decode_properties(encode_properties({"other": 1})) == {}
    assert decode_properties(encode_properties({"priority": "7", "expiration": 50})) == {
        "priority": 7,
        "expiration": "50",
    }


@pytest.mark.parametrize(
    "properties",
    [{"priority": 256}, {"priority": True}, {"message_id": "x" * 256}, {"headers": []},
     {"timestamp": -1}, {"reply_to": []}, {"headers": {"x" * 256: 1}}, {"headers": {"x": 2**70}}],
)  # fmt: skip
def test_wrong_properties_are_refused(properties: dict[str, Any]) -> None:
    with pytest.raises(Problem, match="properties"):
        encode_properties(properties)


@pytest.mark.parametrize(
    ("key", "text", "name"),
    [
        ("", "{}", "~"),
        ("order.new", "{}", "order.new"),
        ("order.#", "{}", "order.%23"),
        ("a~b", "{}", "a%7Eb"),
        ("a b", "{}", "a+b"),
    ],
)
def test_names_of_bindings_are_rabbitmqs(key: str, text: str, name: str) -> None:
    assert Binding("x", "queue", "q", key, text).properties_key == name


def test_bindings_that_differ_in_their_arguments_have_different_names() -> None:
    names = {
        Binding("x", "queue", "q", "k", text).properties_key
        for text in ("{}", "[('a', 1)]", "[('a', 2)]", 'match:["any",[["a",["i",1]]]]')
    }
    assert len(names) == 4
    assert all(name == "k" or name.startswith("k~") for name in names)


def test_arguments_of_bindings_are_read_back() -> None:
    assert arguments_of("[('a', 1), ('b', 'x')]") == {"a": 1, "b": "x"}
    assert arguments_of('match:["any",[["a",["i",1]],["b",["V"]]]]') == {
        "x-match": "any", "a": 1, "b": None,
    }  # fmt: skip
    assert arguments_of('match:["all",[]]') == {}
    assert arguments_of("{}") == {}
