"""`polymq completion`: what a shell reads to complete our commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from polymq.terminal import echo

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_POLYMQ_COMPLETE"
"""By which the shell asks the program, as click names it for a program called `polymq`."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete commands and options.

    The Debian package installs the scripts. Elsewhere, add one of these lines to ~/.bashrc or
    ~/.zshrc, or write the output to ~/.config/fish/completions/polymq.fish.

    Example: eval "$(polymq completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click knows all that we offer
    script = kind(ctx.find_root().command, {}, "polymq", VARIABLE)
    # Not `source()`: for bash it starts one, to see which version it is.
    echo(script.source_template % script.source_vars())
