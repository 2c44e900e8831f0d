"""`polymq user` and `polymq permission`: commands that talk to a running server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

from polymq.cli_access import as_options, read_new_password, user_client
from polymq.cli_access_keys import access_key
from polymq.cli_options import config_option, data_flag
from polymq.errors import ExitCode
from polymq.terminal import echo

ACTIONS: Final = ("publish", "subscribe", "create", "admin")

password_file = click.option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File whose first line is the user's password. Default: the keyboard, or the first line "
    "of standard input.",
)


def _subject(text: str) -> str:
    return "role:anonymous" if text == "anonymous" else text


# --- users -------------------------------------------------------------------------------------


@click.group()
def user() -> None:
    """Create, change and delete users of a running server.

    Once there is a user, every client has to log in, and may do what `polymq permission` allows.
    """


user.add_command(access_key)


@user.command("add")
@config_option
@data_flag
@as_options
@click.argument("name")
@password_file
@click.option("--role", "roles", multiple=True, help="Add this role. May be repeated.")
def user_add(name: str, password_file: Path | None, roles: tuple[str, ...], **options: Any) -> int:
    """Create user NAME.

    A new user may do nothing before it is given permissions, unless it has the role `admin`, which
    may do everything.

    Example: polymq user add ann --role admin
    """
    client = user_client(options)
    client.add(name, read_new_password(password_file), list(roles))
    echo(f"User {name} added.")
    return ExitCode.OK


@user.command("password")
@config_option
@data_flag
@as_options
@click.argument("name")
@password_file
def user_password(name: str, password_file: Path | None, **options: Any) -> int:
    """Change the password of user NAME. Connections that were made with the old one end."""
    client = user_client(options)
    client.change(name, {"password": read_new_password(password_file)})
    echo(f"Password of user {name} changed.")
    return ExitCode.OK


@user.command("delete")
@config_option
@data_flag
@as_options
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def user_delete(name: str, yes: bool, **options: Any) -> int:
    """Delete user NAME with its permissions and its MQTT sessions. Its connections end."""
    client = user_client(options)
    client.show(name)
    if not yes:
        click.confirm(f"Delete user {name}?", abort=True, err=True)
    client.delete(name)
    echo(f"User {name} deleted.")
    if not client.all():
        echo("It was the last user: every client that is accepted may do everything again.")
    return ExitCode.OK


@user.command("disable")
@config_option
@data_flag
@as_options
@click.argument("name")
def user_disable(name: str, **options: Any) -> int:
    """Disable user NAME. Its connections end; nothing of it is deleted."""
    user_client(options).change(name, {"disabled": True})
    echo(f"User {name} is disabled.")
    return ExitCode.OK


@user.command("enable")
@config_option
@data_flag
@as_options
@click.argument("name")
def user_enable(name: str, **options: Any) -> int:
    """Enable user NAME again."""
    user_client(options).change(name, {"disabled": False})
    echo(f"User {name} is enabled.")
    return ExitCode.OK


@user.command("role")
@config_option
@data_flag
@as_options
@click.argument("name")
@click.option("--add", "added", multiple=True, metavar="ROLE", help="Add this role.")
@click.option("--remove", "removed", multiple=True, metavar="ROLE", help="Remove this role.")
def user_role(name: str, added: tuple[str, ...], removed: tuple[str, ...], **options: Any) -> int:
    """Add and remove roles of user NAME, or show them."""
    client = user_client(options)
    if added or removed:
        body = {"add_roles": list(added), "remove_roles": list(removed)}
        value = client.change(name, body)
    else:
        value = client.show(name)
    echo(f"Roles of {name}: {', '.join(value['roles']) or 'none'}")
    return ExitCode.OK


@user.command("quota")
@config_option
@data_flag
@as_options
@click.argument("name")
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
def user_quota(name: str, values: tuple[str, ...], **options: Any) -> int:
    """Show or change the quotas of user NAME.

    KEY is what the quota limits: connections, sessions, subscriptions, queues, inflight (messages
    of one MQTT session), messages_per_second, bytes_per_second.

    A value is a number, `none` for no limit, or `default`.

    Example: polymq user quota device7 connections=1 messages_per_second=100
    """
    client = user_client(options)
    value = client.change(name, {"quotas": _quota_values(values)}) if values else client.show(name)
    for key, bound in value["quotas"].items():
        echo(f"  {key} = {'none' if bound is None else f'{bound:,}'}")
    return ExitCode.OK


def _quota_values(texts: tuple[str, ...]) -> dict[str, int | str | None]:
    wanted: dict[str, int | str | None] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not (value.isdecimal() or value in ("none", "default")):
            raise click.BadParameter(f"write KEY=NUMBER, KEY=none or KEY=default, not {text!r}")
        wanted[key] = int(value) if value.isdecimal() else None if value == "none" else value
    return wanted


@user.command("list")
@config_option
@data_flag
@as_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def user_list(as_json: bool, **options: Any) -> int:
    """List all users with their roles."""
    users = user_client(options).all()
    if as_json:
        echo(json.dumps(users, ensure_ascii=False))
        return ExitCode.OK
    if not users:
        echo("There are no users: every client that is accepted may do everything.")
    width = max((len(value["name"]) for value in users), default=0)
    for value in users:
        state = "disabled" if value["disabled"] else "enabled"
        echo(f"{value['name']:<{width}}  {state:<8}  {', '.join(value['roles'])}".rstrip())
    return ExitCode.OK


# --- permissions -------------------------------------------------------------------------------


@click.group()
def permission() -> None:
    """Show and change the rules that allow or deny actions.

    SUBJECT is the name of a user, or `role:` and the name of a role. `role:anonymous` stands for
    clients that do not log in. ACTIONS are publish, subscribe, create and admin, separated by
    commas. TOPIC is a pattern: sensors.room1.temp, sensors.*.temp (* is one level), sensors.# (#
    is all further levels). {user} and {client_id} stand for the user and the MQTT client id of the
    connection. MQTT's notation, sensors/+/temp, is accepted, too.

    What no rule allows is denied, and a rule that denies takes precedence.
    """


def _actions(text: str) -> list[str]:
    actions = [one.strip() for one in text.split(",")]
    for action in actions:
        if action not in ACTIONS:
            raise click.BadParameter(f"there is no action {action!r}: use {', '.join(ACTIONS)}")
    return actions


@permission.command("allow")
@config_option
@data_flag
@as_options
@click.argument("subject")
@click.argument("actions")
@click.argument("topic")
def permission_allow(subject: str, actions: str, topic: str, **options: Any) -> int:
    """Allow SUBJECT the ACTIONS on TOPIC.

    Example: polymq permission allow role:device publish,create devices.{client_id}.#
    """
    return _add("allow", subject, actions, topic, options)


@permission.command("deny")
@config_option
@data_flag
@as_options
@click.argument("subject")
@click.argument("actions")
@click.argument("topic")
def permission_deny(subject: str, actions: str, topic: str, **options: Any) -> int:
    """Deny SUBJECT the ACTIONS on TOPIC, even if other rules allow them. Takes effect at once."""
    return _add("deny", subject, actions, topic, options)


def _add(effect: str, subject: str, actions: str, topic: str, options: dict[str, Any]) -> int:
    rules = user_client(options).add_rules(effect, _subject(subject), _actions(actions), topic)
    _show_rules(rules)
    return ExitCode.OK


@permission.command("remove")
@config_option
@data_flag
@as_options
@click.argument("subject")
@click.argument("actions")
@click.argument("topic")
def permission_remove(subject: str, actions: str, topic: str, **options: Any) -> int:
    """Remove the rules that allow or deny SUBJECT the ACTIONS on TOPIC. Takes effect at once."""
    rules = user_client(options).remove_rules(_subject(subject), _actions(actions), topic)
    echo("Removed:")
    _show_rules(rules)
    return ExitCode.OK


@permission.command("list")
@config_option
@data_flag
@as_options
@click.argument("subject", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def permission_list(subject: str | None, as_json: bool, **options: Any) -> int:
    """List all rules, or those of SUBJECT."""
    rules = user_client(options).rules(None if subject is None else _subject(subject))
    if as_json:
        echo(json.dumps(rules, ensure_ascii=False))
        return ExitCode.OK
    if not rules:
        echo("There are no rules yet: use `polymq permission allow SUBJECT ACTIONS TOPIC`.")
    _show_rules(rules)
    return ExitCode.OK


@permission.command("check")
@config_option
@data_flag
@as_options
@click.argument("user")
@click.argument("action", type=click.Choice(ACTIONS), metavar="ACTION")
@click.argument("topic")
@click.option("--client-id", help="MQTT client id, for rules with {client_id}.")
def permission_check(
    user: str, action: str, topic: str, client_id: str | None, **options: Any
) -> int:
    """Show whether USER may do ACTION on TOPIC, and which rule decides. The exit code is 1 if not.

    Example: polymq permission check device7 publish devices.d7.temp --client-id d7
    """
    found = user_client(options).check(user, action, topic, client_id)
    verdict = "allowed" if found["allowed"] else "not allowed"
    if found["needs"] != action:
        verdict += f" (the topic does not exist: that needs {found['needs']}, too)"
    echo(f"{verdict}: {found['rule'] or 'no rule allows it'}")
    return ExitCode.OK if found["allowed"] else ExitCode.FAILED


def _show_rules(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        echo(f"{rule['effect']:<5}  {rule['subject']}  {rule['action']}  {rule['topic']}")
