"""Mistakes in commands and pages that readers of the documentation would run into."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_COMMANDS = ("tests/docs/test_commands_in_pages.py",)
_LINKS = ("tests/docs/test_links.py",)
_REFERENCE = ("tests/docs/test_reference.py",)

OF_THE_DOCUMENTATION = (
    Sabotage(
        name="docs-option-renamed-in-silence",
        why="pages name an option that the command does not have any more",
        path="polymq/commands/queue.py",
        old='    "--sort",\n',
        new='    "--order",\n',
        tests=_COMMANDS,
    ),
    Sabotage(
        name="docs-page-outside-the-navigation",
        why="a page is there, and no reader of the site finds it",
        path="docs/site/navigation.py",
        old='        "docs/troubleshooting",\n',
        new="",
        tests=_LINKS,
    ),
    Sabotage(
        name="docs-options-left-out-of-the-reference",
        why="the reference has a command without what only this command can",
        path="docs/site/commands.py",
        old="    if own:\n",
        new="    if own and not has_shared:\n",
        tests=_REFERENCE,
    ),
    Sabotage(
        name="docs-arrow-to-nowhere-drawn",
        why="a picture with a misspelt box lacks an arrow, and nobody notices",
        path="docs/site/pictures.py",
        old='            raise PictureError(f"line {number}: {line}")\n',
        new="            continue\n",
        tests=_REFERENCE,
    ),
)
