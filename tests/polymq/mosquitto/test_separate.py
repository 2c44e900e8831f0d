"""Listeners of mosquitto with files of their own: none is opened by users or rules of another."""

from __future__ import annotations

import re

import pytest

from polymq.mosquitto.conf import Kind
from tests.polymq.mosquitto.test_conf import TLS, assert_accounted, converted, remarks, written

PASSWORDS_A, PASSWORDS_B = "password_file /a\n", "password_file /b\n"
RULES_A, RULES_B = "acl_file /ra\n", "acl_file /rb\n"
OPEN = "allow_anonymous true\n"
BY_CERTIFICATE = f"{TLS}cafile /ca\nuse_identity_as_username true\n"


@pytest.mark.parametrize(
    ("first", "second", "ports"),
    [
        (PASSWORDS_A, PASSWORDS_A, [1, 2]),
        (PASSWORDS_A, PASSWORDS_B, [1]),
        (PASSWORDS_A + OPEN, PASSWORDS_B + OPEN, [1]),
        (PASSWORDS_A, "", [1]),
        ("", PASSWORDS_B, [2]),  # at 1, mosquitto lets nobody in
        ("", OPEN, [1, 2]),
        (OPEN, PASSWORDS_B, [1, 2]),
        (OPEN + RULES_A, PASSWORDS_B + RULES_A, [1, 2]),
        (OPEN + RULES_A, PASSWORDS_B + RULES_B, [1]),
        (PASSWORDS_A + RULES_A, PASSWORDS_A + RULES_A, [1, 2]),
        (PASSWORDS_A + RULES_A, PASSWORDS_A + RULES_B, [1]),
        (PASSWORDS_A + RULES_A, PASSWORDS_A, [1, 2]),
        (PASSWORDS_A, "plugin /p.so\n", [1]),
        (OPEN + "plugin /p.so\n", PASSWORDS_B, [1]),
        (PASSWORDS_A, BY_CERTIFICATE, [1, 2]),
        (PASSWORDS_A + RULES_A, BY_CERTIFICATE + RULES_B, [1]),
    ],
)
def test_users_and_rules_of_another_listener_open_none(
    first: str, second: str, ports: list[int]
) -> None:
    """With the commands that are printed, nobody comes in where mosquitto keeps out, or may do
    more. Files of a listener that is left out are not imported."""
    text = f"per_listener_settings true\nlistener 1\n{first}listener 2\n{second}"
    conversion = assert_accounted(text)
    assert [each["port"] for each in written(conversion)["mqtt"]["listeners"]] == ports
    said = [each for each in remarks(conversion, Kind.MISSING) if "is not converted: " in each]
    assert len(said) == 2 - len(ports)
    commands = [command for command, _ in conversion.steps]
    assert len(set(commands)) == len(commands)
    for port, section in ((1, first), (2, second)):
        for file in re.findall("(?:password|acl)_file (/.*)\n", section):
            is_imported = any(command.endswith(f" {file}") for command in commands)
            assert is_imported == (port in ports or f"_file {file}\n" in first), file


def test_it_is_said_what_a_listener_would_open() -> None:
    start = "per_listener_settings true\nlistener 1\n"
    text = f"{start}{PASSWORDS_A}listener 2\n{PASSWORDS_B}"
    assert remarks(converted(text), Kind.MISSING)[-1] == (
        "m.conf:5: password_file: the listener (port 2) is not converted: users of the "
        "password_file of m.conf:3 could log in here: users and rules are for all listeners here, "
        "not for one"
    )
    text = f"{start}{PASSWORDS_A}listener 2\n{PASSWORDS_A}"
    assert converted(text).steps[0] == (
        "polymq user import mosquitto-passwords /a", "m.conf:3, m.conf:5",
    )  # fmt: skip


def test_files_of_a_listener_that_is_left_out_are_not_imported() -> None:
    text = f"per_listener_settings true\nlistener 1\nmount_point x\n{PASSWORDS_A}listener 2\n"
    commands = [command for command, _ in assert_accounted(f"{text}{PASSWORDS_B}").steps]
    assert "polymq user import mosquitto-passwords /b" in commands
    assert not any("/a" in command for command in commands)
