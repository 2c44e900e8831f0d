"""A group of commands whose modules are imported when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem


class LoadingGroup(click.Group):
    """A group that imports a command's module when the command is used, or described in a help.

    What the other commands need is no part of the start of a server: the client library alone is a
    tenth of a second.

    Args:
        elsewhere: the module of each such command, by its name. The command is an attribute of its
            module with the same name.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, imported or not."""
        return sorted({*super().list_commands(ctx), *self._elsewhere})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; its module is imported now if it was not."""
        found = super().get_command(ctx, cmd_name)
        module = self._elsewhere.get(cmd_name)
        if found is None and module is not None:
            command: click.Command = getattr(import_module(module), cmd_name)
            self.add_command(command)
            return command
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What may stand here: names of commands, and options. Nothing is imported for it, so only
        commands that are imported anyway come with a summary: who presses Tab waits."""
        found = [
            CompletionItem(
                name,
                help=self.commands[name].get_short_help_str() if name in self.commands else None,
            )
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]
