"""What holds for all tests of the project: the longest begin first.

Tests run in several processes, and the last to begin decides when all have ended.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark first, then what is marked as slow, then the rest in the order that they have."""
    items.sort(key=_haste)


def _haste(item: pytest.Item) -> int:
    if item.get_closest_marker("spark") is not None:
        return 0
    return 1 if item.get_closest_marker("slow") is not None else 2
