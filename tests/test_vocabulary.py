"""One word for one thing: the terms of `docs/glossary.md`, and none of those that they replaced.

Names in code are looked at part by part (`_openDoors` has the parts `open` and `doors`), those of
tests' functions only for words that have no other meaning, because such a name is a sentence.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.test_tidy import FOLDERS, ROOT, sources

REPLACED: Final = {
    "door": "listener",
    "doors": "listeners",
    "lane": "fast path",
    "lanes": "fast paths",
    "yard": "shared paths",
    "undertaker": "dead-lettering",
}
"""Words of former versions that have no other meaning here: in no name, and in no text."""
REPLACED_IN_NAMES: Final = {
    "place": "address, position, path, index: what it is",
    "places": "addresses, positions, paths, indexes: what they are",
    "words": "levels of an address; text",
    "told": "reported, logged; on_change for a callback",
    "who": "client, principal, identity",
    "kept": "stored, remaining",
    "hold": "registration, long poll, reserve",
    "holds": "registrations, long polls",
    "life": "ttl, run",
    "standing": "state",
}
"""Words that are good English in a sentence, and say too little as a name."""
NAMED_BY_OTHERS: Final = {
    "core_log/kernels/crc.pxd",  # lanes of a vector register
    "tests/test_vocabulary.py",
}
PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
PROSE: Final = re.compile(rf"\b(?:{'|'.join(REPLACED)})\b|\bcan not\b(?! only)", re.IGNORECASE)


def names(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of all names in a Python file; with Cython's types among them in another."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def refused_in(name: str) -> list[str]:
    """Parts of a name that the glossary has other terms for."""
    refused = REPLACED if name.startswith("test_") else REPLACED | REPLACED_IN_NAMES
    return [part for part in map(str.lower, PARTS.findall(name)) if part in refused]


def checked() -> Iterator[tuple[str, str]]:
    """(path, text) of the sources."""
    for path in sources(".py", ".pyx", ".pxd"):
        shown = str(path.relative_to(ROOT))
        if shown not in NAMED_BY_OTHERS and "__pycache__" not in shown:
            yield shown, path.read_text(encoding="utf-8")


def test_names_are_the_glossarys() -> None:
    assert [
        f"{path}:{line}: {name}"
        for path, text in checked()
        for line, name in names(text)
        if refused_in(name)
    ] == []


def test_files_are_named_by_the_glossary() -> None:
    assert [
        path for path, _ in checked() if any(refused_in(part) for part in Path(path).parts)
    ] == []


def pages() -> Iterator[tuple[str, str]]:
    """(path, text) of everything that people read."""
    yield from checked()
    tops = [path for folder in (*FOLDERS, "docs") for path in (ROOT / folder).rglob("*.md")]
    for path in sorted({*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile", *tops}):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_texts_use_the_glossarys_terms() -> None:
    """Comments, docstrings, messages, help and documentation."""
    assert [
        f"{path}:{number}: {found[0]}"
        for path, text in pages()
        for number, line in enumerate(text.splitlines(), 1)
        if (found := PROSE.search(line)) is not None
    ] == []


@pytest.mark.parametrize(
    "name",
    ["door", "_open_doors", "TLS_DOORS", "DeadLetterPlace", "told_ms", "isTold", "test_the_door"],
)
def test_a_refused_name_is_seen(name: str) -> None:
    assert refused_in(name)


@pytest.mark.parametrize("name", ["placed", "replace", "holder", "whole", "test_who_is_told"])
def test_a_name_that_only_looks_like_one_is_not(name: str) -> None:
    assert not refused_in(name)


@pytest.mark.parametrize("text", ["the operator's door", "it can not be read", "a Lane"])
def test_a_refused_text_is_seen(text: str) -> None:
    assert PROSE.search(text) is not None
