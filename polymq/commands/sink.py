"""`polymq sink`: topics to Parquet."""

from __future__ import annotations

from typing import Any

import click

from polymq.commands.access import access_key, access_key_options, broker_options
from polymq.commands.options import config_option, setting_flag, settings_from
from polymq.sink import run_sink
from polymq.tls import chosen_tls


@click.command()
@config_option
@setting_flag("--output", "sink.output_directory", "Directory for the Parquet files.")
@setting_flag(
    "--checkpoint",
    "sink.checkpoint_directory",
    "Directory in which Spark stores how far it has read.",
)
@setting_flag("--every-seconds", "sink.trigger_seconds", "Interval between batches.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Write only this topic. May be repeated. Default: all topics.",
)
@click.option(
    "--topic-pattern",
    metavar="REGEX",
    help="Write the topics whose whole names match, including those that are created later.",
)
@click.option(
    "--exclude-topic",
    "exclude_topics",
    multiple=True,
    help="Do not write this topic. May be repeated.",
)
@click.option(
    "--fail-on-data-loss",
    "sink__fail_on_data_loss",
    type=click.Choice(["yes", "no"]),
    help="Whether to stop when messages were deleted before they were written: by retention, or "
    "with their topic. [default: yes]",
)
@click.option("--once", is_flag=True, help="Write the messages that are there now, and exit.")
@broker_options
@click.option("--master", default="local[2]", show_default=True, help="The Spark master to run on.")
@access_key_options
def sink(
    topics: tuple[str, ...],
    topic_pattern: str | None,
    exclude_topics: tuple[str, ...],
    once: bool,
    broker: str | None,
    encrypted: bool,
    tls_ca: str | None,
    master: str,
    **options: Any,
) -> int:
    """Write topics to Parquet files, each message exactly once.

    The directories of the files are topic=NAME/date=DAY/hour=HOUR. Any Parquet reader sees each
    message once, whenever it reads, and however often the sink was stopped or killed.

    The sink needs pip install 'polymq[spark]'. It uses Java 17 or newer from JAVA_HOME or PATH, or
    else the Java that comes with that package.
    """
    signed = access_key(options)
    settings = settings_from(options)
    if not topics and topic_pattern is None:  # else they win over the configuration
        topics, topic_pattern = tuple(settings.sink.topics), settings.sink.topic_pattern or None
    return run_sink(
        settings,
        topics=topics,
        topic_pattern=topic_pattern,
        exclude_topics=exclude_topics or tuple(settings.sink.exclude_topics),
        once=once,
        broker=broker,
        master=master,
        credentials=signed,
        tls=chosen_tls(tls_ca) if encrypted or tls_ca else None,
    )
