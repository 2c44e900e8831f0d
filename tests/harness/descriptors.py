"""A process that has as many files open as it may."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """This process can open nothing, whatever happens meanwhile.

    The limit is the lowest free descriptor. So nothing below it may become free: sockets and files
    that an earlier test left to the garbage collector are closed before, and not in between.
    """
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open("/dev/null", os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if collects:
            gc.enable()
