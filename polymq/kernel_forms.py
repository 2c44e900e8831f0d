"""Which form of the kernels runs: the one place where that is decided.

A kernel is a module in two forms of the same name. `x.py` is plain Python. The C extension `x`
beside it is built from the same source, where `x.pxd` says of what types that is, or from `x.pyx`.
Python takes the extension where there is one.

All kernels run in the same form, because compiled ones call each other in C. So one that is not
compiled means plain Python for all of them. `POLYMQ_KERNELS=pure` asks for that; with `compiled`,
importing a kernel is an error where one is missing.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Final

KERNELS: Final[tuple[str, ...]] = (
    "polymq.core_log.kernels.files",
    "polymq.core_log.kernels.index_end",
    "polymq.core_log.kernels.keys",
    "polymq.core_log.kernels.log_end",
    "polymq.core_log.kernels.traced",
    "polymq.core_log.kernels.walking",
    "polymq.core_log.kernels.writing",
    "polymq.broker.kernels.delivery",
    "polymq.broker.kernels.path",
    "polymq.broker.messages.kernels.record_run",
    "polymq.broker.kernels.routes",
    "polymq.broker.messages.kernels.unacked",
    "polymq.gateways.mqtt.kernels.batch_path",
    "polymq.gateways.mqtt.kernels.frames",
    "polymq.gateways.mqtt.kernels.publishes",
    "polymq.gateways.mqtt.kernels.fast_path",
    "polymq.gateways.amqp.kernels.frames",
    "polymq.gateways.amqp.kernels.fast_path",
    "polymq.gateways.http_cloudevents.kernels.texts",
    "polymq.net.kernels.streams",
    "polymq.net.kernels.websocket",
    "polymq.spark_sink.kernels.columns",
)
"""All that have two forms."""
COMPILED_ONLY: Final = ("polymq.net.kernels.plane",)
"""Those without a plain form, and not on every system."""
_VARIABLE: Final = "POLYMQ_KERNELS"


def _is_compiled(name: str) -> bool:
    path = os.path.join(os.path.dirname(__file__), *name.split(".")[1:])
    return any(os.path.exists(path + suffix) for suffix in EXTENSION_SUFFIXES)


class _PlainKernels(MetaPathFinder):
    """Finds the plain form of kernels, though their extensions may be there."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname in COMPILED_ONLY:
            raise ModuleNotFoundError(f"{fullname} has no plain form", name=fullname)
        if fullname not in KERNELS:
            return None
        file = os.path.join((path or ("",))[0], fullname.rpartition(".")[2] + ".py")
        return spec_from_file_location(fullname, file)


class _NoKernels(MetaPathFinder):
    """Says why there are no kernels in the form that was asked for."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname in KERNELS:
            raise ImportError(self._reason)
        return None


def _choose() -> tuple[str, MetaPathFinder | None]:
    """The form that runs, and what finds its kernels, unless Python does."""
    asked = os.environ.get(_VARIABLE, "")
    if asked not in ("", "compiled", "pure"):
        return "pure", _NoKernels(f"{_VARIABLE} is {asked!r}: it can be 'compiled' or 'pure'")
    missing = [name for name in KERNELS if not _is_compiled(name)]
    if asked == "pure" or (missing and not asked):
        return "pure", _PlainKernels()
    return "compiled", _NoKernels(f"{missing[0]} is not compiled") if missing else None


_chosen: Final = _choose()
if _chosen[1] is not None:
    sys.meta_path.insert(0, _chosen[1])
FORM: Final = _chosen[0]
"""Which form runs: "compiled" or "pure"."""


def missing_kernels() -> list[str]:
    """Those that are not compiled, where others are: the installation is damaged."""
    missing = [name for name in KERNELS if not _is_compiled(name)]
    return missing if len(missing) < len(KERNELS) else []


def kernel_forms() -> dict[str, str]:
    """Package -> `compiled` or `pure`."""
    return {name.rpartition(".")[0]: FORM for name in KERNELS}


_plain: Final[dict[str, ModuleType]] = {}


def plain_form(name: str) -> ModuleType:
    """The plain form of a kernel, whichever form runs: to compare both. The kernels that it
    imports are plain, too."""
    running = importlib.import_module(name)  # and all that is no kernel, which imports what runs
    if FORM == "pure":
        return running
    if name not in _plain:
        with _plain_imports():
            importlib.import_module(name)
    return _plain[name]


@contextmanager
def _plain_imports() -> Iterator[None]:
    """Kernels are imported in their plain form, and what was imported before is back afterwards."""
    compiled = {name: sys.modules.pop(name) for name in KERNELS if name in sys.modules}
    sys.modules.update(_plain)
    finder = _PlainKernels()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _plain.update({name: sys.modules.pop(name) for name in KERNELS if name in sys.modules})
        sys.modules.update(compiled)
        for name in KERNELS:  # a package knows its modules, too
            package, _, leaf = name.rpartition(".")
            if name in compiled:
                setattr(sys.modules[package], leaf, compiled[name])
            elif package in sys.modules:
                vars(sys.modules[package]).pop(leaf, None)
