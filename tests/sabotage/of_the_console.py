"""Sabotages of the console and of what it asks for."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

SCREENS = "interop_tests/test_console_screens.py"
TEXTS = "tests/polymq/console/test_dialogs.py"
CONSOLE = "interop_tests/test_console.py::test_a_message_is_shown_as_it_is"
COMMAND = "tests/polymq/commands/test_console.py"

LINES = "tests/polymq/test_recent_lines.py"
PAGES = "tests/polymq/admin/test_log_lines.py"

SNIPPETS = "tests/polymq/console/test_snippets.py"
ALL = "interop_tests/test_console_all_screens.py"

OF_THE_CONSOLE = (
    Sabotage(
        name="sessions-that-are-away-are-disconnected",
        why="an operator is offered what is answered with an error",
        path="polymq/console/sessions.py",
        old='            suits=lambda row: bool(row["connected"]),\n',
        new="",
        tests=("interop_tests/test_console.py",),
    ),
    Sabotage(
        name="a-topic-without-its-administrator",
        why="who may administer one topic has no button to do it",
        path="polymq/admin/caller.py",
        old="                of_topic.append(ADMIN)\n",
        new="                of_topic.append(topic)\n",
        tests=("interop_tests/test_console.py",),
    ),
    Sabotage(
        name="a-trace-outlives-its-tab",
        why="eight tabs that were closed leave no trace for anybody else",
        path="polymq/console/traces.py",
        old="    ui.context.client.on_delete(trace.end)\n",
        new="",
        tests=(f"{SCREENS}::test_a_trace_shows_packets_and_ends_with_its_tab",),
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
        tests=(f"{SCREENS}::test_a_topic_from_its_creation_to_its_end",),
    ),
    Sabotage(
        name="texts-of-errors-are-shown",
        why="a reader finds what clients sent in the log",
        path="polymq/recent_lines.py",
        old='        values["error"] = _name_of(error)\n',
        new='        values["error"] = printable(repr(error))\n',
        tests=(LINES,),
    ),
    Sabotage(
        name="a-flood-hides-the-audit-log",
        why="who wants to hide a change causes two thousand other lines",
        path="polymq/recent_lines.py",
        old="        stored = self._audit if record.name == audit.LOGGER else self._others\n",
        new="        stored = self._others\n",
        tests=(LINES,),
    ),
    Sabotage(
        name="a-line-is-followed-twice",
        why="`--follow` prints the last line again and again",
        path="polymq/admin/log_lines.py",
        old="        if line.number <= query.since:\n",
        new="        if line.number < query.since:\n",
        tests=(PAGES,),
    ),
    Sabotage(
        name="far-consoles-of-open-brokers",
        why="everybody on the network operates a broker that lets only its own machine in",
        path="polymq/console/shell.py",
        old="    if not console.is_local and ",
        new="    if console.is_local and ",
        tests=(COMMAND,),
    ),
    Sabotage(
        name="a-topic-ends-its-quotes",
        why="who copies a program runs what the name of a topic says",
        path="polymq/console/snippets/__init__.py",
        old="    return json.dumps(text, ensure_ascii=False)\n",
        new="    return f'\"{text}\"'\n",
        tests=(SNIPPETS,),
    ),
    Sabotage(
        name="programs-forget-the-login",
        why="every copied program is refused by a broker with users",
        path="polymq/console/snippets/__init__.py",
        old='            if line.startswith("?") != bool(target.user):\n',
        new='            if line.startswith("?") or target.user:\n',
        tests=(SNIPPETS,),
    ),
    Sabotage(
        name="a-reader-is-shown-buttons",
        why="a reader finds buttons that end in a refusal",
        path="polymq/console/lists.py",
        old='        if action is not None and self._console.may(action("").right):\n',
        new="        if action is not None:\n",
        tests=(f"{ALL}::test_every_screen",),
    ),
    Sabotage(
        name="consoles-without-tls",
        why="operators' passwords cross the network, and nobody has decided that they may",
        path="polymq/commands/console.py",
        old="    elif not allow_plain and not is_loopback(host):\n",
        new="    elif False:\n",
        tests=(COMMAND,),
    ),
    Sabotage(
        name="messages-are-markdown",
        why="a message shows an operator pictures from elsewhere, and not what it contains",
        path="polymq/console/messages.py",
        old="                    show_text(text(row))\n",
        new="                    ui.code(text(row))\n",
        tests=(CONSOLE,),
    ),
)
