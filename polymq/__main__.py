"""Where the program starts.

Rule: nothing heavy is imported before a server ignores SIGHUP. The imports of a start take half a
second, in which the signal would end it without a line.
"""

from __future__ import annotations

import signal
import sys
from typing import Final

SERVERS: Final = ("serve", "namesrv")
"""Commands that a SIGHUP does not end. Once they run, their log says that it was ignored."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command line and end the process as `docs/configuration.md` says."""
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments and arguments[0] in SERVERS:  # the program's own options end it at once
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from polymq.program import run  # noqa: PLC0415  (see above)

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
