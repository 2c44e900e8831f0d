"""Sabotages of the console's dialogs, and of the commands that the table of operations names."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

FORMS = "tests/polymq/console/test_forms.py"
SCREENS = "tests/polymq/cells/test_console.py::test_every_screen_and_button"
READER = "tests/polymq/cells/test_console.py::test_a_reader_finds_no_button_that_changes_something"
COMMANDS = "tests/polymq/cells/test_commands.py"
DOCUMENTED = "tests/polymq/admin/test_documented.py"

OF_THE_DIALOGS = (
    Sabotage(
        name="a-try-that-does-it",
        why="messages are moved before anybody has said yes, and then again",
        path="polymq/console/forms.py",
        old='body={**body, "dry_run": True})\n',
        new="body=body)\n",
        tests=(SCREENS,),
    ),
    Sabotage(
        name="an-import-is-not-tried",
        why="who only wanted to know what an import would do has imported",
        path="polymq/console/configuration.py",
        old="        await self._send(dry_run=True)\n",
        new="        await self._send(dry_run=False)\n",
        tests=(SCREENS,),
    ),
    Sabotage(
        name="a-role-changes-without-a-word-typed",
        why="a click too many makes a second master",
        path="polymq/console/forms.py",
        old="form.verb or form.label, typed=form.typed(row)\n",
        new="form.verb or form.label\n",
        tests=(SCREENS,),
    ),
    Sabotage(
        name="a-reader-may-discard",
        why="a reader sees a button that the broker refuses",
        path="polymq/console/delayed.py",
        old='        right="operate",\n',
        new='        right="monitor",\n',
        tests=(READER,),
    ),
    Sabotage(
        name="roles-are-only-added",
        why="a role that was struck out stays, and what it allows",
        path="polymq/console/user_forms.py",
        old='"remove_roles": sorted(before - after)}',
        new='"remove_roles": []}',
        tests=(FORMS,),
    ),
    Sabotage(
        name="a-place-without-its-time",
        why="a mistyped time is left to the broker, whose answer speaks of other fields",
        path="polymq/console/reader_forms.py",
        old='        if body["time_ms"] is None:\n',
        new='        if "time_ms" not in body:\n',
        tests=(FORMS,),
    ),
    Sabotage(
        name="a-delayed-message-that-is-not-cancelled",
        why="the command says so, and the message comes",
        path="polymq/commands/delayed.py",
        old='    admin_client(options).request("DELETE", api_path("delayed", id))\n',
        new='    admin_client(options).request("GET", api_path("delayed"))\n',
        tests=(COMMANDS,),
    ),
    Sabotage(
        name="an-operation-that-nobody-reaches",
        why="a page names a command that is not there",
        path="docs/site/operations.py",
        old='Reached("delayed list", ',
        new='Reached("delayed show", ',
        tests=(DOCUMENTED,),
    ),
)
