"""Sabotages of compiled kernels that have no twin in the crash tests: what writes the log."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_CALLS = ("tests/core_log/test_system_calls.py",)

OF_THE_KERNELS = (
    Sabotage(
        name="interrupted-write-taken-for-written",
        why="a signal at the wrong moment leaves a hole in the log, where an ack was promised",
        path="core_log/kernels/files.pyx",
        old="            PyErr_CheckSignals()\n",
        new="            PyErr_CheckSignals()\n            size = 0\n",
        tests=_CALLS,
    ),
    Sabotage(
        name="failed-write-taken-for-written",
        why="what a failing disk did not take is acknowledged",
        path="core_log/kernels/files.pyx",
        old='            raise OSError(errno, strerror(errno).decode("utf-8", "replace"))\n',
        new="            return 0\n",
        tests=_CALLS,
    ),
    Sabotage(
        name="rest-of-a-short-write-at-its-start",
        why="the second part of a write that the system cut stands over the first",
        path="core_log/kernels/files.pyx",
        old="            position += written\n",
        new="",
        tests=_CALLS,
    ),
)
