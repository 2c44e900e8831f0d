"""`polymq user access-key`: what RocketMQ's clients sign with. A part of `users.py`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.terminal import echo


@click.group("access-key")
def access_key() -> None:
    """Create, list and remove the access keys of a user.

    RocketMQ clients have no password: they sign each request with an access key and its secret
    key. A key has the permissions of its user.
    """


@access_key.command("add")
@operator_options
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def access_key_add(name: str, as_json: bool, **options: Any) -> None:
    """Create an access key for user NAME. Its secret key is shown only once."""
    made = admin_client(options).ask("POST", api_path("users", name, "access-keys"))
    if as_json:
        echo(json.dumps(made))
        return
    echo(f"Access key: {made['access_key']}")
    echo(f"Secret key: {made['secret_key']}")
    echo("The secret key is not shown again.", err=True)


@access_key.command("list")
@operator_options
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def access_key_list(name: str, as_json: bool, **options: Any) -> None:
    """List the access keys of user NAME, with dates."""
    keys = admin_client(options).ask("GET", api_path("users", name))["access_keys"]
    if as_json:
        echo(json.dumps(keys))
        return
    if not keys:
        echo(f"User {name} has no access keys.")
    for key in keys:
        made = datetime.fromtimestamp(key["created_ms"] / 1000, UTC)
        echo(f"{key['access_key']}  created {made:%Y-%m-%d %H:%M} UTC")


@access_key.command("remove")
@operator_options
@click.argument("name")
@click.argument("key")
def access_key_remove(name: str, key: str, **options: Any) -> None:
    """Remove access key KEY. Connections that sign with it end."""
    admin_client(options).request("DELETE", api_path("users", name, "access-keys", key))
    echo(f"Access key {key} removed.")
