"""Where the program starts.

Rule: nothing heavy is imported before a server ignores SIGHUP. The imports of a start take half a
second, in which the signal would end it without a line.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

from polymq.errors import ExitCode

SERVERS: Final = ("serve", "namesrv")
"""Commands that a SIGHUP does not end. Once they run, their log says that it was ignored."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command line and end the process as `docs/configuration.md` says."""
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments and arguments[0] in SERVERS:  # the program's own options end it at once
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        from polymq.program import run  # noqa: PLC0415  (see above)
    except ImportError as error:
        print(f"polymq: {_why_no_kernels(error)}", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    sys.exit(run(arguments))


def _why_no_kernels(error: ImportError) -> str:
    """What is wrong with the kernels, or with the form of them that was asked for. Raises what it
    is given if the error has another cause."""
    form = os.environ.get("POLYMQ_KERNELS", "")
    if form == "compiled":
        return (
            "POLYMQ_KERNELS is 'compiled', but the compiled kernels are not installed: install "
            f"again where there is a C compiler, or unset the variable ({error})"
        )
    if not form and "kernels" in str(error):
        return (
            "the compiled kernels cannot be loaded: install again, or set POLYMQ_KERNELS=pure for "
            f"plain Python ({error})"
        )
    if form in ("", "pure"):
        raise error
    return f"POLYMQ_KERNELS is {form!r}: it can be 'compiled' or 'pure', or unset"


if __name__ == "__main__":
    main()
