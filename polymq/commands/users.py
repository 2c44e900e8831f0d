"""`polymq user` and `polymq permission`: commands that talk to a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options, read_new_password
from polymq.commands.access_keys import access_key
from polymq.commands.imports import import_permissions, import_users
from polymq.commands.tables import fetch_items, json_option, show_fields, show_json
from polymq.errors import ExitCode
from polymq.terminal import confirm, echo

ACTIONS: Final = ("publish", "subscribe", "create", "monitor", "operate", "admin")

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
user.add_command(import_users)


@user.command("add")
@operator_options
@click.argument("name")
@password_file
@click.option("--role", "roles", multiple=True, help="Add this role. May be repeated.")
def user_add(name: str, password_file: Path | None, roles: tuple[str, ...], **options: Any) -> None:
    """Create user NAME.

    A new user may do nothing before it is given permissions, unless it has the role `admin`, which
    may do everything.

    Example: polymq user add ann --role admin
    """
    client = admin_client(options)
    body = {"password": read_new_password(password_file), "roles": roles}
    client.ask("PUT", api_path("users", name), body)
    echo(f"User {name} added.")


@user.command("password")
@operator_options
@click.argument("name")
@password_file
def user_password(name: str, password_file: Path | None, **options: Any) -> None:
    """Change the password of user NAME. Connections that were made with the old one end."""
    client = admin_client(options)
    client.ask("PATCH", api_path("users", name), {"password": read_new_password(password_file)})
    echo(f"Password of user {name} changed.")


@user.command("delete")
@operator_options
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def user_delete(name: str, yes: bool, **options: Any) -> None:
    """Delete user NAME with its permissions and its MQTT sessions. Its connections end."""
    client, path = admin_client(options), api_path("users", name)
    client.ask("GET", path)
    if not yes:
        confirm(f"Delete user {name}?")
    client.request("DELETE", path)
    echo(f"User {name} deleted.")
    if not client.ask("GET", api_path("users"))["items"]:
        echo("It was the last user: every client that is accepted may do everything again.")


@user.command("disable")
@operator_options
@click.argument("name")
def user_disable(name: str, **options: Any) -> None:
    """Disable user NAME. Its connections end; nothing of it is deleted."""
    admin_client(options).ask("PATCH", api_path("users", name), {"disabled": True})
    echo(f"User {name} is disabled.")


@user.command("enable")
@operator_options
@click.argument("name")
def user_enable(name: str, **options: Any) -> None:
    """Enable user NAME again."""
    admin_client(options).ask("PATCH", api_path("users", name), {"disabled": False})
    echo(f"User {name} is enabled.")


@user.command("role")
@operator_options
@click.argument("name")
@click.option("--add", "added", multiple=True, metavar="ROLE", help="Add this role.")
@click.option("--remove", "removed", multiple=True, metavar="ROLE", help="Remove this role.")
def user_role(name: str, added: tuple[str, ...], removed: tuple[str, ...], **options: Any) -> None:
    """Add and remove roles of user NAME, or show them."""
    changes = {"add_roles": added, "remove_roles": removed} if added or removed else None
    value = _changed(name, changes, options)
    echo(f"Roles of {name}: {', '.join(value['roles']) or 'none'}")


@user.command("quota")
@operator_options
@click.argument("name")
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
def user_quota(name: str, values: tuple[str, ...], **options: Any) -> None:
    """Show or change the quotas of user NAME.

    KEY is what the quota limits: connections, sessions, subscriptions, queues, inflight (messages
    of one MQTT session), messages_per_second, bytes_per_second.

    A value is a number, `none` for no limit, or `default`.

    Example: polymq user quota device7 connections=1 messages_per_second=100
    """
    value = _changed(name, {"quotas": _quota_values(values)} if values else None, options)
    for key, bound in value["quotas"].items():
        echo(f"  {key} = {'none' if bound is None else f'{bound:,}'}")


def _changed(name: str, changes: object, options: dict[str, Any]) -> dict[str, Any]:
    """A user after its changes; None: as it is."""
    method = "GET" if changes is None else "PATCH"
    return admin_client(options).ask(method, api_path("users", name), changes)


def _quota_values(texts: tuple[str, ...]) -> dict[str, int | str | None]:
    wanted: dict[str, int | str | None] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not (value.isdecimal() or value in ("none", "default")):
            raise click.BadParameter(f"write KEY=NUMBER, KEY=none or KEY=default, not {text!r}")
        wanted[key] = int(value) if value.isdecimal() else None if value == "none" else value
    return wanted


@user.command("list")
@operator_options
@json_option
def user_list(as_json: bool, **options: Any) -> None:
    """List all users with their roles."""
    answer = fetch_items(admin_client(options), ("users",), {}, 0)
    if as_json:
        show_json(answer)
        return
    users = answer["items"]
    if not users:
        echo("There are no users: every client that is accepted may do everything.")
    width = max((len(value["name"]) for value in users), default=0)
    for value in users:
        state = "disabled" if value["disabled"] else "enabled"
        echo(f"{value['name']:<{width}}  {state:<8}  {', '.join(value['roles'])}".rstrip())


@user.command("show")
@operator_options
@click.argument("name")
@json_option
def user_show(name: str, as_json: bool, **options: Any) -> None:
    """Show user NAME with its roles, quotas and access keys."""
    row = admin_client(options).ask("GET", api_path("users", name))
    if as_json:
        show_json(row)
        return
    show_fields(
        {
            "name": row["name"],
            "state": "disabled" if row["disabled"] else "enabled",
            "roles": ", ".join(row["roles"]) or "none",
            "access keys": ", ".join(key["access_key"] for key in row["access_keys"]) or "none",
            **{
                name.replace("_", " "): "no limit" if most is None else f"at most {most:,}"
                for name, most in row["quotas"].items()
            },
        }
    )


@user.command("whoami")
@operator_options
@json_option
def user_whoami(as_json: bool, **options: Any) -> None:
    """Show as whom commands ask the server, and with which rights."""
    row = admin_client(options).ask("GET", api_path("caller"))
    if as_json:
        show_json(row)
    else:
        echo(f"{row['name']}: {', '.join(row['rights']) or 'no rights'}")


# --- permissions -------------------------------------------------------------------------------


@click.group()
def permission() -> None:
    """Show and change the rules that allow or deny actions.

    SUBJECT is the name of a user, or `role:` and the name of a role. `role:anonymous` stands for
    clients that do not log in. ACTIONS are publish, subscribe, create, monitor, operate and admin,
    separated by commas. TOPIC is a pattern: sensors.room1.temp, sensors.*.temp (* is one level),
    sensors.# (# is all further levels). {user} or %u, and {client_id} or %c, stand for the user and
    the MQTT client id of the connection, where they are a whole level. MQTT's notation,
    sensors/+/temp, is accepted, too.

    What no rule allows is denied, and a rule that denies takes precedence.
    """


permission.add_command(import_permissions)


def _rule(subject: str, actions: str, topic: str) -> dict[str, Any]:
    listed = [one.strip() for one in actions.split(",")]
    for action in listed:
        if action not in ACTIONS:
            raise click.BadParameter(f"there is no action {action!r}: use {', '.join(ACTIONS)}")
    return {"subject": _subject(subject), "actions": listed, "topic": topic}


@permission.command("allow")
@operator_options
@click.argument("subject")
@click.argument("actions")
@click.argument("topic")
def permission_allow(subject: str, actions: str, topic: str, **options: Any) -> None:
    """Allow SUBJECT the ACTIONS on TOPIC.

    Example: polymq permission allow role:device publish,create devices.{client_id}.#
    """
    _add("allow", subject, actions, topic, options)


@permission.command("deny")
@operator_options
@click.argument("subject")
@click.argument("actions")
@click.argument("topic")
def permission_deny(subject: str, actions: str, topic: str, **options: Any) -> None:
    """Deny SUBJECT the ACTIONS on TOPIC, even if other rules allow them. Takes effect at once."""
    _add("deny", subject, actions, topic, options)


def _add(effect: str, subject: str, actions: str, topic: str, options: dict[str, Any]) -> None:
    body = {"effect": effect, **_rule(subject, actions, topic)}
    _show_rules(admin_client(options).ask("POST", api_path("permissions"), body)["permissions"])


@permission.command("remove")
@operator_options
@click.argument("subject")
@click.argument("actions")
@click.argument("topic")
def permission_remove(subject: str, actions: str, topic: str, **options: Any) -> None:
    """Remove the rules that allow or deny SUBJECT the ACTIONS on TOPIC. Takes effect at once."""
    rule = _rule(subject, actions, topic)
    query = {**rule, "actions": ",".join(rule["actions"])}
    removed = admin_client(options).ask("DELETE", api_path("permissions", query=query))
    echo("Removed:")
    _show_rules(removed["permissions"])


@permission.command("list")
@operator_options
@click.argument("subject", required=False)
@json_option
def permission_list(subject: str | None, as_json: bool, **options: Any) -> None:
    """List all rules, or those of SUBJECT."""
    query = {"subject": None if subject is None else _subject(subject)}
    found = fetch_items(admin_client(options), ("permissions",), query, 0)
    if as_json:
        show_json(found)
        return
    if not found["items"]:
        echo("There are no rules yet: use `polymq permission allow SUBJECT ACTIONS TOPIC`.")
    _show_rules(found["items"])


@permission.command("check")
@operator_options
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
    query = {"user": user, "action": action, "topic": topic, "client_id": client_id}
    found = admin_client(options).ask("GET", api_path("permissions", "check", query=query))
    verdict = "allowed" if found["allowed"] else "not allowed"
    if found["needs"] != action:
        verdict += f" (the topic does not exist: that needs {found['needs']}, too)"
    echo(f"{verdict}: {found['rule'] or 'no rule allows it'}")
    return ExitCode.OK if found["allowed"] else ExitCode.FAILED


@permission.command("forget")
@operator_options
def permission_forget(**options: Any) -> None:
    """Forget what services have answered until now.

    The login service and the permission service are asked again about the next login, publish or
    subscription. Subscriptions that clients have stay until they connect again.
    """
    admin_client(options).request("DELETE", api_path("service-answers"))
    echo("The answers of services are forgotten.")


def _show_rules(rules: list[dict[str, str]]) -> None:
    for rule in rules:
        echo(f"{rule['effect']:<5}  {rule['subject']}  {rule['action']}  {rule['topic']}")
