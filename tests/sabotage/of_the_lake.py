"""Sabotages of topics as tables: rows that are wrong, missing, or come twice."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

COLUMNS = ("tests/spark_sink/test_sink_columns.py",)
ENVELOPE = ("tests/spark_sink/test_sink_envelope.py",)
READING = ("tests/spark_sink/test_sink_reading.py",)
EXPORTING = ("tests/spark_sink/test_sink_exporting.py",)
AHEAD = ("tests/spark_sink/test_sink_ahead.py",)

OF_THE_LAKE = (
    Sabotage(
        name="column-of-damaged-bodies",
        why="a body that was damaged on its way is written to the lake as if it were right",
        path="spark_sink/kernels/columns.pyx",
        old=" & C_CRC_MASK == get32(at + 8)\n",
        new=" >= 0\n",
        tests=COLUMNS,
    ),
    Sabotage(
        name="column-keeps-what-was-absent",
        why="a row without a tag makes the next batch take another row's tag for absent",
        path="spark_sink/kernels/columns.pyx",
        old="            self.columns[index].present.size = 0\n",
        new="            pass\n",
        tests=COLUMNS,
    ),
    Sabotage(
        name="record-read-beyond-the-answer",
        why="a record that says it is longer than what came is read beyond the end of memory",
        path="spark_sink/kernels/columns.pyx",
        old="    if size > left:\n        return False\n",
        new="",
        tests=COLUMNS,
    ),
    Sabotage(
        name="compressed-bodies-stay-compressed",
        why="what a RocketMQ producer compressed is in the lake as its bytes, not as its body",
        path="spark_sink/kernels/columns.pyx",
        old="is_row = not message.system_flag & C_COMPRESSED and read_row(\n",
        new="is_row = read_row(\n",
        tests=(*COLUMNS, *ENVELOPE),
    ),
    Sabotage(
        name="answer-with-fewer-messages-than-it-says",
        why="messages are left out in silence, because the broker counted others",
        path="spark_sink/reading.py",
        old="            if builder.next_offset != min(pull.next_offset, wanted.end):\n",
        new="            if False:\n",
        tests=READING,
    ),
    Sabotage(
        name="reading-ahead-without-a-bound",
        why="a slow disk makes the sink hold a whole topic in memory",
        path="spark_sink/ahead.py",
        old="            while self._waiting_bytes >= self._bytes_max and not self._stopped:\n",
        new="            while False:\n",
        tests=AHEAD,
    ),
    Sabotage(
        name="reading-ahead-swallows-errors",
        why="a range that broke off in the middle is taken for whole",
        path="spark_sink/ahead.py",
        old="                self._failure = self._failure or failure\n",
        new="                self._failure = None\n",
        tests=AHEAD,
    ),
    Sabotage(
        name="export-of-half-a-file",
        why="a file is there before it is whole, and a reader takes half a topic for all of it",
        path="spark_sink/exporting.py",
        old='    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")\n',
        new="    temporary = path\n",
        tests=EXPORTING,
    ),
    Sabotage(
        name="export-without-the-last-moment",
        why="messages of the time that --until names are left out",
        path="spark_sink/exporting.py",
        old="part.until_ms + 1, held",
        new="part.until_ms, held",
        tests=EXPORTING,
    ),
)
