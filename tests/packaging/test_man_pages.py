"""The man pages: one for each command, complete, and nothing in them that troff would misread."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from polymq.cli import polymq
from polymq.errors import ExitCode
from tests.packaging.product import PACKAGING, ROOT


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All pages by their names, as the script writes them."""
    directory = tmp_path_factory.mktemp("pages")
    subprocess.run(
        [sys.executable, str(PACKAGING / "make_man_pages.py"), str(directory)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SOURCE_DATE_EPOCH": "0"},
        timeout=120,
    )
    return {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """`polymq topic list`, and the command, for each that there is."""
    yield name, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for child in command.list_commands(ctx):
            found = command.get_command(ctx, child)
            assert found is not None
            yield from commands(found, f"{name} {child}")


ALL = dict(commands(polymq, "polymq"))


def test_every_command_has_a_page(pages: dict[str, str]) -> None:
    assert set(pages) == {f"{name.replace(' ', '-')}.1" for name in ALL}


@pytest.mark.parametrize("name", ALL)
def test_a_page_has_all_that_the_help_has(name: str, pages: dict[str, str]) -> None:
    page = pages[f"{name.replace(' ', '-')}.1"].replace("\\-", "-")
    sections = re.findall(r"^\.SH (.+)$", page, re.MULTILINE)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert sections[-2:] == ["EXIT STATUS", "SEE ALSO"]
    for parameter in ALL[name].params:
        if isinstance(parameter, click.Option):
            assert all(option in page for option in parameter.opts)
        else:
            assert parameter.human_readable_name in page
    described = re.findall(r"^\\fB(\d+)\\fR$", page, re.MULTILINE)
    assert described == [str(int(code)) for code in ExitCode]


def test_no_line_of_prose_is_a_macro(pages: dict[str, str]) -> None:
    """A line that begins with a dot would vanish."""
    macros = {".TH", ".SH", ".TP", ".PP", ".B", ".BR"}
    for name, page in pages.items():
        for line in page.splitlines():
            if line.startswith((".", "'")):
                assert line.split()[0] in macros, f"{name}: {line}"


def test_the_date_is_that_of_the_source(pages: dict[str, str]) -> None:
    """So that two builds of one source are equal."""
    assert all('"1970-01-01"' in page for page in pages.values())


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_troff_has_nothing_to_complain_about(pages: dict[str, str]) -> None:
    """groff with all warnings says nothing."""
    ended = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"],
        input="".join(pages.values()),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
