"""A plugin for pytest: what noticed first, as JSON in the file that `SABOTAGE_WITNESS` names.

It also makes sure that the tests have the code that stands beside them, and no other.
"""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from typing import Any

import pytest

import polymq.core_log

WITNESS = "SABOTAGE_WITNESS"
TESTS = ("tests", "interop_tests")


class Witness:
    """Keeps the first failure."""

    def __init__(self, root: Path, path: Path) -> None:
        self._root = root
        self._path = path

    def note(self, node: str, when: str, error: BaseException | None) -> None:
        if self._path.exists():
            return
        found = {
            "node": node,
            "when": when,
            "error": type(error).__name__,
            "kinds": [kind.__name__ for kind in type(error).__mro__],
            "text": str(error),
            "at": "" if error is None else self._line_of(error),
        }
        self._path.write_text(json.dumps(found), encoding="utf-8")

    def _line_of(self, error: BaseException) -> str:
        """The innermost line of a test on the way to the error."""
        label = ""
        for frame in traceback.extract_tb(error.__traceback__):
            path = Path(frame.filename)
            if path.is_relative_to(self._root):
                path = path.relative_to(self._root)
                if path.parts[0] in TESTS:
                    label = f"{path}:{frame.lineno}"
        return label

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if report.failed:
            self.note(item.nodeid, report.when, call.excinfo.value if call.excinfo else None)
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.note(report.nodeid, "collect", None)


def pytest_configure(config: pytest.Config) -> None:
    root = config.rootpath
    if not Path(polymq.core_log.__file__).is_relative_to(root):
        raise pytest.UsageError(
            f"these tests would try {polymq.core_log.__file__}, not the code in {root}"
        )
    config.pluginmanager.register(Witness(root, Path(os.environ[WITNESS])), "witness-notes")
