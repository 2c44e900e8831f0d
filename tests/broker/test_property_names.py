"""Properties that the broker adds to records: each name has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = {"PMQ_P": {"core_log/kernels/layout.py", "broker/messages/records.py"}}
"""What the store and the broker read, each for itself."""


def test_no_two_properties_have_one_name() -> None:
    """A record would say one thing, and whoever reads it would take it for the other."""
    found = defaultdict(set)
    for folder in ("core_log", "broker"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                if not isinstance(value, ast.Constant):
                    continue
                text = value.value
                name = text.decode("latin-1") if isinstance(text, bytes) else text
                if isinstance(name, str) and name.startswith("PMQ_"):
                    found[name].add(f"{path.relative_to(ROOT)}")
    assert len(found) > 15, "they are found"
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    twice.pop("PMQ_AMQP")  # the properties of AMQP, of which the kernel makes keys
    assert twice == SHARED
