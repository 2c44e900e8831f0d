"""The document of the admin API: complete, valid, and as strict as the code about who may ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from openapi_spec_validator import validate

from polymq.admin.api import read_body, read_query
from polymq.admin.openapi import descriptions, document
from polymq.admin.operations import Group
from polymq.admin.queues import DeleteQuery
from polymq.admin.topics import NewTopic
from polymq.broker.port import Reason, Refused
from tests.harness.broker import Broker
from tests.polymq.admin.harness import groups_of


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Group]]:
    broker = Broker(tmp_path_factory.mktemp("api") / "data", with_state_db=False)
    yield groups_of(broker)
    broker.stop()


def test_it_is_valid(groups: list[Group]) -> None:
    made = msgspec.json.decode(msgspec.json.encode(document(groups, "1.2.3")))
    validate(made)
    assert made["info"]["version"] == "1.2.3"
    parameters = made["paths"]["/api/v1/queues/{name}"]["delete"]["parameters"]
    assert [one["name"] for one in parameters] == ["name", "if_unused", "if_empty"]
    assert all(one["description"] for one in parameters)


def test_everything_is_described(groups: list[Group]) -> None:
    """A field that is not in its type's docstring is missing in the document."""
    made = document(groups, "1")
    missing = [
        f"{name}.{field}"
        for name, schema in made["components"]["schemas"].items()
        for field, value in schema.get("properties", {}).items()
        if "description" not in value and name != "Problem"
    ]
    assert missing == []


def test_each_operation_has_a_name_and_the_right_that_fits(groups: list[Group]) -> None:
    """A reader's login changes nothing."""
    operations = [one for group in groups for one in group.operations]
    assert len({one.name for one in operations}) == len(operations)
    assert len({(one.method, one.path) for one in operations}) == len(operations)
    for one in operations:
        has_secrets = one.name == "exportDefinitions"
        assert (one.method == "GET") == (one.right == "monitor" or has_secrets), one.name
        assert not one.summary.endswith("."), one.name


def test_descriptions_come_from_docstrings() -> None:
    about, fields = descriptions(DeleteQuery)
    assert about == "When a queue may be deleted."
    assert fields["if_empty"] == "only if no messages are ready in it."


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[]", "expected `object`, got `array`: send an object with queues, settings"),
        (b"{", "the body has to be a JSON object"),
        (b'{"queues": 0}', "queues: expected `int` >= 1"),
        (b'{"queue": 1}', "there is no field queue: use queues, settings"),
        (b'{"settings": {"a": 1}}', "settings"),
        (b"\xff", "the body has to be a JSON object"),
        (b"[" * 100_000, "expected `object`, got `array`"),
    ],
)
def test_wrong_bodies(body: bytes, text: str) -> None:
    with pytest.raises(Refused) as refused:
        read_body(NewTopic, body)
    assert text.lower() in refused.value.text.lower()
    assert refused.value.reason is Reason.BAD_ARGUMENT


def test_a_parameter_comes_once() -> None:
    items: list[tuple[str, Any]] = [("if_empty", "true"), ("if_empty", "false")]
    with pytest.raises(Refused, match="if_empty is given twice"):
        read_query(DeleteQuery, items)
    assert read_query(DeleteQuery, items[:1]).if_empty is True
