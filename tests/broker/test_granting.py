"""Permissions that come with a login: both forms, and what is refused as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.broker.accounts.granting import (
    PERMISSIONS_MAX,
    BadPermissions,
    is_grantable,
    parse_permissions,
)


def texts(value: Any) -> list[str]:
    return [str(rule) for rule in parse_permissions(value, "ann")]


def test_a_list_as_the_commands_have_it() -> None:
    assert texts(
        [
            {"action": "publish", "pattern": "a.{user}.#"},
            {"action": ["subscribe", "create"], "pattern": "a/+/b", "effect": "deny"},
        ]
    ) == [
        "allow ann publish a.{user}.#",
        "deny ann subscribe a.*.b",
        "deny ann create a.*.b",
    ]


def test_topic_filters_as_emqx_has_them() -> None:
    """Each is about what it says: `a/b` is no rule about the topic `a.b`, nor the other way."""
    assert texts({"pub": ["a/${username}"], "sub": ["b/%c/#", "+", "#"], "all": ["c.d/e"]}) == [
        "allow ann publish {exact}/a/{user}",
        "allow ann create {exact}/a/{user}",
        "allow ann subscribe {exact}/b/{client_id}/#",
        "allow ann subscribe *",
        "allow ann subscribe #",
        "allow ann publish {exact}/c.d/e",
        "allow ann create {exact}/c.d/e",
        "allow ann subscribe {exact}/c.d/e",
    ]
    assert texts({}) == texts([]) == []


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("${username}/#", "{exact}/{user}/#"),
        ("${username}", "{user}"),
        ("${clientid}/in", "{exact}/{client_id}/in"),
        ("%c/${username}", "{exact}/{client_id}/{user}"),
    ],
)
def test_a_name_may_be_the_first_level(text: str, pattern: str) -> None:
    assert texts({"sub": [text]}) == [f"allow ann subscribe {pattern}"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "a list of objects"),
        ("a/#", "a list of objects"),
        (["a/#"], "action and pattern"),
        ([{"action": "publish"}], "action and pattern"),
        ([{"action": "publish", "pattern": "a", "qos": 1}], "no 'qos'"),
        ([{"action": "all", "pattern": "a"}], "publish, subscribe, create, monitor"),
        ([{"action": [[]], "pattern": "a"}], "action is one of"),
        ([{"action": "publish", "pattern": "a", "effect": "maybe"}], "effect is one of"),
        ([{"action": "publish", "pattern": 1}], "is a text"),
        ([{"action": "publish", "pattern": "#.a"}], "the last level"),
        ({"publish": ["a"]}, "no 'publish'"),
        ({"pub": "a"}, "list of topic filters"),
        ({"pub": [""]}, "not empty"),
        ({"pub": ["a/#/b"]}, "the last level"),
        ({"pub": ["a/b${username}"]}, "a whole level"),
        ({"sub": ["$SYS/#"]}, "no topics like"),
        ({"sub": ["${user}/#"]}, "cannot be characters"),
        ({"sub": ["$x"]}, "no topics like"),
        ({"sub": ["a/*"]}, "cannot be characters"),
        ({"sub": ["{user}/b"]}, "cannot be characters"),
        ({"sub": ["a/\ud800"]}, "control characters"),
        ([{"action": "publish", "pattern": "a"}] * (PERMISSIONS_MAX + 1), "at most 200"),
        ({"all": ["a"] * (PERMISSIONS_MAX // 3 + 1)}, "at most 200"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_taken(value: Any, text: str) -> None:
    with pytest.raises(BadPermissions, match=text):
        parse_permissions(value, "ann")


def test_names_that_may_be_granted() -> None:
    assert all(map(is_grantable, ("ann", "CN=sensor7,O=Plant")))
    assert not any(map(is_grantable, ("", "anonymous", "ann:1", "\x00", "(operator's token)")))
