"""What a login service is asked, and which of its answers count."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polymq.broker.accounts.login_answers import Question, Verdict, parse_answer
from polymq.broker.accounts.service_answers import BadAnswer, Result
from polymq.broker.port import Origin


def test_the_question() -> None:
    origin = Origin(
        protocol="mqtt", client_id="c", mount_point="plant/", certificate=lambda: "CN=sensor7"
    )
    question = Question(user="ann", password='se"cret', address="10.0.0.1", origin=origin)
    assert json.loads(question.content()) == {
        "user": "ann",
        "password": 'se"cret',
        "client_id": "c",
        "protocol": "mqtt",
        "address": "10.0.0.1",
        "mount_point": "plant/",
        "certificate": "CN=sensor7",
    }
    assert "se" not in repr(question).partition("password")[2]


def test_answers() -> None:
    for result in ("deny", "ignore"):
        assert parse_answer(json.dumps({"result": result}).encode(), "ann") == Verdict(
            result=Result(result)
        )
    value = {
        "result": "allow",
        "permissions": [{"action": "publish", "pattern": "a.#"}],
        "superuser": True,
        "expires_in": 1.5,
    }
    found = parse_answer(json.dumps(value).encode(), "ann")
    assert found.seconds == 1.5
    assert [str(rule) for rule in found.rules] == [
        "allow ann publish a.#",
        "allow ann publish #",
        "allow ann subscribe #",
        "allow ann create #",
        "allow ann monitor #",
        "allow ann operate #",
        "allow ann admin #",
    ]
    assert parse_answer(b'{"result": "allow"}', "ann") == Verdict(result=Result.ALLOW)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"result": True},
        {"result": "ALLOW"},
        {"result": ["allow"]},
        {"result": "allow", "permision": []},
        {"result": "allow", "superuser": 1},
        {"result": "deny", "superuser": "no"},
        {"result": "allow", "permissions": None},
        {"result": "allow", "permissions": {"pub": ["$SYS/#"]}},
        *({"result": "allow", "expires_in": seconds} for seconds in (0, -1, True, "60", 1e300)),
        {"result": "allow", "expires_in": float("nan")},
        {"result": "allow", "expires_in": float("inf")},
    ],
)
def test_what_is_no_answer_decides_nothing(value: Any) -> None:
    with pytest.raises(BadAnswer):
        parse_answer(json.dumps(value).encode(), "ann")


@pytest.mark.parametrize(
    "content",
    [
        b'{"result": "deny", "result": "allow"}',
        b'{"result": "allow", "result": "allow"}',
        b'{"result": "allow", "permissions": {"pub": ["a"], "pub": ["#"]}}',
        b'{"result": "allow", "superuser": false, "superuser": true}',
        '{"result": "allow"}'.encode("utf-16"),
        '{"result": "allow"}'.encode("utf-16-le"),
        '{"result": "allow"}'.encode("utf-32-be"),
        b'\xef\xbb\xbf{"result": "allow"}',
        b'{"result": "allow", "permissions": {"pub": ["\xff"]}}',
    ],
)
def test_an_answer_that_could_be_read_in_two_ways_decides_nothing(content: bytes) -> None:
    with pytest.raises(BadAnswer):
        parse_answer(content, "ann")


@pytest.mark.parametrize("content", [b"", b"allow", b"\xff", b"[" * 50_000, b'{"result":"allow"'])
def test_what_is_no_json_decides_nothing(content: bytes) -> None:
    with pytest.raises(BadAnswer):
        parse_answer(content, "ann")
