"""What showing and handing out a message costs, so that a commit point moves in steps
(`kernels/path.py`) and queues hand out in shares (`share.py`). A unit is some 0.3 us."""

from __future__ import annotations

from typing import Final

SHOWN_AT_ONCE: Final = 20_000
"""Units of one step, after which the loop has its turn."""
QUEUE_COST: Final = 1
"""A queue that gets a run. What its readers cost besides, they say (`arrival_cost`)."""
QUEUES_MANY: Final = 256
"""A run to more queues is a step of its own; of fewer, the cost is added up."""
LIVE_COST: Final = 10
"""A live subscriber that gets a run. Its socket gets the bytes later (`net/connection.py`)."""
LIVE_BYTES_SHIFT: Final = 10
"""One unit more for each KiB that it gets."""
CONSUMER_COST: Final = 80
"""A queue's consumers that get a run."""
SESSION_COST: Final = 400
"""A connected persistent session that gets a run: its packet ids are a record of the log."""
ANSWER_COST: Final = 40
"""Anything else that waits for a commit point: an answer, or messages whose packet ids are stored
now."""
HANDED_AT_ONCE: Final = 20_000
"""Units of what all queues hand out together before the loop has its turn."""
RUN_COST: Final = 60
"""A run that is read from the log: its kind is looked up, and it is encoded by itself."""
MESSAGE_COST: Final = 150
"""A message that its consumer decodes by itself, and one unit more for each byte of properties."""
