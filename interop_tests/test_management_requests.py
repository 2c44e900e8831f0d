"""The management API by its requests: what KEDA, Datadog, Terraform and people with curl ask for,
beside clients of AMQP that make what is asked about."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pika
import pika.adapters.blocking_connection as blocking
import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.management import SETTINGS, VHOST, Api
from interop_tests.people import PASSWORD, Admin

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def managed(start_server: StartServer) -> Server:
    return start_server(**SETTINGS)


@pytest.fixture
def api(managed: Server) -> Api:
    return Api(managed)


Connect = Callable[..., blocking.BlockingConnection]


@pytest.fixture
def connect(managed: Server) -> Iterator[Connect]:
    made: list[blocking.BlockingConnection] = []

    def connect(user: str = "guest", password: str = "guest") -> blocking.BlockingConnection:
        made.append(
            pika.BlockingConnection(
                pika.ConnectionParameters(
                    "127.0.0.1",
                    managed.amqp_port,
                    credentials=pika.PlainCredentials(user, password),
                    client_properties={"connection_name": "the shop"},
                )
            )
        )
        return made[-1]

    yield connect
    for connection in made:
        if connection.is_open:
            connection.close()


def test_what_keda_asks_for(api: Api, connect: Connect) -> None:
    """KEDA's scaler reads one queue by its name, or pages by a regular expression, and counts what
    is ready and unacknowledged, and the rate of what is published."""
    channel = connect().channel()
    channel.queue_declare("jobs.1", durable=True)
    channel.queue_declare("jobs.2", durable=True)
    channel.queue_declare("other", durable=True)
    channel.confirm_delivery()
    for number in range(5):
        channel.basic_publish("", "jobs.1", b"%d" % number, PERSISTENT)
    channel.basic_get("jobs.1")
    queue = api.queue("jobs.1")
    assert (queue["messages"], queue["messages_unacknowledged"]) == (5, 1)
    assert queue["messages_ready"] == 4
    assert queue["message_stats"]["publish"] == 5
    assert isinstance(queue["message_stats"]["publish_details"]["rate"], float)
    pattern = quote("^jobs.*$", safe="")
    found = api.get(
        f"/queues/{VHOST}?page=1&use_regex=true&pagination=false&name={pattern}&page_size=100"
    )
    assert [one["name"] for one in found["items"]] == ["jobs.1", "jobs.2"]
    assert (found["total_count"], found["filtered_count"], found["page_count"]) == (3, 2, 1)


def test_what_datadog_asks_for(api: Api, connect: Connect) -> None:
    """Its check reads overview, nodes, queues, exchanges, connections, and the aliveness test."""
    channel = connect().channel()
    channel.queue_declare("orders", durable=True)
    channel.basic_consume("orders", lambda *_: None, consumer_tag="till")
    overview = api.get("/overview")
    assert overview["rabbitmq_version"].split(".")[0] == "3"
    assert overview["object_totals"] == {
        "connections": 1, "channels": 1, "consumers": 1, "exchanges": 6, "queues": 1,
    }  # fmt: skip
    assert {one["protocol"] for one in overview["listeners"]} == {"amqp", "mqtt", "http"}
    (node,) = api.get("/nodes")
    assert node["running"] is True
    assert node["mem_used"] > 0
    assert node["disk_free"] > 0
    assert api.get(f"/nodes/{node['name']}")["partitions"] == []
    (connection,) = api.get("/connections")
    assert connection["state"] == "running"
    assert connection["client_properties"]["connection_name"] == "the shop"
    assert connection["user_provided_name"] == "the shop"
    assert connection["channels"] == 1
    assert api.get(f"/vhosts/{VHOST}/connections")[0]["vhost"] == "/"
    (channels,) = api.get(f"/connections/{quote(connection['name'])}/channels")
    assert channels["consumer_count"] == 1
    assert api.get(f"/channels/{quote(channels['name'])}")["consumer_details"]
    (consumer,) = api.get(f"/consumers/{VHOST}")
    assert consumer["queue"] == {"name": "orders", "vhost": "/"}
    assert consumer["channel_details"]["connection_name"] == connection["name"]
    assert api.queue("orders")["consumer_details"][0]["consumer_tag"] == "till"
    assert api.get(f"/aliveness-test/{VHOST}") == {"status": "ok"}
    assert api.get("/health/checks/alarms") == {"status": "ok"}


def test_a_queue_from_declaration_to_deletion(api: Api, connect: Connect) -> None:
    """As Terraform's provider does it: what PUT said, GET shows, and the same PUT changes
    nothing."""
    wanted = {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 7}}
    assert api.put(f"/queues/{VHOST}/a%2Fb", wanted) == 201
    assert api.put(f"/queues/{VHOST}/a%2Fb", wanted) == 204
    shown = api.queue("a/b")
    assert {name: shown[name] for name in wanted} == wanted
    status, reason = api.refused("PUT", f"/queues/{VHOST}/a%2Fb", {"arguments": {}})
    assert status == 400
    assert "inequivalent arg 'x-max-length'" in reason
    assert api.refused("PUT", f"/queues/{VHOST}/x", {"arguments": {"x-max-length": "y"}})[0] == 400
    assert api.refused("GET", "/queues/other/x") == (404, "Not Found")
    channel = connect().channel()
    channel.basic_publish("", "a/b", b"1", PERSISTENT)
    channel.queue_declare("a/b", passive=True)
    assert "not empty" in api.refused("DELETE", f"/queues/{VHOST}/a%2Fb?if-empty=true")[1]
    api.delete(f"/queues/{VHOST}/a%2Fb/contents")
    api.delete(f"/queues/{VHOST}/a%2Fb?if-empty=true&if-unused=true")
    assert api.refused("DELETE", f"/queues/{VHOST}/a%2Fb")[0] == 404


def test_bindings_by_their_names(api: Api) -> None:
    """The Location of a new binding, and `properties_key` of a list, name it for DELETE."""
    api.put(f"/exchanges/{VHOST}/shop", {"type": "topic"})
    api.put(f"/exchanges/{VHOST}/copy", {"type": "headers", "durable": "true"})
    api.put(f"/queues/{VHOST}/orders", {})
    one = f"/bindings/{VHOST}/e/shop/q/orders"
    for key in ("order.*", "#", "a~b", ""):
        status, _, headers = api.ask("POST", one, {"routing_key": key, "arguments": {"k": "v"}})
        assert status == 201
        name = headers["Location"].rpartition("/")[2]
        shown = api.get(f"{one}/{name}")
        assert (shown["routing_key"], shown["arguments"]) == (key, {"k": "v"})
        assert quote(shown["properties_key"], safe="") == name
        api.delete(f"{one}/{name}")
    assert api.get(one) == []
    api.post(one, {"routing_key": "x"})
    api.post(f"/bindings/{VHOST}/e/copy/q/orders", {"arguments": {"x-match": "any", "n": 5}})
    api.post(f"/bindings/{VHOST}/e/shop/e/copy", {"routing_key": "y"})
    (found,) = api.get(f"/bindings/{VHOST}/e/copy/q/orders")
    assert found["arguments"] == {"x-match": "any", "n": 5}
    (found,) = api.get(f"/exchanges/{VHOST}/copy/bindings/destination")
    assert (found["source"], found["destination_type"]) == ("shop", "exchange")
    assert len(api.get(f"/exchanges/{VHOST}/shop/bindings/source")) == 2
    assert [one["source"] for one in api.get(f"/queues/{VHOST}/orders/bindings")] == [
        "", "shop", "copy",
    ]  # fmt: skip
    assert len(api.get("/bindings")) == len(api.get(f"/bindings/{VHOST}")) == 4
    assert api.refused("POST", f"/bindings/{VHOST}/e/none/q/orders", {})[0] == 404
    assert api.refused("POST", f"/bindings/{VHOST}/e/shop/q/none", {})[0] == 404


def test_messages_go_in_and_come_out(api: Api, connect: Connect) -> None:
    """What is given back keeps its place, and what is rejected becomes a dead letter. A confirm
    means durable: the message is there after a kill."""
    api.put(f"/queues/{VHOST}/dead", {})
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.put(f"/queues/{VHOST}/work", {"arguments": dead})
    publish = f"/exchanges/{VHOST}/amq.default/publish"
    message = {"routing_key": "work", "payload": "one", "payload_encoding": "string"}
    properties = {"headers": {"n": 5, "deep": {"x": [1, "a"]}}, "message_id": "m", "priority": 3}
    assert api.post(publish, {**message, "properties": properties}) == {"routed": True}
    binary = b64encode(b"\xff\x00").decode()
    body = {**message, "payload": binary, "payload_encoding": "base64", "properties": {}}
    assert api.post(publish, body) == {"routed": True}
    assert api.post(publish, {**message, "routing_key": "none"}) == {"routed": False}
    get = f"/queues/{VHOST}/work/get"
    asked = {"count": 9, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 2}
    first, second = api.post(get, asked)
    assert (first["payload"], first["payload_bytes"], first["redelivered"]) == ("on", 3, False)
    assert first["properties"] == properties
    assert (second["payload"], second["payload_encoding"]) == (binary, "base64")
    again = api.post(get, {**asked, "ackmode": "reject_requeue_false", "count": 1})
    assert (again[0]["payload_bytes"], again[0]["redelivered"]) == (3, True)
    assert api.queue("dead")["messages"] == 1
    assert api.queue("work")["messages"] == 1
    method, _, content = connect().channel().basic_get("dead", auto_ack=True)
    assert method is not None
    assert content == b"one"
    for wrong in ({**asked, "ackmode": "x"}, {**asked, "encoding": "x"}, {"count": -1}, {}):
        assert api.refused("POST", get, wrong)[0] == 400
    assert api.refused("POST", publish, {**body, "payload": "*"})[0] == 400
    assert api.refused("POST", publish, {**message, "properties": {"priority": 300}})[0] == 400
    assert api.refused("POST", f"/exchanges/{VHOST}/none/publish", message)[0] == 404


def test_users_see_what_their_tags_allow(managed: Server, api: Api, connect: Connect) -> None:
    """A monitor changes nothing; a user with the tag `management` sees what its permissions are
    about; one without a tag is refused, and so is a wrong password."""
    assert api.put("/users/root", {"password": PASSWORD, "tags": "administrator"}) == 201
    status, value, headers = api.ask("GET", "/whoami")
    assert (status, value["error"]) == (401, "not_authorized")
    assert headers["WWW-Authenticate"].startswith("Basic")
    root = Api(managed, "root", PASSWORD)
    assert root.get("/whoami")["tags"] == ["administrator"]
    for name, tags in (("watch", "monitoring"), ("app", "management"), ("none", "")):
        root.put(f"/users/{name}", {"password": PASSWORD, "tags": tags})
    everything = {"configure": "^app", "write": "^(app|shop).*", "read": "^(app|shop)"}
    assert root.put(f"/permissions/{VHOST}/app", everything) == 201
    shown = root.get(f"/permissions/{VHOST}/app")
    assert {name: shown[name] for name in everything} == everything
    root.put(f"/queues/{VHOST}/secret", {})
    watch, app = Api(managed, "watch", PASSWORD), Api(managed, "app", PASSWORD)
    assert [one["name"] for one in watch.get("/queues")] == ["secret"]
    assert watch.refused("DELETE", f"/queues/{VHOST}/secret")[0] == 401
    assert watch.refused("GET", "/users") == (401, "Not administrator user")
    assert app.put(f"/queues/{VHOST}/app.1", {}) == 201
    assert app.refused("PUT", f"/queues/{VHOST}/other", {})[0] == 401
    assert [one["name"] for one in app.get("/queues")] == ["app.1"]
    assert app.refused("GET", f"/queues/{VHOST}/secret")[0] == 404
    assert app.refused("DELETE", f"/queues/{VHOST}/secret")[0] == 404
    assert app.refused("GET", "/nodes") == (401, "Not monitoring user")
    assert {one["destination"] for one in app.get("/bindings")} == {"app.1"}
    status, reason = Api(managed, "none", PASSWORD).refused("GET", "/overview")
    assert (status, reason[:19]) == (401, "Not management user")
    connect("root", PASSWORD)
    mine = connect("app", PASSWORD)
    (own,) = app.get("/connections")
    assert own["user"] == "app"
    (other,) = (one for one in watch.get("/connections") if one["user"] == "root")
    assert app.refused("DELETE", f"/connections/{quote(other['name'])}")[0] == 404
    assert watch.refused("DELETE", f"/connections/{quote(other['name'])}")[0] == 401
    app.delete(f"/connections/{quote(own['name'])}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="management"):
        mine.channel()
    status, reason = root.refused("PUT", f"/permissions/{VHOST}/app", {**everything, "read": "x"})
    assert status == 400
    assert "whole words" in reason
    assert root.get(f"/permissions/{VHOST}/app")["read"] == everything["read"]
    root.delete(f"/permissions/{VHOST}/app")
    assert root.refused("GET", f"/permissions/{VHOST}/app")[0] == 404
    assert app.refused("PUT", f"/queues/{VHOST}/app.2", {})[0] == 401


def hash_of(password: str, algorithm: str) -> str:
    """As RabbitMQ has it: four bytes of salt, and the hash of salt and password."""
    salt = b"\x90\x8d\xc6\x0a"
    return b64encode(salt + hashlib.new(algorithm, salt + password.encode()).digest()).decode()


def test_definitions_of_rabbitmq_come_in_and_go_out(
    managed: Server, api: Api, connect: Connect
) -> None:
    """Users log in with the passwords that they had, over AMQP and here, also after a restart.
    What cannot be taken is said, and everything else is there. No hash goes out."""
    definitions = {
        "rabbit_version": "3.12.14",
        "users": [
            {
                "name": f"user{size}",
                "password_hash": hash_of("the-old-one", f"sha{size}"),
                "hashing_algorithm": f"rabbit_password_hashing_sha{size}",
                "tags": ["administrator"] if size == 512 else ["management"],
                "limits": {},
            }
            for size in (256, 512)
        ],
        "vhosts": [{"name": "/"}],
        "permissions": [
            {"user": "user256", "vhost": "/", "configure": "^$", "write": ".*", "read": ".*"}
        ],
        "topic_permissions": [],
        "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
        "policies": [
            {"vhost": "/", "name": "ha", "pattern": ".*", "definition": {"ha-mode": "all"}}
        ],
        "queues": [
            {"name": "orders", "vhost": "/", "durable": True, "auto_delete": False,
             "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 5}},
        ],
        "exchanges": [
            {"name": "shop", "vhost": "/", "type": "topic", "durable": True, "auto_delete": False,
             "internal": False, "arguments": {}},
        ],
        "bindings": [
            {"source": "shop", "vhost": "/", "destination": "orders", "destination_type": "queue",
             "routing_key": "order.#", "arguments": {}},
        ],
    }  # fmt: skip
    assert api.ask("POST", "/definitions", definitions)[0] == 204
    channel = connect("user256", "the-old-one").channel()
    channel.confirm_delivery()
    channel.basic_publish("shop", "order.new", b"x", PERSISTENT, mandatory=True)
    channel.connection.close()
    managed.restart()
    root = Api(managed, "user512", "the-old-one")
    assert root.refused("GET", "/queues/other")[0] == 404
    assert root.queue("orders")["messages"] == 1
    assert Api(managed, "user256", "wrong").refused("GET", "/whoami")[0] == 401
    out = root.get("/definitions")
    assert {one["name"]: one["password_hash"] for one in out["users"]} == {
        "user256": "", "user512": "",
    }  # fmt: skip
    for section in ("queues", "exchanges", "bindings"):
        assert out[section] == definitions[section], section
    assert out["permissions"][0] == definitions["permissions"][0]
    assert "users" not in root.get(f"/definitions/{VHOST}")
    assert root.ask("POST", "/definitions", out)[0] == 204, "its own file, which changes nothing"
    assert root.get("/whoami")["name"] == "user512", "the password is as it was"
    definitions["policies"] = [{"name": "ttl", "definition": {"message-ttl": 5}}]
    definitions["queues"] = [{"name": "more", "arguments": {}}, {"name": "x", "vhost": "dev"}]
    status, reason = root.refused("POST", "/definitions", definitions)
    assert status == 400
    assert "policies: ttl: message-ttl" in reason
    assert "queues: x: it is in virtual host 'dev'" in reason
    assert root.queue("more")["messages"] == 0, "everything else was taken"
    assert root.refused("POST", "/definitions", b"{")[0] == 400


def test_pages_of_other_hosts_change_nothing(managed: Server, api: Api) -> None:
    """A browser that an operator uses could send what such a page wants."""
    body = json.dumps({"type": "topic"}).encode()
    path = f"/exchanges/{VHOST}/x"
    assert api.ask("PUT", path, body, Origin="http://evil.example")[0] == 403
    assert api.ask("GET", "/overview", Host="evil.example")[0] == 403
    assert api.ask("PUT", path, body, Origin=f"http://127.0.0.1:{api.port}")[0] == 201
    Admin(managed).add("ann", "reader")
    assert Api(managed, "ann", PASSWORD).ask("GET", "/overview", Host="mq.example")[0] == 200


def test_what_is_not_there_is_said(api: Api) -> None:
    """Lists are empty, and whoever wants to make something is told what to use."""
    lists = ("/policies", f"/policies/{VHOST}", "/parameters", "/parameters/shovel")
    for path in (*lists, "/global-parameters", "/topic-permissions", "/vhost-limits", "/shovels"):
        assert api.get(path) == []
    policy = {"pattern": ".*", "definition": {"message-ttl": 5}}
    assert "arguments" in api.refused("PUT", f"/policies/{VHOST}/x", policy)[1]
    assert "one virtual host" in api.refused("PUT", "/vhosts/dev", {})[1]
    assert api.put(f"/vhosts/{VHOST}", {}) == 204
    assert api.refused("PATCH", "/overview") == (405, "PATCH is not allowed here: use GET")
    assert api.ask("HEAD", "/overview")[0] == 200
    assert api.refused("PUT", f"/queues/{VHOST}/x", {"durable": "yes"})[0] == 400
    assert api.refused("PUT", f"/queues/{VHOST}/x", b"x" * 70_000)[0] == 413
