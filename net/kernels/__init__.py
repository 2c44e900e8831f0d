"""The inner part of the socket shell, in the form that the environment asks for.

`POLYMQ_KERNELS=compiled` fails where the compiled form is absent, `pure` takes plain Python; unset
takes the compiled form where it is there. `FORM` says which one runs.

`Plane` is the compiled socket plane (`fast_plane.pyx`): there is none in the pure form and on
systems without epoll, where the event loop's own transports do its work.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

_choice = os.environ.get("POLYMQ_KERNELS", "")
if _choice not in ("", "compiled", "pure"):
    raise ImportError(f"POLYMQ_KERNELS is {_choice!r}: it has to be 'compiled' or 'pure'")

Plane: Any = None

if TYPE_CHECKING or _choice == "pure":
    from polymq.net.kernels import pure as chosen
elif _choice == "compiled":
    from polymq.net.kernels import fast as chosen

    if sys.platform == "linux":
        from polymq.net.kernels.fast_plane import Plane
else:
    try:
        from polymq.net.kernels import fast as chosen
    except ImportError:
        from polymq.net.kernels import pure as chosen
    else:
        try:
            from polymq.net.kernels.fast_plane import Plane
        except ImportError:
            Plane = None

FORM: Final = chosen.FORM
BUFFER_BYTES: Final = chosen.BUFFER_BYTES
clock_ms = chosen.clock_ms
Iteration = chosen.Iteration
Stream = chosen.Stream

__all__ = ["BUFFER_BYTES", "FORM", "Iteration", "Plane", "Stream", "clock_ms"]
