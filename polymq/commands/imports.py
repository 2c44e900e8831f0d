"""`polymq user import` and `polymq permission import`: users and rules from another broker's files.
A part of `users.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from polymq.admin.client import AdminClient, api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import fetch_items
from polymq.errors import ExitCode, Failure
from polymq.mosquitto.dynamic_security import (
    BadFile,
    FoundRule,
    FoundUser,
    Remark,
    read_dynamic_security,
)
from polymq.mosquitto.files import (
    Imported,
    ImportedRule,
    Problem,
    read_acl,
    read_passwords,
)
from polymq.terminal import echo, printable

EVERYBODY: Final = "mosquitto"
"""The role that stands for all users of a mosquitto."""
FILE_BYTES_MAX: Final = 64 * 1024 * 1024

Command = TypeVar("Command", bound=Callable[..., Any])
Entry = TypeVar("Entry", Imported, ImportedRule)

_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Only say what would be imported, and what cannot be."
)


@click.group("import")
def import_users() -> None:
    """Import users from a file of another broker."""


@click.group("import")
def import_permissions() -> None:
    """Import permissions from a file of another broker."""


@import_users.command("mosquitto-passwords")
@operator_options
@_file
@click.option(
    "--role",
    default=EVERYBODY,
    show_default=True,
    help="Role that every imported user gets. It has the rules that `polymq permission import` "
    "makes of `pattern` lines.",
)
@_dry_run
def mosquitto_passwords(file: Path, role: str, dry_run: bool, **options: Any) -> int:
    """Import users of mosquitto's password file.

    Passwords stay as they are: hashes of the forms $6$ and $7$ are accepted, and each is replaced
    by a stronger one at the user's next login. Users that exist already are not changed. The exit
    code is 1 if a line was not imported.

    Example: polymq user import mosquitto-passwords /etc/mosquitto/passwd --dry-run
    """
    client = admin_client(options)
    existing = {user["name"] for user in fetch_items(client, ("users",), {}, 0)["items"]}

    def add(entry: Imported) -> None:
        if entry.name in existing:
            raise Failure(ExitCode.FAILED, f"user {entry.name!r} exists")
        if not dry_run:
            body = {"hash": entry.password_hash, "roles": [role]}
            client.ask("PUT", api_path("users", entry.name), body)

    return _import(read_passwords(_lines(file)), add, "user", dry_run=dry_run)


@import_permissions.command("mosquitto-acl")
@operator_options
@_file
@click.option(
    "--role",
    default=EVERYBODY,
    show_default=True,
    help="Role that gets the rules of `pattern` lines, which concern every user.",
)
@_dry_run
def mosquitto_acl(file: Path, role: str, dry_run: bool, **options: Any) -> int:
    """Add the rules of an access control list of mosquitto.

    Import the users first. `write` becomes publish and create, `read` becomes subscribe, and `deny`
    denies publish and subscribe. Lines that no rule can say are listed. The exit code is 1 if a
    line was not imported.

    A client of mosquitto may subscribe to more than it may read. PolyMQ grants a subscription only
    if all of it is allowed.

    Example: polymq permission import mosquitto-acl /etc/mosquitto/acl --dry-run
    """
    client = admin_client(options)
    existing = {user["name"] for user in fetch_items(client, ("users",), {}, 0)["items"]}

    def add(entry: ImportedRule) -> None:
        if ":" not in entry.subject and entry.subject not in existing:
            raise Failure(ExitCode.FAILED, f"there is no user {entry.subject!r}")
        if not dry_run:
            _add_rule(client, entry)
        actions = ",".join(entry.actions)
        echo(f"{entry.effect:<5}  {entry.subject}  {actions}  {printable(entry.topic)}")

    return _import(read_acl(_lines(file), role), add, "line", dry_run=dry_run)


@import_users.command("mosquitto-dynamic-security")
@operator_options
@_file
@_dry_run
def mosquitto_dynamic_security(file: Path, dry_run: bool, **options: Any) -> int:
    """Import mosquitto's dynamic security.

    The clients of its file become users, and its roles are created.

    Passwords stay as they are. A user gets the roles of its groups, too. ACLs become rules of their
    roles. What no rule can say is listed, and users that exist already are not changed. The exit
    code is 1 if something was not imported as it is in the file.

    Example: polymq user import mosquitto-dynamic-security dynamic-security.json --dry-run
    """
    client = admin_client(options)
    existing = {user["name"] for user in fetch_items(client, ("users",), {}, 0)["items"]}
    counts = {FoundUser: 0, FoundRule: 0}
    remarks: list[Remark] = []
    try:
        for entry in read_dynamic_security(_content(file)):
            if isinstance(entry, Remark):
                remarks.append(entry)
                continue
            try:
                if isinstance(entry, FoundRule):
                    if not dry_run:
                        _add_rule(client, entry)
                else:
                    _add_user(client, entry, existing, dry_run=dry_run)
                counts[type(entry)] += 1
            except Failure as error:
                if error.code is not ExitCode.FAILED:
                    raise
                remarks.append(Remark(_name_of(entry), error.text))
    except BadFile as error:
        raise Failure(ExitCode.USAGE, f"{file}: {error}") from error
    for remark in remarks:
        echo(f"{printable(remark.where)}: {printable(remark.text)}", err=True)
    done = "can be imported" if dry_run else "imported"
    users, acls = _counted(counts[FoundUser], "user"), _counted(counts[FoundRule], "ACL")
    echo(f"{users} and {acls} {done}, {_counted(len(remarks), 'remark')}.")
    return ExitCode.FAILED if remarks else ExitCode.OK


def _add_user(client: AdminClient, entry: FoundUser, existing: set[str], *, dry_run: bool) -> None:
    if entry.name in existing:
        raise Failure(ExitCode.FAILED, "the user exists, and is not changed")
    if dry_run:
        return
    path = api_path("users", entry.name)
    client.ask("PUT", path, {"hash": entry.password_hash, "roles": entry.roles})
    if entry.disabled:
        client.ask("PATCH", path, {"disabled": True})


def _name_of(entry: FoundUser | FoundRule) -> str:
    if isinstance(entry, FoundUser):
        return f"client {entry.name}"
    return f"{entry.effect} {entry.subject} {entry.topic}"


def _add_rule(client: AdminClient, entry: ImportedRule | FoundRule) -> None:
    body = {
        "effect": entry.effect,
        "subject": entry.subject,
        "actions": entry.actions,
        "topic": entry.topic,
    }
    client.ask("POST", api_path("permissions"), body)


def _import(
    found: Iterable[Entry | Problem], add: Callable[[Entry], None], what: str, *, dry_run: bool
) -> int:
    """Add what can be added, and list what cannot. Returns the exit code."""
    count = 0
    problems: list[Problem] = []
    for entry in found:
        if isinstance(entry, Problem):
            problems.append(entry)
            continue
        try:
            add(entry)
            count += 1
        except Failure as error:
            if error.code is not ExitCode.FAILED:
                raise
            problems.append(Problem(entry.line, error.text))
    for problem in problems:
        echo(f"line {problem.line}: {printable(problem.text)}", err=True)
    done = "can be imported" if dry_run else "imported"
    echo(f"{_counted(count, what)} {done}, {len(problems)} not.")
    return ExitCode.FAILED if problems else ExitCode.OK


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _lines(file: Path) -> list[str]:
    """The lines of a file. Raises Failure."""
    try:
        return _content(file).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise Failure(ExitCode.USAGE, f"{file} is not UTF-8") from error


def _content(file: Path) -> bytes:
    """What is in a file. Raises Failure."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise Failure(ExitCode.USAGE, f"{file} has more than {FILE_BYTES_MAX} bytes")
        return file.read_bytes()
    except OSError as error:
        raise Failure(ExitCode.USAGE, f"cannot read {file}: {error.strerror or error}") from error
