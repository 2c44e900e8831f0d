"""Sabotages of the console and of what it asks for."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

SCREENS = "interop_tests/test_console_screens.py"
TEXTS = "tests/polymq/console/test_dialogs.py"

OF_THE_CONSOLE = (
    Sabotage(
        name="a-trace-outlives-its-tab",
        why="eight tabs that were closed leave no trace for anybody else",
        path="polymq/console/traces.py",
        old="    ui.context.client.on_delete(trace.end)\n",
        new="",
        tests=(SCREENS,),
    ),
    Sabotage(
        name="a-tail-that-grows",
        why="a flood of packets fills the console's memory and the browser",
        path="polymq/console/traces.py",
        old="        self._waiting: deque[str] = deque(maxlen=LINES_AT_ONCE)\n",
        new="        self._waiting: deque[str] = deque()\n",
        tests=(TEXTS,),
    ),
    Sabotage(
        name="an-empty-field-is-an-empty-setting",
        why="a setting cannot be taken back to the broker's default",
        path="polymq/console/topic_dialogs.py",
        old="        key: text.strip() or DEFAULT\n",
        new="        key: text.strip()\n",
        tests=(TEXTS,),
    ),
    Sabotage(
        name="a-topic-is-deleted-without-its-name",
        why="a click too many destroys a topic",
        path="polymq/console/details.py",
        old="action.label, typed=action.typed)",
        new="action.label)",
        tests=(SCREENS,),
    ),
)
