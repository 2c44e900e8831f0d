"""`polymq console`: the console, a web application over the admin API."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any, Final

import click

from polymq.commands.options import config_option, data_flag, ready_file_option, settings_from
from polymq.errors import ExitCode, Failure
from polymq.net.listener import explain
from polymq.ports import ADMIN_HOST, find_ports, write_values
from polymq.settings import TlsSettings, is_loopback
from polymq.terminal import echo
from polymq.tls_files import tls_of

PORT: Final = 9467


@click.command()
@config_option
@data_flag
@click.option("--url", help="Admin API of the broker. Default: that of the server of this machine.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False),
    help="PEM file with the authorities that issued the certificate of an https URL.",
)
@click.option("--host", default=ADMIN_HOST, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port. 0: the system chooses one.",
)
@click.option(
    "--certificate", default="", help="PEM file with a certificate: the console uses TLS."
)
@click.option(
    "--key", default="", help="PEM file with the private key. Default: that in --certificate."
)
@click.option(
    "--allow-plain",
    is_flag=True,
    help="Let other machines use it without TLS: passwords cross the network unencrypted.",
)
@ready_file_option("Write the port to this file (JSON) as soon as browsers can connect.")
def console(
    url: str | None,
    ca: str | None,
    host: str,
    port: int,
    certificate: str,
    key: str,
    allow_plain: bool,
    ready_file: Path | None,
    **options: Any,
) -> int:
    """Run the console until Ctrl-C or SIGTERM.

    The console shows a broker in a browser. It runs beside the broker, or on another machine, and
    asks the broker's admin API. Who uses it logs in as a user of the broker.
    """
    try:
        from polymq.console.api import Broker
        from polymq.console.app import serve_console
    except ModuleNotFoundError as error:
        text = f"the console needs more packages ({error.name}): pip install 'polymq[console]'"
        raise Failure(ExitCode.USAGE, text) from error
    settings = settings_from(options)
    tls = _tls(url, ca)
    _check_reachable(host, certificate, key or certificate, allow_plain=allow_plain)
    listening = _listen(host, port)
    bound = listening.getsockname()[1]
    broker = Broker(url or f"http://{ADMIN_HOST}:{find_ports(settings).admin}", tls)
    if ready_file is not None:
        write_values(ready_file, {"port": bound})
    scheme = "https" if certificate else "http"
    echo(f"The console of {broker.name} is at {scheme}://{host}:{bound}", err=True)
    serve_console(broker, [listening], certificate=certificate, key=key)
    return ExitCode.OK


def _tls(url: str | None, ca: str | None) -> ssl.SSLContext | None:
    if url is not None and not url.startswith(("http://", "https://")):
        raise Failure(ExitCode.USAGE, f"--url begins with http:// or https://, unlike {url!r}")
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        text = f"--ca {ca} has no certificates that can be used: {error}"
        raise Failure(ExitCode.USAGE, text) from error


def _check_reachable(host: str, certificate: str, key: str, *, allow_plain: bool) -> None:
    """Whether other machines may use the console, and the certificate can be used. Raises
    Failure."""
    if certificate or key:
        tls_of(TlsSettings(certificate=certificate, key=key), owner="console")
    elif not allow_plain and not is_loopback(host):
        text = f"a console at {host} needs a certificate (--certificate), or --allow-plain"
        raise Failure(ExitCode.USAGE, text)


def _listen(host: str, port: int) -> socket.socket:
    """Raises Failure."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise Failure(ExitCode.CANNOT_LISTEN, explain(host, port, error)) from error
