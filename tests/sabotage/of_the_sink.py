"""Sabotages of the Parquet sink: what would be written twice, left out, or mixed up."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

LAYOUT = "tests/spark_sink/test_sink_layout.py"
OFFSETS = "tests/spark_sink/test_sink_offsets.py"
OPTIONS = "tests/spark_sink/test_sink_options.py"
OUTPUT = "tests/spark_sink/test_sink_output.py"
READING = "tests/spark_sink/test_sink_reading.py"
RETRIES = "tests/spark_sink/test_sink_retries.py"

OF_THE_SINK = (
    Sabotage(
        name="topic-that-readers-take-for-null",
        why="the rows of a topic with Hive's name for NULL have no topic",
        path="spark_sink/layout.py",
        old="    if topic == _HIVE_NULL:\n",
        new="    if False:\n",
        tests=(LAYOUT,),
    ),
    Sabotage(
        name="lake-generations-share-file-names",
        why="a topic that was created again replaces the files of the old one",
        path="spark_sink/layout.py",
        old='        f"-g{span.incarnation or 0:x}-{broker}{SUFFIX}"\n',
        new='        f"-g0-{broker}{SUFFIX}"\n',
        tests=(LAYOUT,),
    ),
    Sabotage(
        name="lake-brokers-share-file-names",
        why="a topic on two brokers loses the files of one of them",
        path="spark_sink/layout.py",
        old='        f"-g{span.incarnation or 0:x}-{broker}{SUFFIX}"\n',
        new='        f"-g{span.incarnation or 0:x}{SUFFIX}"\n',
        tests=(LAYOUT,),
    ),
    Sabotage(
        name="lake-long-topic-names-are-not-shortened",
        why="one publish to a topic with a long name stops the sink of all topics",
        path="spark_sink/layout.py",
        old='    if len("topic=") + len(escaped) > NAME_BYTES_MAX:\n',
        new="    if False:\n",
        tests=(LAYOUT,),
    ),
    Sabotage(
        name="lake-topic-created-again-is-read-on",
        why="the first messages of a topic that was created again are left out",
        path="spark_sink/offsets.py",
        old="    again = {key for key, incarnation in now.items() "
        "if before.get(key, incarnation) != incarnation}\n",
        new="    again: set[str] = set()\n",
        tests=(OFFSETS,),
    ),
    Sabotage(
        name="lake-topic-deleted-unread-in-silence",
        why="nobody learns that messages were deleted before they were written",
        path="spark_sink/offsets.py",
        old="        if end > offset:\n            lost[queue] = end\n",
        new="        if end > offset + (1 << 62):\n            lost[queue] = end\n",
        tests=(OFFSETS,),
    ),
    Sabotage(
        name="lake-broker-away-counts-as-deleted-topics",
        why="the restart of a broker stops the sink, or loses what was not read yet",
        path="spark_sink/offsets.py",
        old="        if now is None and queue.broker not in brokers:\n",
        new="        if False:\n",
        tests=(OFFSETS,),
    ),
    Sabotage(
        name="lake-planned-batch-reads-another-generation",
        why="messages are written twice: as those of the old topic, and as their own",
        path="spark_sink/offsets.py",
        old="end.incarnation_of(queue, bounds.incarnation) != bounds.incarnation:\n",
        new="end.incarnation_of(queue, bounds.incarnation) is end:\n",
        tests=(OFFSETS,),
    ),
    Sabotage(
        name="lake-range-goes-on-in-another-generation",
        why="a file has messages of two topics, one of them twice in the lake",
        path="spark_sink/reading.py",
        old="        if pulled is None or pulled.incarnation != wanted.incarnation:\n",
        new="        if pulled is None:\n",
        tests=(READING,),
    ),
    Sabotage(
        name="lake-of-the-first-version-gets-new-names-at-once",
        why="a batch that was half written before the upgrade is in the lake twice",
        path="spark_sink/output.py",
        old="    return [replace(file, final=str(file.former)) for file in files]\n",
        new="    return files\n",
        tests=(OUTPUT,),
    ),
    Sabotage(
        name="lake-former-names-after-new-ones",
        why="a batch that was half written after the upgrade is in the lake twice",
        path="spark_sink/output.py",
        old="    if any((output / file.final).exists() for file in files):\n",
        new="    if False:\n",
        tests=(OUTPUT,),
    ),
    Sabotage(
        name="lake-unknown-options-are-left-out",
        why="a query that was to read one topic reads all of them",
        path="spark_sink/options.py",
        old="        _check_names(given)\n",
        new="",
        tests=(OPTIONS,),
    ),
    Sabotage(
        name="lake-nothing-to-read-is-an-error",
        why="a query of an empty topic ends in an AssertionError",
        path="spark_sink/source.py",
        old="        if not isinstance(partition, RangePartition):\n",
        new="        if False:\n",
        tests=(OPTIONS,),
    ),
    Sabotage(
        name="sink-tries-again-what-cannot-pass",
        why="a sink that lost messages says so only after half an hour",
        path="spark_sink/retries.py",
        old="        if not isinstance(error, Unavailable | SinkFailed):\n",
        new="        if False:\n",
        tests=(RETRIES,),
    ),
    Sabotage(
        name="sink-tries-again-for-ever",
        why="a supervisor never learns that the sink does nothing",
        path="spark_sink/retries.py",
        old="        if self.failure_count > FAILURES_MAX:\n",
        new="        if False:\n",
        tests=(RETRIES,),
    ),
    Sabotage(
        name="sink-does-not-fence-a-failed-attempt",
        why="what is left of a failed query commits beside the next one",
        path="spark_sink/job.py",
        old="            run = renewed(run)",
        new="            run = run",
        tests=(RETRIES,),
    ),
    Sabotage(
        name="names-that-are-bars-are-shown-as-the-empty-one",
        why="deleting the topic that is shown deletes another one",
        path="broker/names.py",
        old='    return f"{name}|" if _is_bars(name) else name\n',
        new="    return name\n",
        tests=("tests/broker/test_routing.py",),
    ),
    Sabotage(
        name="names-right-is-asked-for-another-topic",
        why="who may read the topic that tools call || is refused",
        path="gateways/rocketmq/rights.py",
        old="    return parse_display_name(shown) if shown else _decoded(_topic(request))\n",
        new="    return shown or _decoded(_topic(request))\n",
        tests=("tests/gateways/rocketmq/test_rocketmq_mapping.py",),
    ),
    Sabotage(
        name="pieces-move-with-retention",
        why="a file that was written before a crash stays beside that of the replay",
        path="spark_sink/offsets.py",
        old="range(whole.planned_first, whole.end, rows_max)",
        new="range(whole.first, whole.end, rows_max)",
        tests=(OFFSETS,),
    ),
    Sabotage(
        name="pieces-follow-from-options",
        why="a replay with another option writes other files",
        path="spark_sink/offsets.py",
        old='            task_rows=document.get("taskRows"),\n',
        new="            task_rows=TASK_ROWS,\n",
        tests=(OFFSETS,),
    ),
    Sabotage(
        name="unassigned-queues-are-lost",
        why="a query that reads fewer queues than before ends with a loss",
        path="spark_sink/offsets.py",
        old="not wants(queue.topic, queue.queue_id) or",
        new="not wants(queue.topic, 0) or",
        tests=(OFFSETS,),
    ),
    Sabotage(
        name="times-that-nothing-has-reached-begin-at-the-end",
        why="a query leaves out what it was to read",
        path="spark_sink/offsets.py",
        old="        if offset >= snapshot[queue].end:\n",
        new="        if False:\n",
        tests=(OFFSETS,),
    ),
)
