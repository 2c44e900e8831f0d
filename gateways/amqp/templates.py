"""How messages of each address are stored: templates, made once and found again by their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from weakref import WeakValueDictionary

from polymq.broker.port import BoundedCache, BrokerPort, Route, Template
from polymq.core_log.kernels.batch import EXTRA_BASE64
from polymq.gateways.amqp import delays, mapping, reply_names
from polymq.gateways.amqp.rows import Rows

_LONG: Final = b"L"
"""At the end of the keys of templates for long properties."""
_NO_PROPERTIES: Final[Mapping[str, str]] = {}


class Templates:
    """How messages of each address are stored. Shared by the connections of a listener.

    Args:
        count_max: addresses that are kept, a quarter of them for each kind of publish. Of more, the
            oldest are forgotten, and come back with use.
    """

    def __init__(self, *, port: BrokerPort, count_max: int) -> None:
        self._port = port
        self._count_max = count_max
        self.delayed: set[str] = set()
        """Exchanges that delay messages, among those that were published to."""
        self._others: WeakValueDictionary[BrokerPort, Templates] = WeakValueDictionary()
        # By durability and whether there may be message ids; then by place and life.
        self._templates: tuple[BoundedCache[bytes, Template], ...] = tuple(
            BoundedCache(max(1, count_max // 4)) for _ in range(4)
        )

    def of(self, port: BrokerPort) -> Templates:
        """Those of clients with another port, which may publish elsewhere: one table for each
        port, as long as somebody uses it."""
        if port is self._port:
            return self
        other = self._others.get(port)
        if other is None:
            other = self._others[port] = Templates(port=port, count_max=self._count_max)
        return other

    def find(self, rows: Rows) -> Template | None:
        """The template of these rows, or None if their place leads nowhere.

        Raises:
            Refused: there is no such exchange, or nobody may publish to it.
            Malformed: the exchange's name is not UTF-8.
        """
        return self._copying(rows) if rows.copies else self._get(rows)

    def _get(self, rows: Rows) -> Template | None:
        known = self._templates[rows.durability << 1 | rows.keyed]
        address = rows.address
        # The life has 10 digits, and an address ends where its sizes say.
        key = address + rows.ttl + _LONG if rows.is_long else address + rows.ttl
        template = known.get(key)
        if template is not None and template.valid:
            return template
        exchange, routing_key = mapping.exchange_and_key_of(address)
        route = None
        if exchange or not routing_key.startswith(reply_names.PREFIX):
            route = self._port.exchanges.route(exchange, routing_key)
        if route is None:
            known.pop(key, None)
            return None
        template = self._make(rows, route, exchange)
        known.add(key, template)
        return template

    def _copying(self, rows: Rows) -> Template | None:
        """For messages that go to what other routing keys lead to, as well. Not remembered."""
        copies = rows.copies
        assert copies is not None
        exchange, routing_key = mapping.exchange_and_key_of(rows.address)
        route = self._port.exchanges.copying_route(exchange, routing_key, copies.keys)
        if route is None:
            return None
        return self._make(rows, route, exchange, copies.properties())

    def _make(
        self,
        rows: Rows,
        route: Route,
        exchange: str,
        more: Mapping[str, str] = _NO_PROPERTIES,
    ) -> Template:
        info = self._port.exchanges.info(exchange)
        if info is not None and info.type == delays.EXCHANGE_TYPE:
            self.delayed.add(exchange)
        else:
            self.delayed.discard(exchange)
        own = mapping.template_properties(route, exchange, rows.ttl, long=rows.is_long)
        return self._port.topics.template(
            route,
            properties={**own, **more},
            extra_kind=EXTRA_BASE64,
            extra_name=mapping.EXTRA_NAME,
            extra_keyed=rows.keyed,
            durability=rows.durability,
        )
