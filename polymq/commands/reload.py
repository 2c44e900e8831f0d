"""`polymq reload`: have a running server read its configuration again."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import json_option, show_json
from polymq.terminal import echo, printable

WHEN: Final = {"all": "", "new connections": " (for new connections)"}
OF: Final = {"server": "needs a restart", "sink": "is read by `polymq sink` when it starts"}


@click.command()
@operator_options
@json_option
def reload(as_json: bool, **options: Any) -> None:
    """Have the server read its configuration again.

    The server reads its configuration file, and the certificates and keys that it names. It applies
    what can change while it runs, and prints which settings have changed, and which of them need a
    restart. Open connections stay. SIGHUP does the same.

    A configuration that is wrong changes nothing: the command says what is wrong, and its exit code
    is not 0.
    """
    found = admin_client(options).ask("POST", api_path("reload"))
    if as_json:
        show_json(found)
        return
    for change in found["applied"]:
        when = WHEN[change["applies_to"]]
        echo(printable(f"{change['name']}: {change['old']} -> {change['new']}{when}"))
    for change in found["restart"]:
        echo(printable(f"{change['name']}: {OF[change['used_by']]}"))
    if not found["applied"] and not found["restart"]:
        echo("No setting has changed. Certificates and keys were read again.", err=True)
