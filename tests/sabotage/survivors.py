"""Mutations that no test can notice, each with the reason: the code does the same with them.

A line here is (file, function, old text, new text): reason. It holds wherever in the function the
text stands. A mutation that merely has no test does not belong here: write the test.
"""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[dict[tuple[str, str, str, str], str]] = {
    (
        "core_log/commit_log.py",
        "CommitLog.write",
        "if self.written >= last.position: # the common case",
        "if (self.written > last.position): # the common case",
    ): "the other branch writes the same bytes, chunk by chunk; this one only is quicker",
}
