"""The generated parts of the documentation are what `make reference` writes."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from docs.site.command_examples import EXAMPLES
from docs.site.commands import EXAMPLE, leaves
from docs.site.navigation import ROOT
from docs.site.pictures import PictureError, draw
from docs.site.reference import generated


def test_generated_pages_and_pictures_are_up_to_date() -> None:
    """After a change of a command or of a picture's text: `make reference`."""
    assert [
        str(path.relative_to(ROOT))
        for path, text in generated().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ] == []


def test_every_picture_has_its_text() -> None:
    """No picture is left whose text is gone."""
    assert {*(ROOT / "docs" / "pictures").glob("*.svg")} == {
        path for path in generated() if path.suffix == ".svg"
    }


def test_every_command_has_an_example() -> None:
    """In its own help or in the list of examples; and the list has no command that is gone."""
    names = {" ".join(path): command for path, command in leaves()}
    own = {name for name, command in names.items() if EXAMPLE.search(command.help or "")}
    assert names.keys() - EXAMPLES.keys() - own == set()
    assert EXAMPLES.keys() - names.keys() == set()


def test_a_picture_has_its_boxes_and_arrows() -> None:
    root = ET.fromstring(
        draw("Two boxes.\nbox a 0 0: first | more\nstore b 2 0: <second>\na -> b: to\n")
    )
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["first", "more", "<second>", "to"]
    (path,) = root.findall("{http://www.w3.org/2000/svg}path")
    numbers = [float(one) for one in re.findall(r"[\d.]+", path.attrib["d"])]
    assert numbers[0] < numbers[2], "the arrow goes from the left box to the right one"
    assert numbers[1] == numbers[3]


@pytest.mark.parametrize("line", ["bax a 0 0: typo", "a -> c: to a box that is not there"])
def test_a_line_that_is_no_picture_is_refused(line: str) -> None:
    with pytest.raises(PictureError, match="line 3"):
        draw(f"A picture.\nbox a 0 0: a\n{line}\n")
