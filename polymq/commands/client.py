"""`polymq topic`, `message` and `store`: commands that talk to a running server."""

from __future__ import annotations

import sys
from typing import Any

import click

from polymq.admin.client import MessageReader, api_path, publish
from polymq.commands.access import (
    access_key,
    access_key_options,
    admin_client,
    credentials,
    operator_options,
)
from polymq.commands.cut import cut
from polymq.commands.find import message_find, message_show, show_message
from polymq.commands.holders import store_holders
from polymq.commands.messages import message_list, message_peek
from polymq.commands.options import config_option, data_flag, format_option, settings_from
from polymq.commands.tables import fetch_items, json_option, show_json
from polymq.commands.way import message_way
from polymq.errors import ExitCode, Failure
from polymq.ports import find_ports
from polymq.settings import MESSAGE_BYTES_MAX
from polymq.terminal import confirm, echo, leave_quietly, printable
from polymq.tls import own_tls


@click.group()
def topic() -> None:
    """List, create, show and delete topics of a running server.

    A topic is also created when a message is first published to it.
    """


@topic.command("list")
@operator_options
@json_option
def topic_list(as_json: bool, **options: Any) -> None:
    """List all topics with the number of messages in each."""
    answer = fetch_items(admin_client(options), ("topics",), {}, 0)
    if as_json:
        show_json(answer)
        return
    topics = answer["items"]
    if not topics:
        echo("There are no topics yet: publish a message, or use `polymq topic create NAME`.")
    names = [printable(value["name"]) for value in topics]
    width = max(map(len, names), default=0)
    for name, value in zip(names, topics, strict=True):
        echo(f"{name:<{width}}  {_messages(value, 12)}")


@topic.command("create")
@operator_options
@click.argument("name")
@click.option(
    "--queues",
    "queue_count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of queues. Messages are ordered within a queue, and the readers of a group share "
    "the queues.",
)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def topic_create(name: str, queue_count: int, settings: tuple[str, ...], **options: Any) -> None:
    """Create topic NAME, with settings of its own if some are given.

    The server's defaults apply to the other settings (see `polymq topic set`). An existing topic
    stays as it is.
    """
    chosen = _assignments(settings)
    created = admin_client(options).create_topic(name, queue_count, chosen)
    echo(f"Topic {name} {'created' if created else 'already exists'}.")


@topic.command("set")
@operator_options
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
def topic_set(name: str, settings: tuple[str, ...], **options: Any) -> None:
    """Change settings of topic NAME.

    durability=fsync|page_cache: what an acknowledgement waits for. min_in_sync=N: how many brokers
    must have a message before it is acknowledged. retention_seconds=N and retention_bytes=N: for
    how long messages can be read by offset, and how many bytes of them (0: no limit). They apply
    to existing messages, too. The value `default` restores the server's configuration.

    Example: polymq topic set sensors retention_seconds=86400
    """
    _show_settings(admin_client(options).set_topic(name, _assignments(settings)))


@topic.command("show")
@operator_options
@click.argument("name")
@json_option
def topic_show(name: str, as_json: bool, **options: Any) -> None:
    """Show the queues of topic NAME, their offsets, and its settings."""
    value = admin_client(options).ask("GET", api_path("topics", name))
    if as_json:
        show_json(value)
        return
    echo(f"{printable(value['name'])}: {_messages(value)}")
    for queue in value["queues"]:
        first, end = queue["first_offset"], queue["end_offset"]
        held = f"offsets {first:,} to {end - 1:,}" if end > first else f"empty, next offset {end:,}"
        echo(f"  queue {queue['queue']}: {held}")
    _show_settings(value)


def _messages(topic_value: dict[str, Any], width: int = 0) -> str:
    """How many a topic has, in words; the number in so many columns."""
    count = topic_value["message_count"]
    return f"{count:>{width},} {'message' if count == 1 else 'messages'}"


def _assignments(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if any(not separator for _, separator, _ in pairs):
        raise click.BadParameter("write each setting as KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _show_settings(topic_value: dict[str, Any]) -> None:
    for key, value in topic_value["settings"].items():
        origin = "" if key in topic_value["own_settings"] else "  (the server's default)"
        echo(f"  {key} = {value}{origin}")


@topic.command("delete")
@operator_options
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def topic_delete(name: str, yes: bool, **options: Any) -> None:
    """Delete topic NAME with all its messages."""
    client, path = admin_client(options), api_path("topics", name)
    value = client.ask("GET", path)
    if not yes:
        confirm(f"Delete topic {name} with {_messages(value)}?")
    client.request("DELETE", path)
    echo(f"Topic {name} deleted.")


@click.group()
def message() -> None:
    """Publish and read messages of a running server."""


@message.command("publish")
@operator_options
@click.argument("topic")
@click.argument("tag")
@click.argument("body", required=False)
@click.option("--content-type", help="Media type of the body, such as application/json.")
@click.option("--id", "identity", help="The event's id. Default: a random one.")
@click.option("--source", default="/polymq/cli", show_default=True, help="The event's source.")
def message_publish(
    topic: str,
    tag: str,
    body: str | None,
    content_type: str | None,
    identity: str | None,
    source: str,
    **options: Any,
) -> None:
    """Publish BODY to TOPIC with TAG, as a CloudEvent.

    An MQTT client receives it under TOPIC/TAG (with / for the dots of TAG), an AMQP client from
    exchange TOPIC with routing key TAG. Without BODY, the body is read from standard input. The
    command returns once the message is on the server's disk.

    Example: polymq message publish sensors room1.temp 21.5
    """
    named = credentials(options)
    data = _standard_input() if body is None else body.encode("utf-8", "surrogateescape")
    publish(
        find_ports(settings_from(options)),
        topic=topic,
        tag=tag,
        body=data,
        content_type=content_type,
        identity=identity,
        source=source,
        credentials=named,
    )
    echo(f"{len(data):,} bytes are stored in {topic}.", err=True)


def _standard_input() -> bytes:
    data = sys.stdin.buffer.read(MESSAGE_BYTES_MAX + 1)
    if len(data) > MESSAGE_BYTES_MAX:
        text = f"standard input has more than {MESSAGE_BYTES_MAX:,} bytes, the most of any message"
        raise Failure(ExitCode.FAILED, text)
    return data


@message.command("read")
@config_option
@data_flag
@access_key_options
@click.argument("topic")
@click.option("--queue", type=int, help="Read only this queue of the topic. Default: all queues.")
@click.option(
    "--from",
    "start",
    default="first",
    show_default=True,
    metavar="first|next|OFFSET",
    help="Where to begin: at the first message, at the next one that is stored, or at an offset.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "--follow", is_flag=True, help="Wait for more messages when all are read, until Ctrl-C."
)
@format_option(
    "text: one line about the message, then its body. json: one object per line, with the body in "
    "base64. body: only the bodies, unchanged."
)
def message_read(
    topic: str,
    queue: int | None,
    start: str,
    count: int | None,
    follow: bool,
    form: str,
    **options: Any,
) -> None:
    """Read messages of TOPIC in the order of their offsets.

    Reading removes nothing and does not affect subscribers. The same messages can be read again.
    """
    if start not in ("first", "next") and not start.isdecimal():
        raise click.BadParameter("use first, next, or an offset", param_hint="--from")
    signed = access_key(options)
    settings = settings_from(options)
    ports = find_ports(settings)
    is_hidden = ports.rocketmq is None and ports.rocketmqs is not None
    tls = own_tls(settings.tls) if is_hidden else None
    reader = MessageReader(ports, topic, signed, tls)
    shown = 0
    for stored in reader.read(queue=queue, start=start, follow=follow or start == "next"):
        try:
            show_message(stored, form)
        except BrokenPipeError:
            leave_quietly()  # whoever read our output has enough (`| head`)
            return
        shown += 1
        if shown == count:
            break
    if not shown and form == "text":
        echo(f"There are no messages to read in {topic}.", err=True)


@click.group(invoke_without_command=True)
@operator_options
@json_option
@click.pass_context
def store(context: click.Context, /, as_json: bool, **options: Any) -> None:
    """Show the size of the log, and what keeps it from shrinking.

    The command also shows the free space of the disk. A segment of the log is deleted when no
    topic's retention, queue, session or retained message needs it. The output names what needs the
    oldest segment.
    """
    if context.invoked_subcommand is not None:
        return
    from polymq.store_report import describe_store  # noqa: PLC0415  (loads a server)

    value = admin_client(options).ask("GET", api_path("store"))
    if as_json:
        show_json(value)
        return
    for line in describe_store(value):
        echo(line)


message.add_command(message_find)
message.add_command(message_show)
message.add_command(message_list)
message.add_command(message_peek)
message.add_command(message_way)
store.add_command(cut)
store.add_command(store_holders)
