"""Tags and roles, rates, paths, and what clients send."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.management.bodies import Body
from polymq.management.callers import Rank
from polymq.management.errors import Problem
from polymq.management.figures import RATE_SECONDS_MAX, SAMPLES_MAX, Rates, with_details
from polymq.management.routing import Call, Route, Table
from polymq.management.tags import BadTag, read_tags, roles_of, tags_of


def test_tags_become_roles_and_roles_tags() -> None:
    """No tag of a file gives rights that RabbitMQ did not give by it."""
    assert roles_of(["administrator", "monitoring", "mine"]) == ["admin", "reader", "mine"]
    assert tags_of(["admin", "reader", "mine"]) == ["administrator", "monitoring", "mine"]
    assert tags_of(["operator"]) == ["monitoring", "policymaker"]
    assert roles_of(["policymaker", "management"]) == ["policymaker", "management"]
    for reserved in ("admin", "operator", "reader", "anonymous", "a b"):
        with pytest.raises(BadTag):
            roles_of([reserved])
    assert read_tags("a, b,") == ["a", "b"]
    assert read_tags(["a"]) == ["a"]
    assert read_tags("") == []
    with pytest.raises(BadTag):
        read_tags(7)


def test_rates_are_what_has_changed_between_questions() -> None:
    """Who asks twice within a second gets the same answer; after a long silence there is none."""
    at = [100.0]
    rates = Rates(lambda: at[0])
    assert rates.with_rates("q", {"n": 10}) == {"n": 10, "n_details": {"rate": 0.0}}
    at[0] += 5
    assert rates.with_rates("q", {"n": 30})["n_details"] == {"rate": 4.0}
    at[0] += 0.5
    assert rates.with_rates("q", {"n": 99})["n_details"] == {"rate": 4.0}
    at[0] += 4.5
    assert rates.with_rates("q", {"n": 20})["n_details"] == {"rate": -2.0}
    at[0] += RATE_SECONDS_MAX + 1
    assert rates.with_rates("q", {"n": 2000})["n_details"] == {"rate": 0.0}


def test_of_more_than_are_remembered_no_sample_is_taken() -> None:
    """Each would push out one that the next question needs."""
    at = [100.0]
    rates = Rates(lambda: at[0])
    rates.rates_of_many(SAMPLES_MAX)("q", {"n": 10})
    at[0] += 5
    assert rates.rates_of_many(SAMPLES_MAX + 1)("q", {"n": 30}) == {}
    assert rates.rates_of_many(1)("q", {"n": 30}) == {"n": 4.0}
    assert with_details({"messages": 3}, {"messages": 4.0}, ["messages"]) == {
        "messages": 3,
        "messages_details": {"rate": 4.0},
    }
    assert with_details({"ack": 3}, {}, ["ack"])["ack_details"] == {"rate": 0.0}


async def _handler(_call: Call) -> None:
    """Not called."""


def table() -> Table:
    paths = ("/queues", "/queues/{vhost}", "/queues/detailed", "/queues/{vhost}/{name}")
    return Table(Route("GET", path, Rank.MANAGEMENT, _handler) for path in paths)


@pytest.mark.parametrize(
    ("path", "found", "names"),
    [
        ("/api/queues", "/queues", {}),
        ("/api/queues/", "/queues", {}),
        ("/api/queues/%2F", "/queues/{vhost}", {"vhost": "/"}),
        ("/api/queues/%2f/a%2Fb%25", "/queues/{vhost}/{name}", {"vhost": "/", "name": "a/b%"}),
        ("/api/queues/detailed", "/queues/detailed", {}),
        ("/api/queues/%2F/%FF", "/queues/{vhost}/{name}", {"vhost": "/", "name": "\udcff"}),
    ],
)
def test_paths(path: str, found: str, names: dict[str, str]) -> None:
    route, given = table().find("HEAD", path)
    assert (route.path, given) == (found, names)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/queues/other", 404),
        ("GET", "/queues", 404),
        ("GET", "/api/other", 404),
        ("GET", "/", 404),
        ("PUT", "/api/queues", 405),
    ],
)
def test_paths_that_lead_nowhere(method: str, path: str, status: int) -> None:
    """There is one virtual host."""
    with pytest.raises(Problem) as refused:
        table().find(method, path)
    assert refused.value.status == status


def test_bodies_are_read_as_rabbitmq_reads_them() -> None:
    body = Body(b'{"durable": "true", "count": "5", "name": "x", "arguments": [], "y": 1}')
    assert body.flag("durable", False)
    assert not body.flag("auto_delete", False)
    assert body.number("count") == 5
    assert body.number("other", 7) == 7
    assert body.text("name") == "x"
    assert body.table("arguments") == {}
    assert Body(b"").value == {}


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (b"[]", lambda body: body.value),
        (b"{", lambda body: body.value),
        (b'{"a": 1}', lambda body: body.text("a")),
        (b"{}", lambda body: body.text("a")),
        (b'{"a": "yes"}', lambda body: body.flag("a", True)),
        (b'{"a": -1}', lambda body: body.number("a")),
        (b'{"a": true}', lambda body: body.number("a")),
        (b'{"a": [1]}', lambda body: body.table("a")),
    ],
)
def test_wrong_bodies_are_refused(content: bytes, read: Any) -> None:
    with pytest.raises(Problem) as refused:
        read(Body(content))
    assert refused.value.status == 400
