"""Mosquitto's dynamic security as users and rules: what is allowed here, mosquitto allows, and what
no rule can say is listed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.accounts import passwords
from polymq.broker.accounts.permissions import Action, Effect, Rule, RuleSet, parse_pattern
from polymq.mosquitto.access_lists import (
    AclType,
    NoRule,
    entries,
    rules_to_remove,
    wanted_rules,
)
from polymq.mosquitto.dynamic_security import (
    BadFile,
    FoundRule,
    FoundUser,
    Remark,
    read_dynamic_security,
)
from tests.polymq.commands.test_users import Cli, with_server

SALT = "5ysXbS2AEUd5NHSe"
HASH = "miTUMiedbZiHo4yTWeNVhBJJu2PlL+eFuqotu/dRWyvCOKlZsoNsdRgc+5s7T6awBWlGpaX1NmCSUE0UXQhLWw=="
"""Of `pw`, by mosquitto's plugin 2.0.11, in 101 iterations."""

levels = st.lists(st.sampled_from(["a", "b.c", "+", "%u", ""]), min_size=1, max_size=3)
topics = st.tuples(levels, st.booleans()).map(
    lambda drawn: "/".join([*drawn[0], *(["#"] if drawn[1] else [])])
)


def acl(acltype: str, topic: str, *, allow: bool = True, priority: int = 0) -> dict[str, object]:
    return {"acltype": acltype, "topic": topic, "allow": allow, "priority": priority}


def client(name: str, *roles: str, **more: object) -> dict[str, object]:
    return {
        "username": name,
        "password": HASH,
        "salt": SALT,
        "iterations": 101,
        "roles": [{"rolename": role} for role in roles],
        **more,
    }


def found(**parts: Any) -> tuple[list[FoundUser], list[FoundRule], list[Remark]]:
    """What is in a file of these parts."""
    entries = list(read_dynamic_security(json.dumps(parts).encode()))
    return (
        [one for one in entries if isinstance(one, FoundUser)],
        [one for one in entries if isinstance(one, FoundRule)],
        [one for one in entries if isinstance(one, Remark)],
    )


@given(st.sampled_from(["publishClientSend", "subscribePattern"]), topics, st.booleans())
def test_an_entry_is_shown_as_it_was_given_and_removed_by_that(
    acltype: AclType, topic: str, allow: bool
) -> None:
    """Whatever the topic filter is."""
    try:
        wanted = wanted_rules(acltype, topic, allow=allow)
    except NoRule:
        return
    assert wanted is not None
    rules = [
        Rule(
            subject="role:r",
            effect=Effect(wanted.effect),
            action=Action(action),
            pattern=parse_pattern(wanted.topic),
        )
        for action in wanted.actions
    ]
    shown = list(entries(rules))
    assert [(one.acltype, one.topic, one.allow) for one in shown] == [(acltype, topic, allow)]
    actions, patterns = rules_to_remove(acltype, topic)
    for rule in rules:
        assert rule.action in actions
        assert str(rule).split(" ", 3)[3] in patterns


def test_a_topic_with_dots_is_no_topic_of_several_levels() -> None:
    """As mosquitto has it: the rule is about the topic of the entry alone."""
    wanted = wanted_rules("publishClientSend", "a/b", allow=True)
    assert wanted is not None
    rule = Rule(
        subject="u",
        effect=Effect.ALLOW,
        action=Action.PUBLISH,
        pattern=parse_pattern(wanted.topic),
    )
    rights = RuleSet([rule], user="u")
    assert rights.decide(Action.PUBLISH, ("a", "b")).allowed
    assert not rights.decide(Action.PUBLISH, ("a.b",)).allowed


def test_users_get_their_roles_and_those_of_their_groups() -> None:
    """Each once, in the order of the file; a disabled one stays disabled."""
    roles = [{"rolename": name, "acls": [acl("publishClientSend", f"{name}/%u")]} for name in "rst"]
    groups = [
        {"groupname": "g", "roles": [{"rolename": "s"}], "clients": [{"username": "ann"}]},
        {"groupname": "h", "roles": [{"rolename": "t"}], "clients": []},
    ]
    clients = [client("ann", "r", "s"), client("bob", disabled=True)]
    users, rules, remarks = found(clients=clients, groups=groups, roles=roles, anonymousGroup="h")
    stored = f"$7$101${SALT}${HASH}"
    assert users == [
        FoundUser("ann", stored, ("r", "s"), disabled=False),
        FoundUser("bob", stored, (), disabled=True),
    ]
    assert [(rule.subject, rule.topic) for rule in rules] == [
        ("role:r", "{exact}/r/%u"),
        ("role:s", "{exact}/s/%u"),
        ("role:t", "{exact}/t/%u"),
        ("role:anonymous", "{exact}/t/%u"),
    ]
    assert remarks == []


def test_no_role_becomes_one_with_more_rights() -> None:
    """The role `admin` of mosquitto's first user may change users; ours may do everything."""
    acls = [acl("publishClientSend", "$CONTROL/dynamic-security/#")]
    roles = [{"rolename": "admin", "acls": acls}, {"rolename": "reader", "acls": []}]
    users, rules, remarks = found(clients=[client("root", "admin", "gone")], roles=roles)
    assert [user.roles for user in users] == [()]
    assert rules == []
    assert [remark.where for remark in remarks] == [
        "role admin",
        "role reader",
        "client root",
        "client root",
    ]


def test_who_may_not_receive_may_not_subscribe() -> None:
    """mosquitto would let it subscribe, and send it nothing."""
    acls = [
        acl("subscribePattern", "a/#"),
        acl("publishClientReceive", "a/secret", allow=False),
        acl("publishClientReceive", "b/#"),
        acl("subscribePattern", "b/#"),
    ]
    _, rules, remarks = found(roles=[{"rolename": "r", "acls": acls}])
    assert [(rule.effect, rule.topic) for rule in rules] == [
        ("allow", "{exact}/a/#"),
        ("deny", "{exact}/a/secret"),
        ("allow", "{exact}/b/#"),
    ]
    assert remarks == []
    closed = {"publishClientReceive": False, "publishClientSend": True, "subscribe": False}
    _, rules, remarks = found(roles=[{"rolename": "r", "acls": acls}], defaultACLAccess=closed)
    assert [(rule.effect, rule.topic) for rule in rules] == [
        ("deny", "{exact}/a/secret"),
        ("allow", "{exact}/b/#"),
    ]
    assert [remark.where for remark in remarks] == [
        "defaultACLAccess publishClientReceive",
        "defaultACLAccess publishClientSend",
        "role:r subscribePattern a/#",
    ]


def test_what_no_rule_can_say_is_listed() -> None:
    """And the rest is taken."""
    acls = [
        acl("subscribeLiteral", "a/#"),
        acl("unsubscribePattern", "#", allow=False),
        acl("publishClientSend", "a/%u-x"),
        acl("publishClientSend", "ok", priority=3),
    ]
    clients = [
        client("a:b"),
        client("bad", salt="$"),
        client("none", password=""),
        client("tied", clientid="c"),
        client("slow", iterations=2**31),
    ]
    users, rules, remarks = found(clients=clients, roles=[{"rolename": "r", "acls": acls}])
    assert [user.name for user in users] == ["tied"]
    assert [rule.topic for rule in rules] == ["ok"]
    assert len(remarks) == 9, remarks
    for content in (b"", b"[]", b'{"clients": 5}', b"\xff", b"[" * 100_000):
        with pytest.raises(BadFile, match="not a file of mosquitto's dynamic security"):
            list(read_dynamic_security(content))


def test_the_file_of_mosquittos_own_tool(tmp_path: Path) -> None:
    """Its first user is imported with the password that it has there."""
    tool = shutil.which("mosquitto_ctrl")
    if tool is None:
        pytest.skip("needs mosquitto_ctrl")
    path = tmp_path / "dynamic-security.json"
    arguments = [tool, "dynsec", "init", str(path), "root", "pw-9"]
    subprocess.run(arguments, check=True, timeout=30, capture_output=True)
    users = [one for one in read_dynamic_security(path.read_bytes()) if isinstance(one, FoundUser)]
    assert [user.name for user in users] == ["root"]
    assert passwords.is_right(b"pw-9", users[0].password_hash)
    assert not passwords.is_right(b"pw-8", users[0].password_hash)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes nothing when it is tried, and no user that is there already."""
    path = tmp_path / "dynamic-security.json"
    acls = [acl("publishClientSend", "a/b"), acl("unsubscribePattern", "#")]
    roles = [{"rolename": "r", "acls": acls}]
    clients = [client("ann", "r"), client("bob", disabled=True), client("c:d")]
    path.write_text(json.dumps({"clients": clients, "roles": roles}))

    def scenario(run: Cli) -> None:
        imports = ("user", "import", "mosquitto-dynamic-security", str(path))
        code, said = run(*imports, "--dry-run")
        assert (code, said.splitlines()) == (
            1,
            [
                "client c:d: it cannot be the name of a user here",
                "2 users and 1 ACL can be imported, 1 remark.",
            ],
        )
        assert run("user", "list")[1].startswith("There are no users")
        assert run(*imports)[1].endswith("2 users and 1 ACL imported, 1 remark.\n")
        assert run("user", "list")[1] == "ann  enabled   r\nbob  disabled\n"
        assert run("permission", "check", "ann", "publish", "{exact}/a/b")[0] == 0
        code, said = run(*imports)
        assert "client ann: the user exists, and is not changed" in said
        path.write_text("{")
        code, said = run(*imports)
        assert code == 2
        assert "not a file of mosquitto's dynamic security" in said
        assert run("user", "import", "mosquitto-dynamic-security", str(tmp_path / "no"))[0] == 2

    with_server(tmp_path, monkeypatch, scenario)
