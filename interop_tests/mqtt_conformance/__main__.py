"""`python -m interop_tests.mqtt_conformance`: run the tests, and write docs/mqtt-conformance.md.

Arguments are pytest's, such as `-n 2`. The exit code is pytest's, too: the page is written whether
tests fail or not, and shows it.
"""

from __future__ import annotations

import sys

import pytest

from interop_tests.mqtt_conformance.matrix import (
    HERE,
    OUTCOMES,
    PAGE,
    ROOT,
    VERSIONS,
    Results,
    page,
)


class Recorder:
    """A plugin of pytest that notes how the tests went."""

    def __init__(self) -> None:
        self.results: Results = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for the set-up, the call and the end of each test."""
        path, _, name = report.nodeid.partition("::")
        key = (path, name.partition("[")[0])
        if report.when == "call" or report.outcome != "passed":
            known = self.results.get(key, "passed")
            self.results[key] = min(known, report.outcome, key=OUTCOMES.index)


def main() -> int:
    recorder = Recorder()
    folders = [str(HERE / version.folder) for version in VERSIONS]
    code = pytest.main(["--rootdir", str(ROOT), "-q", *sys.argv[1:], *folders], plugins=[recorder])
    PAGE.write_text(page(recorder.results), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
