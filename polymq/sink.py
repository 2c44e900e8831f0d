"""`polymq sink`: the sink of `spark_sink` with our settings, logs and exit codes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from polymq.errors import ExitCode, Failure
from polymq.logs import configure_logs, logger
from polymq.ports import find_ports
from polymq.remoting.signing import Credentials
from polymq.remoting.tls import Tls
from polymq.settings import Settings
from polymq.tls import own_tls

NEEDED: Final = ("pyspark", "pyarrow")


def run_sink(
    settings: Settings,
    *,
    topics: tuple[str, ...],
    topic_pattern: str | None = None,
    exclude_topics: tuple[str, ...] = (),
    once: bool,
    broker: str | None,
    master: str,
    credentials: Credentials | None = None,
    tls: Tls | None = None,
) -> int:
    """Write topics to Parquet until a signal, or what is there now; returns the exit code.

    Args:
        topics: empty for all that the pattern matches, or all there are.
        credentials: who reads, where the server has users.
        tls: how to connect to `broker`. To the server on this machine it is known without.

    Raises:
        Failure: a package is missing, no broker answers, or the sink says what is wrong.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        text = f"polymq sink needs {' and '.join(missing)}: pip install 'polymq[spark]'"
        raise Failure(ExitCode.FAILED, text)
    from polymq.spark_sink.errors import BadOption, OutputRefused, SinkError  # noqa: PLC0415
    from polymq.spark_sink.job import run_sink as run  # noqa: PLC0415

    configure_logs(settings.log)
    if broker is None:
        broker, tls = own_broker(settings, tls)
    try:
        report = run(
            brokers=[broker],
            topics=list(topics) or None,
            topic_pattern=topic_pattern,
            exclude_topics=exclude_topics,
            output=settings.sink.output_directory,
            checkpoint=settings.sink.checkpoint_directory,
            once=once,
            interval_seconds=settings.sink.trigger_seconds,
            master=master,
            fail_on_data_loss=settings.sink.fail_on_data_loss,
            credentials=credentials,
            tls=tls,
        )
    except BadOption as error:
        raise Failure(ExitCode.USAGE, f"sink: {error}") from error
    except OutputRefused as error:
        raise Failure(ExitCode.CANNOT_CREATE, f"sink: {error}") from error
    except SinkError as error:
        raise Failure(ExitCode.FAILED, f"sink: {error}") from error
    logger("polymq.sink").info(
        "done", batches=report.batch_count, rows=report.row_count, files=report.file_count
    )
    return ExitCode.OK


def own_broker(settings: Settings, tls: Tls | None) -> tuple[str, Tls | None]:
    """The address of the server on this machine for who reads topics as tables, and how to connect
    to it. Raises Failure."""
    ports = find_ports(settings)
    port = ports.rocketmq
    if port is None or tls is not None:
        port = ports.rocketmqs
    if port is None:
        text = "the server's RocketMQ listener is not enabled, and topics are read through it"
        raise Failure(ExitCode.UNREACHABLE, text)
    if port == ports.rocketmqs:
        tls = tls or own_tls(settings.tls)
    host = f"[{ports.host}]" if ":" in ports.host else ports.host
    return f"{host}:{port}", tls
