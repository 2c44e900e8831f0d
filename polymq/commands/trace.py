"""`polymq trace`: packets of MQTT clients, and deliveries of messages, as they happen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.errors import ExitCode, Failure
from polymq.packet_texts import event_text, packet_text
from polymq.terminal import echo, leave_quietly


@click.command()
@operator_options
@click.option(
    "--messages",
    "of_messages",
    is_flag=True,
    help="Trace deliveries of messages of all protocols instead of packets.",
)
@click.option(
    "--sample",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="With --messages: one message in N of each queue of a topic.",
)
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
    of_messages: bool,
    sample: int | None,
    client_id: str | None,
    topic: str | None,
    address: str | None,
    seconds: int,
    payload: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show packets of MQTT clients, or deliveries of messages.

    Each packet is a line. With --messages, each time that a message of any protocol is handed out
    is a line, and each time that it is settled. --topic and --sample choose the messages; without
    them, all are shown, up to 1,000 lines a second.

    Neighbouring packets that differ in their packet identifiers only are one line with their
    number. Passwords are never shown, and payloads only with --payload. A reader that is too slow
    loses lines, which are counted; the clients do not wait.
    """
    if of_messages:
        if client_id is not None or address is not None or payload is not None:
            raise Failure(
                ExitCode.USAGE, "--messages goes with --topic and --sample: leave out the others"
            )
        of_all = {"topic": topic, "sample": sample or 1, "seconds": seconds}
        _print(admin_client(options).lines(api_path("messages", "traces"), of_all), as_json)
        return
    if sample is not None:
        raise Failure(ExitCode.USAGE, "--sample goes with --messages")
    if [client_id, topic, address].count(None) != 2:
        raise Failure(ExitCode.USAGE, "use one of --client, --topic and --address")
    if client_id == "":
        raise Failure(ExitCode.USAGE, "--client: no client has an empty identifier")
    body = {"client_id": client_id, "topic": topic, "address": address, "seconds": seconds}
    body["payload"] = payload or 0
    _print(admin_client(options).lines(api_path("mqtt", "traces"), body), as_json)


def _print(lines: Iterator[bytes], as_json: bool) -> None:
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
            echo(event_text(value) if "event" in value else packet_text(value))
