"""Every link between the pages of the tree leads somewhere: files, headings, and pictures."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from docs.site.navigation import ROOT, pages

CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
FENCED: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
HEADING: Final = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
NOT_LETTERS: Final = re.compile(r"[^\w\- ]")


def markdown() -> Iterator[Path]:
    """The pages of the site, and all others that the tree has in these folders."""
    yield from sorted({*(ROOT / f"{page}.md" for page in pages()), *(ROOT / "docs").rglob("*.md")})


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: list[str] = []
    for heading in HEADING.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = NOT_LETTERS.sub("", text.lower()).replace(" ", "-")
        again = sum(one == anchor or one.startswith(f"{anchor}-again") for one in found)
        found.append(f"{anchor}-again{again}" if again else anchor)
    return frozenset(re.sub(r"-again(\d+)$", r"-\1", anchor) for anchor in found)


def broken(path: Path, text: str) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for target in LINK.findall(CODE.sub("", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = unquote(target).partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"{path.relative_to(ROOT)}: {target}: there is no such file"
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file)):
            yield f"{path.relative_to(ROOT)}: {target}: there is no such heading"


def test_links_lead_somewhere() -> None:
    assert [line for path in markdown() for line in broken(path, path.read_text("utf-8"))] == []


def test_the_site_has_every_page() -> None:
    """What is in docs/ is in the navigation, and what is in the navigation is there."""
    named = {ROOT / f"{page}.md" for page in pages()}
    assert [path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in named] == []
    assert [path for path in sorted(named) if not path.is_file()] == []


def test_the_front_page_names_every_page() -> None:
    """Somebody who reads the tree and not the site finds all pages, too."""
    folder = ROOT / "docs"
    targets = LINK.findall((folder / "README.md").read_text("utf-8"))
    named = {(folder / target.partition("#")[0]).resolve() for target in targets}
    pages_there = sorted({*folder.glob("*.md")} - {folder / "README.md"})
    assert [path.name for path in pages_there if path not in named] == []


def test_a_broken_link_is_noticed() -> None:
    front = ROOT / "docs" / "README.md"
    text = "[a](nowhere.md) [b](glossary.md#no-such-term) [c](glossary.md#storage) `[d](e.md)`"
    assert [line.split(": ", 1)[1] for line in broken(front, text)] == [
        "nowhere.md: there is no such file",
        "glossary.md#no-such-term: there is no such heading",
    ]
