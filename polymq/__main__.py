"""Where the program starts.

Rules:

* Nothing heavy is imported before a server ignores SIGHUP. The imports of a start take half a
  second, in which the signal would end it without a line.
* Until a server takes signals itself, Ctrl-C ends it at once, which is as safe as a kill. As an
  exception it might be raised in a callback that ignores exceptions, and be lost.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

SERVERS: Final = ("serve", "namesrv")
"""Commands that a SIGHUP does not end. Once they run, their log says that it was ignored."""
INTERRUPTED: Final = 130
"""`ExitCode.INTERRUPTED`, before that can be imported."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command line and end the process as `docs/configuration.md` says."""
    if arguments is None:
        arguments = sys.argv[1:]
    is_server = bool(arguments) and arguments[0] in SERVERS  # its options come behind its name
    takes_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_server:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if takes_interrupts:
        signal.signal(signal.SIGINT, _interrupted)
    from polymq.program import run  # noqa: PLC0415  (see above)

    if takes_interrupts and not is_server:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run(arguments))


def _interrupted(*_: object) -> None:
    os.write(2, b"polymq: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
