"""Writes the generated parts of `docs/` (`make reference`): the commands and the pictures."""

from __future__ import annotations

from pathlib import Path

from docs.site import commands, pictures
from docs.site.navigation import ROOT


def generated() -> dict[Path, str]:
    """Every generated file with what has to be in it."""
    return {
        ROOT / "docs" / "commands.md": commands.rendered(),
        **pictures.drawn_pictures(ROOT / "docs" / "pictures"),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
