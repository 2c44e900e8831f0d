"""What stops the source or the sink, in words for whoever runs it."""

from __future__ import annotations


class SinkError(Exception):
    """Base of everything that this package raises on purpose."""


class BadOption(SinkError):
    """An option of the data source or the job is wrong; the text says which."""


class DataLoss(SinkError):
    """Messages that were to be read are gone. The text lists what is missing and from where."""


class Unavailable(SinkError):
    """A broker does not answer. The same may succeed later."""


class OutputRefused(SinkError):
    """The output directory cannot be written to: it belongs to another checkpoint, another sink
    writes to it, or it holds files that are not ours."""


class Stale(SinkError):
    """A batch of a sink that was replaced meanwhile: its files do not count any more."""


class NoJava(SinkError):
    """No Java that Spark can run on was found."""


class SparkEnded(SinkError):
    """Spark's Java process is gone, and this process cannot have another one."""


class SinkFailed(SinkError):
    """The streaming query ended with an error that is none of these; its cause is in the text."""
