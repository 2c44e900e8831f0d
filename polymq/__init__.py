"""The program: configuration, the composition root, the command line, metrics and logs."""

from __future__ import annotations

from polymq import kernel_forms as _kernel_forms  # noqa: F401  (before any kernel is imported)


def program_version() -> str:
    """The installed version, or a plain word in a tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  (`__main__.py`)

    try:
        return version("polymq")
    except PackageNotFoundError:
        return "uninstalled"
