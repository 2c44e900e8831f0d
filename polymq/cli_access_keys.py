"""`polymq user access-key`: what RocketMQ's clients sign with. A part of `cli_users.py`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from polymq.cli_access import as_options, user_client
from polymq.cli_options import config_option, data_flag
from polymq.errors import ExitCode
from polymq.terminal import echo


@click.group("access-key")
def access_key() -> None:
    """Create, list and remove the access keys of a user.

    RocketMQ clients have no password: they sign each request with an access key and its secret
    key. A key has the permissions of its user.
    """


@access_key.command("add")
@config_option
@data_flag
@as_options
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def access_key_add(name: str, as_json: bool, **options: Any) -> int:
    """Create an access key for user NAME. Its secret key is shown only once."""
    made = user_client(options).add_access_key(name)
    if as_json:
        echo(json.dumps(made))
        return ExitCode.OK
    echo(f"Access key: {made['access_key']}")
    echo(f"Secret key: {made['secret_key']}")
    echo("The secret key is not shown again.", err=True)
    return ExitCode.OK


@access_key.command("list")
@config_option
@data_flag
@as_options
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def access_key_list(name: str, as_json: bool, **options: Any) -> int:
    """List the access keys of user NAME, with dates."""
    keys = user_client(options).show(name)["access_keys"]
    if as_json:
        echo(json.dumps(keys))
        return ExitCode.OK
    if not keys:
        echo(f"User {name} has no access keys.")
    for key in keys:
        made = datetime.fromtimestamp(key["created_ms"] / 1000, UTC)
        echo(f"{key['access_key']}  created {made:%Y-%m-%d %H:%M} UTC")
    return ExitCode.OK


@access_key.command("remove")
@config_option
@data_flag
@as_options
@click.argument("name")
@click.argument("key")
def access_key_remove(name: str, key: str, **options: Any) -> int:
    """Remove access key KEY. Connections that sign with it end."""
    user_client(options).remove_access_key(name, key)
    echo(f"Access key {key} removed.")
    return ExitCode.OK
