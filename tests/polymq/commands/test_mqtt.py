"""`polymq mqtt client`, `session`, `retained`, `ban` and `trace` against a server in the same
process: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interop_tests import mqtt_wire
from interop_tests.mqtt_raw_client import RawClient
from polymq.commands.tables import table
from polymq.packet_texts import packet_text
from tests.polymq.commands.test_users import Cli, with_server


def port_of(cli: Cli) -> int:
    """Where MQTT is."""
    found = json.loads((cli.directory / "server.json").read_text(encoding="utf-8"))
    return int(found["mqtt"])


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server for all of them: its start takes longer than they do."""

    def scenario(cli: Cli) -> None:
        with RawClient.connected(port_of(cli), "dev/1", clean=False) as client:
            client.subscribe(("a/+", 1))
            client.send(mqtt_wire.publish("r/1", b"kept", qos=1, packet_id=1, retain=True))
            client.expect(mqtt_wire.puback(1))
            _clients(cli, client)
        _sessions(cli)
        _retained(cli)
        _bans(cli)
        _mistakes(cli)

    with_server(tmp_path, monkeypatch, scenario)


def _clients(cli: Cli, client: RawClient) -> None:
    code, text = cli("mqtt", "client", "list")
    assert code == 0
    heading, line = text.splitlines()
    assert heading.startswith("CLIENT ID")
    assert line.startswith("dev/1")
    assert "3.1.1" in line
    (row,) = json.loads(cli("mqtt", "client", "list", "--json")[1])["items"]
    assert row["client_id"] == "dev/1"
    assert cli("mqtt", "client", "list", "--user", "nobody") == (
        0,
        "No such client is connected.\n",
    )
    code, text = cli("mqtt", "client", "show", "dev/1")
    assert code == 0
    assert "a/+" in text
    assert cli("mqtt", "client", "kick", "dev/1")[0] == 0
    client.expect_closed()
    assert cli("mqtt", "client", "kick", "dev/1") == (
        1,
        "polymq: no client 'dev/1' is connected\n",
    )


def _sessions(cli: Cli) -> None:
    code, text = cli("session", "list", "--state", "disconnected")
    assert code == 0
    assert text.splitlines()[1].startswith("dev/1")
    assert "0 messages, 0 bytes" in cli("session", "show", "dev/1")[1]
    assert cli("session", "delete", "dev/1", text="n\n")[0] != 0
    assert cli("session", "show", "dev/1")[0] == 0, "nothing was deleted"
    assert cli("session", "delete", "dev/1", "--yes")[0] == 0
    assert cli("session", "show", "dev/1") == (
        1,
        "polymq: there is no session of client 'dev/1'\n",
    )


def _retained(cli: Cli) -> None:
    code, text = cli("retained", "list", "--filter", "r/#")
    assert code == 0
    assert text.splitlines()[1].startswith("r/1")
    assert "1 messages" in cli("retained", "clear", "r/#", "--dry-run")[1]
    assert cli("retained", "clear", "r/#", text="no\n")[0] != 0
    assert cli("retained", "list", "--json")[1].count('"r/1"') == 1
    assert cli("retained", "clear", "r/#", "--yes")[0] == 0
    assert cli("retained", "show", "r/1") == (
        1,
        "polymq: there is no retained message at 'r/1'\n",
    )


def _bans(cli: Cli) -> None:
    assert cli("mqtt", "client", "ban", "dev/1", "--for", "2h", "--reason", "noise")[0] == 0
    assert cli("ban", "add", "--address", "127.0.0.9")[0] == 0
    text = cli("ban", "list")[1]
    assert "client   dev/1" in text
    assert "noise" in text
    assert [one["kind"] for one in json.loads(cli("ban", "list", "--json")[1])["items"]] == [
        "address",
        "client_id",
    ]
    with RawClient(port_of(cli)) as client:
        client.send(mqtt_wire.connect("dev/1"))
        client.expect(mqtt_wire.connack(5))
    assert cli("mqtt", "client", "unban", "dev/1")[0] == 0
    assert cli("ban", "remove", "--address", "127.0.0.9")[0] == 0
    assert cli("ban", "add", "--user", "a\nb", "--reason", "two\nlines")[1].count("\n") == 1
    assert cli("ban", "remove", "--user", "a\nb")[1].count("\n") == 1
    unanswered = cli("ban", "add", "--address", "0.0.0.0/0")
    assert (unanswered[0], "[y/N]" in unanswered[1]) == (2, True)
    assert cli("ban", "list") == (0, "Nobody is banned.\n")


def _mistakes(cli: Cli) -> None:
    """Each is one line, and says what to do."""
    for code, arguments in (
        (1, ("ban", "remove", "--user", "ann")),
        (1, ("ban", "add", "--address", "10.0.0.5/8")),
        (1, ("retained", "clear", "a/#/b", "--yes")),
        (1, ("retained", "clear", "$share/g/a/#", "--yes")),
        (1, ("retained", "show", "nothing")),
        (1, ("mqtt", "client", "list", "--address", "x")),
        (1, ("trace", "--topic", "a/#/b")),
        (2, ("ban", "add")),
        (2, ("ban", "add", "--user", "ann", "--client", "c")),
        (2, ("ban", "add", "--user", "ann", "--for", "3y")),
        (2, ("ban", "add", "--user", "ann", "--for", "0s")),
        (2, ("trace", "--client", "")),
        (2, ("trace",)),
        (2, ("trace", "--client", "c", "--seconds", "0")),
        (2, ("session", "list", "--state", "away")),
        (2, ("session", "show")),
    ):
        found, text = cli(*arguments)
        assert found == code, (arguments, text)
        assert len(text.splitlines()) == 1, text
        assert text.startswith("polymq: "), text


def test_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYMQ_ADMIN__PORT", "1")
    cli = Cli(tmp_path / "data", monkeypatch)
    for arguments in (
        ("mqtt", "client", "list"),
        ("session", "list"),
        ("retained", "list"),
        ("ban", "list"),
        ("trace", "--client", "c"),
    ):
        code, text = cli(*arguments)
        assert code == 69, arguments
        assert len(text.splitlines()) == 1
        assert "no server answers" in text


def test_a_table_is_harmless() -> None:
    """Names come from clients."""
    lines = list(table(["NAME", "N"], [["a\x1b[2Jb\u202e", 1_000], ["c", None]]))
    assert lines == [
        "NAME                   N",
        "a\\u001b[2Jb\\u202e  1,000",
        "c                      -",
    ]


def test_lines_of_a_trace() -> None:
    head = {"time_ms": 1_795_549_501_123, "client_id": "c", "direction": "in"}
    publish = {"packet": "PUBLISH", "count": 3, "bytes": 1_500, "topic": "a/b", "qos": 1}
    assert packet_text({**head, **publish, "packet_id": 7, "retain": True, "payload": "x\n"}) == (
        "19:45:01.123  c  ->  PUBLISH  x 3  a/b  qos 1  packet id 7  retain  1,500 bytes  "
        "payload 'x\\n'"
    )
    suback = {"packet": "SUBACK", "count": 1, "bytes": 5, "packet_id": 1, "codes": [1, 0x80]}
    assert packet_text({**head, "direction": "out", **suback}) == (
        "19:45:01.123  c  <-  SUBACK  packet id 1  codes 0x01 0x80  5 bytes"
    )
