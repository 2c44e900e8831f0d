"""The programs that the console shows: filled in, quoted, and without secrets."""

from __future__ import annotations

import ast

import pytest

from polymq.console.connect import host_for, listening
from polymq.console.snippets import LANGUAGES, PROTOCOLS, Protocol, Target, program

EACH = [
    (protocol, language)
    for protocol in PROTOCOLS
    for language in LANGUAGES
    if language in protocol.programs
]
NASTY = "a\"b'$c `d`;\\e"


def target(**values: object) -> Target:
    wanted: dict[str, object] = {"host": "h", "port": 7, "topic": "orders", "user": ""}
    return Target(**{**wanted, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize("user", ["", "ann"])
@pytest.mark.parametrize(("protocol", "language"), EACH)
def test_every_program_is_filled_in(protocol: Protocol, language: str, user: str) -> None:
    """With the topic, and with a login where the broker has users."""
    text = program(protocol, language, target(user=user))
    assert "orders" in text
    assert not any(line.startswith(("?", "!")) for line in text.splitlines())
    assert ("ASSWORD" in text or "ACCESS_KEY" in text or "--as" in text) == bool(user)
    assert max(map(len, text.splitlines())) <= 100
    if language == "Python":
        ast.parse(text)


def literals(text: str) -> list[str]:
    """The texts in a Python program; none if it is not one."""
    try:
        nodes = ast.walk(ast.parse(text))
    except SyntaxError:
        return []
    return [str(node.value) for node in nodes if isinstance(node, ast.Constant)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_topic_cannot_add_code(protocol: Protocol) -> None:
    """Whatever it is called, it is one literal of the language."""
    text = program(protocol, "Python", target(topic=NASTY))
    assert any(NASTY in one for one in literals(text)), text


def test_languages_without_a_client() -> None:
    """The others say what to use instead."""
    for protocol in PROTOCOLS:
        missing = set(LANGUAGES) - protocol.programs.keys()
        assert not missing or "{language}" in protocol.others
        for language in missing:
            assert program(protocol, language, target()) == ""


def test_addresses() -> None:
    """Of a broker that listens everywhere, the one that the console itself uses."""
    assert host_for("http://broker.example.com:9465", "0.0.0.0") == "broker.example.com"
    assert host_for("http://127.0.0.1:9464", "192.0.2.7") == "192.0.2.7"
    assert "http://[::1]:7/" in program(PROTOCOLS[2], "Shell", target(host="::1"))


def test_listeners() -> None:
    rows = [{"name": "amqps", "protocol": "amqp", "port": 5671}]
    assert listening(rows, PROTOCOLS[1]) == "Listeners: amqps at port 5671."
    assert "No listener for MQTT is open" in listening(rows, PROTOCOLS[0])
