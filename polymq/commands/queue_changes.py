"""`polymq queue create`, `bind`, `unbind`: commands that make queues and their bindings."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import json_option, show_json
from polymq.terminal import echo

Row = dict[str, Any]

_FIELDS: Final = (
    "auto_delete",
    "max_length",
    "max_length_bytes",
    "overflow",
    "message_ttl_ms",
    "expires_ms",
    "dead_letter_exchange",
    "dead_letter_routing_key",
    "max_priority",
    "delivery_limit",
)
"""Of the API's body, those that have an option of the same name."""

_arguments_option = click.option(
    "--argument",
    "arguments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A further argument, by AMQP's name. VALUE is JSON, or else a text. May be repeated.",
)


def _assigned(texts: tuple[str, ...]) -> Row:
    found: Row = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise click.BadParameter("write each argument as KEY=VALUE")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


@click.command("create")
@operator_options
@click.argument("name")
@click.option("--transient", is_flag=True, help="The queue ends with the server.")
@click.option("--auto-delete", is_flag=True, help="The queue ends with its last consumer.")
@click.option("--max-length", type=click.IntRange(min=0), help="Messages that may be ready in it.")
@click.option("--max-length-bytes", type=click.IntRange(min=0), help="Their bytes likewise.")
@click.option(
    "--overflow",
    type=click.Choice(["drop-head", "reject-publish", "reject-publish-dlx"]),
    help="What gives way when it is full: the oldest message, or what is published.",
)
@click.option(
    "--message-ttl",
    "message_ttl_ms",
    type=click.IntRange(min=0),
    metavar="MILLISECONDS",
    help="How long a message waits before it expires.",
)
@click.option(
    "--expires",
    "expires_ms",
    type=click.IntRange(min=1),
    metavar="MILLISECONDS",
    help="How long the queue may be unused before it is deleted.",
)
@click.option(
    "--dead-letter-exchange", help="Where messages go that it gives up. Empty: the default one."
)
@click.option("--dead-letter-routing-key", help="The routing key that they get there.")
@click.option("--max-priority", type=click.IntRange(0, 255), help="The highest priority in it.")
@click.option("--delivery-limit", type=click.INT, help="How often a message is delivered again.")
@click.option(
    "--single-active-consumer", is_flag=True, help="One consumer at a time gets messages."
)
@_arguments_option
@click.option(
    "--bind",
    "bindings",
    type=(str, str),
    multiple=True,
    metavar="EXCHANGE KEY",
    help="Bind it to an exchange, with a routing key. May be repeated.",
)
@json_option
def queue_create(
    name: str,
    transient: bool,
    single_active_consumer: bool,
    arguments: tuple[str, ...],
    bindings: tuple[tuple[str, str], ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Create queue NAME, as a client of AMQP declares it.

    A queue that is there stays as it is. It is an error if that queue is another one.
    """
    body: Row = {field: given.pop(field) for field in _FIELDS}
    body |= {"durable": not transient, "arguments": _assigned(arguments)}
    body["bindings"] = [{"exchange": one, "routing_key": key} for one, key in bindings]
    if single_active_consumer:
        body["single_active_consumer"] = True
    answer = admin_client(given).ask("PUT", api_path("queues", name), body)
    if as_json:
        show_json(answer)
    else:
        echo(f"Queue {name} is there.")


def _change(verb: str, name: str, body: Row, as_json: bool, options: Row) -> None:
    answer = admin_client(options).ask("POST", api_path("queues", name, verb), body)
    if as_json:
        show_json(answer)
    else:
        key = body["routing_key"]
        link = "bound to" if verb == "bind" else "no longer bound to"
        echo(f"Queue {name} is {link} {body['exchange']} with the routing key {key!r}.")


def _binding(exchange: str, key: str, arguments: tuple[str, ...]) -> Row:
    return {"exchange": exchange, "routing_key": key, "arguments": _assigned(arguments)}


_key_option = click.option(
    "--routing-key", "key", default="", help="Of the binding; empty by default."
)


@click.command("bind")
@operator_options
@click.argument("name")
@click.argument("exchange")
@_key_option
@_arguments_option
@json_option
def queue_bind(
    name: str,
    exchange: str,
    key: str,
    arguments: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Bind queue NAME to EXCHANGE by a routing key."""
    _change("bind", name, _binding(exchange, key, arguments), as_json, options)


@click.command("unbind")
@operator_options
@click.argument("name")
@click.argument("exchange")
@_key_option
@_arguments_option
@json_option
def queue_unbind(
    name: str,
    exchange: str,
    key: str,
    arguments: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Remove a binding of queue NAME to EXCHANGE. It has to be named as it was made."""
    _change("unbind", name, _binding(exchange, key, arguments), as_json, options)
