"""Who may do what in the admin API: every operation that the server says it has, as callers with
each right and with none."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from interop_tests.api_operations import Operation, caller, operations, populate
from interop_tests.conftest import Server
from interop_tests.people import Admin

CALLERS: Final = (("nobody", None), ("eve", "monitor"), ("olga", "operate"), ("root", "admin"))
"""Users, and the right that each has. The first may publish and subscribe everywhere."""
VOLATILE: Final = {"time_ms", "free_bytes", "log_appended_bytes", "log_flushed_bytes"}
"""Fields that change by themselves. The log grows when a login is remembered or a state is saved;
`position` of the log is compared through what is stored in it."""
FIGURES: Final = (
    "/api/v1/limits",
    "/api/v1/store",
    "/api/v1/replication",
    "/api/v1/connections",
    "/api/v1/consumers",
    "/api/v1/audit",
    "/api/v1/log",
)
"""Operations that show hardly more than figures or what was asked, some of which concern the asking
itself."""


def answer(asking: Admin, one: Operation) -> tuple[int, str]:
    """The status, and the text of a refusal. A stream is not waited for."""
    status, value = asking.ask(one.method, one.path, one.body)
    return status, value.get("detail", "") if isinstance(value, dict) else ""


def refusal(asking: Admin, method: str, path: str, body: object = None) -> str:
    """Why a request is refused that needs another right."""
    status, value = asking.ask(method, path, body)
    assert status == 403, value
    return str(value["detail"])


def state(admin: Admin, found: list[Operation]) -> dict[str, Any]:
    """What all operations show that change nothing, and whose answers are JSON."""
    shown: dict[str, Any] = {}
    for one in found:
        if one.method != "GET" or "record" in one.path or one.path.startswith(FIGURES):
            continue
        status, value = admin.ask("GET", one.path)
        if isinstance(value, dict):
            value = {key: it for key, it in value.items() if key not in VOLATILE}
        shown[one.path] = (status, json.dumps(value, sort_keys=True))
    return shown


@pytest.mark.slow
def test_every_operation_asks_for_its_right(server: Server) -> None:
    """In the order of their rights, so that those who may change something come last. Who has not
    the right for a change has changed nothing, although its requests are right in all else."""
    people = populate(server)
    found = operations(people)
    assert len(found) > 40
    assert {one.right for one in found} == {"monitor", "operate", "admin"}
    for one in found:
        has_secrets = one.name == "exportDefinitions"
        assert (one.method == "GET") == (one.right == "monitor" or has_secrets), one
    for user, right in CALLERS:
        asking = caller(server, user)
        before = state(people, found)
        for one in found:
            if one.name in ("trace", "traceMessages") and one.is_for(right):
                continue  # a stream: below
            status, text = answer(asking, one)
            assert status < 500, (one, text)
            refused = status == 403 and f"may not {one.right}" in text
            assert refused != one.is_for(right), (user, one, status, text)
        if right in (None, "monitor"):
            assert state(people, found) == before, user
    assert caller(server, "root").ask("GET", "/api/v1/queues/orders")[0] == 404, "it was deleted"
    status, text = answer(people, next(one for one in found if one.name == "promote"))
    assert (status, text) == (409, "this broker is a master already")


def test_without_a_login_there_is_nothing(server: Server) -> None:
    """But what the API looks like."""
    people = populate(server)
    asking = Admin(server)
    asking.authorization = "Bearer x"
    for one in operations(asking):
        assert answer(asking, one)[0] == 401, one
    for authorization in ("None x", "Basic x"):  # not too often: who guesses has to wait
        asking.authorization = authorization
        assert asking.ask("GET", "/api/v1/broker")[0] == 401
    assert people.good("GET", "/api/v1/users")["total"] == 5


def test_traces_and_contents(server: Server) -> None:
    """Payloads, and records of the log, are for who may subscribe to all of it, too."""
    people = populate(server)
    with_payloads = {"client_id": "kept", "seconds": 1, "payload": 8}
    record = "/api/v1/mqtt/retained/things%2Fretained/record"
    olga = caller(server, "olga")
    assert "may not subscribe" in refusal(olga, "POST", "/api/v1/mqtt/traces", with_payloads)
    assert "may not subscribe" in refusal(olga, "GET", record)
    assert olga.ask("GET", "/api/v1/topics/things/records?key=k")[0] == 403
    position = olga.good("GET", record.removesuffix("/record"))["position"]
    assert olga.ask("GET", f"/api/v1/records/{position}")[0] == 404
    people.allow("olga", "subscribe", "things.#")
    assert olga.content("GET", record) == olga.content("GET", f"/api/v1/records/{position}")
    assert b"things" in olga.content("GET", record)
    assert olga.ask("POST", "/api/v1/mqtt/traces", with_payloads)[0] == 403
    people.allow("olga", "subscribe", "#")
    assert olga.content("POST", "/api/v1/mqtt/traces", with_payloads) == b""
    eve = caller(server, "eve")
    without = {"client_id": "kept", "seconds": 1}
    assert "may not operate" in refusal(eve, "POST", "/api/v1/mqtt/traces", without)


def test_names_may_have_any_character(server: Server) -> None:
    """They are percent-encoded parts of the path."""
    people = Admin(server)
    for name in (
        "a/b",
        "a b",
        "100%",
        "\u00e4\u20ac",
        "a?b=c#d",
        "a+b",
        "%2F",
        "{a}",
        "{{7*7}} ${x}",
    ):
        assert people.ask("PUT", people.path("topics", name))[0] == 201, name
        assert people.good("GET", people.path("topics", name))["name"] == name
        people.good("POST", "/api/v1/bans", {"kind": "client_id", "value": name})
        people.good("DELETE", people.path("bans", "client_id", name))
    assert people.good("GET", "/api/v1/bans")["total"] == 0
    assert people.ask("GET", people.path("topics", "a%2Fb"))[0] == 404


def test_every_list_comes_in_pages(server: Server) -> None:
    """One entry at a time, as its `next` says, and all at once: the same entries, each once."""
    people = populate(server)
    found = [one for one in operations(people) if one.method == "GET" and "?" not in one.path]
    lists = 0
    for one in found:
        value = people.ask("GET", one.path)[1]
        if not isinstance(value, dict) or "items" not in value:
            continue
        lists += 1
        whole = people.good("GET", f"{one.path}?limit=500")
        assert whole["next"] is None, one.path
        assert whole.get("total", len(whole["items"])) == len(whole["items"]), one.path
        items: list[Any] = []
        query = "limit=1"
        while True:
            page = people.good("GET", f"{one.path}?{query}")
            items += page["items"]
            if page["next"] is None:
                break
            assert len(page["items"]) == 1
            query = urlencode({"limit": 1, "after": page["next"]})
        assert len(items) == len(whole["items"]), one.path
        if not one.path.startswith(FIGURES):  # those change by themselves
            assert items == whole["items"], one.path
    assert lists >= 10
