"""The order of the broker's folders, and circles of imports anywhere.

`test_architecture.py` holds which top-level folder may import which. This file holds what is inside
them. Imports for type checking and `cimport`s count like all others: a reader has to follow them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.test_architecture import LINKED, ROOT, imports_of

ORDER: tuple[frozenset[str], ...] = (
    frozenset({"bounded_cache", "disk", "durability", "errors", "limits"}),
    frozenset({"names", "notices", "pacing"}),
    frozenset({"messages"}),
    frozenset({"port"}),
    frozenset({"kernels", "state"}),
    frozenset({"commits", "routing"}),
    frozenset({"replicas"}),
    frozenset({"core"}),
    frozenset({"accounts", "documents", "queues"}),
    frozenset({"topics"}),
    frozenset({"exchanges", "following", "moves", "reading", "recovery"}),
    frozenset({"delays", "named_queues"}),
    frozenset({"sessions", "transactions"}),
    frozenset({"open_port", "retention"}),
    frozenset({"admission"}),
    frozenset({"engine"}),
    frozenset({"changes"}),
)
"""Folders of the broker, and its files beside them. Each may import what stands in a row above its
own, and itself. `broker/README.md` says what each is for."""

CIRCLE_FILES_MAX = 8
"""Files that may need each other, within one folder."""

Graph = Mapping[str, set[str]]


def modules(root: Path) -> dict[str, list[Path]]:
    """The files of each of our modules by its name: a kernel's declarations belong to it."""
    found: dict[str, list[Path]] = {}
    for top in sorted({*LINKED, "polymq"}):
        for path in sorted((root / top).rglob("*.p*")):
            if path.suffix not in (".py", ".pyx", ".pxd"):
                continue
            if any(parent.is_symlink() for parent in path.relative_to(root).parents):
                continue
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.setdefault(name, []).append(path)
    return found


def graph(root: Path) -> dict[str, set[str]]:
    """What each module imports of ours."""
    known = modules(root)
    return {
        name: {
            imported.module
            for path in paths
            for imported in imports_of(path, root)
            if imported.module in known and imported.module != name
        }
        for name, paths in known.items()
    }


def folder_of(module: str, beside: frozenset[str]) -> str:
    """The folder that a module belongs to. Kernels belong to the folder that theirs is in. A file
    of the broker or the program beside its folders stands for itself."""
    if module in beside:
        return module
    parts = module.split(".")[:-1]
    if parts and parts[-1] == "kernels" and parts != ["broker", "kernels"]:
        parts = parts[:-1]
    return ".".join(parts) or module


def circles(arrows: Graph) -> Iterator[list[str]]:
    """Groups of modules of which each needs all others (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    waiting: set[str] = set()
    for start in arrows:
        if start in index:
            continue
        work = [(start, iter(sorted(arrows[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        waiting.add(start)
        while work:
            module, rest = work[-1]
            for imported in rest:
                if imported not in index:
                    index[imported] = low[imported] = len(index)
                    stack.append(imported)
                    waiting.add(imported)
                    work.append((imported, iter(sorted(arrows.get(imported, ())))))
                    break
                if imported in waiting:
                    low[module] = min(low[module], index[imported])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[module])
                if low[module] == index[module]:
                    found = []
                    while True:
                        member = stack.pop()
                        waiting.discard(member)
                        found.append(member)
                        if member == module:
                            break
                    if len(found) > 1:
                        yield sorted(found)


def beside_folders(root: Path) -> frozenset[str]:
    """The modules of the broker and the program that are in no folder of these."""
    return frozenset(
        f"{folder}.{path.stem}"
        for folder in ("broker", "polymq")
        for path in (root / folder).glob("*.py")
        if path.stem != "__init__"
    )


def out_of_order(root: Path) -> list[str]:
    """Imports within the broker that go up, one line each."""
    floor = {unit: at for at, row in enumerate(ORDER) for unit in row}
    wrong = []
    for module, imported in graph(root).items():
        if not module.startswith("broker."):
            continue
        unit = module.split(".")[1]
        for name in sorted(imported):
            other = name.split(".")[1] if name.startswith("broker.") else unit
            if other != unit and floor.get(other, len(ORDER)) >= floor.get(unit, -1):
                wrong.append(f"{module} imports {name}")
    return wrong


def wrong_circles(root: Path) -> list[str]:
    """Circles across folders, and those of too many files."""
    beside = beside_folders(root)
    arrows = graph(root)
    wrong = []
    for found in circles(arrows):
        if len({folder_of(module, beside) for module in found}) > 1:
            wrong.append("a circle across folders: " + ", ".join(found))
        elif len(found) > CIRCLE_FILES_MAX:
            wrong.append(f"a circle of {len(found)} files: " + ", ".join(found))
    folders: dict[str, set[str]] = {}
    for module, imported in arrows.items():
        own = folder_of(module, beside)
        others = {folder_of(name, beside) for name in imported}
        folders.setdefault(own, set()).update(others - {own})
    wrong += ["folders in a circle: " + ", ".join(found) for found in circles(folders)]
    return wrong


def test_the_folders_of_the_broker_keep_their_order() -> None:
    assert out_of_order(ROOT) == []


def test_no_circle_crosses_folders_or_is_large() -> None:
    assert wrong_circles(ROOT) == []


def test_the_order_has_each_folder_once() -> None:
    """A new folder has to be given its row before it can import anything."""
    units = [unit for row in ORDER for unit in row]
    folders = [path.parent.name for path in (ROOT / "broker").glob("*/__init__.py")]
    files = [path.stem for path in (ROOT / "broker").glob("*.py") if path.stem != "__init__"]
    assert sorted(units) == sorted(folders + files)


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """A small tree of ours with these files."""
    for top in (*LINKED, "polymq"):
        (root / top).mkdir()
        (root / top / "__init__.py").touch()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "source",
    [
        "from polymq.broker.topics.topics import Topics\n",
        "from polymq.broker.topics import topics\n",
        "import polymq.broker.topics.topics\n",
        "from ..topics.topics import Topics\n",
        "def late():\n    from polymq.broker.topics.topics import Topics\n",
        "if TYPE_CHECKING:\n    from polymq.broker.topics.topics import Topics\n",
    ],
)
def test_an_import_that_goes_up_is_found(tmp_path: Path, source: str) -> None:
    """A queue is told which topics there are: it must not need to know what a topic is."""
    files = {"broker/topics/topics.py": "", "broker/queues/queue.py": source}
    root = tree(tmp_path, files)
    assert out_of_order(root) == ["broker.queues.queue imports broker.topics.topics"]


def test_a_cimport_that_goes_up_is_found(tmp_path: Path) -> None:
    files = {
        "broker/queues/kernels/cursor.py": "",
        "broker/kernels/path.py": "",
        "broker/kernels/path.pxd": "from polymq.broker.queues.kernels.cursor cimport Cursor\n",
    }
    root = tree(tmp_path, files)
    assert out_of_order(root) == ["broker.kernels.path imports broker.queues.kernels.cursor"]


def test_an_import_that_goes_down_passes(tmp_path: Path) -> None:
    files = {
        "broker/topics/topics.py": "from polymq.broker.queues.queue import Queue\n",
        "broker/queues/queue.py": "from polymq.broker.errors import Refused\n",
        "broker/errors.py": "",
    }
    root = tree(tmp_path, files)
    assert out_of_order(root) == []
    assert wrong_circles(root) == []


def test_a_circle_across_folders_is_found(tmp_path: Path) -> None:
    """Also one of which no two files need each other: a folder as a whole is what is moved."""
    files = {
        "gateways/mqtt/server.py": "from polymq.net.listener import Listener\n",
        "net/listener.py": "",
        "net/turns.py": "from polymq.gateways.mqtt.connection import Client\n",
        "gateways/mqtt/connection.py": "",
    }
    root = tree(tmp_path, files)
    assert wrong_circles(root) == ["folders in a circle: gateways.mqtt, net"]


@pytest.mark.parametrize(("count", "wrong"), [(CIRCLE_FILES_MAX, 0), (CIRCLE_FILES_MAX + 1, 1)])
def test_a_large_circle_is_found(tmp_path: Path, count: int, wrong: int) -> None:
    files = {
        f"gateways/amqp/part_{at}.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            f"    from polymq.gateways.amqp.part_{(at + 1) % count} import Part\n"
        )
        for at in range(count)
    }
    assert len(wrong_circles(tree(tmp_path, files))) == wrong
