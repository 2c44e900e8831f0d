"""Administration over MQTT: `mosquitto_ctrl dynsec` as it is, and requests of paho that it does not
send."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode

from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import addresses, start_with
from interop_tests.people import NOT_AUTHORIZED, PASSWORD, Admin, MqttClient

SECONDS: Final = 30.0
REQUESTS: Final = "$CONTROL/dynamic-security/v1"
RESPONSES: Final = f"{REQUESTS}/response"
SETTINGS: Final[Mapping[str, object]] = {"mqtt.dynamic_security": True}
MOSQUITTO_CTRL: Final = shutil.which("mosquitto_ctrl")
WITH_MOSQUITTO_CTRL: Final = pytest.mark.skipif(
    MOSQUITTO_CTRL is None, reason="needs mosquitto_ctrl"
)


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A server with the administrator root."""
    server = start_server(**SETTINGS)
    Admin(server).add("root", "admin")
    return server


class Ctrl:
    """`mosquitto_ctrl dynsec`, as the user root."""

    def __init__(self, server: Server, folder: Path, user: str = "root") -> None:
        assert MOSQUITTO_CTRL is not None
        file = folder / "mosquitto_ctrl"
        file.write_text("")
        self._command = [
            MOSQUITTO_CTRL, "-o", str(file), "-h", server.host, "-p", str(server.mqtt_port),
            "-u", user, "-P", PASSWORD, "dynsec",
        ]  # fmt: skip

    def __call__(self, *arguments: str) -> str:
        """What it shows; a command that is refused shows the error."""
        done = subprocess.run(
            [*self._command, *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        errors = [line for line in done.stderr.splitlines() if "Error" in line]
        return "\n".join([*done.stdout.split("\n"), *errors]).strip()


class Requester:
    """A client that publishes requests, and keeps the answers."""

    def __init__(
        self,
        server: Server,
        user: str | None = "root",
        version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5,
        subscribes: str = RESPONSES,
    ) -> None:
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.codes: SimpleQueue[int] = SimpleQueue()
        self.gone: SimpleQueue[int] = SimpleQueue()
        granted: SimpleQueue[int] = SimpleQueue()
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2, protocol=version, reconnect_on_failure=False
        )
        if user is not None:
            self.client.username_pw_set(user, PASSWORD)
        self.client.on_message = lambda _c, _u, message: self.answers.put(
            json.loads(message.payload)
        )
        self.client.on_publish = lambda _c, _u, _m, code, _p: self.codes.put(code.value)
        self.client.on_disconnect = lambda _c, _u, _f, code, _p: self.gone.put(code.value)
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: granted.put(codes[0].value)
        self.client.connect(server.host, server.mqtt_port)
        self.client.loop_start()
        if subscribes:
            self.client.subscribe(subscribes, 1)
            assert granted.get(timeout=SECONDS) <= 1

    def publish(self, payload: bytes, qos: int = 1) -> int:
        """Publish a request; returns the reason code that it was answered with."""
        self.client.publish(REQUESTS, payload, qos)
        return self.codes.get(timeout=SECONDS)

    def ask(self, *commands: object) -> list[Any]:
        """The answers to commands."""
        assert self.publish(json.dumps({"commands": commands}).encode()) == 0
        answer = self.answers.get(timeout=SECONDS)
        assert list(answer) == ["responses"]
        found: list[Any] = answer["responses"]
        return found

    def one(self, command: str, **fields: object) -> Any:
        """The answer to one command."""
        (answer,) = self.ask({"command": command, **fields})
        assert answer.pop("command") == command
        return answer

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def root(server: Server) -> Iterator[Requester]:
    """A client of the administrator."""
    found = Requester(server)
    yield found
    found.leave()


def may_log_in(server: Server, user: str, password: str) -> bool:
    client = MqttClient(server, user, password)
    client.close()
    return client.code == 0


@WITH_MOSQUITTO_CTRL
def test_a_fleet_is_administrated_with_mosquitto_ctrl(server: Server, tmp_path: Path) -> None:
    """Clients, roles and their ACLs come, work, and go: what it does here, the admin API shows, and
    the clients are let in, or are not."""
    ctrl, admin = Ctrl(server, tmp_path), Admin(server)
    assert ctrl("createRole", "device") == ""
    assert ctrl("addRoleACL", "device", "publishClientSend", "fleet/%c/#", "allow") == ""
    assert ctrl("addRoleACL", "device", "subscribePattern", "commands/+/v1.2", "allow") == ""
    assert ctrl("addRoleACL", "device", "publishClientSend", "fleet/+/off", "deny") == ""
    assert ctrl("createClient", "sensor7", "-p", "secret-7") == ""
    assert ctrl("addClientRole", "sensor7", "device") == ""
    rules = admin.good("GET", "/api/v1/permissions?subject=role:device")["items"]
    assert {(rule["effect"], rule["action"], rule["topic"]) for rule in rules} == {
        ("allow", "publish", "{exact}/fleet/{client_id}/#"),
        ("allow", "create", "{exact}/fleet/{client_id}/#"),
        ("allow", "subscribe", "{exact}/commands/+/v1.2"),
        ("deny", "publish", "{exact}/fleet/+/off"),
    }
    assert may_log_in(server, "sensor7", "secret-7")
    shown = ctrl("getRole", "device")
    assert "publishClientSend    : allow : fleet/%c/# (priority: 0)" in shown
    assert "publishClientSend    : deny  : fleet/+/off (priority: 0)" in shown
    assert "subscribePattern     : allow : commands/+/v1.2 (priority: 0)" in shown
    assert "device" in ctrl("getClient", "sensor7")
    assert ctrl("listClients").split() == ["root", "sensor7"]
    assert ctrl("listRoles").split() == ["admin", "device", "operator", "reader"]
    assert ctrl("setClientPassword", "sensor7", "secret-8") == ""
    assert not may_log_in(server, "sensor7", "secret-7")
    assert ctrl("disableClient", "sensor7") == ""
    assert not may_log_in(server, "sensor7", "secret-8")
    assert ctrl("enableClient", "sensor7") == ""
    assert may_log_in(server, "sensor7", "secret-8")
    assert ctrl("removeRoleACL", "device", "publishClientSend", "fleet/+/off") == ""
    assert "fleet/+/off" not in ctrl("getRole", "device")
    assert ctrl("removeClientRole", "sensor7", "device") == ""
    assert ctrl("deleteRole", "device") == ""
    assert "there is no role 'device'" in ctrl("getRole", "device")
    assert ctrl("deleteClient", "sensor7") == ""
    assert [user["name"] for user in admin.good("GET", "/api/v1/users")["items"]] == ["root"]


@WITH_MOSQUITTO_CTRL
def test_what_the_model_has_not_is_refused_with_the_reason(server: Server, tmp_path: Path) -> None:
    """And what it has always is no error."""
    ctrl = Ctrl(server, tmp_path)
    assert ctrl("createClient", "d1", "-p", "x") == ""
    assert "not tied to a client id" in ctrl("setClientId", "d1", "abc")
    assert "not tied to a client id" in ctrl("createClient", "d2", "-c", "abc", "-p", "x")
    assert "there are no groups" in ctrl("createGroup", "g")
    assert "there are no groups" in ctrl("getAnonymousGroup")
    assert ctrl("listGroups") == ""
    assert "there are no priorities" in ctrl("addClientRole", "d1", "device", "5")
    acl = ("addRoleACL", "device")
    assert "no priorities" in ctrl(*acl, "publishClientSend", "a/#", "allow", "3")
    assert "use subscribePattern" in ctrl(*acl, "subscribeLiteral", "a/#", "allow")
    assert "always allowed" in ctrl(*acl, "unsubscribePattern", "#", "deny")
    assert "deny subscribePattern" in ctrl(*acl, "publishClientReceive", "a/#", "deny")
    assert ctrl(*acl, "publishClientReceive", "#", "allow") == ""
    assert "no topics $CONTROL" in ctrl(*acl, "publishClientSend", "$CONTROL/#", "allow")
    assert ctrl("listRoles").split() == ["admin", "operator", "reader"]
    assert ctrl("setDefaultACLAccess", "subscribe", "deny") == ""
    assert "cannot be changed" in ctrl("setDefaultACLAccess", "subscribe", "allow")
    assert "unsubscribe          : allow" in ctrl("getDefaultACLAccess")
    assert "there is no user 'nobody'" in ctrl("getClient", "nobody")
    assert "user 'd1' exists" in ctrl("createClient", "d1", "-p", "x")
    assert "may do everything" in ctrl("addRoleACL", "admin", "subscribePattern", "a", "deny")
    assert "the server's own" in ctrl("deleteRole", "reader")


def test_only_administrators_are_listened_to(server: Server) -> None:
    """Who may publish everything may not administrate; nor may a client without a name, nor anybody
    before there is a user. Nothing is changed, and the audit log has the refusal."""
    admin = Admin(server)
    admin.add("ann")
    admin.allow("ann", "publish,create,subscribe,operate", "#")
    request = json.dumps({"commands": [{"command": "deleteClient", "username": "root"}]}).encode()
    ann = Requester(server, "ann")
    assert ann.publish(request) == NOT_AUTHORIZED
    old = Requester(server, "ann", MQTTProtocolVersion.MQTTv311)
    old.client.publish(REQUESTS, request, 1)
    old.gone.get(timeout=SECONDS)
    assert {user["name"] for user in admin.good("GET", "/api/v1/users")["items"]} == {"ann", "root"}
    audit = admin.good("GET", "/api/v1/audit?user=ann")["items"]
    assert any("admin" in json.dumps(line) for line in audit), audit
    ann.leave()


def test_before_the_first_user_nobody_is_listened_to(start_server: StartServer) -> None:
    """A page in a browser, or any program of this machine, cannot make itself the administrator."""
    server = start_server(**SETTINGS)
    client = Requester(server, None)
    request = {"commands": [{"command": "createClient", "username": "eve", "password": "x"}]}
    assert client.publish(json.dumps(request).encode()) == NOT_AUTHORIZED
    assert Admin(server).good("GET", "/api/v1/users")["total"] == 0
    client.leave()


def test_without_the_setting_there_is_no_such_topic(start_server: StartServer) -> None:
    """Nor is there at a listener with a mount point, which sees a part of the topics only."""
    plant = {"name": "plant", "port": 0, "mount_point": "plant/"}
    for server in (start_server(), start_with(start_server, plant, **SETTINGS)):
        Admin(server).add("root", "admin")
        server.mqtt_port = addresses(server).get("plant", server.mqtt_port)
        client = Requester(server)
        assert client.publish(b'{"commands":[{"command":"listClients"}]}') == NOT_AUTHORIZED
        client.leave()


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
@pytest.mark.parametrize("pattern", [RESPONSES, "$CONTROL/#", "$CONTROL/+/v1/+"])
def test_answers_come_to_who_asked(
    server: Server, version: MQTTProtocolVersion, pattern: str
) -> None:
    """By whichever filter, in both versions, in one answer for all commands, and to nobody else."""
    root, other = Requester(server, version=version, subscribes=pattern), Requester(server)
    answers = root.ask(
        {"command": "createClient", "username": "a", "password": "x", "correlationData": "1"},
        {"command": "createClient", "username": "a", "password": "x", "correlationData": "2"},
        {"command": "nonsense", "correlationData": "3"},
        {"command": "getClient", "username": "a"},
    )
    assert answers == [
        {"command": "createClient", "correlationData": "1"},
        {
            "command": "createClient",
            "error": "user 'a' exists: change it, or delete it first",
            "correlationData": "2",
        },
        {
            "command": "nonsense",
            "error": "there is no command 'nonsense'",
            "correlationData": "3",
        },
        {
            "command": "getClient",
            "data": {"client": {"username": "a", "roles": [], "groups": []}},
        },
    ]
    assert other.one("setClientId", username="a", clientid="") == {}
    assert other.answers.empty(), "the answer to another client"
    for client in (root, other):
        client.leave()


def test_requests_that_are_wrong(root: Requester) -> None:
    """Each gets a sentence that says what is wrong, and the client stays connected."""
    cases = {
        b"": "not valid JSON",
        b'{"commands":[': "not valid JSON",
        b"\xff\xfe": "not valid JSON",
        b"[" * 60_000: "not valid JSON",
        b"[]": "a list of commands",
        b'{"commands":{}}': "a list of commands",
        b'{"commands":[5]}': "a command is a JSON object",
        b'{"commands":[{"command":7}]}': "its name in the field command",
        b'{"commands":[' + b",".join([b"5"] * 51) + b"]}": "at most 50 commands",
        b'{"commands":[{"command":"getClient"}]}': "username",
        b'{"commands":[{"command":"getClient","username":3}]}': "username: expected `str`",
        b'{"commands":[{"command":"getClient","name":"a"}]}': "there is no field name",
        b'{"commands":[{"command":"addRoleACL","rolename":"r","acltype":"x","topic":"t",'
        b'"allow":true}]}': "acltype is one of publishClientSend",
        b'{"commands":[{"command":"createClient","username":"a:b","password":"x"}]}': "a user's",
        b'{"commands":[{"command":"createClient","username":"ab"}]}': "needs a password",
    }
    for request, text in cases.items():
        assert root.publish(request) == 0
        (answer,) = root.answers.get(timeout=SECONDS)["responses"]
        assert text in answer["error"], (request[:80], answer)
    assert root.publish(b"x" * (64 * 1024 + 1)) == 151, "too large: quota exceeded"
    create = {"command": "createClient", "username": "twice", "password": "x"}
    root.publish(json.dumps({"commands": [create]}).encode(), qos=2)
    assert "there is no user 'twice'" in root.one("getClient", username="twice")["error"]


def test_lists_come_in_parts(server: Server, root: Requester) -> None:
    """By count and offset, in the order of the names; `totalCount` says how many there are."""
    for number in range(7):
        role = [{"rolename": f"r{number}", "priority": -1}]
        given = {"username": f"c{number}", "password": "x", "roles": role}
        assert root.one("createClient", **given) == {}
    listed = root.one("listClients", count=3, offset=2)["data"]
    assert listed == {"totalCount": 8, "clients": ["c2", "c3", "c4"]}
    assert root.one("listClients", offset=8)["data"]["clients"] == []
    assert root.one("listClients", count=0)["data"]["clients"] == []
    shown = root.one("listClients", verbose=True, count=1, offset=6)["data"]["clients"]
    assert shown == [{"username": "c6", "roles": [{"rolename": "r6"}], "groups": []}]
    assert root.one("listRoles", count=2, offset=1)["data"] == {
        "totalCount": 10,
        "roles": ["operator", "r0"],
    }
    whole = root.one("listRoles", verbose=True, count=1)["data"]["roles"]
    everything = {"topic": "#", "priority": 0, "allow": True}
    assert whole == [
        {
            "rolename": "admin",
            "acls": [
                {"acltype": "publishClientSend", **everything},
                {"acltype": "subscribePattern", **everything},
            ],
        }
    ]


def test_clients_and_roles_are_replaced_as_a_whole(server: Server, root: Requester) -> None:
    """modifyRole leaves the ACLs that it names, modifyClient the roles, and what they leave out."""

    def acl(topic: str) -> dict[str, object]:
        return {"acltype": "subscribePattern", "topic": topic, "allow": True}

    assert root.one("createRole", rolename="r", acls=[acl("a/b"), acl("c/#")]) == {}
    assert "exists" in root.one("createRole", rolename="r")["error"]
    assert root.one("modifyRole", rolename="r", acls=[acl("c/#"), acl("d")]) == {}
    found = root.one("getRole", rolename="r")["data"]["role"]["acls"]
    assert {one["topic"] for one in found} == {"c/#", "d"}
    assert root.one("modifyRole", rolename="r") == {}
    assert len(root.one("getRole", rolename="r")["data"]["role"]["acls"]) == 2
    assert root.one("createClient", username="u", password="x", roles=[{"rolename": "r"}]) == {}
    assert root.one("modifyClient", username="u", roles=[{"rolename": "s"}], password="y") == {}
    assert root.one("getClient", username="u")["data"]["client"]["roles"] == [{"rolename": "s"}]
    assert may_log_in(server, "u", "y")
    assert root.one("modifyClient", username="u", roles=[{"rolename": "r"}]) == {}
    assert root.one("deleteRole", rolename="r") == {}
    assert root.one("getClient", username="u")["data"]["client"]["roles"] == []
    assert "there is no role 'r'" in root.one("deleteRole", rolename="r")["error"]


def test_rules_of_the_commands_are_removed_by_what_they_are_shown_as(
    server: Server, root: Requester
) -> None:
    """Rules whose patterns are not of MQTT, too."""
    admin = Admin(server)
    admin.allow("role:r", "subscribe", "sensors.*.temp")
    admin.allow("role:r", "publish,create", "fleet.{user}.#")
    admin.allow("role:r", "monitor", "#")
    acls = root.one("getRole", rolename="r")["data"]["role"]["acls"]
    assert {(one["acltype"], one["topic"]) for one in acls} == {
        ("subscribePattern", "sensors/+/temp"),
        ("publishClientSend", "fleet/%u/#"),
    }
    for one in acls:
        name = {key: one[key] for key in ("acltype", "topic")}
        assert root.one("removeRoleACL", rolename="r", **name) == {}
        assert "has no ACL" in root.one("removeRoleACL", rolename="r", **name)["error"]
    left = admin.good("GET", "/api/v1/permissions?subject=role:r")["items"]
    assert [rule["action"] for rule in left] == ["monitor"]


def test_what_was_answered_survives_a_kill(server: Server, root: Requester) -> None:
    """A change is answered when it is in the log, and the audit log says who made it."""
    assert root.one("createClient", username="u", password="y", roles=[{"rolename": "r"}]) == {}
    acl = {"acltype": "publishClientSend", "topic": "a/#", "allow": True}
    assert root.one("addRoleACL", rolename="r", **acl) == {}
    lines = Admin(server).good("GET", "/api/v1/audit?user=u")["items"]
    assert any("user added" in json.dumps(line) and "root" in json.dumps(line) for line in lines)
    server.kill()
    server.start()
    again = Requester(server)
    shown = again.one("getClient", username="u")["data"]["client"]
    assert shown["roles"] == [{"rolename": "r"}]
    assert len(again.one("getRole", rolename="r")["data"]["role"]["acls"]) == 1
    again.leave()


def test_an_administrator_that_loses_the_right(server: Server, root: Requester) -> None:
    """Within a request: the commands behind it are refused."""
    admin = Admin(server)
    admin.add("second", "admin")
    admin.allow("second", "subscribe", "$CONTROL.#")
    second = Requester(server, "second")
    answers = second.ask(
        {"command": "removeClientRole", "username": "second", "rolename": "admin"},
        {"command": "createClient", "username": "late", "password": "x"},
    )
    assert answers[0] == {"command": "removeClientRole"}
    assert "may not" in answers[1]["error"]
    assert "there is no user 'late'" in root.one("getClient", username="late")["error"]
    second.leave()


def test_nobody_speaks_in_the_servers_name(server: Server) -> None:
    """A user that may publish everything cannot send what looks like an answer: there is no such
    topic for other protocols either."""
    admin = Admin(server)
    admin.add("ann")
    admin.allow("ann", "publish,create", "#")
    status, value = admin.ask("PUT", "/api/v1/topics/%24CONTROL", {})
    assert status == 403, value
    client = Requester(server, "ann", subscribes="")
    client.client.publish(RESPONSES, b"{}", 1)
    assert client.codes.get(timeout=SECONDS) == ReasonCode(4, identifier=NOT_AUTHORIZED).value
    client.leave()
