"""Who a command is for a server that has users, and passwords that are typed.

Rules: a password comes from a file, from standard input or from the keyboard, never from the
command line, where every process of the machine could read it; and it is printed nowhere.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from polymq.admin.client import AdminClient
from polymq.admin.operator_token import read_token
from polymq.commands.options import config_option, data_flag, settings_from
from polymq.errors import ExitCode, Failure
from polymq.ports import Ports, find_ports, running_server
from polymq.remoting.signing import Credentials
from polymq.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

AS_USER: Final = "as_user"
AS_PASSWORD_FILE: Final = "as_password_file"
ACCESS_KEY: Final = "access_key"
SECRET_KEY_FILE: Final = "secret_key_file"


def operator_options(command: Command) -> Command:
    """The server that is asked, and who asks: `--as USER` and `--as-password-file FILE`."""
    command = click.option(
        "--as-password-file",
        AS_PASSWORD_FILE,
        envvar="POLYMQ_PASSWORD_FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File with the password of the --as user. Default: the keyboard.",
    )(command)
    command = click.option(
        "--as",
        AS_USER,
        metavar="USER",
        envvar="POLYMQ_USER",
        help="Send requests as this user, if the server has users.",
    )(command)
    return config_option(data_flag(command))


def broker_options(command: Command) -> Command:
    """`--broker HOST:PORT`, `--tls` and `--tls-ca FILE`: the RocketMQ listener that is read."""
    command = click.option(
        "--tls-ca",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="PEM file with the authorities that have to have issued the certificate of --broker. "
        "Implies --tls. Default: those that the system trusts.",
    )(command)
    command = click.option(
        "--tls", "encrypted", is_flag=True, help="Connect to --broker with TLS."
    )(command)
    return click.option(
        "--broker",
        metavar="HOST:PORT",
        help="The server's port for RocketMQ. Default: that of the server on this machine.",
    )(command)


def access_key_options(command: Command) -> Command:
    """`--access-key KEY` and `--secret-key-file FILE`: who reads at RocketMQ's listener."""
    command = click.option(
        "--secret-key-file",
        SECRET_KEY_FILE,
        envvar="POLYMQ_SECRET_KEY_FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File with the secret key of --access-key.",
    )(command)
    return click.option(
        "--access-key",
        ACCESS_KEY,
        metavar="KEY",
        envvar="POLYMQ_ACCESS_KEY",
        help="Sign requests with this access key, if the server has users.",
    )(command)


def access_key(options: dict[str, Any]) -> Credentials | None:
    """The access key and the secret that the options name, if they do. Raises Failure."""
    key, file = options.pop(ACCESS_KEY, None), options.pop(SECRET_KEY_FILE, None)
    if key is None and file is None:
        return None
    if key is None or file is None:
        raise Failure(ExitCode.USAGE, "--access-key and --secret-key-file have to be used together")
    return Credentials(access_key=key, secret_key=read_password_file(file, "secret key"))


def credentials(options: dict[str, Any]) -> str | None:
    """The value of the Authorization header for the user that the options name, if they do."""
    user, file = options.pop(AS_USER, None), options.pop(AS_PASSWORD_FILE, None)
    if user is None:
        return None
    if file is not None:
        password = read_password_file(file)
    elif sys.stdin.isatty():
        password = click.prompt(f"Password of {user}", hide_input=True, err=True)
    else:
        raise Failure(
            ExitCode.USAGE,
            f"there is no keyboard to read {user}'s password from: use --as-password-file",
        )
    raw = f"{user}:{password}".encode("utf-8", "surrogateescape")
    return "Basic " + base64.b64encode(raw).decode()


def admin_client(options: dict[str, Any]) -> AdminClient:
    """What asks the operator's listener, as the options of a command say."""
    named = credentials(options)
    return admin_client_of(settings_from(options), named)


def admin_client_of(settings: Settings, named: str | None) -> AdminClient:
    """What asks the operator's listener: as the named user, else with the token of the server that
    uses this data directory, if we may read it."""

    def find() -> tuple[Ports, str | None]:
        token = read_token(settings.server.data_directory) if named is None else None
        return find_ports(settings), named if token is None else f"Bearer {token}"

    def find_again() -> tuple[Ports, str | None]:
        if is_here and running_server(settings) is None:  # another one may be at the usual ports
            directory = settings.server.data_directory
            raise Failure(ExitCode.UNREACHABLE, f"no server uses the data directory {directory}")
        return find()

    is_here = running_server(settings) is not None
    return AdminClient(*find(), search=find_again)


def read_new_password(file: Path | None) -> str:
    """A password that is to be set: from the file, from the keyboard (twice), or the first line of
    standard input. Raises Failure."""
    if file is not None:
        return read_password_file(file)
    if sys.stdin.isatty():
        password: str = click.prompt(
            "New password", hide_input=True, confirmation_prompt=True, err=True
        )
        return password
    return _first_line(sys.stdin.buffer.readline(), "standard input")


def read_password_file(file: Path, what: str = "password") -> str:
    """The first line of a file: a secret, called so in errors. Raises Failure."""
    try:
        with file.open("rb") as lines:
            return _first_line(lines.readline(), str(file), what)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Failure(ExitCode.USAGE, f"cannot read the {what} in {file}: {reason}") from error


def _first_line(line: bytes, where: str, what: str = "password") -> str:
    try:
        secret = line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise Failure(ExitCode.USAGE, f"the {what} in {where} is not UTF-8") from error
    if not secret:
        raise Failure(ExitCode.USAGE, f"there is no {what} in {where}")
    return secret
