"""What ends a benchmark with one clear line."""

from __future__ import annotations


class BenchmarkFailed(Exception):
    """Something that is needed is missing or does not work. The text says what to do."""
