"""Puts producers and consumers together, with this machine's clocks, chance and environment.

The cores take all that as arguments; here it is chosen once for all drivers, for those who do not
want to choose themselves. What goes wrong is logged under the name `polymq.remoting`.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Final

from polymq.remoting.client_options import ClientOptions
from polymq.remoting.compression import Decompressors
from polymq.remoting.consumer import Consumer
from polymq.remoting.consumer_settings import ConsumerSettings
from polymq.remoting.errors import LocalProtocolError
from polymq.remoting.link import Handler
from polymq.remoting.producer import Producer, ProducerSettings
from polymq.remoting.routes import NameServers, Routes, parse_name_servers
from polymq.remoting.steps import Address
from polymq.remoting.transactions import Listener, Transactions

log = logging.getLogger("polymq.remoting")
_ID_BYTES: Final = 16


def compose_routes(name_servers: str, address_server: str) -> Routes:
    """Routes from the name servers that are given, else those that an address server lists, else
    those of `NAMESRV_ADDR`. Raises LocalProtocolError: there are none."""
    addresses: tuple[Address, ...] = ()
    if name_servers or not address_server:
        addresses = parse_name_servers(name_servers, os.environ)
    return Routes(NameServers(addresses, random.randrange), endpoint=address_server)


def compose_producer(
    group: str,
    options: ClientOptions,
    settings: ProducerSettings | None,
    listener: Listener | None,
) -> tuple[Producer, Transactions | None]:
    """A producer, and its transactions if it has a listener for them. Raises LocalProtocolError."""
    _check_group(group)
    producer = Producer(
        group=group,
        client_id=_client_id(),
        routes=compose_routes(options.name_servers, options.address_server),
        clock=time.monotonic,
        clock_ms=_clock_ms,
        choose=random.randrange,
        new_id=lambda: secrets.token_hex(_ID_BYTES).upper(),
        settings=settings or ProducerSettings(),
    )
    if listener is None:
        return producer, None
    return producer, Transactions(producer, listener, report=log.warning)


def compose_consumer(
    group: str,
    subscriptions: Mapping[str, str],
    options: ClientOptions,
    settings: ConsumerSettings | None,
    decompressors: Decompressors | None,
) -> Consumer:
    """A consumer. Raises LocalProtocolError."""
    _check_group(group)
    if not subscriptions:
        raise LocalProtocolError("a consumer reads at least one topic: name one, with '*' or tags")
    return Consumer(
        group=group,
        client_id=_client_id(),
        routes=compose_routes(options.name_servers, options.address_server),
        subscriptions=subscriptions,
        started_ms=_clock_ms(),
        clock=time.monotonic,
        settings=settings or ConsumerSettings(),
        decompressors=decompressors or {},
        report=log.warning,
    )


def handlers(transactions: Transactions | None) -> Handler | None:
    """What answers the questions of brokers to a producer."""
    return None if transactions is None else transactions.asked


def _check_group(group: str) -> None:
    if not group:
        raise LocalProtocolError("a group has a name")


def _client_id() -> str:
    """Of its own for each producer and consumer: brokers tell them apart by it."""
    return f"{socket.gethostname()}@{os.getpid()}#{secrets.token_hex(4)}"


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
