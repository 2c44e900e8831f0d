"""What clients named reaches no terminal as it is."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from polymq import logs
from polymq.settings import LogSettings
from polymq.terminal import echo, printable

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ümläut 日本", "plain ümläut 日本"),
        ("\x1b]0;title\x07", r"\u001b]0;title\u0007"),
        ("a\x7f\x9b\0", r"a\u007f\u009b\u0000"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("\udcff", r"\udcff"),
        ("\U000e0001", r"\udb40\udc01"),
        ("a\nb\tc", r"a\u000ab\u0009c"),
    ],
)
def test_what_is_not_printed_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_json_document_stays_one() -> None:
    value = {"name": "\x9b\u202e\x7f\U000e0001\n"}
    document = printable(json.dumps(value, ensure_ascii=False))
    assert document.isprintable()
    assert json.loads(document) == value


def test_lines_of_output_keep_their_ends(capsys: pytest.CaptureFixture[str]) -> None:
    echo("one\n\ttwo\x1b[2J")
    assert capsys.readouterr().out == "one\n\ttwo\\u001b[2J\n"


def test_commands_print_by_no_other_way() -> None:
    for path in ROOT.glob("polymq/cli_*.py"):
        assert not re.search(r"click\.(s?echo|secho)\(|\bprint\(", path.read_text()), path.name


def test_logs_for_people_escape_values() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    logs.configure_logs(LogSettings(format="console"), stream)
    logs.logger("polymq").warning("refused", topic="\x1b]0;title\x07")
    assert r"\u001b]0;title\u0007" in stream.getvalue()
    assert "\x1b]0" not in stream.getvalue()
