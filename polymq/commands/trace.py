"""`polymq trace`: what MQTT clients send and receive, as it happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.errors import ExitCode, Failure
from polymq.packet_texts import packet_text
from polymq.terminal import echo, leave_quietly


@click.command()
@operator_options
@click.option("--client", "client_id", metavar="CLIENT_ID", help="Packets of this client.")
@click.option("--topic", metavar="FILTER", help="Messages to topics that match, of all clients.")
@click.option("--address", help="Packets of clients from this address or network.")
@click.option(
    "--seconds",
    type=click.IntRange(1, 86_400),
    default=60,
    show_default=True,
    help="How long to trace. Ctrl-C ends it earlier.",
)
@click.option(
    "--payload",
    type=click.IntRange(1, 4_096),
    metavar="BYTES",
    help="Show so many bytes of each payload. Needs the right to read all topics.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def trace(
    client_id: str | None,
    topic: str | None,
    address: str | None,
    seconds: int,
    payload: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show packets of MQTT clients as they come and go.

    Each packet is a line.

    Neighbouring packets that differ in their packet identifiers only are one line with their
    number. Passwords are never shown, and payloads only with --payload. A reader that is too slow
    loses lines, which are counted; the clients do not wait.

    Example: polymq trace --client device7 --seconds 600
    """
    if [client_id, topic, address].count(None) != 2:
        raise Failure(ExitCode.USAGE, "use one of --client, --topic and --address")
    if client_id == "":
        raise Failure(ExitCode.USAGE, "--client: no client has an empty identifier")
    body = {"client_id": client_id, "topic": topic, "address": address, "seconds": seconds}
    body["payload"] = payload or 0
    lines = admin_client(options).lines(api_path("mqtt", "traces"), body)
    try:
        _show(lines, as_json=as_json)
    except BrokenPipeError:
        leave_quietly()  # whoever reads our output has enough (`| head`)


def _show(lines: Iterator[bytes], *, as_json: bool) -> None:
    for line in lines:
        value = json.loads(line)
        if as_json:
            echo(json.dumps(value, ensure_ascii=False))
        elif "dropped" in value:
            echo(f"{value['dropped']:,} lines were dropped: the reader is too slow", err=True)
        else:
            echo(packet_text(value))
