"""RabbitMQ's definitions: read one by one, and what becomes of each."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest

from polymq.management.definitions_file import (
    STEP_DEFINITIONS,
    definitions_of,
    read_definitions,
)
from polymq.management.errors import Problem
from polymq.management.plans import Remark, Step, planned, without_lost_ends


def read(content: bytes) -> tuple[dict[str, list[str]], int]:
    """The definitions, and in how many steps they were read."""
    reading = read_definitions(content)
    steps = 0
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value, steps
        steps += 1


def test_a_large_file_is_read_in_steps() -> None:
    queues = [{"name": f"q{number}", "arguments": {"x": [1, {"y": "]}"}]}} for number in range(950)]
    document = {"rabbit_version": "3.12", "queues": queues, "other": [1], "bindings": [], "x": {}}
    for indent in (None, 2):
        found, steps = read(json.dumps(document, indent=indent).encode())
        assert [*definitions_of(found)] == [("queues", queue) for queue in queues]
        assert found["bindings"] == []
        assert steps == 950 // STEP_DEFINITIONS
    assert read(b"\xef\xbb\xbf {}")[0] == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"queues"', b'{"queues":', b'{"queues":[{}', b'{"queues":[{} {}]}',
     b'{"a":1 "b":2}', b"\xff", b'{"queues":' + b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_file_of_definitions_is_refused(content: bytes) -> None:
    with pytest.raises(Problem, match="JSON"):
        read(content)


HASH = b64encode(b"salt" + sha256(b"saltsecret").digest()).decode()
DELAYED = {"x-delayed-type": "topic"}
QUEUE = {"name": "orders", "vhost": "/", "durable": True, "arguments": {"x-max-length": 5}}

TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("users", {"name": "ann", "password_hash": HASH, "tags": ["administrator"]}),
    ("users", {"name": "ann", "password_hash": "", "tags": "a,b"}),
    ("permissions", {"user": "ann", "vhost": "/", "configure": "", "write": ".*", "read": "^a$"}),
    ("queues", QUEUE),
    ("exchanges", {"name": "shop", "type": "topic", "durable": True, "arguments": {}}),
    ("exchanges", {"name": "d", "type": "x-delayed-message", "arguments": DELAYED}),
    ("bindings", {"source": "shop", "destination": "orders", "routing_key": "a"}),
]  # fmt: skip
PASSED_OVER: list[tuple[str, dict[str, Any]]] = [
    ("vhosts", {"name": "/"}),
    ("global_parameters", {"name": "cluster_name", "value": "x"}),
    ("exchanges", {"name": "amq.topic", "type": "topic"}),
    ("bindings", {"source": "", "destination": "orders", "routing_key": "orders"}),
    ("permissions", {"user": "guest", "configure": "x", "write": "x", "read": "x"}),
]
NOT_TAKEN: list[tuple[str, object, str]] = [
    ("users", {"name": "guest", "tags": "administrator"}, "own machine"),
    ("users", {"name": "a b", "tags": ""}, "choose another"),
    ("users", {"name": "anonymous", "tags": ""}, "choose another"),
    ("users", {"name": "ann", "tags": "operator"}, "role with rights"),
    ("users", {"name": "ann", "tags": "", "password_hash": "abc"}, "is no hash"),
    (
        "users",
        {"name": "a", "password_hash": HASH, "hashing_algorithm": "rabbit_password_hashing_md5"},
        "there is no hashing algorithm",
    ),
    ("permissions", {"user": "ann", "configure": "a", "write": "", "read": ""}, "counterpart"),
    ("permissions", {"user": "ann", "configure": ""}, "key_missing: write"),
    ("vhosts", {"name": "dev"}, "one virtual host"),
    ("queues", {**QUEUE, "vhost": "dev"}, "virtual host 'dev'"),
    ("queues", {"name": "s", "arguments": {"x-queue-type": "stream"}}, "stream"),
    ("queues", {"name": "s", "arguments": {"x-max-length": "x"}}, "x-max-length"),
    ("queues", {"name": "s", "durable": 7}, "durable"),
    ("exchanges", {"name": "x", "type": "x-random"}, "unknown exchange type"),
    ("exchanges", {"name": "x"}, "key_missing: type"),
    ("bindings", {"source": "a", "destination": "b", "destination_type": "c"}, "destination_type"),
    ("policies", {"name": "p", "definition": {"message-ttl": 5}}, "message-ttl: there are no"),
    ("parameters", {"name": "p", "component": "shovel"}, "no shovels"),
    ("topic_permissions", {"user": "ann", "exchange": "x"}, "topic permissions"),
    ("queues", "text", "has to be an object"),
]


@pytest.mark.parametrize(("section", "value"), TAKEN)
def test_what_is_taken(section: str, value: dict[str, Any]) -> None:
    step = planned(section, value)
    assert isinstance(step, Step)
    assert {**step.value, **value} == step.value


@pytest.mark.parametrize(("section", "value"), PASSED_OVER)
def test_what_is_there_anyway_is_passed_over(section: str, value: dict[str, Any]) -> None:
    assert planned(section, value) is None


@pytest.mark.parametrize(("section", "value", "why"), NOT_TAKEN)
def test_what_cannot_be_taken_is_named(section: str, value: object, why: str) -> None:
    """Nobody learns after the migration that something is missing."""
    remark = planned(section, value)
    assert isinstance(remark, Remark)
    assert remark.is_loss
    assert why in str(remark)


def test_policies_without_a_meaning_are_no_loss() -> None:
    remark = planned("policies", {"name": "ha", "definition": {"ha-mode": "all"}})
    assert isinstance(remark, Remark)
    assert not remark.is_loss


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("users", {"name": 1, "tags": ""}),
        ("queues", {"name": True}),
        ("exchanges", {"name": None, "type": "topic"}),
        ("permissions", {"user": 7, "configure": "", "write": "", "read": ""}),
        ("queues", {}),
    ],
)
def test_names_are_texts(section: str, value: dict[str, Any]) -> None:
    """No user is called "1" because a file has the number."""
    plan = planned(section, value)
    assert isinstance(plan, Remark)
    assert "has to be a text" in plan.text or "key_missing" in plan.text


def test_a_section_is_a_list() -> None:
    with pytest.raises(Problem) as refused:
        read(b'{"queues": {"a": 1}}')
    assert "queues has to be a list" in refused.value.reason


def test_bindings_go_with_their_ends() -> None:
    """What is said beforehand is what happens: the server refuses them."""
    exchange = {"name": "e", "type": "x-random"}
    ends = [("e", "q"), ("amq.topic", "q"), ("amq.topic", "f")]
    bindings = [
        {"source": source, "destination": end, "destination_type": kind, "routing_key": "k"}
        for (source, end), kind in zip(ends, ("queue", "queue", "exchange"), strict=True)
    ]
    plans = [planned("exchanges", exchange), planned("queues", {"name": "q"})]
    plans += [planned("bindings", one) for one in bindings]
    remark, queue, lost, *rest = without_lost_ends(plans)
    assert isinstance(remark, Remark)
    assert isinstance(queue, Step)
    assert isinstance(lost, Remark)
    assert lost.text == "exchange 'e' cannot be taken"
    assert all(isinstance(one, Step) for one in rest)
